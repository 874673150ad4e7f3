# SPDX-License-Identifier: Apache-2.0
"""How fast nodes are chosen: filter and prioritize over all nodes at once, in one process.

The cluster is synthetic: allocations of many sizes are spread over all cards. Every round one node
changes, as it does when a pod is bound; then all nodes are filtered by name and those that fit are
scored, as kube-scheduler would have it done. Whatever is kept of earlier rounds helps, as it does
with pods of one template; the first round of each request finds nothing kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.extender.node_fit import NodeFit
from scheduler_cache.extender.shape import Shape
from scheduler_cache.inventory import Inventory, OwnedCard
from scheduler_cache.model import Card, CardPolicy, CardUse, MemoryAmount, Request
from scheduler_cache.node_view import NodeView
from scheduler_cache.pod import Container, ContainerKind, Pod

GIB = 1 << 30
MODELS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
SIZES_GIB = (80, 80, 48)


def cluster(nodes: int, cards: int, allocations: int, seed: int) -> list[NodeView]:
    """Return the views of a cluster in which about `allocations` slices are held."""
    chance = random.Random(seed)
    per_card = allocations / (nodes * cards)
    views = []
    for i in range(nodes):
        kind = i % len(MODELS)
        owned, uses = {}, {}
        for j in range(cards):
            uuid = f"GPU-{i:08x}-0000-4000-8000-{j:012x}"
            size = SIZES_GIB[kind] * GIB
            owned[uuid] = OwnedCard(
                card=Card(uuid=uuid, model=MODELS[kind], memory_bytes=size, slots=10),
                owner="native",
            )
            use = CardUse()
            for _ in range(int(per_card) + (chance.random() < per_card % 1)):
                part = chance.choice([2, 4, 8, 16]) * GIB
                cores = chance.choice([0, 10, 20, 30])
                if use.memory_bytes + part <= size and use.reserved_percent + cores <= 100:
                    use = CardUse(
                        use.memory_bytes + part, use.reserved_percent + cores, use.slices + 1
                    )
            uses[uuid] = use
        views.append(NodeView(name=f"node-{i:05}", inventory=Inventory(cards=owned), uses=uses))
    return views


def asked(*requests: Request, init: bool = False) -> Shape:
    """Return the shape of a pod with a container for each request; `init`: the first is one."""
    names = [f"c{i}" for i in range(len(requests))]
    pod = Pod(
        uid="p",
        name="p",
        containers=tuple(
            Container(name=name, kind=ContainerKind.INIT if init and not i else ContainerKind.APP)
            for i, name in enumerate(names)
        ),
    )
    containers = dict(zip(names, requests, strict=True))
    return Shape.of(pod, PodRequest(dialect="native", containers=containers))


def amount(gib: int) -> MemoryAmount:
    """Return an amount of memory."""
    return MemoryAmount(bytes=gib * GIB)


REQUESTS = {
    "one card, 4Gi and 10 % of cores": asked(Request(memory=(amount(4),), cores_percent=(10,))),
    "one card, 60Gi": asked(Request(memory=(amount(60),))),
    "one card, 90Gi (a reason for each node)": asked(Request(memory=(amount(90),))),
    "half a card, spread": asked(
        Request(memory=(MemoryAmount(percent=50),), card_policy=CardPolicy.SPREAD)
    ),
    "four equal cards": asked(Request(count=4, memory=(amount(16),), cores_percent=(20,))),
    "three unequal cards": asked(
        Request(count=3, memory=(amount(40), amount(16), amount(4)), cores_percent=(50, 20, 10))
    ),
    "a whole card": asked(Request(memory=(MemoryAmount(percent=100),))),
    "one model allowed, another denied": asked(
        Request(memory=(amount(8),), models=("h100", "!A100"))
    ),
    "two containers": asked(
        Request(memory=(amount(30),), cores_percent=(30,)), Request(memory=(amount(8),))
    ),
    "two containers of two unequal cards, one of them in percent": asked(
        Request(count=2, memory=(amount(20), amount(4)), cores_percent=(30, 10)),
        Request(count=2, memory=(MemoryAmount(percent=20), MemoryAmount(percent=5))),
    ),
    "seven different amounts": asked(
        Request(count=7, memory=tuple(map(amount, (2, 3, 4, 5, 6, 7, 8))))
    ),
    "init and main container, two cards each": asked(
        Request(count=2, memory=(amount(30),)), Request(count=2, memory=(amount(16),)), init=True
    ),
}

Times = list[tuple[float, float]]
"""Elapsed time and this thread's processor time, in ms."""


