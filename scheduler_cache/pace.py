# SPDX-License-Identifier: Apache-2.0
"""Bounds what one caller can cost, without making anybody wait who calls now and then."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from scheduler_cache.errors import TooOftenError

# Half of what an agent leaves between two reports.
_LEAST_SECONDS: Final = 0.1
# Of the process's time, for one caller.
_SHARE: Final = 0.05
# An agent gives a report up after two.
_LATEST_SECONDS: Final = 1.0

_AT_ONCE: Final = 2


class Pace:
    """Turns of callers, by name. One event loop owns it.

    Who comes again too early is heard at once and answered late, which slows down whoever waits for
    answers. Only who does not wait is refused.
    """

    def __init__(self, *, least_seconds: float = _LEAST_SECONDS, share: float = _SHARE) -> None:
        """A turn counts for `least_seconds`, or longer, so that it took at most `share` of that."""
        self._least_seconds = least_seconds
        self._share = share
        self._recent: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Let the block run now, and leave it late if it came too early. Raises TooOftenError.

        The block awaits nothing: its time is what the caller costs.
        """
        before = self._recent[name]
        if before == _AT_ONCE:
            raise TooOftenError(f"{name} calls too often; it is heard again in a moment")
        self._recent[name] += 1
        started = time.thread_time()
        seconds = self._least_seconds
        try:
            yield
        finally:
            seconds = max(seconds, (time.thread_time() - started) / self._share)
            # By the clock, not by the end of the call: to break it off makes room for nothing.
            asyncio.get_running_loop().call_later(seconds, self._forget, name)
        if before:
            await asyncio.sleep(min(seconds, _LATEST_SECONDS))

    def _forget(self, name: str) -> None:
        self._recent[name] -= 1
        if not self._recent[name]:
            del self._recent[name]
