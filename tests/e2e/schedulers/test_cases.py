# SPDX-License-Identifier: Apache-2.0
"""Pods that another system's real scheduler places: each container gets exactly that."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.e2e.namespace import Namespace, until
from tests.e2e.pods import STEP_BYTES, Json
from tests.e2e.schedulers.system import Shape, System, Wish, shape
from tests.e2e.slices import Slice, promises
from tests.testbed.kubernetes.cluster import CARD_BYTES, CARDS

pytestmark = [
    pytest.mark.schedulers,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

# Some bind one pod after the other, and each waits until the node has it.
BURST_SECONDS = 600.0
BURST = 20
SMALL = Wish(2000, 20)
HANDSHAKE_SECONDS = float(os.environ.get("VGPU_SCHEDULER_HANDSHAKE_SECONDS", "300"))

SHAPES = {
    "one card": shape(main=Wish(1024, 10)),
    "memory and cores": shape(main=Wish(2500, 35)),
    "several cards": shape(main=Wish(2048, 20, count=3)),
    "several containers": shape(plain=None, large=Wish(2048, 30), small=Wish(1024, 10)),
    "first and last container ask for nothing": shape(first=None, main=Wish(1024, 10), last=None),
    "init container asks for nothing": shape(init={"prepare": None}, main=Wish(1024, 10)),
    "init container asks": shape(init={"prepare": Wish(3072, 30)}, main=Wish(1024, 10)),
    "init container alone asks": shape(init={"prepare": Wish(1024, 10)}, main=None),
    "sidecar asks for nothing": shape(sidecars={"mesh": None}, main=Wish(1024, 10)),
    "sidecar asks": shape(sidecars={"mesh": Wish(1024, 10)}, main=Wish(2048, 20)),
}


@pytest.mark.parametrize("case", SHAPES)
async def test_a_pod_gets_what_it_asked_for(system: System, place: Namespace, case: str) -> None:
    if case in system.cannot:
        pytest.skip(system.cannot[case])
    what = SHAPES[case]
    await place.create(system.pod("one", what))

    [item] = await place.running("one")

    await gets_what_it_asked_for(system, place, item, what)
    await system.answered(place, "one")


async def test_too_much_waits_and_keeps_nobody_waiting(system: System, place: Namespace) -> None:
    too_much = shape(main=Wish(CARD_BYTES // (1 << 20) + 1024, 10))
    await place.create(system.pod("too-much", too_much))
    await refused(place, "too-much")

    await place.create(system.pod("small", shape(main=SMALL)))
    [item] = await place.running("small")

    await gets_what_it_asked_for(system, place, item, shape(main=SMALL))
    assert "nodeName" not in (await place.pod("too-much"))["spec"]


async def test_what_a_deleted_pod_held_is_used_again(system: System, place: Namespace) -> None:
    most = shape(main=Wish(5120, 60))
    names = [f"pod-{number}" for number in range(CARDS)]
    await create(system, place, names, most)
    items = await place.running(*names, seconds=BURST_SECONDS)
    held = {item["metadata"]["name"]: system.decided(item)[0][0] for item in items}
    assert len(set(held.values())) == CARDS, held
    await place.create(system.pod("waits", most))
    await refused(place, "waits")

    await place.delete("pod-3")

    # A scheduler that hears of the end before its own books do tries again after five minutes.
    [item] = await place.running("waits", seconds=BURST_SECONDS)
    assert [card for card, _, _ in system.decided(item)] == [held["pod-3"]]
    await gets_what_it_asked_for(system, place, item, most)


async def test_a_burst(system: System, place: Namespace) -> None:
    what = shape(main=SMALL)
    names = [f"pod-{number}" for number in range(BURST)]
    await create(system, place, names, what)

    items = await place.running(*names, seconds=BURST_SECONDS)

    for item in items:
        await gets_what_it_asked_for(system, place, item, what)
    never_above_a_card(system, items)


async def test_kill_9_of_theirs(system: System, place: Namespace) -> None:
    """Pods of ReplicaSets, as most are: what went wrong meanwhile has somebody who repeats it."""
    what = shape(main=SMALL)
    names = [f"set-{number}" for number in range(12)]
    await keep(system, place, names[:4], what)
    for name in names[:4]:
        await place.kept(name)

    await keep(system, place, names[4:8], what)
    await asyncio.to_thread(system.kill)
    await system.whole()
    await keep(system, place, names[8:], what)

    items = [await place.kept(name) for name in names]
    for item in items:
        await gets_what_it_asked_for(system, place, item, what)
    never_above_a_card(system, items)


async def test_kill_9_of_ours(system: System, place: Namespace) -> None:
    what = shape(main=SMALL)
    names = [f"pod-{number}" for number in range(8)]
    await create(system, place, names[:4], what)
    for part in ("cache-0", "cache-1", "agent"):
        await asyncio.to_thread(system.cluster.kill, part)
    await system.whole()
    await create(system, place, names[4:], what)

    items = await place.running(*names, seconds=BURST_SECONDS)

    for item in items:
        await gets_what_it_asked_for(system, place, item, what)
    never_above_a_card(system, items)


@pytest.mark.timeout(HANDSHAKE_SECONDS + 900)
async def test_handshakes(system: System, place: Namespace) -> None:
    """The other system goes on believing in the node: pods come and go for minutes."""
    what = shape(main=SMALL)
    end = time.monotonic() + HANDSHAKE_SECONDS
    number = 0
    while number == 0 or time.monotonic() < end:
        name = f"pod-{number}"
        await place.create(system.pod(name, what))
        [item] = await place.running(name)
        await gets_what_it_asked_for(system, place, item, what)
        await system.answered(place, name)
        await system.still_registered(place)
        await place.delete(name)
        number += 1
        await asyncio.sleep(min(20, HANDSHAKE_SECONDS / 4))


# -- what they have in common --------------------------------------------------------------


async def create(system: System, place: Namespace, names: Iterable[str], what: Shape) -> None:
    """Make a pod for each name, all at once where the system can take that."""
    if system.at_once:
        await place.create(*(system.pod(name, what) for name in names))
        return
    for name in names:
        await place.create(system.pod(name, what))

        async def bound(name: str = name) -> bool:
            return "nodeName" in (await place.pod(name))["spec"]

        await until(bound, f"{name} is bound")


async def keep(system: System, place: Namespace, names: Iterable[str], what: Shape) -> None:
    """Make a ReplicaSet of one pod for each name."""
    for name in names:
        await place.keep(system.pod(name, what))


async def gets_what_it_asked_for(system: System, place: Namespace, item: Json, what: Shape) -> None:
    """Assert that each container of a running pod has what was decided for it, and no more."""
    name = item["metadata"]["name"]
    given = system.given(what, system.decided(item))
    for container, slices in given.items():
        await sees(place, item, container, slices, lasting=container not in what.init)
    for container in {*what.containers, *what.init, *what.sidecars} - given.keys():
        devices = (await place.log(name, container)).split()
        assert not {"vgpu", "nvidiactl", "nvidia0"} & set(devices), (name, container, devices)


async def sees(
    place: Namespace, item: Json, container: str, given: list[Slice], *, lasting: bool
) -> None:
    """Assert what a container's probe saw; of one that lasts, what the node enforces, too."""
    name = item["metadata"]["name"]
    seen = await place.probe(name, container)
    where = f"{place.name}/{name} {container}: given {given}, sees {seen}"
    promised = {card: memory for card, memory, _ in given}
    assert len(promised) == len(given) == len(seen["devices"]), where
    for size in ("mem_get_info", "nvml"):
        assert {each["uuid"]: each[size]["total"] for each in seen["devices"]} == promised, where
    if seen.get("words"):
        first = promised[seen["devices"][0]["uuid"]]
        assert seen["words"][0]["bytes"] == first - first % STEP_BYTES, where
    if lasting:
        amounts = [(memory, cores) for _, memory, cores in given]
        assert sorted(promises(place, item, container)) == sorted(amounts), where


async def refused(place: Namespace, name: str) -> None:
    """Wait until a scheduler has said that it finds no place for a pod."""

    async def so() -> bool:
        item = await place.pod(name)
        assert "nodeName" not in item["spec"], await place.describe(name)
        conditions = item["status"].get("conditions", ())
        return any(
            each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions
        )

    await until(so, f"no node is found for {place.name}/{name}")


def never_above_a_card(system: System, items: Iterable[Json]) -> None:
    """Assert that what was decided for pods together fits on each card."""
    memory: dict[str, int] = defaultdict(int)
    cores: dict[str, int] = defaultdict(int)
    for item in items:
        for card, size, percent in system.decided(item):
            memory[card] += size
            cores[card] += percent
    assert max(memory.values()) <= CARD_BYTES, memory
    if system.counts_cores:
        assert max(cores.values()) <= 100, cores
