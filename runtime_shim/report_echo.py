# SPDX-License-Identifier: Apache-2.0
"""Reports again soon after a container has ended.

A pod's slice is free once the API server calls the pod finished *and* a report that came after that
no longer has its container. The kubelet says so a second or two after our own report of the end,
and the next regular one would let the slice lie idle for ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

_ECHO_SECONDS: Final = (1.5, 3.0, 5.0)


class ReportEcho:
    """Remembers who ran in the last report. Lives on the event loop."""

    def __init__(
        self, wanted: Callable[[], None], echo_seconds: Sequence[float] = _ECHO_SECONDS
    ) -> None:
        """`wanted` asks for a report."""
        self._wanted = wanted
        self._echo_seconds = echo_seconds
        self._running: frozenset[str] = frozenset()

    def reported(self, running: Collection[str]) -> None:
        """Take note of a report that has these containers."""
        ended = self._running.difference(running)
        self._running = frozenset(running)
        if ended:
            loop = asyncio.get_running_loop()
            for seconds in self._echo_seconds:
                loop.call_later(seconds, self._wanted)
