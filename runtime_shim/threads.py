# SPDX-License-Identifier: Apache-2.0
"""Blocking work away from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

T = TypeVar("T")

# More than a hundred short calls take; less than a launcher notices.
_PATIENCE_SECONDS: Final = 0.25


async def in_thread(call: Callable[[], T], executor: Executor | None = None) -> T:
    """Return what `call` returns, run in a thread of `executor` or of the loop's default one.

    A thread cannot be stopped: a cancelled caller still waits for the end of `call`, so that what
    `call` uses, descriptors above all, may be given back afterwards.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        if not future.cancelled():
            future.exception()  # marks it as seen; the caller is gone
        raise


class Lane:
    """Runs calls that may hang in threads, one at a time as long as none hangs.

    Threads side by side only fight for the interpreter: a hundred creates at once took twice the
    time and 10 MiB more. But nobody waits for long behind a call that does not end.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, run by `in_thread`."""
        has_turn = True
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            has_turn = False
        try:
            return await in_thread(call)
        finally:
            if has_turn:
                self._turn.release()
