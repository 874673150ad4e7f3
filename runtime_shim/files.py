# SPDX-License-Identifier: Apache-2.0
"""Files, written whole, and what their file system allows."""

from __future__ import annotations

import os
from pathlib import Path


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`; a full disk takes a part of it without an error."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


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