def timed(
    call: Callable[[list[str]], object],
    payload: str,
    rounds: int,
    before: Callable[[], object] = lambda: None,
) -> Times:
    """Return how long each call took. Each gets its names fresh from JSON, as a server would."""
    taken = []
    for _ in range(rounds):
        before()
        names = json.loads(payload)
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        call(names)
        cpu, wall = time.thread_time_ns() - began_cpu, time.perf_counter_ns() - began
        taken.append((wall / 1e6, cpu / 1e6))
    return taken


def percentiles(taken: Times) -> dict[str, float]:
    """Return p50 and p99 of both times, in ms."""
    found = {}
    for i, name in enumerate(("wall", "cpu")):
        ordered = sorted(each[i] for each in taken)
        found[f"{name}_p50_ms"] = round(statistics.median(ordered), 3)
        found[f"{name}_p99_ms"] = round(ordered[len(ordered) * 99 // 100], 3)
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure filter and prioritize, building the table, and one node's update."""
    views = cluster(args.nodes, args.cards, args.allocations, args.seed)
    nodes = NodeFit()
    began = time.thread_time()
    for view in views:
        nodes.update(view)
    build_ms = (time.thread_time() - began) * 1000
    names = [view.name for view in views]
    payload = json.dumps(names)
    chance = random.Random(args.seed)

    def change() -> None:
        nodes.update(chance.choice(views))

    gc.collect()
    gc.freeze()  # as the service does after its first sync
    rows = []
    everything: Times = []
    for title, shape in REQUESTS.items():

        def both(names: list[str], shape: Shape = shape) -> None:
            nodes.prioritize(shape, nodes.filter(shape, names).fitting)

        first = timed(both, payload, 1)
        taken = timed(both, payload, args.rounds, change)
        everything += first + taken
        fitting = len(nodes.filter(shape, names).fitting)
        rows.append(
            {
                "request": title,
                "nodes_that_fit": fitting,
                "first_cpu_ms": round(first[0][1], 3),
                **percentiles(taken),
            }
        )
    rows.append(
        {
            "request": "all of these",
            "nodes_that_fit": "",
            "first_cpu_ms": "",
            **percentiles(everything),
        }
    )
    updates = timed(lambda _: change(), "[]", args.rounds)
    return {
        "nodes": args.nodes,
        "cards": args.nodes * args.cards,
        "allocations": sum(use.slices for view in views for use in view.uses.values()),
        "rounds": args.rounds,
        "build_cpu_ms": round(build_ms, 1),
        "update": percentiles(updates),
        "rows": rows,
    }


def machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "processors": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def print_table(result: dict[str, Any]) -> None:
    """Print the rows as a Markdown table."""
    print(
        f"{result['nodes']} nodes, {result['cards']} cards, {result['allocations']} slices held; "
        f"{result['rounds']} rounds; table built in {result['build_cpu_ms']} ms, "
        f"one node's update {result['update']['cpu_p50_ms']} ms"
    )
    heads = ("filter + prioritize, ms", "nodes that fit", "first, cpu", "p50", "p99")
    print(f"\n| {' | '.join(heads)} | p50 cpu | p99 cpu |\n{'| --- ' * 7}|")
    for row in result["rows"]:
        print(
            f"| {row['request']} | {row['nodes_that_fit']} | {row['first_cpu_ms']} "
            f"| {row['wall_p50_ms']} | {row['wall_p99_ms']} "
            f"| {row['cpu_p50_ms']} | {row['cpu_p99_ms']} |"
        )


def main(argv: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.cache fit", description="filter and prioritize")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--cards", type=int, default=8, help="per node")
    parser.add_argument("--allocations", type=int, default=120_000, help="tried; some do not fit")
    parser.add_argument("--rounds", type=int, default=300, help="per request")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    args = parser.parse_args(argv)

    result = {"machine": machine(), **measure(args)}
    print(", ".join(f"{key}: {value}" for key, value in result["machine"].items()))
    print_table(result)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
