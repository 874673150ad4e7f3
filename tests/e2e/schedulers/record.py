# SPDX-License-Identifier: Apache-2.0
"""The result of each case of a system, with the versions of everything that took part."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import runtime_shim
from tests.e2e.schedulers.system import System
from tests.testbed.kubernetes.programs import find_built


@dataclass(frozen=True)
class Result:
    """The result of one case."""

    outcome: str
    seconds: float
    reason: str = ""


@dataclass
class Record:
    """The cases of one system."""

    system: type[System]
    not_run: str
    """Why none was run; empty: they were."""
    results: dict[str, Result] = field(default_factory=dict)

    def summary(self) -> str:
        """Return one line."""
        if self.not_run:
            return f"{self.system.name}: NOT RUN ({self.not_run})"
        if not self.results:
            return f"{self.system.name}: NOT RUN (no case of it was selected)"
        counts = Counter(each.outcome for each in self.results.values())
        return f"{self.system.name}: {', '.join(f'{counts[key]} {key}' for key in sorted(counts))}"

    def text(self, programs: Path) -> str:
        """Return everything."""
        versions = {name: version_of(programs / name) for name in self.system.programs}
        kubernetes = find_built("kube-apiserver").name.rpartition("-")[2]
        lines = [
            self.summary(),
            "",
            f"written {datetime.now(UTC):%Y-%m-%d} by make test-schedulers",
            f"vgpu {runtime_shim.__version__}, Kubernetes {kubernetes}",
            *(f"{self.system.name}/{name}: {version}" for name, version in versions.items()),
            f"played: {self.system.played}",
            "",
            *_table((case, each) for case, each in self.results.items()),
        ]
        return "\n".join(lines) + "\n"


def _table(rows: Iterable[tuple[str, Result]]) -> list[str]:
    return [
        f"{each.outcome:<8}{each.seconds:7.1f} s  {case}" + (each.reason and f" ({each.reason})")
        for case, each in rows
    ]


def version_of(program: Path) -> str:
    """Return the version that Go wrote into a program."""
    done = subprocess.run(
        ["go", "version", "-m", program], capture_output=True, text=True, check=False
    )
    words = []
    for line in done.stdout.splitlines():
        kind, *rest = line.split() or [""]
        if kind == "mod":
            words += rest[:2]
        elif (
            kind == "build" and rest and rest[0].startswith(("vcs.revision=", "vcs.modified=true"))
        ):
            words.append(rest[0].partition("=")[2][:12].replace("true", "(changed)"))
    return " ".join(words) or "version unknown"
