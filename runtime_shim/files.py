# SPDX-License-Identifier: Apache-2.0
"""Files, written whole, opened without a wait, and what their file system allows."""

from __future__ import annotations

import os
from pathlib import Path


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`; a full disk takes a part of it without an error."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def open_at_once(path: Path, flags: int) -> int:
    """Open a file of ours that a container can open, too.

    A process that owns a file can take a lease on it (F_SETLEASE). A conflicting open then waits up
    to /proc/sys/fs/lease-break-time, 45 s. This one raises BlockingIOError at once; the kernel asks
    for the lease back all the same. Source: fcntl(2), "Leases".
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno, "a process in a container has a lease on the file", str(path)
        ) from error


def read_at_once(path: Path) -> bytes:
    """Return the content of a file of ours that a container can open, too; see `open_at_once`."""
    with open(open_at_once(path, os.O_RDONLY), "rb") as file:
        return file.read()


def is_noexec(path: Path) -> bool:
    """Tell whether programs and libraries at `path` cannot run: its file system is mounted noexec.

    `path` may not be there yet: then its closest folder that is there decides.
    """
    return _has_flag(path, os.ST_NOEXEC)


def is_read_only(path: Path) -> bool:
    """Tell whether nothing can be written at `path`, there or not: it is mounted read-only."""
    return _has_flag(path, os.ST_RDONLY)


def _has_flag(path: Path, flag: int) -> bool:
    there = next(each for each in (path, *path.absolute().parents) if os.path.exists(each))
    return bool(os.statvfs(there).f_flag & flag)
