# SPDX-License-Identifier: Apache-2.0
"""All cards of all nodes as columns, to filter and score nodes at once. Pure.

A node is a column, its cards are the column's places in the order of their UUIDs: so numpy runs
over all nodes in one go, place by place. What fits here is
exactly what `placing.place_pod` would place; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress

import numpy as np
from numpy.typing import NDArray

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.errors import NoRoomError
from scheduler_cache.fit import ObstacleKind, assign, policy_of
from scheduler_cache.model import CardPolicy, Demand, MemoryAmount, Request
from scheduler_cache.node_view import NodeView
from scheduler_cache.placing import place_pod
from scheduler_cache.pod import ContainerKind, Pod
from scheduler_cache.refusal import wanted

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Codes = NDArray[np.int8]

TOP_SCORE = 10
"""What kube-scheduler takes from an extender: 0..10."""

# Beyond this many different amounts in one container, nodes are tried one by one.
_MOST_DIFFERENT = 5
# Ten counts in one 64-bit key; a node has 16 cards at most, and MIG instances.
_COUNT_BITS = 6
_MOST_COUNTED = (1 << _COUNT_BITS) - 1

# In the order in which `fit.obstacle` looks, after what is not offered at all.
_REASONS = (
    (ObstacleKind.DENIED, "{} not allowed by the request's models or UUIDs"),
    (ObstacleKind.UNHEALTHY, "{} unhealthy"),
    (ObstacleKind.OVERBOOKED, "{} overbooked"),
    (ObstacleKind.HELD, "{} held exclusively"),
    (ObstacleKind.IN_USE, "{} in use by others"),
    (ObstacleKind.SLOTS, "{} without a free slot"),
    (ObstacleKind.MEMORY, "{} with less memory free"),
    (ObstacleKind.CORES, "{} with fewer cores free"),
)
_NOT_OFFERED = len(_REASONS)
_FITS = _NOT_OFFERED + 1
_NO_CARD = _FITS + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Filtered:
    """Which nodes fit a pod, and why the others do not."""

    fitting: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    """By node: one sentence. Something may end there, or be preempted."""
    unresolvable: dict[str, str] = field(default_factory=dict)
    """By node: it would not fit even if nobody held anything."""


@dataclass(slots=True)
class _Free:
    """What is free on each card, while containers are placed one after the other."""

    memory: Numbers
    cores: Numbers
    slots: Numbers
    used: Mask
    ready: Mask
    """Offered, healthy, not overbooked, held exclusively by nobody, and with a slot free."""

    def copy(self) -> _Free:
        return _Free(
            self.memory.copy(),
            self.cores.copy(),
            self.slots.copy(),
            self.used.copy(),
            self.ready.copy(),
        )


class Columns:
    """The columns. `update` follows the cluster's views; everything else only reads."""

    def __init__(self, *, default_policy: CardPolicy = CardPolicy.BINPACK) -> None:
        self._default_policy = default_policy
        self._at: dict[str, int] = {}
        self._views: list[NodeView | None] = [None] * 64
        self._unused = list(range(63, -1, -1))
        self._models: dict[str, int] = {}
        self._refusals: dict[str, int] = {"": 0}
        self._places: dict[str, tuple[int, int]] = {}
        self._asked_names: list[str] = []
        self._asked: Numbers = np.zeros(0, np.int64)
        self._make(8, 64)

    # Following the cluster

    def update(self, view: NodeView) -> None:
        """Take a node's new view."""
        cards = list(view.inventory.cards)
        if len(cards) > self._memory.shape[0]:
            self._grow(width=2 * len(cards))
        if view.name not in self._at:
            if not self._unused:
                self._grow(nodes=max(2 * len(self._views), 64))
            self._at[view.name] = self._unused.pop()
            self._asked_names = []
        at = self._at[view.name]
        self._clear(at)
        self._views[at] = view
        free = self._free
        for place, uuid in enumerate(cards):
            room = view.room(uuid)
            card, use, refusal = room.card, room.use, view.refused(uuid)
            slots = card.slots - use.slices
            key = (place, at)
            self._places[uuid] = key
            self._valid[key] = True
            self._memory[key] = card.memory_bytes
            free.memory[key] = room.free_bytes
            free.cores[key] = room.free_cores_percent
            free.slots[key] = slots
            free.used[key] = bool(use.slices)
            self._held[key] = bool(use.exclusive_holders)
            self._healthy[key] = card.healthy
            self._overbooked[key] = room.overbooked
            self._model[key] = self._models.setdefault(card.model, len(self._models))
            self._refusal[key] = self._refusals.setdefault(refusal, len(self._refusals))
            free.ready[key] = (
                card.healthy
                and not room.overbooked
                and not refusal
                and not use.exclusive_holders
                and slots >= 1
            )

    def remove(self, name: str) -> None:
        """Forget a node."""
        at = self._at.pop(name, None)
        if at is not None:
            self._clear(at)
            self._views[at] = None
            self._unused.append(at)
            self._asked_names = []

    def __len__(self) -> int:
        return len(self._at)

    # Asking

    def filter(self, pod: Pod, asked: PodRequest, names: Iterable[str] | None = None) -> Filtered:
        """Return which of the nodes take the pod now. `names`: None means all nodes."""
        named = list(self._at) if names is None else list(names)
        where = self._where(named, keep=True)
        known = where >= 0
        fits = self._fits(pod, asked)[where] & known
        if fits.all():
            return Filtered(fitting=named)
        unresolvable: dict[str, str] = {}
        lost = np.flatnonzero(~fits)
        words = self._words(asked, where[lost])
        hopeful = self._hopeful(asked, where[lost])
        refused = list(compress(named, (~fits).tolist()))
        failed = dict(zip(refused, words, strict=True))
        if not hopeful.all():
            unresolvable = dict(compress(zip(refused, words, strict=True), (~hopeful).tolist()))
            failed = dict(compress(zip(refused, words, strict=True), hopeful.tolist()))
        return Filtered(
            fitting=list(compress(named, fits.tolist())), failed=failed, unresolvable=unresolvable
        )

    def prioritize(self, asked: PodRequest, names: Sequence[str]) -> list[int]:
        """Return a score of 0..10 for each node, in the order given; best is what the policy
        prefers.

        Binpack: how little memory is left on the card that the largest demand gets. Spread: how
        much is free there. Exclusive: how many of the node's cards are in use already.
        """
        where = self._where(names)
        request, demand = self._hardest(asked)
        policy = policy_of(request, self._default_policy)
        free, size = self._free.memory, np.maximum(self._memory, 1)
        if policy is CardPolicy.EXCLUSIVE:
            cards = np.maximum(self._valid.sum(axis=0), 1)
            best = self._free.used.sum(axis=0) * TOP_SCORE // cards
        else:
            takes = self._takes(request, demand, self._free)
            if policy is CardPolicy.SPREAD:
                best = np.where(takes, free * TOP_SCORE // size, 0).max(axis=0, initial=0)
            else:
                left = (free - self._need(demand)) * TOP_SCORE // size
                left = np.where(takes, left, TOP_SCORE)
                best = TOP_SCORE - left.min(axis=0, initial=TOP_SCORE)
        scores: list[int] = np.where(where >= 0, best[where], 0).tolist()
        return scores

    def reasons(self, pod: Pod, asked: PodRequest, name: str) -> str:
        """Return, card by card and in words, why one node does not take the pod; empty: it does."""
        at = self._at.get(name)
        view = self._views[at] if at is not None else None
        if view is None:
            return f"node {name} is not known here"
        try:
            place_pod(pod, asked, view, self._default_policy)
        except NoRoomError as error:
            return str(error)
        return ""

    # Fitting

    def _fits(self, pod: Pod, asked: PodRequest) -> Mask:
        """Return which nodes take all containers of the pod."""
        containers = asked.containers
        if asked.pod_level or len(containers) == 1:
            return self._fits_one(next(iter(containers.values())), self._free)
        # Each alone is the least that must fit; mostly it settles the matter.
        alone_fit = np.ones(len(self._views), np.bool_)
        for request in containers.values():
            alone_fit &= self._fits_one(request, self._free)
        if not alone_fit.any():
            return alone_fit
        if not _vectored(containers.values()):
            return self._one_by_one(pod, asked, alone_fit)
        order = [
            each.name
            for each in pod.containers
            if each.kind is not ContainerKind.INIT and each.name in containers
        ]
        order.sort(key=lambda name: _size(containers[name]), reverse=True)
        fits = alone_fit
        left = self._free.copy()
        chosen: dict[str, Mask] = {}
        for name in order:
            fits = fits & self._fits_one(containers[name], left)
            chosen[name] = self._choose(containers[name], left)
            self._take(containers[name], chosen[name], left)
        beside = self._free.copy()
        for each in pod.containers:
            if each.name not in containers:
                continue
            if each.kind is ContainerKind.SIDECAR:
                self._take(containers[each.name], chosen[each.name], beside)
            elif each.kind is ContainerKind.INIT:
                fits = fits & self._fits_one(containers[each.name], beside)
        return fits

    def _fits_one(self, request: Request, free: _Free) -> Mask:
        """Return which nodes give one container all its cards.

        With unequal amounts by Hall's theorem: every set of demands must find as many cards that
        take one of them.
        """
        different = list(dict.fromkeys(request.demands))
        takes = [self._takes(request, demand, free) for demand in different]
        if len(different) == 1:
            if request.count == 1:
                return np.asarray(takes[0].any(axis=0))
            return np.asarray(takes[0].sum(axis=0, dtype=np.int16) >= request.count)
        numbers = [request.demands.count(demand) for demand in different]
        if len(different) > _MOST_DIFFERENT:
            return self._fits_many(request, free)
        fits = np.ones(len(self._views), np.bool_)
        for size in range(1, len(different) + 1):
            for some in combinations(range(len(different)), size):
                together = np.logical_or.reduce([takes[i] for i in some])
                fits &= together.sum(axis=0, dtype=np.int16) >= sum(numbers[i] for i in some)
        return fits

    def _fits_many(self, request: Request, free: _Free) -> Mask:
        """Return the same for many different amounts, node by node."""
        takes = np.stack([self._takes(request, demand, free) for demand in request.demands])
        possible: Mask = np.asarray(takes.any(axis=1).all(axis=0))
        for at in np.flatnonzero(possible).tolist():
            options = [np.flatnonzero(takes[i, :, at]).tolist() for i in range(request.count)]
            possible[at] = assign(options, range(len(options))) is not None
        return possible

    def _takes(self, request: Request, demand: Demand, free: _Free) -> Mask:
        """Return which cards take one demand."""
        policy = policy_of(request, self._default_policy)
        need = self._need(demand)
        takes = free.ready & (free.memory >= need)
        if demand.memory.percent:
            takes &= need > 0
        if demand.cores_percent:
            takes &= free.cores >= demand.cores_percent
        if policy is CardPolicy.EXCLUSIVE:
            takes &= ~free.used
        if request.uuids or request.models:
            takes &= self._allowed(request)
        return takes

    def _need(self, demand: Demand) -> Numbers:
        if demand.memory.bytes:
            return np.broadcast_to(np.int64(demand.memory.bytes), self._memory.shape)
        return _part(self._memory, demand.memory)

    def _allowed(self, request: Request) -> Mask:
        """Return which cards the request's lists allow."""
        allow = [entry for entry in request.uuids if not entry.startswith("!")]
        if allow:
            allowed = np.zeros(self._valid.shape, np.bool_)
            for uuid in allow:
                if uuid in self._places:
                    allowed[self._places[uuid]] = True
        else:
            allowed = np.ones(self._valid.shape, np.bool_)
        for entry in request.uuids:
            if entry.startswith("!") and entry[1:] in self._places:
                allowed[self._places[entry[1:]]] = False
        if request.models:
            asked = [entry.casefold() for entry in request.models if not entry.startswith("!")]
            denied = [entry[1:].casefold() for entry in request.models if entry.startswith("!")]
            by_model = np.array(
                [
                    (not asked or any(entry in model for entry in asked))
                    and not any(entry in model for entry in denied)
                    for model in (each.casefold() for each in self._models)
                ]
                or [False],
                np.bool_,
            )
            allowed &= by_model[self._model]
        return allowed

    def _choose(self, request: Request, free: _Free) -> Mask:
        """Return the cards that `fit.place` would choose for equal demands, on every row at
        once.
        """
        demand = request.demands[0]
        takes = self._takes(request, demand, free)
        spread = policy_of(request, self._default_policy) is CardPolicy.SPREAD
        rank = np.where(takes, -free.memory if spread else free.memory, np.iinfo(np.int64).max)
        # Stable: among cards with as much free the smaller UUID comes first.
        chosen = np.zeros(takes.shape, np.bool_)
        if request.count == 1:
            chosen[rank.argmin(axis=0), np.arange(takes.shape[1])] = True
        else:
            order = np.argsort(rank, axis=0, kind="stable")[: request.count]
            np.put_along_axis(chosen, order, True, axis=0)
        return chosen & takes

    def _take(self, request: Request, chosen: Mask, free: _Free) -> None:
        demand = request.demands[0]
        cores = 100 if request.whole_cards else demand.cores_percent or 0
        free.memory -= np.where(chosen, self._need(demand), 0)
        free.cores -= np.where(chosen, cores, 0)
        free.slots -= chosen
        free.used |= chosen
        free.ready &= free.slots >= 1
        if policy_of(request, self._default_policy) is CardPolicy.EXCLUSIVE:
            free.ready &= ~chosen

    def _one_by_one(self, pod: Pod, asked: PodRequest, nodes: Mask) -> Mask:
        fits = nodes.copy()
        for at in np.flatnonzero(nodes).tolist():
            view = self._views[at]
            try:
                if view is not None:
                    place_pod(pod, asked, view, self._default_policy)
            except NoRoomError:
                fits[at] = False
        return fits

    def _where(self, names: Sequence[str], *, keep: bool = False) -> Numbers:
        """Return where the nodes are, -1 for those that are not known.

        kube-scheduler filters the same list with pod after pod, so that it is kept.
        """
        if names == self._asked_names:
            return self._asked
        where = np.fromiter((self._at.get(name, -1) for name in names), np.int64, len(names))
        if keep:
            self._asked_names, self._asked = list(names), where
        return where

    # Saying why

    def _hardest(self, asked: PodRequest) -> tuple[Request, Demand]:
        """Return the largest demand and the request that it is of."""
        pairs = [(each, demand) for each in asked.containers.values() for demand in each.demands]
        largest = int(self._memory.max(initial=0))
        return max(
            pairs,
            key=lambda pair: (
                pair[1].memory.bytes or largest * pair[1].memory.percent // 100,
                pair[1].cores_percent or 0,
            ),
        )

    def _words(self, asked: PodRequest, where: Numbers) -> list[str]:
        """Return one sentence per node. Nodes with the same counts of reasons share it."""
        request, demand = self._hardest(asked)
        codes = self._codes(request, demand, where)
        key = np.zeros(len(where), np.int64)
        for code in range(_FITS + 1):
            key <<= _COUNT_BITS
            key += np.minimum((codes == code).sum(axis=0, dtype=np.int16), _MOST_COUNTED)
        key[where < 0] = -1
        _, first, same = np.unique(key, return_index=True, return_inverse=True)
        why = np.zeros(len(where), np.int64)
        if (codes == _NOT_OFFERED).any():
            why = np.where(codes == _NOT_OFFERED, self._refusal[:, where], 0).max(axis=0, initial=0)
            _, first, same = np.unique(
                same * len(self._refusals) + why, return_index=True, return_inverse=True
            )
        refusals = list(self._refusals)
        sentences = [
            "this node is not known here"
            if where[i] < 0
            else _sentence(request, demand, codes[:, i], refusals[int(why[i])])
            for i in first.tolist()
        ]
        return [sentences[i] for i in same.tolist()]

    def _codes(self, request: Request, demand: Demand, where: Numbers) -> Codes:
        """Return why each card does not take the demand, as `fit.obstacle` would say."""
        need = self._need(demand)
        free = self._free
        exclusive = policy_of(request, self._default_policy) is CardPolicy.EXCLUSIVE
        tests = (
            ~self._allowed(request) if request.uuids or request.models else None,
            ~self._healthy,
            self._overbooked,
            self._held,
            free.used if exclusive else None,
            free.slots < 1,
            (free.memory < need) | (need == 0),
            free.cores < (demand.cores_percent or 0),
        )
        codes = np.full(self._valid.shape, _FITS, np.int8)
        for code in range(len(tests) - 1, -1, -1):
            test = tests[code]
            if test is not None:
                codes[test] = code
        codes[self._refusal > 0] = _NOT_OFFERED
        codes[~self._valid] = _NO_CARD
        return codes[:, where]

    def _hopeful(self, asked: PodRequest, where: Numbers) -> Mask:
        """Return which nodes would take each container if nobody held anything."""
        hopeful = np.asarray(where >= 0)
        offered = self._valid & self._healthy & (self._refusal == 0)
        for request in asked.containers.values():
            allowed = offered
            if request.uuids or request.models:
                allowed = offered & self._allowed(request)
            least = min(request.demands, key=lambda each: each.memory.bytes)
            takes = allowed & (self._memory >= self._need(least))
            hopeful &= (takes.sum(axis=0, dtype=np.int16) >= request.count)[where]
        return hopeful

    # Storing

    def _make(self, width: int, nodes: int) -> None:
        shape = (width, nodes)
        self._valid = np.zeros(shape, np.bool_)
        self._healthy = np.zeros(shape, np.bool_)
        self._overbooked = np.zeros(shape, np.bool_)
        self._held = np.zeros(shape, np.bool_)
        self._memory = np.zeros(shape, np.int64)
        self._model = np.zeros(shape, np.int64)
        self._refusal = np.zeros(shape, np.int64)
        self._free = _Free(
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.bool_),
        )

    def _grow(self, *, nodes: int = 0, width: int = 0) -> None:
        """Make room, and fill it from the views that are known."""
        views = [view for view in self._views if view is not None]
        nodes = max(nodes, len(self._views))
        self._make(max(width, self._memory.shape[0]), nodes)
        self._at, self._places = {}, {}
        self._views = [None] * nodes
        self._unused = list(range(nodes - 1, -1, -1))
        self._asked_names = []
        for view in views:
            self.update(view)

    def _clear(self, at: int) -> None:
        view = self._views[at]
        for uuid in view.inventory.cards if view else ():
            if self._places.get(uuid, (0, -1))[1] == at:
                del self._places[uuid]
        free = self._free
        for mask in (self._valid, self._healthy, self._overbooked, self._held):
            mask[:, at] = False
        for numbers in (self._memory, self._model, self._refusal):
            numbers[:, at] = 0
        free.memory[:, at] = free.cores[:, at] = free.slots[:, at] = 0
        free.used[:, at] = free.ready[:, at] = False


