# SPDX-License-Identifier: Apache-2.0
"""What no card has told yet of the compute limit, the most wanted first: at most 8 minutes.

Each table stands for itself: one that fails is reported as such and the next one begins. Those of
several cards are left out, and say so, where there is one card.
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vgpu.v1 import scheduler_cache_pb2 as pb

from bench.gpu.compute import GEMM, Bench, Program, Run
from bench.gpu.places import BARE, Place
from bench.gpu.table import Table
from runtime_shim.arbiter import Arbiter
from tests.testbed import BUILD

ALONE = ("20 us", "200 us", "5 ms", "graph of 64 x 20 us", "20 us, sync")
LIMITS = (10, 25, 50, 75, 90)
RANKS_LIMIT = 40
RANKS_SECONDS = 5.0
BURSTS = "40"


def table_faults(bench: Bench, arbiter_library: Path) -> Table:
    """Two containers with 50 % each; the agent goes, a neighbour stops, a neighbour is killed."""
    table = Table(
        "faults",
        "200 us kernels, 50/50, 4 s; after 2 s something happens",
        ("what", "busy %", "longest gap ms", "the other's gap ms"),
    )
    cases: dict[str, tuple[float, Callable[[Arbiter, Program], object]]] = {
        "agent gone": (300.0, lambda arbiter, _: arbiter.close()),
        "neighbour stopped": (100.0, lambda _, other: other.send(signal.SIGSTOP)),
        "neighbour killed": (100.0, lambda _, other: other.send(signal.SIGKILL)),
    }
    for name, (most_ms, happen) in cases.items():
        with contextlib.ExitStack() as stack:
            containers = [stack.enter_context(bench.container()) for _ in range(2)]
            for container in containers:
                container.limit(50)
            one, other = (
                stack.enter_context(bench.program(container, "200 us")) for container in containers
            )
            arbiter = Arbiter(arbiter_library)
            stack.callback(arbiter.close)
            arbiter.follow([container.region for container in containers])
            one.begin(4)
            other.begin(4)
            time.sleep(2)
            happen(arbiter, other)
            run = one.end()
            other_gap = other.end().stall_ms if name == "agent gone" else None
            other.send(signal.SIGKILL)
        table.rows.append([name, run.share, run.stall_ms, other_gap])
        table.raw[name] = run.found
        table.check(
            f"{name}: longest gap",
            f"<= {most_ms} ms",
            f"{run.stall_ms:.1f} ms",
            holds=run.stall_ms <= most_ms,
        )
        table.check(
            f"{name}: no more than its share", "<= 52", f"{run.share:.1f}", holds=run.share <= 52
        )
    return table


def table_burst(bench: Bench, arbiter_library: Path) -> Table:
    """A burst container alone on the card, then beside one that wakes up."""
    table = Table(
        "burst",
        "burst 30 % (200 us) beside hard 70 % (200 us) that works from second 2 to 4",
        ("container", "busy %", "longest gap ms"),
    )
    with contextlib.ExitStack() as stack:
        burst, hard = (stack.enter_context(bench.container()) for _ in range(2))
        burst.limit(30, pb.COMPUTE_MODE_BURST)
        hard.limit(70)
        one = stack.enter_context(bench.program(burst, "200 us"))
        other = stack.enter_context(bench.program(hard, "200 us"))
        with bench.container() as bare_container:
            bare_container.region.set_alone([True])
            with bench.program(bare_container, "200 us") as bare_program:
                bare = bare_program.run(1)
        arbiter = Arbiter(arbiter_library)
        stack.callback(arbiter.close)
        arbiter.follow([burst.region, hard.region])
        one.begin(4)
        time.sleep(2)
        other.begin(2)
        late, early = other.end(), one.end()
    bins = early.found["bins"]
    before = 100 * statistics.fmean(bins[5:15]) if bins else early.share
    after = 100 * statistics.fmean(bins[25:38]) if bins else early.share
    table.rows += [
        ["burst, alone", before, None],
        ["burst, with the other", after, early.stall_ms],
        ["the other", late.share, late.stall_ms],
    ]
    table.raw["burst"], table.raw["hard"] = early.found, late.found
    table.check(
        "burst alone",
        ">= 98 % of bare",
        f"{100 * before / bare.share:.1f} %",
        holds=before >= 0.98 * bare.share,
    )
    table.check("burst beside the other", "30 +- 2.0", f"{after:.1f}", holds=abs(after - 30) <= 2)
    table.check(
        "the other's longest gap", "<= 20 ms", f"{late.stall_ms:.1f} ms", holds=late.stall_ms <= 20
    )
    return table


def table_launch(bench: Bench) -> Table:
    """What a launch costs the processor: means of bursts of 200, beside the driver's own."""
    table = Table("launch", "Launch of an empty kernel, ns", ("limit %", "as found", "added"))
    for limit, most_ns in ((100, 50.0), (99, 75.0)):
        with bench.container() as container:
            container.limit(limit)
            container.region.set_alone([True])
            found = {
                line.split()[0]: [float(word) for word in line.split()[1:]]
                for line in container.place.run([BUILD / "bench" / "calls", BURSTS]).splitlines()
            }
        added = statistics.median(found["cuLaunchKernel.added"])
        table.rows.append([limit, statistics.median(found["cuLaunchKernel"]), added])
        table.raw[str(limit)] = found["cuLaunchKernel.added"]
        table.check(
            f"launch under {limit} %",
            f"<= {most_ns:.0f} ns",
            f"{added:.0f} ns",
            holds=added <= most_ns,
        )
    return table


