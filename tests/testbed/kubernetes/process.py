# SPDX-License-Identifier: Apache-2.0
"""A program that a test starts, kills and starts again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed import REPOSITORY

_STOP_SECONDS = 20.0


class Process:
    """One program with its arguments; what it says goes to a file."""

    def __init__(
        self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        """`env`: on top of this process's own."""
        self.name = name
        self.log = log
        self._argv = [str(word) for word in argv]
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running program."""
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it; nothing happens while it runs."""
        if self.runs():
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                cwd=REPOSITORY,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def runs(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raise RuntimeError with its last words when it has ended by itself."""
        if self._process is not None and not self.runs():
            raise RuntimeError(
                f"{self.name} ended with {self._process.returncode}: {self.last_words()}"
            )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it with SIGTERM, or with SIGKILL when it takes too long."""
        self._end(signal.SIGTERM)

    def last_words(self, characters: int = 4000) -> str:
        """Return the end of what it said."""
        if not self.log.exists():
            return ""
        return self.log.read_text(errors="replace")[-characters:]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_SECONDS)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
