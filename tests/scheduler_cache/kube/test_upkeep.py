# SPDX-License-Identifier: Apache-2.0
"""What the leader writes on Nodes and Pods beside the bindings, over a real service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache.cluster_server import Running
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import NoRoomError, NotLeaderError
from scheduler_cache.node_view import Notice
from scheduler_cache.record import Record
from tests.fakes.apiserver import FakeApiServer
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
)
from tests.scheduler_cache.kube_objects import container_of, gpu

EVENTS = "/api/v1/events"
SECOND = "22222222-2222-4333-8444-555555555555"


@pytest.fixture
def site(server: FakeApiServer, scratch: Path) -> Site:
    return Site(server, scratch)


def node_of(site: Site, name: str = "n1") -> dict[str, Any]:
    metadata: dict[str, Any] = site.server.objects[NODES]["", name]["metadata"]
    return metadata


def pod_of(site: Site, name: str = "p1") -> dict[str, Any]:
    metadata: dict[str, Any] = site.server.objects[PODS]["default", name]["metadata"]
    return metadata


def labelled(site: Site) -> bool:
    return bool(node_of(site).get("labels", {}).get("vgpu.dev/node") == "true")


async def annotate(site: Site, **annotations: str | None) -> None:
    """Change annotations of node n1, as somebody else would."""
    node = site.server.objects[NODES]["", "n1"]
    known = {**node["metadata"].get("annotations", {}), **annotations}
    kept = {name: value for name, value in known.items() if value is not None}
    await site.server.put(NODES, {**node, "metadata": {**node["metadata"], "annotations": kept}})


def events(site: Site) -> list[dict[str, Any]]:
    return list(site.server.objects.get(EVENTS, {}).values())


# Nodes


async def test_a_node_gets_its_label_only_while_library_and_handler_are_ready(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        await until(lambda: labelled(site), "labelled")

        await node.ReportNode(report("n1", A, ready=False), timeout=20)
        await until(lambda: not labelled(site), "the label is taken off")

        await node.ReportNode(report("n1", A, ready=True), timeout=20)
        await until(lambda: labelled(site), "labelled again")


async def test_a_node_whose_agent_is_silent_loses_its_label(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        await until(lambda: labelled(site), "labelled")
        upkeep = replica.leader.upkeep
        upkeep.look()
        clock = upkeep._now_ns
        upkeep._now_ns = lambda: clock() + 100 * 10**9

        upkeep.look()

        await until(lambda: not labelled(site), "the label is taken off")
        upkeep._now_ns = clock
        await node.ReportNode(report("n1", A), timeout=20)
        await until(lambda: labelled(site), "labelled again")


async def test_a_new_leader_waits_for_agents_before_it_takes_labels_off(site: Site) -> None:
    await site.server.put(NODES, {"metadata": {"name": "n1", "labels": {"vgpu.dev/node": "true"}}})
    async with one_node(site, A) as (replica, _):
        await site.server.put(
            NODES, {"metadata": {"name": "n2", "labels": {"vgpu.dev/node": "true"}}}
        )
        await until(lambda: replica.cluster.node("n2") is not None)

        replica.leader.upkeep.look()

        assert ("node", "n2") not in replica.leader.upkeep.chores._planned


async def test_a_report_that_says_nothing_new_writes_nothing(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        await until(lambda: labelled(site), "labelled")
        await until(
            lambda: (n := replica.cluster.node("n1")) is not None and bool(n.labels), "seen"
        )
        before = len(site.server.requests)

        for _ in range(3):
            await node.ReportNode(report("n1", A), timeout=20)

        assert len(replica.leader.upkeep.chores) == 0
        assert [each for each in site.server.requests[before:] if "nodes/n1" in each[1]] == []


async def test_whole_cards_of_another_plugin_are_written_for_the_other_replicas(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        told = report("n1", A)
        told.whole_cards_known = True
        whole = pb.PodIdentity(namespace="team", name="p9", container_name="main")
        told.whole_cards.add(pod=whole, card_uuids=[A])

        await node.ReportNode(told, timeout=20)
        await until(
            lambda: (
                node_of(site)["annotations"].get("vgpu.dev/whole-cards")
                == json.dumps({"team/p9/main": [A]}, separators=(",", ":"))
            ),
            "written",
        )
        await node.ReportNode(report("n1", A), timeout=20)
        assert "whole-cards" not in str(replica.leader.upkeep._node_patch("n1")), "not known"

        none = report("n1", A)
        none.whole_cards_known = True
        await node.ReportNode(none, timeout=20)
        await until(lambda: "vgpu.dev/whole-cards" not in node_of(site)["annotations"], "gone")


async def test_a_cordoned_card_takes_nothing_new_and_its_holder_stays(site: Site) -> None:
    async with one_node(site, A, B) as (replica, node):
        await bind(site, replica, asking("p1", memory="2Gi"))
        held = (await node.Resolve(resolve(), timeout=20)).allocation.slices[0].card_uuid

        await annotate(site, **{"vgpu.dev/cordon": f"{A},{B}"})
        await until(
            lambda: (v := replica.cluster.view("n1")) is not None and v.refused(A) == "cordoned"
        )

        with pytest.raises(NoRoomError, match="cordoned"):
            await bind(site, replica, asking("p2", SECOND))
        again = (await node.Resolve(resolve(), timeout=20)).allocation.slices[0].card_uuid
        assert again == held


async def test_a_chore_that_fails_is_done_later(site: Site) -> None:
    site.server.fail("PATCH", f"{NODES}/n1", times=2, code=500)
    async with one_node(site, A) as (replica, _):
        await until(lambda: replica.leader.upkeep.chores.failures >= 1)

        await until(lambda: labelled(site), "labelled in the end")


async def test_a_leader_that_was_deposed_meanwhile_writes_nothing(site: Site) -> None:
    """Each write looks at the Lease once more, however long its chore has waited."""

    def deposed() -> int:
        raise NotLeaderError("another leads")

    async with one_node(site, A) as (replica, _):
        uid = await bind(site, replica, asking("p1"))
        await until(lambda: labelled(site), "labelled")
        await until(lambda: len(replica.leader.upkeep.chores) == 0)
        upkeep, view = replica.leader.upkeep, replica.cluster.view("n1")
        record = replica.cluster.record(uid)
        assert view is not None
        assert record is not None
        owner = view.evict[uid] = record.owner("")
        path = "/api/v1/namespaces/default/pods/p1"
        upkeep._check = deposed
        writes = [
            upkeep._evict(owner),
            upkeep._tell("n1", Notice("Orphan", "it runs")),
            upkeep._patch_node("n1", {"labels": {"a": "b"}}),
            upkeep._patch_pod(path, {"metadata": {"uid": uid}}, {"a": "b"}),
        ]
        before = len(site.server.requests)

        for write in writes:
            with pytest.raises(NotLeaderError):
                await write

        assert [
            each for each in site.server.requests[before:] if each[0] in ("POST", "PATCH")
        ] == []


# Isolation


def isolated(uid: str, state: pb.IsolationState, reason: str = "") -> pb.ContainerIsolation:
    return pb.ContainerIsolation(
        pod=pb.PodIdentity(uid=uid, container_name="main"), state=state, reason=reason
    )


async def test_a_pod_says_whether_its_containers_are_isolated(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        message = report("n1", A)
        message.isolation.append(isolated(uid, pb.ISOLATION_STATE_ENFORCED))

        await node.ReportNode(message, timeout=20)

        await until(lambda: "vgpu.dev/isolation" in pod_of(site)["annotations"], "annotated")
        assert json.loads(pod_of(site)["annotations"]["vgpu.dev/isolation"]) == {
            "main": {"state": "enforced"}
        }
        assert events(site) == []


async def test_a_refused_container_is_told_by_an_event_once(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        message = report("n1", A)
        message.isolation.append(
            isolated(uid, pb.ISOLATION_STATE_REFUSED, "the image is musl only; use glibc")
        )

        await node.ReportNode(message, timeout=20)
        await until(lambda: bool(events(site)), "an Event")
        await until(
            lambda: (r := replica.cluster.record(uid)) is not None and bool(r.isolation), "seen"
        )
        # A leader that starts anew reads the annotation and says nothing again.
        replica.leader.upkeep._isolation.clear()
        await node.ReportNode(message, timeout=20)
        await until(lambda: len(replica.leader.upkeep.chores) == 0)

        (event,) = events(site)
        assert (event["reason"], event["involvedObject"]["uid"], event["count"]) == (
            "IsolationRefused",
            uid,
            1,
        )
        assert event["message"] == (
            "container main was not started: the image is musl only; use glibc"
        )


async def test_a_node_speaks_for_its_own_pods_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        await site.server.put(NODES, node_object("n2"))
        await until(lambda: replica.cluster.node("n2") is not None)
        foreign = report("n2", B)
        foreign.isolation.append(isolated(uid, pb.ISOLATION_STATE_REFUSED, "a lie"))
        foreign.isolation.append(isolated("nobody", pb.ISOLATION_STATE_REFUSED, "a lie"))
        chores = replica.leader.upkeep.chores
        planned: list[object] = []
        monkeypatch.setattr(chores, "plan", lambda key, chore: planned.append(key))
        async with site.node(replica, "n2") as other:
            await other.ReportNode(foreign, timeout=20)
        monkeypatch.undo()

        # Not even in the queue, where it would stand in place of what the pod's own node told.
        assert planned
        assert [key for key in planned if key[0] == "isolation"] == []  # type: ignore[index]
        message = report("n1", A)
        message.isolation.append(isolated(uid, pb.ISOLATION_STATE_ENFORCED))
        await node.ReportNode(message, timeout=20)
        await until(lambda: "vgpu.dev/isolation" in pod_of(site)["annotations"], "annotated")
        assert "refused" not in pod_of(site)["annotations"]["vgpu.dev/isolation"]
        assert events(site) == []


async def test_a_container_that_the_pod_does_not_have_is_not_written_on_it(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        message = report("n1", A)
        message.isolation.append(isolated(uid, pb.ISOLATION_STATE_ENFORCED))
        stranger = isolated(uid, pb.ISOLATION_STATE_REFUSED, "a lie")
        stranger.pod.container_name = "stranger"
        message.isolation.append(stranger)

        await node.ReportNode(message, timeout=20)

        await until(lambda: "vgpu.dev/isolation" in pod_of(site)["annotations"], "annotated")
        assert json.loads(pod_of(site)["annotations"]["vgpu.dev/isolation"]).keys() == {"main"}


async def test_a_state_of_a_later_agent_is_left_alone(site: Site) -> None:
    async with one_node(site, A) as (replica, node):
        uid = await bind(site, replica, asking("p1"))
        message = report("n1", A)
        message.isolation.append(isolated(uid, 77))  # type: ignore[arg-type]

        await node.ReportNode(message, timeout=20)

        assert len(replica.leader.upkeep.chores) == 0


# Joining: annotations as the systems' own schedulers write them


HAMI_NODE = {"vgpu.dev/dialect": "hami", "vgpu.dev/mode": "join"}
VOLCANO_NODE = {"vgpu.dev/dialect": "volcano", "vgpu.dev/mode": "join"}
KAI_NODE = {"vgpu.dev/dialect": "kai", "vgpu.dev/mode": "join"}


async def labels(site: Site, labels: dict[str, str], **annotations: str) -> None:
    node = site.server.objects[NODES]["", "n1"]
    merged = {**node["metadata"].get("labels", {}), **labels}
    known = {**node["metadata"].get("annotations", {}), **annotations}
    await site.server.put(
        NODES, {**node, "metadata": {**node["metadata"], "labels": merged, "annotations": known}}
    )


def hami_pod(phase: str = "allocating") -> dict[str, Any]:
    """Return a pod that HAMi 2.8's scheduler has bound, one card of 2 GiB."""
    decided = f"{A},NVIDIA,2048,0:;"
    item = {
        "metadata": {
            "name": "p1",
            "namespace": "default",
            "annotations": {
                "hami.io/bind-phase": phase,
                "hami.io/bind-time": "1767225600",
                "hami.io/vgpu-devices-allocated": decided,
                "hami.io/vgpu-devices-to-allocate": decided,
                "hami.io/vgpu-node": "n1",
                "hami.io/vgpu-time": "1767225600",
            },
        },
        "spec": {
            "nodeName": "n1",
            "containers": [container_of("main", {"nvidia.com/gpumem": "2048"}, uuid=UUID)],
        },
        "status": {"phase": "Pending"},
    }
    return item


