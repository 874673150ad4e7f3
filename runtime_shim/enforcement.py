# SPDX-License-Identifier: Apache-2.0
"""Finds memory that no slice covers, says so, and by policy ends the processes that hold it.

What is over the limit, unhooked or foreign follows from NVML, cgroups, PID namespaces and
allocations alone; nothing in a usage file decides it. `Streaks` and the functions beside it are
pure; `Enforcer` looks and acts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from runtime_shim.config import Policy
from runtime_shim.counters import Counters
from runtime_shim.library import copies_folders
from runtime_shim.processes import (
    Init,
    alive,
    boot_id,
    boottime_ns,
    cgroup_pids,
    pid_namespace,
    start_time,
)
from runtime_shim.procfs import (
    CLOCK_TICK_NS,
    MappedFile,
    command_name,
    mapped_file,
    maps_any,
    may_administer,
    namespace_started,
    parent_pid,
)
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

K = TypeVar("K")

_MIB = 1 << 20
# What NVML and the account may differ in. Source: docs/contract.md §6; docs/memory.md.
_SLACK_BYTES = 64 * _MIB
_SLACK_PER_PROCESS_BYTES = 8 * _MIB
_EVENT_SECONDS = 60.0
# A process that has just begun is not yet in the account, nor a container's init found.
_FOREIGN_SECONDS = 5.0
# A process between exec and its loader's work maps nothing yet.
_UNHOOKED_SECONDS = 1.5
# exec keeps PID and start time, so a process with our library is looked at again.
_RECHECK_SECONDS = 15.0
# Nobody knows what was in a longer pause between two looks: no more than this of it counts.
_GAP_SECONDS = 5.0
_MPS_NAMES = "nvidia-cuda-mps"

ProcessKey = tuple[int, int]
"""PID and start time: one process of this boot."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What NVML sees of one container on one card."""

    allocation_id: str
    card_uuid: str
    limit_bytes: int
    held_bytes: int
    pids: tuple[int, ...] = ()
    """In the host's PID namespace."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One look at the cards that have slices."""

    holdings: Sequence[Holding] = ()
    inits: Mapping[str, Init] = field(default_factory=dict)
    """The first process of each running container, as far as it is known, by allocation."""
    strangers: Mapping[int, str] = field(default_factory=dict)
    """Processes that belong to no allocation, each with a card that it computes on."""
    complete: bool = True
    """Every running container's first process is known: a stranger is really one."""


