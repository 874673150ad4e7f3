# SPDX-License-Identifier: Apache-2.0
"""The client of a cluster's scheduler cache: proofs, renewals and what it says without them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.cache_client import CacheClient
from runtime_shim.config import Cache
from runtime_shim.errors import (
    CacheUnreachableError,
    NotYetKnownError,
    RefusedError,
    RuntimeShimError,
)
from runtime_shim.tls import CredentialsError, Proof
from tests.fakes.scheduler_cache import ScriptedCache, Streams, serving_tls
from tests.runtime_shim.pods import MAIN, pod_allocation
from tests.testbed.certificates import CertificateAuthority, Credentials

REQUEST = pb.ResolveRequest(
    node_name="worker-1", pod=pb.PodIdentity(uid=MAIN.pod_uid, container_name="main")
)


class Network:
    """One authority, one server, and clients with certificates of it."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder / "ca")
        self.server = self.authority.issue_server("cache.example")
        self.cache = ScriptedCache()
        self.cache.resolve = lambda _: pb.ResolveResponse(allocation=pod_allocation())
        self.port = 0
        self.clients: list[CacheClient] = []

    def config(
        self,
        node: Credentials | None,
        *,
        ca: Path | None = None,
        token: str = "",
        server_name: str = "cache.example",
        try_seconds: float = 5.0,
    ) -> Cache:
        return Cache(
            address=f"127.0.0.1:{self.port}",
            ca=str(ca or self.authority.certificate),
            certificate=str(node.bundle) if node else "/absent",
            token=token,
            server_name=server_name,
            try_seconds=try_seconds,
            total_seconds=20.0,
        )

    def client(self, config: Cache, node_name: str = "host") -> CacheClient:
        client = CacheClient(config, node_name, Proof(config))
        self.clients.append(client)
        return client


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(tmp_path)
    async with serving_tls(network.cache, network.authority, network.server) as network.port:
        yield network
        for client in network.clients:
            await client.close()


async def test_a_node_is_who_its_certificate_says(network: Network) -> None:
    client = network.client(network.config(network.authority.issue_node("worker-1")))

    allocation = await client.resolve(REQUEST, 20)

    assert client.node_name == "worker-1"
    assert allocation.pod.uid == MAIN.pod_uid
    assert network.cache.peers == ["system:node:worker-1"]


@contextlib.asynccontextmanager
async def slow_way(port: int, seconds: float) -> AsyncIterator[int]:
    """Yield a port that leads to another one, whose every connection is held up first."""
    tasks: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.closing(writer):
            await asyncio.sleep(seconds)
            there, back = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(back):
                await asyncio.gather(pipe(reader, back), pipe(there, writer))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # Since Python 3.12 this also waits for the connections, so that they must end first.
        await server.wait_closed()


async def test_a_handshake_may_take_longer_than_the_least_wait(network: Network) -> None:
    """Longer than the longest wait between two tries, too: those are not what bounds it."""
    node = network.authority.issue_node("worker-1")
    async with slow_way(network.port, 1.5) as port:
        config = dataclasses.replace(network.config(node), address=f"127.0.0.1:{port}")
        client = network.client(config)

        allocation = await client.resolve(REQUEST, 20)
        await client.close()

    assert allocation.pod.uid == MAIN.pod_uid


async def test_a_server_of_another_authority_is_not_believed(
    network: Network, tmp_path: Path
) -> None:
    foreign = CertificateAuthority(tmp_path / "foreign")
    node = network.authority.issue_node("worker-1")
    client = network.client(network.config(node, ca=foreign.certificate))

    with pytest.raises(CacheUnreachableError, match="unavailable"):
        await client.resolve(REQUEST, 1.0)

    assert network.cache.resolves == []


async def test_a_server_of_another_name_is_not_believed(network: Network) -> None:
    node = network.authority.issue_node("worker-1")
    client = network.client(network.config(node, server_name="evil.example"))

    with pytest.raises(CacheUnreachableError, match="unavailable"):
        await client.resolve(REQUEST, 1.0)


async def test_a_node_of_another_authority_gets_nothing(network: Network, tmp_path: Path) -> None:
    foreign = CertificateAuthority(tmp_path / "foreign").issue_node("worker-1")
    client = network.client(network.config(foreign))

    with pytest.raises(CacheUnreachableError, match="unavailable"):
        await client.resolve(REQUEST, 1.0)

    assert network.cache.resolves == []


async def test_an_expired_certificate_is_named_at_once(network: Network) -> None:
    node = network.authority.issue_node(
        "worker-1", expires_in=datetime.timedelta(minutes=-1), file="node"
    )
    client = network.client(network.config(node))
    calls: list[Callable[[], object]] = [
        lambda: client.resolve(REQUEST, 20.0),
        lambda: client.report(pb.ReportNodeRequest()),
        lambda: anext(client.watch()),
    ]

    for call in calls:
        with pytest.raises(CacheUnreachableError, match=r"node\.pem expired at .* not renewed"):
            await call()  # type: ignore[misc]

    assert network.cache.resolves == []
    assert "expired at" in client.expiry_warning()


