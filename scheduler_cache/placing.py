# SPDX-License-Identifier: Apache-2.0
"""Chooses cards of one node for all containers of a pod. Pure.

Containers that run together share what is free; an init container may use what the others get
later.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.errors import NoRoomError
from scheduler_cache.fit import Room, Rooms, place, policy_of
from scheduler_cache.model import CardPolicy, CardUse, Request, Slice
from scheduler_cache.node_view import NodeView
from scheduler_cache.pod import ContainerKind, Pod
from scheduler_cache.refusal import refusal

Placement = dict[str, tuple[Slice, ...]]
"""Slices by container name."""


def place_pod(
    pod: Pod, asked: PodRequest, view: NodeView, default: CardPolicy = CardPolicy.BINPACK
) -> Placement:
    """Return slices for every container that asks, or raise NoRoomError with the reasons."""
    refused = {uuid: why for uuid in view.inventory.cards if (why := view.refused(uuid))}
    rooms: Rooms = {room.card.uuid: room for room in view.rooms() if room.card.uuid not in refused}
    if not rooms:
        raise NoRoomError(_nowhere(view, refused), never=False)
    try:
        return _place(pod, asked, rooms, default)
    except NoRoomError as error:
        if not refused:
            raise
        raise NoRoomError(f"{error}; not offered: {_listed(refused)}", never=False) from error


def _place(pod: Pod, asked: PodRequest, rooms: Rooms, default: CardPolicy) -> Placement:
    if asked.pod_level:
        # One request and one account for all of them.
        request = next(iter(asked.containers.values()))
        slices = _placed(request, rooms, default)
        return dict.fromkeys(asked.containers, slices)
    chosen: Placement = {}
    together = [
        each.name
        for each in pod.containers
        if each.kind is not ContainerKind.INIT and each.name in asked.containers
    ]
    largest = max(room.card.memory_bytes for room in rooms.values())
    # The largest first: it has the fewest cards to choose from.
    together.sort(
        key=lambda name: max(
            demand.memory.of_bytes(largest) for demand in asked.containers[name].demands
        ),
        reverse=True,
    )
    left = rooms
    for name in together:
        request = asked.containers[name]
        chosen[name] = _placed(request, left, default)
        left = _taken(left, request, chosen[name], default)
    beside = rooms
    for each in pod.containers:
        if each.name not in asked.containers:
            continue
        request = asked.containers[each.name]
        if each.kind is ContainerKind.SIDECAR:
            beside = _taken(beside, request, chosen[each.name], default)
        elif each.kind is ContainerKind.INIT:
            chosen[each.name] = _placed(request, beside, default)
    return {name: chosen[name] for name in asked.containers}


def _placed(request: Request, rooms: Rooms, default: CardPolicy) -> tuple[Slice, ...]:
    slices = place(request, tuple(rooms.values()), default)
    if slices is None:
        raise refusal(request, tuple(rooms.values()), default)
    return slices


def _taken(rooms: Rooms, request: Request, slices: tuple[Slice, ...], default: CardPolicy) -> Rooms:
    exclusive = policy_of(request, default) is CardPolicy.EXCLUSIVE
    after = dict(rooms)
    for part in slices:
        room = after[part.card_uuid]
        use = room.use
        after[part.card_uuid] = Room(
            room.card,
            CardUse(
                use.memory_bytes + part.memory_bytes,
                use.reserved_percent + part.reserved_percent,
                use.slices + 1,
                (*use.exclusive_holders, "another container of the pod")
                if exclusive
                else use.exclusive_holders,
                use.holders + 1,
            ),
        )
    return after


def _nowhere(view: NodeView, refused: Mapping[str, str]) -> str:
    if view.refusal:
        return view.refusal
    if not refused:
        return f"node {view.name} has no card"
    return f"node {view.name} offers no card: {_listed(refused)}"


def _listed(refused: Mapping[str, str]) -> str:
    named = [f"{uuid}: {why}" for uuid, why in list(refused.items())[:8]]
    if len(refused) > len(named):
        named.append(f"and {len(refused) - len(named)} more cards")
    return ", ".join(named)
