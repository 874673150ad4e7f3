# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import threading
import time

import pytest

from runtime_shim.threads import Lane


async def test_calls_of_a_lane_run_one_at_a_time() -> None:
    lane = Lane()
    running = most = 0

    def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.005)
        running -= 1

    await asyncio.gather(*(lane.run(call) for _ in range(10)))

    assert most == 1


async def test_nobody_waits_for_long_behind_a_call_that_hangs() -> None:
    lane = Lane()
    end = threading.Event()
    hanging = asyncio.create_task(lane.run(end.wait))
    await asyncio.sleep(0.01)
    try:
        async with asyncio.timeout(60):
            assert await lane.run(lambda: "answer") == "answer"
    finally:
        end.set()
        await hanging


async def test_a_failed_call_gives_its_turn_back() -> None:
    lane = Lane()
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)

    started = time.monotonic()
    await lane.run(lambda: None)

    assert time.monotonic() - started < 0.2
