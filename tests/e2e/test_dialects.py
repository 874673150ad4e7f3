# SPDX-License-Identifier: Apache-2.0
"""Pods written for seven systems, on one node where none of them is left (replace mode)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.e2e.namespace import Namespace, allocation
from tests.e2e.plugins import bare_gpu_claimed
from tests.e2e.pods import STAY, container, pod
from tests.e2e.slices import sees_its_slice

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GIB = 1 << 30


@dataclass(frozen=True)
class Asked:
    """One GiB of a card, and a tenth of its time where the system knows of time."""

    limits: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cores_percent: int = 10
    keys: tuple[str, ...] = ()
    """What the system's own tools read on the pod."""


ASKED = {
    "native": Asked(
        {"vgpu.dev/count": "1", "vgpu.dev/memory": "1Gi", "vgpu.dev/cores": "10"},
    ),
    "hami": Asked(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "10"},
        keys=("hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"),
    ),
    "volcano": Asked(
        {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": "1024",
            "volcano.sh/vgpu-cores": "10",
        },
        keys=("volcano.sh/vgpu-node", "volcano.sh/vgpu-ids-new"),
    ),
    "koordinator": Asked(
        {
            "koordinator.sh/gpu.shared": "1",
            "koordinator.sh/gpu-core": "10",
            "koordinator.sh/gpu-memory": "1Gi",
        },
        keys=("scheduling.koordinator.sh/device-allocated",),
    ),
    # Its fractions are of memory alone.
    "kai": Asked(annotations={"gpu-memory": "1024"}, cores_percent=100),
    "gpu-manager": Asked(
        {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "4"},
        keys=("tencent.com/predicate-node", "tencent.com/predicate-gpu-idx-0"),
    ),
    "alnair": Asked(
        {"alnair/vgpu-memory": "1", "alnair/vgpu-compute": "10"},
        keys=("ai.centaurus.io/alnair-gpu-id",),
    ),
}


@pytest.fixture
async def ours(namespace: Namespace) -> AsyncIterator[Namespace]:
    """Yield a namespace while the node's `nvidia.com/gpu` is HAMi's, as its pods expect."""
    async with bare_gpu_claimed(namespace.cluster):
        yield namespace
        await namespace.clear()


async def test_a_pod_of_each_dialect_sees_what_it_asked_for(ours: Namespace) -> None:
    await ours.create(
        *(
            pod(
                name,
                container(asked=asked.limits),
                container("plain", script=f"ls /dev; {STAY}"),
                annotations=asked.annotations,
            )
            for name, asked in ASKED.items()
        )
    )

    for name, item in zip(ASKED, await ours.running(*ASKED), strict=True):
        asked = ASKED[name]
        await sees_its_slice(ours, item)
        [given] = allocation(item)["main"]
        assert (given["memory_bytes"], given["cores_percent"]) == (GIB, asked.cores_percent), name
        marks = item["metadata"]["annotations"]
        assert set(asked.keys) <= marks.keys(), name
        assert "plain" not in allocation(item), name
        assert not {"vgpu", "nvidiactl"} & set((await ours.log(name, "plain")).split()), name
