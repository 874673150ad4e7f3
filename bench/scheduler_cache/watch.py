# SPDX-License-Identifier: Apache-2.0
"""How soon agents hear: all of them reconnecting at once, and one allocation after its Binding."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from collections.abc import Sequence

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.stage import (
    NAME_OPTION,
    Child,
    Stage,
    dialled,
    percentile,
    print_machine,
    stage,
)
from bench.scheduler_cache.synthetic import Size

_REPORTS_AT_ONCE = 20


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.cache watch")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--containers", type=int, default=20, help="on each node")
    parser.add_argument("--bindings", type=int, default=300)
    parser.add_argument("--rate", type=int, default=20, help="bindings a second")
    options = parser.parse_args(arguments)
    size = Size(nodes=options.agents, pods=options.agents * options.containers)
    with stage() as place:
        config = place.synthetic(size)
        url = json.loads((place.folder / "kubeconfig").read_text())["clusters"][0]["cluster"][
            "server"
        ]
        replica = place.replica(config)
        synced = replica.json()
        for number in range(size.pods, size.pods + options.bindings):
            _create(url, synthetic.asking(number))
        print_machine()
        print(f"{size}; mTLS, a connection and a certificate for each agent")
        # Not asyncio.run: gRPC leaves tasks of ended streams that no cancellation ends.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_measure(place, replica, synced["addresses"][0], size, options))
        pauses = replica.ask("pauses")
        print(
            f"garbage collector meanwhile: longest {max(pauses['pauses_ms'], default=0.0):.1f} ms; "
            f"a full one {pauses['full_ms']:.1f} ms; RSS {pauses['rss_mib']:,.0f} MiB"
        )


def _create(url: str, item: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"{url}/api/v1/namespaces/default/pods",
        json.dumps(item).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


async def _measure(
    place: Stage, replica: Child, address: str, size: Size, options: argparse.Namespace
) -> None:
    root = place.authority.certificate.read_bytes()
    proofs = [place.authority.issue_node(synthetic.node_name(each)) for each in range(size.nodes)]
    keys = [(proof.key.read_bytes(), proof.certificate.read_bytes()) for proof in proofs]
    snapshots: list[float] = []
    held: list[int] = []
    heard: dict[str, int] = {}
    all_there = asyncio.Event()
    reporting = asyncio.Semaphore(_REPORTS_AT_ONCE)
    cpu = replica.cpu_seconds()
    started = time.monotonic()

    async def agent(number: int) -> None:
        credentials = grpc.ssl_channel_credentials(root, *keys[number])
        # A connection of its own, though all are from this process.
        own = (("grpc.use_local_subchannel_pool", 1), NAME_OPTION)
        async with grpc.aio.secure_channel(dialled(address), credentials, own) as channel:
            stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            watch = stub.WatchNode(pb.WatchNodeRequest(), wait_for_ready=True)
            first = await watch.read()
            snapshots.append(time.monotonic() - started)
            held.append(len(first.snapshot.allocations))
            if len(snapshots) == size.nodes:
                all_there.set()
            await all_there.wait()
            async with reporting:
                await _report(stub, number, size)
            ready.release()
            while True:
                event = await watch.read()
                heard.setdefault(event.upsert.allocation_id, time.monotonic_ns())

    ready = asyncio.Semaphore(0)
    agents = [asyncio.create_task(agent(number)) for number in range(size.nodes)]
    await all_there.wait()
    cpu = replica.cpu_seconds() - cpu
    print("| what | p50 | p99 | last |\n| --- | ---: | ---: | ---: |")
    p50, p99 = (percentile(snapshots, each) for each in (50, 99))
    print(
        f"| {size.nodes:,} agents connect at once: snapshot of {min(held)}..{max(held)} containers "
        f"| {p50:.2f} s | {p99:.2f} s | {max(snapshots):.2f} s |",
        flush=True,
    )
    for _ in agents:
        await ready.acquire()
    replica.tell(f"bind {size.pods} {options.bindings} {size.nodes} {options.rate}")
    answer = json.loads(await asyncio.to_thread(replica.read))
    deadline = time.monotonic() + 30
    while not answer["accepted"].keys() <= heard.keys() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    lags = [(heard[each] - at_ns) / 1e6 for each, at_ns in answer["accepted"].items()]
    p50, p99 = (percentile(lags, each) for each in (50, 99))
    print(
        f"| {len(lags)} Bindings at {options.rate}/s: from accepted to the agent "
        f"| {p50:.2f} ms | {p99:.2f} ms | {max(lags):.2f} ms |"
    )
    print(f"CPU of the cache for all snapshots: {cpu:.2f} s; Bindings refused: {answer['failed']}")
    for task in agents:
        task.cancel()
    await asyncio.gather(*agents, return_exceptions=True)


async def _report(stub: SchedulerCacheStub, number: int, size: Size) -> None:
    """Report the node's cards, once there is a leader that takes it."""
    request = synthetic.report_of(number, size)
    while True:
        call = stub.ReportNode(request, timeout=30)
        if await call.code() is grpc.StatusCode.OK:
            return
        await asyncio.sleep(0.2)
