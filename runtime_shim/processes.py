# SPDX-License-Identifier: Apache-2.0
"""What the kernel and the low-level runtime say about a container's processes.

A process is held by a pidfd, never by its number alone. Blocking calls; any thread.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

# Where runc and crun keep their state when no --root is given and they run as root. crun, and runc
# in a user namespace, prefer XDG_RUNTIME_DIR. Source: runc(8), crun(1).
_DEFAULT_ROOT_NAMES = ("runc", "crun")
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
# One of the hierarchies in which a container has its own cgroup; version 2 first.
_CONTROLLERS = ("", "pids", "devices", "memory", "name=systemd", "freezer", "cpu")


@dataclass(frozen=True, kw_only=True)
class InitFacts:
    """What a runtime's state file says about a container's first process."""

    pid: int
    start_time: int | None
    """Field 22 of /proc/PID/stat in clock ticks; None when the source does not say."""
    cgroup: Path | None
    """The container's own cgroup; None when it shares another's."""


@dataclass(frozen=True, kw_only=True)
class Init:
    """A container's first process, held: it is this one or dead, never another."""

    pid: int
    pidfd: int
    cgroup: Path | None
    pid_namespace: int
    """Inode of its PID namespace."""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.pidfd)


class Record(Enum):
    """What the low-level runtime's own files say about a container."""

    PRESENT = auto()
    ABSENT = auto()
    """Its root is there and has no state of this container."""
    UNKNOWN = auto()
    """Nobody can tell: the root is not there, unreadable, or of a runtime that is not known."""


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime_ns() -> int:
    """Return the time since boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def pid_of(pidfd: int) -> int:
    """Return the PID behind a pidfd; -1 once it has ended. Source: pidfd_open(2)."""
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        return next(int(line[4:]) for line in lines if line.startswith("Pid:"))


def alive(pidfds: list[int]) -> set[int]:
    """Return those of `pidfds` whose process has not ended."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return set(pidfds) - {pidfd for pidfd, _ in poll.poll(0)}


def find_init(
    root: str, container_id: str, pid_file: str, not_before_ns: int, runtime_dir: str = ""
) -> Init | None:
    """Return the live first process of a container, or None when none can be found.

    The runtime's state file names it; the engine's --pid-file is asked when there is no state file
    that can be read, and says nothing about a start time or a cgroup. A process that started before
    `not_before_ns` (CLOCK_BOOTTIME) is another one, which a stale file names.
    """
    facts = _runtime_facts(root, container_id, runtime_dir) or _pid_file_facts(pid_file)
    if facts is None:
        return None
    started = start_time(facts.pid)
    if started is None or (started + 1) * _TICK_NS < not_before_ns:
        return None
    return hold_init(facts)


def runtime_record(root: str, container_id: str, runtime_dir: str = "") -> Record:
    """Tell whether the low-level runtime has a container of this id."""
    if _runtime_facts(root, container_id, runtime_dir) is not None:
        return Record.PRESENT
    looked = False
    for folder in _roots(root, runtime_dir):
        try:
            if not folder.is_dir():
                continue
            os.listdir(folder)
            if any((folder / container_id / name).exists() for name, _ in _STATE_FILES):
                return Record.UNKNOWN
        except OSError:
            return Record.UNKNOWN
        looked = True
    return Record.ABSENT if looked else Record.UNKNOWN


