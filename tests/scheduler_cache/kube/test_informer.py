# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.informer import Informer, Resource
from scheduler_cache.kube.objects import CustomObject, Pod
from tests.fakes.apiserver import FakeApiServer, Place
from tests.scheduler_cache.kube.clusters import (
    POD_RESOURCE,
    PODS,
    QUICK,
    Copy,
    informer_of,
    pod,
    until,
)


@pytest.fixture
def copy() -> Copy:
    return Copy()


@asynccontextmanager
async def following(informer: Informer[Any]) -> AsyncIterator[Informer[Any]]:
    """Run an informer in the block, from its first full list on."""
    task = asyncio.create_task(informer.run())
    try:
        await until(lambda: informer.synced or task.done(), "synced")
        yield informer
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def versions_of(server: FakeApiServer) -> dict[tuple[str, str], str]:
    return {
        name: item["metadata"]["resourceVersion"]
        for name, item in server.objects.get(PODS, {}).items()
    }


async def equal(copy: Copy, server: FakeApiServer) -> None:
    await until(lambda: copy.versions() == versions_of(server), "the copy equals the cluster")


async def test_a_list_comes_in_pages(server: FakeApiServer, client: KubeClient, copy: Copy) -> None:
    for number in range(7):
        await server.put(PODS, pod(f"p{number}"))

    async with following(informer_of(client, copy, page_items=3)) as informer:
        assert copy.names == {f"p{number}" for number in range(7)}
        assert server.count("GET", PODS) == 3
        assert len(informer) == 7


