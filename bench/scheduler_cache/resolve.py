# SPDX-License-Identifier: Apache-2.0
"""How fast a node gets an answer: latency at a steady rate, and the most that one core serves."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
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


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.cache resolve")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=500, help="calls a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=20)
    options = parser.parse_args(arguments)
    size = Size(nodes=options.nodes, pods=options.pods)
    server_cpu, *others = sorted(os.sched_getaffinity(0))
    with stage() as place:
        config = place.synthetic(size)
        replica = place.replica(config)
        synced = replica.json()
        os.sched_setaffinity(replica.process.pid, [server_cpu])
        os.sched_setaffinity(0, others or [server_cpu])
        print_machine()
        print(f"{size}; mTLS; the cache on one processor, its callers on the others")
        asyncio.run(_measure(place, replica, synced["addresses"][0], size, options))
        pauses = replica.ask("pauses")
        print(
            f"garbage collector meanwhile: {len(pauses['pauses_ms'])} collections, longest "
            f"{max(pauses['pauses_ms'], default=0.0):.1f} ms; a full one {pauses['full_ms']:.1f} ms"
        )


async def _measure(
    place: Stage, replica: Child, address: str, size: Size, options: argparse.Namespace
) -> None:
    stubs = []
    nodes = random.Random(1).sample(range(size.nodes), options.connections)
    for node in nodes:
        proof = place.authority.issue_node(synthetic.node_name(node))
        credentials = grpc.ssl_channel_credentials(
            place.authority.certificate.read_bytes(),
            proof.key.read_bytes(),
            proof.certificate.read_bytes(),
        )
        channel = grpc.aio.secure_channel(dialled(address), credentials, (NAME_OPTION,))
        stubs.append((node, SchedulerCacheStub(channel)))  # type: ignore[no-untyped-call]
    per_node = size.pods // size.nodes

    async def call(number: int) -> float:
        node, stub = stubs[number % len(stubs)]
        pod = node + size.nodes * (number // len(stubs) % per_node)
        request = pb.ResolveRequest(
            container_uuid=synthetic.container_uuid(pod),
            pod=pb.PodIdentity(
                uid=synthetic.pod_uid(pod),
                namespace="default",
                name=synthetic.pod_name(pod),
                container_name="main",
            ),
        )
        started = time.perf_counter()
        answer = await stub.Resolve(request, timeout=8)
        seconds = time.perf_counter() - started
        assert answer.allocation.slices
        return seconds

    await asyncio.gather(*(call(number) for number in range(len(stubs) * 5)))
    print(
        "| what | calls/s | p50 ms | p99 ms | max ms | cache's CPU, ms a call | = calls/s a core |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")

    cpu = replica.cpu_seconds()
    started = time.perf_counter()
    tasks = []
    for number in range(int(options.rate * options.seconds)):
        await asyncio.sleep(max(0.0, started + number / options.rate - time.perf_counter()))
        tasks.append(asyncio.create_task(call(number)))
    steady = await asyncio.gather(*tasks)
    _row("steady", steady, time.perf_counter() - started, replica.cpu_seconds() - cpu)

    async def caller(first: int, until: float) -> list[float]:
        found = []
        while time.perf_counter() < until:
            found.append(await call(first))
            first += 1
        return found

    cpu = replica.cpu_seconds()
    started = time.perf_counter()
    results = await asyncio.gather(
        *(caller(each * 997, started + options.seconds / 2) for each in range(32))
    )
    _row(
        "as many as it serves (32 callers)",
        [each for result in results for each in result],
        time.perf_counter() - started,
        replica.cpu_seconds() - cpu,
    )


def _row(what: str, seconds: Sequence[float], elapsed: float, cpu: float) -> None:
    p50, p99 = (percentile(seconds, each) * 1e3 for each in (50, 99))
    print(
        f"| {what} | {len(seconds) / elapsed:,.0f} | {p50:.2f} | {p99:.2f} "
        f"| {max(seconds) * 1e3:.1f} | {cpu / len(seconds) * 1e3:.3f} "
        f"| {len(seconds) / cpu:,.0f} |",
        flush=True,
    )
