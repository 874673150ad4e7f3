# SPDX-License-Identifier: Apache-2.0
"""Short ways to make messages of `vgpu.v1`."""

from __future__ import annotations

import time

from vgpu.v1 import scheduler_cache_pb2 as pb

from tests.scheduler_cache.builders import GIB, NODE


def card(uuid: str, gib: int = 8, slots: int = 10) -> pb.Card:
    return pb.Card(
        uuid=uuid,
        kind=pb.CARD_KIND_GPU,
        model="NVIDIA H100",
        memory_bytes=gib * GIB,
        slots=slots,
        healthy=True,
    )


def request(gib: int, *cores: int, count: int = 1) -> pb.AllocationRequest:
    return pb.AllocationRequest(
        count=count, memory=[pb.MemoryAmount(bytes=gib * GIB)], cores_percent=cores
    )


def allocate(container_id: str, gib: int, *cores: int, count: int = 1) -> pb.AllocateRequest:
    return pb.AllocateRequest(
        claim=pb.ClaimKey(runtime_root="/run/runc", container_id=container_id),
        node_name=NODE,
        request=request(gib, *cores, count=count),
    )


def report(*cards: pb.Card, claims: tuple[pb.Claim, ...] = ()) -> pb.ReportNodeRequest:
    return pb.ReportNodeRequest(node_name=NODE, cards=cards, claims=claims, ready=True)


def told(
    allocation: pb.Allocation, state: int = pb.CLAIM_STATE_RUNNING, ago_seconds: float = 0
) -> pb.Claim:
    return pb.Claim(
        allocation=allocation,
        state=state,  # type: ignore[arg-type]
        since_unix_ns=time.time_ns() - int(ago_seconds * 1e9),
    )
