# SPDX-License-Identifier: Apache-2.0
"""compute.py: does a share of a card hold? Busy time of the card, as its kernels stamp it.

    python3 -m bench.gpu.compute                   all tables, on card 0
    python3 -m bench.gpu.compute --quick           what tells most, within 100 s
    python3 -m bench.gpu.compute --open            what no card has told yet, within 8 minutes
    python3 -m bench.gpu.compute --simulated       the shape of the tables, without a GPU

Expected is min(limit, what the workload does without one). The limits of a running program are
changed in its limits file; several containers run under the agent's arbiter.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu.v1 import scheduler_cache_pb2 as pb

from bench.gpu.memory import on_simulated_gpu
from bench.gpu.places import CONTEXT_BYTES, ENTER, Place
from bench.gpu.table import Table
from runtime_shim.arbiter import Arbiter
from runtime_shim.region import Region, Regions
from tests.testbed import BUILD, REPOSITORY

GIB = 1 << 30
BUSY = str(BUILD / "bench" / "busy")
GEMM = "gemm"
STEADY_BINS = 10
# name → (words of busy.c, ns of one kernel)
WORKLOADS = {
    "20 us": (("async", "20000"), 20e3),
    "200 us": (("async", "200000"), 200e3),
    "5 ms": (("async", "5000000"), 5e6),
    "150 ms, sync": (("sync", "150000000"), 150e6),
    "20 us, sync": (("sync", "20000"), 20e3),
    "graph of 64 x 20 us": (("graph", "20000"), 64 * 20e3),
    GEMM: ((), 200e3),
}
QUICK = ("20 us", "200 us", "5 ms", "graph of 64 x 20 us", GEMM)
PAIRS = {
    "30/70": ((30, "200 us"), (70, "200 us")),
    "30/70, different": ((30, "5 ms"), (70, "20 us")),
    "25/25/50": ((25, "200 us"), (25, "200 us"), (50, "200 us")),
    "10/20/30/40": ((10, "200 us"), (20, "200 us"), (30, "200 us"), (40, "200 us")),
}


@dataclass
class Container:
    """A slice of the card, its limits, and how to start something in it."""

    region: Region
    place: Place

    def limit(self, percent: int, mode: pb.ComputeMode = pb.COMPUTE_MODE_HARD) -> None:
        """Change the limit of what runs inside."""
        allocation = pb.Allocation()
        allocation.CopyFrom(self.region.allocation)
        for part in allocation.slices:
            part.cores_percent = part.reserved_percent = part.cores_max_percent = percent
            part.compute_mode = mode
            if mode == pb.COMPUTE_MODE_BURST:
                part.cores_max_percent = 100
        self.region.update(allocation)


class Program:
    """A workload that runs when it is told to."""

    def __init__(self, place: Place, workload: str) -> None:
        words, self.kernel_ns = WORKLOADS[workload]
        argv = [sys.executable, "-m", "bench.gpu.gemm"] if workload == GEMM else [BUSY, *words]
        self._process = place.start(argv)
        self._must(self._line() == "ready", "did not start")

    def begin(self, seconds: float) -> None:
        """Start a run."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def end(self) -> "Run":
        """Return what the run did."""
        line = self._line()
        self._must(line.startswith("{"), "broke off")
        return Run(json.loads(line), self.kernel_ns)

    def run(self, seconds: float) -> "Run":
        """Run for so long."""
        self.begin(seconds)
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

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            raise RuntimeError(f"{self._process.args!r} {what}: exit {self._process.wait(20)}")


class Run:
    """Shares of the card's time, in percent."""

    def __init__(self, found: dict[str, Any], kernel_ns: float) -> None:
        self.found = found
        self.rate = found["launches"] / found["wall_s"]
        self.mean_us = found["mean_ns"] / 1e3
        self.stall_ms = found["gap_ms"] or found["launch_stall_ms"]
        self._bins: list[float] = found["bins"]
        if not self._bins:  # nothing was stamped: a simulated driver
            graph = 1 if kernel_ns != WORKLOADS["graph of 64 x 20 us"][1] else 64
            self._bins = [self.rate * kernel_ns / graph / 1e9]

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


