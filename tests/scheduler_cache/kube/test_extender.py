# SPDX-License-Identifier: Apache-2.0
"""The extender of a running replica, over mTLS, as kube-scheduler calls it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scheduler_cache.cluster_preemption import Preemption
from scheduler_cache.cluster_server import Running
from scheduler_cache.config_kubernetes import ExtenderConfig
from scheduler_cache.dialects.keyring import Keyring
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.extender.verbs import Extender
from scheduler_cache.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import PODS, connection_to, until
from tests.scheduler_cache.kube.replicas import (
    NODES,
    A,
    B,
    Site,
    asking,
    leading,
    node_object,
    report,
)
from tests.scheduler_cache.kube_objects import container_of

SERVED = ExtenderConfig(listen=("127.0.0.1:0",), bind_wait_seconds=30.0)


@pytest.fixture
def site(server: FakeApiServer, scratch: Path) -> Site:
    return Site(server, scratch)


class Scheduler:
    """Calls one replica."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def post(self, verb: str, body: object) -> tuple[int, str]:
        async with self._session.post(f"{self._url}/extender/{verb}", json=body) as response:
            return response.status, await response.text()

    async def ask(self, verb: str, body: object) -> Any:  # noqa: ANN401 - JSON
        status, text = await self.post(verb, body)
        assert status == 200, text
        return json.loads(text)

    async def bind(self, pod: dict[str, Any], node: str = "n1", **changes: str) -> str:
        """Ask for a Binding and return the error, empty for none."""
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        error: str = (await self.ask("bind", {**body, **changes}))["Error"]
        return error


@asynccontextmanager
async def scheduler_of(
    site: Site, replica: Running, name: str = "system:kube-scheduler"
) -> AsyncIterator[Scheduler]:
    """Yield a scheduler with a certificate of the cluster's authority."""
    proof = site.authority.issue(name)
    context = ssl.create_default_context(cafile=str(site.authority.certificate))
    context.load_cert_chain(proof.certificate, proof.key)
    # The certificate is that of the Service; here it is reached by its address.
    context.check_hostname = False
    (address,) = replica.extender_addresses
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Scheduler(session, f"https://{address}")


@asynccontextmanager
async def cluster(site: Site) -> AsyncIterator[tuple[Running, Scheduler]]:
    """Yield a leading replica with nodes n1 and n2 of one card each, and a scheduler."""
    for name in ("n1", "n2"):
        await site.server.put(NODES, node_object(name))
    async with site.replica(extender=SERVED) as replica:
        await leading(replica)
        for name, card in (("n1", A), ("n2", B)):
            async with site.node(replica, name) as node:
                await node.ReportNode(report(name, card))
        async with scheduler_of(site, replica) as scheduler:
            yield replica, scheduler


async def create(
    site: Site, name: str, uuid: str, memory: str = "2Gi", scheduler: str = "vgpu-scheduler"
) -> dict[str, Any]:
    source = asking(name, uuid, memory)
    source["spec"]["schedulerName"] = scheduler
    made: dict[str, Any] = await site.server.put(PODS, source)
    return made