async def admit(site: Site) -> None:
    """Do what a kubelet does first with a pod that it takes in."""
    item = site.server.objects[PODS]["default", "p1"]
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    await site.server.put(
        PODS, {**item, "status": {"phase": "Pending", "containerStatuses": [waiting]}}
    )


def known(replica: Running) -> Record | None:
    record = replica.cluster.pod_named("default", "p1")
    return record if record and record.pod.node_name else None


async def test_cards_are_registered_for_hami_only_where_a_node_is_joined(site: Site) -> None:
    register = "hami.io/node-nvidia-register"
    async with one_node(site, A) as (_, node):
        await until(lambda: labelled(site), "labelled")
        assert register not in node_of(site)["annotations"]
        # The owner alone is not enough: HAMi's own plugin may run there.
        await labels(site, {"vgpu.dev/dialect": "hami"})
        await node.ReportNode(report("n1", A), timeout=20)
        await labels(site, HAMI_NODE)
        await node.ReportNode(report("n1", A), timeout=20)
        await until(lambda: register in node_of(site)["annotations"], "registered")

        (card,) = json.loads(node_of(site)["annotations"][register])
        assert (card["id"], card["devmem"], card["health"]) == (A, 8192, True)

        await labels(site, {"vgpu.dev/mode": "replace"})
        await node.ReportNode(report("n1", A), timeout=20)
        await until(lambda: register not in node_of(site)["annotations"], "and taken back")


