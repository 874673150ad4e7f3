# SPDX-License-Identifier: Apache-2.0
"""Pods' containers on a whole node: real runc, the agent as a process, the cluster's own scheduler
cache over mutual TLS, in front of a fake API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.identity import Identity
from scheduler_cache.cluster_server import Running
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.clusters import ClusterNode, Pods, remove_all
from tests.node.conftest import probe_in, totals
from tests.runtime_shim.pods import crio_marks
from tests.scheduler_cache.kube.clusters import PODS
from tests.scheduler_cache.kube.replicas import NODES, Site, asking, bind, leading, node_object
from tests.testbed.certificates import Credentials
from tests.testbed.node import GIB
from tests.testbed.oci import OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

NODE = "worker-1"
UUID = "11111111-2222-4333-8444-555555555555"
OTHER_UUID = "11111111-2222-4333-8444-666666666666"


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return one card of 8 GiB whose contexts cost nothing."""
    return SimulatedGpu.create(
        scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)], context_bytes=0, check_nodes=True
    )


@pytest.fixture
async def site(scratch: Path) -> AsyncIterator[Site]:
    """Yield an API server with the one node, and an authority."""
    folder = scratch / "site"
    folder.mkdir()
    async with FakeApiServer().serving() as server:
        await server.put(NODES, node_object(NODE))
        yield Site(server, folder)


@dataclass
class Cluster:
    """Everything together."""

    site: Site
    node: ClusterNode
    runtime: OciRuntime
    pods: Pods
    port: int
    kubelet: Credentials

    @asynccontextmanager
    async def cache(self) -> AsyncIterator[Running]:
        """Run the leading scheduler cache in the block."""
        listen = (f"127.0.0.1:{self.port}",)
        async with self.site.replica(listen=listen) as replica:
            await leading(replica)
            yield replica

    async def start_agent(self) -> None:
        await asyncio.to_thread(self.node.start_agent)

    async def pod(self, replica: Running, name: str, uuid: str = UUID) -> Identity:
        """Create a pod, have it bound to the node and return who its container is."""
        await until(lambda: has_cards(replica), "the node's cards are known")
        uid = await bind(self.site, replica, asking(name, uuid=uuid), node=NODE)
        return Identity(pod_uid=uid, namespace="default", pod=name, container_name="main")

    async def start(self, identity: Identity, container_id: str, **env: str) -> None:
        bundle = await asyncio.to_thread(self.pods.bundle, container_id, identity, env)
        await asyncio.to_thread(self.runtime.start_detached, bundle, container_id)

    async def refused(self, identity: Identity, container_id: str, **env: str) -> str:
        with pytest.raises(RuntimeFailedError) as caught:
            await self.start(identity, container_id, **env)
        return caught.value.stderr

    async def end(self, container_id: str) -> None:
        await asyncio.to_thread(self.runtime.delete, container_id)

    async def memory(self, container_id: str) -> set[int]:
        """Return every total of card memory that a program in the container sees."""
        return totals(await asyncio.to_thread(probe_in, self.runtime, container_id))


@pytest.fixture
async def cluster(
    site: Site, scratch: Path, gpu: SimulatedGpu, template: Path
) -> AsyncIterator[Cluster]:
    """Yield a cluster of which nothing runs yet but the API server."""
    port = free_port()
    kubelet = site.authority.issue_node(NODE, file="kubelet")
    lines = [
        f'address = "127.0.0.1:{port}"',
        f'ca = "{site.authority.certificate}"',
        f'certificate = "{kubelet.bundle}"',
        'server_name = "vgpu-scheduler-cache"',
    ]
    node = ClusterNode(scratch / "node", gpu, lines)
    runtime = node.runtime()
    pods = Pods(node, scratch / "bundles", template)
    try:
        yield Cluster(site, node, runtime, pods, port, kubelet)
    finally:
        await asyncio.to_thread(remove_all, runtime)
        await asyncio.to_thread(node.__exit__, None, None, None)


def free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


async def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait without holding up the servers of this loop."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


def has_cards(replica: Running) -> bool:
    view = replica.cluster.view(NODE)
    return view is not None and bool(view.inventory.cards)


def answers(node: ClusterNode) -> dict[str, Any]:
    """Return what the agent has stored, by allocation."""
    folder = node.state_dir / "agent" / "answers"
    found = {}
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            found[path.stem] = json.loads(path.read_text())
    return found


