# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment: what was acknowledged is there, and no card is given out twice."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.sqlite_store import Store
from tests.scheduler_cache.builders import NODE
from tests.scheduler_cache.messages import allocate, card, report
from tests.scheduler_cache.process import cache_process

ROUNDS = 8
CLIENTS = 4
CARDS = (card("GPU-1", 8), card("GPU-2", 8))

# Reconnect at once after a kill; the default waits longer every time.
QUICKLY = (
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 50),
)


class Client:
    """One container engine's worth of containers. Knows what the cache acknowledged."""

    def __init__(self, number: int, stub: SchedulerCacheStub, seed: int) -> None:
        self.number = number
        self.stub = stub
        self.chance = random.Random(seed)
        self.made = 0
        self.acknowledged: dict[str, pb.Allocation] = {}
        self.released: set[str] = set()
        self.unanswered: set[str] = set()

    async def work(self) -> None:
        """Allocate and release until a call is cut off."""
        while True:
            if self.acknowledged and self.chance.random() < 0.45:
                container_id = self.chance.choice(sorted(self.acknowledged))
                allocation = self.acknowledged.pop(container_id)
                self.unanswered.add(container_id)
                await self.stub.Release(pb.ReleaseRequest(allocation_id=allocation.allocation_id))
                self.unanswered.discard(container_id)
                self.released.add(allocation.allocation_id)
                continue
            self.made += 1
            container_id = f"client{self.number}-{self.made}"
            self.unanswered.add(container_id)
            try:
                response = await self.stub.Allocate(
                    allocate(container_id, self.chance.randint(1, 3), 10)
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self.unanswered.discard(container_id)
                    await asyncio.sleep(0.001)
                    continue
                raise
            self.unanswered.discard(container_id)
            self.acknowledged[container_id] = response.allocation


async def test_nothing_acknowledged_is_lost_and_nothing_is_double_booked(tmp_path: Path) -> None:
    chance = random.Random(20)
    with cache_process(tmp_path) as process:
        async with grpc.aio.insecure_channel(process.address, options=QUICKLY) as channel:
            stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            clients = [Client(i, stub, seed=i) for i in range(CLIENTS)]
            for _ in range(ROUNDS):
                process.start()
                await stub.ReportNode(report(*CARDS), wait_for_ready=True, timeout=60)
                workers = [asyncio.create_task(client.work()) for client in clients]
                await asyncio.sleep(chance.uniform(0.01, 0.15))
                process.kill()
                for worker in workers:
                    with suppress(grpc.aio.AioRpcError):
                        await asyncio.wait_for(worker, 60)

                check_state(tmp_path / "state", clients)

    assert sum(len(client.released) for client in clients) > ROUNDS


def check_state(state_dir: Path, clients: list[Client]) -> None:
    with Store.open(state_dir) as store:
        state = store.load()
    stored = {claim.allocation.claim.container_id: claim.allocation for claim in state.claims}
    ids = {allocation.allocation_id for allocation in stored.values()}
    assert len(stored) == len(state.claims)
    for client in clients:
        for container_id, allocation in client.acknowledged.items():
            kept = stored[container_id]
            assert kept.allocation_id == allocation.allocation_id
            assert [(s.card_uuid, s.memory_bytes) for s in kept.slices] == [
                (s.card_uuid, s.memory_bytes) for s in allocation.slices
            ]
        assert not client.released & ids
    answered = {name for client in clients for name in client.acknowledged}
    cut_off = {name for client in clients for name in client.unanswered}
    assert set(stored) <= answered | cut_off
    for each in CARDS:
        slices = [s for one in stored.values() for s in one.slices if s.card_uuid == each.uuid]
        assert sum(s.memory_bytes for s in slices) <= each.memory_bytes
        assert sum(s.reserved_percent for s in slices) <= 100
    assert {node.name for node in state.nodes} == {NODE}
