# SPDX-License-Identifier: Apache-2.0
"""Fit over all nodes at once: what it says of each is what placing says of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.errors import NoRoomError
from scheduler_cache.extender.node_fit import Filtered, NodeFit
from scheduler_cache.extender.shape import Shape
from scheduler_cache.inventory import Inventory, OwnedCard
from scheduler_cache.model import Card, CardPolicy, CardUse, MemoryAmount, Request
from scheduler_cache.node_view import NodeView
from scheduler_cache.placing import place_pod
from scheduler_cache.pod import Container, ContainerKind, Pod
from tests.scheduler_cache.builders import GIB, request

EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "60"))


def node_view(
    name: str, *cards: tuple[Card, CardUse], refusal: str = "", closed: str = ""
) -> NodeView:
    """Return a node; `closed` is why its first card is not offered."""
    return NodeView(
        name=name,
        inventory=Inventory(
            cards={
                card.uuid: OwnedCard(card=card, owner="native", refusal="" if i else closed)
                for i, (card, _) in enumerate(cards)
            }
        ),
        uses={card.uuid: use for card, use in cards},
        refusal=refusal,
    )


def held(uuid: str, gib: int = 8, used_gib: int = 0, **fields: Any) -> tuple[Card, CardUse]:  # noqa: ANN401
    use = {key: fields.pop(key) for key in ("reserved", "slices", "alone") if key in fields}
    given = {"memory_bytes": gib * GIB, "slots": 10, "model": "NVIDIA H100", **fields}
    return Card(uuid=uuid, **given), CardUse(
        used_gib * GIB,
        use.get("reserved", 0),
        use.get("slices", 1 if used_gib else 0),
        ("pod x",) if use.get("alone") else (),
        use.get("slices", 1 if used_gib else 0),
    )


def asking(*requests: Request, kinds: tuple[ContainerKind, ...] = ()) -> tuple[Pod, PodRequest]:
    kinds = kinds or (ContainerKind.APP,) * len(requests)
    pod = Pod(
        uid="p",
        name="p",
        containers=tuple(
            Container(name=f"c{i}", kind=kind)
            for i, kind in sorted(enumerate(kinds), key=lambda each: each[1] is ContainerKind.APP)
        ),
    )
    return pod, PodRequest(
        dialect="native", containers={f"c{i}": each for i, each in enumerate(requests)}
    )


def shape(*requests: Request, kinds: tuple[ContainerKind, ...] = ()) -> Shape:
    return Shape.of(*asking(*requests, kinds=kinds))


def filtered(asked: Request, *views: NodeView, names: list[str] | None = None) -> Filtered:
    nodes = NodeFit()
    for view in views:
        nodes.update(view)
    return nodes.filter(shape(asked), names)


def test_nodes_with_room_fit_and_the_others_say_why() -> None:
    result = filtered(
        request(4, cores=(30,)),
        node_view("free", held("a")),
        node_view("small", held("b", 8, 5), held("c", 2)),
        node_view("busy", held("d", 8, 1, reserved=80)),
        node_view("sick", held("e", healthy=False)),
        node_view("taken", held("f", 8, 1, alone=True)),
        node_view("full", held("g", 8, 1, slots=1)),
        node_view("closed", held("h"), closed="cordoned"),
        node_view("none"),
    )

    assert result.fitting == ["free"]
    assert result.failed == {
        "small": "none of 2 cards fits 4.0Gi and 30% of cores: 2 with less memory free",
        "busy": "none of 1 cards fits 4.0Gi and 30% of cores: 1 with fewer cores free",
        "taken": "none of 1 cards fits 4.0Gi and 30% of cores: 1 held exclusively",
        "full": "none of 1 cards fits 4.0Gi and 30% of cores: 1 without a free slot",
    }
    assert result.unresolvable == {
        "sick": "none of 1 cards fits 4.0Gi and 30% of cores: 1 unhealthy",
        "closed": "none of 1 cards fits 4.0Gi and 30% of cores: 1 not offered (cordoned)",
        "none": "this node has no card",
    }


def test_a_node_that_is_not_known_does_not_fit() -> None:
    result = filtered(request(1), node_view("n", held("a")), names=["n", "other"])

    assert result.fitting == ["n"]
    assert result.unresolvable == {"other": "this node is not known to the scheduler cache"}


def test_the_order_and_choice_of_names_is_the_callers() -> None:
    views = [node_view(name, held(f"card-{name}")) for name in "abc"]

    assert filtered(request(1), *views, names=["c", "a"]).fitting == ["c", "a"]


@pytest.mark.parametrize(
    ("uuids", "models", "fitting"),
    [
        (("a", "b"), (), ["n1", "n2"]),
        (("!a",), (), ["n2", "n3"]),
        (("gone",), (), []),
        ((), ("h100",), ["n1", "n2"]),
        ((), ("!H100",), ["n3"]),
        ((), ("NVIDIA", "!a100"), ["n1", "n2"]),
        (("a", "c"), ("H100",), ["n1"]),
    ],
)
def test_cards_are_allowed_and_denied_by_uuid_and_model(
    uuids: tuple[str, ...], models: tuple[str, ...], fitting: list[str]
) -> None:
    result = filtered(
        request(1, uuids=uuids, models=models),
        node_view("n1", held("a")),
        node_view("n2", held("b")),
        node_view("n3", held("c", model="NVIDIA A100")),
    )

    assert result.fitting == fitting


def test_a_node_that_changes_or_goes_is_followed() -> None:
    nodes = NodeFit()
    nodes.update(node_view("n", held("a", 8, 7)))
    nodes.update(node_view("m", held("b")))
    asked = shape(request(4))
    before = nodes.filter(asked).fitting

    nodes.update(node_view("n", held("a", 8, 1), held("a2", 8)))
    after = nodes.filter(asked).fitting
    nodes.remove("m")

    assert (before, after) == (["m"], ["n", "m"])
    assert nodes.filter(asked).fitting == ["n"]
    assert nodes.filter(shape(request(1, uuids=("b",)))).fitting == []


def test_more_cards_than_ever_seen_make_the_columns_wider() -> None:
    nodes = NodeFit()
    nodes.update(node_view("few", held("a")))
    nodes.update(node_view("many", *(held(f"m{i:02}") for i in range(40))))

    assert nodes.filter(shape(request(1, count=16))).fitting == ["many"]
    assert nodes.filter(shape(request(1, uuids=("a",)))).fitting == ["few"]


def scores(asked: Request, *views: NodeView) -> list[int]:
    nodes = NodeFit()
    for view in views:
        nodes.update(view)
    return nodes.prioritize(shape(asked), [view.name for view in views])


NEARLY_FULL = node_view("nearly", held("a", 10, 8), held("a2", 10, 10))
HALF = node_view("half", held("b", 10, 5), held("b2", 10, 10))
EMPTY = node_view("empty", held("c", 10), held("c2", 10))


def test_binpack_prefers_the_card_that_is_filled() -> None:
    assert scores(request(2), NEARLY_FULL, HALF, EMPTY) == [10, 7, 2]


def test_spread_prefers_the_emptiest_card() -> None:
    assert scores(request(2, policy=CardPolicy.SPREAD), NEARLY_FULL, HALF, EMPTY) == [2, 5, 10]


def test_exclusive_prefers_nodes_that_are_in_use() -> None:
    assert scores(request("100%"), NEARLY_FULL, EMPTY) == [10, 0]


def test_a_node_that_does_not_fit_scores_nothing() -> None:
    nodes = NodeFit()
    nodes.update(NEARLY_FULL)

    assert nodes.prioritize(shape(request(5)), ["nearly", "unknown"]) == [0, 0]


CARDS = st.builds(
    held,
    uuid=st.just(""),
    gib=st.integers(1, 8),
    used_gib=st.integers(0, 8),
    reserved=st.sampled_from([0, 0, 30, 70, 100]),
    slices=st.integers(0, 3),
    alone=st.booleans(),
    slots=st.integers(0, 4),
    model=st.sampled_from(["H100", "A100"]),
    healthy=st.sampled_from([True, True, True, False]),
)


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeView]:
    views = []
    for i in range(draw(st.integers(1, 4))):
        cards = draw(st.lists(CARDS, max_size=4))
        named = [
            (Card(**{**fields(card), "uuid": f"GPU-{i}{j}"}), use)
            for j, (card, use) in enumerate(cards)
        ]
        views.append(
            node_view(
                f"n{i}",
                *named,
                closed=draw(st.sampled_from(["", "", "cordoned"])),
                refusal=draw(st.sampled_from(["", "", "", "closed"])),
            )
        )
    return views


def fields(card: Card) -> dict[str, Any]:
    return {name: getattr(card, name) for name in Card.__dataclass_fields__}


AMOUNTS = st.one_of(
    st.integers(1, 8).map(lambda gib: MemoryAmount(bytes=gib * GIB)),
    st.sampled_from([1, 25, 50, 99]).map(lambda percent: MemoryAmount(percent=percent)),
    st.sampled_from([0.0001, 0.166, 0.5, 0.999]).map(lambda part: MemoryAmount(fraction=part)),
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if draw(st.integers(0, 7)) == 0:
        return Request(count=count, memory=(MemoryAmount(percent=100),))
    several = draw(st.booleans())
    memory = tuple(draw(AMOUNTS) for _ in range(count if several else 1))
    cores = draw(
        st.sampled_from([(), (30,), (60,), (100,)])
        if not several
        else st.tuples(*[st.sampled_from([30, 60, 100])] * count) | st.just(())
    )
    return Request(
        count=count,
        memory=memory,
        cores_percent=tuple(cores),
        card_policy=draw(st.sampled_from([None, None, *CardPolicy])),
        uuids=draw(st.sampled_from([(), (), ("GPU-00", "GPU-11"), ("!GPU-00",)])),
        models=draw(st.sampled_from([(), (), ("h100",), ("!h100",)])),
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    views=clusters(),
    asked=st.lists(requests(), min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from(ContainerKind), min_size=3, max_size=3),
    default=st.sampled_from(CardPolicy),
)
def test_the_columns_say_what_placing_says(
    views: list[NodeView],
    asked: list[Request],
    kinds: list[ContainerKind],
    default: CardPolicy,
) -> None:
    nodes = NodeFit(default)
    for view in views:
        nodes.update(view)
    pod, pod_request = asking(*asked, kinds=tuple(kinds[: len(asked)]))

    result = nodes.filter(Shape.of(pod, pod_request))

    for view in views:
        try:
            place_pod(pod, pod_request, view, default)
            fits = True
        except NoRoomError:
            fits = False
        assert (view.name in result.fitting) == fits
        assert fits or (result.failed | result.unresolvable)[view.name]
    chosen = nodes.prioritize(Shape.of(pod, pod_request), result.fitting)
    assert all(0 <= score <= 10 for score in chosen)


MANY = st.lists(st.integers(1, 8), min_size=6, max_size=7, unique=True)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    cards=st.lists(st.lists(CARDS, min_size=6, max_size=8), min_size=1, max_size=3),
    gib=MANY,
    beside=st.booleans(),
)
def test_many_different_amounts_fit_where_placing_places_them(
    cards: list[list[tuple[Card, CardUse]]], gib: list[int], beside: bool
) -> None:
    views = [
        node_view(
            f"n{i}",
            *((replace(card, uuid=f"GPU-{i}{j}"), use) for j, (card, use) in enumerate(each)),
        )
        for i, each in enumerate(cards)
    ]
    pod, asked = asking(request(*gib), *([request(1)] if beside else []))
    nodes = NodeFit()
    for view in views:
        nodes.update(view)

    assert set(nodes.filter(Shape.of(pod, asked)).fitting) == {
        view.name for view in views if placed(pod, asked, view)
    }


def placed(pod: Pod, asked: PodRequest, view: NodeView) -> bool:
    try:
        place_pod(pod, asked, view)
    except NoRoomError:
        return False
    return True


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    views=clusters(),
    asked=st.lists(requests(), min_size=1, max_size=3),
    later=clusters(),
    gone=st.sampled_from(["", "n0", "n1"]),
)
def test_following_changes_ends_where_a_fresh_start_does(
    views: list[NodeView], asked: list[Request], later: list[NodeView], gone: str
) -> None:
    followed, fresh = NodeFit(), NodeFit()
    wanted = shape(*asked)
    for view in views:
        followed.update(view)
    followed.filter(wanted)
    for view in later:
        followed.update(view)
    followed.remove(gone)
    for view in {each.name: each for each in (*views, *later)}.values():
        if view.name != gone:
            fresh.update(view)

    names = sorted({each.name for each in (*views, *later)})

    assert followed.filter(wanted, names) == fresh.filter(wanted, names)
    assert followed.prioritize(wanted, names) == fresh.prioritize(wanted, names)


def test_refusals_without_end_leave_no_trace() -> None:
    nodes = NodeFit()
    nodes.update(node_view("other", held("b"), refusal="why"))

    for i in range(10_000):
        nodes.update(node_view("n", held("a"), refusal=f"container {i} runs"))

    assert nodes.filter(shape(request(1))).unresolvable == {
        "other": "none of 1 cards fits 1.0Gi: 1 not offered (why)",
        "n": "none of 1 cards fits 1.0Gi: 1 not offered (container 9999 runs)",
    }
    assert nodes.texts < 5000


def test_every_node_may_have_a_refusal_of_its_own() -> None:
    nodes = NodeFit()
    for i in range(6000):
        nodes.update(node_view(f"n{i}", held(f"a{i}"), refusal=f"container {i} runs"))

    words = nodes.why_not(shape(request(1)), ["n0", "n5999"])

    assert words["n0"] == "none of 1 cards fits 1.0Gi: 1 not offered (container 0 runs)"
    assert words["n5999"] == "none of 1 cards fits 1.0Gi: 1 not offered (container 5999 runs)"


def test_nodes_that_come_after_a_question_are_found_by_the_next() -> None:
    nodes = NodeFit()
    nodes.update(node_view("n0", held("a0")))
    before = nodes.filter(shape(request(1))).fitting
    for i in range(1, 100):
        nodes.update(node_view(f"n{i}", held(f"a{i}")))

    assert before == ["n0"]
    assert len(nodes.filter(shape(request(1))).fitting) == 100


def test_a_card_that_two_nodes_claim_stays_with_the_one_that_is_left() -> None:
    nodes = NodeFit()
    nodes.update(node_view("old", held("a")))
    nodes.update(node_view("new", held("a")))

    nodes.remove("old")

    assert nodes.filter(shape(request(1, uuids=("a",)))).fitting == ["new"]


def both_say(fits: bool, view: NodeView, *requests: Request) -> None:
    pod, asked = asking(*requests)
    nodes = NodeFit()
    nodes.update(view)

    assert placed(pod, asked, view) is fits
    assert bool(nodes.filter(Shape.of(pod, asked)).fitting) is fits


def test_a_part_that_is_no_byte_does_not_fit() -> None:
    tiny = Card(uuid="a", memory_bytes=50, slots=10)

    both_say(False, node_view("n", (tiny, CardUse())), request("1%"))
    both_say(True, node_view("n", (tiny, CardUse())), request("2%"))


def test_who_holds_a_card_alone_shares_it_with_no_container_of_its_own_pod() -> None:
    sole = request(4, policy=CardPolicy.EXCLUSIVE)

    both_say(False, node_view("n", held("a")), sole, request(2))
    both_say(True, node_view("n", held("a"), held("b")), sole, request(2))


def test_a_demand_leaves_the_only_card_that_another_can_have() -> None:
    # 4 GiB go on `b` although `a` is fuller, since 2 GiB with 60 % of cores go on `a` alone.
    unequal = request(4, 2, cores=(10, 60))
    view = node_view("n", held("a", 4), held("b", 6, reserved=70, slices=1))

    both_say(True, view, unequal, request(2))
    both_say(False, view, unequal, request(3))
