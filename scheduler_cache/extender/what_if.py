# SPDX-License-Identifier: Apache-2.0
"""A node as it would be if pods left it or came to it. Pure; the view given is unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.fit import policy_of
from scheduler_cache.footprint import Amount, footprint
from scheduler_cache.model import CardPolicy, CardUse, Slice
from scheduler_cache.node_view import Hold, NodeView, added, held_with
from scheduler_cache.placing import place_pod
from scheduler_cache.pod import Pod


def without(view: NodeView, pod_uids: Set[str]) -> NodeView:
    """Return the node without what some pods hold."""
    uses, holds = dict(view.uses), dict(view.holds)
    for uuid, holders in view.holds.items():
        left = [each for each in holders if not each.pod_uid or each.pod_uid not in pod_uids]
        if len(left) < len(holders):
            holds[uuid] = left
            uses[uuid] = use_of(left, uuid)
    return replace(view, uses=uses, holds=holds)


def use_of(holds: Iterable[Hold], card_uuid: str) -> CardUse:
    """Return what is held of one card together."""
    use = CardUse()
    for hold in holds:
        use = held_with(use, hold, card_uuid)
    return use


def with_pod(view: NodeView, pod: Pod, asked: PodRequest, default: CardPolicy) -> NodeView:
    """Return the node with one more pod on it, or raise NoRoomError. Nobody can evict that one."""
    placement = place_pod(pod, asked, view, default)
    parts = [
        (each.kind, _amounts(placement[each.name]))
        for each in pod.containers
        if each.name in placement
    ]
    hold = Hold(
        f"pod {pod}",
        footprint(parts[:1] if asked.pod_level else parts, pod.init_finished),
        frozenset(
            part.card_uuid
            for name, slices in placement.items()
            if policy_of(asked.containers[name], default) is CardPolicy.EXCLUSIVE
            for part in slices
        ),
    )
    holds = dict(view.holds)
    for uuid in hold.amounts:
        holds[uuid] = [*holds.get(uuid, ()), hold]
    return replace(view, uses=added(view.uses, hold), holds=holds)


def at_worst(now: NodeView, later: NodeView) -> NodeView:
    """Return the node with the larger use of each card: who fits there fits at both times."""
    uses = {
        uuid: _larger(now.uses.get(uuid, CardUse()), later.uses.get(uuid, CardUse()))
        for uuid in now.inventory.cards
    }
    return replace(now, uses=uses, refusal=now.refusal or later.refusal)


def _larger(one: CardUse, other: CardUse) -> CardUse:
    return CardUse(
        max(one.memory_bytes, other.memory_bytes),
        max(one.reserved_percent, other.reserved_percent),
        max(one.slices, other.slices),
        one.exclusive_holders or other.exclusive_holders,
        max(one.holders, other.holders),
    )


def _amounts(slices: Iterable[Slice]) -> dict[str, Amount]:
    return {part.card_uuid: Amount(part.memory_bytes, part.reserved_percent, 1) for part in slices}
