# SPDX-License-Identifier: Apache-2.0
"""compute.py: does a share of a card hold? Busy time of the card, as its kernels stamp it.

    python3 -m bench.gpu.compute --json FILE       all tables of one card, within 9 minutes
    python3 -m bench.gpu.compute --cards 2         what several cards do together
    python3 -m bench.gpu.compute --table launch    one table; may be given more than once
    python3 -m bench.gpu.compute --card 1          on another card of the machine
    python3 -m bench.gpu.compute --simulated       the shape of the tables, without a GPU

As root. The tables come in order of need, and FILE is written after each.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.gpu import alone, cards, launches, together
from bench.gpu.judge import Card
from bench.gpu.memory import on_simulated_gpu
from bench.gpu.slices import Slices
from bench.gpu.table import Table, command
from bench.gpu.targets import LIMITS
from bench.gpu.workloads import WORKLOADS
from tests.testbed import BUILD, REPOSITORY

PEER_WORKLOADS = ("200 us", "5 ms", together.GRAPH, "gemm")
PEER_SECONDS = 3.0

Maker = Callable[[], list[Table]]


def makers(slices: Slices, args: argparse.Namespace) -> dict[str, Maker]:
    """Return what fills each table, in order of need."""
    asked = {name: WORKLOADS[name] for name in args.workload or WORKLOADS}
    stamped = [name for name, workload in asked.items() if not workload.torch]
    torch = [name for name, workload in asked.items() if workload.torch]
    cases = list(together.CASES)
    if args.simulated:  # no PyTorch there
        torch = []
        cases = [
            name
            for name in cases
            if not any(WORKLOADS[work].torch for _, work in together.CASES[name])
        ]
    if args.cards > 1:
        return {"ranks": lambda: [cards.table_ranks(slices, args.cards)]}
    return {
        "kernels": lambda: alone.tables_alone(slices, "kernels", stamped, LIMITS, args.seconds),
        "together": lambda: [together.table_together(slices, cases, args.seconds)],
        "launch": lambda: [launches.table_launch(slices)],
        "burst": lambda: [together.table_burst(slices)],
        "faults": lambda: [together.table_faults(slices)],
        "torch": lambda: alone.tables_alone(slices, "torch", torch, LIMITS, args.seconds),
        "peer": lambda: [alone.table_peer(slices, args.peer, PEER_WORKLOADS, PEER_SECONDS)],
    }


def _tables(slices: Slices, args: argparse.Namespace) -> Iterator[Table]:
    for name, make in makers(slices, args).items():
        if (args.table and name not in args.table) or (name == "peer" and args.peer is None):
            continue
        begun = time.monotonic()
        try:
            tables = make()
        except alone.FAULTS as error:  # it costs itself only
            tables = [Table(name, f"{name}: broke off", ("error",), rows=[[str(error)]])]
            tables[0].check(name, "runs", f"{type(error).__name__}: {error}", holds=False)
        tables[-1].notes.append(f"Took {time.monotonic() - begun:.0f} s.")
        yield from tables


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5, help="length of a run; 5")
    parser.add_argument("--cards", type=int, default=1, help="only what so many do together")
    parser.add_argument("--card", type=int, default=0, help="the number of the first one")
    parser.add_argument("--table", action="append", help="default: all of them")
    parser.add_argument("--workload", action="append", help="default: all; alone on a card")
    parser.add_argument("--library", type=Path, default=BUILD / "libvgpu.so", metavar="LIB")
    parser.add_argument("--arbiter", type=Path, default=BUILD / "libvgpu-arbiter.so")
    parser.add_argument("--peer", type=Path, metavar="LIB", help="another limiter to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU")
    return parser.parse_args()


def main() -> int:
    """Run the tables and print what holds."""
    args = _parse()
    if args.simulated and "FAKE_GPU_DIR" not in os.environ:
        on_simulated_gpu()
    os.environ["PYTHONPATH"] = ":".join(
        filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    )
    begun = time.monotonic()
    tables: list[Table] = []
    made = not Path("/dev/vgpu").exists()
    if made:
        Path("/dev/vgpu").mkdir()
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        uuids = card_uuids()[args.card :]
        if args.card:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
        slices = Slices(Path(name), uuids, args.library, args.arbiter)
        try:
            for table in _tables(slices, args):
                tables.append(table)
                print(f"\n{table.markdown()}", flush=True)
                if args.json is not None:
                    _write(args.json, tables)
        finally:
            slices.close()
            if made:
                Path("/dev/vgpu").rmdir()
    checks = [check for table in tables for check in table.checks]
    failed = sum(not check[3] for check in checks)
    print(f"took {time.monotonic() - begun:.0f} s; {len(checks) - failed} hold, {failed} do not")
    return 1 if failed else 0


def _write(file: Path, tables: list[Table]) -> None:
    result = {
        "card": Card().name,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "command": command("bench.gpu.compute"),
        "tables": [table.as_json() for table in tables],
    }
    file.write_text(json.dumps(result, indent=1) + "\n")


def card_uuids() -> list[str]:
    """Return the cards of this machine."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return [
            str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number)))
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main())
