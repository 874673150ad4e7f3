# SPDX-License-Identifier: Apache-2.0
"""Allocations and answers for tests."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import RUNNING, Answer
from runtime_shim.processes import boot_id

GIB = 1 << 30
CARD = "GPU-00000000-0000-4000-8000-000000000001"
OTHER_CARD = "GPU-00000000-0000-4000-8000-000000000002"


def part(card_uuid: str = CARD, memory_bytes: int = 2 * GIB, cores_percent: int = 25) -> pb.Slice:
    """Return a slice in hard mode."""
    return pb.Slice(
        card_uuid=card_uuid,
        memory_bytes=memory_bytes,
        cores_percent=cores_percent,
        reserved_percent=cores_percent,
        cores_max_percent=cores_percent,
        compute_mode=pb.COMPUTE_MODE_HARD,
        weight=1,
    )


def allocation(
    *parts: pb.Slice, container_id: str = "c1", root: str = "", allocation_id: str = ""
) -> pb.Allocation:
    """Return an allocation of a container of this host; one slice unless told otherwise."""
    return pb.Allocation(
        allocation_id=allocation_id or str(uuid.uuid4()),
        slices=parts or (part(),),
        claim=pb.ClaimKey(runtime_root=root, container_id=container_id),
    )


def answer(given: pb.Allocation | None = None, **changes: Any) -> Answer:  # noqa: ANN401
    """Return the answer of a running container of this boot, with fields changed."""
    given = given or allocation()
    plain = Answer(
        allocation=given,
        request=pb.AllocationRequest(count=1, memory=[pb.MemoryAmount(bytes=2 * GIB)]),
        runtime_root=given.claim.runtime_root,
        container_id=given.claim.container_id,
        bundle="/bundle",
        engine_directory="/",
        pid_file="",
        boot_id=boot_id(),
        init_seen=False,
        verdict_boottime_ns=0,
        state=RUNNING,
        since_unix_ns=1,
    )
    return replace(plain, **changes)
