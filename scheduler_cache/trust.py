# SPDX-License-Identifier: Apache-2.0
"""Whether a decision may be believed: it names the node's cards and gives what was asked. Pure.

Annotations can be written by whoever may write the pod; the resources in its spec cannot be
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_cache.dialects.dialect import Named, StatedSlice
from scheduler_cache.fit import assign
from scheduler_cache.inventory import OwnedCard
from scheduler_cache.model import Card, ComputeMode, Demand, Request, Slice
from scheduler_cache.units import counted, human_bytes


def card_of(
    stated: StatedSlice, cards: Mapping[str, OwnedCard], groups: Mapping[str, str]
) -> Card | None:
    """Return the node's card that a slice names, or None."""
    if stated.named is Named.MINOR:
        number = int(stated.card)
        return next((each.card for each in cards.values() if each.card.minor == number), None)
    uuid = groups.get(stated.card, "") if stated.named is Named.GROUP else stated.card
    owned = cards.get(uuid)
    return owned.card if owned else None


def slice_of(stated: StatedSlice, card: Card) -> Slice:
    """Return what a slice gives of a card."""
    cores = stated.cores_percent or 100
    mode = stated.compute_mode or (ComputeMode.HARD if stated.cores_percent else ComputeMode.BURST)
    reserved = stated.reserved_percent
    if reserved is None:
        reserved = stated.cores_percent or 0
    ceiling = stated.cores_max_percent or (cores if mode is ComputeMode.HARD else 100)
    return Slice(
        card_uuid=card.uuid,
        memory_bytes=stated.memory.of(card),
        cores_percent=cores,
        reserved_percent=reserved,
        cores_max_percent=max(cores, ceiling),
        compute_mode=mode,
        priority=stated.priority,
        weight=stated.weight or max(reserved, 1),
    )


def excess(request: Request, slices: Sequence[Slice], cards: Mapping[str, Card]) -> str:
    """Return in words what `slices` give beyond the request; empty: nothing."""
    demands = request.demands
    if len(slices) > len(demands):
        return f"it gives {counted(len(slices), 'slice')} where {len(demands)} were asked for"
    if len({part.card_uuid for part in slices}) < len(slices):
        return "it gives two slices of one card to one container"
    # The first demand that a slice does not exceed; unequal demands are matched one to one.
    within = [
        [
            i
            for i, demand in enumerate(demands)
            if not _beyond(request, demand, part, cards[part.card_uuid])
        ]
        for part in slices
    ]
    for part, options in zip(slices, within, strict=True):
        if part.memory_bytes < 1:
            return f"it gives no memory of {part.card_uuid}"
        if not options:
            largest = max(demands, key=lambda demand: demand.memory.of(cards[part.card_uuid]))
            return _beyond(request, largest, part, cards[part.card_uuid]) or (
                f"its slice of {part.card_uuid} fits none of the amounts asked for"
            )
    if assign(within, range(len(slices))) is None:
        return "its slices together exceed the amounts asked for"
    return ""


def _beyond(request: Request, demand: Demand, part: Slice, card: Card) -> str:
    """Return what a slice gives beyond one demand, in words."""
    memory_bytes = demand.memory.of(card)
    if part.memory_bytes > memory_bytes:
        given = human_bytes(part.memory_bytes)
        if given == human_bytes(memory_bytes):
            return f"it gives {part.memory_bytes} bytes where {memory_bytes} were asked for"
        return f"it gives {given} where {human_bytes(memory_bytes)} were asked for"
    cores = 100 if request.whole_cards else demand.cores_percent or 0
    if part.reserved_percent > cores:
        return f"it reserves {part.reserved_percent}% of cores where {cores}% were asked for"
    # A whole card without a reservation is a whole card: nobody else fits on it.
    if cores and not part.reserved_percent and not request.whole_cards:
        return f"it has no limit of cores where {cores}% were asked for"
    ceiling = part.cores_percent
    if not cores or request.whole_cards:
        ceiling = 100
    elif request.compute_mode is ComputeMode.BURST:
        ceiling = request.cores_max_percent or 100
    if part.cores_max_percent > ceiling:
        return f"it may use {part.cores_max_percent}% of cores where {ceiling}% were asked for"
    return ""
