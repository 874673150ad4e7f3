# SPDX-License-Identifier: Apache-2.0
"""The client of the scheduler cache against a real server, scripted and real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.cache_client import CacheClient, explain
from runtime_shim.config import Cache
from runtime_shim.errors import (
    CacheFailedError,
    CacheUnreachableError,
    RefusedError,
    RuntimeShimError,
)
from scheduler_cache import server
from scheduler_cache.config import Config as CacheConfig
from tests.fakes.scheduler_cache import ScriptedCache, serving
from tests.runtime_shim.allocations import CARD, GIB, allocation

REQUEST = pb.AllocationRequest(count=1, memory=[pb.MemoryAmount(bytes=GIB)], cores_percent=[25])
KEY = ("/run/root", "c1")
UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "not synced")


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[ScriptedCache]:
    cache = ScriptedCache()
    async with serving(cache, tmp_path / "cache.sock"):
        yield cache


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[CacheClient]:
    address = f"unix:{tmp_path / 'cache.sock'}"
    client = CacheClient(Cache(address=address, try_seconds=0.5, total_seconds=5.0), "node1")
    yield client
    await client.close()


async def test_allocate_sends_key_node_and_request(
    cache: ScriptedCache, client: CacheClient
) -> None:
    given = allocation()
    cache.allocate = lambda _: pb.AllocateResponse(allocation=given, taken_allocation_ids=["x"])

    response = await client.allocate(KEY, REQUEST, 5.0)

    assert response.allocation == given
    assert list(response.taken_allocation_ids) == ["x"]
    asked = cache.allocations[0]
    assert (asked.claim.runtime_root, asked.claim.container_id) == KEY
    assert (asked.node_name, asked.request) == ("node1", REQUEST)


async def test_allocate_tries_again_while_the_cache_is_not_ready(
    cache: ScriptedCache, client: CacheClient
) -> None:
    cache.failures = [UNAVAILABLE, UNAVAILABLE]

    await client.allocate(KEY, REQUEST, 5.0)

    assert len(cache.allocations) == 3


async def test_allocate_tries_again_after_a_try_without_answer(
    cache: ScriptedCache, client: CacheClient
) -> None:
    cache.silent = True
    call = asyncio.create_task(client.allocate(KEY, REQUEST, 5.0))
    while not cache.allocations:
        await asyncio.sleep(0.01)

    cache.silent = False

    assert await call == pb.AllocateResponse()
    assert len(cache.allocations) == 2


async def test_allocate_waits_for_a_cache_that_comes_later(
    tmp_path: Path, client: CacheClient
) -> None:
    call = asyncio.create_task(client.allocate(KEY, REQUEST, 5.0))
    await asyncio.sleep(0.3)

    async with serving(ScriptedCache(), tmp_path / "cache.sock"):
        assert await call == pb.AllocateResponse()


@pytest.mark.parametrize("there", [True, False])
async def test_a_cache_without_answer_is_unreachable(
    tmp_path: Path, client: CacheClient, there: bool
) -> None:
    cache = ScriptedCache()
    cache.silent = True
    if there:
        async with serving(cache, tmp_path / "cache.sock"):
            with pytest.raises(CacheUnreachableError, match=r"no answer in \S+ s: deadline"):
                await client.allocate(KEY, REQUEST, 0.7)
    else:
        with pytest.raises(CacheUnreachableError, match=r"no answer in \S+ s: unavailable"):
            await client.allocate(KEY, REQUEST, 0.7)


async def test_a_cache_that_is_away_is_waited_for_to_the_end_and_the_sentence_says_how_long(
    client: CacheClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)
    began = time.monotonic()

    with pytest.raises(CacheUnreachableError) as caught:
        await client.allocate(KEY, REQUEST, 4.0)

    waited = time.monotonic() - began
    assert waited >= 3.8
    assert 3.8 <= caught.value.seconds <= waited + 0.1
    assert f"no answer in {caught.value.seconds:g} s" in str(caught.value)


async def test_an_error_of_one_try_names_the_time_of_that_try(client: CacheClient) -> None:
    began = time.monotonic()

    with pytest.raises(CacheUnreachableError) as caught:
        await client.release("a")

    assert caught.value.seconds <= time.monotonic() - began + 0.1


@pytest.mark.parametrize(
    ("code", "text", "reason", "remedy"),
    [
        ("RESOURCE_EXHAUSTED", "no room; stop a; or b", "no room; stop a", "or b"),
        ("RESOURCE_EXHAUSTED", "no room", "no room", "free a slice or ask for less"),
        ("INVALID_ARGUMENT", "bad", "bad", "correct the request"),
        ("FAILED_PRECONDITION", "bad", "bad", "ask for a vGPU in the pod's resources"),
        ("UNIMPLEMENTED", "x", "x", "run the scheduler cache in embedded mode on this host"),
        ("ABORTED", "", "the scheduler cache answered ABORTED", "see the log"),
    ],
)
async def test_a_no_is_final(
    cache: ScriptedCache, client: CacheClient, code: str, text: str, reason: str, remedy: str
) -> None:
    cache.failures = [(grpc.StatusCode[code], text)]

    with pytest.raises(RefusedError) as caught:
        await client.allocate(KEY, REQUEST, 5.0)

    assert caught.value.reason == reason
    assert remedy in caught.value.remedy
    assert len(cache.allocations) == 1


@pytest.mark.parametrize(
    ("code", "text", "detail", "remedy"),
    [
        (
            "INTERNAL",
            "cannot write: disk is full; free space",
            "cannot write: disk is full",
            "free",
        ),
        ("UNKNOWN", "", "the scheduler cache answered UNKNOWN", "see the log of the scheduler"),
    ],
)
async def test_a_cache_that_cannot_answer_is_asked_once(
    cache: ScriptedCache, client: CacheClient, code: str, text: str, detail: str, remedy: str
) -> None:
    cache.failures = [(grpc.StatusCode[code], text)]

    with pytest.raises(CacheFailedError) as caught:
        await client.allocate(KEY, REQUEST, 5.0)

    assert (caught.value.detail, len(cache.allocations)) == (detail, 1)
    assert caught.value.remedy.startswith(remedy)


async def test_release_and_report_say_when_they_failed(
    cache: ScriptedCache, client: CacheClient
) -> None:
    cache.failures = [UNAVAILABLE, UNAVAILABLE]

    with pytest.raises(RuntimeShimError, match="not synced"):
        await client.release("a")
    with pytest.raises(RuntimeShimError, match="not synced"):
        await client.report(pb.ReportNodeRequest(node_name="node1"))
    await client.release("a")
    await client.report(pb.ReportNodeRequest(node_name="node1"))

    assert cache.released == ["a"]
    assert cache.reports == [pb.ReportNodeRequest(node_name="node1")]


async def test_watch_yields_events_in_order(cache: ScriptedCache, client: CacheClient) -> None:
    sent = [
        pb.WatchNodeResponse(sequence=1, snapshot=pb.NodeSnapshot()),
        pb.WatchNodeResponse(sequence=2, upsert=allocation()),
        pb.WatchNodeResponse(sequence=3, remove="x"),
    ]
    for event in sent:
        cache.events.put_nowait(event)
    stream = client.watch()

    assert [await anext(stream) for _ in sent] == sent


async def test_a_lost_event_ends_the_stream(cache: ScriptedCache, client: CacheClient) -> None:
    cache.events.put_nowait(pb.WatchNodeResponse(sequence=1, remove="x"))
    cache.events.put_nowait(pb.WatchNodeResponse(sequence=3, remove="y"))
    stream = client.watch()
    await anext(stream)

    with pytest.raises(RuntimeShimError, match="skipped from 1 to 3"):
        await anext(stream)


async def test_a_broken_stream_says_so(cache: ScriptedCache, client: CacheClient) -> None:
    cache.failures = [UNAVAILABLE]

    with pytest.raises(RuntimeShimError, match="not synced"):
        await anext(client.watch())


async def test_explain_returns_the_lines(cache: ScriptedCache, tmp_path: Path) -> None:
    config = Cache(address=f"unix:{tmp_path / 'cache.sock'}")
    asked = pb.ExplainRequest(card_uuid=CARD)

    assert await asyncio.to_thread(explain, config, asked) == ["a sentence"]

    cache.failures = [(grpc.StatusCode.NOT_FOUND, "no card of that name"), UNAVAILABLE]
    with pytest.raises(RuntimeShimError, match="no card of that name"):
        await asyncio.to_thread(explain, config, asked)
    with pytest.raises(CacheUnreachableError, match="not synced"):
        await asyncio.to_thread(explain, config, asked)


async def test_it_speaks_to_the_real_cache(tmp_path: Path, client: CacheClient) -> None:
    config = CacheConfig(
        embedded=True,
        state_dir=tmp_path / "state",
        listen=(f"unix:{tmp_path / 'cache.sock'}",),
    )
    card = pb.Card(
        uuid=CARD, kind=pb.CARD_KIND_GPU, model="m", memory_bytes=8 * GIB, slots=4, healthy=True
    )
    async with server.running(config):
        await client.report(pb.ReportNodeRequest(node_name="node1", cards=[card], boot_id="b"))

        first = (await client.allocate(KEY, REQUEST, 5.0)).allocation
        again = (await client.allocate(KEY, REQUEST, 5.0)).allocation
        with pytest.raises(RefusedError, match="never fit"):
            await client.allocate(
                ("", "c2"),
                pb.AllocationRequest(count=1, memory=[pb.MemoryAmount(bytes=9 * GIB)]),
                5.0,
            )
        event = await anext(client.watch())
        await client.release(first.allocation_id)

    assert first == again
    assert first.slices[0].card_uuid == CARD
    assert list(event.snapshot.allocations) == [first]
