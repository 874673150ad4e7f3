# SPDX-License-Identifier: Apache-2.0
"""When kube-scheduler is told that a node has more room: while somebody waits for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from scheduler_cache.cluster_wakeup import Wakeup
from tests.scheduler_cache.builders import NODE
from tests.scheduler_cache.kube_objects import A, World, container, gpu, pod


class Told:
    """A leader that only takes note of what it is to do."""

    def __init__(self) -> None:
        self.planned: list[Any] = []
        self.leading = True
        self.upkeep = SimpleNamespace(chores=self)

    def plan(self, key: Any, chore: object) -> None:  # noqa: ANN401 - a chore's key
        self.planned.append(key)


def full() -> tuple[World, Told, Wakeup]:
    """Return a world whose one card is held by p1."""
    world, leader = World(gpu(A)), Told()
    wakeup = Wakeup(None, world.cluster, leader)  # type: ignore[arg-type]
    world.bind(pod("p1", container(memory="8Gi")))
    wakeup.follow(world.report(served=["vgpu.dev/count"]))  # the same again would change nothing
    return world, leader, wakeup


def end(world: World, wakeup: Wakeup) -> None:
    """Let p1 go, and its node say so."""
    wakeup.follow(world.cluster.delete_pod("p1", world.now))
    wakeup.follow(world.report())


def test_a_node_with_more_room_is_told_while_a_pod_waits() -> None:
    world, leader, wakeup = full()
    world.apply(pod("p2"))
    wakeup.turned_away("p2")

    end(world, wakeup)

    assert leader.planned == [("wakeup", NODE)]


def test_a_pod_that_was_deleted_while_it_was_asked_about_wakes_nobody() -> None:
    """No event says again that it is gone: every end of a pod would be written on a node."""
    world, leader, wakeup = full()
    world.apply(pod("p2"))
    wakeup.follow(world.cluster.delete_pod("p2", world.now))
    wakeup.turned_away("p2")

    end(world, wakeup)

    assert leader.planned == []
