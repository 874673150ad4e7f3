# SPDX-License-Identifier: Apache-2.0
"""The health service speaks the standard's bytes: read here as raw bytes, not by our own types."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from scheduler_cache.config import Config
from scheduler_cache.health import Health
from scheduler_cache.server import running

# Source: grpc/health/v1/health.proto; field 1 of both messages.
SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
WATCH = "/grpc.health.v1.Health/Watch"
OURS = b"\x0a\x16vgpu.v1.SchedulerCache"
OTHER = b"\x0a\x05other"


def raw(message: bytes) -> bytes:
    return message


@pytest.mark.parametrize("service", [b"", OURS])
async def test_a_running_server_is_serving(channel: grpc.aio.Channel, service: bytes) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check", raw, raw)

    assert await check(service) == SERVING


async def test_an_unknown_service_is_not_found(channel: grpc.aio.Channel) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check", raw, raw)
    watch = channel.unary_stream(WATCH, raw, raw)

    with pytest.raises(grpc.aio.AioRpcError, match="no service other") as caught:
        await check(OTHER)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert [message async for message in watch(OTHER)] == [SERVICE_UNKNOWN]


async def test_a_watcher_hears_of_the_end(tmp_path: Path) -> None:
    # It stops while SERVING is on its way, which must not cost the watcher the news.
    health = Health()
    server = grpc.aio.server()
    health.add_to(server)
    address = f"unix:{tmp_path}/health.sock"
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        seen = []
        async for message in channel.unary_stream(WATCH, raw, raw)(OURS):
            seen.append(message)
            health.stop()
    await server.stop(None)

    assert seen == [SERVING, NOT_SERVING]


async def test_a_watcher_hears_of_every_change_whenever_it_comes() -> None:
    health = Health(started=False)
    watch = health._watch(StringValue(value=""), None)  # type: ignore[arg-type]

    seen = [(await anext(watch)).value]
    health.start()
    seen.append((await anext(watch)).value)
    health.stop()
    seen.append((await anext(watch)).value)

    assert seen == [2, 1, 2]
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_stopping_server_lets_no_watcher_hang(config: Config) -> None:
    seen = []
    first = asyncio.Event()

    async def collect(channel: grpc.aio.Channel) -> None:
        # The end of the stream, or of the connection if that was faster.
        with suppress(grpc.aio.AioRpcError):
            async for message in channel.unary_stream(WATCH, raw, raw)(OURS):
                seen.append(message)
                first.set()

    async with grpc.aio.insecure_channel(config.listen[0]) as channel:
        async with running(config):
            collecting = asyncio.create_task(collect(channel))
            await first.wait()

        await asyncio.wait_for(collecting, 30)

    assert seen[0] == SERVING
