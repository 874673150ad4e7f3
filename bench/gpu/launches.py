# SPDX-License-Identifier: Apache-2.0
"""Table: what a launch costs the processor, call by call."""

import json
from pathlib import Path
from typing import Any

from bench.gpu.slices import Slices
from bench.gpu.table import Table
from tests.testbed import BUILD

PROGRAM = BUILD / "bench" / "launch"
# limit % → figure → at most so many ns in the hook. A limit of 99 % never keeps the bench waiting.
TARGETS = {100: {"p50": 5.0}, 99: {"p50": 35.0, "mean": 75.0, "p99": 1500.0}}
# What is launched → ns of its kernel, turns of 5000 calls each way.
KERNELS = {"empty": (0, 40), "20 us": (20_000, 20)}
COARSE = 0.4
FIGURES = ("p50", "middle", "mean", "p99")


def table_launch(slices: Slices) -> Table:
    """Launch through the hook and around it, in turn in one process.

    "In the hook" has the driver's own part taken off in each call: see launch.c.
    """
    table = Table(
        "launch",
        "cuLaunchKernel, ns a call",
        (
            "limit %", "kernel", "calls each", "figure", "the driver alone", "through the hook",
            "difference", "in the hook",
        ),
    )  # fmt: skip
    for limit, most_ns in TARGETS.items():
        for kernel, (kernel_ns, turns) in KERNELS.items():
            with slices.container(alone=True) as container:
                container.limit(limit)
                words: list[str | Path] = [PROGRAM, str(kernel_ns), str(turns)]
                found = json.loads(container.place.run(words))
            hook_ns = {figure: _in_the_hook(found, figure) for figure in FIGURES}
            for figure in FIGURES:
                direct, through = (found[way]["whole"][figure] for way in ("direct", "hook"))
                whole = [float(direct), float(through), through - direct, hook_ns[figure]]
                table.rows.append([limit, kernel, found["calls"], figure, *whole])
                print("  ", limit, kernel, figure, *(f"{ns:.1f}" for ns in whole), flush=True)
            table.raw[f"{limit}, {kernel}"] = found
            for figure, most in most_ns.items():
                told = "middle" if figure == "p50" and _in_steps(found) else figure
                measured = hook_ns[told]
                table.check(
                    f"launch of {kernel} under {limit} %: {told} in the hook",
                    f"<= {most:g} ns",
                    f"{measured:.1f} ns",
                    holds=measured <= most,
                )
    return table


def _in_the_hook(found: dict[str, Any], figure: str) -> float:
    """Return what a call has beside the driver through the hook, less what a direct one has.

    That is what measuring costs, the same each time; so p99 is not less a p99.
    """
    measuring = found["direct"]["beside"]["p50" if figure == "p99" else figure]
    return float(found["hook"]["beside"][figure] - measuring)


def _in_steps(found: dict[str, Any]) -> bool:
    """Whether the processor's clock is too coarse for a median."""
    return float(found["direct"]["beside"]["at_p50"]) > COARSE
