# SPDX-License-Identifier: Apache-2.0
"""Whom to evict from a node so that a pod finds its cards there. Pure.

The best set has the lowest highest priority, then the fewest pods, then the lowest priorities,
then the least memory. For a pod that needs one card it is found by trying the sets of each card;
for others cards are opened one after the other, the cheapest first, and whoever need not go stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

from scheduler_cache.errors import NoRoomError
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.what_if import use_of, without
from scheduler_cache.fit import Room, obstacle, place, policy_of
from scheduler_cache.model import CardPolicy
from scheduler_cache.node_view import NodeView
from scheduler_cache.placing import place_pod

# Larger sets are not tried one by one: of 16 holders of a card there would be thousands.
_LARGEST_TRIED = 3
# Nor these, where a card has a hundred slots.
_MOST_TRIED = 1000

Cost = tuple[int, int, int, int]
"""The highest priority, the number of pods, the sum of priorities, the bytes."""


@dataclass(frozen=True)
class Search:
    """Looks for victims on one node."""

    view: NodeView
    """The node without those who must go anyway."""
    shape: Shape
    evictable: Mapping[str, int]
    """Priorities of the pods that may be evicted, by uid."""
    default: CardPolicy

    def victims(self) -> frozenset[str] | None:
        """Return whom to evict; None: nothing that may be done makes room."""
        if self._fits(frozenset()):
            return frozenset()
        if not self._fits(frozenset(self.evictable)):
            return None
        cheapest = {
            uuid: found
            for uuid in self.view.inventory.cards
            if (found := self._of_card(uuid)) is not None
        }
        requests = list(self.shape.requests)
        if len(requests) == 1 and requests[0].count == 1:
            return min(cheapest.values(), key=self.cost) if cheapest else None
        ranked = sorted(cheapest, key=lambda uuid: (self.cost(cheapest[uuid]), uuid))
        ranked += [uuid for uuid in self.view.inventory.cards if uuid not in cheapest]
        opened: frozenset[str] = frozenset()
        for uuid in ranked:
            opened |= self._holders(uuid)
            if self._fits(opened):
                return self._reprieved(opened)
        return None

    def _of_card(self, card_uuid: str) -> frozenset[str] | None:
        """Return the best victims for the largest demand on one card; None: it takes it never."""
        if self.view.refused(card_uuid):
            return None
        holders = sorted(self._holders(card_uuid), key=lambda uid: (self.evictable[uid], uid))
        if not self._takes(card_uuid, frozenset(holders)):
            return None
        if not holders:
            return frozenset()
        # Nobody above the lowest priority that is enough need go.
        levels = sorted(set(map(self.evictable.__getitem__, holders)))
        level = next(each for each in levels if self._takes(card_uuid, self._up_to(holders, each)))
        holders = [uid for uid in holders if self.evictable[uid] <= level]
        for size in range(min(len(holders), _LARGEST_TRIED) + 1):
            if comb(len(holders), size) > _MOST_TRIED:
                break
            enough = [
                chosen
                for some in combinations(holders, size)
                if self._takes(card_uuid, chosen := frozenset(some))
            ]
            if enough:
                return min(enough, key=self.cost)
        chosen = frozenset(holders)
        for uid in self._least_first(holders):
            if self._takes(card_uuid, chosen - {uid}):
                chosen -= {uid}
        return chosen

    def _reprieved(self, chosen: frozenset[str]) -> frozenset[str]:
        """Return a part of `chosen` that is enough and of which nobody can stay."""
        for uid in self._least_first(chosen):
            if self._fits(chosen - {uid}):
                chosen -= {uid}
        return chosen

    def _least_first(self, uids: Sequence[str] | Set[str]) -> list[str]:
        """Return who stays first: the highest priority, then who holds least."""
        return sorted(uids, key=lambda uid: (-self.evictable[uid], self._bytes(uid), uid))

    def _up_to(self, uids: Sequence[str], priority: int) -> frozenset[str]:
        return frozenset(uid for uid in uids if self.evictable[uid] <= priority)

    def _takes(self, card_uuid: str, gone: Set[str]) -> bool:
        """Return whether a card takes the largest demand once some pods have gone."""
        card = self.view.inventory.cards[card_uuid].card
        request, demand = self.shape.hardest(card.memory_bytes)
        left = [each for each in self.view.holds.get(card_uuid, ()) if each.pod_uid not in gone]
        room = Room(card, use_of(left, card_uuid))
        return obstacle(request, demand, room, policy_of(request, self.default)) is None

    def _fits(self, gone: Set[str]) -> bool:
        view = without(self.view, gone)
        requests = list(self.shape.requests)
        if len(requests) == 1:
            rooms = [room for room in view.rooms() if not view.refused(room.card.uuid)]
            return place(requests[0], rooms, self.default) is not None
        pod, asked = self.shape.example()
        try:
            place_pod(pod, asked, view, self.default)
        except NoRoomError:
            return False
        return True

    def _holders(self, card_uuid: str) -> frozenset[str]:
        holds = self.view.holds.get(card_uuid, ())
        return frozenset(each.pod_uid for each in holds if each.pod_uid in self.evictable)

    def cost(self, uids: Set[str]) -> Cost:
        """Return what is lost with some pods; the least is the best."""
        priorities = [self.evictable[uid] for uid in uids]
        least = -(1 << 31)
        return (
            max(priorities, default=least),
            len(priorities),
            sum(priorities),
            sum(map(self._bytes, uids)),
        )

    def _bytes(self, uid: str) -> int:
        return self._held_bytes.get(uid, 0)

    @cached_property
    def _held_bytes(self) -> Mapping[str, int]:
        """How much memory each pod holds on the node."""
        held: Counter[str] = Counter()
        for uuid, holds in self.view.holds.items():
            for hold in holds:
                held[hold.pod_uid] += hold.amounts[uuid].memory_bytes
        return held
