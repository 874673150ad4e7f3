# SPDX-License-Identifier: Apache-2.0
"""Samples of commands, and what is printed of them: medians, 99th percentiles, what was added."""

import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed import BUILD

SPAWN = BUILD / "bench" / "spawn"
PLAIN = "plain"
"""The variant that all others are compared to."""


@dataclass(frozen=True)
class Sample:
    """One run of one command."""

    wall_ms: float
    cpu_ms: float
    rss_kib: int


class CommandFailedError(Exception):
    """A measured command did not do its work, so its time means nothing."""


def measure(argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Sample:
    """Run a command once; its exit code must be 0."""
    # To a file: a container that `create` makes keeps stderr open, so a pipe would not end.
    with tempfile.TemporaryFile() as stderr:
        done = subprocess.run(
            [SPAWN, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=None if env is None else {**os.environ, **env},
            check=True,
        )
        wall_ns, cpu_ns, rss_kib, status = (int(word) for word in done.stdout.split())
        if status != 0:
            stderr.seek(0)
            words = " ".join(str(word) for word in argv)
            raise CommandFailedError(f"{words}: exit {status}: {stderr.read().decode().strip()}")
    return Sample(wall_ns / 1e6, cpu_ns / 1e6, rss_kib)


@dataclass
class Table:
    """Samples by command and variant."""

    title: str
    samples: dict[str, dict[str, list[Sample]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    notes: list[str] = field(default_factory=list)

    def add(self, command: str, variant: str, sample: Sample) -> None:
        """Keep one sample."""
        self.samples[command][variant].append(sample)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per command and variant."""
        rows = []
        for command, variants in self.samples.items():
            plain = variants.get(PLAIN) or self.samples["nothing"][PLAIN]
            base = summary(plain)
            for variant, samples in variants.items():
                row = summary(samples)
                if samples is not plain:
                    row["added_ms"] = row["median_ms"] - base["median_ms"]
                    row["added_p99_ms"] = row["p99_ms"] - base["p99_ms"]
                    row["added_cpu_ms"] = row["cpu_ms"] - base["cpu_ms"]
                rows.append({"command": command, "variant": variant, **row})
        return rows


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the numbers of one row."""
    walls = sorted(sample.wall_ms for sample in samples)
    return {
        "n": len(walls),
        "median_ms": statistics.median(walls),
        "p99_ms": walls[min(len(walls) - 1, round(0.99 * (len(walls) - 1)))],
        "cpu_ms": statistics.median(sample.cpu_ms for sample in samples),
        "rss_kib": max(sample.rss_kib for sample in samples),
    }


def print_table(title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """Print one table in Markdown."""
    print(f"\n### {title}\n")
    print("| command | variant | n | median ms | p99 ms | CPU ms | RSS KiB | added ms (p99) |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        added = ""
        if "added_ms" in row:
            added = f"{row['added_ms']:+.3f} ({row['added_p99_ms']:+.3f})"
        print(
            f"| {row['command']} | {row['variant']} | {row['n']} | {row['median_ms']:.3f} "
            f"| {row['p99_ms']:.3f} | {row['cpu_ms']:.3f} | {row['rss_kib']} | {added} |"
        )
    for note in notes:
        print(f"\n{note}")