async def test_before_the_first_whole_list_it_is_not_synced(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    for number in range(4):
        await server.put(PODS, pod(f"p{number}"))
    server.fail("GET", PODS, times=3, code=500)
    informer = informer_of(client, copy, page_items=2)

    assert not informer.synced
    assert informer.trouble == "the first list is under way"
    async with following(informer):
        assert informer.trouble == ""
        assert copy.names == {"p0", "p1", "p2", "p3"}


async def test_why_it_is_not_synced_is_said_in_words(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    server.fail("GET", PODS, times=10**9, code=403)
    informer = informer_of(client, copy)
    task = asyncio.create_task(informer.run())

    await until(lambda: "403 Injected" in informer.trouble)

    assert not informer.synced
    task.cancel()


async def test_events_arrive_in_order(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    async with following(informer_of(client, copy)):
        await server.put(PODS, pod("a"))
        await server.put(PODS, pod("b"))
        await server.put(PODS, pod("a", node="n1"))
        await server.remove(PODS, "b", "default")
        await until(lambda: copy.log[-1:] == ["-b"])

        assert copy.log == ["+a", "+b", "+a", "-b"]
        assert copy.pods["default", "a"]["spec"]["nodeName"] == "n1"


async def test_a_watch_that_ends_goes_on_where_it_ended(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    async with following(informer_of(client, copy)) as informer:
        for number in range(5):
            await server.break_watches()
            await server.put(PODS, pod(f"p{number}"))
            await equal(copy, server)

        assert informer.lists == 1
        assert copy.log == [f"+p{number}" for number in range(5)]


async def test_who_waits_for_a_version_is_told_when_it_is_reached(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    async with following(informer_of(client, copy)) as informer:
        made = await client.create("/api/v1/namespaces/default/pods", pod("mark"))
        await asyncio.wait_for(informer.wait_version(made["metadata"]["resourceVersion"]), 30)

        assert copy.names == {"mark"}


async def test_bookmarks_keep_the_place_fresh(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    async with following(informer_of(client, copy)) as informer:
        for number in range(20):
            await server.put("/api/v1/nodes", {"metadata": {"name": f"n{number}"}})
        await until(lambda: informer._resource_version == str(server.version))
        await server.compact()
        await server.break_watches()
        await server.put(PODS, pod("late"))
        await equal(copy, server)

        assert informer.lists == 1


async def test_410_gone_lists_anew_and_finds_what_was_missed(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    for name in ("stays", "changes", "goes", "is-replaced"):
        await server.put(PODS, pod(name))
    server.bookmark_seconds = 60
    async with following(informer_of(client, copy)) as informer:
        old = copy.pods["default", "is-replaced"]["metadata"]["uid"]
        server.lose = lambda event: True
        await server.put(PODS, pod("changes", node="n1"))
        await server.remove(PODS, "goes", "default")
        await server.remove(PODS, "is-replaced", "default")
        await server.put(PODS, pod("is-replaced"))
        await server.put(PODS, pod("comes"))
        copy.log.clear()
        await server.compact()
        await server.break_watches()
        await equal(copy, server)

        assert informer.restarts == {"gone": 1}
        assert [key.uid for key in copy.deleted if key.name == "is-replaced"] == [old]
        assert copy.log == ["+changes", "+comes", "-is-replaced", "+is-replaced", "-goes"]


async def test_410_as_an_event_counts_the_same(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    server.bookmark_seconds = 60
    async with following(informer_of(client, copy)) as informer:
        server.version += 10
        server.oldest = server.version
        server._notify()
        await until(lambda: informer.lists == 2)

        assert informer.restarts == {"gone": 1}


async def test_a_continuation_that_expired_is_followed_by_a_list_in_one_piece(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    for number in range(5):
        await server.put(PODS, pod(f"p{number}"))
    await client.read(PODS, {"limit": "2"})
    first = server._list

    def expired_once(request: web.Request, place: Place) -> web.Response:
        server.oldest = server.version + 1 if request.query.get("continue") else 0
        return first(request, place)

    server._list = expired_once  # type: ignore[method-assign]

    async with following(informer_of(client, copy, page_items=2)) as informer:
        assert informer.restarts == {"gone": 1}
        assert len(copy.pods) == 5


async def test_a_dropped_delete_is_found_by_the_next_comparison(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    await server.put(PODS, pod("ghost"))
    timing = replace(QUICK, relist_seconds=0.2, watch_seconds=1)
    async with following(informer_of(client, copy, timing=timing)) as informer:
        server.lose = lambda event: event.kind == "DELETED"
        await server.remove(PODS, "ghost", "default")
        await until(lambda: copy.log[-1:] == ["-ghost"])

        assert informer.restarts["periodic"] >= 1


async def test_a_dropped_delete_of_a_name_that_is_used_again_is_found_at_once(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    await server.put(PODS, pod("again"))
    async with following(informer_of(client, copy)):
        first = copy.pods["default", "again"]["metadata"]["uid"]
        server.lose = lambda event: event.kind == "DELETED"
        await server.remove(PODS, "again", "default")
        await server.put(PODS, pod("again"))
        await equal(copy, server)

        assert [key.uid for key in copy.deleted] == [first]
        assert copy.log == ["+again", "-again", "+again"]


async def test_events_that_come_twice_change_nothing(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    server.repeat = lambda event: True
    async with following(informer_of(client, copy)) as informer:
        await server.put(PODS, pod("a"))
        await server.remove(PODS, "a", "default")
        await server.put(PODS, pod("last"))
        await equal(copy, server)
        await until(lambda: informer.events >= 6)

        assert copy.log == ["+a", "-a", "+last"]


async def test_a_server_that_fails_is_asked_again_with_pauses(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    server.fail("GET", PODS, times=3, code=503)
    server.fail("GET", PODS, times=1, code=429, headers={"Retry-After": "7"})
    server.fail("GET", PODS, times=1)
    timing = replace(QUICK, first_pause_seconds=1.0, longest_pause_seconds=4.0)

    async with following(informer_of(client, copy, timing=timing, sleep=sleep)):
        for pause, (low, high) in zip(
            pauses, ((0.5, 1.0), (1.0, 2.0), (2.0, 4.0), (7.0, 7.0), (2.0, 4.0)), strict=False
        ):
            assert low <= pause <= high


async def test_garbage_in_the_stream_lists_anew(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    garbage = [b"not json\n"]
    lines = server._lines
    server._lines = lambda *about: [garbage.pop()] if garbage else lines(*about)  # type: ignore[method-assign]

    async with following(informer_of(client, copy)) as informer:
        await server.put(PODS, pod("a"))
        await equal(copy, server)

        assert informer.restarts == {"unreadable": 1}


async def test_an_object_of_an_unforeseen_shape_is_passed_on_whole(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    odd = pod("odd")
    odd["spec"]["containers"] = {"main": "not a list"}
    await server.put(PODS, odd)
    await server.put(PODS, pod("even"))

    async with following(informer_of(client, copy)):
        assert copy.names == {"odd", "even"}
        assert "automountServiceAccountToken" in copy.pods["default", "odd"]["spec"]
        assert "automountServiceAccountToken" not in copy.pods["default", "even"]["spec"]


async def test_selectors_are_the_servers_work(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    await server.put(PODS, pod("here", node="n1", labels={"gpu": "yes"}))
    await server.put(PODS, pod("elsewhere", node="n2", labels={"gpu": "yes"}))
    await server.put(PODS, pod("without", node="n1"))
    chosen = replace(POD_RESOURCE, label_selector="gpu=yes", field_selector="spec.nodeName=n1")

    async with following(informer_of(client, copy, chosen)):
        assert copy.names == {"here"}
        await server.put(PODS, pod("here", node="n1", labels={"gpu": "no"}))
        await until(lambda: copy.names == set())


async def test_a_kind_that_the_cluster_does_not_have_is_empty_and_in_step(
    server: FakeApiServer, client: KubeClient
) -> None:
    path = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    seen: list[str] = []
    server.unknown.add(path)
    resource = Resource(name="devices", path=path, kind=CustomObject, optional=True)
    informer = Informer(
        client,
        resource,
        lambda item: seen.append(item["metadata"]["name"]),
        lambda key, version: seen.remove(key.name),
        timing=QUICK,
    )

    async with following(informer):
        assert len(informer) == 0
        server.unknown.clear()
        await server.put(path, {"metadata": {"name": "n1"}, "spec": {}})
        await until(lambda: seen == ["n1"])
        server.unknown.add(path)
        await server.break_watches()
        await until(lambda: seen == [])


@pytest.fixture(params=range(5))
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


async def test_whatever_happens_the_copy_ends_equal(
    server: FakeApiServer, client: KubeClient, copy: Copy, chance: random.Random
) -> None:
    """Two hundred random changes, with breaks, 410s, refusals, repeated and lost events."""
    timing = replace(QUICK, relist_seconds=0.3, watch_seconds=1)
    server.repeat = lambda event: chance.random() < 0.2
    server.lose = lambda event: chance.random() < 0.1
    async with following(informer_of(client, copy, timing=timing, page_items=3)) as informer:
        for number in range(200):
            name = f"p{chance.randrange(8)}"
            if ("default", name) in server.objects.get(PODS, {}) and chance.random() < 0.5:
                await server.remove(PODS, name, "default")
            else:
                await server.put(PODS, pod(name, node=f"n{number}"))
            if chance.random() < 0.05:
                await server.break_watches()
            if chance.random() < 0.03:
                await server.compact()
            if chance.random() < 0.05:
                server.fail(chance.choice(["GET", "WATCH"]), PODS, code=chance.choice([0, 500]))
            await asyncio.sleep(chance.choice([0, 0, 0.002]))
        server.lose = lambda event: False
        await equal(copy, server)

        assert informer.lists > 1


async def test_two_uids_are_two_pods(client: KubeClient, copy: Copy) -> None:
    first: Pod = {"metadata": {"name": "a", "uid": "1"}}
    second: Pod = {"metadata": {"name": "a", "uid": "2"}}
    informer = informer_of(client, copy)

    informer._take(first)
    informer._take(second)
    informer._gone(first)

    assert copy.log == ["+a", "-a", "+a"]


async def test_a_list_on_demand_begins_after_the_demand(
    server: FakeApiServer, client: KubeClient, copy: Copy
) -> None:
    async with following(informer_of(client, copy)) as informer:
        server.lose = lambda event: True
        await server.put(PODS, pod("unseen"))
        await asyncio.wait_for(informer.relist(), 30)

        assert copy.names == {"unseen"}
        assert informer.lists == 2
