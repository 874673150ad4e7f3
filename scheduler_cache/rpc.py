# SPDX-License-Identifier: Apache-2.0
"""What both modes' services do alike: errors as statuses, a node's stream, life until a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache import wire
from scheduler_cache.errors import SchedulerCacheError
from scheduler_cache.model import Allocation
from scheduler_cache.watchers import Subscription

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def errors_mapped(context: Context) -> AsyncIterator[None]:
    """End the call with the status and the sentence of our own errors."""
    try:
        yield
    except SchedulerCacheError as error:
        await context.abort(error.status, str(error))


async def node_stream(
    held: Iterable[Allocation], subscription: Subscription
) -> AsyncIterator[pb.WatchNodeResponse]:
    """Yield a snapshot of what a node holds, then every change; NotSyncedError ends it.

    Nothing may be awaited between the subscription and the look at what is held.
    """
    sequence = 1
    yield pb.WatchNodeResponse(
        sequence=sequence,
        snapshot=pb.NodeSnapshot(allocations=map(wire.allocation_message, held)),
    )
    while True:
        event = await subscription.get()
        sequence += 1
        if isinstance(event, Allocation):
            yield pb.WatchNodeResponse(sequence=sequence, upsert=wire.allocation_message(event))
        else:
            yield pb.WatchNodeResponse(sequence=sequence, remove=event)


async def until_signalled(
    running: AbstractAsyncContextManager[object], drain_seconds: float
) -> None:
    """Serve until SIGTERM or SIGINT, then let the calls under way end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running:
        await stop.wait()
        logger.info("stopping", extra={"drain_seconds": drain_seconds})
