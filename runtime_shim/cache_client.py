# SPDX-License-Identifier: Apache-2.0
"""The scheduler cache, as the node sees it; gRPC's errors become ours here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar, cast

import grpc
import grpc.aio
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1 import scheduler_cache_pb2_grpc as pb_grpc

from runtime_shim.config import Cache
from runtime_shim.errors import (
    CacheFailedError,
    CacheUnreachableError,
    NoRoomError,
    NotYetKnownError,
    RefusedError,
    RuntimeShimError,
)
from runtime_shim.tls import Credentials, CredentialsError, Proof, needs_proof

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Between two tries. Source: docs/contract.md §5.
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0
# The last try begins this long before the end, so that a cache that comes back late still answers.
_LAST_TRY_SECONDS: Final = 0.1

_AUTHORITY: Final = "grpc.default_authority"

# gRPC waits by itself before it connects again; its default of 20 s is longer than a create may.
# What it calls the least wait is also how long a connection may take, handshake and all.
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The authority of a unix socket is its path, percent-encoded; some servers dislike that.
    (_AUTHORITY, "localhost"),
)

# The kubelet renews at 70 to 90 % of a certificate's life, mostly a year.
_SOON_SECONDS: Final = 3600.0

_RETRIED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

# The cache's own failure: its disk, or a fault of its program.
_FAILED: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)

# What gRPC itself says when a call's time is over.
_DEADLINE_WORDS: Final = "Deadline Exceeded"

_REMEDIES: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "see that the pod is bound to this node, then try again",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "free a slice or ask for less",
    grpc.StatusCode.INVALID_ARGUMENT: "correct the request",
    grpc.StatusCode.UNIMPLEMENTED: "run the scheduler cache in embedded mode on this host",
    grpc.StatusCode.PERMISSION_DENIED: "check that the scheduler cache serves this node",
    grpc.StatusCode.UNAUTHENTICATED: "check the certificate or token of this node",
    grpc.StatusCode.NOT_FOUND: "a container that was deleted is not started again",
    grpc.StatusCode.FAILED_PRECONDITION: "ask for a vGPU in the pod's resources",
}


class CacheClient:
    """One channel to the scheduler cache, opened anew when what proves this node has changed."""

    def __init__(self, config: Cache, node_name: str, proof: Proof | None = None) -> None:
        """`proof`: what both sides show each other; None on a socket that only root can open.

        Raises CredentialsError.
        """
        self._config = config
        self._proof = proof
        self._credentials: Credentials | None = None
        self._fingerprint: tuple[object, ...] = ()
        self._closing: set[asyncio.Task[None]] = set()
        if proof is not None:
            self._fingerprint = proof.fingerprint()
            self._credentials = proof.load()
        self.node_name = self._credentials_node() or node_name
        """Whom the certificate proves this node to be, else the name that was given."""
        self._channel, self._stub = self._open()

    @property
    def expires_unix_seconds(self) -> float:
        """When the certificate ends; infinite without one."""
        credentials = self._credentials
        return credentials.expires_unix_seconds if credentials is not None else float("inf")

    async def close(self) -> None:
        """Close the channel; calls in flight end with an error."""
        await self._channel.close(None)
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def reopen(self) -> None:
        """Use another connection from now on; calls in flight may end on the old one."""
        old = self._channel
        self._channel, self._stub = self._open()
        task = asyncio.create_task(old.close(self._config.total_seconds))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def changed(self) -> bool:
        """Tell whether the files that prove this node were renewed. Blocks; any thread."""
        return self._proof is not None and self._proof.fingerprint() != self._fingerprint

    def renew(self) -> None:
        """Take over renewed files. Raises CredentialsError; the old ones go on working then."""
        if self._proof is None:
            return
        fingerprint = self._proof.fingerprint()
        credentials = self._proof.load()
        if credentials.node_name and credentials.node_name != self.node_name:
            raise CredentialsError(
                f"{self._config.certificate} is now of node {credentials.node_name}, not of"
                f" {self.node_name}; restart vgpu-node-agent if that is meant"
            )
        self._credentials, self._fingerprint = credentials, fingerprint
        self.reopen()

    def expiry_warning(self) -> str:
        """Return what is wrong with the certificate's time; empty when nothing is."""
        credentials = self._credentials
        if credentials is None:
            return ""
        if credentials.expired():
            return self._expired(credentials)
        if credentials.expired(time.time() + _SOON_SECONDS):
            return f"{self._config.certificate} ends at {credentials.expires_at()}"
        return ""

    def _expired(self, credentials: Credentials) -> str:
        return (
            f"the certificate {self._config.certificate} expired at {credentials.expires_at()}"
            " and was not renewed; see the log of the kubelet"
        )

    def _credentials_node(self) -> str:
        return self._credentials.node_name if self._credentials is not None else ""

    def _open(self) -> tuple[grpc.aio.Channel, pb_grpc.SchedulerCacheStub]:
        config, credentials = self._config, self._credentials
        if credentials is None:
            channel = grpc.aio.insecure_channel(config.address, options=_CHANNEL_OPTIONS)
        else:
            options = [each for each in _CHANNEL_OPTIONS if each[0] != _AUTHORITY]
            # Channels of the same target and options share a connection, with the old certificate.
            options.append(("grpc.use_local_subchannel_pool", 1))
            if config.server_name:
                options.append(("grpc.ssl_target_name_override", config.server_name))
            channel = grpc.aio.secure_channel(
                config.address,
                grpc.ssl_channel_credentials(
                    credentials.authority, credentials.key or None, credentials.certificate or None
                ),
                options=options,
            )
        return channel, pb_grpc.SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self._proof.token() if self._proof is not None else ""
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _check_expiry(self) -> None:
        """Raise CacheUnreachableError where the server would only end the connection."""
        credentials = self._credentials
        if credentials is not None and credentials.expired():
            raise CacheUnreachableError(self._config.address, 0.0, self._expired(credentials))

    async def allocate(
        self,
        key: tuple[str, str],
        request: pb.AllocationRequest,
        seconds: float,
        *,
        spare_stopped: bool = False,
    ) -> pb.AllocateResponse:
        """Return the claim of a container, new or known; tries until `seconds` are over.

        `spare_stopped`: rather none than one that takes the slice of a stopped container.

        Raises RefusedError when the cache says no, of kind NoRoomError when that may change, and
        CacheUnreachableError when it says nothing, of kind CacheFailedError when it cannot answer.
        """
        call = pb.AllocateRequest(
            claim=pb.ClaimKey(runtime_root=key[0], container_id=key[1]),
            node_name=self.node_name,
            request=request,
            spare_stopped=spare_stopped,
        )
        answer: pb.AllocateResponse = await self._until(
            seconds, lambda timeout: self._stub.Allocate(call, timeout=timeout)
        )
        return answer

    async def resolve(self, request: pb.ResolveRequest, seconds: float) -> pb.Allocation:
        """Return the allocation of a pod's container; tries until `seconds` are over.

        An unknown pod may only not be known yet, and is asked for until then.
        Raises RefusedError, of kind NotYetKnownError when that time is over, and
        CacheUnreachableError.
        """
        answer: pb.ResolveResponse = await self._until(
            seconds,
            lambda timeout: self._stub.Resolve(request, timeout=timeout, metadata=self._metadata()),
        )
        return answer.allocation

    async def _until(self, seconds: float, call: Callable[[float], Awaitable[T]]) -> T:
        self._check_expiry()
        began = time.monotonic()
        deadline = began + seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                return await call(min(self._config.try_seconds, max(left, 0.001)))
            except CredentialsError as error:
                raise CacheUnreachableError(
                    self._config.address, _since(began), str(error)
                ) from error
            except grpc.aio.AioRpcError as error:
                if error.code() in _FAILED:
                    raise self._unreachable(error, began) from error
                if error.code() not in _RETRIED:
                    raise _refused(error) from error
                left = deadline - time.monotonic() - _LAST_TRY_SECONDS
                if left <= 0:
                    if _is_its_own_word(error):
                        raise NotYetKnownError(*_sentence(error)) from error
                    raise self._unreachable(error, began) from error
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def release(self, allocation_id: str) -> None:
        """Free a claim; one that is not known is no error. RuntimeShimError when not certain."""
        began = time.monotonic()
        try:
            await self._stub.Release(
                pb.ReleaseRequest(allocation_id=allocation_id), timeout=self._config.try_seconds
            )
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, began) from error

    async def report(self, report: pb.ReportNodeRequest) -> None:
        """Report this node. Raises RuntimeShimError."""
        self._check_expiry()
        began = time.monotonic()
        try:
            await self._stub.ReportNode(
                report, timeout=self._config.try_seconds, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, began) from error

    async def watch(self) -> AsyncIterator[pb.WatchNodeResponse]:
        """Yield this node's snapshot and then each change, until the stream breaks.

        Raises RuntimeShimError when it breaks, also when a message was lost.
        """
        sequence = 0
        self._check_expiry()
        request = pb.WatchNodeRequest(node_name=self.node_name)
        try:
            async for event in self._stub.WatchNode(request, metadata=self._metadata()):
                sequence += 1
                if event.sequence != sequence:
                    raise RuntimeShimError(
                        f"watch stream skipped from {sequence - 1} to {event.sequence}"
                    )
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._unreachable(error, time.monotonic()) from error

    def _unreachable(self, error: grpc.aio.AioRpcError, began: float) -> CacheUnreachableError:
        if error.code() in _FAILED:
            reason, remedy = _clauses(error)
            return CacheFailedError(
                self._config.address, reason, remedy or "see the log of the scheduler cache"
            )
        return CacheUnreachableError(
            self._config.address, _since(began), _words(error.code(), error.details())
        )


