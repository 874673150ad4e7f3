# SPDX-License-Identifier: Apache-2.0
"""What keeps a card busy: programs that run when they are told to, and what a run of one was."""

import contextlib
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu.places import Place
from bench.gpu.targets import Nature
from tests.testbed import BUILD

BUSY = str(BUILD / "bench" / "busy")
GRAPH_KERNELS = 64
STEADY_BINS = 10
START_SECONDS = 90.0
END_SECONDS = 60.0
"""What a run may take beyond its time: the last kernel under a limit, the stamps, a trace."""


@dataclass(frozen=True)
class Workload:
    """A program and what it launches."""

    argv: tuple[str, ...]
    nature: Nature
    torch: bool = False


def _stamped(kind: str, kernel_us: int) -> Workload:
    kernel_ns = kernel_us * 1e3
    return Workload(
        (BUSY, kind, f"{kernel_ns:.0f}"),
        Nature(
            kernel_ns=kernel_ns,
            launch_ns=kernel_ns * (GRAPH_KERNELS if kind == "graph" else 1),
            waits=kind == "sync",
        ),
    )


def _torch(kind: str, kernel_us: int, *, waits: bool, steady: bool) -> Workload:
    kernel_ns = kernel_us * 1e3
    nature = Nature(
        kernel_ns=kernel_ns, launch_ns=kernel_ns, waits=waits, steady=steady, fixed_work=False
    )
    return Workload((sys.executable, "-m", "bench.gpu.torch_busy", kind), nature, torch=True)


WORKLOADS = {
    "20 us": _stamped("async", 20),
    "200 us": _stamped("async", 200),
    "5 ms": _stamped("async", 5_000),
    "150 ms, sync": _stamped("sync", 150_000),
    "20 us, sync": _stamped("sync", 20),
    "graph of 64 x 20 us": _stamped("graph", 20),
    "gemm": _torch("gemm", 200, waits=False, steady=True),
    # Their kernels are of all lengths up to these.
    "training": _torch("training", 2_000, waits=True, steady=False),
    "decode": _torch("decode", 200, waits=True, steady=False),
}


class Program:
    """A workload that runs when it is told to. Nothing here waits without an end."""

    def __init__(self, place: Place, workload: Workload) -> None:
        self.workload = workload
        self._seconds = 0.0
        self._process = place.start(workload.argv)

    def wait_until_ready(self) -> None:
        """Wait until it has started."""
        self._must(self._line(START_SECONDS) == "ready", "did not start")

    def begin(self, seconds: float, *, traced: bool = True) -> None:
        """Start a run; the kernels of PyTorch are seen in traced ones only."""
        assert self._process.stdin is not None
        self._seconds = seconds
        self._process.stdin.write(f"{seconds}{'' if traced else ' untraced'}\n")
        self._process.stdin.flush()

    def end(self) -> "Run":
        """Return what the run did."""
        line = self._line(self._seconds + END_SECONDS)
        self._must(line.startswith("{"), "broke off")
        return Run(json.loads(line), self.workload.nature)

    def run(self, seconds: float, *, traced: bool = True) -> "Run":
        """Run for so long."""
        self.begin(seconds, traced=traced)
        return self.end()

    def send(self, number: int) -> None:
        """Send a signal to it."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End the program."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate("", timeout=20)
        self._process.kill()
        self._process.wait()

    def _line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        watchdog = threading.Timer(seconds, self._process.kill)
        watchdog.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            watchdog.cancel()

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            words = " ".join(self.workload.argv)
            raise RuntimeError(f"{words} {what}: exit {self._process.wait(20)}")


class Run:
    """Shares of the card's time, in percent."""

    def __init__(self, found: dict[str, Any], nature: Nature) -> None:
        self.found = found
        launch_rate = found["launches"] / found["wall_s"]
        # Two processes make slightly different kernels: compared is work, not launches.
        self.rate = launch_rate * found.get("kernel_rounds", 1)
        self.mean_us = found["mean_ns"] / 1e3
        self.stall_ms: float = found["gap_ms"] or found["launch_stall_ms"]
        self.first_ms: float = found["first_ms"]
        self._bins: list[float] = found["bins"]
        if not found["stamps"]:  # nothing was stamped: a simulated driver, or a run without a trace
            self._bins = [launch_rate * nature.kernel_ns / 1e9] * max(
                1, round(found["wall_s"] * 10)
            )

    @property
    def share(self) -> float:
        """Over the whole run."""
        return 100 * statistics.fmean(self._bins)

    @property
    def steady(self) -> float:
        """Without the first second."""
        return 100 * statistics.fmean(self._bins[STEADY_BINS:] or self._bins)

    @property
    def rms(self) -> float:
        """Of the 100 ms bins, from their mean."""
        return 100 * statistics.pstdev(self._bins[STEADY_BINS:] or self._bins)

    @property
    def first_block_share(self) -> float | None:
        """As `share`, by the stamps of each kernel's first block alone: as earlier runs had it."""
        share = self.found.get("first_block_share")
        return 100 * float(share) if share is not None and self.found["stamps"] else None

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the share in a part of the run."""
        return 100 * statistics.fmean(self._bins[round(begin_s * 10) : round(end_s * 10)] or [0.0])


def start(places: Sequence[Place], workload: Workload) -> list[Program]:
    """Start a workload in several places at once; what starts PyTorch takes ten seconds."""
    programs = [Program(place, workload) for place in places]
    try:
        for program in programs:
            program.wait_until_ready()
    except BaseException:
        for program in programs:
            program.send(9)
            program.close()
        raise
    return programs
