# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.fit import Room, admits, answers, assign, place
from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    CardUse,
    ComputeMode,
    MemoryAmount,
    Request,
    Slice,
)
from tests.scheduler_cache import oracle
from tests.scheduler_cache.builders import GIB, allocation, card, part, request, use

IDLE = CardUse()


def rooms_of(cards: Sequence[Card], held: Sequence[Allocation]) -> list[Room]:
    rooms = []
    for each in cards:
        total = CardUse()
        for owner in held:
            if any(slice_.card_uuid == each.uuid for slice_ in owner.slices):
                total = total.plus(owner, each.uuid)
        rooms.append(Room(each, total))
    return rooms


def uuids(slices: tuple[Slice, ...] | None) -> list[str] | None:
    return None if slices is None else [slice_.card_uuid for slice_ in slices]


THREE = [
    Room(card("GPU-1"), use(part("GPU-1", 2))),
    Room(card("GPU-2"), use(part("GPU-2", 4))),
    Room(card("GPU-3"), IDLE),
]


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        (CardPolicy.BINPACK, ["GPU-2"]),
        (CardPolicy.SPREAD, ["GPU-3"]),
        (CardPolicy.EXCLUSIVE, ["GPU-3"]),
    ],
)
def test_the_policy_chooses_among_sufficient_cards(policy: CardPolicy, want: list[str]) -> None:
    assert uuids(place(request(3, policy=policy), THREE)) == want


def test_equal_cards_are_taken_by_uuid() -> None:
    rooms = [Room(card(uuid), IDLE) for uuid in ("GPU-3", "GPU-1", "GPU-2")]

    assert uuids(place(request(3, count=2), rooms)) == ["GPU-1", "GPU-2"]


def test_a_card_that_is_too_full_is_passed_over() -> None:
    assert uuids(place(request(5), THREE)) == ["GPU-1"]


def test_slices_stand_in_the_order_of_the_amounts() -> None:
    rooms = [Room(card("GPU-1", 4), IDLE), Room(card("GPU-2", 8), IDLE)]

    slices = place(request(6, 2), rooms)

    assert slices is not None
    assert [(s.card_uuid, s.memory_bytes) for s in slices] == [
        ("GPU-2", 6 * GIB),
        ("GPU-1", 2 * GIB),
    ]


def test_unequal_amounts_find_the_only_assignment() -> None:
    # The largest amount prefers GPU-1 (4 free), the only card whose cores the other can have.
    rooms = [
        Room(card("GPU-1", 4), IDLE),
        Room(card("GPU-2", 8), use(part("GPU-2", 1, 80))),
    ]

    assert uuids(place(request(3, 2, cores=(10, 50)), rooms)) == ["GPU-2", "GPU-1"]


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        (request(2, cores=(30,)), (30, 30, 30, ComputeMode.HARD, 30)),
        (request(2, cores=(30,), mode=ComputeMode.BURST), (30, 30, 100, ComputeMode.BURST, 30)),
        (request(2), (100, 0, 100, ComputeMode.BURST, 1)),
        (request(2, mode=ComputeMode.BURST), (100, 0, 100, ComputeMode.BURST, 1)),
        (request("100%"), (100, 100, 100, ComputeMode.HARD, 100)),
    ],
)
def test_cores_and_mode_of_a_slice(
    asked: Request, want: tuple[int, int, int, ComputeMode, int]
) -> None:
    slices = place(asked, [Room(card("GPU-1"), IDLE)])

    assert slices is not None
    got = slices[0]
    assert (
        got.cores_percent,
        got.reserved_percent,
        got.cores_max_percent,
        got.compute_mode,
        got.weight,
    ) == want


def test_a_percentage_is_of_each_card() -> None:
    rooms = [Room(card("GPU-1", 4), IDLE), Room(card("GPU-2", 8), IDLE)]

    slices = place(request("50%", count=2), rooms)

    assert slices is not None
    assert [s.memory_bytes for s in slices] == [2 * GIB, 4 * GIB]