def _part(sizes: Numbers, amount: MemoryAmount) -> Numbers:
    return sizes * amount.percent // 100


def _vectored(requests: Iterable[Request]) -> bool:
    """Return whether all containers have equal demands, and sizes that compare on any card."""
    requests = list(requests)
    kinds = {bool(demand.memory.bytes) for each in requests for demand in each.demands}
    return len(kinds) == 1 and all(len(set(each.demands)) == 1 for each in requests)


def _size(request: Request) -> int:
    return max(demand.memory.bytes or demand.memory.percent for demand in request.demands)


def _sentence(request: Request, demand: Demand, codes: Codes, refusal: str) -> str:
    """Return why a node does not take a container, such as `2 of 8 cards fit 8.0Gi: 6 in use`."""
    cards = int((codes != _NO_CARD).sum())
    if not cards:
        return "this node has no card"
    fitting = int((codes == _FITS).sum())
    parts = [
        words.format(number)
        for code, (_, words) in enumerate(_REASONS)
        if (number := int((codes == code).sum()))
    ]
    if closed := int((codes == _NOT_OFFERED).sum()):
        parts.append(f"{closed} not offered ({refusal})")
    what = wanted(request, demand)
    if request.count > 1:
        what = f"{request.count} times {what}"
    some = f"{fitting} of {cards} cards fit" if fitting else f"none of {cards} cards fits"
    return (
        f"{some} {what}: {', '.join(parts)}"
        if parts
        else f"{some} {what}, with its other containers"
    )
