# SPDX-License-Identifier: Apache-2.0
"""Room is made for who waits for slices alone, once, and kept for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, B, gpu


def full() -> Fleet:
    """Return node n1, which `low` and `lower` fill."""
    world = Fleet(n1=gpu(A, 8), n2=gpu(B, 8))
    world.hold(waiting("low", asking(4), priority=1), "n1")
    world.hold(waiting("lower", asking(4), priority=0), "n1")
    return world


def test_whose_eviction_makes_room_is_found() -> None:
    world = full()
    world.apply(waiting("p", asking(4), priority=9))

    relief = world.extender.relief("p", "n1", frozenset())

    assert relief is not None
    assert (relief.node_name, sorted(relief.victims)) == ("n1", ["lower"])


def test_who_is_spared_is_no_victim() -> None:
    world = full()
    world.apply(waiting("p", asking(4), priority=9))

    relief = world.extender.relief("p", "n1", {"lower"})

    assert relief is not None
    assert relief.victims == {"low"}
    assert world.extender.relief("p", "n1", {"lower", "low"}) is None


def never(source: dict[str, Any]) -> dict[str, Any]:
    source["spec"]["preemptionPolicy"] = "Never"
    return source


@pytest.mark.parametrize(
    "source",
    [
        never(waiting("p", asking(4), priority=9)),
        waiting("p", asking(4), priority=0),
        waiting("p", asking(9), priority=9),
        waiting("p", asking(4), priority=9, nominated="n2"),
        waiting("p", asking(4), priority=9, node="n2"),
        waiting("p", {"name": "main", "resources": {}}, priority=9),
        waiting("other", asking(4), priority=9),
    ],
)
def test_no_room_is_made_for_who_may_not_preempt_or_waits_for_something_else(
    source: dict[str, Any],
) -> None:
    world = full()
    world.apply(source)

    assert world.extender.relief("p", "n1", frozenset()) is None


def test_a_promise_keeps_room_like_a_nomination_and_is_given_once() -> None:
    world = full()
    world.apply(waiting("p", asking(6), priority=9))

    world.extender.promise("p", "n2")

    assert world.filter(waiting("q", asking(4), priority=9)).fitting == []
    assert world.filter(waiting("q", asking(2), priority=9)).fitting == ["n2"]
    assert world.extender.relief("p", "n1", frozenset()) is None


def test_a_promise_ends_when_it_is_withdrawn_or_the_pod_is_bound_or_gone() -> None:
    asker = waiting("q", asking(4), priority=9)
    for end in ("withdrawn", "gone", "bound elsewhere"):
        world = Fleet(n1=gpu(A, 8), n2=gpu(B, 8))
        source = waiting("p", asking(6), priority=9)
        world.apply(source)
        world.extender.promise("p", "n2")
        assert world.filter(asker).fitting == ["n1"], end

        if end == "withdrawn":
            world.extender.withdraw("p")
        elif end == "gone":
            world.extender.follow(world.cluster.delete_pod("p", world.now))
        else:
            world.hold(source, "n1")

        assert "n2" in world.filter(asker).fitting, end


def test_a_node_that_kube_scheduler_nominates_counts_more_than_a_promise() -> None:
    world = Fleet(n1=gpu(A, 8), n2=gpu(B, 8))
    world.apply(waiting("p", asking(6), priority=9))
    world.extender.promise("p", "n2")

    world.apply(waiting("p", asking(6), priority=9, nominated="n1"))

    assert world.filter(waiting("q", asking(4), priority=9)).fitting == ["n2"]


def test_victims_that_are_ending_need_no_more_victims() -> None:
    world = Fleet(n1=gpu(A, 8))
    world.hold(waiting("low", asking(4), priority=1), "n1")
    world.end(world.hold(waiting("ending", asking(4)), "n1"))
    world.apply(waiting("p", asking(4), priority=9))

    relief = world.extender.relief("p", "n1", frozenset())

    assert relief is not None
    assert relief.victims == frozenset()
