# SPDX-License-Identifier: Apache-2.0
"""What a shared library exports, and which versions of other libraries' symbols it needs.

Source: System V ABI, "Section Header", "Symbol Table"; LSB, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_SHT_DYNSYM = 11
_SHT_GNU_VERNEED = 0x6FFFFFFE
_GLOBAL_OR_WEAK = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Symbols:
    """The outside of a library."""

    exported: frozenset[str]
    needed_versions: frozenset[str]
    """Such as GLIBC_2.17."""


def read_symbols(path: Path) -> Symbols:
    """Return the symbols of a 64-bit little-endian library. ValueError for anything else."""
    return parse_symbols(path.read_bytes())


def parse_symbols(content: bytes) -> Symbols:
    """Return the symbols of a library with this content. ValueError for anything else."""
    if not content.startswith(b"\x7fELF\x02\x01"):
        raise ValueError("it is not a 64-bit ELF file")
    try:
        sections = list(_sections(content))
        exported: set[str] = set()
        versions: set[str] = set()
        for kind, offset, size, link in sections:
            names = sections[link][1] if link < len(sections) else 0
            if kind == _SHT_DYNSYM:
                exported.update(_exported(content, offset, size, names))
            elif kind == _SHT_GNU_VERNEED:
                versions.update(_needed(content, offset, names))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    return Symbols(exported=frozenset(exported), needed_versions=frozenset(versions))


def _sections(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, offset, size, link) of each section."""
    (table,) = struct.unpack_from("<Q", content, 40)
    entry, count = struct.unpack_from("<HH", content, 58)
    for index in range(count):
        fields = _SECTION.unpack_from(content, table + index * entry)
        yield fields[1], fields[4], fields[5], fields[6]


def _exported(content: bytes, offset: int, size: int, names: int) -> Iterator[str]:
    for at in range(offset, offset + size - _SYMBOL.size + 1, _SYMBOL.size):
        name, info, _, section, _, _ = _SYMBOL.unpack_from(content, at)
        if section and info >> 4 in _GLOBAL_OR_WEAK:
            yield _name(content, names + name)


def _needed(content: bytes, at: int, names: int) -> Iterator[str]:
    while True:
        _, count, _, first, following = _NEED.unpack_from(content, at)
        version = at + first
        for _ in range(count):
            _, _, _, name, next_version = _NEED_VERSION.unpack_from(content, version)
            yield _name(content, names + name)
            version += next_version
        if not following:
            return
        at += following


def _name(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode("ascii")
