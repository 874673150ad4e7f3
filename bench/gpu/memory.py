#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the memory limit holds and what it costs: bare and with libvgpu in turn, in one run.

    bench/gpu/memory.py                          everything, as root, on a machine with a GPU
    bench/gpu/memory.py --table calls --rounds 9 one table
    bench/gpu/memory.py --simulated              on the simulated GPU: for the script itself
    bench/gpu/memory.py --peer LIB               with another preloaded limiter in the cost tables

Whether limits hold is tried in real containers of a node with its agent; costs are measured on the
host, where the library has its limits file in a mount namespace. Prints Markdown, and writes JSON.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.gpu import costs, matrix, races, tools
from bench.gpu.behaviour import table_behaviour
from bench.gpu.judge import Card
from bench.gpu.places import BARE, Host, Place, host, of_peer, on_host
from bench.gpu.table import Table, command
from tests.fakes.gpu import H100, LIBRARY_DIRECTORY, SimulatedGpu
from tests.testbed import BUILD, REPOSITORY

GIB = 1 << 30
MATRIX_LIMIT = 4 * GIB
TOOLS_LIMIT = 8 * GIB
COSTS_LIMIT = 40 * GIB
TABLES = ("behaviour", "calls", "start", "races", "matrix", "torch", "tools", "training")
IN_CONTAINERS = ("races", "matrix", "torch", "tools")
SIMULATED_GPU = "VGPU_BENCH_GPU"


class Bench:
    """One run."""

    def __init__(self, args: argparse.Namespace, gpu: SimulatedGpu | None) -> None:
        self._args = args
        self._gpu = gpu
        self.card = Card()
        self.tables: list[Table] = []
        self.missing: list[str] = []

    def run(self) -> None:
        """Fill all tables; one that fails is named and costs only itself."""
        names = self._args.table or TABLES
        inside = [name for name in names if name in IN_CONTAINERS]
        for name in names:
            if name not in IN_CONTAINERS:
                self._try(name, partial(self._cost, name))
        if inside:
            try:
                with host(self._args.library, self._gpu, self.card.uuid) as node:
                    for name in inside:
                        self._try(name, partial(self._limit, name, node))
            except Exception as error:
                self._miss(", ".join(inside), error)

    def _try(self, name: str, make: Callable[[], Table]) -> None:
        begun = time.monotonic()
        try:
            table = make()
        except Exception as error:
            self._miss(name, error)
            return
        table.notes.append(f"Took {time.monotonic() - begun:.0f} s.")
        self.tables.append(table)
        print(f"\n{table.markdown()}", flush=True)
        self.write()

    def _miss(self, name: str, error: Exception) -> None:
        traceback.print_exc()
        self.missing.append(f"{name}: {error}")

    def _limit(self, name: str, node: Host) -> Table:
        if name == "races":
            return races.table_races(self.card, node.container, self._args.seconds)
        limit = TOOLS_LIMIT if name == "tools" else MATRIX_LIMIT
        with node.container(name, limit >> 20) as inside:
            if name == "tools":
                with tempfile.TemporaryDirectory(dir=BUILD, prefix="bench-") as scratch:
                    return tools.table_tools(inside, limit, Path(scratch))
            if name == "torch":
                return matrix.table_torch(self.card, [BARE, inside], limit)
            apis = [("driver", "driver"), *matrix.cudarts(self._args.cudart)]
            return matrix.table_matrix(self.card, [BARE, inside], apis, limit)

    def _cost(self, name: str) -> Table:
        rounds = self._args.rounds
        with self._places() as places:
            if name == "behaviour":
                return table_behaviour(places)
            if name == "start":
                return costs.table_start(places, max(3, rounds // 2))
            if name == "calls":
                return costs.table_calls(places, rounds)
            return costs.table_training(places, processes=4, rounds=8, steps=8)

    @contextlib.contextmanager
    def _places(self) -> Iterator[list[Place]]:
        with contextlib.ExitStack() as stack:
            places = [
                BARE,
                stack.enter_context(on_host(self._args.library, self.card.uuid, COSTS_LIMIT)),
            ]
            if self._args.peer is not None:
                places.append(stack.enter_context(of_peer(self._args.peer, COSTS_LIMIT)))
            yield places

    def write(self) -> None:
        """Write what there is so far."""
        if self._args.json is None:
            return
        result = {
            "machine": self.machine(),
            "command": command("bench.gpu.memory"),
            "tables": [table.as_json() for table in self.tables],
            "missing": self.missing,
        }
        self._args.json.write_text(json.dumps(result, indent=1) + "\n")

    def machine(self) -> dict[str, str]:
        """What a reader needs to compare two results."""
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return {
            "card": self.card.name,
            "kernel": platform.release(),
            "cpu": models[0] if models else platform.machine(),
            "cores": str(os.cpu_count()),
        }


def on_simulated_gpu() -> None:
    """Run this script again where the simulated driver is found."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        SimulatedGpu.create(Path(name), cards=[H100])
        env = {**os.environ, SIMULATED_GPU: name, "FAKE_GPU_DIR": name}
        env["LD_LIBRARY_PATH"] = str(LIBRARY_DIRECTORY)
        sys.exit(os.spawnve(os.P_WAIT, sys.executable, [sys.executable, *sys.argv], env))


def main() -> int:
    """Run the tables and print what holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", action="append", choices=TABLES, help="default: all of them")
    parser.add_argument("--rounds", type=int, default=6, help="processes a variant for calls")
    parser.add_argument("--seconds", type=float, default=10, help="length of a race")
    parser.add_argument(
        "--cudart", type=Path, action="append", default=[], help="a folder with libcudart.so.*"
    )
    parser.add_argument("--peer", type=Path, metavar="LIB", help="another limiter to compare with")
    parser.add_argument("--library", type=Path, default=BUILD / "libvgpu.so", metavar="LIB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--simulated", action="store_true", help="use the simulated GPU")
    args = parser.parse_args()
    if args.simulated and SIMULATED_GPU not in os.environ:
        on_simulated_gpu()
    gpu = SimulatedGpu(Path(os.environ[SIMULATED_GPU])) if args.simulated else None
    os.environ["PYTHONPATH"] = ":".join(
        filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    )

    bench = Bench(args, gpu)
    print(", ".join(f"{key}: {value}" for key, value in bench.machine().items()))
    bench.run()
    bench.write()
    failed = [check for table in bench.tables for check in table.checks if not check[3]]
    passed = sum(len(table.checks) for table in bench.tables) - len(failed)
    print(f"\n{passed} hold, {len(failed)} do not")
    for what, target, measured, _ in failed:
        print(f"   {what}: {measured}, wanted {target}")
    for line in bench.missing:
        print(f"bench: no table {line}", file=sys.stderr)
    return 1 if failed or bench.missing else 0


if __name__ == "__main__":
    sys.exit(main())
