# SPDX-License-Identifier: Apache-2.0
"""Several replicas: nothing is lost and nothing is given twice, whichever of them dies or lags."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache.cluster_leader import BindingRefusedError
from scheduler_cache.cluster_server import Running
from scheduler_cache.dialects.native import Native
from scheduler_cache.errors import (
    NoRoomError,
    NotBelievedError,
    NotLeaderError,
    WrongNodeError,
)
from scheduler_cache.model import Allocation, ComputeMode, PodContainer, Slice
from scheduler_cache.pod import pod_of
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import PODS, until
from tests.scheduler_cache.kube.processes import replica_process
from tests.scheduler_cache.kube.replicas import (
    NAMESPACE,
    NODES,
    UUID,
    A,
    B,
    Site,
    asking,
    bind,
    leading,
    node_object,
    one_node,
    report,
    resolve,
    stub_of,
)
from tests.scheduler_cache.kube_objects import KEYRING, gpu

SECOND = "22222222-2222-4333-8444-555555555555"
THIRD = "33333333-2222-4333-8444-555555555555"
UUIDS = [f"{number}aaaaaaa-2222-4333-8444-555555555555" for number in range(5)]
LEASE = "/apis/coordination.k8s.io/v1/namespaces/vgpu-system/leases"
LEASES = "/apis/coordination.k8s.io/v1/leases"


@pytest.fixture
def site(server: FakeApiServer, scratch: Path) -> Site:
    return Site(server, scratch)


def label_of(site: Site, replica: str) -> str | None:
    labels = site.server.objects[PODS][NAMESPACE, replica]["metadata"].get("labels", {})
    value: str | None = labels.get("vgpu.dev/leader")
    return value


async def known(replica: Running, uid: str, node: str = "n1") -> None:
    """Wait until a replica knows that a pod is bound."""
    await until(lambda: (r := replica.cluster.record(uid)) is not None and r.pod.node_name == node)


async def test_any_synced_replica_answers(site: Site) -> None:
    async with one_node(site, A) as (leader, _), site.replica("replica-1") as follower:
        uid = await bind(site, leader, asking("p1"))
        await known(follower, uid)

        async with site.node(follower, "n1") as node:
            answer = await node.Resolve(resolve(), timeout=20)
            watch = node.WatchNode(pb.WatchNodeRequest(), timeout=60)
            snapshot = (await watch.read()).snapshot
            await bind(site, leader, asking("p2", SECOND))
            event = await watch.read()

        assert answer.allocation.slices[0].card_uuid == A
        assert [each.allocation_id for each in snapshot.allocations] == [UUID]
        assert event.upsert.allocation_id == SECOND


async def test_only_the_leader_binds_and_it_carries_the_label(site: Site) -> None:
    async with one_node(site, A) as (leader, _), site.replica("replica-1") as follower:
        made = await site.server.put(PODS, asking("p1"))
        uid = made["metadata"]["uid"]
        await until(lambda: follower.cluster.record(uid) is not None)
        await until(lambda: bool(follower.election.holder))

        with pytest.raises(NotLeaderError, match="replica-0_"):
            await follower.leader.bind(uid, "n1")

        assert leader.election.leading
        assert (label_of(site, "replica-0"), label_of(site, "replica-1")) == ("true", None)


async def test_a_leader_that_stops_hands_over_at_once(site: Site) -> None:
    """Graceful drain: the Lease lasts an hour, and yet the other leads once the first has ended."""
    async with AsyncExitStack() as first_ends, AsyncExitStack() as second_ends:
        first = await first_ends.enter_async_context(
            site.replica("replica-0", lease_seconds=3600.0, renew_seconds=1800.0)
        )
        await leading(first)
        second = await second_ends.enter_async_context(
            site.replica("replica-1", lease_seconds=3600.0, renew_seconds=1800.0)
        )
        await until(lambda: second.election.holder == first.election.identity)

        await first_ends.aclose()

        await leading(second)
        assert (first.election.epoch, second.election.epoch) == (1, 2)
        assert [label_of(site, f"replica-{number}") for number in (0, 1)] == [None, "true"]


async def test_a_new_leader_writes_only_after_it_has_read_what_was_written_before(
    site: Site,
) -> None:
    """Its watch is late: it must not give a card away that the old leader has given."""
    async with one_node(site, A) as (leader, _):
        await bind(site, leader, asking("p1", memory="8Gi"))
        async with site.replica("replica-1") as follower:
            await until(lambda: follower.feed.synced)
            # What the follower's watch tells is held back from here on.
            take, held, backlog = follower.feed.pods._event, asyncio.Event(), list[bytes]()
            follower.feed.pods._event = (  # type: ignore[method-assign]
                lambda line: take(line) if held.is_set() else backlog.append(line)
            )
            waiting = await site.server.put(PODS, asking("p2", SECOND, memory="8Gi"))
            site.server.fail("*", LEASE, times=10**9, code=500, token="replica-0")
            await until(lambda: follower.election.leading)

            with pytest.raises(NotLeaderError, match="is reading what was written before"):
                follower.leader.check()

            held.set()
            for line in backlog:
                take(line)
            await leading(follower)
            async with site.node(follower, "n1") as node:
                await node.ReportNode(report("n1", A), timeout=20)
            with pytest.raises(NoRoomError):
                await follower.leader.bind(waiting["metadata"]["uid"], "n1")


async def test_a_paused_old_leader_that_writes_late_loses(site: Site) -> None:
    """Its Binding was on the way while another took over and gave the same card away."""
    async with one_node(site, A) as (old, _), site.replica("replica-1") as new:
        first = await site.server.put(PODS, asking("p1", UUID, memory="8Gi"))
        uid = first["metadata"]["uid"]
        await until(lambda: old.cluster.record(uid) is not None)
        released = site.server.hold("POST", "/api/v1/namespaces/default/pods/p1/binding")
        late = asyncio.ensure_future(old.leader.bind(uid, "n1"))
        await until(lambda: old.cluster.snapshot("n1") == [] and _assumed(old, uid))
        site.server.fail("*", LEASE, times=10**9, token="replica-0")
        await leading(new)
        assert new.election.epoch > old.election.epoch
        async with site.node(new, "n1") as node:
            await node.ReportNode(report("n1", A), timeout=20)
            second = await bind(site, new, asking("p2", SECOND, memory="8Gi"))

            released.set()
            await asyncio.gather(late, return_exceptions=True)

            await until(lambda: ("default", "p1") not in site.server.objects[PODS], "p1 is evicted")
            await until(lambda: (r := new.cluster.record(uid)) is None or r.gone)
            # Until its node has said that p1 does not run, the winner waits, too.
            await node.ReportNode(report("n1", A), timeout=20)
            answer = (await node.Resolve(resolve(SECOND), timeout=20)).allocation
            assert (answer.pod.uid, answer.slices[0].memory_bytes) == (second, 8 << 30)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.Resolve(resolve(UUID), timeout=1)
            assert caught.value.code() is not grpc.StatusCode.OK


def _assumed(replica: Running, uid: str) -> bool:
    record = replica.cluster.record(uid)
    return record is not None and record.assumed is not None


async def test_a_late_binding_is_never_resolved_even_before_it_is_evicted(site: Site) -> None:
    async with one_node(site, A) as (old, _), site.replica("replica-1") as new:
        first = await site.server.put(PODS, asking("p1", UUID, memory="8Gi"))
        uid = first["metadata"]["uid"]
        await until(lambda: old.cluster.record(uid) is not None)
        released = site.server.hold("POST", "/api/v1/namespaces/default/pods/p1/binding")
        late = asyncio.ensure_future(old.leader.bind(uid, "n1"))
        await until(lambda: _assumed(old, uid))
        site.server.fail("*", LEASE, times=10**9, token="replica-0")
        site.server.fail("POST", "/api/v1/namespaces/default/pods/p1/eviction", times=99, code=429)
        await leading(new)
        async with site.node(new, "n1") as node:
            await node.ReportNode(report("n1", A), timeout=20)
            await bind(site, new, asking("p2", SECOND, memory="8Gi"))
            released.set()
            await asyncio.gather(late, return_exceptions=True)
            await known(new, uid)
            await until(
                lambda: bool(
                    site.server.count("POST", "/api/v1/namespaces/default/pods/p1/eviction")
                )
            )

            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.Resolve(resolve(UUID), timeout=20)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(NotBelievedError):
                new.cluster.resolve(UUID, "n1", None)


async def test_a_binding_whose_answer_was_lost_is_found(site: Site) -> None:
    async with one_node(site, A) as (leader, node):
        site.server.fail("POST", "/api/v1/namespaces/default/pods/p1/binding", after=True)

        await bind(site, leader, asking("p1"))

        assert await node.Resolve(resolve(), timeout=20)
        assert b'bindings_total{outcome="found"} 1.0' in leader.metrics.text()


@pytest.mark.parametrize("code", [500, 503, 429])
async def test_a_binding_that_an_error_hid_is_found(site: Site, code: int) -> None:
    async with one_node(site, A) as (leader, node):
        binding = "/api/v1/namespaces/default/pods/p1/binding"
        site.server.fail("POST", binding, after=True, code=code)

        await bind(site, leader, asking("p1"))

        assert await node.Resolve(resolve(), timeout=20)
        assert b'bindings_total{outcome="found"} 1.0' in leader.metrics.text()


async def test_a_pod_that_somebody_else_bound_to_the_same_node_is_left_to_him(site: Site) -> None:
    """It carries no allocation of ours: to take it for ours would hold a card for nobody."""
    async with one_node(site, A) as (leader, _):
        made = await site.server.put(PODS, asking("p1", memory="8Gi"))
        uid = made["metadata"]["uid"]
        await until(lambda: leader.cluster.record(uid) is not None)
        site.server.lose = lambda event: True
        await site.server.put(PODS, {**made, "spec": {**made["spec"], "nodeName": "n1"}})

        with pytest.raises(BindingRefusedError, match="already assigned to a node"):
            await leader.leader.bind(uid, "n1")

        assert leader.cluster.snapshot("n1") == []


async def test_a_binding_that_never_arrived_frees_the_card(site: Site) -> None:
    async with one_node(site, A) as (leader, _):
        site.server.fail("POST", "/api/v1/namespaces/default/pods/p1/binding")
        with pytest.raises(BindingRefusedError, match="the pod was not bound"):
            await bind(site, leader, asking("p1", memory="8Gi"))

        assert await bind(site, leader, asking("p2", SECOND, memory="8Gi"))


async def test_a_pod_that_somebody_else_bound_is_left_to_him(site: Site) -> None:
    async with one_node(site, A) as (leader, _):
        made = await site.server.put(PODS, asking("p1", memory="8Gi"))
        uid = made["metadata"]["uid"]
        await until(lambda: leader.cluster.record(uid) is not None)
        site.server.lose = lambda event: True
        bound = {**made, "spec": {**made["spec"], "nodeName": "n9"}}
        await site.server.put(PODS, bound)

        with pytest.raises(BindingRefusedError, match="already assigned to a node"):
            await leader.leader.bind(uid, "n1")

        assert leader.cluster.snapshot("n1") == []


async def test_parallel_bindings_never_give_more_than_the_card_has(site: Site) -> None:
    async with one_node(site, A) as (leader, node):
        uids = []
        for number in range(8):
            uuid = f"{number:08}-2222-4333-8444-555555555555"
            made = await site.server.put(PODS, asking(f"p{number}", uuid, memory="3Gi"))
            uids.append(made["metadata"]["uid"])
        await until(lambda: all(leader.cluster.record(uid) is not None for uid in uids))

        results = await asyncio.gather(
            *(leader.leader.bind(uid, "n1") for uid in uids), return_exceptions=True
        )

        refused = [each for each in results if isinstance(each, NoRoomError)]
        assert len(refused) == 6
        claims = (await node.ListAllocations(pb.ListAllocationsRequest(), timeout=20)).claims
        assert sum(part.memory_bytes for each in claims for part in each.allocation.slices) == (
            6 << 30
        )


async def test_two_bindings_of_one_pod_at_a_time_are_one(site: Site) -> None:
    """kube-scheduler gave up waiting and asks again, here for the same node and for another."""
    await site.server.put(NODES, node_object("n2"))
    async with one_node(site, A) as (leader, node):
        async with site.node(leader, "n2") as other:
            await other.ReportNode(report("n2", B), timeout=20)
        made = await site.server.put(PODS, asking("p1"))
        uid = made["metadata"]["uid"]
        await until(lambda: leader.cluster.record(uid) is not None)
        binding = "/api/v1/namespaces/default/pods/p1/binding"
        released = site.server.hold("POST", binding)
        first = asyncio.ensure_future(leader.leader.bind(uid, "n1"))
        await until(lambda: _assumed(leader, uid))
        second = asyncio.ensure_future(leader.leader.bind(uid, "n1"))
        with pytest.raises(BindingRefusedError, match="to node n1 is under way"):
            await leader.leader.bind(uid, "n2")

        released.set()

        assert await first == await second
        assert site.server.count("POST", binding) == 1
        assert (await node.Resolve(resolve(), timeout=20)).allocation.slices[0].card_uuid == A
        assert leader.cluster.snapshot("n2") == []


async def test_a_caller_that_gives_up_does_not_undo_its_binding(site: Site) -> None:
    async with one_node(site, A) as (leader, node):
        made = await site.server.put(PODS, asking("p1"))
        uid = made["metadata"]["uid"]
        await until(lambda: leader.cluster.record(uid) is not None)
        released = site.server.hold("POST", "/api/v1/namespaces/default/pods/p1/binding")
        call = asyncio.ensure_future(leader.leader.bind(uid, "n1"))
        await until(lambda: _assumed(leader, uid))

        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        released.set()

        assert (await node.Resolve(resolve(), timeout=20)).allocation.pod.uid == uid
        await until(
            lambda: b'bindings_total{outcome="accepted"} 1.0' in leader.metrics.text(), "counted"
        )


async def test_a_second_binding_that_is_refused_frees_nothing_of_the_first(site: Site) -> None:
    await site.server.put(NODES, node_object("n2"))
    async with one_node(site, A) as (leader, node):
        async with site.node(leader, "n2") as other:
            await other.ReportNode(report("n2", B), timeout=20)
        site.server.lose = lambda event: True  # its watch hears of nothing
        made = await site.server.put(PODS, asking("p1", memory="8Gi"))
        leader.cluster.apply_pod(made, 0)
        uid = made["metadata"]["uid"]
        await leader.leader.bind(uid, "n1")

        with pytest.raises(WrongNodeError, match="already bound to node n1"):
            await leader.leader.bind(uid, "n2")
        again = await leader.leader.bind(uid, "n1")

        assert again.allocations["main"].slices[0].card_uuid == A
        assert (await node.Resolve(resolve(), timeout=20)).allocation.slices[0].card_uuid == A


async def test_a_dropped_delete_is_found_and_the_container_refused(site: Site) -> None:
    async with one_node(site, A) as (leader, node):
        uid = await bind(site, leader, asking("p1"))
        await known(leader, uid)
        site.server.lose = lambda event: event.kind == "DELETED"
        await site.server.remove(PODS, "p1", "default")
        await asyncio.wait_for(leader.feed.pods.relist(), 30)
        await node.ReportNode(report("n1", A), timeout=20)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.Resolve(
                resolve(
                    pod=pb.PodIdentity(
                        uid=uid, namespace="default", name="p1", container_name="main"
                    )
                ),
                timeout=20,
            )

        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert leader.cluster.snapshot("n1") == []


async def test_410_gone_loses_no_allocation(site: Site) -> None:
    site.server.bookmark_seconds = 60
    async with one_node(site, A) as (leader, node):
        uid = await bind(site, leader, asking("p1"))
        await known(leader, uid)
        watch = node.WatchNode(pb.WatchNodeRequest(), timeout=60)
        await watch.read()
        await site.server.put(NODES, node_object("n2"))
        await site.server.compact()
        await site.server.break_watches()
        await until(lambda: leader.feed.pods.restarts.get("gone") == 1)
        await until(lambda: leader.feed.pods.lists == 2)
        await bind(site, leader, asking("p2", SECOND))

        assert (await watch.read()).upsert.allocation_id == SECOND
        assert await node.Resolve(resolve(), timeout=20)


async def test_a_force_deleted_running_pod_holds_its_slice_until_its_node_reports_the_end(
    site: Site,
) -> None:
    async with one_node(site, A) as (leader, node):
        uid = await bind(site, leader, asking("p1", memory="8Gi"))
        running = (await node.Resolve(resolve(), timeout=20)).allocation
        await node.ReportNode(report("n1", A, running=[running]), timeout=20)
        await known(leader, uid)
        await site.server.remove(PODS, "p1", "default")
        await until(lambda: (r := leader.cluster.record(uid)) is not None and r.gone)

        with pytest.raises(NoRoomError):
            await bind(site, leader, asking("p2", SECOND, memory="8Gi"))
        await node.ReportNode(report("n1", A), timeout=20)
        assert await bind(site, leader, asking("p3", THIRD, memory="8Gi"))


async def test_kill_9_of_the_leader_loses_no_allocation(site: Site) -> None:
    """Two processes; the one that leads is killed, the other goes on with everything."""
    await site.server.put(NODES, node_object("n1"))
    with (
        replica_process(site, "replica-0") as first,
        replica_process(site, "replica-1") as second,
    ):
        processes = {"replica-0": first, "replica-1": second}
        await until(lambda: "true" in (label_of(site, "replica-0"), label_of(site, "replica-1")))
        old = next(name for name in processes if label_of(site, name) == "true")
        new = next(name for name in processes if name != old)
        # What a leader wrote: this process signs with the same key.
        native = Native(site.config().kubernetes.keyring())
        node = node_object("n1")
        node["metadata"]["annotations"] = native.encode_inventory((gpu(A),))
        await site.server.put(NODES, node)
        bound = await site.server.put(PODS, asking("p1"))
        bound["spec"]["nodeName"] = "n1"
        bound["metadata"]["annotations"] = native.encode_allocation(
            pod_of(bound), {"main": slice_of_pod(bound)}, {}
        )
        await site.server.put(PODS, bound)
        async with grpc.aio.insecure_channel(processes[new].address) as channel:
            stub = stub_of(channel)
            before = await stub.Resolve(resolve(node_name="n1"), timeout=30, wait_for_ready=True)

            processes[old].send(signal.SIGKILL)
            during = await stub.Resolve(resolve(node_name="n1"), timeout=20)
            await until(lambda: label_of(site, new) == "true", "the other leads")
            after = await stub.Resolve(resolve(node_name="n1"), timeout=20)

        assert before == during == after
        assert label_of(site, old) is None
        spec = site.server.objects["/apis/coordination.k8s.io/v1/leases"][
            NAMESPACE, "vgpu-scheduler-cache"
        ]["spec"]
        assert spec["leaseTransitions"] == 2
        assert spec["holderIdentity"].startswith(f"{new}_")
        assert await asyncio.to_thread(processes[new].terminate) == 0


async def test_replicas_that_follow_remember_no_pod_that_has_ended(site: Site) -> None:
    """Agents report to the leader alone; what it hears of ends, the others read on its Lease."""
    async with one_node(site, A) as (leader, node), site.replica("replica-1") as follower:
        await bind(site, leader, asking("kept"))
        for number in range(5):
            uid = await bind(site, leader, asking(f"p{number}", UUIDS[number], memory="1Gi"))
            await known(follower, uid)
            running = (await node.Resolve(resolve(UUIDS[number]), timeout=20)).allocation
            await node.ReportNode(report("n1", A, running=[running]), timeout=20)
            await site.server.remove(PODS, f"p{number}", "default")
            await until(partial(_all_gone, uid, leader, follower))
        await node.ReportNode(report("n1", A), timeout=20)

        await until(lambda: _held(follower) == 2 << 30, "the follower has heard of the ends")
        named = {record.pod.name for record in follower.cluster.records}
        assert named == {"kept", "replica-0", "replica-1"}
        assert _held(leader) == 2 << 30


async def test_after_a_failover_what_runs_is_held_and_what_ended_is_free(site: Site) -> None:
    """The first leader dies before it can say that the second pod has ended."""
    async with AsyncExitStack() as first_ends:
        await site.server.put(NODES, node_object("n1"))
        first = await first_ends.enter_async_context(site.replica("replica-0"))
        await leading(first)
        async with site.replica("replica-1") as second:
            async with site.node(first, "n1") as node:
                await node.ReportNode(report("n1", A), timeout=20)
                uids = [
                    await bind(site, first, asking("p1", UUIDS[0])),
                    await bind(site, first, asking("p2", UUIDS[1])),
                ]
                for uid in uids:
                    await known(second, uid)
                runs = [
                    (await node.Resolve(resolve(UUIDS[number]), timeout=20)).allocation
                    for number in range(2)
                ]
                await node.ReportNode(report("n1", A, running=runs), timeout=20)
                for name in ("p1", "p2"):
                    await site.server.remove(PODS, name, "default")
                await until(lambda: all(_gone(second, uid) for uid in uids))
                site.server.fail("PUT", f"{LEASE}/", times=10**9, code=500, token="replica-0")
                await node.ReportNode(report("n1", A, running=runs[:1]), timeout=20)
            await leading(second)
            assert _held(second) == 4 << 30

            async with site.node(second, "n1") as node:
                await node.ReportNode(report("n1", A, running=runs[:1]), timeout=20)
                assert _held(second) == 2 << 30
                with pytest.raises(NoRoomError):
                    await bind(site, second, asking("p3", UUIDS[2], memory="7Gi"))
                await node.ReportNode(report("n1", A), timeout=20)
                assert await bind(site, second, asking("p4", UUIDS[3], memory="8Gi"))
                # The first one follows now, and hears of it all.
                await until(lambda: _held(first) == 8 << 30, "the first leader has forgotten")


async def test_a_new_reign_begins_without_the_reports_of_an_earlier_one(site: Site) -> None:
    """The Lease was deleted, and another may have led, whom the agent told other things."""
    async with one_node(site, A) as (leader, node):
        uid = await bind(site, leader, asking("ended", UUIDS[0]))
        ran = (await node.Resolve(resolve(UUIDS[0]), timeout=20)).allocation
        await node.ReportNode(report("n1", A, running=[ran]), timeout=20)
        await site.server.remove(PODS, "ended", "default")
        await until(lambda: _gone(leader, uid), "deleted")
        epoch = leader.election.epoch

        # Another one wrote that the node has another card by now.
        annotations = Native(KEYRING).encode_inventory((gpu(B),))
        await site.server.put(NODES, {"metadata": {"name": "n1", "annotations": annotations}})
        await site.server.remove(LEASES, "vgpu-scheduler-cache", NAMESPACE)
        await until(lambda: leader.election.epoch > epoch, "it leads anew")
        await leading(leader)

        assert leader.cluster.reported("n1") is None
        assert leader.cluster.ends(1).held == {"n1": None}, "the node has told it nothing yet"
        await until(lambda: _cards(leader) == {B}, "the Node is what is known of its cards")
        assert not leader.cluster.snapshot("n1"), "what the earlier report held as running"

        await node.ReportNode(report("n1", B), timeout=20)
        assert leader.cluster.record(uid) is None
        assert leader.cluster.ends(1).held == {}


def _cards(replica: Running) -> set[str]:
    view = replica.cluster.view("n1")
    return set(view.inventory.cards) if view else set()


def _all_gone(uid: str, *replicas: Running) -> bool:
    return all(_gone(replica, uid) for replica in replicas)


def _gone(replica: Running, uid: str) -> bool:
    record = replica.cluster.record(uid)
    return record is None or record.gone


def _held(replica: Running) -> int:
    view = replica.cluster.view("n1")
    return sum(use.memory_bytes for use in view.uses.values()) if view else 0


def slice_of_pod(item: dict[str, Any]) -> Allocation:
    """Return what container main of a pod was given on node n1: 2 GiB of card A."""
    pod = pod_of(item)
    return Allocation(
        allocation_id=UUID,
        node_name="n1",
        pod=PodContainer(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, container_name="main"
        ),
        epoch=1,
        source_dialect="native",
        slices=(
            Slice(
                card_uuid=A,
                memory_bytes=2 << 30,
                cores_percent=100,
                reserved_percent=0,
                cores_max_percent=100,
                compute_mode=ComputeMode.BURST,
            ),
        ),
    )
