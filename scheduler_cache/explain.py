# SPDX-License-Identifier: Apache-2.0
"""Says in whole sentences what a card holds, who owns an allocation, why a request waits. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from scheduler_cache.cache import Cache
from scheduler_cache.errors import NoRoomError, NotSyncedError
from scheduler_cache.model import Claim, ClaimKey, Request, Slice, slices_of
from scheduler_cache.units import human_bytes


def explain_card(cache: Cache, card_uuid: str) -> list[str]:
    """Return what is held of a card and by whom, or raise NotFoundError."""
    claims = cache.claims_on(card_uuid)
    if not cache.knows_card(card_uuid) and claims:
        lines = [f"{card_uuid} is in no node's inventory, yet {len(claims)} containers hold it."]
    else:
        room = cache.room(card_uuid)
        card, use = room.card, room.use
        lines = [
            f"{card_uuid} ({card.model or 'unknown model'}): "
            f"{human_bytes(use.memory_bytes)} of {human_bytes(card.memory_bytes)} memory, "
            f"{use.reserved_percent}% of cores and {card.slot_words(use.slices)} are held."
        ]
        if not card.healthy:
            lines.append(f"It is unhealthy: {card.health_reason or 'no reason given'}.")
        if room.overbooked:
            lines.append("It is overbooked: it takes no new container until enough of these end.")
    for claim in claims:
        parts = " and ".join(map(_part, slices_of(claim.allocation, card_uuid)))
        sole = ", exclusively" if claim.allocation.exclusive else ""
        lines.append(f"{_who(claim)} holds {parts}{sole}.")
    return lines


def explain_allocation(cache: Cache, allocation_id: str) -> list[str]:
    """Return who owns an allocation and what it is, or raise NotFoundError."""
    claim = cache.claim(allocation_id)
    allocation = claim.allocation
    since = datetime.fromtimestamp(claim.since_unix_ns // 10**9, UTC)
    lines = [
        f"{_who(claim)} on node {allocation.node_name} is {claim.state.value} since "
        f"{since:%Y-%m-%d %H:%M:%S} UTC.",
        *(f"It holds {_part(part)} of {part.card_uuid}." for part in allocation.slices),
    ]
    if allocation.exclusive:
        lines.append("Nobody else may use these cards.")
    if claim.request is None:
        lines.append("It was taken back from its node's report, because this cache had lost it.")
    return lines


def explain_request(cache: Cache, request: Request, now_unix_ns: int) -> list[str]:
    """Return, for every node, whether the request would fit now and why not."""
    nobody = ClaimKey(runtime_root="", container_id="")
    lines = []
    for node in cache.state.nodes:
        try:
            claim, _ = cache.allocate(node.name, nobody, request, now_unix_ns)
        except (NoRoomError, NotSyncedError) as error:
            lines.append(f"It does not fit on node {node.name} now: {error}.")
            continue
        parts = ", ".join(f"{_part(part)} of {part.card_uuid}" for part in claim.allocation.slices)
        price = ""
        if claim.taken_allocation_ids:
            lost = ", ".join(claim.taken_allocation_ids)
            price = f", and take the slices of stopped containers ({lost})"
        lines.append(f"It fits on node {node.name} now: it would get {parts}{price}.")
    return lines or ["No node has reported its cards yet."]


def _who(claim: Claim) -> str:
    allocation = claim.allocation
    root = allocation.claim.runtime_root
    where = f" (runtime root {root})" if root else ""
    return (
        f"Container {allocation.claim.container_id}{where}, allocation {allocation.allocation_id},"
    )


def _part(part: Slice) -> str:
    cores = f"{part.reserved_percent}% of cores" if part.reserved_percent else "idle cores"
    return f"{human_bytes(part.memory_bytes)} and {cores}"
