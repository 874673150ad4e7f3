# SPDX-License-Identifier: Apache-2.0
"""waits.py: does a share hold whatever a program waits with? Busy time, as the kernels stamp it.

    python3 -m bench.gpu.waits --json FILE           eight ways, four patterns, three limits: 20 min
    python3 -m bench.gpu.waits --cards 4             the same on four cards at once: 5 min
    python3 -m bench.gpu.waits --way copy --limit 10 --pattern "20 us, 50 ms"
    python3 -m bench.gpu.waits --last                processes that end with work under way
    python3 -m bench.gpu.waits --join FILE...        several runs as one table
    python3 -m bench.gpu.waits --simulated           the shape of the tables, without a GPU

As root. FILE is written after each cell, so that a run that is cut short has lost nothing.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.compute import card_uuids
from bench.gpu.memory import on_simulated_gpu
from bench.gpu.places import Place
from bench.gpu.slices import Container, Slices
from bench.gpu.table import Table
from tests.testbed import BUILD, REPOSITORY

PROGRAM = BUILD / "bench" / "waits"
WAYS = ("stream", "context", "copy", "event", "event-query", "stream-query", "free", "memory")
MORE_WAYS = ("callback",)
LIMITS = (10, 25, 50)
PATTERNS = {
    "20 us, 50 ms": ("20000", "50000000"),
    "20 us, 2 ms": ("20000", "2000000"),
    "200 us, 5 ms": ("200000", "5000000"),
    "0.5 to 5 ms": ("drift", "5000000"),
}
POINTS = 2.0
WINDOW_BINS = 100
"""Of 100 ms."""

LAST_WAYS = ("copy", "memory", "kill")
LAST_NS = 300_000_000
LAST_LIMIT = 10
LAST_MOST = 13.0
END_SECONDS = 60.0

Cell = dict[str, Any]


def worst(bins: Sequence[float]) -> float:
    """Return the share in the window in which it is greatest, in percent."""
    length = min(WINDOW_BINS, len(bins))
    return max(
        100 * statistics.fmean(bins[begin : begin + length])
        for begin in range(len(bins) - length + 1)
    )


def measure(place: Place, cell: Cell, seconds: float) -> None:
    """Run one cell, and add to it what was found."""
    short, long = PATTERNS[cell["pattern"]]
    argv = [PROGRAM, cell["way"], short, long, str(seconds)]
    found = json.loads(place.run(argv, timeout=seconds + END_SECONDS))
    cell["mean"] = 100 * statistics.fmean(found["bins"])
    cell["worst"] = worst(found["bins"])
    cell["launches"] = found["launches"]
    cell["bins"] = found["bins"]


def measure_last(place: Place, cell: Cell, seconds: float) -> None:
    """Run process after process, each of which ends with its only launch.

    Counted is what follows the end of the first one, which has credit from the beginning.
    """
    begun = time.monotonic()
    ends: list[float] = []
    while len(ends) < 2 or ends[-1] - begun < seconds:
        process = place.start([PROGRAM, "last", cell["way"], str(LAST_NS)])
        process.communicate("", timeout=END_SECONDS)
        if process.returncode not in (0, -9, 137):
            raise RuntimeError(f"{cell['way']}: exit {process.returncode}")
        ends.append(time.monotonic())
    cell["launches"] = len(ends)
    cell["mean"] = 100 * (len(ends) - 1) * LAST_NS / 1e9 / (ends[-1] - ends[0])
    cell["worst"] = cell["mean"]


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """Return what is to be measured, without a result."""
    if args.last:
        ways = args.way or LAST_WAYS
        return [{"way": way, "pattern": "last launch", "limit": LAST_LIMIT} for way in ways]
    return [
        {"way": way, "pattern": pattern, "limit": limit}
        for way in args.way or WAYS
        for pattern in args.pattern or PATTERNS
        for limit in args.limit or LIMITS
    ]


@contextlib.contextmanager
def _container(slices: Slices, limit: int) -> Iterator[tuple[Container, Place]]:
    with slices.container(alone=True) as container:
        container.limit(limit)
        env = {"CUDA_VISIBLE_DEVICES": slices.cards[0]}
        yield container, Place("vgpu", container.place.prefix, env)


def _work(slices: Slices, cells: list[Cell], done: list[Cell], args: argparse.Namespace) -> None:
    """Measure cells until none is left: one card's thread."""
    while cells:
        cell = cells.pop(0)
        try:
            with _container(slices, cell["limit"]) as (_, place):
                (measure_last if args.last else measure)(place, cell, args.seconds)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            cell["error"] = f"{type(error).__name__}: {error}"
        done.append(cell)
        words = (cell["way"], cell["pattern"], cell["limit"])
        print("  ", *words, _figures(cell), flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps({"cells": list(done)}, indent=1) + "\n")