def holders(folder: Path) -> dict[str, int]:
    """Return who has `folder`/NAME/limits mounted: the oldest live process, by NAME.

    However the runtime was called and wherever it keeps its state, its container has this mount.
    """
    wanted = re.compile(rb"/" + re.escape(os.fsencode(folder.name)) + rb"/([\w-]{1,64})/limits ")
    ours = {_mount_namespace("self"), _mount_namespace("1")}
    names: dict[str, set[str]] = {}
    found: dict[str, tuple[int, int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        namespace = _mount_namespace(pid)
        if not namespace or namespace in ours:
            continue
        if namespace not in names:
            try:
                table = Path(f"/proc/{pid}/mountinfo").read_bytes()
            except OSError:
                continue
            names[namespace] = {name.decode() for name in wanted.findall(table)}
        started = start_time(int(pid)) if names[namespace] else None
        if started is not None:
            for name in names[namespace]:
                found[name] = min(found.get(name, (started, int(pid))), (started, int(pid)))
    return {name: pid for name, (_, pid) in found.items()}


def hold_init(facts: InitFacts) -> Init | None:
    """Return the process that `facts` describe, or None when it has ended."""
    try:
        pidfd = os.pidfd_open(facts.pid)
    except (ProcessLookupError, ValueError, OverflowError, OSError):
        return None
    started = start_time(facts.pid)
    if started is None or facts.start_time not in (None, started) or not alive([pidfd]):
        os.close(pidfd)
        return None
    return Init(
        pid=facts.pid,
        pidfd=pidfd,
        cgroup=facts.cgroup,
        pid_namespace=pid_namespace(facts.pid),
    )


def start_time(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses and may hold anything. Source: proc(5).
    return int(text.rpartition(")")[2].split()[19])


def pid_namespace(pid: int) -> int:
    """Return the inode of a process's PID namespace; 0 when it is gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def cgroup_populated(cgroup: Path) -> bool:
    """Tell whether a process is in `cgroup` or below it; a cgroup that is gone has none."""
    return any(True for _ in cgroup_pids(cgroup))


def cgroup_pids(cgroup: Path) -> Iterator[int]:
    """Yield the host PIDs in `cgroup` and below it."""
    for folder, _, _ in os.walk(cgroup):
        try:
            yield from map(int, Path(folder, "cgroup.procs").read_text().split())
        except OSError:  # removed in the meantime, or a threaded one
            continue


def _mount_namespace(pid: str) -> str:
    """Return the name of a process's mount namespace; empty when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _roots(root: str, runtime_dir: str) -> list[Path]:
    if root:
        return [Path(root)]
    folders = [runtime_dir, "/run"] if runtime_dir else ["/run"]
    return [Path(folder, name) for folder in folders for name in _DEFAULT_ROOT_NAMES]


def _runtime_facts(root: str, container_id: str, runtime_dir: str) -> InitFacts | None:
    for folder in _roots(root, runtime_dir):
        for name, parse in _STATE_FILES:
            try:
                table = json.loads((folder / container_id / name).read_bytes())
                facts = parse(table)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue
            if facts.pid > 0:
                return facts
    return None


def _runc_facts(table: dict[str, Any]) -> InitFacts:
    paths = table.get("cgroup_paths") or {}
    found = [Path(paths[name]) for name in _CONTROLLERS if paths.get(name)]
    return InitFacts(
        pid=int(table["init_process_pid"]),
        start_time=int(table["init_process_start"]),
        cgroup=next((path for path in found if path.is_dir()), None),
    )


def _crun_facts(table: dict[str, Any]) -> InitFacts:
    relative = str(table.get("cgroup-path") or "").strip("/")
    started = table.get("process-start-time")
    cgroup = None
    if relative:
        places = (_CGROUP_ROOT, _CGROUP_ROOT / "unified", _CGROUP_ROOT / "pids")
        cgroup = next((p / relative for p in places if (p / relative).is_dir()), None)
    return InitFacts(
        pid=int(table["pid"]), start_time=int(started) if started else None, cgroup=cgroup
    )


_STATE_FILES = (("state.json", _runc_facts), ("status", _crun_facts))


def _pid_file_facts(pid_file: str) -> InitFacts | None:
    if not pid_file:
        return None
    try:
        pid = int(Path(pid_file).read_text())
    except (OSError, ValueError):
        return None
    return InitFacts(pid=pid, start_time=None, cgroup=None) if pid > 0 else None
