# SPDX-License-Identifier: Apache-2.0
"""The reservations of a gang lapse together, by the clock of the process alone."""

from __future__ import annotations

import pytest

from scheduler_cache.pod import pod_of
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, gpu

GANG = {"scheduling.x-k8s.io/pod-group": "train"}


def reserve(world: Fleet, uid: str, **options: object) -> None:
    world.apply(waiting(uid, asking(1), **options))  # type: ignore[arg-type]
    world.extender.follow(world.cluster.reserve(uid, "n1", 1, world.now)[1])


def slices(world: Fleet) -> int:
    return world.used(A, "n1")[2]


def test_no_reservation_of_a_gang_lapses_before_the_last() -> None:
    world = Fleet(n1=gpu(A, 8))
    reserve(world, "first", labels=GANG)
    world.wait(20)
    reserve(world, "second", labels=GANG)

    world.wait(15)
    together = slices(world)
    world.wait(20)

    assert together == 2
    assert slices(world) == 0


def test_reservations_of_others_and_of_other_namespaces_lapse_by_themselves() -> None:
    world = Fleet(n1=gpu(A, 8))
    reserve(world, "alone")
    reserve(world, "elsewhere", labels=GANG, namespace="other")
    world.wait(20)
    reserve(world, "second", labels=GANG)

    world.wait(15)

    assert slices(world) == 1


def test_a_member_that_is_bound_does_not_keep_the_others_for_ever() -> None:
    world = Fleet(n1=gpu(A, 8))
    reserve(world, "first", labels=GANG)
    reserve(world, "second", labels=GANG)
    world.cluster.confirm("second", world.now)

    world.wait(31)

    assert slices(world) == 1


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        (GANG, {}),
        ({"pod-group.scheduling.sigs.k8s.io": "train"}, {}),
        ({"pod-group-name": "train"}, {}),
        ({}, {"scheduling.k8s.io/group-name": "train"}),
    ],
)
def test_a_gang_is_known_by_the_name_that_its_scheduler_gives_it(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    assert pod_of(waiting("p", labels=labels, annotations=annotations)).gang == "train"
