# SPDX-License-Identifier: Apache-2.0
"""Somebody sets the host's clock: nothing that is held, seen or freed may follow it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.runtime_shim.allocations import GIB
from tests.runtime_shim.containers import Process
from tests.runtime_shim.test_meter import Node, limits_of, ticks
from tests.runtime_shim.test_region import write_slot

YEARS = 10 * 365 * 24 * 3600


@pytest.fixture
def init() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
async def node(tmp_path: Path, init: Process) -> AsyncIterator[Node]:
    node = Node(tmp_path, init)
    yield node
    node.stop()


@pytest.mark.parametrize("jump_seconds", [YEARS, -YEARS])
async def test_a_clock_that_jumps_ends_no_container_and_counts_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, jump_seconds: int
) -> None:
    region = await node.start()
    write_slot(region.usage_path, 0, GIB)
    await ticks(node, 1)
    beat = limits_of(region).heartbeat_ns
    wall, wall_ns = time.time, time.time_ns

    monkeypatch.setattr(time, "time", lambda: wall() + jump_seconds)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + jump_seconds * 10**9)
    for _ in range(3):
        await node.claims.look()
        await ticks(node, 1)

    assert node.claims.is_running(node.answer.allocation_id)
    (container,) = node.meter.readings.containers
    assert (container.used_bytes, container.busy_seconds) == (GIB, 0)
    assert limits_of(region).heartbeat_ns > beat


async def test_a_container_that_ends_after_a_jump_is_seen(
    node: Node, init: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start()
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() - YEARS * 10**9)

    init.end()
    (node.folder / "cgroup" / "cgroup.procs").write_text("")
    await node.claims.look()

    assert not node.claims.is_running(node.answer.allocation_id)
