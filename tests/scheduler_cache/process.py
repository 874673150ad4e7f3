# SPDX-License-Identifier: Apache-2.0
"""The scheduler cache as a process of its own, as a host runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CacheProcess:
    """`vgpu-scheduler-cache serve --embedded` under `folder`; started and stopped at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix:{folder}/cache.sock"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        command = [sys.executable, "-m", "scheduler_cache.cli", "serve", "--embedded"]
        command += ["--state", str(self.folder / "state"), "--listen", self.address, *more]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(10)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(10)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def cache_process(folder: Path) -> Iterator[CacheProcess]:
    """Yield a process that is not started yet, and kill what is left of it."""
    process = CacheProcess(folder)
    try:
        yield process
    finally:
        if process.running:
            process.kill()
