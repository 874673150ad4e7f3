# SPDX-License-Identifier: Apache-2.0
"""Processes that stand for containers, and the state files that runtimes write about them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType

from runtime_shim.processes import start_time


class Process:
    """A real process that sleeps until it is ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"])
        self.pid = self._process.pid

    def end(self) -> None:
        """Kill and reap it."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


def write_runc_state(
    root: Path,
    container_id: str,
    pid: int,
    *,
    started: int | None = None,
    cgroup: Path | None = None,
) -> Path:
    """Write what runc 1.1 writes, as far as it matters."""
    folder = root / container_id
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "id": container_id,
        "init_process_pid": pid,
        "init_process_start": start_time(pid) if started is None else started,
        "cgroup_paths": {"pids": str(cgroup)} if cgroup else {},
    }
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def write_crun_state(root: Path, container_id: str, pid: int) -> Path:
    """Write what crun 1.8 writes, as far as it matters."""
    folder = root / container_id
    folder.mkdir(parents=True, exist_ok=True)
    state = {"pid": pid, "process-start-time": start_time(pid), "cgroup-path": ""}
    (folder / "status").write_text(json.dumps(state))
    return folder
