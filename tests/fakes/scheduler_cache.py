# SPDX-License-Identifier: Apache-2.0
"""A scheduler cache that does what a test tells it, behind a real gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import (
    SchedulerCacheServicer,
    add_SchedulerCacheServicer_to_server,
)

from tests.testbed.certificates import CertificateAuthority, Credentials

Context = grpc.aio.ServicerContext[Any, Any]
Failure = tuple[grpc.StatusCode, str]


class ScriptedCache(SchedulerCacheServicer):
    """Records what it is asked. `failures` are used up first, one a call."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.silent = False
        self.allocate: Callable[[pb.AllocateRequest], pb.AllocateResponse] = lambda _: (
            pb.AllocateResponse()
        )
        self.resolve: Callable[[pb.ResolveRequest], pb.ResolveResponse | Failure | None] = (
            lambda _: None
        )
        """None: the pod is not known yet."""
        self.resolves: list[pb.ResolveRequest] = []
        self.tokens: list[str] = []
        """What callers of Resolve showed."""
        self.peers: list[str] = []
        """Common names in the certificates of callers of Resolve."""
        self.streams = 0
        """How many WatchNode calls there were."""
        self.events: asyncio.Queue[pb.WatchNodeResponse] = asyncio.Queue()
        self.lines = ["a sentence"]
        self.allocations: list[pb.AllocateRequest] = []
        self.released: list[str] = []
        self.reports: list[pb.ReportNodeRequest] = []
        self.explained: list[pb.ExplainRequest] = []

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        self.allocations.append(request)
        await self._fail(context)
        return self.allocate(request)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        await self._fail(context)
        self.released.append(request.allocation_id)
        return pb.ReleaseResponse()

    async def Resolve(self, request: pb.ResolveRequest, context: Context) -> pb.ResolveResponse:
        self.resolves.append(request)
        metadata = dict(context.invocation_metadata() or ())
        self.tokens.append(str(metadata.get("authorization", "")))
        names = context.auth_context().get("x509_common_name", ())
        self.peers += [name.decode() for name in names]
        await self._fail(context)
        while True:
            answer = self.resolve(request)
            if isinstance(answer, pb.ResolveResponse):
                return answer
            if answer is not None:
                await context.abort(*answer)
            left = context.time_remaining()
            if left is not None and left < 0.1:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    "the pod is not known yet; see that it exists",
                )
            await asyncio.sleep(0.02)

    async def ReportNode(
        self, request: pb.ReportNodeRequest, context: Context
    ) -> pb.ReportNodeResponse:
        await self._fail(context)
        self.reports.append(request)
        return pb.ReportNodeResponse()

    async def WatchNode(
        self, request: pb.WatchNodeRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodeResponse]:
        await self._fail(context)
        self.streams += 1
        while True:
            yield await self.events.get()

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        self.explained.append(request)
        await self._fail(context)
        return pb.ExplainResponse(lines=self.lines)

    async def _fail(self, context: Context) -> None:
        if self.silent:
            await asyncio.Event().wait()
        if self.failures:
            await context.abort(*self.failures.pop(0))


class Streams:
    """Numbers the messages of one stream after the other."""

    def __init__(self, cache: ScriptedCache) -> None:
        self._cache = cache
        self._sequence = 0

    def snapshot(self, *allocations: pb.Allocation) -> None:
        """Begin a stream."""
        self._sequence = 0
        self._send(snapshot=pb.NodeSnapshot(allocations=allocations))

    def upsert(self, allocation: pb.Allocation) -> None:
        """Tell of an allocation."""
        self._send(upsert=allocation)

    def remove(self, allocation_id: str) -> None:
        """Tell of the end of one."""
        self._send(remove=allocation_id)

    def skip(self) -> None:
        """Lose a message."""
        self._sequence += 1

    def _send(self, **event: Any) -> None:  # noqa: ANN401 - fields of the message
        self._sequence += 1
        self._cache.events.put_nowait(pb.WatchNodeResponse(sequence=self._sequence, **event))


@asynccontextmanager
async def serving_tls(
    cache: ScriptedCache,
    authority: CertificateAuthority,
    server: Credentials,
    *,
    require_client: bool = True,
    port: int = 0,
) -> AsyncIterator[int]:
    """Serve `cache` over TLS on loopback inside the block; yields the port."""
    grpc_server = grpc.aio.server()
    add_SchedulerCacheServicer_to_server(cache, grpc_server)  # type: ignore[no-untyped-call]
    credentials = grpc.ssl_server_credentials(
        [(server.key.read_bytes(), server.certificate.read_bytes())],
        authority.certificate.read_bytes() if require_client else None,
        require_client,
    )
    bound = grpc_server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await grpc_server.start()
    try:
        yield bound
    finally:
        await grpc_server.stop(None)


@asynccontextmanager
async def serving(cache: ScriptedCache, path: Path) -> AsyncIterator[str]:
    """Serve `cache` on a unix socket inside the block; yields its address."""
    server = grpc.aio.server()
    add_SchedulerCacheServicer_to_server(cache, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield f"unix:{path}"
    finally:
        await server.stop(None)
