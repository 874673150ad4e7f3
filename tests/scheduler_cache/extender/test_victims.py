# SPDX-License-Identifier: Apache-2.0
"""Who must go for a pod: as few as possible, as unimportant as possible, and card by card."""

from __future__ import annotations

import os
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.extender.messages import Victims
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.victims import Search
from scheduler_cache.footprint import Amount
from scheduler_cache.inventory import Inventory, OwnedCard
from scheduler_cache.model import Card, CardPolicy, MemoryAmount, Request
from scheduler_cache.node_view import Hold, NodeView, added
from scheduler_cache.pod import ContainerKind
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, B, C, gpu, node_report

EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "100"))


def preempt(world: Fleet, source: object, **given_uids: tuple[str, ...]) -> dict[str, Victims]:
    return world.extender.preempt(
        source,  # type: ignore[arg-type]
        {name: Victims(uids=uids, pdb_violations=2) for name, uids in given_uids.items()},
    )


def full(*holders: tuple[str, int, int]) -> Fleet:
    """Return a node with a card of 8 GiB and these pods: uid, GiB, priority."""
    world = Fleet(n1=gpu(A, 8))
    for uid, gib, priority in holders:
        world.hold(waiting(uid, asking(gib), priority=priority), "n1")
    return world


def test_whoever_kube_scheduler_names_goes_and_holders_of_slices_come_on_top() -> None:
    world = full(("low", 4, 1), ("high", 4, 5))

    found = preempt(world, waiting("p", asking(4), priority=9), n1=("cpu-eater",))

    assert found == {"n1": Victims(uids=("cpu-eater", "low"), pdb_violations=2)}


def test_a_pod_that_must_go_anyway_may_be_enough() -> None:
    world = full(("low", 4, 1), ("high", 4, 5))

    found = preempt(world, waiting("p", asking(4), priority=9), n1=("high",))

    assert found == {"n1": Victims(uids=("high",), pdb_violations=2)}


def test_the_fewest_of_the_lowest_priority_go_and_of_these_the_smallest() -> None:
    asker = waiting("p", asking(2), priority=9)

    by_priority = preempt(full(("a", 4, 2), ("b", 4, 1)), asker, n1=("x",))
    by_number = preempt(full(("a", 1, 1), ("b", 1, 1), ("c", 6, 1)), asker, n1=("x",))
    by_size = preempt(full(("a", 5, 1), ("b", 3, 1)), asker, n1=("x",))

    assert by_priority["n1"].uids == ("x", "b")
    assert by_number["n1"].uids == ("x", "c")
    assert by_size["n1"].uids == ("x", "b")


def test_the_card_is_chosen_on_which_least_is_lost() -> None:
    world = Fleet(n1=(gpu(A, 8), gpu(B, 8)))
    for uid, gib, priority in (("a1", 8, 5), ("b1", 4, 1), ("b2", 4, 1)):
        world.hold(waiting(uid, asking(gib), priority=priority), "n1")

    assert preempt(world, waiting("p", asking(8), priority=9), n1=("x",))["n1"].uids == (
        "x",
        "b1",
        "b2",
    )


def test_several_cards_are_freed_and_who_need_not_go_stays() -> None:
    world = Fleet(n1=(gpu(A, 8), gpu(B, 8)))
    for uid, gib in (("a1", 8), ("b1", 2), ("b2", 6)):
        world.hold(waiting(uid, asking(gib), priority=1), "n1")

    found = preempt(world, waiting("p", asking(4, count=2), priority=9), n1=("x",))

    assert found["n1"].uids == ("x", "a1", "b2")


def test_equal_priority_is_never_evicted() -> None:
    world = full(("equal", 6, 9), ("low", 2, 1))

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("low",)) == {}


def test_what_is_gone_from_the_api_server_is_no_victim() -> None:
    world = full(("orphan", 6, 1))
    world.extender.follow(world.cluster.delete_pod("orphan", world.now))

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("x",)) == {}


def test_a_reservation_is_no_victim() -> None:
    world = full(("low", 2, 1))
    world.apply(waiting("assumed", asking(6), priority=1))
    world.extender.follow(world.cluster.reserve("assumed", "n1", 1, world.now)[1])

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("x",)) == {}


def test_what_is_ending_already_makes_room_without_more_victims() -> None:
    world = full(("low", 4, 1))
    world.end(world.hold(waiting("ending", asking(4), priority=1), "n1"))
    holder = world.cluster.view("n1")
    assert holder is not None
    assert holder.room(A).free_bytes == 0

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("x",))["n1"].uids == ("x",)