async def test_a_registration_of_its_own_plugin_is_left_alone(site: Site) -> None:
    theirs = f"{A},10,8192,NVIDIA-NVIDIA H100,true,hami-core:{B},10,8192,NVIDIA-H,true,hami-core:"
    async with one_node(site, A) as (replica, node):
        await labels(site, {}, **{"volcano.sh/node-vgpu-register": theirs})
        await until(
            lambda: (
                (n := replica.cluster.node("n1")) is not None
                and "volcano.sh/node-vgpu-register" in n.annotations
            )
        )

        await node.ReportNode(report("n1", A), timeout=20)

        await until(lambda: labelled(site), "labelled")
        assert node_of(site)["annotations"]["volcano.sh/node-vgpu-register"] == theirs


async def test_the_handshake_of_hami_is_completed_when_the_kubelet_admits_the_pod(
    site: Site,
) -> None:
    lock = "2026-01-01T00:00:00Z,default,p1"
    async with one_node(site, A) as (replica, node):
        await labels(site, HAMI_NODE, **{"hami.io/mutex.lock": lock})
        await site.server.put(PODS, hami_pod())
        await until(lambda: known(replica) is not None)
        answer = (await node.Resolve(resolve(), timeout=20)).allocation
        assert (answer.source_dialect, answer.slices[0].memory_bytes) == ("hami", 2 << 30)
        replica.leader.upkeep.look()
        assert pod_of(site)["annotations"]["hami.io/bind-phase"] == "allocating"
        assert node_of(site)["annotations"]["hami.io/mutex.lock"] == lock

        await admit(site)

        await until(lambda: pod_of(site)["annotations"]["hami.io/bind-phase"] == "success", "done")
        annotations = pod_of(site)["annotations"]
        assert "hami.io/mutex.lock" not in node_of(site)["annotations"]
        assert annotations["hami.io/vgpu-devices-to-allocate"] == ";"
        assert annotations["hami.io/vgpu-devices-allocated"] == f"{A},NVIDIA,2048,0:;"