def _figures(cell: Cell) -> str:
    return str(cell.get("error") or f"{cell['mean']:.1f} worst {cell['worst']:.1f}")


def table(cells: Sequence[Cell]) -> Table:
    """Return the table of all cells, and what holds."""
    result = Table(
        "waits",
        "Busy time of one function of changing length, by what the program waits with",
        ("way", "kernels", "limit %", "busy %", "worst 10 s %", "launches"),
    )
    for cell in cells:
        name = f"{cell['way']}, {cell['pattern']}, {cell['limit']} %"
        row = [cell["way"], cell["pattern"], cell["limit"]]
        if "error" in cell:
            result.rows.append([*row, None, None, cell["error"]])
            result.check(name, "runs", cell["error"], holds=False)
            continue
        result.rows.append([*row, cell["mean"], cell["worst"], cell["launches"]])
        if cell["pattern"] == "last launch":
            wanted = f"<= {LAST_MOST:g}"
            holds = cell["mean"] <= LAST_MOST
        else:
            wanted = f"{cell['limit']} +- {POINTS:g}, worst too"
            holds = (
                abs(cell["mean"] - cell["limit"]) <= POINTS
                and cell["worst"] <= cell["limit"] + POINTS
            )
        result.check(name, wanted, _figures(cell), holds=holds)
    return result


def _say(cells: Sequence[Cell]) -> int:
    found = table(cells)
    missed = [check for check in found.checks if not check[3]]
    held = len(found.checks) - len(missed)
    found.checks = missed
    found.notes.append(f"{held} of {held + len(missed)} targets hold.")
    print(f"\n{found.markdown()}", flush=True)
    return 1 if missed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10, help="length of a cell; 10")
    parser.add_argument("--way", action="append", choices=(*WAYS, *MORE_WAYS, "kill"))
    parser.add_argument("--pattern", action="append", choices=PATTERNS)
    parser.add_argument("--limit", action="append", type=int)
    parser.add_argument("--last", action="store_true", help="processes that end with work")
    parser.add_argument("--cards", type=int, default=1, help="so many at once")
    parser.add_argument("--library", type=Path, default=BUILD / "libvgpu.so", metavar="LIB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE", help="of earlier runs")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU")
    return parser.parse_args()


def main() -> int:
    """Run the cells and print what holds."""
    args = _parse()
    if args.join:
        return _say([cell for file in args.join for cell in json.loads(file.read_text())["cells"]])
    if args.simulated and "FAKE_GPU_DIR" not in os.environ:
        on_simulated_gpu()
    os.environ["PYTHONPATH"] = ":".join(
        filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    )
    made = not Path("/dev/vgpu").exists()
    if made:
        Path("/dev/vgpu").mkdir()
    cells, done = cells_of(args), list[Cell]()
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, contextlib.ExitStack() as stack:
        threads = []
        for number, card in enumerate(card_uuids()[: args.cards]):
            folder = Path(name) / str(number)
            folder.mkdir()
            slices = Slices(folder, [card], args.library, BUILD / "libvgpu-arbiter.so")
            stack.callback(slices.close)
            threads.append(threading.Thread(target=_work, args=(slices, cells, done, args)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if made:
        Path("/dev/vgpu").rmdir()
    return _say(done)


if __name__ == "__main__":
    sys.exit(main())
