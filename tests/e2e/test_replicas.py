# SPDX-License-Identifier: Apache-2.0
"""Two replicas of the cache in front of the real API server: from a pod to its node's agent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache.cluster_server import Running, running
from scheduler_cache.errors import NoRoomError
from scheduler_cache.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import pod, until
from tests.scheduler_cache.kube.replicas import A, Site, leading, report, resolve
from tests.testbed.kubernetes import ControlPlane, control_plane

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    # CPython 3.11 leaves the socket of a cancelled TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SYSTEM = "/api/v1/namespaces/vgpu-system"
DEFAULT = "/api/v1/namespaces/default/pods"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Yield a control plane of this test's own: its namespace and Lease are everybody's names."""
    with control_plane(tmp_path / "plane") as plane:
        yield plane


@pytest.fixture
async def replicas(
    plane: ControlPlane, client: KubeClient, scratch: Path
) -> AsyncIterator[tuple[Site, Running, Running]]:
    """Yield two replicas, each with a pod of its own; the first leads."""
    site = Site(FakeApiServer(), scratch)
    async with AsyncExitStack() as stack:
        found: list[Running] = []
        await client.create("/api/v1/namespaces", {"metadata": {"name": "vgpu-system"}})
        for number in range(2):
            name = f"replica-{number}"
            item = pod(name, namespace="vgpu-system")
            await client.create(f"{SYSTEM}/pods", item)
            config = site.config(name)
            plane.kubeconfig(Path(config.kubernetes.kubeconfig))
            replica = await stack.enter_async_context(running(config))
            await replica.feed.wait_synced()
            if not found:
                await leading(replica)
            found.append(replica)
        yield site, found[0], found[1]


def asking(name: str, container_uuid: str) -> dict[str, object]:
    item = pod(name)
    item["spec"]["containers"][0].update(
        resources={"limits": {"vgpu.dev/count": "1", "vgpu.dev/memory": "8Gi"}},
        env=[{"name": "VGPU_CONTAINER_UUID", "value": container_uuid}],
    )
    return item


async def test_a_pod_is_bound_once_and_its_node_hears_of_it_whatever_dies(
    plane: ControlPlane, client: KubeClient, replicas: tuple[Site, Running, Running]
) -> None:
    site, leader, follower = replicas
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    await client.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
    await until(lambda: follower.cluster.view("n1") is not None)
    await until(lambda: leader.cluster.view("n1") is not None)
    async with site.node(leader, "n1") as node, site.node(follower, "n1") as other:
        await node.ReportNode(report("n1", A), timeout=20)
        watches = [each.WatchNode(pb.WatchNodeRequest(), timeout=300) for each in (node, other)]
        for watch in watches:
            assert not (await watch.read()).snapshot.allocations
        made = await client.create(DEFAULT, asking("p1", first))
        uid = made["metadata"]["uid"]
        await until(lambda: leader.cluster.record(uid) is not None)

        reservation = await leader.leader.bind(uid, "n1")

        for watch in watches:
            assert (await watch.read()).upsert.allocation_id == first
        bound = await client.get(f"{DEFAULT}/p1")
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"].items() >= reservation.annotations.items()
        await until(lambda: follower.cluster.record(uid) is not None)
        assert (await client.get(f"{SYSTEM}/pods/replica-0"))["metadata"]["labels"] == {
            "vgpu.dev/leader": "true"
        }

        await asyncio.to_thread(plane.kill, "kube-apiserver")
        assert (await node.Resolve(resolve(first), timeout=20)).allocation.allocation_id == first
        await asyncio.to_thread(plane.start)
        await until(lambda: leader.election.leading or follower.election.leading, "one leads")
        now = leader if leader.election.leading else follower
        await leading(now)
        async with site.node(now, "n1") as agent:
            await agent.ReportNode(report("n1", A), timeout=20)
            waiting = await client.create(DEFAULT, asking("p2", second))
            await until(lambda: now.cluster.record(waiting["metadata"]["uid"]) is not None)
            with pytest.raises(NoRoomError, match="8.0Gi"):
                await now.leader.bind(waiting["metadata"]["uid"], "n1")
            await client.delete(f"{DEFAULT}/p1", {"gracePeriodSeconds": 0})
            await until(lambda: (r := now.cluster.record(uid)) is None or r.gone)
            await agent.ReportNode(report("n1", A), timeout=20)
            await now.leader.bind(waiting["metadata"]["uid"], "n1")
            answer = await agent.Resolve(resolve(second), timeout=20)
        assert answer.allocation.slices[0].memory_bytes == 8 << 30
        inventory = (await client.get("/api/v1/nodes/n1"))["metadata"]["annotations"]
        assert A in inventory["vgpu.dev/inventory"]
        for watch in watches:
            watch.cancel()
        with pytest.raises(grpc.aio.AioRpcError):
            await other.ReportNode(report("n2"), timeout=20)
