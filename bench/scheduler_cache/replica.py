# SPDX-License-Identifier: Apache-2.0
"""The cache as a process that can be told to bind pods, and asked what its work cost.

Lines of JSON on standard output: `synced`, then one answer for each line of standard input:
`bind FIRST COUNT SIZE_NODES RATE`, `report NODES CARDS` (what the agents of all nodes would tell),
`verbs` (the extender's answers so far), `leads`, `state` (what it remembers and what that costs),
`pauses`. It ends with its input.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import sys
import time
from pathlib import Path

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.synthetic import Size
from scheduler_cache.cache import Report
from scheduler_cache.cluster_server import Running, running
from scheduler_cache.config import Config
from scheduler_cache.model import Node

_TRIES = 5


class Collector:
    """How long each garbage collection has stopped the process, in ms of processor time.

    Time by the clock would count what else ran on a busy machine.
    """

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._started = 0.0
        gc.callbacks.append(self._seen)

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = time.thread_time()
        else:
            self.pauses.append((time.thread_time() - self._started) * 1e3)


def rss_mib() -> float:
    """Return the resident set of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel tells no VmRSS")


async def _bind(replica: Running, first: int, count: int, nodes: int, rate: float) -> object:
    """Bind pods at a rate; return when the API server had accepted each, by container UUID."""
    accepted: dict[str, int] = {}
    confirm = replica.cluster.confirm
    uids = {}
    for number in range(first, first + count):
        record = replica.cluster.pod_named("default", synthetic.pod_name(number))
        assert record is not None, number
        uids[number] = record.pod.uid
    by_uid = {uid: synthetic.container_uuid(number) for number, uid in uids.items()}

    def confirmed(uid: str, now_ns: int) -> object:
        accepted[by_uid[uid]] = time.monotonic_ns()
        return confirm(uid, now_ns)

    replica.cluster.confirm = confirmed  # type: ignore[method-assign, assignment]
    tasks = []
    start = time.monotonic()
    for place, (number, uid) in enumerate(uids.items()):
        await asyncio.sleep(max(0.0, start + place / rate - time.monotonic()))
        node = synthetic.node_name(number % nodes)
        tasks.append(asyncio.create_task(replica.leader.bind(uid, node)))
    failed = [
        str(each)
        for each in await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(each, BaseException)
    ]
    return {"accepted": accepted, "failed": failed}


async def _leading(replica: Running) -> None:
    while not replica.election.leading or replica.leader._fresh_epoch == 0:
        await asyncio.sleep(0.05)


def _report(replica: Running, nodes: int, cards: int) -> int:
    """Take a report of every node; return how many there are."""
    size = Size(nodes=nodes, pods=0, cards=cards)
    for number in range(nodes):
        node = Node(
            name=synthetic.node_name(number), cards=synthetic.cards_of(number, size), ready=True
        )
        report = Report(node=node, running=frozenset(), claims=())
        replica.feed.publish(replica.cluster.apply_report(report, time.monotonic_ns()))
    return nodes


def _verbs(replica: Running) -> dict[str, dict[str, dict[str, float]]]:
    """Return calls and seconds of the extender, by verb and outcome."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for metric in replica.metrics.registry.collect():
        if metric.name != "vgpu_cache_extender_seconds":
            continue
        for sample in metric.samples:
            kind = sample.name.rpartition("_")[2]
            if kind in ("count", "sum"):
                by_outcome = found.setdefault(sample.labels["verb"], {})
                by_outcome.setdefault(sample.labels["outcome"], {})[kind] = sample.value
    return found


def _state(replica: Running) -> dict[str, object]:
    """Return how much is remembered, and what it costs to derive a node from it."""
    gc.collect()
    # Free memory that the allocator keeps is not memory that the replica remembers.
    ctypes.CDLL(None).malloc_trim(0)
    cluster = replica.cluster
    names = cluster.node_names
    costs = []
    for name in names:
        tries = []
        for _ in range(_TRIES):
            started = time.thread_time()
            cluster._derive(name)
            tries.append(time.thread_time() - started)
        costs.append(min(tries))
    views = [view for name in names if (view := cluster.view(name)) is not None]
    return {
        "leading": replica.election.leading,
        "pods": len(replica.feed.pods),
        "records": len(list(cluster.records)),
        "held_bytes": sum(use.memory_bytes for view in views for use in view.uses.values()),
        "derive_us": max(costs, default=0.0) * 1e6,
        "rss_mib": rss_mib(),
    }


async def _main(config: Config, started_ns: int) -> None:
    collector = Collector()
    async with running(config) as replica:
        await replica.feed.wait_synced()
        synced = {
            "seconds": (time.monotonic_ns() - started_ns) / 1e9,
            "rss_mib": rss_mib(),
            "objects": sum(map(len, replica.feed.informers)),
            "addresses": replica.addresses,
            "extender": replica.extender_addresses,
        }
        await asyncio.sleep(0.5)
        collector.pauses.clear()
        print(json.dumps(synced), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            word, *numbers = line.split()
            answer: object
            if word == "report":
                await _leading(replica)
                answer = _report(replica, *map(int, numbers))
            elif word == "verbs":
                answer = _verbs(replica)
            elif word == "leads":
                answer = replica.election.leading
            elif word == "state":
                answer = _state(replica)
            elif word == "bind":
                await _leading(replica)
                first, count, nodes, rate = map(int, numbers)
                answer = await _bind(replica, first, count, nodes, rate)
            else:
                before = len(collector.pauses)
                gc.collect()
                answer = {
                    "pauses_ms": collector.pauses[:before],
                    "full_ms": collector.pauses[-1],
                    "rss_mib": rss_mib(),
                }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(Config.load(Path(sys.argv[1])), int(sys.argv[2])))
