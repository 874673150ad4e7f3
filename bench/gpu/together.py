# SPDX-License-Identifier: Apache-2.0
"""Tables: several containers on one card, under the arbiter."""

import contextlib
import signal
import time
from collections.abc import Callable, Sequence

from vgpu.v1 import scheduler_cache_pb2 as pb

from bench.gpu import targets
from bench.gpu.slices import Container, Slices
from bench.gpu.table import Table
from bench.gpu.workloads import WORKLOADS, Program, Run
from runtime_shim.arbiter import Arbiter

SHORT, MIDDLE, LONG = "20 us", "200 us", "5 ms"
GRAPH = "graph of 64 x 20 us"
CASES = {
    "30/70": ((30, MIDDLE), (70, MIDDLE)),
    "25/25/50": ((25, MIDDLE), (25, MIDDLE), (50, MIDDLE)),
    "10/20/30/40": ((10, MIDDLE), (20, MIDDLE), (30, MIDDLE), (40, MIDDLE)),
    "30/70, 5 ms beside 20 us": ((30, LONG), (70, SHORT)),
    "30/70, long beside short": ((30, "150 ms, sync"), (70, SHORT)),
    "50/50, graphs beside waits": ((50, GRAPH), (50, "20 us, sync")),
    "40/60, products": ((40, "gemm"), (60, MIDDLE)),
    "10/20/30/40, different": ((10, LONG), (20, SHORT), (30, GRAPH), (40, MIDDLE)),
}
BURST_PERCENT, HARD_PERCENT = 30, 70
WAKES = 4
WAKE_SECONDS = 0.5
BURST_ALONE_SECONDS = 1.5
FAULT_SECONDS = 4.0


def table_together(slices: Slices, names: Sequence[str], seconds: float) -> Table:
    """Run the containers of each case at once."""
    table = Table(
        "together",
        f"Several containers at once under the arbiter, {seconds:g} s",
        (
            "case", "limit %", "workload", "busy %", "steady %", "expected", "bins rms",
            "longest gap ms",
        ),
    )  # fmt: skip
    for name in names:
        bare = {workload: slices.bare(workload).share for _, workload in CASES[name]}
        with contextlib.ExitStack() as stack:
            containers: list[Container] = []
            programs: list[Program] = []
            for limit, workload in CASES[name]:
                container = stack.enter_context(slices.container())
                container.limit(limit)
                containers.append(container)
                programs += stack.enter_context(slices.programs([container.place], workload))
            arbiter = stack.enter_context(slices.arbiter(containers))
            for program in programs:
                program.begin(seconds)
            runs = [program.end() for program in programs]
            turns = arbiter.turns()
        _case(table, name, runs, bare, seconds)
        for container, (limit, workload), run in zip(containers, CASES[name], runs, strict=True):
            held = turns[container.region.allocation.allocation_id]
            table.raw[f"{name}, {limit}, {workload}, {held.turns} turns"] = run.found
    return table


def _case(
    table: Table, name: str, runs: Sequence[Run], bare: dict[str, float], seconds: float
) -> None:
    total = wanted = 0.0
    for (limit, workload), run in zip(CASES[name], runs, strict=True):
        expected = targets.in_turns(limit, bare[workload])
        total, wanted = total + run.share, wanted + expected
        row = [run.share, run.steady, expected, run.rms, run.stall_ms]
        table.rows.append([name, limit, workload, *row])
        print("  ", name, limit, workload, *(f"{share:.1f}" for share in row), flush=True)
        nature = WORKLOADS[workload].nature
        points = max(targets.TOGETHER_POINTS, 100 * nature.launch_ns / 1e9 / seconds)
        # A neighbour that waits leaves time over, and it may go to whoever can use it.
        above = max(float(limit), expected) + points
        table.check(
            f"{name}: {limit} % with {workload}",
            f"{expected - points:.1f} to {above:.1f}",
            f"{run.share:.1f}",
            holds=expected - points <= run.share <= above,
        )
    table.check(
        f"{name}: lost by being several",
        f"<= {targets.IDLE_POINTS:g} of {wanted:.1f}",
        f"{wanted - total:.1f}",
        holds=wanted - total <= targets.IDLE_POINTS,
    )


