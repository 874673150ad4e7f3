# SPDX-License-Identifier: Apache-2.0
"""Whether a request fits, found out the slow way: try every assignment of distinct cards.

Shares nothing with `scheduler_cache.fit`, so that the two can disagree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from scheduler_cache.model import Allocation, Card, CardPolicy, Request


def fits(
    asked: Request,
    cards: Iterable[Card],
    held: Sequence[Allocation],
    default: CardPolicy = CardPolicy.BINPACK,
) -> bool:
    memory = list(asked.memory) * (asked.count if len(asked.memory) == 1 else 1)
    cores = list(asked.cores_percent) or [0]
    cores *= asked.count if len(cores) == 1 else 1
    whole = asked.memory[0].percent == 100
    alone = whole or (asked.card_policy or default) is CardPolicy.EXCLUSIVE
    if whole:
        cores = [100] * asked.count
    return any(
        all(
            _takes(asked, chosen, memory[i].bytes, memory[i].percent, cores[i], alone, held)
            for i, chosen in enumerate(choice)
        )
        for choice in itertools.permutations(cards, asked.count)
    )


def sums(card: Card, held: Sequence[Allocation]) -> tuple[int, int, int]:
    """Return memory, reserved cores and number of the slices that are held of a card."""
    slices = [part for owner in held for part in owner.slices if part.card_uuid == card.uuid]
    return (
        sum(part.memory_bytes for part in slices),
        sum(part.reserved_percent for part in slices),
        len(slices),
    )


def _takes(
    asked: Request,
    card: Card,
    memory_bytes: int,
    memory_percent: int,
    cores_percent: int,
    alone: bool,
    held: Sequence[Allocation],
) -> bool:
    if not card.healthy or not _allowed(asked, card):
        return False
    used_bytes, used_cores, used_slots = sums(card, held)
    if used_bytes > card.memory_bytes or used_cores > 100:
        return False
    owners = [owner for owner in held if card.uuid in {part.card_uuid for part in owner.slices}]
    if any(owner.exclusive for owner in owners) or (alone and owners):
        return False
    wanted = memory_bytes or card.memory_bytes * memory_percent // 100
    return (
        wanted > 0
        and used_bytes + wanted <= card.memory_bytes
        and used_cores + cores_percent <= 100
        and used_slots + 1 <= card.slots
    )


def _allowed(asked: Request, card: Card) -> bool:
    uuids = [entry for entry in asked.uuids if entry[0] != "!"]
    models = [entry.lower() for entry in asked.models if entry[0] != "!"]
    no_uuids = [entry[1:] for entry in asked.uuids if entry[0] == "!"]
    no_models = [entry[1:].lower() for entry in asked.models if entry[0] == "!"]
    model = card.model.lower()
    return (
        (not uuids or card.uuid in uuids)
        and card.uuid not in no_uuids
        and (not models or any(entry in model for entry in models))
        and not any(entry in model for entry in no_models)
    )
