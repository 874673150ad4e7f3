# SPDX-License-Identifier: Apache-2.0
"""Brings what was saved to the disk, a moment later and away from the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Several creates share one flush, and none of them waits for it.
_PAUSE_SECONDS = 0.05


class Flusher:
    """Calls a blocking `sync` in a thread, soon after it is wanted."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._wanted = asyncio.Event()

    def want(self) -> None:
        """Ask for a `sync` that starts after this call."""
        self._wanted.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(_PAUSE_SECONDS)
            self._wanted.clear()
            try:
                await asyncio.to_thread(self._sync)
            except OSError:  # the next change tries again
                logger.exception("the state could not be brought to the disk")