async def test_a_pod_that_the_kubelet_turned_away_does_not_lock_its_node(site: Site) -> None:
    lock = "2026-01-01T00:00:00Z,default,p1"
    async with one_node(site, A) as (_, _node):
        await labels(site, HAMI_NODE, **{"hami.io/mutex.lock": lock})
        item = hami_pod()
        item["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}

        await site.server.put(PODS, item)

        await until(lambda: pod_of(site)["annotations"]["hami.io/bind-phase"] == "failed", "ended")
        assert "hami.io/mutex.lock" not in node_of(site)["annotations"]


async def test_a_handshake_that_was_open_when_this_replica_began_to_lead_is_completed(
    site: Site,
) -> None:
    await site.server.put(NODES, {"metadata": {"name": "n1", "labels": HAMI_NODE}})
    await site.server.put(PODS, hami_pod())
    await admit(site)
    async with site.replica():
        await until(
            lambda: pod_of(site)["annotations"]["hami.io/bind-phase"] == "success", "completed"
        )


async def test_a_handshake_is_left_to_its_own_plugin_where_the_node_is_not_joined(
    site: Site,
) -> None:
    async with one_node(site, A) as (replica, node):
        await labels(site, {"vgpu.dev/dialect": "hami"})
        await site.server.put(PODS, hami_pod())
        await admit(site)
        await until(lambda: (r := known(replica)) is not None and r.pod.admitted)

        await node.ReportNode(report("n1", A), timeout=20)

        assert len(replica.leader.upkeep.chores) == 0
        assert pod_of(site)["annotations"]["hami.io/bind-phase"] == "allocating"


async def test_volcanos_handshake_opens_a_lock_that_names_no_pod(site: Site) -> None:
    async with one_node(site, A) as (_, node):
        await labels(site, VOLCANO_NODE, hamivgpu="2026-01-01T00:00:00Z")
        decided = f"{A},NVIDIA,2048,0:"
        await site.server.put(
            PODS,
            {
                "metadata": {
                    "name": "p1",
                    "namespace": "default",
                    "annotations": {
                        "volcano.sh/bind-phase": "allocating",
                        "volcano.sh/devices-to-allocate": decided,
                        "volcano.sh/vgpu-ids-new": decided,
                        "volcano.sh/vgpu-node": "n1",
                        "volcano.sh/vgpu-time": "1767225600",
                    },
                },
                "spec": {
                    "nodeName": "n1",
                    "containers": [
                        container_of(
                            "main",
                            {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "2048"},
                            uuid=UUID,
                        )
                    ],
                },
                "status": {"phase": "Pending"},
            },
        )
        await admit(site)

        await until(
            lambda: pod_of(site)["annotations"]["volcano.sh/bind-phase"] == "success", "done"
        )
        annotations = pod_of(site)["annotations"]
        assert "hamivgpu" not in node_of(site)["annotations"]
        assert annotations["volcano.sh/devices-to-allocate"] == ""
        answer = (await node.Resolve(resolve(), timeout=20)).allocation
        assert (answer.source_dialect, answer.slices[0].card_uuid) == ("volcano", A)


async def test_the_handshake_of_another_pod_of_that_name_is_not_completed(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await labels(site, HAMI_NODE)
        first = await site.server.put(PODS, hami_pod())
        await until(lambda: known(replica) is not None)
        site.server.lose = lambda event: True
        await site.server.remove(PODS, "p1", "default")
        await site.server.put(PODS, hami_pod())

        await replica.leader.upkeep._complete(first["metadata"]["uid"])

        assert pod_of(site)["annotations"]["hami.io/bind-phase"] == "allocating"


async def test_a_handshake_whose_writes_fail_is_completed_later(site: Site) -> None:
    lock = "2026-01-01T00:00:00Z,default,p1"
    async with one_node(site, A) as (_, _node):
        await until(lambda: labelled(site), "labelled")
        await labels(site, HAMI_NODE, **{"hami.io/mutex.lock": lock})
        site.server.fail("PATCH", f"{NODES}/n1", code=500)
        site.server.fail("PATCH", "/api/v1/namespaces/default/pods/p1", code=409)
        await site.server.put(PODS, hami_pod())
        await admit(site)

        await until(lambda: pod_of(site)["annotations"]["hami.io/bind-phase"] == "success", "done")
        assert "hami.io/mutex.lock" not in node_of(site)["annotations"]


async def test_a_lock_that_no_pod_on_its_way_explains_is_opened(site: Site) -> None:
    """Its pod was deleted between the lock and the kubelet, or was never bound."""
    lock = "2026-01-01T00:00:00Z,default,gone"
    async with one_node(site, A) as (replica, _):
        await labels(site, HAMI_NODE, **{"hami.io/mutex.lock": lock})
        await until(
            lambda: (
                (n := replica.cluster.node("n1")) is not None
                and "hami.io/mutex.lock" in n.annotations
            )
        )
        upkeep = replica.leader.upkeep
        upkeep.look()
        upkeep.look()
        assert ("lock", "n1") not in upkeep.chores._planned
        clock = upkeep._now_ns
        upkeep._now_ns = lambda: clock() + 31 * 10**9

        upkeep.look()

        await until(lambda: "hami.io/mutex.lock" not in node_of(site)["annotations"], "unlocked")


async def test_a_lock_whose_pod_is_on_its_way_is_left_alone(site: Site) -> None:
    lock = "2026-01-01T00:00:00Z,default,p1"
    async with one_node(site, A) as (replica, _):
        await labels(site, HAMI_NODE, **{"hami.io/mutex.lock": lock})
        await site.server.put(PODS, hami_pod())
        await until(lambda: known(replica) is not None)
        upkeep = replica.leader.upkeep
        upkeep.look()
        clock = upkeep._now_ns
        upkeep._now_ns = lambda: clock() + 31 * 10**9

        upkeep.look()

        assert ("lock", "n1") not in upkeep.chores._planned
        assert node_of(site)["annotations"]["hami.io/mutex.lock"] == lock


# Pods that a joined scheduler bound without a decision


def volcano_pod(**status: Any) -> dict[str, Any]:  # noqa: ANN401  a status' fields
    """Return a pod that a Volcano bound which had not yet taken in the node's cards."""
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}
    return {
        "metadata": {"name": "p1", "namespace": "default", "ownerReferences": [owner]},
        "spec": {
            "nodeName": "n1",
            "containers": [
                container_of("main", {"volcano.sh/vgpu-number": "1"}, uuid=UUID),
                container_of("web", {}),
            ],
        },
        "status": {"phase": "Pending", **status},
    }


def running_container(name: str) -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


async def undecided(
    site: Site, replica: Running, item: dict[str, Any], node: dict[str, str] = VOLCANO_NODE
) -> None:
    """Let a pod be there, and be seen to have no decision, then let 61 s pass."""
    await labels(site, node)
    await site.server.put(PODS, item)
    await until(lambda: known(replica) is not None)
    await until(lambda: bool((v := replica.cluster.view("n1")) and v.inventory.cards[A].joined))
    upkeep = replica.leader.upkeep
    upkeep.look()
    clock = upkeep._now_ns
    upkeep._now_ns = lambda: clock() + 61 * 10**9
    upkeep.look()


def evicted(site: Site) -> int:
    return site.server.count("POST", "/api/v1/namespaces/default/pods/p1/eviction")


def said(site: Site) -> str:
    return " ".join(each["message"] for each in events(site) if each["reason"] == "NoDecision")


async def test_a_pod_that_was_bound_without_cards_makes_way_for_another(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await undecided(site, replica, volcano_pod())

        await until(lambda: evicted(site) == 1, "evicted")
        await until(lambda: "so that its controller makes another" in said(site), "said")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"containerStatuses": [running_container("web")]}, "a container of it runs"),
        ({"initContainerStatuses": [running_container("log")]}, "a container of it runs"),
        (None, "no controller makes another"),
    ],
)
async def test_a_pod_that_runs_or_would_be_lost_is_not_evicted(
    site: Site, change: dict[str, Any] | None, why: str
) -> None:
    item = volcano_pod(**(change or {}))
    if change is None:
        del item["metadata"]["ownerReferences"]
    async with one_node(site, A) as (replica, _):
        await undecided(site, replica, item)

        await until(lambda: why in said(site), "said")
        replica.leader.upkeep.look()
        await until(lambda: len(replica.leader.upkeep.chores) == 0, "nothing is left to do")
        assert evicted(site) == 0


