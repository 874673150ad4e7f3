# SPDX-License-Identifier: Apache-2.0
"""Reads what binding a library or starting a program needs: machine, soname, dynamic loader.

Source: System V ABI, "ELF Header", "Program Header", "Dynamic Section".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_INTERP = 3
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
            machine, segments = _headers(file)
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


def read_interpreter(path: Path) -> str | None:
    """Return the dynamic loader that a 64-bit program names; None when it names none."""
    try:
        with path.open("rb") as file:
            _, segments = _headers(file)
            offset, size = next((s[1], s[3]) for s in segments if s[0] == _PT_INTERP)
            file.seek(offset)
            return file.read(size).partition(b"\0")[0].decode("ascii")
    except (OSError, struct.error, StopIteration, ValueError):
        return None


def _headers(file: BinaryIO) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Return machine and segments. ValueError for what is not 64-bit, little-endian ELF."""
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (machine,) = struct.unpack_from("<H", header, 18)
    (table,) = struct.unpack_from("<Q", header, 32)
    entry_size, entries = struct.unpack_from("<HH", header, 54)
    file.seek(table)
    return machine, _segments(file.read(entry_size * entries), entry_size)


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
