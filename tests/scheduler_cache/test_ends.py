# SPDX-License-Identifier: Apache-2.0
"""A replica to which no agent reports forgets what has ended, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler_cache.dialects.hami import Hami
from scheduler_cache.ends import Ends, ends_of
from scheduler_cache.errors import NotYetError
from scheduler_cache.model import Allocation
from tests.scheduler_cache.builders import NODE
from tests.scheduler_cache.kube_objects import (
    A,
    World,
    bound_pod,
    container,
    container_of,
    gpu,
    identity,
    kube_node,
    pod,
)

LATER = 10**9


class Two:
    """A leader, to which the node's agent reports, and a follower with the same API objects."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  those of World
        self.leader = World(gpu(A), **options)
        self.follower = World(**options)
        self.both(kube_node(annotations=self.leader.dialects.native.encode_inventory((gpu(A),))))

    def both(self, node: dict[str, Any]) -> None:
        for each in (self.leader, self.follower):
            each.cluster.apply_node(node, each.now)

    def bind(self, source: dict[str, Any]) -> Allocation:
        bound = self.leader.bind(source)
        self.follower.apply(bound)
        return self.leader.resolve(source["metadata"]["uid"])

    def delete(self, uid: str, version: int) -> None:
        for each in (self.leader, self.follower):
            each.cluster.delete_pod(uid, each.now, version)

    def say(self, version: int) -> None:
        """Let the leader state what has ended, as far as it has heard."""
        ends = ends_of(self.leader.cluster.ends(version).text())
        assert ends is not None
        self.follower.cluster.apply_ends(ends, self.follower.now)


def test_a_follower_forgets_a_deleted_pod_whose_end_the_leader_heard() -> None:
    two = Two()
    allocation = two.bind(pod("p1", container(memory="6Gi")))
    two.leader.report(allocation)
    two.delete("p1", version=LATER)
    two.leader.report()
    assert two.follower.used() == (6, 0, 1)

    two.say(LATER)

    assert two.follower.cluster.record("p1") is None
    assert two.follower.used() == two.leader.used() == (0, 0, 0)


def test_a_follower_holds_what_still_runs_after_its_pod_was_deleted() -> None:
    two = Two()
    allocation = two.bind(pod("p1", container(memory="6Gi")))
    two.leader.report(allocation)
    two.delete("p1", version=LATER)
    two.leader.report(allocation)

    two.say(LATER)

    assert two.follower.used() == two.leader.used() == (6, 0, 1)


def test_what_a_leader_did_not_yet_know_to_have_ended_is_held() -> None:
    """The follower's watch is ahead: what the leader says is of an earlier moment."""
    two = Two()
    two.bind(pod("p1", container(memory="6Gi")))
    two.leader.report()
    two.follower.cluster.delete_pod("p1", two.follower.now, LATER)

    two.say(LATER - 1)

    assert two.follower.used() == (6, 0, 1)


def test_a_new_leader_that_has_not_heard_a_node_says_nothing_of_it() -> None:
    """It never knew the pod, whose container may still run."""
    two = Two()
    allocation = two.bind(pod("p1", container(memory="6Gi")))
    two.delete("p1", version=LATER)
    fresh = World()
    fresh.cluster.apply_node(
        kube_node(annotations=fresh.dialects.native.encode_inventory((gpu(A),))), fresh.now
    )
    two.leader = fresh

    two.say(LATER)
    assert two.follower.used() == (6, 0, 1)

    fresh.cards = (gpu(A),)
    fresh.report(allocation)
    two.say(LATER)
    assert two.follower.used() == (6, 0, 1), "its container still runs"

    fresh.report()
    two.say(LATER)
    assert two.follower.used() == (0, 0, 0)


def test_a_finished_pod_that_stays_in_the_api_server_is_released_on_a_follower() -> None:
    two = Two()
    allocation = two.bind(pod("p1", container(memory="6Gi")))
    two.leader.report(allocation)
    ended = bound_pod(pod("p1", container(memory="6Gi"), phase="Succeeded"), {}, NODE)
    for each in (two.leader, two.follower):
        each.apply(ended)
    two.leader.report()

    two.say(LATER)

    assert two.follower.used() == two.leader.used() == (0, 0, 0)
    record = two.follower.cluster.record("p1")
    assert record is not None
    assert record.finished


def test_a_follower_that_becomes_the_leader_holds_what_runs_and_frees_what_ended() -> None:
    two = Two()
    running = two.bind(pod("p1", container(memory="2Gi")))
    ended = two.bind(pod("p2", container(memory="2Gi")))
    unsaid = two.bind(pod("p3", container(memory="2Gi")))
    two.leader.report(running, ended, unsaid)
    for uid in ("p1", "p2", "p3"):
        two.delete(uid, version=LATER)
    two.leader.report(running, unsaid)
    two.say(LATER)
    assert two.follower.used() == (4, 0, 2)

    # The leader dies; the agent reports to the other one, and the container of p3 has ended.
    two.follower.cards = (gpu(A),)
    two.follower.report(running)

    assert two.follower.used() == (2, 0, 1)
    two.follower.report()
    assert two.follower.used() == (0, 0, 0)


def test_a_leader_that_follows_forgets_what_agents_told_it() -> None:
    two = Two()
    allocation = two.bind(pod("p1", container(memory="6Gi")))
    old = two.leader
    old.report(allocation)
    old.cluster.delete_pod("p1", old.now, LATER)
    old.report(allocation)
    assert old.used() == (6, 0, 1)

    for _ in old.cluster.forget_reports(old.now):
        pass
    old.cluster.apply_ends(Ends(version=LATER), old.now)

    assert old.used() == (0, 0, 0)
    with pytest.raises(NotYetError, match="not known here yet"):
        old.cluster.resolve("", "another", identity("p4"))


def test_where_no_agent_of_ours_ever_was_a_deleted_pod_holds_nothing() -> None:
    """Beside another system: its pods come and go, and nobody reports their ends to us."""
    world = World(others=[Hami()])
    source = pod(
        "p1",
        container_of("main", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"}),
        node=NODE,
        annotations={
            "hami.io/vgpu-node": NODE,
            "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,2048,0:;",
        },
    )
    world.apply(source)
    world.cluster.delete_pod("p1", world.now, LATER)

    world.wait(1)

    assert list(world.cluster.records) == []


def test_an_agent_that_claims_many_containers_fills_no_lease() -> None:
    held = {f"node-{i}": frozenset(f"{j:036}" for j in range(10_000)) for i in range(20)}

    text = Ends(version=7, held=held).text()

    assert len(text) < 2_000
    read = ends_of(text)
    assert read is not None
    assert not read.covers("node-0", "any", 5)
    assert read.covers("node-99", "any", 5)


def test_a_statement_too_long_for_an_annotation_is_not_written() -> None:
    held = {f"node-{i:04}": frozenset(f"{j:036}" for j in range(50)) for i in range(200)}

    assert Ends(version=7, held=held).text() == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version":1}',
        '{"version":"1","held":{}}',
        '{"version":true,"held":{}}',
        '{"version":1,"held":[]}',
        '{"version":1,"held":{"n":7}}',
    ],
)
def test_what_cannot_be_read_ends_nothing(text: str) -> None:
    assert ends_of(text) is None


def test_what_is_written_is_read_as_it_was() -> None:
    ends = Ends(version=7, held={"a": frozenset({"u1", "u2"}), "b": None})

    assert ends_of(ends.text()) == ends
    assert json.loads(ends.text())["held"]["b"] is None
