# SPDX-License-Identifier: Apache-2.0
"""Blocking work away from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


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