def table_burst(slices: Slices) -> Table:
    """A burst container alone on the card, beside one that wakes up and sleeps again."""
    table = Table(
        "burst",
        f"burst {BURST_PERCENT} % beside hard {HARD_PERCENT} % ({MIDDLE}), which wakes up"
        f" {WAKES} times for {WAKE_SECONDS:g} s",
        (
            "burst runs", "alone: busy %, of bare", "beside the other: busy %", "the other: busy %",
            "until its first kernel has run: ms",
        ),
    )  # fmt: skip
    for workload in (MIDDLE, LONG):
        bare = slices.bare(workload)
        cycle = 2 * WAKE_SECONDS
        seconds = BURST_ALONE_SECONDS + WAKES * cycle
        with contextlib.ExitStack() as stack:
            burst, hard = (stack.enter_context(slices.container()) for _ in range(2))
            burst.limit(BURST_PERCENT, pb.COMPUTE_MODE_BURST)
            hard.limit(HARD_PERCENT)
            (one,) = stack.enter_context(slices.programs([burst.place], workload))
            (other,) = stack.enter_context(slices.programs([hard.place], MIDDLE))
            stack.enter_context(slices.arbiter([burst, hard]))
            one.begin(seconds)
            begun = time.monotonic()
            wakes = []
            windows = []
            for number in range(WAKES):
                due = BURST_ALONE_SECONDS + number * cycle
                time.sleep(max(0.0, begun + due - time.monotonic()))
                since = time.monotonic() - begun
                wakes.append(other.run(WAKE_SECONDS))
                windows.append((since + 0.1, since + WAKE_SECONDS))
            run = one.end()
        alone = run.between(0.3, BURST_ALONE_SECONDS - 0.1)
        beside = sum(run.between(*window) for window in windows) / WAKES
        others = sum(wake.share for wake in wakes) / WAKES
        first_ms = [wake.first_ms for wake in wakes]
        table.rows.append(
            [
                workload,
                100 * alone / bare.share,
                beside,
                others,
                ", ".join(f"{each:.1f}" for each in first_ms),
            ]
        )
        table.raw[workload] = {"burst": run.found, "hard": [wake.found for wake in wakes]}
        table.check(
            f"burst with {workload}, alone",
            f">= {100 * targets.BURST_SHARE:g} % of bare",
            f"{100 * alone / bare.share:.1f} %",
            holds=alone >= targets.BURST_SHARE * bare.share,
        )
        longest_ms = WORKLOADS[workload].nature.launch_ns / 1e6
        own_ms = WORKLOADS[MIDDLE].nature.launch_ns / 1e6
        most_ms = targets.TAKE_BACK_MS + longest_ms + own_ms
        table.check(
            f"burst with {workload}: the other's first kernel has run",
            f"<= {targets.TAKE_BACK_MS:g} + {longest_ms:g} + {own_ms:g} ms",
            f"{max(first_ms):.1f} ms",
            holds=max(first_ms) <= most_ms,
        )
    return table


def table_faults(slices: Slices) -> Table:
    """Two containers with 50 % each; the agent goes, a neighbour stops, a neighbour is killed."""
    table = Table(
        "faults",
        f"{MIDDLE} kernels, 50/50, {FAULT_SECONDS:g} s; after 2 s something happens",
        ("what", "busy %", "longest gap ms", "the other's gap ms"),
    )
    cases: dict[str, tuple[float, Callable[[Arbiter, Program], object]]] = {
        "agent gone": (300.0, lambda arbiter, _: arbiter.close()),
        "neighbour stopped": (100.0, lambda _, other: other.send(signal.SIGSTOP)),
        "neighbour killed": (100.0, lambda _, other: other.send(signal.SIGKILL)),
    }
    for name, (most_ms, happen) in cases.items():
        with contextlib.ExitStack() as stack:
            containers = [stack.enter_context(slices.container()) for _ in range(2)]
            for container in containers:
                container.limit(50)
            one, other = (
                program
                for container in containers
                for program in stack.enter_context(slices.programs([container.place], MIDDLE))
            )
            arbiter = stack.enter_context(slices.arbiter(containers))
            one.begin(FAULT_SECONDS)
            other.begin(FAULT_SECONDS)
            time.sleep(FAULT_SECONDS / 2)
            happen(arbiter, other)
            run = one.end()
            other_gap = other.end().stall_ms if name == "agent gone" else None
            other.send(signal.SIGKILL)
        table.rows.append([name, run.share, run.stall_ms, other_gap])
        table.raw[name] = run.found
        for whose, gap_ms in (("longest gap", run.stall_ms), ("the other's gap", other_gap)):
            if gap_ms is not None:
                table.check(
                    f"{name}: {whose}",
                    f"<= {most_ms:g} ms",
                    f"{gap_ms:.1f} ms",
                    holds=gap_ms <= most_ms,
                )
        table.check(
            f"{name}: no more than its share",
            f"<= {50 + targets.TOGETHER_POINTS:g}",
            f"{run.share:.1f}",
            holds=run.share <= 50 + targets.TOGETHER_POINTS,
        )
    return table
