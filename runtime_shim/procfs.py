# SPDX-License-Identifier: Apache-2.0
"""What /proc says about any process of the host, a tenant's included. Blocking calls; any thread.

Names and memory are the process's own word; namespaces, capabilities and mapped files are not.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Collection
from pathlib import Path

from runtime_shim.abi import ffi
from runtime_shim.files import open_at_once
from runtime_shim.processes import pid_namespace, start_time

CLOCK_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
MappedFile = tuple[bytes, bytes]
"""Device and inode of a mapped file, as /proc/PID/maps writes them."""

_CAP_SYS_ADMIN = 21  # Source: linux/capability.h


def mapped_file(path: Path) -> MappedFile:
    """Return how maps name the file at `path`.

    On some file systems (btrfs, overlay) stat says another device than maps do, so it is mapped
    here and read there. OSError or ValueError when it cannot be mapped.
    """
    with (
        open(open_at_once(path, os.O_RDONLY), "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        address = ffi.cast("uintptr_t", ffi.from_buffer(mapping))
        begins = f"{int(address):x}-".encode()
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            if line.lstrip(b"0").startswith(begins):
                fields = line.split(None, 5)
                return fields[3], fields[4]
    raise ValueError(f"{path} is not in the maps")


def maps_any(pid: int, files: Collection[MappedFile]) -> bool | None:
    """Tell whether a process has code of one of `files` mapped; None when it does not say.

    May wait for as long as the process likes.
    """
    has_lines = False
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            for line in maps:
                has_lines = True
                fields = line.split(None, 5)
                if (fields[3], fields[4]) in files and b"x" in fields[1]:
                    return True
    except OSError:
        return None
    return False if has_lines else None


def command_name(pid: int) -> str:
    """Return the name that a process gives itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def parent_pid(pid: int) -> int:
    """Return the PID of a process's parent; 0 when it is gone."""
    return int(_status_field(pid, "PPid") or "0")


def may_administer(pid: int) -> bool:
    """Tell whether a process may ever have CAP_SYS_ADMIN, as those of privileged containers."""
    return bool(int(_status_field(pid, "CapBnd") or "0", 16) >> _CAP_SYS_ADMIN & 1)


def namespace_started(namespace: int) -> int | None:
    """Return the start time of a PID namespace's oldest process; None when it has none."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    times = (start_time(pid) for pid in pids if namespace and pid_namespace(pid) == namespace)
    return min((each for each in times if each is not None), default=None)


def _status_field(pid: int, name: str) -> str:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{name}:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else ""
