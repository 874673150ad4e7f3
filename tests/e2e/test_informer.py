# SPDX-License-Identifier: Apache-2.0
"""The informer against the real API server: what the fake one was modelled on."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import KubeError, UnreachableError
from scheduler_cache.kube.informer import Informer, Resource
from scheduler_cache.kube.objects import Pod
from tests.scheduler_cache.kube.clusters import (
    POD_RESOURCE,
    QUICK,
    Copy,
    informer_of,
    pod,
    until,
)
from tests.testbed.kubernetes import ControlPlane

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    # CPython 3.11 leaves the socket of a cancelled TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """Return a namespace of this test's own."""
    name = f"e2e-{uuid.uuid4()}"
    await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@asynccontextmanager
async def following(informer: Informer[Any]) -> AsyncIterator[Informer[Any]]:
    task = asyncio.create_task(informer.run())
    try:
        await until(lambda: informer.synced or task.done(), "synced")
        yield informer
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


async def delete_now(client: KubeClient, namespace: str, name: str) -> None:
    await client.delete(f"{pods_of(namespace)}/{name}", {"gracePeriodSeconds": 0})


async def equal(client: KubeClient, copy: Copy, namespace: str) -> None:
    """Wait until the copy is what the API server says."""
    listed = await client.get(pods_of(namespace))
    want = {
        item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed["items"]
    }
    await until(
        lambda: {name: version for (_, name), version in copy.versions().items()} == want,
        "the copy equals the cluster",
    )


def resource_of(namespace: str) -> Resource[Pod]:
    return replace(POD_RESOURCE, path=pods_of(namespace))


async def test_pages_events_and_deletes(client: KubeClient, namespace: str) -> None:
    for number in range(7):
        await client.create(pods_of(namespace), pod(f"p{number}", namespace=namespace))
    copy = Copy()

    async with following(
        informer_of(client, copy, resource_of(namespace), page_items=3)
    ) as informer:
        assert copy.names == {f"p{number}" for number in range(7)}
        await client.create(pods_of(namespace), pod("late", namespace=namespace))
        await delete_now(client, namespace, "p0")
        await client.create(pods_of(namespace), pod("p0", node="n1", namespace=namespace))
        await equal(client, copy, namespace)

        assert copy.pods[namespace, "p0"]["spec"]["nodeName"] == "n1"
        assert informer.lists == 1
        # A pod is told to end (an update) before it is gone.
        assert [line for line in copy.log[7:] if line != "+p0"] == ["+late", "-p0"]
        assert copy.log[-1] == "+p0"


async def test_a_resource_version_that_etcd_forgot_is_gone(
    client: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    copy = Copy()
    await client.create(pods_of(namespace), pod("a", namespace=namespace))
    informer = informer_of(client, copy, resource_of(namespace))
    async with following(informer):
        pass
    old = informer._resource_version
    await client.create(pods_of(namespace), pod("b", namespace=namespace))
    await asyncio.to_thread(plane.compact)
    informer._resource_version = old

    async with following(informer):
        await equal(client, copy, namespace)

        assert informer.restarts == {"gone": 1}


async def test_a_binding_carries_annotations_in_one_write(
    client: KubeClient, namespace: str
) -> None:
    made = await client.create(pods_of(namespace), pod("a", namespace=namespace))
    copy = Copy()
    async with following(informer_of(client, copy, resource_of(namespace))):
        await client.create(
            f"{pods_of(namespace)}/a/binding",
            {
                "metadata": {
                    "name": "a",
                    "uid": made["metadata"]["uid"],
                    "annotations": {"vgpu.dev/allocation": "x"},
                },
                "target": {"kind": "Node", "name": "n1"},
            },
        )
        await until(lambda: copy.pods[namespace, "a"]["spec"].get("nodeName") == "n1")

        metadata = copy.pods[namespace, "a"]["metadata"]
        assert metadata["annotations"] == {"vgpu.dev/allocation": "x"}
        assert copy.log == ["+a", "+a"]


async def test_kill_9_of_the_api_server_and_of_etcd_loses_nothing(
    client: KubeClient, plane: ControlPlane, namespace: str
) -> None:
    copy = Copy()
    async with following(informer_of(client, copy, resource_of(namespace))) as informer:
        for number, victim in enumerate(("kube-apiserver", "etcd", "kube-apiserver")):
            await client.create(pods_of(namespace), pod(f"p{number}", namespace=namespace))
            plane.kill(victim)
            if victim == "kube-apiserver":
                with pytest.raises(UnreachableError):
                    await client.get(pods_of(namespace))
            await asyncio.to_thread(plane.start)
            await client.create(pods_of(namespace), pod(f"q{number}", namespace=namespace))
            await equal(client, copy, namespace)

        assert len(copy.pods) == 6
        await until(lambda: informer.trouble == "")


@pytest.mark.parametrize("seed", range(2))
async def test_soak_with_connection_kills(
    client: KubeClient, plane: ControlPlane, namespace: str, seed: int
) -> None:
    """Four hundred random changes while the informer's connections are cut again and again."""
    chance = random.Random(seed)
    copy = Copy()
    alive: set[str] = set()
    timing = replace(QUICK, relist_seconds=5, watch_seconds=1)
    async with following(
        informer_of(client, copy, resource_of(namespace), timing=timing, page_items=3)
    ) as informer:
        for _ in range(400):
            name = f"p{chance.randrange(20)}"
            path = f"{pods_of(namespace)}/{name}"
            try:
                if name not in alive:
                    await client.create(pods_of(namespace), pod(name, namespace=namespace))
                    alive.add(name)
                elif chance.random() < 0.4:
                    await delete_now(client, namespace, name)
                    alive.discard(name)
                else:
                    labels = {"x": str(chance.random())}
                    await client.patch(path, {"metadata": {"labels": labels}})
            except KubeError:
                listed = await client.get(pods_of(namespace))
                alive = {item["metadata"]["name"] for item in listed["items"]}
            if chance.random() < 0.1:
                cut_connections(client)
        await equal(client, copy, namespace)

        assert copy.names == alive
        assert informer.events + informer.lists > 400


def cut_connections(client: KubeClient) -> None:
    """Abort every TCP connection of the client, as a broken network would."""
    assert client._session is not None
    connector = client._session.connector
    assert connector is not None
    for protocol in list(connector._acquired):
        if protocol.transport is not None:
            protocol.transport.abort()
