# SPDX-License-Identifier: Apache-2.0
"""Replicas of the cache in this process, in front of an API server, and nodes that call them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.cluster_server import Running, running
from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import DIALECTS, AdmissionConfig, KubernetesConfig
from scheduler_cache.kube.informer import Timing
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.kube.clusters import PODS, QUICK, until, write_kubeconfig
from tests.scheduler_cache.kube_objects import container_of
from tests.testbed.certificates import CertificateAuthority, Credentials

NODES = "/api/v1/nodes"
NAMESPACE = "vgpu-system"
A = "GPU-a1a1a1a1-0000-4000-8000-0000000000a1"
B = "GPU-b2b2b2b2-0000-4000-8000-0000000000b2"
UUID = "11111111-2222-4333-8444-555555555555"


class Site:
    """What all replicas share: an API server, an authority, a key."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.authority = CertificateAuthority(folder / "ca")
        self.serving = self.authority.issue_server("vgpu-scheduler-cache", file="serving")
        (folder / "keys").mkdir()
        (folder / "keys" / "current").write_bytes(b"k" * 32)
        self._replicas = 0

    def config(self, name: str = "replica-0", **kubernetes: Any) -> Config:  # noqa: ANN401
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Config(
            listen=(f"unix:{folder}/cache.sock",),
            drain_seconds=0.5,
            kubernetes=replace(
                KubernetesConfig(
                    kubeconfig=str(
                        write_kubeconfig(folder / "kubeconfig", self.server.url, {"token": name})
                    ),
                    pod_name=name,
                    listen=("127.0.0.1:0",),
                    certificate=str(self.serving.certificate),
                    key=str(self.serving.key),
                    client_ca=str(self.authority.certificate),
                    keys_dir=str(self.folder / "keys"),
                    metrics_listen="127.0.0.1:0",
                    lease_seconds=6.0,
                    renew_seconds=4.0,
                    retry_seconds=0.1,
                    admission=AdmissionConfig(dialects=DIALECTS, dialect_scope="cluster"),
                ),
                **kubernetes,
            ),
        )

    @asynccontextmanager
    async def replica(
        self,
        name: str = "replica-0",
        *,
        timing: Timing = QUICK,
        synced: bool = True,
        **kubernetes: Any,  # noqa: ANN401
    ) -> AsyncIterator[Running]:
        """Run a replica in the block, whose pod exists."""
        if (NAMESPACE, name) not in self.server.objects.get(PODS, {}):
            await self.server.put(
                PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {}}
            )
        async with running(self.config(name, **kubernetes), timing=timing) as replica:
            if synced:
                await until(lambda: replica.feed.synced, "synced")
            yield replica

    def channel(
        self, replica: Running, credentials: Credentials | None, listener: int = 0
    ) -> grpc.aio.Channel:
        """Return a channel to a TLS listener, under a certificate or none."""
        root = self.authority.certificate.read_bytes()
        proof = (
            grpc.ssl_channel_credentials(
                root, credentials.key.read_bytes(), credentials.certificate.read_bytes()
            )
            if credentials
            else grpc.ssl_channel_credentials(root)
        )
        port = replica.addresses[listener].rpartition(":")[2]
        # A name would be looked up, which takes seconds where no resolver answers.
        name = (("grpc.ssl_target_name_override", "localhost"),)
        return grpc.aio.secure_channel(f"ipv4:127.0.0.1:{port}", proof, name)

    @asynccontextmanager
    async def node(self, replica: Running, name: str) -> AsyncIterator[SchedulerCacheStub]:
        """Yield a client with the certificate of a node's kubelet."""
        async with self.channel(replica, self.authority.issue_node(name)) as channel:
            yield stub_of(channel)

    @asynccontextmanager
    async def local(self, name: str = "replica-0") -> AsyncIterator[SchedulerCacheStub]:
        """Yield a client of the socket that only root can open."""
        async with grpc.aio.insecure_channel(f"unix:{self.folder}/{name}/cache.sock") as channel:
            yield stub_of(channel)


def stub_of(channel: grpc.aio.Channel) -> SchedulerCacheStub:
    return SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]


def node_object(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def report(
    node: str, *cards: str, running: Iterable[pb.Allocation] = (), ready: bool = True
) -> pb.ReportNodeRequest:
    """Return what the agent of a node with cards of 8 GiB tells."""
    running = list(running)
    return pb.ReportNodeRequest(
        node_name=node,
        ready=ready,
        cards=[
            pb.Card(
                uuid=card,
                kind=pb.CARD_KIND_GPU,
                model="NVIDIA H100",
                memory_bytes=8 * GIB,
                slots=10,
                healthy=True,
            )
            for card in cards
        ],
        running_allocation_ids=[each.allocation_id for each in running],
        claims=[
            pb.Claim(allocation=each, state=pb.CLAIM_STATE_RUNNING, since_unix_ns=1)
            for each in running
        ],
    )


def asking(name: str, uuid: str = UUID, memory: str = "2Gi", cores: str = "") -> dict[str, Any]:
    """Return a pod that asks for a slice and is not bound."""
    limits = {"memory": memory, "cores": cores} if cores else {"memory": memory}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "containers": [
                container_of(
                    "main", {f"vgpu.dev/{key}": value for key, value in limits.items()}, uuid=uuid
                )
            ]
        },
        "status": {"phase": "Pending"},
    }


def resolve(uuid: str = UUID, **more: Any) -> pb.ResolveRequest:  # noqa: ANN401
    return pb.ResolveRequest(container_uuid=uuid, **more)


async def leading(replica: Running) -> None:
    """Wait until a replica leads and may write."""

    def may_write() -> bool:
        try:
            replica.leader.check()
        except Exception:
            return False
        return True

    await until(may_write, "leads")


@asynccontextmanager
async def one_node(site: Site, *cards: str) -> AsyncIterator[tuple[Running, SchedulerCacheStub]]:
    """Yield a leading replica and node n1, which has reported its cards."""
    async with AsyncExitStack() as stack:
        await site.server.put(NODES, node_object("n1"))
        replica = await stack.enter_async_context(site.replica())
        await leading(replica)
        node = await stack.enter_async_context(site.node(replica, "n1"))
        await node.ReportNode(report("n1", *cards))
        yield replica, node


async def bind(site: Site, replica: Running, source: dict[str, Any], node: str = "n1") -> str:
    """Create a pod, let the leader bind it, and return its uid."""
    made = await site.server.put(PODS, source)
    uid: str = made["metadata"]["uid"]
    await until(lambda: replica.cluster.record(uid) is not None, "the pod is known")
    await replica.leader.bind(uid, node)
    return uid
