# SPDX-License-Identifier: Apache-2.0
"""All cards of all nodes as columns, to filter and score nodes at once. Pure.

A node is a row, its cards are the row's places in the order of their UUIDs. What fits here is
exactly what `placing.place_pod` would place; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

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

TOP_SCORE = 10
"""What kube-scheduler takes from an extender: 0..10."""

# Beyond this many different amounts in one container, nodes are tried one by one.
_MOST_DIFFERENT = 5
_MOST_CARDS_COUNTED = 63

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
    held: Mask
    """By somebody exclusively."""
    used: Mask

    def copy(self) -> _Free:
        return _Free(
            self.memory.copy(),
            self.cores.copy(),
            self.slots.copy(),
            self.held.copy(),
            self.used.copy(),
        )


class Columns:
    """The columns. `update` follows the cluster's views; everything else only reads."""

    def __init__(self, *, default_policy: CardPolicy = CardPolicy.BINPACK) -> None:
        self._default_policy = default_policy
        self._rows: dict[str, int] = {}
        self._unused: list[int] = []
        self._views: list[NodeView | None] = []
        self._models: dict[str, int] = {}
        self._refusals: dict[str, int] = {"": 0}
        self._places: dict[str, tuple[int, int]] = {}
        self._make(0, 8)

    # Following the cluster

    def update(self, view: NodeView) -> None:
        """Take a node's new view."""
        cards = list(view.inventory.cards)
        if len(cards) > self._memory.shape[1]:
            self._grow(width=2 * len(cards))
        if view.name not in self._rows:
            if not self._unused:
                self._grow(rows=max(2 * len(self._views), 64))
            self._rows[view.name] = self._unused.pop()
        row = self._rows[view.name]
        self._clear(row)
        self._views[row] = view
        for place, uuid in enumerate(cards):
            room = view.room(uuid)
            card, use = room.card, room.use
            self._places[uuid] = (row, place)
            self._valid[row, place] = True
            self._memory[row, place] = card.memory_bytes
            self._free.memory[row, place] = room.free_bytes
            self._free.cores[row, place] = room.free_cores_percent
            self._free.slots[row, place] = card.slots - use.slices
            self._free.held[row, place] = bool(use.exclusive_holders)
            self._free.used[row, place] = bool(use.slices)
            self._healthy[row, place] = card.healthy
            self._overbooked[row, place] = room.overbooked
            self._model[row, place] = self._models.setdefault(card.model, len(self._models))
            self._refusal[row, place] = self._refusals.setdefault(
                view.refused(uuid), len(self._refusals)
            )
        self._open[row] = (
            self._valid[row]
            & self._healthy[row]
            & ~self._overbooked[row]
            & (self._refusal[row] == 0)
        )

    def remove(self, name: str) -> None:
        """Forget a node."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._clear(row)
            self._views[row] = None
            self._unused.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    # Asking

    def filter(self, pod: Pod, asked: PodRequest, names: Iterable[str] | None = None) -> Filtered:
        """Return which of the nodes take the pod now. `names`: None means all nodes."""
        named = list(self._rows) if names is None else list(names)
        rows = np.fromiter((self._rows.get(name, -1) for name in named), np.int64, len(named))
        known = rows >= 0
        fits = np.zeros(len(named), np.bool_)
        fits[known] = self._fits(pod, asked)[rows[known]]
        if fits.all():
            return Filtered(fitting=named)
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        lost = np.flatnonzero(~fits)
        words = self._words(asked, rows[lost])
        hopeful = self._hopeful(asked, rows[lost])
        for place, why, hope in zip(lost.tolist(), words, hopeful.tolist(), strict=True):
            (failed if hope else unresolvable)[named[place]] = why
        return Filtered(
            fitting=[named[place] for place in np.flatnonzero(fits).tolist()],
            failed=failed,
            unresolvable=unresolvable,
        )

    def prioritize(self, asked: PodRequest, names: Sequence[str]) -> list[int]:
        """Return a score of 0..10 for each node, in the order given; best is what the policy
        prefers.

        Binpack: how little memory is left on the card that the largest demand gets. Spread: how
        much is free there. Exclusive: how many of the node's cards are in use already.
        """
        rows = np.fromiter((self._rows.get(name, -1) for name in names), np.int64, len(names))
        request, demand = self._hardest(asked)
        policy = policy_of(request, self._default_policy)
        at = rows[rows >= 0]
        scores = np.zeros(len(names), np.int64)
        if policy is CardPolicy.EXCLUSIVE:
            cards = np.maximum(self._valid[at].sum(axis=1), 1)
            scores[rows >= 0] = self._free.used[at].sum(axis=1) * TOP_SCORE // cards
            return [int(score) for score in scores]
        takes = self._takes(request, demand, self._free)[at]
        free, size = self._free.memory[at], np.maximum(self._memory[at], 1)
        if policy is CardPolicy.SPREAD:
            best = np.where(takes, free * TOP_SCORE // size, 0).max(axis=1, initial=0)
        else:
            left = (free - self._need(demand)[at]) * TOP_SCORE // size
            best = TOP_SCORE - np.where(takes, left, TOP_SCORE).min(axis=1, initial=TOP_SCORE)
        scores[rows >= 0] = best
        return [int(score) for score in scores]

    def reasons(self, pod: Pod, asked: PodRequest, name: str) -> str:
        """Return, card by card and in words, why one node does not take the pod; empty: it does."""
        row = self._rows.get(name)
        view = self._views[row] if row is not None else None
        if view is None:
            return f"node {name} is not known here"
        try:
            place_pod(pod, asked, view, self._default_policy)
        except NoRoomError as error:
            return str(error)
        return ""

    # Fitting

    def _fits(self, pod: Pod, asked: PodRequest) -> Mask:
        """Return which rows take all containers of the pod."""
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
        """Return which rows give one container all its cards.

        With unequal amounts by Hall's theorem: every set of demands must find as many cards that
        take one of them.
        """
        different = list(dict.fromkeys(request.demands))
        takes = [self._takes(request, demand, free) for demand in different]
        if len(different) == 1:
            if request.count == 1:
                return np.asarray(takes[0].any(axis=1))
            return np.asarray(takes[0].sum(axis=1) >= request.count)
        numbers = [request.demands.count(demand) for demand in different]
        if len(different) > _MOST_DIFFERENT:
            return self._fits_many(request, free)
        fits = np.ones(len(self._views), np.bool_)
        for size in range(1, len(different) + 1):
            for some in combinations(range(len(different)), size):
                together = np.logical_or.reduce([takes[i] for i in some])
                fits &= together.sum(axis=1) >= sum(numbers[i] for i in some)
        return fits

    def _fits_many(self, request: Request, free: _Free) -> Mask:
        """Return the same for many different amounts, row by row."""
        takes = np.stack([self._takes(request, demand, free) for demand in request.demands])
        possible: Mask = np.asarray(takes.any(axis=2).all(axis=0))
        for row in np.flatnonzero(possible).tolist():
            options = [np.flatnonzero(takes[i, row]).tolist() for i in range(request.count)]
            possible[row] = assign(options, range(len(options))) is not None
        return possible

    def _takes(self, request: Request, demand: Demand, free: _Free) -> Mask:
        """Return which cards take one demand."""
        policy = policy_of(request, self._default_policy)
        need = self._need(demand)
        takes = self._open & ~free.held & (free.slots >= 1) & (free.memory >= need)
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
        order = np.argsort(rank, axis=1, kind="stable")[:, : request.count]
        chosen = np.zeros(takes.shape, np.bool_)
        np.put_along_axis(chosen, order, True, axis=1)
        return chosen & takes

    def _take(self, request: Request, chosen: Mask, free: _Free) -> None:
        demand = request.demands[0]
        cores = 100 if request.whole_cards else demand.cores_percent or 0
        free.memory -= np.where(chosen, self._need(demand), 0)
        free.cores -= np.where(chosen, cores, 0)
        free.slots -= chosen
        free.used |= chosen
        if policy_of(request, self._default_policy) is CardPolicy.EXCLUSIVE:
            free.held |= chosen

    def _one_by_one(self, pod: Pod, asked: PodRequest, rows: Mask) -> Mask:
        fits = rows.copy()
        for row in np.flatnonzero(rows).tolist():
            view = self._views[row]
            try:
                if view is not None:
                    place_pod(pod, asked, view, self._default_policy)
            except NoRoomError:
                fits[row] = False
        return fits

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

    def _words(self, asked: PodRequest, rows: Numbers) -> list[str]:
        """Return one sentence per row. Rows with the same counts of reasons share it."""
        request, demand = self._hardest(asked)
        codes = self._codes(request, demand, rows)
        key = np.zeros(len(rows), np.int64)
        for code in range(_FITS + 1):
            key = key * (_MOST_CARDS_COUNTED + 1) + np.minimum(
                (codes == code).sum(axis=1), _MOST_CARDS_COUNTED
            )
        why = np.where(codes == _NOT_OFFERED, self._refusal[rows], 0).max(axis=1, initial=0)
        _, same = np.unique(key, return_inverse=True)
        _, first, same = np.unique(
            same * len(self._refusals) + why, return_index=True, return_inverse=True
        )
        refusals = list(self._refusals)
        sentences = [
            "this node is not known here"
            if rows[i] < 0
            else _sentence(request, demand, codes[i], refusals[int(why[i])])
            for i in first.tolist()
        ]
        return [sentences[i] for i in same.tolist()]

    def _codes(self, request: Request, demand: Demand, rows: Numbers) -> Numbers:
        """Return for each card of the rows why it does not take the demand, as `fit.obstacle`
        would.
        """
        need = self._need(demand)[rows]
        free = self._free
        tests = (
            ~self._allowed(request)[rows] if request.uuids or request.models else None,
            ~self._healthy[rows],
            self._overbooked[rows],
            free.held[rows],
            free.used[rows]
            if policy_of(request, self._default_policy) is CardPolicy.EXCLUSIVE
            else None,
            free.slots[rows] < 1,
            (free.memory[rows] < need) | (need == 0),
            free.cores[rows] < (demand.cores_percent or 0),
        )
        codes = np.full(need.shape, _FITS, np.int64)
        for code in range(len(tests) - 1, -1, -1):
            test = tests[code]
            if test is not None:
                codes[test] = code
        codes[self._refusal[rows] > 0] = _NOT_OFFERED
        codes[~self._valid[rows] | (rows < 0)[:, None]] = _NO_CARD
        return codes

    def _hopeful(self, asked: PodRequest, rows: Numbers) -> Mask:
        """Return which rows would take each container if nobody held anything."""
        hopeful = np.asarray(rows >= 0)
        for request in asked.containers.values():
            offered = self._valid & self._healthy & (self._refusal == 0)
            if request.uuids or request.models:
                offered &= self._allowed(request)
            least = min(request.demands, key=lambda each: each.memory.bytes)
            takes = (offered & (self._memory >= self._need(least)))[rows]
            hopeful &= takes.sum(axis=1) >= request.count
        return hopeful

    # Storing

    def _make(self, rows: int, width: int) -> None:
        shape = (rows, width)
        self._valid = np.zeros(shape, np.bool_)
        self._healthy = np.zeros(shape, np.bool_)
        self._overbooked = np.zeros(shape, np.bool_)
        self._open = np.zeros(shape, np.bool_)
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

    def _grow(self, rows: int = 0, width: int = 0) -> None:
        """Make room, and fill it from the views that are known."""
        views = [view for view in self._views if view is not None]
        rows = max(rows, len(self._views))
        self._make(rows, max(width, self._memory.shape[1]))
        self._rows, self._places = {}, {}
        self._views = [None] * rows
        self._unused = list(range(rows - 1, -1, -1))
        for view in views:
            self.update(view)

    def _clear(self, row: int) -> None:
        view = self._views[row]
        for uuid in view.inventory.cards if view else ():
            if self._places.get(uuid, (-1, -1))[0] == row:
                del self._places[uuid]
        for column in (self._valid, self._healthy, self._overbooked, self._open):
            column[row] = False
        for numbers in (self._memory, self._model, self._refusal, self._free.memory):
            numbers[row] = 0
        self._free.cores[row] = self._free.slots[row] = 0
        self._free.held[row] = self._free.used[row] = False


def _part(sizes: Numbers, amount: MemoryAmount) -> Numbers:
    return sizes * amount.percent // 100


def _vectored(requests: Iterable[Request]) -> bool:
    """Return whether all containers have equal demands, and sizes that compare on any card."""
    requests = list(requests)
    kinds = {bool(demand.memory.bytes) for each in requests for demand in each.demands}
    return len(kinds) == 1 and all(len(set(each.demands)) == 1 for each in requests)


def _size(request: Request) -> int:
    return max(demand.memory.bytes or demand.memory.percent for demand in request.demands)


def _sentence(request: Request, demand: Demand, codes: Numbers, refusal: str) -> str:
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