def ask(config: Cache, call: Callable[[pb_grpc.SchedulerCacheStub], T]) -> T:
    """Return what `call` gets from the cache, for a caller without an event loop.

    Raises RuntimeShimError; NOT_FOUND is the cache's own sentence.
    """
    began = time.monotonic()
    with _channel_of_people(config) as channel:
        try:
            return call(pb_grpc.SchedulerCacheStub(channel))  # type: ignore[no-untyped-call]
        except grpc.RpcError as error:
            # What a call raises is the call, though no class says so.
            failed = cast(grpc.Call, error)
            if failed.code() in (
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.PERMISSION_DENIED,
            ):
                raise RuntimeShimError(str(failed.details())) from error
            raise CacheUnreachableError(
                config.address, _since(began), _words(failed.code(), failed.details())
            ) from error


def explain(config: Cache, request: pb.ExplainRequest) -> list[str]:
    """Return what the cache says in words. Raises RuntimeShimError."""
    response = ask(config, lambda stub: stub.Explain(request, timeout=config.try_seconds))
    return list(response.lines)


def _channel_of_people(config: Cache) -> grpc.Channel:
    """Open a channel under the certificate that is configured, a node's or an operator's."""
    if not needs_proof(config):
        return grpc.insecure_channel(config.address, options=_CHANNEL_OPTIONS)
    try:
        authority, key, certificate = (
            Path(path).read_bytes() if path else None
            for path in (config.ca, config.key_path(), config.certificate)
        )
    except OSError as error:
        raise CredentialsError(f"{error.filename}: {error.strerror}") from error
    options = [each for each in _CHANNEL_OPTIONS if each[0] != _AUTHORITY]
    if config.server_name:
        options.append(("grpc.ssl_target_name_override", config.server_name))
    return grpc.secure_channel(
        config.address,
        grpc.ssl_channel_credentials(authority, key, certificate),
        options=options,
    )


def _since(began: float) -> float:
    """Return the seconds since then, as a sentence shows them."""
    return round(time.monotonic() - began, 1)


def _is_its_own_word(error: grpc.aio.AioRpcError) -> bool:
    """Tell whether the cache itself said that time is over, and not our own clock."""
    own_clock = error.details() in (None, "", _DEADLINE_WORDS)
    return error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and not own_clock


def _refused(error: grpc.aio.AioRpcError) -> RefusedError:
    kind = NoRoomError if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else RefusedError
    return kind(*_sentence(error))


def _sentence(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    reason, remedy = _clauses(error)
    return reason, remedy or _REMEDIES.get(error.code(), "see the log of the scheduler cache")


def _clauses(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    # The cache ends a sentence with what helps, after the last semicolon.
    text = str(error.details() or f"the scheduler cache answered {error.code().name}")
    reason, semicolon, remedy = text.rpartition("; ")
    return (reason, remedy) if semicolon else (text, "")


def _words(code: grpc.StatusCode, details: str | None) -> str:
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "deadline exceeded"
    return f"{code.name.lower()}: {details}"
