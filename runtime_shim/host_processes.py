# SPDX-License-Identifier: Apache-2.0
"""Processes on a card as the host sees them: name, processor time, memory, for `vgpuctl top`.

This is for people, never for a decision: a process chooses its own name, and its PID may be another
process's by the time of the look.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import psutil

_NAME_LETTERS = 32
# Start times have hundredths of a second, and psutil reckons them from a boot time in whole ones.
_START_SLACK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class HostProcess:
    """One process at one moment."""

    name: str
    """The process chose it; printable and short."""
    cpu_percent: float | None
    """Since the last look, 100 for one whole processor; None at the first."""
    host_memory_bytes: int
    """Resident; pages that processes share count for each of them."""


class HostProcesses:
    """Looks at processes again and again, and remembers their processor times in between."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def look(self, pids: Collection[int], seen_unix_seconds: float) -> dict[int, HostProcess]:
        """Return those of `pids` that still run; a process that started after they were seen on a
        card is another one.
        """
        known, self._known = self._known, {}
        found = {}
        for pid in pids:
            try:
                process = known.get(pid)
                if process is None or not process.is_running():
                    process, first = psutil.Process(pid), True
                else:
                    first = False
                with process.oneshot():
                    if process.create_time() > seen_unix_seconds + _START_SLACK_SECONDS:
                        continue
                    cpu_percent = process.cpu_percent()
                    found[pid] = HostProcess(
                        name=_printable(process.name()),
                        cpu_percent=None if first else cpu_percent,
                        host_memory_bytes=process.memory_info().rss,
                    )
                self._known[pid] = process
            except psutil.Error:  # it has ended, or may not be looked at
                continue
        return found


def _printable(name: str) -> str:
    """Return a name that moves no cursor and fits in a column."""
    return "".join(each if each.isprintable() else "?" for each in name)[:_NAME_LETTERS]