class Bench:
    """Runs the tables on one card."""

    def __init__(self, args: argparse.Namespace, folder: Path, cards: Sequence[str]) -> None:
        self._args = args
        self._folder = folder
        self.cards = cards
        self._regions = Regions(folder / "regions")
        self._regions.prepare()
        self.tables: list[Table] = []

    @contextlib.contextmanager
    def container(self, cards: int = 1) -> Iterator[Container]:
        """Yield a container with slices of so many cards, without a limit yet."""
        parts = [
            pb.Slice(
                card_uuid=card_uuid,
                memory_bytes=8 * GIB,
                cores_percent=100,
                reserved_percent=100,
                cores_max_percent=100,
                compute_mode=pb.COMPUTE_MODE_HARD,
            )
            for card_uuid in self.cards[:cards]
        ]
        allocation = pb.Allocation(allocation_id=str(uuid.uuid4()), slices=parts)
        region = self._regions.create(allocation, b"", [CONTEXT_BYTES] * cards)
        folder = self._folder / allocation.allocation_id
        folder.mkdir()
        shutil.copy2(self._args.library, folder / "libvgpu.so")
        (folder / "limits").symlink_to(region.limits_path)
        (folder / "usage").symlink_to(region.usage_path)
        enter = ("unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh")
        try:
            yield Container(region, Place("vgpu", (*enter, str(folder))))
        finally:
            self._regions.remove(allocation.allocation_id)

    @contextlib.contextmanager
    def program(self, container: Container, workload: str) -> Iterator[Program]:
        """Yield a program that has started and waits."""
        program = Program(container.place, workload)
        try:
            yield program
        finally:
            program.close()

    def table_alone(self, workloads: Sequence[str], limits: Sequence[int], seconds: float) -> Table:
        """One container alone on the card: each workload without a limit, then under each."""
        table = Table(
            "alone",
            f"One container alone, GPU-busy time over {seconds:g} s",
            (
                "workload",
                "limit %",
                "busy %",
                "steady %",
                "expected",
                "bins rms",
                "longest gap ms",
                "kernel us",
                "throughput, % of bare",
            ),
        )
        for workload in workloads:
            try:
                self._alone(table, workload, limits, seconds)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                table.notes.append(f"{workload}: {error}")
                table.check(f"{workload}", "runs", str(error), holds=False)
        return table

    def _alone(self, table: Table, workload: str, limits: Sequence[int], seconds: float) -> None:
        with self.container() as container:
            container.region.set_alone([True])
            with self.program(container, workload) as program:
                bare = program.run(min(seconds, 2.0))
                self._row(table, workload, 100, bare, bare.share, bare)
                for limit in limits:
                    container.limit(limit)
                    run = program.run(seconds)
                    self._row(table, workload, limit, run, min(limit, bare.steady), bare)
                    allowed = max(2.0, program.kernel_ns / 1e7 / seconds)
                    table.check(
                        f"{workload}, {limit} %",
                        f"{min(limit, bare.steady):.1f} +- {allowed:.1f}",
                        f"{run.share:.1f} (steady {run.steady:.1f})",
                        holds=abs(run.share - min(limit, bare.steady)) <= allowed,
                    )

    def _row(
        self, table: Table, workload: str, limit: int, run: Run, expected: float, bare: Run
    ) -> None:
        row: list[Any] = [workload, limit, run.share, run.steady, float(expected), run.rms]
        table.rows.append([*row, run.stall_ms, run.mean_us, 100 * run.rate / bare.rate])
        table.raw[f"{workload}, {limit}"] = run.found
        print(
            "  ", *(f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row), flush=True
        )

    def table_together(self, names: Sequence[str], seconds: float) -> Table:
        """Several containers at once, under the arbiter."""
        table = Table(
            "together",
            f"Several containers at once under the arbiter, {seconds:g} s",
            ("case", "limit %", "workload", "busy %", "steady %", "bins rms", "longest gap ms"),
        )
        for name in names:
            with contextlib.ExitStack() as stack:
                running = []
                for limit, workload in PAIRS[name]:
                    container = stack.enter_context(self.container())
                    container.limit(limit)
                    program = stack.enter_context(self.program(container, workload))
                    running.append((limit, workload, container, program))
                arbiter = Arbiter(self._args.arbiter)
                stack.callback(arbiter.close)
                arbiter.follow([container.region for _, _, container, _ in running])
                for _, _, _, program in running:
                    program.begin(seconds)
                runs = [program.end() for _, _, _, program in running]
                turns = arbiter.turns()
            for (limit, workload, container, _), run in zip(running, runs, strict=True):
                table.rows.append(
                    [name, limit, workload, run.share, run.steady, run.rms, run.stall_ms]
                )
                print("  ", *table.rows[-1], flush=True)
                held = turns[container.region.allocation.allocation_id]
                table.raw[f"{name}, {limit}, {workload}, {held.turns} turns"] = run.found
                table.check(
                    f"{name}: {limit} % with {workload}",
                    f"{limit} +- 2.0",
                    f"{run.share:.1f} (steady {run.steady:.1f})",
                    holds=abs(run.share - limit) <= 2.0,
                )
            total = sum(run.steady for run in runs)
            table.check(f"{name}: together", ">= 98", f"{total:.1f}", holds=total >= 98)
        return table

    def close(self) -> None:
        """Unmap everything."""
        self._regions.close()