async def test_a_pod_on_a_node_where_we_stand_for_no_plugin_is_left_alone(site: Site) -> None:
    """Volcano's own plugin serves the node."""
    node = {"name": "n1", "annotations": Volcano().encode_registration((gpu(A),))}
    await site.server.put(NODES, {"metadata": node})
    async with site.replica() as replica:
        await leading(replica)
        await site.server.put(PODS, volcano_pod())
        await until(lambda: bool(replica.cluster.undecided("n1")), "without a decision")
        upkeep = replica.leader.upkeep
        upkeep.look()

        assert upkeep._undecided == {}
        await upkeep._end_undecided(replica.cluster.undecided("n1")[0].pod.uid)
        assert (evicted(site), said(site)) == (0, "")


# Pods of KAI whose reservation its binder took away


def fraction_pod(**status: Any) -> dict[str, Any]:  # noqa: ANN401  a status' fields
    item = volcano_pod(**status)
    item["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    item["metadata"]["labels"] = {"runai-gpu-group": "6f0c"}
    item["spec"]["containers"] = [container_of("main", {}, uuid=UUID)]
    return item


def holder(card: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401  a spec's fields
    annotations = {"run.ai/reserve_for_gpu_index": card} if card else {}
    return {
        "metadata": {
            "name": "reservation",
            "namespace": "kai-resource-reservation",
            "labels": {"runai-gpu-group": "6f0c"},
            "annotations": annotations,
        },
        "spec": {"containers": [container_of("main", {"nvidia.com/gpu": "1"})], **spec},
        "status": {"phase": "Pending"},
    }


def missed(site: Site) -> str:
    return " ".join(each["message"] for each in events(site) if each["reason"] == "NoReservation")


async def test_a_pod_whose_reservation_is_gone_makes_way_for_another(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await undecided(site, replica, fraction_pod(), KAI_NODE)

        await until(lambda: evicted(site) == 1, "evicted")
        await until(lambda: "its group 6f0c is gone" in missed(site), "said")
        assert said(site) == ""


@pytest.mark.parametrize(
    "there",
    [
        holder(A, nodeName="n1"),
        holder("", nodeName="n1"),
        # Not bound yet, and bound where the pod is not.
        holder(""),
        holder("", nodeName="n2"),
    ],
    ids=["with its card", "without a card yet", "not bound yet", "elsewhere"],
)
async def test_a_pod_whose_reservation_is_there_may_still_start(
    site: Site, there: dict[str, Any]
) -> None:
    async with one_node(site, A) as (replica, _):
        await site.server.put(PODS, there)
        await undecided(site, replica, fraction_pod(), KAI_NODE)

        assert replica.leader.upkeep._undecided == {}
        assert evicted(site) == 0


async def test_a_pod_that_runs_without_its_reservation_stays(site: Site) -> None:
    item = fraction_pod(containerStatuses=[running_container("main")])
    async with one_node(site, A) as (replica, _):
        await undecided(site, replica, item, KAI_NODE)

        await until(lambda: "a container of it runs" in missed(site), "said")
        assert evicted(site) == 0


async def test_a_pod_whose_reservation_is_late_gets_its_own_time(site: Site) -> None:
    """What was not decided for a while is decided late: the time begins anew."""
    async with one_node(site, A) as (replica, _):
        item = fraction_pod()
        del item["metadata"]["labels"]
        await labels(site, KAI_NODE)
        made = await site.server.put(PODS, item)
        await until(lambda: bool(replica.cluster.undecided("n1")), "without a decision")
        upkeep = replica.leader.upkeep
        clock, passed = upkeep._now_ns, 0
        upkeep._now_ns = lambda: clock() + passed * 10**9
        upkeep.look()
        passed = 50
        made["metadata"]["labels"] = {"runai-gpu-group": "6f0c"}
        await site.server.put(PODS, made)
        await until(
            lambda: (r := known(replica)) is not None and bool(replica.cluster.untied(r)), "decided"
        )
        upkeep.look()
        passed = 70
        upkeep.look()

        assert {since is None for since in upkeep._undecided.values()} == {False}
        assert (evicted(site), said(site), missed(site)) == (0, "", "")


async def test_a_pod_of_kai_where_we_stand_for_no_plugin_stays(site: Site) -> None:
    async with one_node(site, A) as (replica, _):
        await undecided(site, replica, fraction_pod(), {"vgpu.dev/dialect": "kai"})

        assert replica.leader.upkeep._undecided == {}
        assert evicted(site) == 0


async def test_a_decision_or_the_setting_keeps_a_pod(site: Site) -> None:
    decision = f"{A},NVIDIA,1024,0:"
    async with one_node(site, A) as (replica, _):
        item = volcano_pod()
        item["metadata"]["annotations"] = {"volcano.sh/vgpu-ids-new": decision}
        await undecided(site, replica, item)
        assert replica.leader.upkeep._undecided == {}

        await site.server.remove(PODS, "p1", "default")
        replica.leader.upkeep._undecided_seconds = 0
        await undecided(site, replica, volcano_pod())
        await until(lambda: len(replica.leader.upkeep.chores) == 0, "nothing is left to do")
        assert evicted(site) == 0
        assert said(site) == ""


async def test_a_node_that_volcano_has_joined_changes_now_and_then(site: Site) -> None:
    """A Volcano that was just started takes in a node's cards when the Node changes."""

    def touched() -> str:
        text: str = node_of(site).get("annotations", {}).get("vgpu.dev/touched", "")
        return text

    async with one_node(site, A) as (replica, _):
        upkeep = replica.leader.upkeep
        await labels(site, HAMI_NODE)
        await until(lambda: (n := replica.cluster.node("n1")) is not None and bool(n.labels))
        upkeep.look()
        assert ("touch", "n1") not in upkeep.chores._planned

        await labels(site, VOLCANO_NODE)
        await until(
            lambda: (
                (n := replica.cluster.node("n1")) is not None
                and n.labels == node_of(site)["labels"]
            )
        )
        upkeep.look()
        await until(lambda: touched() != "", "touched")
        upkeep.look()
        assert ("touch", "n1") not in upkeep.chores._planned, "not in each look"

        clock = upkeep._now_ns
        upkeep._now_ns = lambda: clock() + 61 * 10**9
        upkeep.look()
        assert ("touch", "n1") in upkeep.chores._planned
