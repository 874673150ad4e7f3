# SPDX-License-Identifier: Apache-2.0
"""The agent of a cluster's node as a process, before a scheduler cache that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.readings import read_readings
from runtime_shim.spec import environment
from tests.fakes.gpu import Card, SimulatedGpu
from tests.fakes.kubelet import running_kubelet
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.fakes.scheduler_cache import ScriptedCache, Streams, serving_tls
from tests.node.clusters import ClusterNode
from tests.runtime_shim.allocations import GIB, part
from tests.runtime_shim.launchers import ask, request
from tests.runtime_shim.pods import MAIN, pod_allocation, pod_spec
from tests.runtime_shim.test_agent import until
from tests.runtime_shim.test_create import Bundle
from tests.testbed.certificates import CertificateAuthority, Credentials

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
WITH_UUID = f"VGPU_CONTAINER_UUID={UUID}"
SYS_ADMIN = {"effective": ["CAP_SYS_ADMIN"], "permitted": ["CAP_SYS_ADMIN"]}


@dataclass
class Cluster:
    """A node, and a cache that a test can stop, start and let say anything."""

    node: ClusterNode
    cache: ScriptedCache
    streams: Streams
    authority: CertificateAuthority
    server: Credentials
    port: int

    @property
    def gpu_uuid(self) -> str:
        assert self.node.gpu is not None
        return self.node.gpu.uuid()

    def allocation(self) -> pb.Allocation:
        return pod_allocation(part(self.gpu_uuid), container_uuid=UUID)

    def awaited(self) -> set[str]:
        """Return the allocations that the agent knows and whose container has not started."""
        try:
            readings = read_readings(self.node.run_dir)
        except OSError:
            return set()
        return {each.allocation_id for each in readings.containers if not each.running}

    async def start_agent(self) -> None:
        await asyncio.to_thread(self.node.start_agent)

    async def create(self, bundle: Bundle, container_id: str = "c1") -> dict[str, str]:
        return await ask(
            self.node.agent_socket, request(bundle.folder, container_id), bundle.folder
        )


@pytest.fixture
async def cluster(scratch: Path, needs_root: None) -> AsyncIterator[Cluster]:
    gpu = SimulatedGpu.create(scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)])
    authority = CertificateAuthority(scratch / "ca")
    server = authority.issue_server("cache.example")
    kubelet = authority.issue_node("testbed")
    cache = ScriptedCache()
    async with serving_tls(cache, authority, server) as port:
        node = ClusterNode(
            scratch / "node",
            gpu,
            [
                f'address = "127.0.0.1:{port}"',
                f'ca = "{authority.certificate}"',
                f'certificate = "{kubelet.bundle}"',
                'server_name = "cache.example"',
            ],
        )
        try:
            yield Cluster(node, cache, Streams(cache), authority, server, port)
        finally:
            await asyncio.to_thread(node.__exit__, None, None, None)


@pytest.fixture
def bundle(scratch: Path) -> Bundle:
    return Bundle(scratch / "bundle", pod_spec(WITH_UUID))


async def test_what_the_stream_told_is_answered_without_a_question(
    cluster: Cluster, bundle: Bundle
) -> None:
    cluster.streams.snapshot()
    cluster.streams.upsert(cluster.allocation())
    await cluster.start_agent()
    await until(lambda: UUID in cluster.awaited())

    reply = await cluster.create(bundle)

    assert reply == {"verdict": "low-level"}
    assert environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"] == cluster.gpu_uuid
    assert cluster.cache.resolves == []
    await until(lambda: UUID in cluster.cache.reports[-1].running_allocation_ids)
    (claim,) = cluster.cache.reports[-1].claims
    assert (claim.state, claim.allocation.pod.uid) == (pb.CLAIM_STATE_RUNNING, MAIN.pod_uid)
    assert cluster.cache.reports[-1].node_name == "testbed"
    assert cluster.cache.reports[-1].ready


async def test_the_cache_s_address_of_a_pod_s_variable_goes_before_the_file_s(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The DaemonSet's agent knows its Service by a variable alone.
    config = cluster.node.directory / "agent.toml"
    config.write_text(config.read_text().replace(f"127.0.0.1:{cluster.port}", "127.0.0.1:1"))
    monkeypatch.setenv("VGPU_CACHE_ADDRESS", f"127.0.0.1:{cluster.port}")
    cluster.streams.snapshot()

    await cluster.start_agent()

    await until(lambda: cluster.cache.streams == 1)


async def test_a_message_that_is_missing_begins_a_new_stream(cluster: Cluster) -> None:
    cluster.streams.snapshot()
    await cluster.start_agent()
    await until(lambda: cluster.cache.streams == 1)

    cluster.streams.skip()
    cluster.streams.upsert(cluster.allocation())

    await until(lambda: cluster.cache.streams >= 2)
    assert "watch stream skipped from 1 to 3" in cluster.node.log("agent")


async def test_without_a_stream_the_cache_is_asked(cluster: Cluster, bundle: Bundle) -> None:
    cluster.cache.resolve = lambda _: pb.ResolveResponse(allocation=cluster.allocation())
    await cluster.start_agent()

    reply = await cluster.create(bundle)

    assert reply == {"verdict": "low-level"}
    (asked,) = cluster.cache.resolves
    assert (asked.container_uuid, asked.pod.container_name) == (UUID, "main")


async def test_the_cache_s_no_reaches_the_engine(cluster: Cluster, bundle: Bundle) -> None:
    cluster.cache.resolve = lambda _: (grpc.StatusCode.NOT_FOUND, "pod team-a/train-0 was deleted")
    await cluster.start_agent()

    reply = await cluster.create(bundle)

    assert reply["verdict"] == "refuse"
    assert reply["message"] == (
        "vgpu: container 'main' (team-a/train-0): pod team-a/train-0 was deleted;"
        " a container that was deleted is not started again"
    )


async def test_a_cache_that_goes_and_comes_back_is_followed_again(cluster: Cluster) -> None:
    cache = ScriptedCache()
    streams = Streams(cache)
    streams.snapshot()
    async with serving_tls(cache, cluster.authority, cluster.server) as port:
        path = cluster.node.directory / "agent.toml"
        path.write_text(path.read_text().replace(str(cluster.port), str(port)))
        await cluster.start_agent()
        await until(lambda: cache.streams == 1 and cache.reports)
    await until(lambda: "cache not followed" in cluster.node.log("agent"))

    again = ScriptedCache()
    Streams(again).snapshot()
    async with serving_tls(again, cluster.authority, cluster.server, port=port):
        await until(lambda: again.streams >= 1)
        await until(lambda: again.reports)


async def test_a_replica_that_takes_no_reports_is_left(cluster: Cluster) -> None:
    cluster.cache.failures = [
        (grpc.StatusCode.UNAVAILABLE, "this replica does not lead; retrying is safe")
    ] * 3
    cluster.streams.snapshot()
    cluster.streams.snapshot()

    await cluster.start_agent()

    await until(lambda: cluster.cache.reports)
    await until(lambda: cluster.cache.streams >= 1)
    assert "does not lead" in cluster.node.log("agent")


async def test_a_plain_network_is_refused_at_the_start(cluster: Cluster) -> None:
    path = cluster.node.directory / "agent.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("ca =")]
    path.write_text("\n".join(lines))

    with pytest.raises(RuntimeError, match=r"cache\.ca is empty: without it anybody could be"):
        await cluster.start_agent()


async def test_a_refused_container_is_reported_and_so_is_its_later_start(
    cluster: Cluster, bundle: Bundle
) -> None:
    cluster.streams.snapshot(cluster.allocation())
    await cluster.start_agent()
    await until(lambda: UUID in cluster.awaited())
    good = bundle.spec()
    bundle.write({**good, "process": {**good["process"], "capabilities": SYS_ADMIN}})

    assert (await cluster.create(bundle))["verdict"] == "refuse"
    await until(lambda: cluster.cache.reports[-1].isolation)
    (told,) = cluster.cache.reports[-1].isolation
    assert (told.pod.uid, told.pod.container_name) == (MAIN.pod_uid, "main")
    assert told.state == pb.ISOLATION_STATE_REFUSED
    assert "CAP_SYS_ADMIN" in told.reason

    bundle.write(good)
    assert await cluster.create(bundle) == {"verdict": "low-level"}
    await until(lambda: cluster.cache.reports[-1].isolation[0].state == pb.ISOLATION_STATE_ENFORCED)
    (told,) = cluster.cache.reports[-1].isolation
    assert (told.allocation_id, told.reason) == (UUID, "")


async def test_a_node_advertises_its_slots_and_takes_back_those_of_a_lost_card(
    cluster: Cluster,
) -> None:
    cluster.streams.snapshot()
    async with running_kubelet(cluster.node.kubelet_dir) as kubelet:
        await cluster.start_agent()
        await until(lambda: kubelet.healthy("vgpu.dev/count") == 10)
        await until(lambda: cluster.cache.reports[-1].served_resources == ["vgpu.dev/count"])
        assert cluster.node.gpu is not None

        cluster.node.gpu.set_lost(0)

        await until(lambda: kubelet.healthy("vgpu.dev/count") == 0)
        await until(lambda: not cluster.cache.reports[-1].cards[0].healthy)


async def test_an_error_of_the_card_takes_its_slots_back_at_once(cluster: Cluster) -> None:
    cluster.streams.snapshot()
    async with running_kubelet(cluster.node.kubelet_dir) as kubelet:
        await cluster.start_agent()
        await until(lambda: kubelet.healthy("vgpu.dev/count") == 10)
        assert cluster.node.gpu is not None

        cluster.node.gpu.raise_xid(31)
        cluster.node.gpu.raise_xid(95)

        await until(lambda: kubelet.healthy("vgpu.dev/count") == 0)
        await until(lambda: "Xid 95" in cluster.cache.reports[-1].cards[0].health_reason)


async def test_a_whole_card_of_nvidia_s_plugin_is_let_through_to_the_byte(
    cluster: Cluster, scratch: Path
) -> None:
    whole = replace(MAIN, pod="whole")
    spec = pod_spec(f"NVIDIA_VISIBLE_DEVICES={cluster.gpu_uuid}", identity=whole)
    bundle = Bundle(scratch / "whole", spec)
    before = (bundle.folder / "config.json").read_bytes()
    cluster.streams.snapshot()
    async with running_kubelet(cluster.node.kubelet_dir) as kubelet:
        plugin = NvidiaPlugin(kubelet.plugins, [cluster.gpu_uuid])
        await plugin.start()
        await cluster.start_agent()
        await until(lambda: kubelet.healthy("nvidia.com/gpu") == 1)

        assert await cluster.create(bundle) == {"verdict": "low-level"}
        assert environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"] == "void"

        (bundle.folder / "config.json").write_bytes(before)
        await kubelet.admit("team-a", "whole", {"main": {"nvidia.com/gpu": 1}})
        assert await cluster.create(bundle) == {"verdict": "gpu"}
        assert (bundle.folder / "config.json").read_bytes() == before
        await plugin.stop()