def _card_uuids() -> list[str]:
    import pynvml

    pynvml.nvmlInit()
    try:
        return [
            str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number)))
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    finally:
        pynvml.nvmlShutdown()


def _tables(bench: Bench, args: argparse.Namespace) -> Iterator[Table]:
    workloads = [name for name in WORKLOADS if not (args.simulated and name == GEMM)]
    if args.open:
        from bench.gpu import compute_open

        yield from compute_open.tables(bench, args)
        return
    if args.quick:
        # The containers together first: they need no framework's start.
        yield bench.table_together(("30/70", "30/70, different"), 5.0)
        yield bench.table_alone([name for name in QUICK if name in workloads], (25, 50), 3.5)
        return
    yield bench.table_together(tuple(PAIRS), args.seconds)
    yield bench.table_alone(workloads, (10, 25, 50, 75, 90), args.seconds)


def main() -> int:
    """Run the tables and print what holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="what tells most, within 100 s")
    parser.add_argument("--open", action="store_true", help="what is not known yet, 8 minutes")
    parser.add_argument("--seconds", type=float, default=10, help="length of a run")
    parser.add_argument("--library", type=Path, default=BUILD / "libvgpu.so", metavar="LIB")
    parser.add_argument("--arbiter", type=Path, default=BUILD / "libvgpu-arbiter.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU")
    args = parser.parse_args()
    if args.simulated and "FAKE_GPU_DIR" not in os.environ:
        on_simulated_gpu()
    os.environ["PYTHONPATH"] = ":".join(
        filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    )
    made = not Path("/dev/vgpu").exists()
    if made:
        Path("/dev/vgpu").mkdir()
    begun = time.monotonic()
    tables = []
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        bench = Bench(args, Path(name), _card_uuids())
        try:
            for table in _tables(bench, args):
                tables.append(table)
                print(f"\n{table.markdown()}", flush=True)
                if args.json is not None:
                    result = {
                        "kernel": platform.release(),
                        "command": " ".join(sys.argv),
                        "tables": [each.as_json() for each in tables],
                    }
                    args.json.write_text(json.dumps(result, indent=1) + "\n")
        finally:
            bench.close()
            if made:
                Path("/dev/vgpu").rmdir()
    checks = [check for table in tables for check in table.checks]
    failed = sum(not check[3] for check in checks)
    print(f"took {time.monotonic() - begun:.0f} s; {len(checks) - failed} hold, {failed} do not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