async def test_a_renewed_certificate_is_used_from_then_on(network: Network) -> None:
    authority = network.authority
    expired = datetime.timedelta(minutes=-1)
    client = network.client(
        network.config(authority.issue_node("worker-1", expires_in=expired, file="node"))
    )
    assert not client.changed()

    authority.issue_node("worker-1", expires_in=datetime.timedelta(hours=5), file="node")

    assert client.changed()
    client.renew()
    assert not client.changed()
    await client.resolve(REQUEST, 20)
    assert network.cache.peers == ["system:node:worker-1"]
    assert client.expiry_warning() == ""


async def test_a_certificate_that_ends_soon_is_told(network: Network) -> None:
    soon = datetime.timedelta(minutes=30)
    node = network.authority.issue_node("worker-1", expires_in=soon, file="node")

    assert "node.pem ends at" in network.client(network.config(node)).expiry_warning()


async def test_a_renewal_is_another_connection(network: Network) -> None:
    authority = network.authority
    client = network.client(network.config(authority.issue_node("worker-1", file="node")))
    stream = client.watch()
    Streams(network.cache).snapshot()
    await anext(stream)
    held = asyncio.ensure_future(client.resolve(REQUEST, 20))
    await held

    authority.issue("other", uris=["vgpu://node/worker-1"], file="node")
    client.renew()
    await client.resolve(REQUEST, 20)

    assert network.cache.peers == ["system:node:worker-1", "other"]


async def test_a_certificate_of_another_node_is_not_taken_over(network: Network) -> None:
    authority = network.authority
    client = network.client(network.config(authority.issue_node("worker-1", file="node")))

    authority.issue_node("worker-2", file="node")

    with pytest.raises(CredentialsError, match="is now of node worker-2, not of worker-1"):
        client.renew()
    await client.resolve(REQUEST, 20)
    assert network.cache.peers == ["system:node:worker-1"]


async def test_half_a_rotation_changes_nothing(network: Network) -> None:
    node = network.authority.issue_node("worker-1", file="node")
    client = network.client(network.config(node))

    node.bundle.write_bytes(node.certificate.read_bytes())

    with pytest.raises(CredentialsError, match="no certificate with its key"):
        client.renew()
    await client.resolve(REQUEST, 20)


async def test_a_token_proves_a_node_at_the_other_port(tmp_path: Path) -> None:
    network = Network(tmp_path)
    token = tmp_path / "token"
    token.write_text("first\n")
    async with serving_tls(
        network.cache, network.authority, network.server, require_client=False
    ) as network.port:
        client = network.client(network.config(None, token=str(token)), "worker-7")

        await client.resolve(REQUEST, 20)
        token.write_text("second-token\n")
        await client.resolve(REQUEST, 20)
        token.write_text("")
        with pytest.raises(CacheUnreachableError, match="holds no token"):
            await client.resolve(REQUEST, 20)
        with pytest.raises(RuntimeShimError, match="holds no token"):
            await client.report(pb.ReportNodeRequest())

        assert client.node_name == "worker-7"
        assert network.cache.tokens == ["Bearer first", "Bearer second-token"]
        assert network.cache.peers == []
        await client.close()


async def test_an_unknown_pod_is_asked_for_until_the_end(network: Network) -> None:
    network.cache.resolve = lambda _: None
    node = network.authority.issue_node("worker-1")
    client = network.client(network.config(node, try_seconds=1.0))

    with pytest.raises(NotYetKnownError) as caught:
        await client.resolve(REQUEST, 3.0)

    assert (caught.value.reason, caught.value.remedy) == (
        "the pod is not known yet",
        "see that it exists",
    )
    assert len(network.cache.resolves) >= 2


async def test_a_pod_that_comes_late_is_answered(network: Network) -> None:
    node = network.authority.issue_node("worker-1")
    client = network.client(network.config(node, try_seconds=1.0))
    network.cache.resolve = lambda _: (
        pb.ResolveResponse(allocation=pod_allocation()) if len(network.cache.resolves) > 1 else None
    )

    assert (await client.resolve(REQUEST, 20.0)).pod.uid == MAIN.pod_uid


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("NOT_FOUND", "a container that was deleted is not started again"),
        ("FAILED_PRECONDITION", "ask for a vGPU in the pod's resources"),
        ("PERMISSION_DENIED", "check that the scheduler cache serves this node"),
        ("UNAUTHENTICATED", "check the certificate or token of this node"),
    ],
)
async def test_a_no_is_final_and_has_its_remedy(network: Network, code: str, remedy: str) -> None:
    network.cache.resolve = lambda _: (grpc.StatusCode[code], "its reason")
    client = network.client(network.config(network.authority.issue_node("worker-1")))

    with pytest.raises(RefusedError) as caught:
        await client.resolve(REQUEST, 20)

    assert (caught.value.reason, caught.value.remedy) == ("its reason", remedy)
    assert len(network.cache.resolves) == 1
