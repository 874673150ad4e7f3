# SPDX-License-Identifier: Apache-2.0
"""Keeps the garbage collector's pauses short, however much the process remembers.

A full collection looks at everything that survived the earlier ones. What a cluster's state is made
of refers to nothing in circles and goes by its reference counts; to look through it again and again
only stops the process. So whatever a full collection that took too long has found alive is put out
of its sight, and the next begins with nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_OLDEST: Final = 2
_LONG_SECONDS: Final = 0.010


@contextmanager
def short_pauses(long_seconds: float = _LONG_SECONDS) -> Iterator[None]:
    """Freeze, inside the block, the survivors of every full collection longer than that."""
    started = 0.0

    def seen(phase: str, info: Mapping[str, Any]) -> None:
        nonlocal started
        if info["generation"] != _OLDEST:
            return
        # Processor time: on a busy machine the clock counts what else ran.
        if phase == "start":
            started = time.thread_time()
        elif time.thread_time() - started > long_seconds:
            gc.freeze()

    gc.callbacks.append(seen)
    try:
        yield
    finally:
        gc.callbacks.remove(seen)
