# SPDX-License-Identifier: Apache-2.0
"""Tables of what the library costs: start-up, single calls, training. Variants in turn, one run."""

import contextlib
import json
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.gpu.places import BARE, Place
from bench.gpu.table import Table, interval, p99, ratio_of_processes
from bench.gpu.training import SIZES
from tests.testbed import BUILD

COUNTS = (1, 8, 32)
PROGRAMS = BUILD / "bench"
TRAINING_TARGET = 0.995
AGAIN = "bare, others"
# call → what it may cost more, in ns. Source: the targets of docs/benchmarks/libvgpu-memory.md.
ADDED_NS = {
    "cuInit": 10e6,
    "pair_1": 500.0,
    "pair_1000": 500.0,
    "pair_10000": 500.0,
    "pair_100001": 500.0,
    "async_pair": 250.0,
    "cuMemGetInfo": 0.0,
    "cuGetProcAddress": 200.0,
}
# Of a bare median: what two medians of the same program differ by on a shared machine.
NOISE = 0.03


def table_start(places: Sequence[Place], rounds: int) -> Table:
    """Start 1, 8 and 32 processes at once."""
    table = Table(
        "start",
        "Processes started at once: until all have a context and 1 MiB",
        ("processes", "variant", "n", "median ms", "p99 ms", "cuInit median ms", "cuInit p99 ms"),
    )
    walls: dict[tuple[int, str], list[float]] = defaultdict(list)
    inits: dict[tuple[int, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for place in places:
            words = [str(PROGRAMS / "up"), *map(str, COUNTS)]
            found = json.loads(place.run([sys.executable, "-m", "bench.gpu.start", *words]))
            for count, (wall_ms, copies) in zip(COUNTS, found, strict=True):
                walls[count, place.name].append(wall_ms)
                inits[count, place.name] += [copy[0] / 1e6 for copy in copies]
    for count in COUNTS:
        for place in places:
            key = count, place.name
            table.rows.append(
                [
                    count,
                    place.name,
                    len(walls[key]),
                    statistics.median(walls[key]),
                    p99(walls[key]),
                    statistics.median(inits[key]),
                    p99(inits[key]),
                ]
            )
    table.raw = {f"{count}, {name}": walls[count, name] for count, name in walls}
    most = COUNTS[-1]
    ratio = statistics.median(walls[most, "vgpu"]) / statistics.median(walls[most, "bare"])
    table.check(f"{most} processes up", "<= 1.2 x bare", f"{ratio:.3f} x", holds=ratio <= 1.2)
    return table


def table_calls(places: Sequence[Place], rounds: int, bursts: int = 40) -> Table:
    """Time single calls; each round is a fresh process a variant, in turn.

    What a call costs more is taken inside each process, from neighbouring bursts of the call as a
    program finds it and of the driver's own function: two processes differ by more than a hook.
    """
    table = Table(
        "calls",
        "Single calls, ns (means of bursts; cuInit and context: ns of one call)",
        ("call", "variant", "n", "median", "p99", "min", "added", "95 % interval"),
    )
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    names: list[str] = []
    for number in range(rounds):
        for place in places if number % 2 == 0 else places[::-1]:
            for line in place.run([PROGRAMS / "calls", str(bursts)]).splitlines():
                name, *numbers = line.split()
                found[name, place.name] += map(float, numbers)
                if "." not in name and name not in names:
                    names.append(name)
    for name in names:
        bare = statistics.median(found[name, "bare"])
        for place in places:
            values = found[name, place.name]
            added = found.get((f"{name}.added", place.name))
            if added is None:  # once a process
                pairs = zip(values, found[name, "bare"], strict=True)
                added = [one - other for one, other in pairs]
            middle = statistics.median(added)
            low, high = interval(added)
            table.rows.append(
                [
                    name,
                    place.name,
                    len(values),
                    statistics.median(values),
                    p99(values),
                    min(values),
                    f"{middle:+,.0f}",
                    f"{low:+,.0f} to {high:+,.0f}",
                ]
            )
            if place.name == "vgpu" and name in ADDED_NS:
                most = max(ADDED_NS[name], NOISE * bare if ADDED_NS[name] == 0 else 0)
                table.check(
                    f"{name}, added",
                    f"<= {most:,.0f} ns",
                    f"{middle:+,.0f} ns ({low:+,.0f} to {high:+,.0f})",
                    holds=middle <= most,
                )
    table.raw = {f"{name}, {place}": values for (name, place), values in found.items()}
    return table


def table_training(
    places: Sequence[Place],
    processes: int,
    rounds: int,
    steps: int,
    program: Sequence[str] = ("-m", "bench.gpu.training"),
) -> Table:
    """Train in several processes of each kind, all there at once, of which one runs at a time.

    Bare ones are two kinds of their own: what these differ by is not the library's.
    """
    table = Table(
        "training",
        "PyTorch training step: 6 layers, bf16, AdamW",
        (
            "model",
            "variant",
            "processes",
            "steps",
            "median ms",
            "p99 ms",
            "fastest, slowest process",
            "bare / this",
            "95 % interval",
        ),
    )
    kinds = {AGAIN: BARE} | {place.name: place for place in places}
    dice = random.Random(0)
    with contextlib.ExitStack() as stack:
        running = [
            (name, number, stack.enter_context(place.start([sys.executable, *program])))
            for number in range(processes)
            for name, place in kinds.items()
        ]
        for name, _, process in running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{name}: training ended with {process.wait()}")
        for model in SIZES:
            blocks: dict[str, list[list[list[float]]]] = {
                name: [[] for _ in range(processes)] for name in kinds
            }
            for _ in range(rounds):
                for name, number, process in dice.sample(running, k=len(running)):
                    blocks[name][number].append(_train(process, model, steps))
            _compare(table, model, blocks)
        for _, _, process in running:
            process.communicate("")
    return table


def _compare(table: Table, model: str, blocks: dict[str, list[list[list[float]]]]) -> None:
    """Add the rows of a model: of each kind the processes, of each of these the rounds."""
    width, batch, length = SIZES[model]
    medians = {
        name: [[statistics.median(block) for block in process] for process in of_kind]
        for name, of_kind in blocks.items()
    }
    for name, of_kind in medians.items():
        times = [ms for process in blocks[name] for block in process for ms in block]
        of_process = [statistics.median(process) for process in of_kind]
        row = [f"width {width}, batch {batch} x {length}", name, len(of_kind), len(times)]
        row += [f"{statistics.median(times):.3f}", f"{p99(times):.3f}"]
        row.append(f"{min(of_process):.3f}, {max(of_process):.3f}")
        if name == BARE.name:
            table.rows.append([*row, "", ""])
            continue
        ratio, low, high = ratio_of_processes(medians[BARE.name], of_kind)
        table.rows.append([*row, f"{ratio:.4f}", f"{low:.4f} to {high:.4f}"])
        measured = f"{ratio:.4f} ({low:.4f} to {high:.4f}), {len(of_kind)} processes of each"
        if name == AGAIN:
            table.check(
                f"training, {model} model: bare processes against each other",
                "the interval has 1",
                measured,
                holds=low <= 1 <= high,
            )
        elif name == "vgpu":
            table.check(
                f"training, {model} model: throughput against bare",
                f">= {TRAINING_TARGET}, or the interval has it",
                measured,
                holds=ratio >= TRAINING_TARGET or low <= TRAINING_TARGET <= high,
            )
    table.raw |= {f"{model}, {name}": of_kind for name, of_kind in medians.items()}


def _train(process: "subprocess.Popen[str]", model: str, steps: int) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{model} {steps}\n")
    process.stdin.flush()
    found: list[float] = json.loads(process.stdout.readline())
    return found
