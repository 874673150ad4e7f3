# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.config import Config
from scheduler_cache.server import running


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Return the configuration of an embedded cache under `tmp_path`."""
    return Config(
        embedded=True,
        state_dir=tmp_path / "state",
        listen=(f"unix:{tmp_path}/cache.sock",),
        drain_seconds=0.2,
    )


@pytest.fixture
async def channel(config: Config) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to a real server over a real Unix socket."""
    async with running(config), grpc.aio.insecure_channel(config.listen[0]) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> SchedulerCacheStub:
    """Return a client of the running server."""
    return SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