def _ranks(place: Place, count: int) -> list[Run]:
    """Run one process a card, and return what each did."""
    argv = [sys.executable, "-m", "bench.gpu.ranks", str(count), str(RANKS_SECONDS)]
    processes = [place.start([*argv, str(rank)]) for rank in range(count)]
    try:
        outputs = [process.communicate("", timeout=90)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Run(json.loads(output.splitlines()[-1]), 0) for output in outputs]


def table_ranks(bench: Bench) -> Table:
    """Products and all-reduces over NCCL, without the library and under a limit."""
    table = Table(
        "ranks",
        f"bf16 products and all-reduces, a process a card, {RANKS_SECONDS:g} s",
        ("cards", "limit %", "rank", "busy %", "rounds a second"),
    )
    counts = [count for count in (2, 4) if count <= len(bench.cards)]
    if not counts:
        table.notes.append("not run: there is one card")
    for count in counts:
        bare = _ranks(BARE, count)
        with bench.container(count) as container:
            container.region.set_alone([True] * count)
            container.limit(RANKS_LIMIT)
            limited = _ranks(container.place, count)
        for limit, runs in ((100, bare), (RANKS_LIMIT, limited)):
            for rank, run in enumerate(runs):
                table.rows.append([count, limit, rank, run.share, run.rate])
                table.raw[f"{count}, {limit}, {rank}"] = run.found
        for rank, run in enumerate(limited):
            share = 100 * run.rate / bare[rank].rate
            table.check(
                f"{count} cards, rank {rank}: rounds",
                ">= 38 % of bare",
                f"{share:.1f} %",
                holds=share >= 38,
            )
            table.check(
                f"{count} cards, rank {rank}: busy",
                f"<= {RANKS_LIMIT + 2}",
                f"{run.share:.1f}",
                holds=run.share <= RANKS_LIMIT + 2,
            )
    return table


def tables(bench: Bench, args: argparse.Namespace) -> Iterator[Table]:
    """Yield the tables in order of need."""
    makers: list[tuple[str, Callable[[], Table]]] = [
        (
            "together",
            lambda: bench.table_together(
                ("30/70", "30/70, different", "25/25/50", "10/20/30/40"), 5.0
            ),
        ),
        ("ranks", lambda: table_ranks(bench)),
        ("alone", lambda: bench.table_alone(ALONE, LIMITS, 3.0)),
        ("faults", lambda: table_faults(bench, args.arbiter)),
        ("burst", lambda: table_burst(bench, args.arbiter)),
        ("launch", lambda: table_launch(bench)),
        ("products", lambda: bench.table_alone(() if args.simulated else (GEMM,), (50, 90), 3.0)),
        ("long", lambda: bench.table_alone(("150 ms, sync",), (25,), 6.0)),
    ]
    for name, make in makers:
        if args.simulated and name == "ranks":
            continue  # needs PyTorch and NCCL
        try:
            yield make()
        except (
            RuntimeError,
            OSError,
            ValueError,
            IndexError,
            KeyError,
            subprocess.SubprocessError,
        ) as error:
            table = Table(name, "broke off", ("error",), rows=[[str(error)]])
            table.check(name, "runs", str(error), holds=False)
            yield table
