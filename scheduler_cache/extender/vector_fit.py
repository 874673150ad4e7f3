# SPDX-License-Identifier: Apache-2.0
"""Which nodes take a pod, and how well, for all of them at once. Pure.

What fits here is exactly what `placing.place_pod` places; the tests hold the two against each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scheduler_cache.errors import NoRoomError
from scheduler_cache.extender.card_table import Bytes, Cards, Counts, Mask
from scheduler_cache.extender.shape import Shape
from scheduler_cache.fit import assign, policy_of
from scheduler_cache.model import CardPolicy, Demand, Request
from scheduler_cache.placing import place_pod
from scheduler_cache.pod import ContainerKind

_MIB = 1 << 20

TOP_SCORE = 10
"""What kube-scheduler takes from an extender: 0..10. Source: MaxExtenderPriority."""

# Beyond this many different amounts in one container, nodes are tried one by one.
_MOST_DIFFERENT = 5
# Each takes a millisecond, and everybody else waits. On the others the pod counts as not fitting.
_MOST_TRIED = 256

Scores = NDArray[np.int8]


@dataclass(slots=True)
class _Free:
    """What is free on each card, while containers are placed one after the other."""

    memory: Bytes
    cores: Counts
    slots: Counts
    used: Mask
    ready: Mask

    def copy(self) -> _Free:
        return _Free(
            self.memory.copy(),
            self.cores.copy(),
            self.slots.copy(),
            self.used.copy(),
            self.ready.copy(),
        )


class VectorFit:
    """Fits pods into some columns of the table."""

    def __init__(self, cards: Cards, default: CardPolicy) -> None:
        self._cards = cards
        self._default = default
        self._free = _Free(
            cards.free_memory, cards.free_cores, cards.free_slots, cards.used, cards.ready
        )

    def fits(self, shape: Shape) -> Mask:
        """Return which nodes take all containers."""
        requests = list(shape.requests)
        if len(requests) == 1:
            return self._fits_one(requests[0], self._free)
        # Each alone is the least that must fit; mostly it settles the matter.
        fits = np.ones(len(self._cards), np.bool_)
        for request in requests:
            fits &= self._fits_one(request, self._free)
        if not fits.any():
            return fits
        if any(len(set(each.demands)) > _MOST_DIFFERENT for each in requests):
            return self._one_by_one(shape, fits)
        # Who chooses first depends on the node's largest card, of which a cluster has a few sizes.
        cards = self._cards
        offered = cards.valid & (cards.refusal == 0)
        largest = np.where(offered, cards.memory, 0).max(axis=0, initial=0)
        for size in np.unique(largest[fits]).tolist():
            some = np.flatnonzero(fits & (largest == size))
            fits[some] = self._of(some)._fits_several(shape, size)
        return fits

    def scores(self, shape: Shape) -> Scores:
        """Return how well each node that fits suits the policy, 0..10.

        Binpack: how little memory is left on the card that the largest demand gets. Spread: how
        much is free there. Exclusive: how many of the node's cards are in use already.
        """
        request, demand = shape.hardest()
        policy = policy_of(request, self._default)
        cards, free = self._cards, self._free.memory
        if policy is CardPolicy.EXCLUSIVE:
            number = np.maximum(cards.valid.sum(axis=0), 1)
            return np.asarray(cards.used.sum(axis=0) * TOP_SCORE // number, np.int8)
        takes = self._takes(request, demand, self._free)
        size = np.maximum(cards.memory, 1)
        if policy is CardPolicy.SPREAD:
            parts = np.where(takes, free * TOP_SCORE // size, 0)
            return np.asarray(parts.max(axis=0, initial=0), np.int8)
        left = np.where(takes, (free - self._need(demand)) * TOP_SCORE // size, TOP_SCORE)
        return np.asarray(TOP_SCORE - left.min(axis=0, initial=TOP_SCORE), np.int8)

    def hopeful(self, shape: Shape) -> Mask:
        """Return which nodes would take each container if nobody held anything."""
        cards = self._cards
        hopeful = np.ones(len(cards), np.bool_)
        offered = cards.valid & cards.healthy & (cards.refusal == 0)
        for request in shape.requests:
            allowed = offered & cards.allowed(request) if _choosy(request) else offered
            least = [
                allowed & (cards.memory >= self._need(demand)) & (self._need(demand) > 0)
                for demand in dict.fromkeys(request.demands)
            ]
            takes = np.logical_or.reduce(least)
            hopeful &= takes.sum(axis=0, dtype=np.int16) >= request.count
        return hopeful

    def _of(self, nodes: NDArray[np.int64]) -> VectorFit:
        """Return the same for some of the nodes."""
        return VectorFit(self._cards.some(nodes), self._default)

    def _fits_several(self, shape: Shape, largest_bytes: int) -> Mask:
        """Place the containers as `place_pod` does, on nodes whose largest cards are equal."""
        fits = np.ones(len(self._cards), np.bool_)
        order = [i for i, (kind, _) in enumerate(shape.parts) if kind is not ContainerKind.INIT]
        order.sort(
            key=lambda i: max(_size(each, largest_bytes) for each in shape.parts[i][1].demands),
            reverse=True,
        )
        left = self._free.copy()
        chosen: dict[int, list[Mask]] = {}
        for i in order:
            request = shape.parts[i][1]
            fits &= self._fits_one(request, left)
            if not fits.any():
                return fits
            chosen[i] = self._choose(request, left, largest_bytes)
            self._take(request, chosen[i], left)
        beside = self._free.copy()
        for i, (kind, request) in enumerate(shape.parts):
            if kind is ContainerKind.SIDECAR:
                self._take(request, chosen[i], beside)
            elif kind is ContainerKind.INIT:
                fits &= self._fits_one(request, beside)
        return fits

    def _fits_one(self, request: Request, free: _Free) -> Mask:
        """Return which nodes give one container all its cards."""
        different = list(dict.fromkeys(request.demands))
        takes = [self._takes(request, demand, free) for demand in different]
        if len(different) > _MOST_DIFFERENT:
            return self._fits_many(request, free)
        numbers = [request.demands.count(demand) for demand in different]
        return _enough(takes, numbers)

    def _fits_many(self, request: Request, free: _Free) -> Mask:
        """Return the same for many different amounts, once for all nodes alike."""
        takes = np.stack([self._takes(request, demand, free) for demand in request.demands])
        alike, same = np.unique(takes, axis=2, return_inverse=True)
        fits = np.zeros(alike.shape[2], np.bool_)
        for at in np.flatnonzero(alike.any(axis=1).all(axis=0)).tolist():
            options = [np.flatnonzero(alike[i, :, at]).tolist() for i in range(request.count)]
            fits[at] = assign(options, range(len(options))) is not None
        return np.asarray(fits[same.reshape(-1)])

    def _takes(self, request: Request, demand: Demand, free: _Free) -> Mask:
        """Return which cards take one demand."""
        need = self._need(demand)
        takes = free.ready & (free.memory >= need)
        if not demand.memory.bytes:
            takes &= need > 0
        if demand.cores_percent:
            takes &= free.cores >= demand.cores_percent
        if policy_of(request, self._default) is CardPolicy.EXCLUSIVE:
            takes &= ~free.used
        if _choosy(request):
            takes &= self._cards.allowed(request)
        return takes

    def _need(self, demand: Demand) -> Bytes:
        return needs(self._cards, demand)

    def _choose(self, request: Request, free: _Free, largest_bytes: int) -> list[Mask]:
        """Return the cards that `fit.place` would choose, for each demand; on nodes where the
        container does not fit, anything.
        """
        spread = policy_of(request, self._default) is CardPolicy.SPREAD
        # Stable: among cards with as much free the smaller UUID comes first.
        order = np.argsort(-free.memory if spread else free.memory, axis=0, kind="stable")
        demands = request.demands
        takes = {
            demand: np.take_along_axis(self._takes(request, demand, free), order, axis=0)
            for demand in dict.fromkeys(demands)
        }
        rows = sorted(
            range(len(demands)), key=lambda i: _size(demands[i], largest_bytes), reverse=True
        )
        taken = np.zeros(order.shape, np.bool_)
        chosen = [np.zeros(order.shape, np.bool_) for _ in demands]
        for place, row in enumerate(rows):
            rest = [demands[i] for i in rows[place + 1 :]]
            undecided = np.ones(order.shape[1], np.bool_)
            for card in range(order.shape[0]):
                picks = undecided & takes[demands[row]][card] & ~taken[card]
                if len(takes) > 1 and rest and picks.any():
                    picks &= self._leaves_enough(rest, takes, taken, card)
                chosen[row][card] = picks
                taken[card] |= picks
                undecided &= ~picks
        back = np.argsort(order, axis=0)
        return [np.take_along_axis(each, back, axis=0) for each in chosen]

    def _leaves_enough(
        self, rest: list[Demand], takes: dict[Demand, Mask], taken: Mask, card: int
    ) -> Mask:
        """Return where the rest of the demands still find cards once one card more is taken."""
        free = ~taken
        free[card] = False
        different = list(dict.fromkeys(rest))
        return _enough(
            [takes[demand] & free for demand in different],
            [rest.count(demand) for demand in different],
        )

    def _take(self, request: Request, chosen: list[Mask], free: _Free) -> None:
        exclusive = policy_of(request, self._default) is CardPolicy.EXCLUSIVE
        for demand, cards in zip(request.demands, chosen, strict=True):
            cores = 100 if request.whole_cards else demand.cores_percent or 0
            free.memory -= np.where(cards, self._need(demand), 0)
            free.cores -= np.where(cards, np.int32(cores), np.int32(0))
            free.slots -= cards
            free.used |= cards
            free.ready &= free.slots >= 1
            if exclusive:
                free.ready &= ~cards

    def _one_by_one(self, shape: Shape, nodes: Mask) -> Mask:
        fits = nodes.copy()
        pod, asked = shape.example()
        candidates = np.flatnonzero(nodes)
        fits[candidates[_MOST_TRIED:]] = False
        for at in candidates[:_MOST_TRIED].tolist():
            view = self._cards.views[at]
            try:
                if view is not None:
                    place_pod(pod, asked, view, self._default)
            except NoRoomError:
                fits[at] = False
        return fits


def needs(cards: Cards, demand: Demand) -> Bytes:
    """Return how much memory a demand takes of each card."""
    if demand.memory.bytes:
        return np.broadcast_to(np.int64(demand.memory.bytes), cards.memory.shape)
    if demand.memory.fraction:
        mebibytes = demand.memory.fraction * (cards.memory // (100 * _MIB) * 100)
        return np.asarray(mebibytes.astype(np.int64) * _MIB)
    return cards.memory * demand.memory.percent // 100


def _choosy(request: Request) -> bool:
    return bool(request.uuids or request.models)


def _enough(takes: list[Mask], numbers: list[int]) -> Mask:
    """Return which nodes have distinct cards for so many of each demand.

    By Hall's theorem: every set of demands must find as many cards that take one of them.
    """
    if len(takes) == 1:
        if numbers[0] == 1:
            return np.asarray(takes[0].any(axis=0))
        return np.asarray(takes[0].sum(axis=0, dtype=np.int16) >= numbers[0])
    fits = np.ones(takes[0].shape[1], np.bool_)
    for size in range(1, len(takes) + 1):
        for some in combinations(range(len(takes)), size):
            together = np.logical_or.reduce([takes[i] for i in some])
            fits &= together.sum(axis=0, dtype=np.int16) >= sum(numbers[i] for i in some)
    return fits


def _size(demand: Demand, largest_bytes: int) -> int:
    return demand.memory.of_bytes(largest_bytes)
