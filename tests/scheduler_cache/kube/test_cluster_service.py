# SPDX-License-Identifier: Apache-2.0
"""The service of the Kubernetes mode, over real TLS, in front of the fake API server."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Awaitable
from pathlib import Path

import aiohttp
import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.config_kubernetes import AdmissionConfig
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.kube.clusters import PODS, until
from tests.scheduler_cache.kube.replicas import (
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
from tests.testbed.certificates import CertificateAuthority


@pytest.fixture
def site(server: FakeApiServer, scratch: Path) -> Site:
    return Site(server, scratch)


async def refused(call: Awaitable[object], code: grpc.StatusCode, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call

    assert caught.value.code() is code, caught.value.details()
    assert words in (caught.value.details() or "")


def identity(uid: str, name: str = "p1", container: str = "main") -> pb.PodIdentity:
    return pb.PodIdentity(uid=uid, namespace="default", name=name, container_name=container)


# Resolving


async def test_a_bound_container_gets_what_was_written_with_the_binding(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1", cores="30"))

        answer = (await node.Resolve(resolve(pod=identity(uid)), timeout=20)).allocation

        assert answer.allocation_id == UUID
        assert [
            (each.card_uuid, each.memory_bytes, each.cores_percent) for each in answer.slices
        ] == [(A, 2 * GIB, 30)]
        assert (answer.epoch, answer.node_name, answer.pod.uid) == (1, "n1", uid)
        written = site.server.objects[PODS]["default", "p1"]
        assert written["spec"]["nodeName"] == "n1"
        assert A in written["metadata"]["annotations"]["vgpu.dev/allocation"]


async def test_a_container_is_found_by_identity_alone(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))

        answer = await node.Resolve(resolve("", pod=identity(uid)), timeout=20)

        assert answer.allocation.allocation_id == UUID


async def test_an_unknown_pod_is_waited_for_and_answered_when_it_comes(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        call = asyncio.ensure_future(node.Resolve(resolve(), timeout=60))
        await asyncio.sleep(0.1)
        assert not call.done()

        await bind(site, replica, asking("p1"))

        assert (await call).allocation.allocation_id == UUID


async def test_an_unknown_pod_is_waited_for_until_the_deadline(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        started = time.monotonic()
        await refused(
            node.Resolve(resolve(pod=identity("u-9")), timeout=0.6),
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "",
        )

        assert time.monotonic() - started > 0.4


async def test_the_deadline_comes_with_a_reason_before_the_caller_gives_up(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        await refused(
            node.Resolve(resolve(pod=identity("u-9")), timeout=5),
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "pod u-9 is not known here yet",
        )


async def test_a_known_pod_without_a_slice_is_answered_at_once(site: Site) -> None:
    plain = asking("p1")
    plain["spec"] = {"nodeName": "n1", "containers": [{"name": "main"}]}
    made = await site.server.put(PODS, plain)
    async with one_node(site, A) as (_, node):
        await refused(
            node.Resolve(resolve("", pod=identity(made["metadata"]["uid"])), timeout=60),
            grpc.StatusCode.FAILED_PRECONDITION,
            "has no slice: it asks for none",
        )


async def test_a_deleted_pod_is_answered_at_once(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        await node.Resolve(resolve(pod=identity(uid)), timeout=20)
        await site.server.remove(PODS, "p1", "default")
        await node.ReportNode(report("n1", A))
        await until(lambda: (r := replica.cluster.record(uid)) is None or r.gone)

        await refused(
            node.Resolve(resolve(pod=identity(uid)), timeout=60),
            grpc.StatusCode.NOT_FOUND,
            "was deleted",
        )


async def test_before_it_is_synced_it_says_so_and_why(site: Site) -> None:
    site.server.fail("GET", NODES, times=10**9, code=403)
    async with site.replica(synced=False) as replica:
        await until(lambda: replica.feed.pods.synced)
        await until(lambda: "403" in replica.feed.nodes.trouble)
        async with site.node(replica, "n1") as node:
            for call in (
                node.Resolve(resolve(), timeout=20),
                node.ReportNode(report("n1", A), timeout=20),
                node.ListAllocations(pb.ListAllocationsRequest(), timeout=20),
                node.WatchNode(pb.WatchNodeRequest(), timeout=20).read(),
            ):
                await refused(
                    call, grpc.StatusCode.UNAVAILABLE, "not synced with the API server yet: nodes ("
                )


async def test_allocate_and_release_are_of_the_other_mode(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        for call in (
            node.Allocate(pb.AllocateRequest(), timeout=20),
            node.Release(pb.ReleaseRequest(), timeout=20),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# Proof


async def test_a_node_gets_only_its_own(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        await bind(site, replica, asking("p1"))
        async with site.node(replica, "n2") as other:
            await refused(
                other.Resolve(resolve(), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "is on node n1, not n2",
            )
            await refused(
                other.Resolve(resolve(node_name="n1"), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "node n2 may not ask for node n1",
            )
            await refused(
                other.ReportNode(report("n1"), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "may not report for node n1",
            )
            await refused(
                other.WatchNode(pb.WatchNodeRequest(node_name="n1"), timeout=20).read(),
                grpc.StatusCode.PERMISSION_DENIED,
                "may not ask for node n1",
            )
            await refused(
                other.ListAllocations(pb.ListAllocationsRequest(node_name="n1"), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "may not look at node n1",
            )
            assert not (await other.ListAllocations(pb.ListAllocationsRequest(), timeout=20)).claims
            await refused(
                other.Explain(pb.ExplainRequest(card_uuid=A), timeout=20),
                grpc.StatusCode.NOT_FOUND,
                "no card",
            )
        assert await node.Resolve(resolve(), timeout=20)


async def test_a_uri_proves_a_node_too(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await bind(site, replica, asking("p1"))
        proof = site.authority.issue("agent", uris=["vgpu://node/n1"])
        async with site.channel(replica, proof) as channel:
            assert await stub_of(channel).Resolve(resolve(), timeout=20)


async def test_impostors_get_nothing(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await bind(site, replica, asking("p1"))
        stranger = CertificateAuthority(site.folder / "other").issue_node("n1")
        for proof in (None, stranger):
            async with site.channel(replica, proof) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub_of(channel).Resolve(resolve(), timeout=5)
                assert caught.value.code() in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )
        nobody = site.authority.issue("system:node:n1")
        async with site.channel(replica, nobody) as channel:
            await refused(
                stub_of(channel).Resolve(resolve(), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "proves no node",
            )
        late = site.authority.issue_node("n1", expires_in=datetime.timedelta(seconds=-60))
        async with site.channel(replica, late) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await stub_of(channel).Resolve(resolve(), timeout=5)


async def test_a_rotated_certificate_serves_the_next_handshake(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        new = CertificateAuthority(site.folder / "ca", name="the next authority")
        serving = new.issue_server("vgpu-scheduler-cache", file="serving")
        assert serving.certificate == site.serving.certificate
        proof = new.issue_node("n1")

        async with site.channel(replica, proof) as channel:
            assert await stub_of(channel).Resolve(resolve(pod=identity(uid)), timeout=20)
        # The connection that was made before goes on.
        assert await node.Resolve(resolve(pod=identity(uid)), timeout=20)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def reviewed(
    node: str | None = "n1",
    user: str = "system:serviceaccount:vgpu-system:vgpu-node-agent",
    audience: str = "vgpu-scheduler-cache",
) -> dict[str, object]:
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    return {
        "authenticated": True,
        "audiences": [audience],
        "user": {"username": user, "extra": extra},
    }


async def test_a_token_is_reviewed_by_the_api_server(site: Site) -> None:
    site.server.tokens = {
        "good": reviewed(),
        "other node": reviewed("n2"),
        "no node": reviewed(None),
        "somebody else": reviewed(user="system:serviceaccount:default:default"),
        "for another": reviewed(audience="https://kubernetes.default.svc"),
    }
    await site.server.put(NODES, node_object("n1"))
    async with site.replica(token_listen=("127.0.0.1:0",)) as replica:
        await until(lambda: replica.election.leading)
        async with site.channel(replica, None, listener=1) as channel:
            stub = stub_of(channel)
            await until_reported(stub, bearer("good"))
            for token, words in (
                ("other node", "node n2 may not report for node n1"),
                ("no node", "names no node"),
                ("somebody else", "is not a service account that node agents run under"),
                ("for another", "not a valid token for audience vgpu-scheduler-cache"),
                ("unknown", "does not accept the token"),
            ):
                await refused(
                    stub.ReportNode(report("n1", A), metadata=bearer(token), timeout=20),
                    grpc.StatusCode.PERMISSION_DENIED,
                    words,
                )
            await refused(
                stub.ReportNode(report("n1", A), timeout=20),
                grpc.StatusCode.PERMISSION_DENIED,
                "no token",
            )
            reviews = site.server.count("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
            await stub.ReportNode(report("n1", A), metadata=bearer("good"), timeout=20)
            assert reviews == site.server.count(
                "POST", "/apis/authentication.k8s.io/v1/tokenreviews"
            )


async def until_reported(stub: SchedulerCacheStub, metadata: tuple[tuple[str, str], ...]) -> None:
    """Report until the replica has begun to write."""
    deadline = time.monotonic() + 30
    while True:
        call = stub.ReportNode(report("n1", A), metadata=metadata, timeout=20)
        if await call.code() is grpc.StatusCode.OK:
            return
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


# Watching


async def test_a_watch_starts_with_everything_and_hears_of_a_binding_at_once(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        await bind(site, replica, asking("p1"))
        watch = node.WatchNode(pb.WatchNodeRequest(), timeout=60)
        first = await watch.read()
        # No event of a watch tells of the next pod: the leader itself does.
        site.server.lose = lambda event: event.collection == PODS and event.kind == "MODIFIED"
        second = "22222222-2222-4333-8444-555555555555"
        uid = await bind(site, replica, asking("p2", second))
        event = await watch.read()

        assert first.sequence == 1
        assert [each.allocation_id for each in first.snapshot.allocations] == [UUID]
        assert (event.sequence, event.upsert.allocation_id, event.upsert.pod.uid) == (
            2,
            second,
            uid,
        )


async def test_a_pod_that_is_gone_and_reported_ended_is_removed(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        answer = (await node.Resolve(resolve(pod=identity(uid)), timeout=20)).allocation
        await node.ReportNode(report("n1", A, running=[answer]))
        watch = node.WatchNode(pb.WatchNodeRequest(), timeout=60)
        await watch.read()
        await site.server.remove(PODS, "p1", "default")
        await until(lambda: (r := replica.cluster.record(uid)) is not None and r.gone)

        await node.ReportNode(report("n1", A, running=[answer]))
        held = await node.ListAllocations(pb.ListAllocationsRequest())
        await node.ReportNode(report("n1", A))
        event = await watch.read()

        assert [claim.state for claim in held.claims] == [pb.CLAIM_STATE_ORPHAN]
        assert event.remove == UUID
        assert not (await node.ListAllocations(pb.ListAllocationsRequest())).claims


async def test_a_node_that_the_cluster_does_not_know_is_told_to_wait(site: Site) -> None:
    async with site.replica() as replica, site.node(replica, "n9") as node:
        await refused(
            node.WatchNode(pb.WatchNodeRequest(), timeout=20).read(),
            grpc.StatusCode.UNAVAILABLE,
            "node n9 is not known here yet",
        )


# Reporting


async def test_a_report_is_written_on_the_node_for_all_replicas(site: Site) -> None:
    async with one_node(site, A, B) as (_, node):
        await until(
            lambda: (
                site.server.objects[NODES]["", "n1"]["metadata"].get("labels", {})
                == {"vgpu.dev/node": "true"}
            )
        )
        metadata = site.server.objects[NODES]["", "n1"]["metadata"]
        assert A in metadata["annotations"]["vgpu.dev/inventory"]
        assert "vgpu.dev/served-resources" not in metadata["annotations"]

        told = report("n1", A, B)
        told.served_resources.extend(["vgpu.dev/count", "tencent.com/vcuda-core"])
        await node.ReportNode(told)
        await until(
            lambda: (
                site.server.objects[NODES]["", "n1"]["metadata"]["annotations"].get(
                    "vgpu.dev/served-resources"
                )
                == "tencent.com/vcuda-core,vgpu.dev/count"
            )
        )

        await node.ReportNode(report("n1", A, B, ready=False))
        await until(lambda: not site.server.objects[NODES]["", "n1"]["metadata"]["labels"])


async def test_a_replica_that_does_not_lead_takes_no_report(site: Site) -> None:
    async with (
        one_node(site, A),
        site.replica("replica-1") as follower,
        site.node(follower, "n1") as node,
    ):
        await until(lambda: bool(follower.election.holder))
        await refused(
            node.ReportNode(report("n1", A), timeout=20),
            grpc.StatusCode.UNAVAILABLE,
            "this replica does not lead; replica-0_",
        )


async def test_a_node_that_reports_without_pause_is_bounded_and_heard_again(site: Site) -> None:
    async with one_node(site, A) as (replica, node), site.node(replica, "n2") as other:
        await site.server.put(NODES, node_object("n2"))
        reports = [node.ReportNode(report("n1", A), timeout=60) for _ in range(200)]
        answers = await asyncio.gather(*reports, return_exceptions=True)
        await other.ReportNode(report("n2", B), timeout=60)

        refused_ones = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        assert {each.code() for each in refused_ones} == {grpc.StatusCode.UNAVAILABLE}
        assert "node n1 calls too often" in str(refused_ones[0].details())
        async with asyncio.timeout(60):
            while True:
                try:
                    await node.ReportNode(report("n1", A, B), timeout=60)
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)
        told = replica.cluster.reported("n1")
        assert told is not None
        assert [card.uuid for card in told.node.cards] == [A, B]


async def test_a_node_that_asks_without_pause_is_bounded_and_people_are_not(site: Site) -> None:
    async with one_node(site, A) as (_, node), site.local() as local:
        question = pb.ExplainRequest(pod=identity("u-9"))
        answers = await asyncio.gather(
            *(node.Explain(question, timeout=60) for _ in range(200)), return_exceptions=True
        )
        asked = [local.ListAllocations(pb.ListAllocationsRequest(), timeout=60) for _ in range(20)]
        await asyncio.gather(*asked)

        sentences = [each.details() for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        assert any("node n1 calls too often" in (each or "") for each in sentences)


async def test_a_node_has_no_more_calls_that_wait_than_it_creates_containers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler_cache.cluster_service._MOST_WAITING", 2)
    async with one_node(site, A) as (replica, node), site.node(replica, "n2") as other:
        waiting = [
            asyncio.ensure_future(node.Resolve(resolve(pod=identity(uid)), timeout=60))
            for uid in ("u-1", "u-2")
        ]
        await until(lambda: replica.feed.waiting.at("n1") == 2)

        await refused(
            node.Resolve(resolve(pod=identity("u-3")), timeout=60),
            grpc.StatusCode.UNAVAILABLE,
            "2 calls of node n1 wait already",
        )
        await refused(
            other.Resolve(resolve(pod=identity("u-3")), timeout=1),
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "pod u-3 is not known here yet",
        )
        for each in waiting:
            each.cancel()


async def test_a_dialect_that_admission_leaves_out_holds_nothing_by_its_annotations(
    site: Site,
) -> None:
    source = asking("p1")
    source["metadata"] |= {
        "annotations": {"gpu-fraction": "0.5"},
        "labels": {"runai-gpu-group": "invented"},
    }
    source["spec"] = {"nodeName": "n1", "containers": [{"name": "main"}]}
    await site.server.put(PODS, source)
    await site.server.put(NODES, node_object("n1"))
    ours = AdmissionConfig(dialects=("native", "volcano"), dialect_scope="cluster")
    async with (
        site.replica(admission=ours) as replica,
        site.node(replica, "n1") as node,
    ):
        await leading(replica)
        await node.ReportNode(report("n1", A))

        view = replica.cluster.view("n1")
        assert view is not None
        assert not view.holds
        assert [notice.reason for notice in view.notices] == ["AllocationIgnored"]


async def test_a_report_of_more_containers_than_a_node_runs_is_refused(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        told = report("n1", A)
        told.running_allocation_ids.extend(str(number) for number in range(4097))
        await refused(
            node.ReportNode(told, timeout=20),
            grpc.StatusCode.INVALID_ARGUMENT,
            "the report of node n1 names 4097 containers, more than 4096",
        )


async def test_a_malformed_report_is_refused_whole(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        await refused(
            node.ReportNode(report("n1", A, A), timeout=20),
            grpc.StatusCode.INVALID_ARGUMENT,
            "names a card twice",
        )


# People


async def test_root_sees_every_node(site: Site) -> None:
    async with one_node(site, A) as (replica, _), site.local() as root:
        await bind(site, replica, asking("p1", cores="30"))

        nodes = (await root.ListNodes(pb.ListNodesRequest(), timeout=20)).nodes
        claims = (await root.ListAllocations(pb.ListAllocationsRequest(), timeout=20)).claims

        assert [(node.name, node.ready) for node in nodes] == [("n1", True)]
        card = nodes[0].cards[0]
        assert (card.card.uuid, card.held_memory_bytes, card.held_percent, card.held_slots) == (
            A,
            2 * GIB,
            30,
            1,
        )
        assert (card.owner_dialect, card.refusal) == ("native", "")
        assert [claim.state for claim in claims] == [pb.CLAIM_STATE_BOUND]


async def test_explains_cards_allocations_pods_and_nodes(site: Site) -> None:
    async with one_node(site, A) as (replica, _), site.local() as root:
        uid = await bind(site, replica, asking("p1", memory="6Gi", cores="30"))
        waiting = await site.server.put(PODS, asking("p2", "", memory="4Gi"))
        await until(lambda: replica.cluster.record(waiting["metadata"]["uid"]) is not None)

        async def lines(**subject: object) -> list[str]:
            request = pb.ExplainRequest(**subject)  # type: ignore[arg-type]
            return list((await root.Explain(request, timeout=20)).lines)

        assert await lines(card_uuid=A) == [
            f"{A} (NVIDIA H100) of node n1: 6.0Gi of 8.0Gi memory, 30% of cores and 1 of 10 slots "
            "are held.",
            "Pod default/p1 holds 6.0Gi and 30% of cores.",
        ]
        assert await lines(allocation_id=UUID) == [
            f"Allocation {UUID} belongs to container main of pod default/p1, which is bound to "
            "node n1, which reports no process of it yet.",
            f"It holds 6.0Gi and 30% of cores of {A}.",
        ]
        assert await lines(pod=pb.PodIdentity(namespace="default", name="p1")) == [
            "Pod default/p1 is bound to node n1, which reports no process of it yet.",
            f"Container main has allocation {UUID}.",
            f"It holds 6.0Gi and 30% of cores of {A}.",
        ]
        assert await lines(pod=pb.PodIdentity(uid=uid)) == await lines(
            pod=pb.PodIdentity(namespace="default", name="p1")
        )
        why = await lines(pod=pb.PodIdentity(namespace="default", name="p2"))
        assert why[0] == "Pod default/p2 is not bound to a node yet."
        assert why[1].startswith("It does not fit on node n1 now: ")
        assert "2.0Gi of 8.0Gi" in why[1]
        assert (await lines(node_name="n1"))[0].startswith(A)
        for subject in (
            {"card_uuid": "GPU-9"},
            {"allocation_id": "x"},
            {"pod": pb.PodIdentity(uid="x")},
            {"node_name": "n9"},
        ):
            await refused(
                root.Explain(pb.ExplainRequest(**subject), timeout=20),
                grpc.StatusCode.NOT_FOUND,
                "known here",
            )
        await refused(
            root.Explain(pb.ExplainRequest(), timeout=20),
            grpc.StatusCode.INVALID_ARGUMENT,
            "name a card",
        )


async def test_metrics_and_probes(site: Site) -> None:
    async with one_node(site, A) as (replica, node), aiohttp.ClientSession() as http:
        await bind(site, replica, asking("p1"))
        await node.Resolve(resolve(), timeout=20)

        async def text(path: str) -> str:
            async with http.get(f"http://127.0.0.1:{replica.metrics_port}{path}") as response:
                assert response.status == 200
                return await response.text()

        metrics = await text("/metrics")
        assert await text("/healthz") == await text("/readyz") == "ok\n"
        for line in (
            'vgpu_cache_rpc_seconds_count{method="Resolve",status="OK"} 1.0',
            "vgpu_cache_leading 1.0",
            "vgpu_cache_synced 1.0",
            'vgpu_cache_bindings_total{outcome="accepted"} 1.0',
            f'vgpu_card_held_memory_bytes{{card="{A}",model="NVIDIA H100",node="n1"}} '
            "2.147483648e+09",
        ):
            assert line in metrics.splitlines(), line


async def test_the_server_describes_itself(site: Site) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with (
        one_node(site, A) as (replica, _),
        site.channel(replica, site.authority.issue_node("n1")) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=20
        )
        answer = await call.read()

    names = {service.name for service in answer.list_services_response.service}
    assert "vgpu.v1.SchedulerCache" in names