def test_room_kept_for_nominated_pods_is_not_given_away_again() -> None:
    world = full(("low", 4, 1))
    world.apply(waiting("first", asking(4), priority=20, nominated="n1"))
    world.end(world.hold(waiting("lower", asking(4)), "n1"))

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("x",))["n1"].uids == ("x", "low")


def test_a_pod_without_a_request_keeps_the_victims_it_was_given() -> None:
    world = full(("low", 4, 1))
    plain = waiting("p", {"name": "main", "resources": {}}, priority=9)

    assert preempt(world, plain, n1=("x",))["n1"].uids == ("x",)


def test_a_node_that_is_not_known_helps_nobody() -> None:
    assert preempt(full(), waiting("p", asking(1), priority=9), other=("x",)) == {}


def test_no_eviction_makes_a_small_card_large() -> None:
    world = full(("low", 8, 1))

    assert preempt(world, waiting("p", asking(9), priority=9), n1=("low",)) == {}


def test_an_unhealthy_card_is_not_emptied() -> None:
    world = full(("low", 8, 1))
    world.extender.follow(
        world.cluster.apply_report(node_report(gpu(A, 8, healthy=False), node="n1"), world.now)
    )

    assert preempt(world, waiting("p", asking(4), priority=9), n1=("x",)) == {}


@st.composite
def nodes(draw: st.DrawFn) -> tuple[NodeView, dict[str, int]]:
    """Return a node of one to three cards with up to six holders, most of which may go."""
    cards = [Card(uuid=f"GPU-{i}", memory_bytes=8 * GIB, slots=4) for i in range(draw(COUNT))]
    view = NodeView(
        name="n",
        inventory=Inventory(cards={each.uuid: OwnedCard(card=each, owner="x") for each in cards}),
    )
    evictable = {}
    for i in range(draw(st.integers(0, 6))):
        on = draw(st.lists(st.sampled_from(cards), min_size=1, max_size=2, unique=True))
        amount = Amount(draw(st.integers(1, 5)) * GIB, draw(st.sampled_from([0, 30])), 1)
        hold = Hold(f"pod h{i}", {each.uuid: amount for each in on}, frozenset(), f"h{i}")
        uses = added(view.uses, hold)
        if any(use.memory_bytes > 8 * GIB or use.reserved_percent > 100 for use in uses.values()):
            continue
        view.uses = uses
        for each in on:
            view.holds.setdefault(each.uuid, []).append(hold)
        if draw(st.integers(0, 4)):
            evictable[f"h{i}"] = draw(st.integers(0, 2))
    return view, evictable


COUNT = st.integers(1, 3)
REQUESTS = st.builds(
    lambda count, gib, cores: Request(
        count=count, memory=(MemoryAmount(bytes=gib * GIB),), cores_percent=cores
    ),
    COUNT,
    st.integers(1, 8),
    st.sampled_from([(), (50,)]),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    node=nodes(),
    parts=st.lists(st.tuples(st.sampled_from(ContainerKind), REQUESTS), min_size=1, max_size=2),
)
def test_the_victims_are_enough_needed_and_the_least_important(
    node: tuple[NodeView, dict[str, int]], parts: list[tuple[ContainerKind, Request]]
) -> None:
    view, evictable = node
    search = Search(
        view=view, shape=Shape(tuple(parts)), evictable=evictable, default=CardPolicy.BINPACK
    )
    sets = [
        frozenset(some)
        for some in chain.from_iterable(
            combinations(evictable, size) for size in range(len(evictable) + 1)
        )
    ]
    enough = [some for some in sets if search._fits(some)]

    found = search.victims()

    if found is None:
        assert frozenset(evictable) not in enough
        return
    assert found in enough
    assert found <= evictable.keys()
    if len(parts) == 1 and parts[0][1].count == 1:
        assert search.cost(found) == min(map(search.cost, enough))
    elif len(parts) == 1:
        assert not any(found - {uid} in enough for uid in found)


def test_of_several_containers_the_higher_priority_stays() -> None:
    world = full(("high", 4, 5), ("low", 4, 1))
    two = waiting("p", asking(2), {**asking(2), "name": "beside"}, priority=9)

    assert preempt(world, two, n1=("x",))["n1"].uids == ("x", "low")


def test_several_cards_are_freed_where_the_lowest_priorities_are() -> None:
    world = Fleet(n1=(gpu(A, 8), gpu(B, 8), gpu(C, 8)))
    for uid, priority in (("on-a", 5), ("on-b", 1), ("on-c", 1)):
        world.hold(waiting(uid, asking(8), priority=priority), "n1")

    found = preempt(world, waiting("p", asking(8, count=2), priority=9), n1=("x",))

    assert found["n1"].uids == ("x", "on-b", "on-c")
