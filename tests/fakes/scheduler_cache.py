# SPDX-License-Identifier: Apache-2.0
"""A scheduler cache that does what a test tells it, behind a real gRPC server on a unix socket."""

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

Context = grpc.aio.ServicerContext[Any, Any]
Failure = tuple[grpc.StatusCode, str]


class ScriptedCache(SchedulerCacheServicer):
    """Records what it is asked. `failures` are used up first, one a call."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.silent = False
        self.allocate: Callable[[pb.AllocateRequest], pb.AllocateResponse] = (
            lambda _: pb.AllocateResponse()
        )
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
