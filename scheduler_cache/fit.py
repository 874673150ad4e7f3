# SPDX-License-Identifier: Apache-2.0
"""Chooses cards for a request. Pure: no I/O, no state, inputs are never changed.

`obstacle` is the one place that says why a card cannot take a demand; `place` and the words of a
refusal (`refusal.py`) both ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    CardUse,
    ComputeMode,
    Demand,
    Request,
    Slice,
)
from scheduler_cache.units import counted, human_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """A card and what is held of it."""

    card: Card
    use: CardUse

    @property
    def free_bytes(self) -> int:
        """Memory that nobody holds; 0 on an overbooked card."""
        return max(0, self.card.memory_bytes - self.use.memory_bytes)

    @property
    def free_cores_percent(self) -> int:
        """GPU time that nobody has reserved; 0 on an overbooked card."""
        return max(0, self.card.cores_percent - self.use.reserved_percent)

    @property
    def overbooked(self) -> bool:
        """Whether more is held than the card has: after lost state, or a card that shrank."""
        return (
            self.use.memory_bytes > self.card.memory_bytes
            or self.use.reserved_percent > self.card.cores_percent
            or self.use.slices > self.card.slots
            or (bool(self.use.exclusive_holders) and self.use.holders > 1)
        )


Rooms = dict[str, Room]
"""Rooms by the UUID of their card."""


def with_allocation(rooms: Rooms, allocation: Allocation) -> Rooms:
    """Return `rooms` with `allocation` in them; what it holds of other cards is no matter."""
    uuids = {part.card_uuid for part in allocation.slices} & rooms.keys()
    added = {uuid: Room(rooms[uuid].card, rooms[uuid].use.plus(allocation, uuid)) for uuid in uuids}
    return {**rooms, **added}


def without_allocation(rooms: Rooms, allocation: Allocation) -> Rooms:
    """Return `rooms` without `allocation`, which must be in them."""
    uuids = {part.card_uuid for part in allocation.slices} & rooms.keys()
    freed = {
        uuid: Room(rooms[uuid].card, rooms[uuid].use.minus(allocation, uuid)) for uuid in uuids
    }
    return {**rooms, **freed}


class ObstacleKind(Enum):
    """Why a card cannot take a demand."""

    DENIED = auto()
    UNHEALTHY = auto()
    HELD = auto()
    IN_USE = auto()
    OVERBOOKED = auto()
    SLOTS = auto()
    MEMORY = auto()
    CORES = auto()


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason in words, to be read after the card's UUID."""

    kind: ObstacleKind
    text: str


def policy_of(request: Request, default: CardPolicy) -> CardPolicy:
    """Return the policy that places `request`: whole cards are always exclusive."""
    return CardPolicy.EXCLUSIVE if request.whole_cards else request.card_policy or default


def denial(request: Request, card: Card) -> str | None:
    """Return why the request's UUID and model lists exclude `card`, or None."""
    if f"!{card.uuid}" in request.uuids:
        return "denied by UUID"
    asked = [uuid for uuid in request.uuids if not uuid.startswith("!")]
    if asked and card.uuid not in asked:
        return "not among the UUIDs asked for"
    model = card.model.casefold()
    for entry in request.models:
        if entry.startswith("!") and entry[1:].casefold() in model:
            return f"model {card.model} denied"
    asked = [entry for entry in request.models if not entry.startswith("!")]
    if asked and not any(entry.casefold() in model for entry in asked):
        return f"model {card.model} is not {' or '.join(asked)}"
    return None


def obstacle(request: Request, demand: Demand, room: Room, policy: CardPolicy) -> Obstacle | None:
    """Return why `room` cannot take `demand` of `request`, or None when it can."""
    card, use = room.card, room.use
    if (denied := denial(request, card)) is not None:
        return Obstacle(ObstacleKind.DENIED, denied)
    if not card.healthy:
        return Obstacle(
            ObstacleKind.UNHEALTHY, f"unhealthy: {card.health_reason or 'no reason given'}"
        )
    if room.overbooked:
        return Obstacle(
            ObstacleKind.OVERBOOKED,
            f"overbooked: {human_bytes(use.memory_bytes)} of {human_bytes(card.memory_bytes)} and "
            f"{use.reserved_percent}% of cores held by {counted(use.slices, 'slice')}",
        )
    if use.exclusive_holders:
        return Obstacle(ObstacleKind.HELD, f"held exclusively by {use.exclusive_holders[0]}")
    if policy is CardPolicy.EXCLUSIVE and use.slices:
        return Obstacle(ObstacleKind.IN_USE, f"holds {counted(use.slices, 'slice')}")
    if use.slices >= card.slots:
        return Obstacle(ObstacleKind.SLOTS, f"{use.slices} of {counted(card.slots, 'slot')} taken")
    wanted_bytes = demand.memory.of(card)
    if not 1 <= wanted_bytes <= room.free_bytes:
        free, total = human_bytes(room.free_bytes), human_bytes(card.memory_bytes)
        if human_bytes(wanted_bytes) == free:
            free = f"{room.free_bytes} bytes"
        return Obstacle(ObstacleKind.MEMORY, f"{free} free of {total}")
    if (demand.cores_percent or 0) > room.free_cores_percent:
        return Obstacle(ObstacleKind.CORES, f"{room.free_cores_percent}% of cores free")
    return None


