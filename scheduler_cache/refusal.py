# SPDX-License-Identifier: Apache-2.0
"""Says in one sentence why a request finds no room, what is free, and what helps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler_cache.errors import NoRoomError
from scheduler_cache.fit import Obstacle, ObstacleKind, Room, denial, obstacle, place, policy_of
from scheduler_cache.model import Card, CardPolicy, CardUse, Demand, Request
from scheduler_cache.units import human_bytes

# An engine shows the sentence in one line; the first cards tell the story.
_CARDS_NAMED = 8

_STATIC = frozenset({ObstacleKind.DENIED, ObstacleKind.UNHEALTHY})


def refusal(
    request: Request,
    rooms: Sequence[Room],
    default: CardPolicy = CardPolicy.BINPACK,
    *,
    remedy: str = "",
) -> NoRoomError:
    """Return the error for a request that `place` found no room for.

    `remedy`, when the caller knows better, replaces what the sentence recommends at its end.
    """
    if not rooms:
        return NoRoomError("this host has reported no card; check its driver", never=False)
    idle = [Room(_healthy(room.card), CardUse()) for room in rooms]
    if place(request, idle, default) is None:
        return NoRoomError(f"this can never fit on this host: {_never(request, idle)}", never=True)
    policy = policy_of(request, default)
    reasons = {room.card.uuid: _first_obstacle(request, room, policy) for room in rooms}
    found = [(room, reason) for room in rooms if (reason := reasons[room.card.uuid]) is not None]
    # What could change by waiting is named first.
    found.sort(key=lambda item: (item[1].kind in _STATIC, item[0].card.uuid))
    only_memory = all(
        reason.kind in (ObstacleKind.MEMORY, ObstacleKind.DENIED) for _, reason in found
    )
    headline = _headline(request, len(rooms) - len(found), policy)
    named = [_clause(room, reason, only_memory) for room, reason in found]
    if len(named) > _CARDS_NAMED:
        named[_CARDS_NAMED:] = [f"and {len(named) - _CARDS_NAMED} more cards"]
    end = remedy or _remedy([reason for _, reason in found], policy)
    return NoRoomError(f"{headline}: {', '.join(named)}; {end}", never=False)


def wanted(request: Request, demand: Demand) -> str:
    """Return what `demand` asks of a card, in words."""
    if request.whole_cards:
        return "a whole card"
    memory = demand.memory
    if memory.bytes:
        words = human_bytes(memory.bytes)
    else:
        words = f"{memory.percent or f'{100 * memory.fraction:g}'}% of memory"
    if demand.cores_percent is not None:
        words += f" and {demand.cores_percent}% of cores"
    return words


def _first_obstacle(request: Request, room: Room, policy: CardPolicy) -> Obstacle | None:
    """Return the obstacle of the largest demand that the card cannot take, or None."""
    demands = sorted(
        set(request.demands), key=lambda demand: demand.memory.of(room.card), reverse=True
    )
    found = (obstacle(request, demand, room, policy) for demand in demands)
    return next((reason for reason in found if reason is not None), None)


def _headline(request: Request, takers: int, policy: CardPolicy) -> str:
    demands = request.demands
    if len(set(demands)) > 1:
        amounts = ", ".join(wanted(request, demand) for demand in demands)
        return f"no {request.count} distinct cards have {amounts} free"
    words = wanted(request, demands[0])
    if policy is CardPolicy.EXCLUSIVE:
        some = "unused card" if request.whole_cards else f"unused card with {words}"
        if request.count == 1:
            return f"no {some} is left"
        return f"{request.count} {some.replace('card', 'cards', 1)} asked for, {takers} left"
    if request.count == 1:
        return f"no card has {words} free"
    return f"{request.count} cards with {words} free asked for, {takers} found"


def _clause(room: Room, reason: Obstacle, only_memory: bool) -> str:
    if only_memory and reason.kind is ObstacleKind.MEMORY:
        return f"{room.card.uuid} has {reason.text.replace(' free', '')}"
    return f"{room.card.uuid}: {reason.text}"


def _remedy(reasons: Sequence[Obstacle], policy: CardPolicy) -> str:
    kinds = {reason.kind for reason in reasons}
    if kinds <= _STATIC:
        return "repair the unhealthy card"
    if policy is CardPolicy.EXCLUSIVE or kinds <= _STATIC | {ObstacleKind.HELD}:
        return "wait for a container to end"
    return "wait for a container to end or ask for less"


def _never(request: Request, idle: Sequence[Room]) -> str:
    allowed = [room.card for room in idle if denial(request, room.card) is None]
    if not allowed:
        reasons = ", ".join(
            f"{room.card.uuid}: {denial(request, room.card)}" for room in idle[:_CARDS_NAMED]
        )
        return f"no card is allowed: {reasons}; ask for other models or UUIDs"
    if request.count > len(allowed):
        which = "" if len(allowed) == len(idle) else " that the request allows"
        return f"{request.count} cards asked for, it has {len(allowed)}{which}; ask for fewer"
    largest = max(allowed, key=lambda card: (card.memory_bytes, card.uuid))
    demands = request.demands
    hardest = max(demands, key=lambda demand: demand.memory.of(largest))
    if hardest.memory.of(largest) > largest.memory_bytes:
        return (
            f"no card has {human_bytes(hardest.memory.of(largest))}: the largest is "
            f"{largest.uuid} with {human_bytes(largest.memory_bytes)}; ask for less"
        )
    amounts = ", ".join(wanted(request, demand) for demand in demands)
    sizes = ", ".join(
        f"{card.uuid} has {human_bytes(card.memory_bytes)} and {card.slots} slots"
        for card in allowed[:_CARDS_NAMED]
    )
    return f"its cards cannot give {amounts} on distinct cards: {sizes}; ask for less"


def _healthy(card: Card) -> Card:
    """Return `card` as if repaired, which it may be one day."""
    return replace(card, healthy=True, health_reason="")
