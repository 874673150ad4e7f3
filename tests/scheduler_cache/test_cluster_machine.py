# SPDX-License-Identifier: Apache-2.0
"""Random events against the truth: an API server, nodes on which containers run, two replicas.

Watch events are lost, doubled and reordered; replicas restart; leaders change, and a paused one
writes late; tenants change annotations. At every instant what a replica would let start, and what
really runs, fit on their cards; and when all is told, both replicas and a fresh one say the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_cache.cluster import Cluster, Reservation
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.ends import Ends
from scheduler_cache.errors import (
    NoRoomError,
    NoSliceError,
    NotYetError,
    SchedulerCacheError,
    WrongNodeError,
)
from scheduler_cache.model import Allocation, Card
from scheduler_cache.node_view import NodeView
from tests.scheduler_cache.kube_objects import (
    KEYRING,
    A,
    B,
    C,
    container,
    container_of,
    gpu,
    identity,
    kube_node,
    node_report,
    pod,
)

# A night of it: VGPU_TEST_EXAMPLES=20000.
EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "30"))

SECOND = 10**9
NODES: Mapping[str, tuple[Card, ...]] = {
    "node-0": (gpu(A, 8, slots=4), gpu(B, 4, slots=2)),
    "node-1": (gpu(C, 6, slots=3),),
}
CARDS = {card.uuid: card for cards in NODES.values() for card in cards}

KINDS: Mapping[str, dict[str, Any]] = {
    "small": {"containers": [container(memory="1Gi")]},
    "half": {"containers": [container(memory="3Gi", cores="40")]},
    "large": {"containers": [container(memory="6Gi", cores="60")]},
    "whole": {"containers": [container(memory_percent="100")]},
    "two cards": {"containers": [container(memory="2Gi", count="2")]},
    "two containers": {
        "containers": [container(memory="2Gi"), container("second", memory="2Gi", cores="30")]
    },
    "init": {
        "containers": [container(memory="1Gi")],
        "inits": [container("first", memory="4Gi")],
    },
    "hami": {"containers": [container_of("main", {"nvidia.com/gpumem": "2048"})]},
    "no card": {"containers": [container("main")]},
}


@dataclass
class Pod:
    """A pod as it truly is."""

    uid: str
    source: dict[str, Any]
    acknowledged: dict[str, Allocation] = field(default_factory=dict)
    """What a leader was told to be accepted, by container name."""
    written: dict[str, str] = field(default_factory=dict)
    tampered: bool = False
    again: bool = False
    """Its kubelet runs the init containers again, which the API server does not know yet."""


@dataclass
class Container:
    """A container that really runs."""

    uid: str
    name: str
    allocation: Allocation


@dataclass
class Write:
    """A Binding that a leader has sent or, paused, will send."""

    replica: int
    uid: str
    reservation: Reservation


@dataclass
class Replica:
    """A replica with the watch events that it has not seen yet."""

    cluster: Cluster
    pending: list[tuple[str, dict[str, Any] | None, int]] = field(default_factory=list)
    """(uid, pod or None when deleted, version)."""


class ClusterMachine(RuleBasedStateMachine):
    """A small cluster in bad weather."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000 * SECOND
        self.version = 100
        self.numbers = 0
        self.pods: dict[str, Pod] = {}
        self.dead: list[str] = []
        self.said: list[Ends] = []
        """Words of leaders about ended pods; they may be read late."""
        self.old_lists: list[tuple[int, list[dict[str, Any]]]] = []
        self.running: dict[str, list[Container]] = {name: [] for name in NODES}
        self.writes: list[Write] = []
        self.leader = 0
        self.epoch = 1
        self.dialects = every_dialect(KEYRING)
        self.replicas = [Replica(self.fresh()), Replica(self.fresh())]

    @initialize(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=5))
    def a_cluster_at_work(self, kinds: list[str]) -> None:
        for replica in self.replicas:
            self.tell_all(replica.cluster)
        for kind in kinds:
            self.a_pod_is_created(kind)

    # Few rules with much to draw: hypothesis leaves rules out at random, and nothing happens to a
    # pod that nobody binds.

    @rule(data=st.data(), times=st.integers(1, 5))
    def pods_go_on(self, data: st.DataObject, times: int) -> None:
        """Create, bind, start or end something, several times."""
        for _ in range(times):
            self.a_pod_goes_on(data)

    def a_pod_goes_on(self, data: st.DataObject) -> None:
        steps = ["create"] if len(self.pods) < 6 else []
        if self.unbound():
            steps += ["bind"] * 3
        if self.startable():
            steps += ["start"] * 4
        if any(self.running.values()):
            steps += ["end"]
        step = data.draw(st.sampled_from(steps or ["none"]))
        if step == "create":
            self.a_pod_is_created(data.draw(st.sampled_from(sorted(KINDS))))
        elif step == "bind":
            node = data.draw(st.sampled_from(sorted(NODES)))
            self.the_leader_binds(data, node, data.draw(st.sampled_from("wwwwppa")))
        elif step == "start":
            self.a_container_starts(data)
        elif step == "end":
            self.a_container_ends(data)

    @rule(data=st.data(), which=st.integers(0, 1), seconds=st.sampled_from([1, 20, 40]))
    def something_happens_around(self, data: st.DataObject, which: int, seconds: int) -> None:
        kinds = ["list", "keep", "restart", "lead", "report", "report", "time", "evict"]
        kinds += ["stale"] if self.old_lists else []
        kinds += ["late", "late"] if self.writes else []
        kinds += ["settle", "say"]
        kinds += ["hear", "hear"] if self.said else []
        kind = data.draw(st.sampled_from(kinds))
        if kind == "list":
            self.a_replica_lists_again(which)
        elif kind == "keep":
            self.the_old_list_is_kept()
        elif kind == "stale":
            self.a_replica_gets_a_stale_list(which, data)
        elif kind == "restart":
            self.a_replica_restarts(which)
        elif kind == "say":
            self.the_leader_says_what_has_ended()
        elif kind == "hear":
            self.a_follower_hears_it(data)
        elif kind == "lead":
            self.the_leader_changes()
        elif kind == "report":
            self.a_node_reports(data.draw(st.sampled_from(sorted(NODES))), which)
        elif kind == "settle":
            self.all_is_told_and_everybody_agrees(data)
        elif kind == "late":
            self.a_paused_leader_writes_late(data)
        elif kind == "time":
            self.time_passes(seconds)
        else:
            self.the_losers_are_evicted(which)

    # The API server

    def fresh(self) -> Cluster:
        cluster = Cluster(self.dialects, assume_seconds=30)
        nodes = [
            kube_node(name, annotations=self.dialects.native.encode_inventory(cards))
            for name, cards in NODES.items()
        ]
        cluster.replace_nodes(nodes, self.now)
        cluster.replace_pods(self.listed(), self.version, self.now)
        return cluster

    def listed(self) -> list[dict[str, Any]]:
        return [each.source for each in self.pods.values()]

    def write(self, uid: str, change: Any) -> None:  # noqa: ANN401  a function of the pod
        """Change a pod in the API server and tell the watchers."""
        self.version += 1
        source = json.loads(json.dumps(self.pods[uid].source))
        change(source)
        source["metadata"]["resourceVersion"] = str(self.version)
        self.pods[uid].source = source
        for replica in self.replicas:
            replica.pending.append((uid, source, self.version))

    def erase(self, uid: str) -> None:
        self.version += 1
        del self.pods[uid]
        self.dead.append(uid)
        for replica in self.replicas:
            replica.pending.append((uid, None, self.version))

    def a_pod_is_created(self, kind: str) -> None:
        self.numbers += 1
        uid = f"p{self.numbers}"
        options = KINDS[kind]
        source = pod(uid, *options["containers"], inits=options.get("inits", ()), phase="Pending")
        self.pods[uid] = Pod(uid, source)
        self.write(uid, lambda each: None)

    def the_old_list_is_kept(self) -> None:
        self.old_lists = [*self.old_lists[-2:], (self.version, self.listed())]

    # Watching

    @precondition(lambda self: any(replica.pending for replica in self.replicas))
    @rule(data=st.data(), fate=st.sampled_from(["all", "all", "next", "any", "twice", "lost"]))
    def events_arrive(self, data: st.DataObject, fate: str) -> None:
        replica = data.draw(st.sampled_from([each for each in self.replicas if each.pending]))
        place = 0
        if fate in ("any", "twice", "lost"):
            place = data.draw(st.integers(0, len(replica.pending) - 1))
        if fate == "all":
            for event in replica.pending:
                self.deliver(replica, event)
            replica.pending = []
            return
        event = replica.pending[place] if fate == "twice" else replica.pending.pop(place)
        if fate != "lost":
            self.deliver(replica, event)

    def deliver(self, replica: Replica, event: tuple[str, dict[str, Any] | None, int]) -> None:
        uid, source, version = event
        if source is None:
            replica.cluster.delete_pod(uid, self.now, version)
        else:
            replica.cluster.apply_pod(source, self.now)

    def a_replica_lists_again(self, which: int) -> None:
        self.replicas[which].pending = []
        self.replicas[which].cluster.replace_pods(self.listed(), self.version, self.now)

    def a_replica_gets_a_stale_list(self, which: int, data: st.DataObject) -> None:
        version, sources = data.draw(st.sampled_from(self.old_lists))
        self.replicas[which].cluster.replace_pods(sources, version, self.now)

    def a_replica_restarts(self, which: int) -> None:
        self.replicas[which] = Replica(self.fresh())
        self.writes = [each for each in self.writes if each.replica != which]
        if which == self.leader:
            self.lead(1 - which)
        # Its nodes come back to it, and report.
        self.tell(self.replicas[which].cluster, f"node-{which}")

    # Leading

    def lead(self, which: int) -> None:
        """Give the Lease to a replica; it reads consistently before it writes."""
        self.leader = which
        self.epoch += 1
        self.a_replica_lists_again(which)
        self.tell_all(self.replicas[which].cluster)

    def the_leader_changes(self) -> None:
        self.lead(1 - self.leader)

    def the_leader_says_what_has_ended(self) -> None:
        """It has taken in all that was written, which is the version that it names."""
        self.a_replica_lists_again(self.leader)
        self.said = [*self.said[-2:], self.replicas[self.leader].cluster.ends(self.version)]

    def a_follower_hears_it(self, data: st.DataObject) -> None:
        ends = data.draw(st.sampled_from(self.said))
        self.replicas[1 - self.leader].cluster.apply_ends(ends, self.now)

    def unbound(self) -> list[str]:
        return [
            uid
            for uid, each in self.pods.items()
            if "nodeName" not in each.source["spec"] and each.source["status"]["phase"] == "Pending"
        ]

    def the_leader_binds(self, data: st.DataObject, node: str, fate: str) -> None:
        """Choose cards, and write the Binding now (w), later (p), or not at all (a)."""
        uid = data.draw(st.sampled_from(self.unbound()))
        if self.replicas[self.leader].cluster.record(uid) is None:
            # kube-scheduler has seen the pod; so has the leader a moment later.
            self.replicas[self.leader].cluster.apply_pod(self.pods[uid].source, self.now)
        cluster = self.replicas[self.leader].cluster
        self.tell(cluster, node)
        try:
            reservation, _ = cluster.reserve(uid, node, self.epoch, self.now)
        except (NoRoomError, NoSliceError, NotYetError, WrongNodeError):
            return
        write = Write(self.leader, uid, reservation)
        if fate == "p":
            self.writes.append(write)
        elif fate == "a":
            cluster.abandon(uid, self.now)
        else:
            self.bind(write)

    def a_paused_leader_writes_late(self, data: st.DataObject) -> None:
        write = data.draw(st.sampled_from(self.writes))
        self.writes.remove(write)
        self.bind(write)

    def bind(self, write: Write) -> None:
        cluster = self.replicas[write.replica].cluster
        truth = self.pods.get(write.uid)
        spec = truth.source["spec"] if truth else {}
        if truth is None or "nodeName" in spec or truth.source["status"]["phase"] != "Pending":
            cluster.abandon(write.uid, self.now)
            return

        def change(source: dict[str, Any]) -> None:
            source["spec"]["nodeName"] = write.reservation.node_name
            source["metadata"]["annotations"].update(write.reservation.annotations)

        self.write(write.uid, change)
        truth.acknowledged = dict(write.reservation.allocations)
        truth.written = dict(write.reservation.annotations)
        cluster.confirm(write.uid, self.now)

    def the_losers_are_evicted(self, which: int) -> None:
        view_names = self.replicas[which].cluster.node_names
        for name in view_names:
            view = self.replicas[which].cluster.view(name)
            for uid in list(view.evict) if view else ():
                if uid in self.pods:
                    self.erase(uid)

    # Nodes

    def tell(self, cluster: Cluster, name: str) -> None:
        """Let a node's agent report."""
        cluster.apply_report(
            node_report(
                *NODES[name], running=[each.allocation for each in self.running[name]], node=name
            ),
            self.now,
        )

    def tell_all(self, cluster: Cluster) -> None:
        for name in NODES:
            self.tell(cluster, name)

    def a_node_reports(self, name: str, which: int) -> None:
        self.tell(self.replicas[which].cluster, name)

    def startable(self) -> list[tuple[str, str, str]]:
        """Return (pod, node, container) of all that the kubelets would start now."""
        found = []
        for uid, each in self.pods.items():
            source = each.source
            node = source["spec"].get("nodeName")
            if node is None or source["status"]["phase"] not in ("Pending", "Running"):
                continue
            done = {status["name"] for status in source["status"]["initContainerStatuses"]}
            done = set() if each.again else done
            inits = [each["name"] for each in source["spec"]["initContainers"]]
            waiting = [name for name in inits if name not in done]
            names = waiting[:1] or [each["name"] for each in source["spec"]["containers"]]
            runs = {each.name for each in self.running[node] if each.uid == uid}
            found += [(uid, node, name) for name in names if name not in runs]
        return found

    def a_container_starts(self, data: st.DataObject) -> None:
        """The kubelet starts a container; its node asks its own replica."""
        uid, node, name = data.draw(st.sampled_from(self.startable()))
        cluster = self.replicas[int(node[-1])].cluster
        try:
            allocation = cluster.resolve("", node, identity(uid, name))
        except SchedulerCacheError:
            if self.pods[uid].again:
                self.the_kubelet_tells_of_init_containers(uid)
            return
        self.running[node].append(Container(uid, name, allocation))
        if self.pods[uid].again:
            self.the_kubelet_tells_of_init_containers(uid)
            self.pods[uid].again = False
        if name != "first":
            self.write(uid, lambda each: each["status"].update(phase="Running"))

    def the_kubelet_tells_of_init_containers(self, uid: str) -> None:
        """Say that they have not finished, as after a start that failed."""
        self.write(uid, lambda each: each["status"].update(initContainerStatuses=[]))

    def a_container_ends(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([name for name, each in self.running.items() if each]))
        ended = data.draw(st.sampled_from(self.running[node]))
        self.running[node].remove(ended)
        truth = self.pods.get(ended.uid)
        if truth is None:
            return
        inits = [each["name"] for each in truth.source["spec"]["initContainers"]]
        if ended.name in inits:
            status = {"name": ended.name, "state": {"terminated": {"exitCode": 0}}}
            self.write(
                ended.uid, lambda each: each["status"]["initContainerStatuses"].append(status)
            )
        elif not any(each.uid == ended.uid for each in self.running[node]):
            self.write(ended.uid, lambda each: each["status"].update(phase="Succeeded"))

    @precondition(lambda self: self.pods)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["evicted", "deleting", "forced", "tampered", "sandbox"]),
    )
    def somebody_meddles(self, data: st.DataObject, fate: str) -> None:
        """The kubelet calls a pod failed before it has ended it; people delete, force, rewrite."""
        # Those that run first: there is most to be lost.
        busy = [
            each.uid for some in self.running.values() for each in some if each.uid in self.pods
        ]
        uid = data.draw(st.sampled_from(busy or sorted(self.pods)))
        truth = self.pods[uid]
        if fate == "evicted":
            self.write(uid, lambda each: each["status"].update(phase="Failed"))
        elif fate == "deleting":
            self.write(
                uid,
                lambda each: each["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            )
        elif fate == "forced":
            self.erase(uid)
        elif fate == "sandbox":
            # The pod's sandbox died: everything in it ends, and init containers run again.
            for some in self.running.values():
                some[:] = [each for each in some if each.uid != uid]
            truth.again = bool(truth.source["spec"]["initContainers"])
        else:
            node = truth.source["spec"].get("nodeName")
            if node is None:
                return
            # Its own container's true slices are known from a report before that.
            for replica in self.replicas:
                self.tell(replica.cluster, node)
            truth.tampered = True
            text = data.draw(st.sampled_from([self.shrunk(truth), "{", "", self.stolen()]))
            self.write(
                uid,
                lambda each: each["metadata"]["annotations"].update({"vgpu.dev/allocation": text}),
            )

    def shrunk(self, truth: Pod) -> str:
        source = json.loads(truth.written.get("vgpu.dev/allocation", "{}"))
        for parts in source.get("containers", {}).values():
            for part in parts:
                part["memory_bytes"] = 1
        return json.dumps(source)

    def stolen(self) -> str:
        written = [each.written for each in self.pods.values() if each.written]
        return written[0]["vgpu.dev/allocation"] if written else '{"version":1}'

    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND
        for replica in self.replicas:
            replica.cluster.tick(self.now)

    # What must hold

    @invariant()
    def what_really_runs_fits_on_its_card(self) -> None:
        for name, cards in NODES.items():
            holders: dict[str, list[Allocation]] = {}
            for each in self.running[name]:
                for part in each.allocation.slices:
                    holders.setdefault(part.card_uuid, []).append(each.allocation)
            for card in cards:
                check_card(card, holders.get(card.uuid, []))

    @invariant()
    def what_a_replica_lets_start_fits_on_its_card(self) -> None:
        for replica in self.replicas:
            for name, cards in NODES.items():
                view = replica.cluster.view(name)
                if view is not None:
                    for card in cards:
                        check_card(card, self.together(view, card.uuid))

    def together(self, view: NodeView, uuid: str) -> list[Allocation]:
        """Return the answers that may run at once on a card: not an init container's beside
        others.
        """
        return [
            each
            for (_, name), each in view.answers.items()
            if isinstance(each, Allocation)
            and name != "first"
            and any(part.card_uuid == uuid for part in each.slices)
        ]

    @invariant()
    def what_is_placed_counts_what_runs(self) -> None:
        """No card has less counted than runs there, wherever its node has reported."""
        cluster = self.replicas[self.leader].cluster
        for name, cards in NODES.items():
            report = cluster.reported(name)
            view = cluster.view(name)
            if report is None or view is None:
                continue
            told = report.running
            for card in cards:
                runs = sum(
                    part.memory_bytes
                    for each in self.running[name]
                    if each.allocation.allocation_id in told
                    for part in each.allocation.slices
                    if part.card_uuid == card.uuid
                )
                assert view.room(card.uuid).use.memory_bytes >= runs

    def all_is_told_and_everybody_agrees(self, data: st.DataObject) -> None:
        for write in self.writes:
            self.bind(write)
        self.writes = []
        for replica in self.replicas:
            order = data.draw(st.permutations(range(len(replica.pending))))
            for place in order:
                self.deliver(replica, replica.pending[place])
            if data.draw(st.booleans()):
                for event in replica.pending:
                    self.deliver(replica, event)
            replica.pending = []
            # Lost events are found by the next list.
            replica.cluster.replace_pods(self.listed(), self.version, self.now)
            # Reservations that nobody decides lapse.
        self.now += 31 * SECOND
        fresh = Replica(self.fresh())
        everybody = [*self.replicas, fresh]
        for replica in everybody:
            replica.cluster.tick(self.now)
            self.tell_all(replica.cluster)
        views = [self.told(replica.cluster) for replica in everybody]
        for name in views[2]:
            assert views[0][name] == views[2][name]
            assert views[1][name] == views[2][name]
        self.acknowledged_survive(fresh.cluster)

    def told(self, cluster: Cluster) -> dict[str, Any]:
        return {
            f"{name}: {what}": value
            for name in NODES
            if (view := cluster.view(name)) is not None
            for what, value in {
                "uses": view.uses,
                "allocations": view.allocations,
                # A pod that is gone gets no answer at all.
                "answers": {key: each for key, each in view.answers.items() if key[0] in self.pods},
                "waiting": {key: each for key, each in view.waiting.items() if key[0] in self.pods},
                "evict": set(view.evict),
                "states": {uid: each for uid, each in view.states.items() if uid in self.pods},
            }.items()
        }

    def acknowledged_survive(self, cluster: Cluster) -> None:
        """Whoever was told that it is bound gets just that, unless it lost to another or ended."""
        for uid, truth in self.pods.items():
            if truth.tampered or not truth.acknowledged:
                continue
            node = truth.source["spec"]["nodeName"]
            view = cluster.view(node)
            assert view is not None
            if truth.source["status"]["phase"] in ("Failed", "Succeeded") or uid in view.evict:
                continue
            for name, allocation in truth.acknowledged.items():
                if (uid, name) not in view.waiting:
                    assert cluster.resolve("", node, identity(uid, name)) == allocation

    def teardown(self) -> None:
        for name, cards in NODES.items():
            for replica in self.replicas:
                view = replica.cluster.view(name)
                assert view is not None
                assert set(view.inventory.cards) == {card.uuid for card in cards}


def check_card(card: Card, holders: list[Allocation]) -> None:
    """Assert that these allocations fit on a card together; the sums are made here anew."""
    parts = [part for each in holders for part in each.slices if part.card_uuid == card.uuid]
    assert sum(part.memory_bytes for part in parts) <= card.memory_bytes
    assert sum(part.reserved_percent for part in parts) <= 100
    assert len(parts) <= card.slots
    owners = {each.pod.uid for each in holders if each.pod}
    assert len(owners) <= 1 or not any(each.exclusive for each in holders)


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
