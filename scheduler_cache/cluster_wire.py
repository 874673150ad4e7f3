# SPDX-License-Identifier: Apache-2.0
"""The messages of `vgpu.v1` that only the Kubernetes mode sends. Pure."""

from __future__ import annotations

from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache import wire
from scheduler_cache.model import Card, CardKind
from scheduler_cache.node_view import NodeView
from scheduler_cache.record import AllocationState

_KINDS = {CardKind.GPU: pb.CARD_KIND_GPU, CardKind.MIG: pb.CARD_KIND_MIG}

_MAX_UINT64 = (1 << 64) - 1

_STATES = {
    AllocationState.BOUND: pb.CLAIM_STATE_BOUND,
    AllocationState.RUNNING: pb.CLAIM_STATE_RUNNING,
    AllocationState.ORPHAN: pb.CLAIM_STATE_ORPHAN,
}


def card_message(card: Card) -> pb.Card:
    """Return a card."""
    return pb.Card(
        uuid=card.uuid,
        kind=_KINDS[card.kind],
        model=card.model,
        memory_bytes=card.memory_bytes,
        slots=card.slots,
        healthy=card.healthy,
        health_reason=card.health_reason,
        parent_uuid=card.parent_uuid,
        numa_node=card.numa_node,
    )


def node_message(view: NodeView, *, ready: bool) -> pb.NodeState:
    """Return a node with what is held of its cards."""
    return pb.NodeState(
        name=view.name,
        ready=ready,
        cards=[
            pb.CardState(
                card=card_message(room.card),
                # What is stated and not believed counts as well, however much it is.
                held_memory_bytes=min(room.use.memory_bytes, _MAX_UINT64),
                held_percent=room.use.reserved_percent,
                held_slots=room.use.slices,
                owner_dialect=view.inventory.cards[room.card.uuid].owner,
                refusal=view.refused(room.card.uuid),
            )
            for room in view.rooms()
        ],
    )


def claim_messages(view: NodeView) -> list[pb.Claim]:
    """Return everything that a node holds, in the order of the ids."""
    return [
        pb.Claim(
            allocation=wire.allocation_message(view.allocations[key]),
            state=_STATES.get(_state(view, key), pb.CLAIM_STATE_ORPHAN),
        )
        for key in sorted(view.allocations)
    ]


def _state(view: NodeView, allocation_id: str) -> AllocationState:
    pod = view.allocations[allocation_id].pod
    known = view.states.get(pod.uid) if pod else None
    return known or AllocationState.ORPHAN