def container_uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def names(pod: dict[str, Any]) -> dict[str, Any]:
    return {"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]}


async def test_a_pod_is_filtered_scored_and_bound_with_its_allocation(site: Site) -> None:
    async with cluster(site) as (_, scheduler):
        pod = await create(site, "p1", container_uuid(1))

        found = await scheduler.ask("filter", names(pod))
        scores = await scheduler.ask("prioritize", names(pod))
        error = await scheduler.bind(pod)
        bound = site.server.objects[PODS]["default", "p1"]

    assert (found["NodeNames"], found["Error"]) == (["n1", "n2"], "")
    assert scores == [{"Host": "n1", "Score": 3}, {"Host": "n2", "Score": 3}]
    assert error == ""
    assert bound["spec"]["nodeName"] == "n1"
    allocation = json.loads(bound["metadata"]["annotations"]["vgpu.dev/allocation"])
    assert allocation["containers"]["main"][0]["card"] == A


async def test_a_pod_without_cards_is_bound_without_an_allocation(site: Site) -> None:
    async with cluster(site) as (_, scheduler):
        source = asking("p1")
        source["spec"] = {"schedulerName": "vgpu-scheduler", "containers": [container_of("c", {})]}
        pod = await site.server.put(PODS, source)

        error = await scheduler.bind(pod)

        bound = site.server.objects[PODS]["default", "p1"]
    assert error == ""
    assert bound["spec"]["nodeName"] == "n1"
    assert "vgpu.dev/allocation" not in bound["metadata"].get("annotations", {})


async def test_of_two_binds_to_the_last_room_one_is_told_to_try_again(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        pods = [await create(site, f"p{i}", container_uuid(i), "6Gi") for i in range(2)]

        errors = await asyncio.gather(*map(scheduler.bind, pods))

        assert sorted(map(bool, errors)) == [False, True]
        assert "no card has 6.0Gi free" in max(errors)
        loser = pods[errors.index(max(errors))]
        found = await scheduler.ask("filter", names(loser))
        assert found["NodeNames"] == ["n2"]
        assert await scheduler.bind(loser, "n2") == ""
        view = replica.cluster.view("n1")
        assert view is not None
        assert view.room(A).use.slices == 1


async def test_a_bind_that_is_asked_twice_holds_once(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        pod = await create(site, "p1", container_uuid(1), "6Gi")

        first = await asyncio.gather(scheduler.bind(pod), scheduler.bind(pod))
        again = await scheduler.bind(pod)
        elsewhere = await scheduler.bind(pod, "n2")

        views = [replica.cluster.view(name) for name in ("n1", "n2")]
        slices = [
            view.room(card).use.slices for view, card in zip(views, (A, B), strict=True) if view
        ]
    assert list(first) == ["", ""]
    # It is bound: whoever asks again is refused, and frees nothing by it.
    assert again == "" or "already bound to node n1" in again
    assert "bound to node n1" in elsewhere
    assert slices == [1, 0]


async def test_a_bind_waits_for_a_pod_that_the_scheduler_knows_first(site: Site) -> None:
    async with cluster(site) as (_, scheduler):
        pod = asking("p1")
        pod["spec"]["schedulerName"] = "vgpu-scheduler"
        pod["metadata"]["uid"] = "uid-of-p1"

        binding = asyncio.create_task(scheduler.bind(pod))
        await asyncio.sleep(0)
        await site.server.put(PODS, pod)

        assert await binding == ""


async def test_a_bind_of_an_unknown_pod_ends_with_its_wait(site: Site) -> None:
    await site.server.put(NODES, node_object("n1"))
    impatient = replace(SERVED, bind_wait_seconds=0.05)
    async with site.replica(extender=impatient) as replica, scheduler_of(site, replica) as caller:
        await leading(replica)
        unknown = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}

        assert "not known here yet" in await caller.bind(unknown)


async def test_a_pod_of_another_scheduler_is_not_bound(site: Site) -> None:
    async with cluster(site) as (_, scheduler):
        pod = await create(site, "p1", container_uuid(1), scheduler="default-scheduler")

        error = await scheduler.bind(pod)

        assert "default-scheduler" in error
        assert not site.server.objects[PODS]["default", "p1"]["spec"].get("nodeName")


async def test_a_pod_that_was_made_anew_is_not_bound_under_its_old_uid(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        old = await create(site, "p1", container_uuid(1))
        await until(lambda: replica.cluster.record(old["metadata"]["uid"]) is not None)
        await site.server.remove(PODS, "p1", "default")
        await create(site, "p1", container_uuid(2))

        error = await scheduler.bind(old)

        assert error
        assert not site.server.objects[PODS]["default", "p1"]["spec"].get("nodeName")


async def test_a_follower_does_not_bind_and_never_says_that_nothing_fits(site: Site) -> None:
    async with (
        cluster(site) as (_, scheduler),
        site.replica("replica-1", extender=SERVED) as follower,
        scheduler_of(site, follower) as second,
    ):
        pod = await create(site, "p1", container_uuid(1))

        status, text = await second.post(
            "bind",
            {"PodName": "p1", "PodNamespace": "default", "PodUID": "u", "Node": "n1"},
        )
        # It learns the cards from what the leader writes on the Node objects, and what runs there
        # only from reports, which go to the leader.
        await until(lambda: all(cards_of(follower, name) for name in ("n1", "n2")))
        silent = await second.post("filter", names(pod))
        scores = await second.ask("prioritize", names(pod))

        assert (status, "lead" in text) == (503, True)
        assert (silent[0], "lead" in silent[1]) == (503, True)
        assert [each["Host"] for each in scores] == ["n1", "n2"]
        assert await scheduler.bind(pod) == ""


def cards_of(replica: Running, node: str) -> list[str]:
    view = replica.cluster.view(node)
    return list(view.inventory.cards) if view else []


async def test_before_it_is_synced_a_replica_lets_nothing_fit(site: Site) -> None:
    site.server.fail("GET", NODES, times=10**9, code=403)
    async with (
        site.replica(extender=SERVED, synced=False) as replica,
        scheduler_of(site, replica) as scheduler,
    ):
        for verb in ("filter", "prioritize", "preempt", "bind"):
            status, text = await scheduler.post(verb, names(asking("p")))
            assert (status, "not synced" in text) == (503, True), verb


async def test_what_cannot_be_read_is_a_bad_request_that_says_why(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        for verb in ("filter", "prioritize", "preempt", "bind"):
            status, text = await scheduler.post(verb, {"Pod": None})
            assert (status, "cannot be read" in text) == (400, True), verb

        assert b'outcome="invalid",verb="bind"' in replica.metrics.text()


async def test_a_kubelet_may_not_ask(site: Site) -> None:
    async with cluster(site) as (replica, _), scheduler_of(site, replica, "system:node:n1") as node:
        status, _ = await node.post("filter", names(asking("p")))

    assert status == 403


async def test_without_tls_it_is_served_on_loopback_alone(site: Site) -> None:
    plain = replace(SERVED, plain=True)
    async with site.replica(extender=plain) as replica, aiohttp.ClientSession() as session:
        (address,) = replica.extender_addresses
        scheduler = Scheduler(session, f"http://{address}")

        found = await scheduler.ask("filter", {**names(known_pod()), "NodeNames": []})

    assert found["NodeNames"] == []


def known_pod() -> dict[str, Any]:
    pod = asking("p")
    pod["metadata"]["uid"] = "u"
    return pod


def room_since(site: Site, node: str) -> str:
    metadata = site.server.objects[NODES]["", node]["metadata"]
    found: str = metadata.get("annotations", {}).get("vgpu.dev/room-since", "")
    return found


async def test_a_node_that_gets_room_is_touched_while_a_pod_waits(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        holders = [await create(site, f"h{i}", container_uuid(i), "6Gi") for i in range(2)]
        assert [await scheduler.bind(holders[0], "n1"), await scheduler.bind(holders[1], "n2")] == [
            "",
            "",
        ]
        waiting = await create(site, "p", container_uuid(7), "6Gi")
        found = await scheduler.ask("filter", names(waiting))
        assert found["NodeNames"] == []

        await site.server.remove(PODS, "h0", "default")
        async with site.node(replica, "n1") as node:
            await until(lambda: replica.cluster.record(holders[0]["metadata"]["uid"]).gone)  # type: ignore[union-attr]
            still_held = room_since(site, "n1")
            await node.ReportNode(report("n1", A))

        await until(lambda: bool(room_since(site, "n1")), "the node is touched")
        assert still_held == ""
        assert room_since(site, "n2") == ""
        found = await scheduler.ask("filter", names(waiting))
        assert found["NodeNames"] == ["n1"]


async def test_nobody_waits_and_no_node_is_touched(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        holder = await create(site, "h", container_uuid(1), "6Gi")
        assert await scheduler.bind(holder) == ""
        waiting = await create(site, "p", container_uuid(7), "9Gi")
        assert (await scheduler.ask("filter", names(waiting)))["NodeNames"] == []
        await site.server.remove(PODS, "p", "default")
        await until(lambda: replica.cluster.record(waiting["metadata"]["uid"]) is None)

        await site.server.remove(PODS, "h", "default")
        async with site.node(replica, "n1") as node:
            await until(lambda: replica.cluster.record(holder["metadata"]["uid"]).gone)  # type: ignore[union-attr]
            await node.ReportNode(report("n1", A))
        view = replica.cluster.view("n1")
        assert view is not None
        assert view.room(A).use.slices == 0
        await until(lambda: len(replica.leader.upkeep.chores) == 0, "what is planned is done")

        assert room_since(site, "n1") == ""


EVICTION = f"{PODS.removesuffix('/pods')}/namespaces/default/pods/low/eviction"


async def make_full(site: Site, scheduler: Scheduler, priority: int = 9) -> dict[str, Any]:
    """Fill n1 and n2, and return a pod of higher priority that was turned away."""
    for number, (name, node) in enumerate((("low", "n1"), ("equal", "n2"))):
        holder = asking(name, container_uuid(number), "6Gi")
        holder["spec"].update(schedulerName="vgpu-scheduler", priority=number * 9)
        assert await scheduler.bind(await site.server.put(PODS, holder), node) == ""
    urgent = asking("urgent", container_uuid(7), "6Gi")
    urgent["spec"].update(schedulerName="vgpu-scheduler", priority=priority)
    made: dict[str, Any] = await site.server.put(PODS, urgent)
    return made


def exists(site: Site, name: str) -> bool:
    return ("default", name) in site.server.objects[PODS]


def told(site: Site, reason: str) -> list[str]:
    events = site.server.objects.get("/api/v1/events", {}).values()
    return [each["message"] for each in events if each["reason"] == reason]


async def test_who_waits_for_slices_alone_gets_them_from_a_lower_priority(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        urgent = await make_full(site, scheduler)
        await until(lambda: replica.cluster.record(urgent["metadata"]["uid"]) is not None)

        first = await scheduler.ask("filter", names(urgent))
        await until(lambda: not exists(site, "low"), "the lower priority is evicted")
        async with site.node(replica, "n1") as node:
            await until(lambda: bool(told(site, "Preempted")), "it is said why")
            await node.ReportNode(report("n1", A))
        other = await create(site, "other", container_uuid(8), "6Gi")
        kept = await scheduler.ask("filter", names(other))
        error = await scheduler.bind(urgent)

        assert (first["NodeNames"], sorted(first["FailedNodes"])) == ([], ["n1", "n2"])
        assert "needs its slices on node n1" in told(site, "Preempted")[0]
        assert exists(site, "equal")
        assert kept["NodeNames"] == []
        assert error == ""


async def test_a_disruption_budget_is_not_broken(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        urgent = await make_full(site, scheduler)
        await until(lambda: replica.cluster.record(urgent["metadata"]["uid"]) is not None)
        site.server.fail("POST", EVICTION, times=10**9, code=429)

        await scheduler.ask("filter", names(urgent))
        await until(lambda: replica.leader.upkeep.chores.failures > 0, "an eviction was refused")
        # The pod that the budget protects is left out, and nothing is promised.
        await until(lambda: len(replica.leader.upkeep.chores) == 0, "it is given up")
        other = await create(site, "other", container_uuid(8), "1Gi")

        assert exists(site, "low")
        assert (await scheduler.ask("filter", names(other)))["NodeNames"] == ["n1", "n2"]


async def test_nobody_is_considered_where_that_is_switched_off(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        urgent = await make_full(site, scheduler)
        uid = urgent["metadata"]["uid"]
        await until(lambda: replica.cluster.record(uid) is not None)
        extender = Extender(replica.cluster, every_dialect(replica_keyring(site)))
        async with KubeClient(connection_to(site.server.url, site.folder)) as client:
            off, on = (
                Preemption(
                    client,
                    replica.cluster,
                    extender,
                    replica.leader,
                    enabled=enabled,
                    pause_seconds=0.0,
                )
                for enabled in (False, True)
            )

            off.consider(uid, ["n1"])
            refused = off.considered
            on.consider(uid, ["n1"])
            taken = on.considered
            await until(lambda: not exists(site, "low"), "the lower priority is evicted")

    assert (refused, taken) == (0, 1)


def replica_keyring(site: Site) -> Keyring:
    return site.config().kubernetes.keyring()


async def test_preempt_names_who_holds_the_slices_on_each_node(site: Site) -> None:
    async with cluster(site) as (replica, scheduler):
        urgent = await make_full(site, scheduler)
        await until(lambda: replica.cluster.record(urgent["metadata"]["uid"]) is not None)
        low = site.server.objects[PODS]["default", "low"]["metadata"]["uid"]
        offered = {"Pods": [{"UID": "eats-cpu"}], "NumPDBViolations": 1}

        found = await scheduler.ask(
            "preempt", {"Pod": urgent, "NodeNameToMetaVictims": {"n1": offered, "n2": offered}}
        )

    # On n2 a pod of equal priority holds the card.
    assert found == {
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "eats-cpu"}, {"UID": low}], "NumPDBViolations": 1}
        }
    }
