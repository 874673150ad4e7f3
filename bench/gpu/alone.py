# SPDX-License-Identifier: Apache-2.0
"""Tables: one container that has a card for itself, under limits and without one."""

import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.gpu import targets
from bench.gpu.places import BARE, of_peer
from bench.gpu.slices import BARE_SECONDS, MEMORY_BYTES, Slices
from bench.gpu.table import Table, interval
from bench.gpu.workloads import WORKLOADS, Program, Run

PAIRS = 8
PAIR_SECONDS = 0.4
PEER_LIMITS = (25, 50)
FAULTS = (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError)


def tables_alone(
    slices: Slices, name: str, workloads: Sequence[str], limits: Sequence[int], seconds: float
) -> list[Table]:
    """Each workload bare and under each limit; and, in turn, bare and with a share of 100 %."""
    limited = Table(
        name,
        f"One container alone, GPU-busy time over {seconds:g} s from the first kernel",
        (
            "workload", "limit %", "busy %", "steady %", "expected", "bins rms", "longest gap ms",
            "kernel us", "throughput, % of bare", "busy %, first blocks",
        ),
    )  # fmt: skip
    whole = Table(
        f"{name}, whole share",
        f"Throughput with a share of 100 % against bare, {PAIRS} pairs of {PAIR_SECONDS:g} s each",
        ("workload", "median ratio", "95 % interval"),
    )
    for workload in workloads:
        try:
            _workload(slices, workload, limits, seconds, limited, whole)
        except FAULTS as error:  # it costs its own rows only
            limited.check(workload, "runs", f"{type(error).__name__}: {error}", holds=False)
    return [limited, whole]


def _workload(
    slices: Slices,
    name: str,
    limits: Sequence[int],
    seconds: float,
    limited: Table,
    whole: Table,
) -> None:
    with (
        slices.container(alone=True) as container,
        slices.programs([BARE, container.place], name) as (bare_program, program),
    ):
        bare = slices.runs[name, None] = bare_program.run(BARE_SECONDS)
        _row(limited, name, None, bare, bare, bare.share)
        if bare.found.get("ends_apart"):
            limited.notes.append(
                f"{name}: the blocks of a kernel end {100 * bare.found['ends_apart']:.2f} % of its"
                " time apart."
            )
        if WORKLOADS[name].torch:
            untraced = bare_program.run(BARE_SECONDS, traced=False)
            limited.notes.append(
                f"{name}: a trace costs {100 * (1 - bare.rate / untraced.rate):.1f} % of the"
                f" throughput, and {bare.found['stamps']} kernels were seen in {BARE_SECONDS:g} s."
            )
        if name != "150 ms, sync":  # too long for a pair
            _pairs(whole, name, bare_program, program)
        bares = [bare]
        if WORKLOADS[name].torch:
            # How fast a processor-bound program is differs from process to process.
            bares.append(program.run(BARE_SECONDS))
            slices.runs[name, 100] = bares[1]
            _row(limited, name, 100, bares[1], bare, bares[1].share)
        for limit in limits:
            container.limit(limit)
            run = slices.runs[name, limit] = program.run(seconds)
            expected = [targets.expected(limit, each.share) for each in bares]
            _row(limited, name, limit, run, bare, min(expected))
            _check(limited, name, limit, run, bares, seconds)


def _row(table: Table, name: str, limit: int | None, run: Run, bare: Run, expected: float) -> None:
    shares = [run.share, run.steady, float(expected), run.rms, run.stall_ms]
    first = run.first_block_share
    table.rows.append([name, limit, *shares, run.mean_us, 100 * run.rate / bare.rate, first])
    table.raw[f"{name}, {limit or 'bare'}"] = run.found
    print("  ", name, limit or "bare", *(f"{share:.1f}" for share in shares), flush=True)


def _check(
    table: Table, name: str, limit: int, run: Run, bares: Sequence[Run], seconds: float
) -> None:
    nature, bare = WORKLOADS[name].nature, bares[0]
    expected = sorted(targets.expected(limit, each.share) for each in bares)
    low, high = expected[0], expected[-1]
    wanted = f"{low:.1f}" if low == high else f"{low:.1f} to {high:.1f}"
    for what, measured, points in (
        ("", run.share, targets.run_points(nature, seconds)),
        (" steady", run.steady, targets.steady_points(nature)),
    ):
        if points is not None:
            table.check(
                f"{name}, {limit} %{what}",
                f"{wanted} +- {points:.1f}",
                f"{measured:.1f}",
                holds=low - points <= measured <= high + points,
            )
    rms = targets.rms_points(nature)
    if rms is not None:
        table.check(
            f"{name}, {limit} % bins", f"rms <= {rms:g}", f"{run.rms:.1f}", holds=run.rms <= rms
        )
    stall = targets.stall_ms(nature, limit)
    table.check(
        f"{name}, {limit} % longest gap",
        f"<= {stall:.0f} ms",
        f"{run.stall_ms:.1f} ms",
        holds=run.stall_ms <= stall,
    )
    if nature.fixed_work and bare.share >= targets.SATURATED:
        rate = 100 * run.rate / bare.rate
        points = targets.THROUGHPUT_POINTS
        table.check(
            f"{name}, {limit} % throughput",
            f"{limit} +- {points:.1f} % of bare",
            f"{rate:.1f} %",
            holds=abs(rate - limit) <= points,
        )


def _pairs(table: Table, name: str, bare: Program, program: Program) -> None:
    """Run both in turn; a pair of runs is one sample of the ratio."""
    ratios = []
    for number in range(PAIRS):
        order = [bare, program] if number % 2 == 0 else [program, bare]
        rates = {each: each.run(PAIR_SECONDS, traced=False).rate for each in order}
        ratios.append(rates[program] / rates[bare])
    ratio = statistics.median(ratios)
    low, high = interval(ratios)
    table.rows.append([name, f"{ratio:.4f}", f"{low:.4f} to {high:.4f}"])
    table.raw[name] = ratios
    table.check(
        f"{name}: throughput with 100 %",
        f">= {targets.WHOLE_SHARE} of bare, or the interval has it",
        f"{ratio:.4f} ({low:.4f} to {high:.4f})",
        holds=high >= targets.WHOLE_SHARE,
    )


def table_peer(slices: Slices, library: Path, workloads: Sequence[str], seconds: float) -> Table:
    """Run under another limiter, which takes its limit from the environment."""
    table = Table(
        "peer",
        f"Another limiter, one container alone, GPU-busy time over {seconds:g} s",
        (
            "workload", "limit %", "busy %", "steady %", "longest gap ms", "throughput, % of bare",
            "vgpu: busy %",
        ),
    )  # fmt: skip
    for name in workloads:
        bare = slices.bare(name)
        for limit in PEER_LIMITS:
            try:
                with (
                    of_peer(library, MEMORY_BYTES, limit) as place,
                    slices.programs([place], name) as (program,),
                ):
                    run = program.run(seconds)
            except FAULTS as error:
                table.notes.append(f"{name}, {limit} %: {type(error).__name__}: {error}")
                continue
            shares = [run.share, run.steady, run.stall_ms, 100 * run.rate / bare.rate]
            own = slices.runs.get((name, limit))
            table.rows.append([name, limit, *shares, own and own.share])
            table.raw[f"{name}, {limit}"] = run.found
            print("   peer", name, limit, *(f"{share:.1f}" for share in shares), flush=True)
    return table
