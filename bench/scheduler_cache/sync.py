# SPDX-License-Identifier: Apache-2.0
"""How long a replica takes from exec to synced, and how much memory it then has."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.stage import Stage, print_machine, stage
from bench.scheduler_cache.synthetic import Size
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from tests.testbed.kubernetes import control_plane

_WRITERS = 16


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.cache sync")
    parser.add_argument("--real", action="store_true", help="a real API server with etcd")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--pods", type=int)
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args(arguments)
    nodes, pods = (1000, 10_000) if options.real else (5000, 100_000)
    size = Size(nodes=options.nodes or nodes, pods=options.pods or pods)
    with stage() as place:
        if not options.real:
            _starts(place, place.synthetic(size), size, options.starts, "synthetic API server")
            return
        with control_plane(place.folder / "plane") as plane:
            kubeconfig = plane.kubeconfig(place.folder / "kubeconfig")
            asyncio.run(_fill(kubeconfig, size))
            config = place.config(kubeconfig, own_pod="")
            _starts(place, config, size, options.starts, "kube-apiserver and etcd")


def _starts(place: Stage, config: Path, size: Size, starts: int, server: str) -> None:
    print_machine()
    print(f"{size}; {server}; each start follows a SIGKILL")
    print("| start | exec to synced, s | CPU, s | RSS, MiB | full collection after it, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for number in range(1, starts + 1):
        replica = place.replica(config)
        synced = replica.json()
        cpu = replica.cpu_seconds()
        pauses = replica.ask("pauses")
        print(
            f"| {number} | {synced['seconds']:.2f} | {cpu:.2f} | {synced['rss_mib']:,.0f} "
            f"| {pauses['full_ms']:.1f} |",
            flush=True,
        )
        replica.kill()


async def _fill(kubeconfig: Path, size: Size) -> None:
    """Create nodes and pods, and bind the pods with signed allocations as a leader does."""
    async with KubeClient(KubeconfigConnection(kubeconfig)) as client:
        await _all(client.create("/api/v1/nodes", item) for item in synthetic.nodes(size))
        pods = "/api/v1/namespaces/default/pods"

        async def run(number: int) -> None:
            made = await client.create(pods, synthetic.asking(number))
            node, _ = synthetic.place_of(number, size)
            name = made["metadata"]["name"]
            binding = {
                "metadata": {
                    "name": name,
                    "uid": made["metadata"]["uid"],
                    "annotations": synthetic.allocation_of(made, number, size),
                },
                "target": {"kind": "Node", "name": synthetic.node_name(node)},
            }
            await client.create(f"{pods}/{name}/binding", binding)

        await _all(run(number) for number in range(size.pods))


async def _all(work: object) -> None:
    """Await everything, a few at a time."""
    waiting = iter(work)  # type: ignore[call-overload]

    async def worker() -> None:
        for each in waiting:
            await each

    await asyncio.gather(*(worker() for _ in range(_WRITERS)))
