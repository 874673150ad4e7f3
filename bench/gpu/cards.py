# SPDX-License-Identifier: Apache-2.0
"""Table: what several cards do together, with a share of each."""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from bench.gpu import targets
from bench.gpu.places import BARE, Place
from bench.gpu.ranks import LIFE_SECONDS, WORKLOADS
from bench.gpu.slices import Slices
from bench.gpu.table import Table
from bench.gpu.targets import Nature
from bench.gpu.workloads import Run

SECONDS = 4.0
KERNEL = Nature(kernel_ns=200e3, launch_ns=200e3, fixed_work=False)


def table_ranks(slices: Slices, count: int) -> Table:
    """Run a process a card without the library, then in one container with a share of each."""
    table = Table(
        "ranks",
        f"{count} cards, a process a card, NCCL, {SECONDS:g} s",
        ("workload", "limit %", "rank", "busy %", "rounds a second", "% of bare", "trace costs %"),
    )
    bare = run_ranks(BARE, count)
    with slices.container(count, alone=True) as container:
        container.limit(targets.RANKS_LIMIT)
        limited = run_ranks(container.place, count)
    least = 100 * targets.RANKS_SHARE
    for workload in WORKLOADS:
        for limit, runs in ((None, bare), (targets.RANKS_LIMIT, limited)):
            for rank, run in enumerate(runs[workload]):
                rate = 100 * run.rate / bare[workload][rank].rate
                cost = 100 * float(run.found["trace_cost"])
                table.rows.append([workload, limit, rank, run.share, run.rate, rate, cost])
                table.raw[f"{workload}, {limit or 'bare'}, rank {rank}"] = run.found
        for rank, run in enumerate(limited[workload]):
            free = bare[workload][rank]
            for what, share in (
                ("busy", 100 * run.share / free.share),
                ("rounds", 100 * run.rate / free.rate),
            ):
                table.check(
                    f"{workload}, rank {rank}: {what}",
                    f">= {least:g} % of bare",
                    f"{share:.1f} %",
                    holds=share >= least,
                )
            most = targets.RANKS_LIMIT + targets.TOGETHER_POINTS
            table.check(
                f"{workload}, rank {rank}: no more than its share",
                f"<= {most:g}",
                f"{run.share:.1f}",
                holds=run.share <= most,
            )
    return table


def run_ranks(place: Place, count: int) -> dict[str, list[Run]]:
    """Run one process a card; by workload, what each did. One that fails ends all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "bench.gpu.ranks", str(count)]
    processes: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        # Files: a pipe that nobody reads fills up.
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
        for rank, log in enumerate(logs):
            words = [*argv, str(rank), str(port), str(SECONDS)]
            process = stack.enter_context(place.start(words, stderr=log.fileno()))
            stack.callback(process.kill)
            processes.append(process)
        _wait(processes, logs)
        found = [process.communicate()[0].splitlines() for process in processes]
    runs: dict[str, list[Run]] = {workload: [] for workload in WORKLOADS}
    for lines in found:
        for line in lines:
            if line.startswith("{"):
                said = json.loads(line)
                runs[said["workload"]].append(Run(said, KERNEL))
    if any(len(each) != count for each in runs.values()):
        raise RuntimeError(f"{place.name}: a rank did not say what it did: {found!r}")
    return runs


def _wait(processes: Sequence["subprocess.Popen[str]"], logs: Sequence[IO[str]]) -> None:
    deadline = time.monotonic() + LIFE_SECONDS
    while any(process.poll() is None for process in processes):
        late = time.monotonic() > deadline
        for rank, (process, log) in enumerate(zip(processes, logs, strict=True)):
            if late or process.poll():
                log.seek(0)
                end = f"exit {process.poll()}" if not late else f"no end in {LIFE_SECONDS} s"
                raise RuntimeError(f"rank {rank}: {end}: {log.read()[-1500:]}")
        time.sleep(0.1)
    for rank, process in enumerate(processes):
        if process.returncode:
            raise RuntimeError(f"rank {rank}: exit {process.returncode}")
