# SPDX-License-Identifier: Apache-2.0
"""The scheduler cache, as the node sees it; gRPC's errors become ours here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from typing import Final, cast

import grpc
import grpc.aio
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1 import scheduler_cache_pb2_grpc as pb_grpc

from runtime_shim.config import Cache
from runtime_shim.errors import (
    CacheFailedError,
    CacheUnreachableError,
    NoRoomError,
    RefusedError,
    RuntimeShimError,
)

logger = logging.getLogger(__name__)

# Between two tries. Source: docs/contract.md §5.
_FIRST_PAUSE_SECONDS: Final = 0.1

# gRPC waits by itself before it connects again; its default of 20 s is longer than a create may.
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The authority of a unix socket is its path, percent-encoded; some servers dislike that.
    ("grpc.default_authority", "localhost"),
)

_RETRIED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

# The cache's own failure: its disk, or a fault of its program.
_FAILED: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)

_REMEDIES: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "free a slice or ask for less",
    grpc.StatusCode.INVALID_ARGUMENT: "correct the request",
    grpc.StatusCode.UNIMPLEMENTED: "run the scheduler cache in embedded mode on this host",
    grpc.StatusCode.PERMISSION_DENIED: "check that the scheduler cache serves this node",
}


class CacheClient:
    """One channel to the scheduler cache."""

    def __init__(self, config: Cache, node_name: str) -> None:
        self._config = config
        self._node_name = node_name
        self._channel = grpc.aio.insecure_channel(config.address, options=_CHANNEL_OPTIONS)
        self._stub = pb_grpc.SchedulerCacheStub(self._channel)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close the channel; calls in flight end with an error."""
        await self._channel.close(None)

    async def allocate(
        self, key: tuple[str, str], request: pb.AllocationRequest, seconds: float
    ) -> pb.AllocateResponse:
        """Return the claim of a container, new or known; tries until `seconds` are over.

        Raises RefusedError when the cache says no, of kind NoRoomError when that may change, and
        CacheUnreachableError when it says nothing, of kind CacheFailedError when it cannot answer.
        """
        call = pb.AllocateRequest(
            claim=pb.ClaimKey(runtime_root=key[0], container_id=key[1]),
            node_name=self._node_name,
            request=request,
        )
        deadline = time.monotonic() + seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                response: pb.AllocateResponse = await self._stub.Allocate(
                    call, timeout=min(self._config.try_seconds, max(left, 0.001))
                )
                return response
            except grpc.aio.AioRpcError as error:
                if error.code() in _FAILED:
                    raise self._unreachable(error, seconds) from error
                if error.code() not in _RETRIED:
                    raise _refused(error) from error
                wait = pause * random.uniform(0.5, 1.0)
                if time.monotonic() + wait >= deadline:
                    raise self._unreachable(error, seconds) from error
            await asyncio.sleep(wait)
            pause *= 2

    async def release(self, allocation_id: str) -> None:
        """Free a claim; one that is not known is no error. RuntimeShimError when not certain."""
        try:
            await self._stub.Release(
                pb.ReleaseRequest(allocation_id=allocation_id), timeout=self._config.try_seconds
            )
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, self._config.try_seconds) from error

    async def report(self, report: pb.ReportNodeRequest) -> None:
        """Report this node. Raises RuntimeShimError."""
        try:
            await self._stub.ReportNode(report, timeout=self._config.try_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, self._config.try_seconds) from error

    async def watch(self) -> AsyncIterator[pb.WatchNodeResponse]:
        """Yield this node's snapshot and then each change, until the stream breaks.

        Raises RuntimeShimError when it breaks, also when a message was lost.
        """
        sequence = 0
        try:
            async for event in self._stub.WatchNode(pb.WatchNodeRequest(node_name=self._node_name)):
                sequence += 1
                if event.sequence != sequence:
                    raise RuntimeShimError(
                        f"watch stream skipped from {sequence - 1} to {event.sequence}"
                    )
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, 0.0) from error

    def _unreachable(self, error: grpc.aio.AioRpcError, seconds: float) -> CacheUnreachableError:
        if error.code() in _FAILED:
            reason, remedy = _clauses(error)
            return CacheFailedError(
                self._config.address, reason, remedy or "see the log of the scheduler cache"
            )
        return CacheUnreachableError(
            self._config.address, seconds, _words(error.code(), error.details())
        )


def explain(config: Cache, request: pb.ExplainRequest) -> list[str]:
    """Return what the cache says in words, for a caller without an event loop.

    Raises RuntimeShimError.
    """
    with grpc.insecure_channel(config.address, options=_CHANNEL_OPTIONS) as channel:
        stub = pb_grpc.SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
        try:
            response = stub.Explain(request, timeout=config.try_seconds)
        except grpc.RpcError as error:
            # What a call raises is the call, though no class says so.
            call = cast(grpc.Call, error)
            if call.code() == grpc.StatusCode.NOT_FOUND:
                raise RuntimeShimError(str(call.details())) from error
            raise CacheUnreachableError(
                config.address, config.try_seconds, _words(call.code(), call.details())
            ) from error
    return list(response.lines)


def _refused(error: grpc.aio.AioRpcError) -> RefusedError:
    reason, remedy = _clauses(error)
    kind = NoRoomError if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else RefusedError
    return kind(
        reason,
        remedy or _REMEDIES.get(error.code(), "see the log of the scheduler cache"),
    )


def _clauses(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    # The cache ends a sentence with what helps, after the last semicolon.
    text = str(error.details() or f"the scheduler cache answered {error.code().name}")
    reason, semicolon, remedy = text.rpartition("; ")
    return (reason, remedy) if semicolon else (text, "")


def _words(code: grpc.StatusCode, details: str | None) -> str:
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "deadline exceeded"
    return f"{code.name.lower()}: {details}"
