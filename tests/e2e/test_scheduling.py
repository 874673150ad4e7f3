# SPDX-License-Identifier: Apache-2.0
"""What the unmodified kube-scheduler does with our extender: room shrinks, ends, is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.e2e.namespace import Namespace, allocation, is_pending, until
from tests.e2e.pods import PROBE, Json, container, limits, pod
from tests.e2e.slices import sees_its_slice
from tests.testbed.kubernetes.cluster import CARDS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# Runs until `go` has come.
WAIT = f"{PROBE}; while [ ! -e /tmp/go ]; do sleep 0.2; done"


def on(card: str) -> Mapping[str, str]:
    """Return the annotation that asks for a card."""
    return {"vgpu.dev/use-uuid": card}


def asking(name: str, memory: str, card: str) -> Json:
    return pod(name, container(asked=limits(memory)), annotations=on(card))


@pytest.fixture
def card(namespace: Namespace) -> str:
    """Return the first card."""
    return namespace.cluster.gpu.uuid(0)


async def go(namespace: Namespace, name: str, container: str) -> None:
    await namespace.exec(name, container, "sh", "-c", ">/tmp/go")


async def initializing(namespace: Namespace, name: str) -> Json:
    """Wait until the first init container of a pod runs."""

    async def runs() -> bool:
        states = (await namespace.pod(name))["status"].get("initContainerStatuses", ())
        return bool(states) and "running" in states[0]["state"]

    await until(runs, f"the init container of {name} runs")
    return await namespace.pod(name)


async def test_what_only_an_init_container_needed_is_free_after_it(
    namespace: Namespace, card: str
) -> None:
    await namespace.create(
        pod(
            "shrinks",
            container(asked=limits("1Gi")),
            init=[container("prepare", limits("6Gi"), WAIT)],
            annotations=on(card),
        )
    )
    item = await initializing(namespace, "shrinks")
    assert await sees_its_slice(namespace, item, "prepare") == [card]
    await namespace.create(asking("next", "7Gi", card))
    await until(lambda: pending(namespace, "next"), "the next pod finds no room")

    await go(namespace, "shrinks", "prepare")

    for item in await namespace.running("shrinks", "next"):
        assert await sees_its_slice(namespace, item) == [card]


async def test_a_sidecar_keeps_its_slice_beside_the_application(
    namespace: Namespace, card: str
) -> None:
    await namespace.create(
        pod(
            "both",
            container(asked=limits("3Gi")),
            init=[container("sidecar", limits("2Gi"), restartPolicy="Always")],
            annotations=on(card),
        )
    )

    [item] = await namespace.running("both")

    assert await sees_its_slice(namespace, item, "sidecar") == [card]
    assert await sees_its_slice(namespace, item) == [card]
    await namespace.create(asking("more", "4Gi", card), asking("rest", "3Gi", card))
    [rest] = await namespace.running("rest")
    await sees_its_slice(namespace, rest)
    await until(lambda: pending(namespace, "more"), "five of eight are taken, four do not fit")


async def test_the_next_pod_of_a_full_node_waits_and_says_why(namespace: Namespace) -> None:
    names = [f"full-{number}" for number in range(CARDS)]
    await namespace.create(*(pod(name, container(asked=limits("7Gi"))) for name in names))
    items = await namespace.running(*names)
    cards = [card for item in items for card in await sees_its_slice(namespace, item)]
    assert len(set(cards)) == CARDS

    await namespace.create(pod("late", container(asked=limits("7Gi"))))

    await namespace.described("late", "none of 8 cards fits 7.0Gi: 8 with less")
    await namespace.delete("full-3")
    [late] = await namespace.running("late")
    assert await sees_its_slice(namespace, late) == [cards[3]]


async def test_a_pod_that_is_deleted_by_force_holds_its_card_while_it_runs(
    namespace: Namespace, card: str
) -> None:
    await namespace.create(asking("old", "6Gi", card))
    [item] = await namespace.running("old")
    folder = namespace.cluster.node.run_dir / "containers"
    [held] = folder.iterdir()
    await asyncio.to_thread(namespace.cluster.kill, "kubelet")

    await namespace.delete("old", force=True)
    await namespace.create(asking("new", "6Gi", card))

    await until(lambda: pending(namespace, "new"), "the card is still taken")
    assert held.exists()  # nobody has ended the container
    await asyncio.to_thread(namespace.cluster.start, "kubelet")
    [new] = await namespace.running("new")
    assert await sees_its_slice(namespace, new) == [card]
    assert allocation(item)["main"][0]["card"] == card
    assert not held.exists()


async def pending(namespace: Namespace, name: str) -> bool:
    return is_pending(await namespace.pod(name))
