# SPDX-License-Identifier: Apache-2.0
"""Writes that need not happen at once: one per key, tried again until done, never a growing queue.

A chore looks at the present state when it runs and does nothing where nothing is left to do. So a
key that is planned twice runs once, and what waits is bounded by the number of things that exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from scheduler_cache.errors import NotLeaderError
from scheduler_cache.kube.client import Backoff
from scheduler_cache.kube.errors import KubeError

logger = logging.getLogger(__name__)

Key = Hashable
Chore = Callable[[], Awaitable[None]]

_WORKERS: Final = 4
# More than a large cluster has nodes and pods that change at a time; small beside the process.
_MOST_KEYS: Final = 50_000
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0


class Chores:
    """All chores of one reign. Not thread-safe: one event loop owns it."""

    def __init__(
        self,
        *,
        workers: int = _WORKERS,
        most_keys: int = _MOST_KEYS,
        first_pause_seconds: float = _FIRST_PAUSE_SECONDS,
    ) -> None:
        self._workers = workers
        self._most_keys = most_keys
        self._first_pause_seconds = first_pause_seconds
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._planned: dict[Key, Chore] = {}
        self._running: set[Key] = set()
        self._resting: dict[Key, asyncio.TimerHandle] = {}
        self._backoffs: dict[Key, Backoff] = {}
        self.failures = 0
        self.dropped = 0

    def __len__(self) -> int:
        """Return how many wait, those that rest after a failure included."""
        return len(self._planned)

    def plan(self, key: Key, chore: Chore) -> None:
        """Let a chore run soon, in place of what waits under its key.

        A key that rests after a failure goes on resting; one that runs now runs once more.
        """
        if key not in self._planned and len(self._planned) >= self._most_keys:
            self.dropped += 1
            logger.error("too many chores wait; one is dropped", extra={"chore": str(key)})
            return
        known = key in self._planned
        self._planned[key] = chore
        if not known and key not in self._running:
            self._ready.put_nowait(key)

    def clear(self) -> None:
        """Forget everything: a new reign plans anew what is still to be done."""
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()
        self._planned.clear()
        self._backoffs.clear()
        while not self._ready.empty():
            self._ready.get_nowait()

    async def run(self) -> None:
        """Do what is planned, until cancelled; what then waits is forgotten."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._workers):
                    tasks.create_task(self._work())
        finally:
            self.clear()
            self._running.clear()

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            chore = self._planned.pop(key)
            self._running.add(key)
            try:
                await chore()
            except NotLeaderError:
                # The next leader finds by itself what is to be done.
                self._backoffs.pop(key, None)
            except KubeError as error:
                self._rest(key, chore, str(error), getattr(error, "retry_after_seconds", 0.0))
            except Exception as error:
                # A fault of ours about one thing must not keep everything else undone.
                logger.exception("a chore met a fault; report it", extra={"chore": str(key)})
                self._rest(key, chore, type(error).__name__)
            else:
                self._backoffs.pop(key, None)
            finally:
                self._running.discard(key)
            if key in self._planned and key not in self._resting:
                self._ready.put_nowait(key)

    def _rest(self, key: Key, chore: Chore, reason: str, at_least_seconds: float = 0.0) -> None:
        """Plan a chore that failed again, after a pause that grows with every failure."""
        self.failures += 1
        backoff = self._backoffs.setdefault(
            key, Backoff(self._first_pause_seconds, _LONGEST_PAUSE_SECONDS)
        )
        seconds = backoff.pause(at_least_seconds)
        logger.warning(
            "a chore failed; it is tried again",
            extra={"chore": str(key), "reason": reason, "pause_seconds": round(seconds, 1)},
        )
        self._planned.setdefault(key, chore)
        self._resting[key] = asyncio.get_running_loop().call_later(seconds, self._wake, key)

    def _wake(self, key: Key) -> None:
        del self._resting[key]
        self._ready.put_nowait(key)