def test_a_whole_card_is_one_that_nobody_uses() -> None:
    assert uuids(place(request("100%"), THREE)) == ["GPU-3"]
    assert place(request("100%", count=2), THREE) is None


def test_a_card_held_exclusively_takes_nobody_else() -> None:
    assert place(request(1), [Room(card("GPU-1"), use(part("GPU-1"), exclusive=True))]) is None


def test_an_overbooked_card_takes_nobody_even_without_cores() -> None:
    crowded = use(part("GPU-1", 1, 60), part("GPU-1", 1, 60))

    assert place(request(1), [Room(card("GPU-1"), crowded)]) is None


def test_a_card_without_free_slots_takes_nobody() -> None:
    assert place(request(1), [Room(card("GPU-1", slots=1), use(part("GPU-1")))]) is None


@pytest.mark.parametrize(
    ("lists", "want"),
    [
        ({"uuids": ("GPU-1",)}, "GPU-1"),
        ({"uuids": ("!GPU-1",)}, "GPU-2"),
        ({"models": ("h100",)}, "GPU-2"),
        ({"models": ("!H100",)}, "GPU-1"),
        ({"models": ("a100", "h100"), "uuids": ("!GPU-1",)}, "GPU-2"),
        ({"models": ("nvidia", "!a100")}, "GPU-2"),
        ({"models": ("B200",)}, None),
        ({"uuids": ("GPU-1", "!GPU-1")}, None),
    ],
)
def test_uuid_and_model_lists(lists: dict[str, tuple[str, ...]], want: str | None) -> None:
    rooms = [
        Room(card("GPU-1", 4, model="NVIDIA A100-SXM4"), IDLE),
        Room(card("GPU-2", 8, model="NVIDIA H100"), IDLE),
    ]

    assert uuids(place(request(1, **lists), rooms)) == (want and [want])  # type: ignore[arg-type]


def test_an_assignment_lets_rows_choose_in_order() -> None:
    options = [[2, 0, 1], [2, 0], [2]]

    assert assign(options, [0, 1, 2]) == (1, 0, 2)
    assert assign([[0], [0]], [0, 1]) is None
    assert assign([], []) == ()


def test_an_allocation_is_recognised_as_the_answer_to_its_request() -> None:
    cards = {"GPU-1": card("GPU-1"), "GPU-2": card("GPU-2")}
    asked = request("50%", 2, cores=(10, 20))
    slices = place(asked, [Room(each, IDLE) for each in cards.values()])
    assert slices is not None
    given_out = allocation("x", *slices)

    assert answers(given_out, asked, cards, CardPolicy.BINPACK)
    assert not answers(given_out, request("50%", 3, cores=(10, 20)), cards, CardPolicy.BINPACK)
    assert not answers(given_out, request("50%", cores=(10,)), cards, CardPolicy.BINPACK)
    assert not answers(given_out, asked, cards, CardPolicy.EXCLUSIVE)
    assert not answers(given_out, asked, {"GPU-1": card("GPU-1")}, CardPolicy.BINPACK)


def test_an_allocation_is_admitted_only_where_it_fits() -> None:
    half = {"GPU-1": Room(card("GPU-1"), use(part("GPU-1", 4, 50)))}

    assert admits(half, allocation("x", part("GPU-1", 4, 50)))
    assert not admits(half, allocation("x", part("GPU-1", 5)))
    assert not admits(half, allocation("x", part("GPU-1", 1, 51)))
    assert not admits(half, allocation("x", part("GPU-1"), exclusive=True))
    assert not admits(half, allocation("x", part("GPU-2")))


