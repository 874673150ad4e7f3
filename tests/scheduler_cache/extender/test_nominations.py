# SPDX-License-Identifier: Apache-2.0
"""Room that preemption makes is kept for whom it is made."""

from __future__ import annotations

from dataclasses import replace

from scheduler_cache.extender.what_if import at_worst
from scheduler_cache.inventory import Inventory, OwnedCard
from scheduler_cache.model import CardUse
from scheduler_cache.node_view import NodeView
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, B, gpu, node_report


def fleet() -> Fleet:
    return Fleet(n1=gpu(A, 8), n2=gpu(B, 8))


def test_a_nominated_pod_keeps_its_room_from_lower_and_equal_priority_alone() -> None:
    world = fleet()
    world.apply(waiting("first", asking(6), priority=10, nominated="n1"))

    assert world.filter(waiting("p", asking(4), priority=9)).fitting == ["n2"]
    assert world.filter(waiting("p", asking(4), priority=10)).fitting == ["n2"]
    assert world.filter(waiting("p", asking(4), priority=11)).fitting == ["n1", "n2"]
    assert world.filter(waiting("p", asking(2), priority=9)).fitting == ["n1", "n2"]


def test_the_reason_names_what_is_kept() -> None:
    world = fleet()
    world.apply(waiting("first", asking(6), priority=10, nominated="n1"))

    result = world.filter(waiting("p", asking(4)))

    assert result.failed == {
        "n1": "none of 1 cards fits 4.0Gi: 1 with less memory free, besides what is kept for "
        "nominated pods"
    }


def test_a_nominated_pod_does_not_keep_room_from_itself() -> None:
    world = fleet()
    first = waiting("first", asking(6), priority=10, nominated="n1")
    world.apply(first)

    assert world.filter(first).fitting == ["n1", "n2"]


def test_what_ends_and_what_is_free_are_kept_together() -> None:
    world = Fleet(n1=gpu(A, 8))
    world.end(world.hold(waiting("victim", asking(4)), "n1"))
    world.apply(waiting("first", asking(6), priority=10, nominated="n1"))

    # 4Gi are free now; 2 of them are all that will be left.
    assert world.filter(waiting("p", asking(3))).fitting == []
    assert world.filter(waiting("p", asking(2))).fitting == ["n1"]


def test_a_node_is_kept_whole_while_its_nominated_pod_finds_no_room() -> None:
    world = Fleet(n1=gpu(A, 8))
    world.hold(waiting("victim", asking(4)), "n1")
    world.apply(waiting("first", asking(6), priority=10, nominated="n1"))

    result = world.filter(waiting("p", asking(1)))

    assert result.fitting == []
    assert "kept for pod default/name-first" in result.failed["n1"]


def test_two_of_equal_priority_do_not_wait_for_each_other() -> None:
    world = Fleet(n1=gpu(A, 8))
    older = waiting("b", asking(6), nominated="n1", created="2026-01-01T00:00:00Z")
    younger = waiting("a", asking(6), nominated="n1", created="2026-01-02T00:00:00Z")
    world.apply(older)
    world.apply(younger)

    assert world.filter(older).fitting == ["n1"]
    assert world.filter(younger).fitting == []


def test_room_is_no_longer_kept_for_a_pod_that_came_went_or_was_sent_elsewhere() -> None:
    asker = waiting("p", asking(4))
    for end in ("bound", "deleted", "deleting", "failed", "elsewhere"):
        world = Fleet(n1=gpu(A, 8))
        first = waiting("first", asking(6), priority=10, nominated="n1")
        world.apply(first)
        assert world.filter(asker).fitting == [], end

        if end == "bound":
            bound = world.hold(first, "n1")
            world.apply({**bound, "status": {"phase": "Succeeded"}})
            world.extender.follow(
                world.cluster.apply_report(node_report(gpu(A, 8), node="n1"), world.now)
            )
        elif end == "deleted":
            world.extender.follow(world.cluster.delete_pod("first", world.now))
        elif end == "deleting":
            world.apply(waiting("first", asking(6), nominated="n1", deleting=True))
        elif end == "failed":
            world.apply(waiting("first", asking(6), nominated="n1", phase="Failed"))
        else:
            world.apply(waiting("first", asking(6), priority=10, nominated="n9"))

        assert world.filter(asker).fitting == ["n1"], end


def test_a_reserved_pod_holds_once_and_not_twice() -> None:
    world = Fleet(n1=gpu(A, 8))
    world.apply(waiting("first", asking(4), priority=10, nominated="n1"))

    world.extender.follow(world.cluster.reserve("first", "n1", 1, world.now)[1])

    assert world.filter(waiting("p", asking(4))).fitting == ["n1"]


def test_room_that_is_free_now_and_taken_later_is_no_room() -> None:
    world = Fleet(n1=(gpu(A, 8), gpu(B, 10)))
    world.end(world.hold(waiting("victim", asking(8)), "n1"))
    world.apply(waiting("first", asking(10), priority=10, nominated="n1"))

    # Only B has room now, and only A will have some.
    assert world.filter(waiting("p", asking(4))).fitting == []


def test_at_worst_is_the_larger_of_everything() -> None:
    now = NodeView(
        name="n",
        inventory=Inventory(cards={A: OwnedCard(card=gpu(A), owner="native")}),
        uses={A: CardUse(1, 20, 3, holders=3)},
    )
    later = replace(now, uses={A: CardUse(2, 10, 4, ("pod x",), 2)}, refusal="why")

    kept = at_worst(now, later)

    assert kept.uses == {A: CardUse(2, 20, 4, ("pod x",), 3)}
    assert kept.refusal == "why"
