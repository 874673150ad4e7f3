# SPDX-License-Identifier: Apache-2.0
"""Makes sure that the library which holds a container to its slice is one that it can load."""

from __future__ import annotations

import os
import platform
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runtime_shim.elf import MACHINES
from runtime_shim.errors import RefusedError

# Source: System V ABI, "ELF Header": e_ident, e_type, e_machine, e_version, e_entry, e_phoff,
# e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_ET_DYN = 3

_REMEDY = "install the vgpu library again"


def check_library(path: Path) -> Path:
    """Return the real, versioned path of the library at `path`. Raises RefusedError.

    glibc ignores a preload that it cannot load, with a line on stderr: the container would start
    without a limit. So the file is looked at before every create.
    """
    try:
        status = os.stat(path)
        found = _look(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    except OSError as error:
        raise RefusedError(f"the vgpu library {path} cannot be read", _REMEDY) from error
    if found.problem:
        raise RefusedError(f"the vgpu library {found.path} {found.problem}", _REMEDY)
    return found.path


@dataclass(frozen=True, kw_only=True)
class _Found:
    path: Path
    problem: str


@lru_cache(maxsize=16)
def _look(path: Path, *_unless_these_change: int) -> _Found:
    real = Path(os.path.realpath(path))
    with open(real, "rb") as file:
        return _Found(path=real, problem=_problem(os.fstat(file.fileno()), file.read(_HEADER.size)))


def _problem(status: os.stat_result, header: bytes) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size == 0:
        return "is empty"
    if len(header) < _HEADER.size or not header.startswith(_ELF64_LITTLE_ENDIAN):
        return "is not a 64-bit ELF file"
    fields = _HEADER.unpack(header)
    if fields[1] != _ET_DYN or fields[2] != MACHINES.get(platform.machine()):
        return f"is not a shared library for {platform.machine()}"
    # Linkers put the section headers last: what is cut off ends before them.
    section_offset, section_bytes, section_count = fields[6], fields[11], fields[12]
    if status.st_size < section_offset + section_bytes * section_count:
        return "is cut off"
    if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP) or status.st_uid not in (0, os.geteuid()):
        return "can be changed by others than root"
    if not status.st_mode & stat.S_IROTH:
        return "cannot be read by every user"
    return ""
