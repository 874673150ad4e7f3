# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.identity import Identity
from runtime_shim.isolation import Isolation
from tests.runtime_shim.pods import MAIN, pod_allocation


class Site:
    """What became of starts, with a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes = 0
        self.isolation = Isolation(self._changed, lambda: self.now)

    def _changed(self) -> None:
        self.changes += 1

    def told(self, *running: pb.Allocation) -> list[tuple[str, pb.IsolationState, str]]:
        return [
            (each.pod.container_name, each.state, each.reason)
            for each in self.isolation.messages(running)
        ]


@pytest.fixture
def site() -> Site:
    return Site()


def container(number: int) -> Identity:
    return replace(MAIN, container_name=f"c{number}")


def test_the_latest_start_counts_and_is_told_once(site: Site) -> None:
    given = pod_allocation()

    site.isolation.refused(given.pod, "", "the library is missing; install vgpu")
    site.isolation.refused(given.pod, "", "the library is missing; install vgpu")
    assert site.changes == 1
    assert site.told() == [
        ("main", pb.ISOLATION_STATE_REFUSED, "the library is missing; install vgpu")
    ]

    site.isolation.enforced(given, ["CAP_SYS_ADMIN can unmount what limits the container"])

    assert site.changes == 2
    assert site.told() == [
        (
            "main",
            pb.ISOLATION_STATE_ENFORCED,
            "CAP_SYS_ADMIN can unmount what limits the container",
        )
    ]


def test_what_an_earlier_agent_started_is_enforced(site: Site) -> None:
    assert site.told(pod_allocation()) == [("main", pb.ISOLATION_STATE_ENFORCED, "")]
    assert site.changes == 0


def test_what_runs_is_kept_and_the_rest_is_forgotten_in_time(site: Site) -> None:
    runs, ended = pod_allocation(identity=container(1)), pod_allocation(identity=container(2))
    site.isolation.enforced(runs)
    site.isolation.enforced(ended)

    site.now = 601.0

    assert [name for name, _, _ in site.told(runs)] == ["c1"]


def test_no_crowd_of_refused_pods_makes_the_report_grow(site: Site) -> None:
    for number in range(2000):
        site.isolation.refused(pod_allocation(identity=container(number)).pod, "", "no")

    told = site.told()

    assert len(told) == 1024
    assert told[-1][0] == "c1999"


def test_a_reason_is_one_short_line(site: Site) -> None:
    site.isolation.refused(pod_allocation().pod, "", "a\nb " + "x" * 9000)

    ((_, _, reason),) = site.told()
    assert reason.startswith("a b xxx")
    assert len(reason) == 400
