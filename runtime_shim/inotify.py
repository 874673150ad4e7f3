# SPDX-License-Identifier: Apache-2.0
"""Tells when a file comes into a folder or leaves it, as inotify(7) says.

It is a hint that saves waiting: whoever uses it looks by itself from time to time, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Source: Linux, include/uapi/linux/inotify.h.
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_ONLYDIR = 0x01000000
_EVENTS = _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def watching(folder: Path, changed: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Call `changed` on the event loop whenever a name in `folder` comes or goes, meanwhile.

    Yields what is to be called from time to time: it finds the folder that was not there before, or
    that was made anew.
    """
    loop = asyncio.get_running_loop()
    fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:  # this user's instances are used up; looking from time to time is enough
        yield lambda: None
        return

    def renew() -> None:
        _libc.inotify_add_watch(fd, os.fsencode(folder), ctypes.c_uint32(_EVENTS))

    try:
        renew()
        loop.add_reader(fd, _drain, fd, changed)
        yield renew
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _drain(fd: int, changed: Callable[[], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 65536):
            pass
    changed()
