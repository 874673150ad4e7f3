# SPDX-License-Identifier: Apache-2.0
"""What the extender answers, of a cluster that changes."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_cache.errors import (
    NotBelievedError,
    NotFoundError,
    NotYetError,
    SchedulerCacheError,
    WrongNodeError,
)
from scheduler_cache.extender.messages import BindingAsked
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, B, container, container_of, gpu


def fleet() -> Fleet:
    return Fleet(n1=gpu(A, 8), n2=gpu(B, 4))


def test_a_filter_returns_all_nodes_with_room_and_a_reason_for_the_others() -> None:
    world = fleet()
    world.hold(waiting("holder", asking(6)), "n1")

    small = world.filter(waiting("p", asking(2)))
    large = world.filter(waiting("p", asking(3)))
    huge = world.filter(waiting("p", asking(7)))

    assert small.fitting == ["n1", "n2"]
    assert large.fitting == ["n2"]
    assert large.failed == {"n1": "none of 1 cards fits 3.0Gi: 1 with less memory free"}
    assert huge.failed == {"n1": "none of 1 cards fits 7.0Gi: 1 with less memory free"}
    assert huge.unresolvable == {"n2": "none of 1 cards fits 7.0Gi: 1 with less memory free"}


def test_a_filter_reserves_nothing() -> None:
    world = fleet()

    for _ in range(3):
        assert world.filter(waiting("p", asking(8))).fitting == ["n1"]


def test_what_is_reserved_is_seen_by_the_next_filter() -> None:
    world = fleet()
    world.apply(waiting("first", asking(8)))

    world.extender.follow(world.cluster.reserve("first", "n1", 1, world.now)[1])
    held = world.filter(waiting("p", asking(8)))
    world.extender.follow(world.cluster.abandon("first", world.now))

    assert held.fitting == []
    assert world.filter(waiting("p", asking(8))).fitting == ["n1"]


def test_a_pod_fits_where_it_holds_its_cards_already() -> None:
    world = fleet()
    source = waiting("p", asking(8))
    world.apply(source)
    world.extender.follow(world.cluster.reserve("p", "n1", 1, world.now)[1])

    result = world.filter(source)

    assert result.fitting == ["n1"]
    assert set(result.unresolvable) == {"n2"}
    assert world.filter(source, "n2").fitting == []


def test_a_pod_that_asks_for_no_card_passes_everywhere_and_is_scored_nowhere() -> None:
    world = fleet()
    plain = waiting("p", container_of("main", {"cpu": "1"}))

    assert world.filter(plain, "n1", "unknown").fitting == ["n1", "unknown"]
    assert world.prioritize(plain, "n1", "unknown") == [0, 0]


@pytest.mark.parametrize("memory", ["0", "-1Gi", "much", "1e400"])
def test_a_request_that_cannot_be_read_fits_nowhere_and_says_why(memory: str) -> None:
    world = fleet()

    result = world.filter(waiting("p", container(memory=memory)))

    assert result.fitting == []
    assert result.failed == {}
    assert set(result.unresolvable) == {"n1", "n2"}
    assert result.unresolvable["n1"].startswith("the pod's request cannot be read: ")
    assert "vgpu.dev/memory" in result.unresolvable["n1"]


def test_a_pod_that_the_informer_knows_is_read_as_the_informer_read_it() -> None:
    world = fleet()
    source = waiting("p", asking(6))
    world.apply(source)
    lighter = {**source, "spec": waiting("p", asking(1))["spec"]}
    lighter["metadata"] = {**source["metadata"], "resourceVersion": "99999999"}

    assert world.filter(source).fitting == ["n1"]
    assert world.filter(lighter).fitting == ["n1", "n2"]


def test_a_node_that_goes_or_is_not_known_does_not_fit() -> None:
    world = fleet()
    world.extender.follow(world.cluster.delete_node("n2", world.now))

    result = world.filter(waiting("p", asking(1)), "n1", "n3")

    assert result.fitting == ["n1"]
    assert result.unresolvable == {"n3": "this node is not known to the scheduler cache"}


def test_the_fuller_node_scores_more() -> None:
    world = Fleet(n1=gpu(A, 10), n2=gpu(B, 10))
    world.hold(waiting("holder", asking(5)), "n1")

    assert world.prioritize(waiting("p", asking(2))) == [7, 2]


def binding(uid: str = "p", **fields: str) -> BindingAsked:
    given = {"namespace": "default", "name": f"name-{uid}", "uid": uid, "node_name": "n1"}
    return BindingAsked(**{**given, **fields})


def test_a_pod_that_waits_may_be_bound() -> None:
    world = fleet()
    world.apply(waiting("p", asking(1)))

    assert world.extender.check_binding(binding()).pod.uid == "p"


def change(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return waiting("p", asking(1), **fields)


@pytest.mark.parametrize(
    ("source", "asked", "kind", "words"),
    [
        (change(), binding("q"), NotYetError, "not known here yet"),
        (change(), binding(name="other"), NotBelievedError, "not of default/other"),
        (change(), binding(namespace="other"), NotBelievedError, "not of other/name-p"),
        (change(phase="Failed"), binding(), NotFoundError, "gone, or going"),
        (change(deleting=True), binding(), NotFoundError, "gone, or going"),
        (change(node="n2"), binding(), WrongNodeError, "already bound to node n2"),
        (change(scheduler="default-scheduler"), binding(), NotBelievedError, "'default-scheduler'"),
    ],
)
def test_a_pod_that_does_not_wait_for_us_is_not_bound(
    source: dict[str, Any], asked: BindingAsked, kind: type[SchedulerCacheError], words: str
) -> None:
    world = fleet()
    world.apply(source)

    with pytest.raises(kind, match=words):
        world.extender.check_binding(asked)


def test_a_pod_that_is_gone_is_not_bound() -> None:
    world = fleet()
    world.apply(waiting("p", asking(1)))
    world.cluster.reserve("p", "n1", 1, world.now)
    world.cluster.delete_pod("p", world.now)

    with pytest.raises(NotFoundError, match="gone, or going"):
        world.extender.check_binding(binding())
