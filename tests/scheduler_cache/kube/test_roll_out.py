# SPDX-License-Identifier: Apache-2.0
"""Another template for a DaemonSet, until every node runs it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.roll_out import RollOutError, roll_out
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import until

SETS = "/apis/apps/v1/namespaces/vgpu-system/daemonsets"
NODE = f"{SETS}/vgpu-node"


def daemonset(word: str, **more: object) -> dict[str, Any]:
    return {
        "metadata": {"name": "vgpu-node", "namespace": "vgpu-system", **more},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {"initContainers": [{"name": word}], "containers": []}},
            "updateStrategy": {"type": "RollingUpdate"},
        },
    }


def status(nodes: int, updated: int, ready: int, generation: int = 7) -> dict[str, Any]:
    return {
        "status": {
            "observedGeneration": generation,
            "desiredNumberScheduled": nodes,
            "updatedNumberScheduled": updated,
            "numberReady": ready,
        }
    }


@pytest.fixture
async def running(server: FakeApiServer, client: KubeClient) -> asyncio.Task[list[str]]:
    """Return a roll-out that has begun; its result is what it told."""
    await client.create(SETS, {**daemonset("install", generation=7), **status(2, 2, 2, 6)})

    async def go() -> list[str]:
        told: list[str] = []
        await roll_out(client, daemonset("remove"), seconds=60, tell=told.append)
        return told

    task = asyncio.create_task(go())

    async def patched() -> bool:
        item = await client.get(NODE)
        return bool(item["spec"]["template"]["spec"]["initContainers"] == [{"name": "remove"}])

    while not await patched():
        await asyncio.sleep(0.01)
    return task


async def test_it_waits_for_the_controller_and_then_for_every_node(
    server: FakeApiServer, client: KubeClient, running: asyncio.Task[list[str]]
) -> None:
    # At first those are ready that run the old template: the controller has not seen the new one.
    for unfinished in (status(2, 2, 2, 6), status(2, 1, 2), status(2, 2, 1)):
        await client.patch(NODE, unfinished)
        looks = server.count("GET", NODE)
        await until(lambda looks=looks: server.count("GET", NODE) > looks + 1)  # type: ignore[misc]
        assert not running.done()
    await client.patch(NODE, status(2, 2, 2))

    told = await asyncio.wait_for(running, 60)

    assert told[0] == ("daemonset vgpu-system/vgpu-node: the controller has not seen it yet")
    assert told[-1] == "daemonset vgpu-system/vgpu-node: 2 of 2 nodes"


async def test_only_template_and_strategy_change(
    client: KubeClient, running: asyncio.Task[list[str]]
) -> None:
    item = await client.get(NODE)
    running.cancel()

    assert item["spec"] == daemonset("remove")["spec"]
    assert item["metadata"]["generation"] == 7


async def test_an_api_server_that_restarts_is_waited_for(
    server: FakeApiServer, client: KubeClient, running: asyncio.Task[list[str]]
) -> None:
    server.fail("GET", NODE, code=503)
    await until(lambda: server.count("GET", NODE) > 2)
    await client.patch(NODE, status(0, 0, 0))

    told = await asyncio.wait_for(running, 60)

    assert told[-1] == "daemonset vgpu-system/vgpu-node: 0 of 0 nodes"


async def test_a_daemonset_that_goes_meanwhile_runs_nowhere(
    client: KubeClient, running: asyncio.Task[list[str]]
) -> None:
    await client.delete(NODE)

    await asyncio.wait_for(running, 60)


async def test_one_that_is_not_there_runs_nowhere(client: KubeClient) -> None:
    told: list[str] = []

    await roll_out(client, daemonset("remove"), seconds=60, tell=told.append)

    assert told == ["there is no daemonset vgpu-system/vgpu-node"]


async def test_nodes_that_cannot_are_counted_and_their_logs_named(client: KubeClient) -> None:
    await client.create(SETS, {**daemonset("install", generation=7), **status(3, 3, 1)})

    with pytest.raises(RollOutError) as caught:
        await roll_out(client, daemonset("remove"), seconds=0, tell=lambda _: None)

    assert str(caught.value) == (
        "daemonset vgpu-system/vgpu-node is not everywhere within 0 s: 1 of 3 nodes; the logs of "
        "its pods say why: kubectl -n vgpu-system get pods -o wide"
    )
