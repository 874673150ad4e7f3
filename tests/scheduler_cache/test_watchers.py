# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.config import Config
from scheduler_cache.errors import NotSyncedError
from scheduler_cache.server import running
from scheduler_cache.watchers import Watchers, events_of
from tests.scheduler_cache.builders import (
    NODE,
    Host,
    allocation,
    card,
    key,
    part,
    report,
    request,
    told,
)
from tests.scheduler_cache.messages import allocate
from tests.scheduler_cache.messages import card as card_message
from tests.scheduler_cache.messages import report as report_message


async def test_only_the_nodes_own_events_come_in_order() -> None:
    watchers = Watchers(10)
    with watchers.subscribed("node-a") as mine, watchers.subscribed("node-b") as other:
        watchers.publish([("node-a", "x"), ("node-b", "y"), ("node-a", "z")])

        assert [await mine.get(), await mine.get(), await other.get()] == ["x", "z", "y"]


async def test_a_slow_reader_loses_its_stream_and_nobody_elses() -> None:
    watchers = Watchers(2)
    with watchers.subscribed("node-a") as slow, watchers.subscribed("node-a") as quick:
        for event in ("x", "y", "z"):
            watchers.publish([("node-a", event)])
            assert await quick.get() == event

        with pytest.raises(NotSyncedError, match="reads too slowly"):
            await slow.get()


async def test_a_nodes_fifth_stream_ends_its_first_and_nobody_elses() -> None:
    watchers = Watchers(2)
    with ExitStack() as stack:
        other = stack.enter_context(watchers.subscribed("node-b"))
        mine = [stack.enter_context(watchers.subscribed("node-a")) for _ in range(5)]
        watchers.publish([("node-a", "x"), ("node-b", "y")])

        with pytest.raises(NotSyncedError, match="4 newer streams of this node are open"):
            await mine[0].get()
        assert [await each.get() for each in (*mine[1:], other)] == ["x", "x", "x", "x", "y"]


async def test_a_stream_that_is_left_late_takes_no_newer_one_with_it() -> None:
    watchers = Watchers(2)
    with ExitStack() as late:
        late.enter_context(watchers.subscribed("node-a"))
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(watchers.subscribed("node-a"))
        with watchers.subscribed("node-a") as newer:
            late.close()
            watchers.publish([("node-a", "x")])

            assert await asyncio.wait_for(newer.get(), 30) == "x"


async def test_closing_ends_streams_old_and_new() -> None:
    watchers = Watchers(2)
    with watchers.subscribed("node-a") as old:
        watchers.close("going away")
        with watchers.subscribed("node-a") as new:
            for subscription in (old, new):
                with pytest.raises(NotSyncedError, match="going away"):
                    await subscription.get()


def test_a_state_is_no_event_and_a_replacement_is_two() -> None:
    host = Host(card("GPU-1"))
    first = host.allocate("c1", request(2))
    stopped = host.cache.report(
        report(host.cards, replace(told(first.allocation), state=first.state)), host.now
    )
    second, changes = host.cache.allocate(NODE, key("c1"), request(3), host.now)

    assert events_of(host.cache, stopped) == []
    assert events_of(host.cache, changes) == [(NODE, "a1"), (NODE, second.allocation)]


def test_what_is_taken_back_is_an_event() -> None:
    host = Host(card("GPU-1"))
    lost = allocation("lost", part("GPU-1"))

    changes = host.cache.report(report(host.cards, told(lost)), host.now)

    assert events_of(host.cache, changes) == [(NODE, lost)]


async def test_a_client_that_does_not_read_is_cut_off(config: Config) -> None:
    config = replace(config, watch_queue_length=4)
    # Else the transport's window grows to megabytes, and buffers for the client.
    options = (("grpc.http2.bdp_probe", 0),)
    async with running(config), grpc.aio.insecure_channel(config.listen[0], options) as channel:
        stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
        await stub.ReportNode(report_message(card_message("GPU-1", slots=10_000)))
        watch = stub.WatchNode(pb.WatchNodeRequest(node_name=NODE))
        await watch.read()
        message = allocate("", 1)
        message.request.memory[0].bytes = 1 << 20
        # A long root makes every event 64 KiB, more than the transport buffers.
        message.claim.runtime_root = "/" + "r" * 65_536
        for i in range(60):
            message.claim.container_id = f"c{i}"
            await stub.Allocate(message)

        async def read_all() -> None:
            while True:
                await watch.read()

        with pytest.raises(grpc.aio.AioRpcError, match="reads too slowly") as caught:
            await asyncio.wait_for(read_all(), 60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        again = stub.WatchNode(pb.WatchNodeRequest(node_name=NODE))
        assert len((await again.read()).snapshot.allocations) == 60
        again.cancel()
