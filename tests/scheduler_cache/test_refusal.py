# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from scheduler_cache.fit import Room, place
from scheduler_cache.model import Allocation, Card, CardPolicy, CardUse, MemoryAmount, Request
from scheduler_cache.refusal import refusal
from tests.scheduler_cache.builders import GIB, card, part, request, use
from tests.scheduler_cache.test_fit import cards_strategy, held_strategy, requests, rooms_of

IDLE = CardUse()
ONE_FREE = Room(card("GPU-1111"), use(part("GPU-1111", 2), part("GPU-1111", 5)))
SICK = Room(replace(card("GPU-5"), healthy=False, health_reason="Xid 79"), IDLE)


@pytest.mark.parametrize(
    ("asked", "rooms", "sentence"),
    [
        (
            request(4),
            [ONE_FREE],
            "no card has 4.0Gi free: GPU-1111 has 1.0Gi of 8.0Gi; "
            "wait for a container to end or ask for less",
        ),
        (
            request(2, cores=(50,)),
            [Room(card("GPU-1"), use(part("GPU-1", 1, 70))), ONE_FREE, SICK],
            "no card has 2.0Gi and 50% of cores free: GPU-1: 30% of cores free, "
            "GPU-1111: 1.0Gi free of 8.0Gi, GPU-5: unhealthy: Xid 79; "
            "wait for a container to end or ask for less",
        ),
        (
            request(1),
            [Room(card("GPU-1"), use(part("GPU-1"), exclusive=True))],
            "no card has 1.0Gi free: GPU-1: held exclusively by container c0; "
            "wait for a container to end",
        ),
        (
            request(1),
            [SICK],
            "no card has 1.0Gi free: GPU-5: unhealthy: Xid 79; repair the unhealthy card",
        ),
        (
            request("100%"),
            [ONE_FREE],
            "no unused card is left: GPU-1111: holds 2 slices; wait for a container to end",
        ),
        (
            request(4, policy=CardPolicy.EXCLUSIVE),
            [Room(card("GPU-1"), use(part("GPU-1")))],
            "no unused card with 4.0Gi is left: GPU-1: holds 1 slice; wait for a container to end",
        ),
        (
            request(1),
            [Room(card("GPU-1", slots=1), use(part("GPU-1")))],
            "no card has 1.0Gi free: GPU-1: 1 of 1 slot taken; "
            "wait for a container to end or ask for less",
        ),
        (
            request(1),
            [Room(card("GPU-1"), use(part("GPU-1", 6), part("GPU-1", 6)))],
            "no card has 1.0Gi free: GPU-1: overbooked: 12.0Gi of 8.0Gi and 0% of cores held by "
            "2 slices; wait for a container to end or ask for less",
        ),
        (
            request(2, count=2),
            [ONE_FREE, Room(card("GPU-2"), IDLE)],
            "2 cards with 2.0Gi free asked for, 1 found: GPU-1111 has 1.0Gi of 8.0Gi; "
            "wait for a container to end or ask for less",
        ),
        (
            request("100%", count=2),
            [ONE_FREE, Room(card("GPU-2"), IDLE)],
            "2 unused cards asked for, 1 left: GPU-1111: holds 2 slices; "
            "wait for a container to end",
        ),
        (
            request(4, 2),
            [ONE_FREE, Room(card("GPU-2"), IDLE)],
            "no 2 distinct cards have 4.0Gi, 2.0Gi free: GPU-1111 has 1.0Gi of 8.0Gi; "
            "wait for a container to end or ask for less",
        ),
        (
            request(1, models=("!a100",)),
            [Room(card("GPU-1", model="A100"), IDLE), Room(card("GPU-2"), use(part("GPU-2", 8)))],
            "no card has 1.0Gi free: GPU-2 has 0 bytes of 8.0Gi, GPU-1: model A100 denied; "
            "wait for a container to end or ask for less",
        ),
        (request(1), [], "this host has reported no card; check its driver"),
    ],
)
def test_says_why_and_what_is_free(asked: Request, rooms: list[Room], sentence: str) -> None:
    error = refusal(asked, rooms)

    assert str(error) == sentence
    assert not error.never


@pytest.mark.parametrize(
    ("asked", "rooms", "sentence"),
    [
        (
            request(16),
            [ONE_FREE],
            "no card has 16.0Gi: the largest is GPU-1111 with 8.0Gi; ask for less",
        ),
        (
            request(1, count=3),
            [ONE_FREE, SICK],
            "3 cards asked for, it has 2; ask for fewer",
        ),
        (
            request(1, count=2, uuids=("!GPU-5",)),
            [ONE_FREE, SICK],
            "2 cards asked for, it has 1 that the request allows; ask for fewer",
        ),
        (
            request(1, uuids=("GPU-9",)),
            [ONE_FREE],
            "no card is allowed: GPU-1111: not among the UUIDs asked for; "
            "ask for other models or UUIDs",
        ),
        (
            request(1, models=("b200", "gb300")),
            [ONE_FREE],
            "no card is allowed: GPU-1111: model NVIDIA H100 is not b200 or gb300; "
            "ask for other models or UUIDs",
        ),
        (
            request(6, 5),
            [Room(card("GPU-1"), IDLE), Room(card("GPU-2", 4), IDLE)],
            "its cards cannot give 6.0Gi, 5.0Gi on distinct cards: GPU-1 has 8.0Gi and 10 slots, "
            "GPU-2 has 4.0Gi and 10 slots; ask for less",
        ),
    ],
)
def test_says_when_waiting_is_in_vain(asked: Request, rooms: list[Room], sentence: str) -> None:
    error = refusal(asked, rooms)

    assert str(error) == f"this can never fit on this host: {sentence}"
    assert error.never


def test_a_hair_too_little_is_said_in_bytes() -> None:
    one_byte_short = Room(card("GPU-1"), CardUse(memory_bytes=GIB + 2, slices=1))
    asked = Request(memory=(MemoryAmount(bytes=7 * GIB - 1),))

    assert "no card has 6.9Gi free: GPU-1 has 7516192766 bytes of 8.0Gi" in str(
        refusal(asked, [one_byte_short])
    )


def test_names_eight_cards_and_counts_the_rest() -> None:
    rooms = [Room(card(f"GPU-{i:02}"), use(part(f"GPU-{i:02}", 8))) for i in range(10)]

    sentence = str(refusal(request(1), rooms))

    assert "GPU-07" in sentence
    assert "GPU-08" not in sentence
    assert "and 2 more cards" in sentence


def test_the_caller_may_know_a_better_remedy() -> None:
    assert str(refusal(request(4), [ONE_FREE], remedy="try again then")).endswith(
        "; try again then"
    )


# Engines map these words to other meanings. Source: docs/contract.md §5.
FORBIDDEN = ("no such", "not found in", "permission denied", "container not running")


@settings(max_examples=300, deadline=None)
@given(cards_strategy, held_strategy, requests())
def test_every_refusal_is_one_sentence(
    cards: list[Card], held: list[Allocation], asked: Request
) -> None:
    rooms = rooms_of(cards, held)
    if place(asked, rooms) is not None:
        return

    sentence = str(refusal(asked, rooms))

    assert "\n" not in sentence
    assert ": ; " not in sentence
    assert not any(words in sentence for words in FORBIDDEN)
