# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from scheduler_cache.flusher import Flusher


@asynccontextmanager
async def flushing(sync: Callable[[], None]) -> AsyncIterator[Flusher]:
    flusher = Flusher(sync)
    task = asyncio.create_task(flusher.run())
    try:
        yield flusher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_many_changes_share_one_flush() -> None:
    calls: list[int] = []
    async with flushing(lambda: calls.append(1)) as flusher:
        for _ in range(10):
            flusher.want()
        await until(lambda: bool(calls))
        await asyncio.sleep(0.1)

    assert calls == [1]


async def test_a_failed_flush_is_tried_again_with_the_next_change() -> None:
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("disk")

    async with flushing(fail_once) as flusher:
        flusher.want()
        await until(lambda: len(calls) == 1)
        flusher.want()
        await until(lambda: len(calls) == 2)
