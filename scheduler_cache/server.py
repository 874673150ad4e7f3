# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the parts of the embedded mode; the only place that knows them all."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from vgpu.v1.scheduler_cache_pb2_grpc import add_SchedulerCacheServicer_to_server

from scheduler_cache.cache import Cache
from scheduler_cache.config import Config
from scheduler_cache.flusher import Flusher
from scheduler_cache.health import Health
from scheduler_cache.listen import bound, checked_address
from scheduler_cache.model import CardPolicy
from scheduler_cache.rpc import until_signalled
from scheduler_cache.service import EmbeddedService
from scheduler_cache.sqlite_store import Store
from scheduler_cache.watchers import Watchers

logger = logging.getLogger(__name__)

# Without it a second server would share a TCP port in silence.
_OPTIONS = (("grpc.so_reuseport", 0),)


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then let the calls under way end."""
    await until_signalled(running(config), config.drain_seconds)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[None]:
    """Serve inside the block, as `config` says. Raises StoreError or ListenError at the start."""
    addresses = [checked_address(address) for address in config.listen]
    with Store.open(config.state_dir) as store:
        cache = Cache(
            store.load(),
            default_policy=CardPolicy(config.card_policy),
            stopped_grace_ns=config.stopped_grace_ns,
            new_id=lambda: str(uuid.uuid4()),
        )
        watchers = Watchers(config.watch_queue_length)
        health = Health()
        server = grpc.aio.server(options=_OPTIONS)
        flusher = Flusher(store.sync)
        service = EmbeddedService(cache, store, watchers, flusher.want)
        add_SchedulerCacheServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        health.add_to(server)
        with bound(server, addresses):
            await server.start()
            flushing = asyncio.create_task(flusher.run())
            logger.info(
                "serving",
                extra={
                    "listen": addresses,
                    "state_dir": str(config.state_dir),
                    "claims": len(cache.claims()),
                },
            )
            try:
                yield
            finally:
                health.stop()
                watchers.close("the scheduler cache is shutting down; retrying is safe")
                await server.stop(config.drain_seconds)
                flushing.cancel()  # to close the store brings the rest to the disk
