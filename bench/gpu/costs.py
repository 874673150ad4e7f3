# SPDX-License-Identifier: Apache-2.0
"""Tables of what the library costs: start-up, single calls, training. Variants in turn, one run."""

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.gpu.places import Place
from bench.gpu.table import Table, interval, p99
from bench.gpu.training import SIZES
from tests.testbed import BUILD

COUNTS = (1, 8, 32)
PROGRAMS = BUILD / "bench"
TRAINING_TARGET = 0.995
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


def table_training(places: Sequence[Place], processes: int, blocks: int, steps: int) -> Table:
    """Train in pairs of processes that take turns; a pair of blocks is one sample of the ratio."""
    table = Table(
        "training",
        "PyTorch training step: 6 layers, bf16, AdamW",
        (
            "model",
            "variant",
            "steps",
            "median ms",
            "p99 ms",
            "bare / this",
            "95 % interval",
            "pairs",
        ),
    )
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(processes):
        running = [
            (place, place.start([sys.executable, "-m", "bench.gpu.training"])) for place in places
        ]
        for place, process in running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{place.name}: training ended with {process.wait()}")
        for model in SIZES:
            for block in range(blocks):
                medians = {}
                for place, process in running if block % 2 == 0 else running[::-1]:
                    block_ms = _train(process, model, steps)
                    times[model, place.name] += block_ms
                    medians[place.name] = statistics.median(block_ms)
                for name, median in medians.items():
                    ratios[model, name].append(medians["bare"] / median)
        for _, process in running:
            process.communicate("")
    for model, (width, batch, length) in SIZES.items():
        for place in places:
            key = model, place.name
            low, high = interval(ratios[key])
            ratio = statistics.median(ratios[key])
            row = [f"width {width}, batch {batch} x {length}", place.name, len(times[key])]
            row += [f"{statistics.median(times[key]):.3f}", f"{p99(times[key]):.3f}"]
            row += [f"{ratio:.4f}", f"{low:.4f} to {high:.4f}", len(ratios[key])]
            table.rows.append(row)
            if place.name == "vgpu":
                table.check(
                    f"training, {model} model: throughput against bare",
                    f">= {TRAINING_TARGET}, or the interval has it",
                    f"{ratio:.4f} ({low:.4f} to {high:.4f}), {len(ratios[key])} pairs",
                    holds=ratio >= TRAINING_TARGET or low <= TRAINING_TARGET <= high,
                )
    table.raw = {f"{model}, {name}": values for (model, name), values in ratios.items()}
    return table


def _train(process: "subprocess.Popen[str]", model: str, steps: int) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{model} {steps}\n")
    process.stdin.flush()
    found: list[float] = json.loads(process.stdout.readline())
    return found
