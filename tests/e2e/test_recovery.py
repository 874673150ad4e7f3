# SPDX-License-Identifier: Apache-2.0
"""Every part is killed in the middle of a pod's start, and started again as its host would."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.namespace import Namespace, allocation, until
from tests.e2e.pods import container, limits, pod
from tests.e2e.slices import sees_its_slice

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REPLICAS = ("cache-0", "cache-1")
LEADER = "the leader"
VICTIMS = (
    ("agent",),
    (LEADER,),
    REPLICAS,
    ("kubelet",),
    ("containerd",),
    ("kube-apiserver",),
    ("etcd",),
    ("agent", *REPLICAS, "kubelet", "kube-apiserver"),
)


@pytest.mark.parametrize("victims", VICTIMS, ids=" and ".join)
async def test_a_kill_in_the_middle_costs_no_pod_its_slice(
    namespace: Namespace, victims: tuple[str, ...]
) -> None:
    cluster = namespace.cluster
    await namespace.create(pod("before", container(asked=limits("2Gi", cores=20))))
    [before] = await namespace.running("before")
    leader = await leading(namespace)
    parts = [leader if name == LEADER else name for name in victims]

    # Between its creation and its start anything may be under way. A kubelet without its device
    # plugin refuses a pod that was bound to it, for ever: whoever made the pod makes another.
    await namespace.keep(pod("during", container(asked=limits("3Gi", cores=30))))
    for part in parts:
        await asyncio.to_thread(cluster.kill, part)
    for part in reversed(parts):
        await asyncio.to_thread(cluster.start, part)

    await asyncio.to_thread(cluster.whole)
    during = await namespace.kept("during")
    await sees_its_slice(namespace, during)
    await namespace.create(pod("after", container(asked=limits("1Gi", cores=10))))
    [after] = await namespace.running("after")
    await sees_its_slice(namespace, after)
    [still] = await namespace.running("before")
    assert allocation(still) == allocation(before)
    assert started(still) == started(before)  # the container that ran has gone on
    await sees_its_slice(namespace, still)


async def leading(namespace: Namespace) -> str:
    """Wait until one replica leads; return its name."""
    found = ""

    async def one() -> bool:
        nonlocal found
        found = await asyncio.to_thread(namespace.cluster.replicas.leader)
        return bool(found)

    await until(one, "one replica leads")
    return found


def started(item: object) -> list[tuple[str, int]]:
    statuses = item["status"]["containerStatuses"]  # type: ignore[index]
    return [(each["containerID"], each["restartCount"]) for each in statuses]