async def test_a_pod_s_container_gets_its_slice_and_restarts_with_it(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")

        await cluster.start(identity, "c1", VGPU_CONTAINER_UUID=UUID, VGPU_MEMORY="64Gi")

        assert await cluster.memory("c1") == {2 * GIB}
        await until(lambda: reported_running(replica), "the container is reported")
        await cluster.end("c1")
        await until(lambda: not reported_running(replica), "its end is reported")

        await cluster.start(identity, "c2", VGPU_CONTAINER_UUID=UUID)

        assert await cluster.memory("c2") == {2 * GIB}
        assert answers(cluster.node)[UUID]["container_id"] == "c2"


def reported_running(replica: Running) -> bool:
    report = replica.cluster.reported(NODE)
    return report is not None and UUID in report.running


async def test_crio_s_container_without_uuid_is_known_by_its_pod(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")
        env = {"NVIDIA_VISIBLE_DEVICES": "all"}
        bundle = cluster.pods.bundle("c1", identity, env, annotations=crio_marks(identity))
        await until(
            lambda: "resolved by identity" in cluster.node.log("agent") or not starts(cluster),
            "the answer came by the stream",
        )
        await asyncio.to_thread(cluster.runtime.start_detached, bundle, "c1")

        assert await cluster.memory("c1") == {2 * GIB}
        assert "container resolved by identity" in cluster.node.log("agent")


def starts(cluster: Cluster) -> bool:
    """Return False once the agent has heard of the allocation: `vgpuctl top` awaits it."""
    done = cluster.node.vgpuctl("top", "--once", "--json")
    if done.returncode != 0:
        return True
    return UUID not in {each["allocation_id"] for each in json.loads(done.stdout)["containers"]}


async def test_nobody_takes_the_uuid_of_another_pod(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        victim = await cluster.pod(replica, "p1")
        spy = await cluster.pod(replica, "spy", OTHER_UUID)

        copied = await cluster.refused(spy, "s1", VGPU_CONTAINER_UUID=UUID)
        forged = await cluster.refused(
            replace(victim, pod_uid=spy.pod_uid), "s2", VGPU_CONTAINER_UUID=UUID
        )
        invented = await cluster.refused(
            spy, "s3", VGPU_CONTAINER_UUID="99999999-2222-4333-8444-555555555555"
        )

        assert "another" in copied  # container, or UUID: the stream or the cache said it
        assert victim.pod not in copied
        assert "vgpu: container 'main' (default/p1): " in forged
        assert "vgpu: container 'main' (default/spy): " in invented
        assert answers(cluster.node) == {}
        await cluster.start(spy, "s4", VGPU_CONTAINER_UUID=OTHER_UUID)
        assert await cluster.memory("s4") == {2 * GIB}


async def test_a_pod_that_was_deleted_is_not_started_again(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")
        await cluster.start(identity, "c1", VGPU_CONTAINER_UUID=UUID)
        await until(lambda: reported_running(replica), "it is reported")

        await cluster.site.server.remove(PODS, "p1", "default")
        await cluster.end("c1")
        await until(lambda: UUID not in answers(cluster.node), "the answer is gone")

        assert "deleted" in await cluster.refused(identity, "c2", VGPU_CONTAINER_UUID=UUID)


async def test_a_restart_needs_no_cache_and_is_confirmed_afterwards(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")
        await cluster.start(identity, "c1", VGPU_CONTAINER_UUID=UUID)
    await cluster.end("c1")
    await asyncio.to_thread(cluster.node.stop_agent, signal.SIGKILL)
    await cluster.start_agent()

    await cluster.start(identity, "c2", VGPU_CONTAINER_UUID=UUID)

    assert await cluster.memory("c2") == {2 * GIB}
    assert "container starts from its stored answer" in cluster.node.log("agent")
    stranger = replace(identity, container_name="side")
    await cluster.start(stranger, "c3", NVIDIA_VISIBLE_DEVICES="all")
    assert "GPU-" not in json.dumps(cluster.pods.folder.joinpath("c3/config.json").read_text())
    async with cluster.cache():
        await until(
            lambda: "start from a stored answer confirmed" in cluster.node.log("agent"),
            "it is confirmed",
        )
        await asyncio.to_thread(cluster.runtime.exec, "c2", PROBE)


async def test_a_new_agent_takes_over_what_runs(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")
        await cluster.start(identity, "c1", VGPU_CONTAINER_UUID=UUID)
        await asyncio.to_thread(cluster.node.stop_agent, signal.SIGKILL)

        await cluster.start_agent()

        await until(lambda: reported_running(replica), "the new one reports it")
        second = await cluster.refused(identity, "c2", VGPU_CONTAINER_UUID=UUID)
        assert "container c1 still runs with its slice" in second
        assert await cluster.memory("c1") == {2 * GIB}


async def test_a_renewed_certificate_is_taken_over(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        await until(lambda: has_cards(replica), "the agent has reported")
        before = replica.cluster.reported(NODE)

        cluster.site.authority.issue_node(NODE, file="kubelet")

        await until(lambda: "credentials renewed" in cluster.node.log("agent"), "it is seen")
        await until(lambda: replica.cluster.reported(NODE) is not before, "it reports again")


async def test_a_certificate_of_no_node_is_a_sentence(cluster: Cluster) -> None:
    cluster.site.authority.issue("system:node:worker-1", file="kubelet")

    with pytest.raises(RuntimeError, match="proves no node: it needs CN system:node:NAME"):
        await cluster.start_agent()


async def test_an_image_that_wants_all_sees_nothing_without_a_slice(cluster: Cluster) -> None:
    async with cluster.cache() as replica:
        await cluster.start_agent()
        identity = await cluster.pod(replica, "p1")
        other = replace(identity, pod_uid="0" * 32, pod="plain")
        env = {"NVIDIA_VISIBLE_DEVICES": "all", "VGPU_MEMORY": "1Gi"}

        await cluster.start(other, "c1", **env)

        spec = json.loads(cluster.pods.folder.joinpath("c1/config.json").read_text())
        assert "NVIDIA_VISIBLE_DEVICES=void" in spec["process"]["env"]
        assert not [each for each in spec["process"]["env"] if each.startswith("VGPU_")]
        nodes = await asyncio.to_thread(cluster.runtime.exec, "c1", "ls", "/dev")
        assert "nvidia" not in nodes
        assert "vgpu" not in nodes
