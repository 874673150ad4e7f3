# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the node for its words, with a deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What a program said."""

    status: int
    """Its exit status; -1 when it could not be run or took too long."""
    output: str
    error: str

    @property
    def last_line(self) -> str:
        """The line in which programs say what went wrong."""
        lines = (self.error or self.output).strip().splitlines()
        return lines[-1] if lines else f"exit status {self.status}"


def ask(program: str | Path, *words: str, seconds: float = _SECONDS) -> Spoken:
    """Run a program and return what it said."""
    command: Sequence[str] = [str(program), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Spoken(status=-1, output="", error=f"it did not end within {seconds:g} s")
    except OSError as error:
        return Spoken(status=-1, output="", error=f"it cannot be run: {error.strerror}")
    return Spoken(status=done.returncode, output=done.stdout, error=done.stderr)
