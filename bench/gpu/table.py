# SPDX-License-Identifier: Apache-2.0
"""Tables, statistics, and lines that hold or do not."""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = list[Any]
RESAMPLES = 10_000


@dataclass
class Table:
    """Rows under named columns; what was promised of them, and whether it holds."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: list[tuple[str, str, str, bool]] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def check(self, what: str, target: str, measured: str, *, holds: bool) -> None:
        """Compare a figure with its target."""
        self.checks.append((what, target, measured, holds))

    def as_json(self) -> dict[str, Any]:
        """Return everything."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": self.rows,
            "notes": self.notes,
            "checks": [
                dict(zip(("what", "target", "measured", "holds"), check, strict=True))
                for check in self.checks
            ],
            "raw": self.raw,
        }

    def markdown(self) -> str:
        """Return the table, its notes and its checks."""
        lines = [f"### {self.title}", "", _line(self.columns), _line("---" for _ in self.columns)]
        lines += [_line(map(_word, row)) for row in self.rows]
        lines += [part for note in self.notes for part in ("", note)]
        if self.checks:
            lines += ["", _line(("target", "wanted", "measured", "holds")), _line(["---"] * 4)]
            lines += [
                _line((what, target, measured, "yes" if holds else "**no**"))
                for what, target, measured, holds in self.checks
            ]
        return "\n".join(lines) + "\n"


def _line(words: Any) -> str:  # noqa: ANN401  any iterable of strings
    return "| " + " | ".join(words) + " |"


def _word(value: Any) -> str:  # noqa: ANN401  a cell
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def command(module: str) -> str:
    """Return how this program was called; of paths only the names."""
    words = (Path(word).name if "/" in word else word for word in sys.argv[1:])
    return " ".join(["python3 -m", module, *words])


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile: the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]


def interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = statistics.median
) -> tuple[float, float]:
    """Return the 95 % interval of a statistic, by bootstrap with a fixed seed."""
    dice = random.Random(0)
    drawn = sorted(statistic(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def ratio_of_processes(
    base: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """Return what the processes of one kind take in parts of another's, and its 95 % interval.

    Each row is one process, each column one round of all processes. What differs from process to
    process (where its memory lies) is larger than what differs from round to round, so a drawn
    sample is of processes first, then of rounds. It has one process less than there are: samples
    of few would else differ too little.
    """
    dice = random.Random(0)
    rounds = range(len(base[0]))

    def figure(rows: Sequence[Sequence[float]], drawn: Sequence[int]) -> float:
        return statistics.fmean(statistics.median(row[i] for i in drawn) for row in rows)

    def draw() -> float:
        drawn = dice.choices(rounds, k=len(rounds))
        one, two = (dice.choices(rows, k=max(1, len(rows) - 1)) for rows in (base, other))
        return figure(one, drawn) / figure(two, drawn)

    found = sorted(draw() for _ in range(RESAMPLES))
    whole = figure(base, rounds) / figure(other, rounds)
    return whole, found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]


def mib(bytes_: float) -> int:
    """Return whole MiB."""
    return round(bytes_ / (1 << 20))