def place(
    request: Request, rooms: Sequence[Room], default: CardPolicy = CardPolicy.BINPACK
) -> tuple[Slice, ...] | None:
    """Return one slice a demand, in the request's order and on distinct cards, or None.

    Finds an assignment whenever there is one. The largest demand chooses first by the policy:
    binpack and exclusive take the smallest sufficient free memory, spread the largest, then the
    smallest UUID.
    """
    policy = policy_of(request, default)
    sign = -1 if policy is CardPolicy.SPREAD else 1
    ordered = sorted(rooms, key=lambda room: (sign * room.free_bytes, room.card.uuid))
    demands = request.demands
    if len(set(demands)) == 1:
        takers = [room for room in ordered if obstacle(request, demands[0], room, policy) is None]
        if len(takers) < len(demands):
            return None
        return tuple(
            cut(request, demand, room.card)
            for demand, room in zip(demands, takers[: len(demands)], strict=True)
        )
    options = [
        [i for i, room in enumerate(ordered) if obstacle(request, demand, room, policy) is None]
        for demand in demands
    ]
    largest_first = sorted(
        range(len(demands)),
        key=lambda i: max((demands[i].memory.of(room.card) for room in ordered), default=0),
        reverse=True,
    )
    chosen = assign(options, largest_first)
    if chosen is None:
        return None
    return tuple(
        cut(request, demand, ordered[i].card) for demand, i in zip(demands, chosen, strict=True)
    )


def assign(options: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[int, ...] | None:
    """Give each row one of its options, all distinct, or return None when that is impossible.

    Rows choose in `order`, each its earliest option that leaves an assignment for the rest.
    """
    if _matching(options, order, frozenset()) is None:
        return None
    chosen: dict[int, int] = {}
    for place_in_order, row in enumerate(order):
        rest = order[place_in_order + 1 :]
        taken = frozenset(chosen.values())
        for option in options[row]:
            if option not in taken and _matching(options, rest, taken | {option}) is not None:
                chosen[row] = option
                break
    return tuple(chosen[row] for row in range(len(options)))


def _matching(
    options: Sequence[Sequence[int]], rows: Sequence[int], taken: frozenset[int]
) -> dict[int, int] | None:
    """Return some assignment option → row for `rows` outside of `taken`, or None.

    Augmenting paths (Kuhn); at most 16 rows, see MAX_SLICES.
    """
    row_of: dict[int, int] = {}

    def augment(row: int, seen: set[int]) -> bool:
        for option in options[row]:
            if option in taken or option in seen:
                continue
            seen.add(option)
            if option not in row_of or augment(row_of[option], seen):
                row_of[option] = row
                return True
        return False

    return row_of if all(augment(row, set()) for row in rows) else None


def cut(request: Request, demand: Demand, card: Card) -> Slice:
    """Return the slice of `card` that serves `demand`, whatever is free."""
    if request.whole_cards:
        cores, reserved, mode = 100, 100, ComputeMode.HARD
    elif demand.cores_percent is None:
        cores, reserved, mode = 100, 0, ComputeMode.BURST
    else:
        cores = reserved = demand.cores_percent
        mode = request.compute_mode or ComputeMode.HARD
    return Slice(
        card_uuid=card.uuid,
        memory_bytes=demand.memory.of(card),
        cores_percent=cores,
        reserved_percent=reserved,
        cores_max_percent=(
            cores
            if mode is ComputeMode.HARD
            else max(cores, request.cores_max_percent)
            if request.cores_max_percent and demand.cores_percent is not None
            else 100
        ),
        compute_mode=mode,
        priority=request.priority,
        # A slice without a reservation gets what the others leave, not a share beside theirs.
        weight=max(reserved, 1),
    )


def admits(rooms: Rooms, allocation: Allocation) -> bool:
    """Return whether `allocation` fits on the very cards that it names, as it is."""
    for uuid in {part.card_uuid for part in allocation.slices}:
        room = rooms.get(uuid)
        if room is None or room.use.exclusive_holders or (allocation.exclusive and room.use.slices):
            return False
        if Room(room.card, room.use.plus(allocation, uuid)).overbooked:
            return False
    return True


def answers(
    allocation: Allocation, request: Request, cards: dict[str, Card], default: CardPolicy
) -> bool:
    """Return whether `allocation` is what `request` would have been given on its cards.

    For an allocation that came back from a node's report, without the request that made it.
    """
    exclusive = policy_of(request, default) is CardPolicy.EXCLUSIVE
    if (allocation.whole_cards, allocation.exclusive) != (request.whole_cards, exclusive):
        return False
    held = [(part, cards.get(part.card_uuid)) for part in allocation.slices]
    if len(held) != request.count:
        return False
    return all(
        card is not None and denial(request, card) is None and cut(request, demand, card) == part
        for demand, (part, card) in zip(request.demands, held, strict=True)
    )
