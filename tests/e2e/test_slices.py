# SPDX-License-Identifier: Apache-2.0
"""The two cases for which a container has a name of its own: equal pods, and containers of one pod.

A device plugin cannot tell which of them a kubelet's Allocate is for; here each gets its own cards.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.namespace import Namespace
from tests.e2e.pods import Json, container, limits, pod
from tests.e2e.slices import sees_its_slice

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROUNDS = 50
# A round holds four slices at most; eight cards have eighty.
AT_ONCE = 16
GATE = "vgpu.dev/both-are-here"


def equal(name: str, memory: str) -> Json:
    """Return a pod that waits until its twin is there, too."""
    return pod(
        name,
        container(asked=limits(memory, cores=5)),
        annotations={"vgpu.dev/card-policy": "spread"},
        schedulingGates=[{"name": GATE}],
    )


async def two_pending_pods(namespace: Namespace, number: int, memory: str = "256Mi") -> list[str]:
    """Let two pods with equal requests be pending at once; return the card of each."""
    names = [f"equal-{number}-{which}" for which in "ab"]
    await namespace.create(*(equal(name, memory) for name in names))
    await asyncio.gather(*(namespace.open_gate(name) for name in names))
    items = await namespace.running(*names)
    cards = [await sees_its_slice(namespace, item) for item in items]
    await namespace.delete(*names)
    return [card for [card] in cards]


async def two_containers(namespace: Namespace, number: int) -> list[list[str]]:
    """Let two containers of one pod have slices of different sizes; return the cards of each."""
    name = f"two-{number}"
    sizes = {"large": limits("512Mi", cores=8), "small": limits("256Mi", cores=4)}
    await namespace.create(pod(name, *(container(key, asked) for key, asked in sizes.items())))
    [item] = await namespace.running(name)
    cards = [await sees_its_slice(namespace, item, key) for key in sizes]
    await namespace.delete(name)
    return cards


@pytest.mark.e2e_quick
async def test_two_pending_pods_with_equal_requests_get_their_own_cards(
    namespace: Namespace,
) -> None:
    cards = await two_pending_pods(namespace, 0, memory="5Gi")

    assert len(set(cards)) == 2  # five and five do not fit on eight


@pytest.mark.e2e_quick
async def test_two_containers_of_one_pod_get_their_own_slices(namespace: Namespace) -> None:
    await two_containers(namespace, 0)


async def test_a_hundred_such_pods_at_once(namespace: Namespace) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def a_round(number: int) -> None:
        async with room:
            await asyncio.gather(
                two_pending_pods(namespace, number), two_containers(namespace, number)
            )

    # Each asserts of each container that it sees its cards and its limits.
    results = await asyncio.gather(
        *(a_round(number) for number in range(ROUNDS)), return_exceptions=True
    )

    failed = [result for result in results if isinstance(result, BaseException)]
    assert not failed, f"{len(failed)} of {ROUNDS} rounds; the first: {failed[0]}"