def tolerated_bytes(limit_bytes: int, processes: int) -> int:
    """Return how much NVML may see of a container before it counts as above its limit."""
    slack_bytes = max(_SLACK_BYTES, limit_bytes // 100) + _SLACK_PER_PROCESS_BYTES * processes
    return limit_bytes + slack_bytes


def is_over(holding: Holding) -> bool:
    """Tell whether a container holds more than its limit and the slack."""
    return holding.held_bytes > tolerated_bytes(holding.limit_bytes, len(holding.pids))


class Streaks(Generic[K]):
    """What has been so for some time without a break. The time is an argument, any clock's."""

    def __init__(self, seconds: float, repeat_seconds: float = math.inf) -> None:
        """`repeat_seconds`: how long what was told once is no news."""
        self._seconds = seconds
        self._repeat_seconds = repeat_seconds
        self._since: dict[K, float] = {}
        self._told: dict[K, float] = {}
        self._looked = -math.inf

    def look(self, so: Collection[K], now: float) -> tuple[list[K], list[K]]:
        """Take what is so now; return what has been so for long enough, and what of it is news."""
        # It was so before the pause and is so after it. A pause that ended the streak would free
        # whoever can make the agent slow; one that counted as a whole would charge for what nobody
        # has seen.
        unseen = max(0.0, now - self._looked - _GAP_SECONDS) if self._since else 0.0
        self._looked = now
        self._since = {key: self._since[key] + unseen if key in self._since else now for key in so}
        due = [key for key, since in self._since.items() if now - since >= self._seconds]
        # A key that comes and goes is told no more often than one that stays.
        self._told = {
            key: told
            for key, told in self._told.items()
            if key in self._since or now - told < min(self._repeat_seconds, _EVENT_SECONDS)
        }
        news = [key for key in due if now - self._told.get(key, -math.inf) >= self._repeat_seconds]
        self._told.update(dict.fromkeys(news, now))
        return due, news


class Enforcer:
    """Acts on what the meter sees, once a look. Lives on the event loop."""

    def __init__(
        self,
        policy: Policy,
        library: Path,
        state_dir: Path,
        counters: Counters | None = None,
    ) -> None:
        self._policy = policy
        self._events = (counters or Counters()).events
        self._hooks = _Hooks(library, copies_folders(library, state_dir))
        self._first_run = state_dir / "first-run.json"
        self._has_snapshot = False
        self._over: Streaks[tuple[str, str]] = Streaks(policy.over_limit_seconds, _EVENT_SECONDS)
        self._unhooked: Streaks[tuple[str, ProcessKey]] = Streaks(_UNHOOKED_SECONDS)
        self._strangers: Streaks[ProcessKey] = Streaks(_FOREIGN_SECONDS)

    def take_snapshot(self) -> None:
        """Note that the cache has said which allocations there are."""
        self._has_snapshot = True

    async def look(self, sight: Sight) -> None:
        """Report and, by policy, end what no slice covers."""
        await in_thread(partial(self._look, sight, time.monotonic()))

    def _look(self, sight: Sight, now: float) -> None:
        self._look_at_sums(sight, now)
        self._look_at_hooks(sight, now)
        self._look_at_strangers(sight, now)

    def _look_at_sums(self, sight: Sight, now: float) -> None:
        above = {
            (each.allocation_id, each.card_uuid): each for each in filter(is_over, sight.holdings)
        }
        due, news = self._over.look(above, now)
        for key in news:
            holding = above[key]
            self._events["over_limit"] += 1
            logger.warning(
                "container above its limit",
                extra={
                    "allocation_id": holding.allocation_id,
                    "card_uuid": holding.card_uuid,
                    "limit_bytes": holding.limit_bytes,
                    "held_bytes": holding.held_bytes,
                },
            )
        if self._policy.over_limit == "kill":
            for key in due:
                self._end_all(above[key], sight.inits)

    def _end_all(self, holding: Holding, inits: Mapping[str, Init]) -> None:
        init = inits.get(holding.allocation_id)
        if init is None:
            return
        for pid in holding.pids:
            if end_process(pid, partial(in_container, init)):
                self._events["ended"] += 1
                logger.warning(
                    "process of a container above its limit ended",
                    extra={"allocation_id": holding.allocation_id, "host_pid": pid},
                )

    def _look_at_hooks(self, sight: Sight, now: float) -> None:
        owners = {pid: each.allocation_id for each in sight.holdings for pid in each.pids}
        keys = [(owner, key) for pid, owner in owners.items() if (key := _process_key(pid))]
        due, news = self._unhooked.look(self._hooks.without(keys, now), now)
        for allocation_id, (pid, _) in news:
            self._events["unhooked"] += 1
            logger.warning(
                "unhooked",
                extra={
                    "allocation_id": allocation_id,
                    "host_pid": pid,
                    "command": command_name(pid),
                    "reason": "it computes without the vgpu library",
                },
            )
        if self._policy.unhooked != "kill":
            return
        for allocation_id, key in due:
            init = sight.inits.get(allocation_id)
            if init is not None and end_process(key[0], partial(_is_still, key, init)):
                self._events["ended"] += 1
                logger.warning(
                    "unhooked process ended",
                    extra={"allocation_id": allocation_id, "host_pid": key[0]},
                )

    def _look_at_strangers(self, sight: Sight, now: float) -> None:
        cards = {key: card for pid, card in sight.strangers.items() if (key := _process_key(pid))}
        due, news = self._strangers.look(cards, now)
        for key in news:
            kind = kind_of(key[0])
            if kind != "own":
                self._events["foreign"] += 1
                logger.warning(
                    "process without an allocation on a shared card",
                    extra={
                        "host_pid": key[0],
                        "card_uuid": cards[key],
                        "command": command_name(key[0]),
                        "kind": kind,
                    },
                )
        if self._policy.foreign == "kill" and self._has_snapshot and sight.complete:
            for key in due:
                if end_process(key[0], partial(self._may_end, key)):
                    self._events["ended"] += 1
                    logger.warning(
                        "process without an allocation ended",
                        extra={"host_pid": key[0], "card_uuid": cards[key]},
                    )

    def _may_end(self, key: ProcessKey, pid: int) -> bool:
        """Tell whether a stranger is a container's, of one that began under this node's rules."""
        return (
            start_time(pid) == key[1]
            and kind_of(pid) == "container"
            and not may_administer(pid)
            and self._began_later(namespace_started(pid_namespace(pid)))
        )

    def remember_first_run(self) -> None:
        """Note when an agent first ran on this node, unless that is known."""
        if self._read_first_run() is None:
            first = {"boot_id": boot_id(), "boottime_ns": boottime_ns()}
            self._first_run.write_text(json.dumps(first))

    def _read_first_run(self) -> tuple[str, int] | None:
        try:
            table = json.loads(self._first_run.read_bytes())
            return str(table["boot_id"]), int(table["boottime_ns"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _began_later(self, started: int | None) -> bool:
        first = self._read_first_run()
        if started is None or first is None:
            return False
        return first[0] != boot_id() or started * CLOCK_TICK_NS > first[1]


def kind_of(pid: int) -> str:
    """Return what a process is: `own` (of this agent), `mps`, `host` or `container`."""
    if parent_pid(pid) == os.getpid():
        return "own"
    if command_name(pid).startswith(_MPS_NAMES):
        return "mps"
    return "host" if pid_namespace(pid) in (0, pid_namespace(os.getpid())) else "container"


def in_container(init: Init, pid: int) -> bool:
    """Tell whether a process is in the container of `init`: by cgroup, else by PID namespace."""
    if init.cgroup is not None and pid in cgroup_pids(init.cgroup):
        return True
    own = pid_namespace(os.getpid())
    return init.pid_namespace not in (0, own) and pid_namespace(pid) == init.pid_namespace


def end_process(pid: int, is_wanted: Callable[[int], bool]) -> bool:
    """Kill a process if `is_wanted` still says so once it is held; tell whether it was killed."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Alive after the look, so that the look was at the process that is held.
        if not is_wanted(pid) or not alive([pidfd]):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _is_still(key: ProcessKey, init: Init, pid: int) -> bool:
    return start_time(pid) == key[1] and in_container(init, pid)


def _process_key(pid: int) -> ProcessKey | None:
    started = start_time(pid)
    return None if started is None else (pid, started)


class _Hooks:
    """Which processes have mapped a version of our library.

    A process can make whoever reads its maps wait. So they are read in a thread that nobody waits
    for, one a container: a tenant stops the looks at itself and at nobody else.
    """

    def __init__(self, library: Path, copies: Iterable[Path]) -> None:
        self._library = library
        self._copies = copies
        self._known: dict[tuple[int, int, int], MappedFile] = {}
        self._found: dict[tuple[str, ProcessKey], bool] = {}
        self._again: dict[tuple[str, ProcessKey], float] = {}
        self._threads: dict[str, threading.Thread] = {}

    def without(
        self, keys: Iterable[tuple[str, ProcessKey]], now: float
    ) -> list[tuple[str, ProcessKey]]:
        """Return those of `keys` that were found without the library; looks at others meanwhile."""
        wanted: dict[str, list[tuple[str, ProcessKey]]] = {}
        known = list(keys)
        self._found = {key: self._found[key] for key in known if key in self._found}
        self._again = {key: self._again[key] for key in known if key in self._again}
        self._threads = {name: each for name, each in self._threads.items() if each.is_alive()}
        for key in known:
            if self._again.get(key, now) <= now and key[0] not in self._threads:
                wanted.setdefault(key[0], []).append(key)
        if wanted:
            versions = self._versions()
            for allocation_id, mine in wanted.items() if versions else ():
                thread = threading.Thread(
                    target=self._read_maps, args=(mine, versions, now), daemon=True
                )
                self._threads[allocation_id] = thread
                thread.start()
        return [key for key in known if self._found.get(key) is False]

    def _read_maps(
        self, keys: Sequence[tuple[str, ProcessKey]], versions: frozenset[MappedFile], now: float
    ) -> None:
        for key in keys:
            has_library = maps_any(key[1][0], versions)
            if has_library is None:
                continue
            self._found[key] = has_library
            self._again[key] = now + (_RECHECK_SECONDS if has_library else 0)

    def _versions(self) -> frozenset[MappedFile]:
        """Return every version of the library that this agent has seen on the host.

        Containers have the agent's copies, or a version's own file where an earlier agent started
        them. Both stay while containers have them mapped.
        """
        for path in _version_paths(self._library, self._copies):
            try:
                status = path.stat()
                key = (status.st_dev, status.st_ino, status.st_ctime_ns)
                if key not in self._known:
                    self._known[key] = mapped_file(path)
            except (OSError, ValueError):
                continue
        return frozenset(self._known.values())


def _version_paths(library: Path, copies: Iterable[Path]) -> Iterator[Path]:
    yield library
    yield from library.parent.parent.glob(f"*/{library.name}")
    for folder in copies:
        yield from folder.glob(f"*/*/{library.name}")
