# SPDX-License-Identifier: Apache-2.0
"""Reads the two facts of a shared library that binding it needs: its machine and its soname.

Source: System V ABI, "ELF Header", "Program Header", "Dynamic Section".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_STRTAB = 5
_DT_SONAME = 14

# e_machine of 64-bit hosts, by the name that uname gives them.
MACHINES = {"x86_64": 62, "aarch64": 183}


@dataclass(frozen=True, kw_only=True)
class SharedLibrary:
    """What the headers of a 64-bit little-endian library say."""

    machine: int
    """One of `MACHINES`' values, or another's."""
    soname: str
    """Empty when it has none."""


def read_shared_library(path: Path) -> SharedLibrary | None:
    """Return the headers of a library; None for 32-bit ones and for what is no library."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":  # 64-bit, little-endian
                return None
            (machine,) = struct.unpack_from("<H", header, 18)
            (table,) = struct.unpack_from("<Q", header, 32)
            entry_size, entries = struct.unpack_from("<HH", header, 54)
            file.seek(table)
            segments = _segments(file.read(entry_size * entries), entry_size)
            offset, size = next((s[1], s[3]) for s in segments if s[0] == _PT_DYNAMIC)
            file.seek(offset)
            dynamic = dict(struct.iter_unpack("<qQ", file.read(size - size % 16)))
            if _DT_SONAME not in dynamic:
                return SharedLibrary(machine=machine, soname="")
            file.seek(_file_offset(segments, dynamic[_DT_STRTAB]) + dynamic[_DT_SONAME])
            soname = file.read(256).partition(b"\0")[0].decode("ascii")
    except (OSError, struct.error, StopIteration, KeyError, ValueError):
        return None
    return SharedLibrary(machine=machine, soname=soname)


def _segments(table: bytes, entry_size: int) -> list[tuple[int, int, int, int]]:
    """Return (type, file offset, address, file size) of each program header."""
    segments = []
    for start in range(0, len(table), entry_size):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", table, start)
        segments.append((kind, offset, address, size))
    return segments


def _file_offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    return next(
        offset + address - start
        for kind, offset, start, size in segments
        if kind == _PT_LOAD and start <= address < start + size
    )