cards_strategy = st.lists(
    st.builds(
        Card,
        uuid=st.just(""),
        memory_bytes=st.integers(1, 8).map(lambda gib: gib * GIB),
        slots=st.integers(0, 4),
        model=st.sampled_from(["NVIDIA A100", "NVIDIA H100"]),
        healthy=st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=5,
).map(
    lambda cards: [
        Card(
            uuid=f"GPU-{i}",
            memory_bytes=each.memory_bytes,
            slots=each.slots,
            model=each.model,
            healthy=each.healthy,
        )
        for i, each in enumerate(cards)
    ]
)

held_strategy = st.lists(
    st.builds(
        lambda number, gib, reserved, exclusive: (number, gib, reserved, exclusive),
        st.integers(0, 4),
        st.integers(1, 5),
        st.sampled_from([0, 10, 40, 80]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=6,
).map(
    lambda rows: [
        allocation(f"h{i}", part(f"GPU-{number}", gib, reserved), exclusive=exclusive)
        for i, (number, gib, reserved, exclusive) in enumerate(rows)
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    count = draw(st.integers(1, 4))
    whole = draw(st.sampled_from([False] * 5 + [True]))
    per_card = draw(st.sampled_from([1, count]))
    amounts = st.one_of(
        st.integers(1, 8).map(lambda gib: MemoryAmount(bytes=gib * GIB)),
        st.integers(1, 99).map(lambda percent: MemoryAmount(percent=percent)),
    )
    memory = (
        (MemoryAmount(percent=100),)
        if whole
        else tuple(draw(st.lists(amounts, min_size=per_card, max_size=per_card)))
    )
    cores: tuple[int, ...] = ()
    if not whole and draw(st.booleans()):
        cores = tuple(draw(st.lists(st.integers(1, 100), min_size=count, max_size=count)))
    return Request(
        count=count,
        memory=memory,
        cores_percent=cores,
        card_policy=draw(st.sampled_from([None, *CardPolicy])),
        models=draw(st.sampled_from([(), (), ("h100",), ("!h100",)])),
        uuids=draw(st.sampled_from([(), (), ("!GPU-0",), ("GPU-1", "GPU-2", "GPU-3")])),
    )


@settings(max_examples=500, deadline=None)
@given(cards_strategy, held_strategy, requests())
def test_finds_an_assignment_exactly_when_trying_all_does(
    cards: list[Card], held: list[Allocation], asked: Request
) -> None:
    rooms = rooms_of(cards, held)
    before = copy.deepcopy(rooms)

    slices = place(asked, rooms)

    assert rooms == before
    assert (slices is not None) == oracle.fits(asked, cards, held)
    if slices is not None:
        assert len({s.card_uuid for s in slices}) == len(slices) == asked.count
        given_out = allocation("new", *slices)
        for each in cards:
            if any(s.card_uuid == each.uuid for s in slices):
                memory, reserved, number = oracle.sums(each, [*held, given_out])
                assert (memory <= each.memory_bytes, reserved <= 100, number <= each.slots) == (
                    True,
                    True,
                    True,
                )


@settings(max_examples=200, deadline=None)
@given(cards_strategy, held_strategy, requests(), st.data())
def test_the_order_of_the_cards_does_not_matter(
    cards: list[Card], held: list[Allocation], asked: Request, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(cards))

    assert place(asked, rooms_of(cards, held)) == place(asked, rooms_of(shuffled, held))


@pytest.mark.parametrize(
    ("held", "overbooked"),
    [
        (CardUse(100, 100, 2), False),
        (CardUse(101, 0, 1), True),
        (CardUse(0, 101, 1), True),
        (CardUse(0, 0, 3), True),
        (CardUse(1, 1, 1, ("a",), 1), False),
        (CardUse(1, 1, 2, ("a",), 1), False),
        (CardUse(1, 1, 2, ("a",), 2), True),
    ],
)
def test_a_card_is_overbooked_by_the_first_unit_too_many(held: CardUse, overbooked: bool) -> None:
    assert Room(Card(uuid="GPU-1", memory_bytes=100, slots=2), held).overbooked is overbooked
