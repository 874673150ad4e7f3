# SPDX-License-Identifier: Apache-2.0
"""The cluster's state in memory: who holds which slice of which card of which node. Pure.

Events go in (`apply_pod`, `apply_report`, …), with the monotonic clock of the process, and
`Deltas` come out: what the nodes' agents must hear, what people should know, whose pod must go.
Events may come in any order, twice, or again after a restart: the state depends on what was last
heard of each object, not on the way there. One thing remembers: whether a report came *after* the
end of a pod was known.

The rules, in short. Only a pod that is bound (or that the leader has just chosen cards for) holds
slices. It holds them until it is terminal or gone **and** its node's agent, in a report that
arrives after that, no longer lists it as running, or the node's Lease is lost past the eviction
time. Agents report to the leader alone: the other replicas hear of ends from it (`ends`,
`apply_ends`). Where no agent of ours ever was, the API server's word is enough. What an agent
reports running and no pod explains holds as an orphan. What cannot be read, or names cards that
the node does not have, blocks what was asked for on every card of the node.

Not thread-safe: one event loop owns it. Nothing is written anywhere: a leader writes the
annotations of a `Reservation` with the Binding, then calls `confirm`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from sys import intern
from typing import Any

from scheduler_cache.cache import Report
from scheduler_cache.dialects.dialect import (
    Decision,
    Named,
    PodRequest,
    Registration,
    StatedSlice,
    tried,
)
from scheduler_cache.dialects.native import ISOLATION, NATIVE
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.ends import Ends
from scheduler_cache.errors import (
    NoSliceError,
    NotBelievedError,
    NotFoundError,
    NotYetError,
    SchedulerCacheError,
    WrongNodeError,
)
from scheduler_cache.fit import policy_of
from scheduler_cache.inventory import (
    at_work,
    inventory_of,
    registrations_of,
    served_resources,
    whole_cards,
    without_agent,
)
from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    Claim,
    ClaimState,
    MemoryAmount,
    PodContainer,
    Slice,
)
from scheduler_cache.node_view import NodeView, Notice, view_of
from scheduler_cache.placing import Placement, place_pod
from scheduler_cache.pod import Container, KubeNode, Pod, kube_node_of, pod_of
from scheduler_cache.record import AllocationState, Assumption, Record, allocation_id
from scheduler_cache.trust import slice_of

_SECOND = 10**9

# Between two looks at the event loop while loading.
_NODES_AT_ONCE = 20

Change = Allocation | str
"""An allocation that is new or changed, or the id of one that is gone."""


@dataclass(kw_only=True, slots=True)
class Deltas:
    """What follows from events, in the order in which it is to be told."""

    watch: list[tuple[str, Change]] = field(default_factory=list)
    """(node name, change) for WatchNode; removals come first."""
    notices: list[tuple[str, Notice]] = field(default_factory=list)
    """(node name, notice), each once when it becomes true; the leader makes Events of them."""
    evict: list[PodContainer] = field(default_factory=list)
    """Pods that lost a card to a later leader's decision; the leader evicts them."""
    nodes: set[str] = field(default_factory=set)
    """Nodes whose view was derived anew, or that were forgotten: these have no view any more."""
    pods: set[str] = field(default_factory=set)
    """Uids of the pods that an event was about: whoever waits in Resolve asks again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Cards that the leader has chosen for a pod, held until it is confirmed, abandoned, or too
    old.
    """

    node_name: str
    allocations: Mapping[str, Allocation]
    """By container name."""
    annotations: Mapping[str, str]
    """To be written with the Binding, in one request."""


@dataclass(kw_only=True, slots=True)
class _NodeInputs:
    """What was last heard of a node."""

    kube: KubeNode | None = None
    registrations: list[Registration] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    devices: Registration | None = None
    devices_error: str = ""
    report: Report | None = None
    reported_ns: int = 0
    """When that came, on our clock."""
    lease_text: str = ""
    lease_seen_ns: int | None = None
    """When its Lease was last seen to change, on our clock; None: never seen."""
    uids: set[str] = field(default_factory=set)
    """The pods that are or were sent there."""
    claimed: frozenset[str] = frozenset()
    """UUIDs of all cards that it says it has."""


class Cluster:
    """All nodes and pods. See the module's text for the rules."""

    def __init__(
        self,
        dialects: Dialects,
        *,
        default_policy: CardPolicy = CardPolicy.BINPACK,
        eviction_seconds: float = 340.0,
        assume_seconds: float = 30.0,
        remember_seconds: float = 600.0,
        left_out: Collection[str] = (),
    ) -> None:
        """Start empty.

        `eviction_seconds`: after this long without a change of its Lease a node counts as lost; 40
        s until kube calls it unreachable and 300 s of default toleration.
        `assume_seconds`: a reservation that is neither confirmed nor abandoned lapses.
        `remember_seconds`: how long a deleted pod is answered at once instead of being waited for.
        `left_out`: dialects whose pods admission does not look at, so that anybody may write their
        decisions: these count only where their system is at work.
        """
        self._left_out = frozenset(left_out) - {NATIVE}
        self._dialects = dialects
        self._default_policy = default_policy
        self._eviction_ns = int(eviction_seconds * _SECOND)
        self._assume_ns = int(assume_seconds * _SECOND)
        self._remember_ns = int(remember_seconds * _SECOND)
        self._records: dict[str, Record] = {}
        self._nodes: dict[str, _NodeInputs] = {}
        self._views: dict[str, NodeView] = {}
        self._claimants: dict[str, set[str]] = {}
        self._owners: dict[str, dict[str, Pod]] = {}
        self._deleted: dict[str, tuple[int, int]] = {}
        """Version and time of each deletion; the oldest is first."""
        self._restless: set[str] = set()
        """Uids of the pods that time alone may change."""
        self._objectless: dict[str, int | None] = {}
        """Nodes without a Node object, and since when, once the clock has looked."""
        self._loading: set[str] | None = None
        """Nodes to derive once everything is loaded; None: each is derived at once."""

    # Loading

    def begin_loading(self) -> None:
        """Put off deriving until `end_loading`: the first lists touch every node again and again.

        Until then nothing that is read here is true.
        """
        self._loading = set()

    def end_loading(self, now_ns: int) -> Iterator[Deltas]:
        """Derive every node that was touched, once, a few at each step; to be exhausted."""
        while self._loading:
            some = {self._loading.pop() for _ in range(min(_NODES_AT_ONCE, len(self._loading)))}
            rest, self._loading = self._loading, None
            deltas = self._settle((some, set()), now_ns)
            self._loading = rest
            yield deltas
        self._loading = None

    # Events from the API server

    def apply_pod(self, source: Mapping[str, Any], now_ns: int) -> Deltas:
        """Take a pod as a watch or a list gave it: ADDED, MODIFIED, or again.

        A version older than the one known, or of a deleted pod, changes nothing. Never raises for
        what is in the pod.
        """
        return self._settle(self._take_pod(pod_of(source)), now_ns)

    def delete_pod(self, uid: str, now_ns: int, version: int = 0) -> Deltas:
        """Take that a pod is gone from the API server: DELETED, or missing from a list.

        What it holds it goes on holding, as an orphan, until its node reports the end. `version`:
        the resourceVersion of the event or list; 0 when not known.
        """
        return self._settle(self._lose_pod(uid, version, now_ns), now_ns)

    def replace_pods(
        self, sources: Iterable[Mapping[str, Any]], version: int, now_ns: int
    ) -> Deltas:
        """Take a whole list of pods: what is not in it is gone, unless it is newer than the list.

        `version`: the list's resourceVersion; 0 when not known.
        """
        changed: set[str] = set()
        pods: set[str] = set()
        for source in sources:
            pod = pod_of(source)
            pods.add(pod.uid)
            nodes, _ = self._take_pod(pod)
            changed |= nodes
        missing = [
            uid
            for uid, record in self._records.items()
            if uid not in pods
            and not record.gone
            and not (version and record.pod.version > version)
        ]
        for uid in missing:
            nodes, _ = self._lose_pod(uid, version, now_ns)
            changed |= nodes
        return self._settle((changed, pods | set(missing)), now_ns)

    def apply_node(self, source: Mapping[str, Any], now_ns: int) -> Deltas:
        """Take a Node: its labels (owner, mode), annotations (registrations, cordons)."""
        return self._settle((self._take_node(kube_node_of(source)), set()), now_ns)

    def delete_node(self, name: str, now_ns: int) -> Deltas:
        """Take that a Node is gone. What runs there holds on, until its Lease is lost, too."""
        if name not in self._nodes:
            return Deltas()
        return self._settle((self._lose_node(name), set()), now_ns)

    def replace_nodes(self, sources: Iterable[Mapping[str, Any]], now_ns: int) -> Deltas:
        """Take a whole list of Nodes."""
        changed: set[str] = set()
        names = set()
        for source in sources:
            node = kube_node_of(source)
            names.add(node.name)
            changed |= self._take_node(node)
        for name, inputs in self._nodes.items():
            if name not in names and inputs.kube is not None:
                changed |= self._lose_node(name)
        return self._settle((changed, set()), now_ns)

    def apply_lease(self, node_name: str, renew_time: str, now_ns: int) -> Deltas:
        """Take the Lease of a node (namespace kube-node-lease).

        Only that it *changes* counts, by our clock: clocks of nodes may be wrong. A deleted Lease
        needs no event; it no longer changes.
        """
        inputs = self._inputs(node_name)
        if inputs.lease_text != renew_time or inputs.lease_seen_ns is None:
            inputs.lease_text, inputs.lease_seen_ns = renew_time, now_ns
        return Deltas()

    def apply_device(self, source: Mapping[str, Any], now_ns: int) -> Deltas:
        """Take a Device object of Koordinator (cluster-scoped, named like its node)."""
        metadata = source.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str) or not name:
            return Deltas()
        inputs = self._inputs(name)
        inputs.devices, problem = tried(partial(self._dialects.parse_device, source))
        inputs.devices_error = (
            f"the Device object of node {name} cannot be read: {problem}" if problem else ""
        )
        return self._settle((self._reclaim(name) | {name}, set()), now_ns)

    def delete_device(self, node_name: str, now_ns: int) -> Deltas:
        """Take that a Device object is gone."""
        inputs = self._inputs(node_name)
        inputs.devices, inputs.devices_error = None, ""
        return self._settle((self._reclaim(node_name) | {node_name}, set()), now_ns)

    # Events from the nodes

    def apply_report(self, report: Report, now_ns: int) -> Deltas:
        """Take an agent's report, which replaces its last one. Reports of one node come in order.

        `report.running`: allocation ids of containers that have a process *or were resolved and are
        being created*. `report.claims`: the allocations of all of them, state RUNNING, with `pod`
        set, so that an orphan can be held after a restart of this cache. Pods whose end is known
        and that the report does not list are released. Of a pod that is gone, what the report lists
        is all that is left.
        """
        name = report.node.name
        inputs = self._inputs(name)
        running = _running(report)
        told = {each.allocation.allocation_id for each in _told(report)}
        pods = set()
        for uid in list(inputs.uids):
            record = self._records[uid]
            left = running.intersection(record.ids.values())
            if record.ending and (not left or (record.gone and left <= told)):
                self._finish(record)
                pods.add(uid)
        same = inputs.report == report
        inputs.report, inputs.reported_ns = report, now_ns
        if same and not pods:
            return Deltas()  # a sign of life, as most reports are
        return self._settle((self._reclaim(name) | {name}, pods), now_ns)

    def forget_reports(self, now_ns: int) -> Iterator[Deltas]:
        """Drop what agents have told until now, a few nodes at each step; to be exhausted.

        For a replica that leads no longer: what runs on the nodes, it hears no more.
        """
        told = [(name, each.report) for name, each in self._nodes.items() if each.report]
        for start in range(0, len(told), _NODES_AT_ONCE):
            changed: set[str] = set()
            for name, report in told[start : start + _NODES_AT_ONCE]:
                inputs = self._nodes.get(name)
                if inputs is not None and inputs.report is report:
                    inputs.report = None
                    changed |= self._reclaim(name) | {name}
            yield self._settle((changed, set()), now_ns)

    # Ends, which the leader tells the other replicas

    def ends(self, version: int) -> Ends:
        """Return which of the pods that have ended still hold slices.

        `version`: the resourceVersion up to which every event of a pod was applied here.
        """
        held: dict[str, set[str] | None] = {}
        for name, view in self._views.items():
            if view.inventory.cards and not self._heard_all(name):
                # An earlier leader may have heard of containers there that nothing here explains.
                held[name] = None
            elif view.orphans:
                held[name] = set(view.orphans)
        for uid in self._restless:
            record = self._records.get(uid)
            if record is not None and record.ending:
                named = held.setdefault(record.node_name, set())
                if named is not None:
                    named.add(uid)
        return Ends(
            version=version,
            held={name: None if uids is None else frozenset(uids) for name, uids in held.items()},
        )

    def apply_ends(self, ends: Ends, now_ns: int) -> Deltas:
        """Take what the leader says of ended pods. Saying it again changes nothing."""
        changed: set[str] = set()
        pods: set[str] = set()
        for uid in list(self._restless):
            record = self._records.get(uid)
            if (
                record is not None
                and record.ending
                and ends.covers(record.node_name, uid, record.ended_version)
            ):
                changed.add(record.node_name)
                self._finish(record)
                pods.add(uid)
        return self._settle((changed, pods), now_ns)

    # The clock

    def tick(self, now_ns: int) -> Deltas:
        """Let time pass, about once a second: reservations lapse, lost nodes release, memory
        fades.
        """
        changed: set[str] = set()
        pods: set[str] = set()
        last_of_gang = self._gang_ends()
        for uid in list(self._restless):
            record = self._records.get(uid)
            if record is None or not record.restless:
                self._restless.discard(uid)
                continue
            assumed = record.assumed
            if (
                assumed
                and record.lapses
                and now_ns >= last_of_gang.get(record.pod.gang_key, assumed.expires_ns)
            ):
                changed |= self._drop_assumption(record)
                pods.add(uid)
            if record.ending and (
                self._lost(record.node_name, now_ns) or self._without_agent(record.node_name)
            ):
                changed.add(record.node_name)
                self._finish(record)
                pods.add(uid)
        faded = []
        for uid, (_, deleted_ns) in self._deleted.items():
            if now_ns - deleted_ns < self._remember_ns:
                break  # they were noted in the order of time
            if uid not in self._records:
                faded.append(uid)
        for uid in faded:
            del self._deleted[uid]
        deltas = self._settle((changed, pods), now_ns)
        self._forget_nodes(deltas, now_ns)
        return deltas

    def _gang_ends(self) -> dict[tuple[str, str], int]:
        """Return when the reservations of each gang lapse: all with the last one of them.

        A gang that lost one reservation and kept another would start in part.
        """
        ends: dict[tuple[str, str], int] = {}
        for uid in self._restless:
            record = self._records.get(uid)
            if record is None or record.assumed is None or not record.lapses:
                continue
            if record.pod.gang:
                key = record.pod.gang_key
                ends[key] = max(ends.get(key, 0), record.assumed.expires_ns)
        return ends

    # The leader's decisions

    def reserve(
        self, uid: str, node_name: str, epoch: int, now_ns: int
    ) -> tuple[Reservation, Deltas]:
        """Choose cards on a node for a pod that waits, and hold them.

        `epoch`: the transition number of the leader's Lease. A second call for the same node
        returns the same cards; for another node it replaces the first, unless it fails: then what
        was held is still held. Raises NoRoomError (what is free is in the text), NotYetError (pod
        or node is not known), NoSliceError (it asks for nothing, or its request cannot be read),
        WrongNodeError (it is bound already, or its Binding to another node was accepted).
        """
        record = self._records.get(uid)
        if record is None or record.gone:
            raise NotYetError(f"pod {uid} is not known here yet; retrying is safe")
        pod = record.pod
        if pod.node_name:
            raise WrongNodeError(f"pod {pod} is already bound to node {pod.node_name}")
        if record.request is None:
            why = record.request_error or "it asks for no card"
            raise NoSliceError(f"cannot choose cards for pod {pod}: {why}")
        if node_name not in self._views:
            raise NotYetError(f"node {node_name} is not known here yet; retrying is safe")
        deltas = Deltas()
        assumed = record.assumed
        if assumed is not None and assumed.confirmed and assumed.node_name != node_name:
            raise WrongNodeError(f"pod {pod} is already bound to node {assumed.node_name}")
        if (
            assumed is not None
            and assumed.node_name == node_name
            and (assumed.confirmed or assumed.decision.epoch == epoch)
        ):
            record.assumed = replace(assumed, expires_ns=now_ns + self._assume_ns)
            return self._reservation(record), deltas
        if assumed is not None:
            deltas = self._settle((self._drop_assumption(record), {uid}), now_ns)
        try:
            placement = place_pod(pod, record.request, self._views[node_name], self._default_policy)
        except SchedulerCacheError:
            if assumed is not None:
                # Its Binding may be under way. Nobody has heard yet that it was let go.
                record.assumed = assumed
                self._inputs(assumed.node_name).uids.add(uid)
                self._settle(({assumed.node_name}, {uid}), now_ns)
            raise
        record.assumed = Assumption(
            node_name=node_name,
            decision=_decision(record.request, placement, node_name, epoch, self._default_policy),
            expires_ns=now_ns + self._assume_ns,
        )
        self._restless.add(uid)
        self._inputs(node_name).uids.add(uid)
        more = self._settle(({node_name}, {uid}), now_ns)
        more.watch[:0] = deltas.watch
        more.nodes |= deltas.nodes
        return self._reservation(record), more

    def hold(self, uid: str, now_ns: int) -> None:
        """Let a reservation last on: its Binding is being written, and may yet be accepted."""
        record = self._records.get(uid)
        if record is not None and record.assumed is not None:
            record.assumed = replace(record.assumed, expires_ns=now_ns + 2 * self._assume_ns)

    def confirm(self, uid: str, now_ns: int) -> Deltas:
        """Take that the API server accepted the Binding: the allocation is acknowledged, tell the
        node.

        It is held until the pod's own event takes over, or until the pod is deleted.
        """
        record = self._records.get(uid)
        if record is None or record.assumed is None:
            return Deltas()
        record.assumed = replace(record.assumed, confirmed=True)
        return self._settle(({record.assumed.node_name}, {uid}), now_ns)

    def abandon(self, uid: str, now_ns: int) -> Deltas:
        """Take that the Binding was refused: what was reserved is free.

        Not for a Binding whose outcome is unknown: read the pod first. What was confirmed stays: a
        second Binding of the same pod is refused because of the first.
        """
        record = self._records.get(uid)
        if record is None or record.assumed is None or record.assumed.confirmed:
            return Deltas()
        changed = self._drop_assumption(record)
        if record.gone and not record.node_name:
            # Deleted while its Binding was being written: no node will report its end.
            self._finish(record)
        return self._settle((changed, {uid}), now_ns)

    # Reading

    def resolve(
        self, container_uuid: str, node_name: str, identity: PodContainer | None
    ) -> Allocation:
        """Return the allocation of a container that `node_name`'s agent is about to start.

        The UUID is the key, the identity the proof; either may be missing, and they must agree.
        Raises NotYetError (wait and ask again), NotFoundError (deleted or ended; final),
        NoSliceError, NotBelievedError, WrongNodeError.
        """
        record, container_name = self._container(container_uuid, identity)
        pod = record.pod
        who = record.owner(container_name)
        if record.gone:
            raise NotFoundError(f"pod {pod} was deleted")
        if pod.terminal:
            raise NotFoundError(f"pod {pod} has ended")
        if not record.node_name:
            raise NotYetError(f"pod {pod} is not bound yet")
        if record.node_name != node_name:
            raise WrongNodeError(f"pod {pod} is on node {record.node_name}, not {node_name}")
        view = self._views[node_name]
        if not view.inventory.cards:
            raise NotYetError(f"the cards of node {node_name} are not known here yet")
        answer = view.answers.get((pod.uid, container_name))
        if isinstance(answer, Allocation):
            return answer
        if answer is not None:
            raise NotBelievedError(f"container {who} gets no slice: {answer}")
        waits = view.waiting.get((pod.uid, container_name))
        if waits is not None:
            raise NotYetError(f"container {who} waits: {waits}")
        if view.states.get(pod.uid) is AllocationState.ASSUMED:
            raise NotYetError(f"the Binding of pod {pod} is not confirmed yet")
        raise NoSliceError(
            f"container {who} has no slice: {self._why_none(record, container_name)}"
        )

    def snapshot(self, node_name: str) -> list[Allocation]:
        """Return everything that a node holds, in the order of the ids: the start of its stream."""
        view = self._views.get(node_name)
        return [view.allocations[key] for key in sorted(view.allocations)] if view else []

    def view(self, node_name: str) -> NodeView | None:
        """Return what one node holds and offers; it is replaced, never changed. None: not known."""
        return self._views.get(node_name)

    @property
    def node_names(self) -> list[str]:
        """The names of all nodes that are known, sorted."""
        return sorted(self._views)

    def record(self, uid: str) -> Record | None:
        """Return what is kept of a pod; only to be read."""
        return self._records.get(uid)

    @property
    def records(self) -> Iterable[Record]:
        """What is kept of all pods; only to be read, and not across an await."""
        return self._records.values()

    def node(self, name: str) -> KubeNode | None:
        """Return a Node as it was last seen; None: there is none."""
        inputs = self._nodes.get(name)
        return inputs.kube if inputs else None

    def pod_named(self, namespace: str, name: str) -> Record | None:
        """Return the pod of a name that lives, else one that still holds something. Slow."""
        found = [
            each
            for each in self._records.values()
            if (each.pod.namespace, each.pod.name) == (namespace, name)
        ]
        found.sort(key=lambda each: (each.gone, each.finished, each.pod.uid))
        return found[0] if found else None

    def state(self, uid: str) -> AllocationState | None:
        """Return how far a pod's life is; None: not known."""
        record = self._records.get(uid)
        if record is None:
            return None
        if record.finished:
            return AllocationState.RELEASED
        view = self._views.get(record.node_name)
        return view.states.get(uid, AllocationState.PENDING) if view else AllocationState.PENDING

    def reported(self, node_name: str) -> Report | None:
        """Return a node's last report to this process."""
        inputs = self._nodes.get(node_name)
        return inputs.report if inputs else None

    def unfinished(self, node_name: str) -> list[Record]:
        """Return the pods that are bound there and wait for another system's plugin."""
        inputs = self._nodes.get(node_name)
        records = (self._records[uid] for uid in inputs.uids) if inputs else ()
        return [each for each in records if each.unfinished and not each.gone]

    def undecided(self, node_name: str) -> list[Record]:
        """Return the pods that a joined scheduler bound there and that nothing gives cards.

        It chose none, or chose a group that no pod ties to a card, or is about to.
        """
        view = self._views.get(node_name)
        owners = view.inventory.cards.values() if view else ()
        joined = {each.owner for each in owners if each.joined}
        if view is None or not joined:
            return []
        records = (self._records[uid] for uid in self._nodes[node_name].uids)
        return [
            each
            for each in records
            if each.request is not None
            and each.request.dialect in joined
            and not each.decision_error
            and (each.decision is None or self.untied(each))
            and not each.pod.deleting
            and view.states.get(each.pod.uid) is AllocationState.BOUND
            and each.pod.node_name
            and not each.pod.terminal
        ]

    def untied(self, record: Record) -> str:
        """Return a group of a pod's own dialect that it names and no pod ties to a card; or empty.

        A pod that has not found its card yet ties its group as well.
        """
        decision = record.decision
        if decision is None or record.request is None:
            return ""
        if decision.dialect != record.request.dialect:
            return ""
        inputs = self._nodes.get(record.node_name)
        there = {
            group
            for uid in (inputs.uids if inputs else ())
            for group in self._records[uid].groups
            if not self._records[uid].gone
        }
        for part in {part for parts in decision.containers.values() for part in parts}:
            if part.named is not Named.GROUP or part.card in there:
                continue
            if not any(part.card in each.groups for each in self._records.values()):
                return part.card
        return ""

    def reported_ns(self, node_name: str) -> int | None:
        """Return when a node last reported to this process, on its clock; None: never."""
        inputs = self._nodes.get(node_name)
        return inputs.reported_ns if inputs and inputs.report else None

    # Pods

    def _take_pod(self, pod: Pod) -> tuple[set[str], set[str]]:
        """Remember a pod; return the names of the nodes to derive anew, and its uid."""
        uid = pod.uid
        if not uid:
            return set(), set()
        deleted_version, _ = self._deleted.get(uid, (0, 0))
        if uid in self._deleted and not 0 < deleted_version < pod.version:
            return set(), set()
        known = self._records.get(uid)
        if known is not None and pod.version and pod.version < known.pod.version:
            return set(), set()
        reading = self._dialects.read(pod)
        changed: set[str] = set()
        if known is not None:
            changed |= self._forget_ids(known)
            if known.node_name:
                changed.add(known.node_name)
                self._nodes[known.node_name].uids.discard(uid)
        record = Record(
            pod=_trimmed(pod),
            request=reading.request,
            request_error=reading.request_error,
            decision=reading.decision,
            decision_error=reading.decision_error,
            deciders=reading.deciders,
            groups=reading.groups,
            unfinished=reading.unfinished,
            isolation=intern(pod.annotations.get(ISOLATION, "")),
            # What the API server says of a bound pod replaces what we assumed of it.
            assumed=known.assumed if known and not pod.node_name and not pod.terminal else None,
            finished=known.finished and pod.terminal if known else False,
        )
        if pod.terminal:
            earlier = known.ended_version if known and known.pod.terminal else 0
            record.ended_version = earlier or pod.version
        self._deleted.pop(uid, None)
        self._remember(record)
        # A pod that ended before anybody sent it anywhere never held anything.
        if pod.terminal and not record.node_name:
            record.finished = True
        if record.node_name:
            self._inputs(record.node_name).uids.add(uid)
            changed.add(record.node_name)
        return changed | self._remember_ids(record), {uid}

    def _lose_pod(self, uid: str, version: int, now_ns: int) -> tuple[set[str], set[str]]:
        """Mark a pod as gone; return the names of the nodes to derive anew, and its uid."""
        record = self._records.get(uid)
        known_version, since_ns = self._deleted.get(uid, (version, now_ns))
        self._deleted[uid] = (max(known_version, version), since_ns)
        if record is None or record.gone:
            return set(), set()
        if version == 0:
            self._deleted[uid] = (record.pod.version, since_ns)
        node_name = record.node_name
        record.gone = True
        record.ended_version = record.ended_version or version
        self._restless.add(uid)
        if not node_name or record.finished or self._holds_nothing(record):
            self._drop(record)
        return {node_name} if node_name else set(), {uid}

    def _holds_nothing(self, record: Record) -> bool:
        """Return whether no container of the pod can have been given a slice."""
        # Never seen bound, a reserved pod's Binding may have been accepted.
        return record.assumed is None and record.decision is None and not record.decision_error

    def _finish(self, record: Record) -> None:
        """Release what a pod held, now that its end is certain."""
        record.finished = True
        if record.gone:
            self._drop(record)

    def _drop(self, record: Record) -> None:
        uid = record.pod.uid
        self._forget_ids(record)
        for name in {record.node_name, record.pod.node_name} - {""}:
            self._nodes[name].uids.discard(uid)
        del self._records[uid]

    def _remember(self, record: Record) -> None:
        names = set(record.request.containers) if record.request else set()
        for decision in (record.decision, record.assumed.decision if record.assumed else None):
            if decision is not None:
                names |= decision.containers.keys()
        ids: dict[str, str] = {}
        taken: set[str] = set()
        for each in record.pod.containers:
            if each.name in names or each.uuid or record.request_error:
                found = allocation_id(record.pod.uid, each)
                if found in taken:
                    found = allocation_id(record.pod.uid, Container(name=each.name))
                ids[each.name] = intern(found)
                taken.add(found)
        record.ids = ids
        self._records[record.pod.uid] = record
        if record.restless:
            self._restless.add(record.pod.uid)

    def _remember_ids(self, record: Record) -> set[str]:
        """Index a pod's ids; return the nodes of other pods that claim one of them as well."""
        touched = set()
        for each in record.ids.values():
            owners = self._owners.setdefault(each, {})
            owners[record.pod.uid] = record.pod
            touched |= self._nodes_of(owners, record.pod.uid)
        return touched

    def _forget_ids(self, record: Record) -> set[str]:
        touched = set()
        for each in record.ids.values():
            owners = self._owners.get(each, {})
            owners.pop(record.pod.uid, None)
            touched |= self._nodes_of(owners, record.pod.uid)
            if not owners:
                self._owners.pop(each, None)
        return touched

    def _nodes_of(self, uids: Iterable[str], but: str) -> set[str]:
        return {
            self._records[uid].node_name
            for uid in uids
            if uid != but and uid in self._records and self._records[uid].node_name
        }

    def _contested(self, allocation_id: str, pod: Pod) -> bool:
        owners = self._owners.get(allocation_id, {})
        mine = (pod.created_unix_ns, pod.uid)
        return any((each.created_unix_ns, each.uid) < mine for each in owners.values())

    def _drop_assumption(self, record: Record) -> set[str]:
        assumed, record.assumed = record.assumed, None
        if assumed is None or record.pod.node_name == assumed.node_name:
            return set()
        self._nodes[assumed.node_name].uids.discard(record.pod.uid)
        return {assumed.node_name}

    # Nodes

    def _inputs(self, name: str) -> _NodeInputs:
        inputs = self._nodes.get(name)
        if inputs is None:
            inputs = self._nodes[name] = _NodeInputs()
            self._objectless[name] = None
        return inputs

    def _take_node(self, node: KubeNode) -> set[str]:
        if not node.name:
            return set()
        inputs = self._inputs(node.name)
        known = inputs.kube
        if known is not None and node.version and node.version < known.version:
            return set()
        unchanged = known is not None and (known.labels, known.annotations, known.allocatable) == (
            node.labels,
            node.annotations,
            node.allocatable,
        )
        inputs.kube = node
        self._objectless.pop(node.name, None)
        if unchanged:
            return set()  # a heartbeat
        inputs.registrations, inputs.unreadable = registrations_of(node, self._dialects)
        return self._reclaim(node.name) | {node.name}

    def _reclaim(self, name: str) -> set[str]:
        """Index the cards that a node claims; return the other nodes that this concerns."""
        inputs = self._nodes[name]
        cards = [card for each in inputs.registrations for card in each.cards]
        if inputs.devices is not None:
            cards += inputs.devices.cards
        if inputs.report is not None:
            cards += inputs.report.node.cards
        claimed = frozenset(card.uuid for card in cards)
        touched: set[str] = set()
        for uuid in claimed ^ inputs.claimed:
            nodes = self._claimants.setdefault(uuid, set())
            touched |= nodes
            if uuid in claimed:
                nodes.add(name)
            else:
                nodes.discard(name)
                if not nodes:
                    del self._claimants[uuid]
        inputs.claimed = claimed
        return touched

    def _lose_node(self, name: str) -> set[str]:
        """Take that a Node is gone; return the nodes to derive anew."""
        inputs = self._nodes[name]
        inputs.kube, inputs.registrations, inputs.unreadable = None, [], []
        self._objectless.setdefault(name, None)
        return self._reclaim(name) | {name}

    def _heard_all(self, node_name: str) -> bool:
        """Return whether this process knows all that runs on a node."""
        return self._nodes[node_name].report is not None or self._without_agent(node_name)

    def _without_agent(self, node_name: str) -> bool:
        """Return whether a node exists, and nothing says that an agent of ours ever was there."""
        inputs = self._nodes.get(node_name)
        if inputs is None or inputs.kube is None or inputs.report is not None:
            return False
        return without_agent(inputs.kube)

    def _lost(self, node_name: str, now_ns: int) -> bool:
        inputs = self._nodes.get(node_name)
        if inputs is None:
            return False
        seen_ns = inputs.lease_seen_ns
        if seen_ns is None:
            # A node without a Lease is lost when it has no Node object either.
            since_ns = self._objectless.get(node_name)
            seen_ns = None if since_ns is None else max(since_ns, inputs.reported_ns)
        return seen_ns is not None and now_ns - seen_ns >= self._eviction_ns

    def _forget_nodes(self, deltas: Deltas, now_ns: int) -> None:
        """Drop everything about the nodes that are gone, once nothing shows a sign of life.

        While a pod is bound there, or ends there, the node is kept.
        """
        touched: set[str] = set()
        for name, since_ns in list(self._objectless.items()):
            if since_ns is None:
                self._objectless[name] = now_ns
                continue
            inputs = self._nodes[name]
            heard_ns = max(since_ns, inputs.lease_seen_ns or 0, inputs.reported_ns)
            if inputs.uids or inputs.devices is not None or now_ns - heard_ns < self._eviction_ns:
                continue
            inputs.registrations, inputs.report = [], None
            touched |= self._reclaim(name) - {name}
            view = self._views.pop(name, None)
            deltas.watch += [(name, each) for each in (view.allocations if view else ())]
            deltas.nodes.add(name)
            del self._nodes[name], self._objectless[name]
        more = self._settle((touched & self._nodes.keys(), set()), now_ns)
        deltas.watch += more.watch
        deltas.notices += more.notices
        deltas.evict += more.evict
        deltas.nodes |= more.nodes

    # Deriving

    def _settle(self, touched: tuple[set[str], set[str]], now_ns: int) -> Deltas:
        """Derive the views of the nodes named, and return what became different."""
        names, pods = touched
        deltas = Deltas(pods=pods)
        if self._loading is not None:
            self._loading |= names
            return deltas
        upserts: list[tuple[str, Change]] = []
        for name in sorted(names):
            old = self._views.get(name)
            new = self._derive(name)
            self._views[name] = new
            deltas.nodes.add(name)
            before = old.allocations if old else {}
            deltas.watch += [(name, each) for each in before if each not in new.allocations]
            upserts += [
                (name, each) for key, each in new.allocations.items() if before.get(key) != each
            ]
            noticed = old.notices if old else {}
            deltas.notices += [(name, each) for each in new.notices if each not in noticed]
            evicted = old.evict if old else {}
            deltas.evict += [each for uid, each in new.evict.items() if uid not in evicted]
        deltas.watch += upserts
        return deltas

    def _derive(self, name: str) -> NodeView:
        inputs = self._nodes[name]
        elsewhere = {
            uuid: min(self._claimants[uuid] - {name})
            for uuid in inputs.claimed
            if len(self._claimants[uuid]) > 1
        }
        report = inputs.report
        kube = inputs.kube or KubeNode(name=name)
        served = served_resources(kube, report.served_resources if report else None)
        registrations = [
            each
            for each in (*inputs.registrations, *([inputs.devices] if inputs.devices else []))
            if each.resource not in served
        ]
        unreadable = [*inputs.unreadable, *([inputs.devices_error] if inputs.devices_error else [])]
        inventory = inventory_of(
            kube,
            report.node.cards if report else None,
            registrations,
            unreadable,
            elsewhere,
            self._dialects,
        )
        return view_of(
            name,
            inventory,
            (self._records[uid] for uid in inputs.uids),
            _told(report) if report else [],
            _running(report) if report else frozenset(),
            self._contested,
            self._absent(inputs, kube, registrations, served),
            whole_cards(kube, report.whole_cards if report else None),
        )

    def _absent(
        self,
        inputs: _NodeInputs,
        kube: KubeNode,
        registrations: Iterable[Registration],
        served: Collection[str],
    ) -> frozenset[str]:
        """Return the dialects that are left out and whose systems do nothing on a node."""
        if inputs.unreadable or inputs.devices_error:
            return frozenset()  # whose that is cannot be told
        present = {each.dialect for each in registrations}
        if self._left_out and any(self._records[uid].groups for uid in inputs.uids):
            present |= self._dialects.grouping
        return frozenset(
            name
            for name in self._left_out - present
            if not at_work(self._dialects.get(name), kube, served)
        )

    # Resolving

    def _container(self, container_uuid: str, identity: PodContainer | None) -> tuple[Record, str]:
        """Return the record and the container's name, or raise."""
        uuid = container_uuid.lower()
        if identity is None:
            owners = self._owners.get(uuid, {})
            for pod in sorted(owners.values(), key=lambda each: (each.created_unix_ns, each.uid)):
                record = self._records[pod.uid]
                return record, next(name for name, each in record.ids.items() if each == uuid)
            raise NotYetError(f"no container with UUID {container_uuid} is known here yet")
        found = self._records.get(identity.uid)
        if found is None:
            if identity.uid in self._deleted:
                raise NotFoundError(f"pod {identity.namespace}/{identity.name} was deleted")
            if uuid and self._owners.get(uuid):
                raise NotBelievedError(
                    f"UUID {container_uuid} belongs to a container of another pod"
                )
            raise NotYetError(f"pod {identity.uid} is not known here yet")
        name = identity.container_name
        pod = found.pod
        if (identity.namespace or pod.namespace, identity.name or pod.name) != (
            pod.namespace,
            pod.name,
        ):
            raise NotBelievedError(
                f"pod {identity.uid} is {pod}, not {identity.namespace}/{identity.name}"
            )
        if uuid and found.ids.get(name, uuid) != uuid:
            raise NotBelievedError(f"container {identity} has another UUID than {container_uuid}")
        if uuid and name not in found.ids and self._owners.get(uuid):
            raise NotBelievedError(f"UUID {container_uuid} belongs to another container")
        return found, name

    def _why_none(self, record: Record, container_name: str) -> str:
        if record.request_error:
            return record.request_error
        if all(each.name != container_name for each in record.pod.containers):
            return "the pod's spec has no such container"
        if record.request is None or container_name not in record.request.containers:
            return "it asks for none"
        return "the pod was bound and nobody chose cards for it; use the scheduler that does"

    def _reservation(self, record: Record) -> Reservation:
        assumed = record.assumed
        assert assumed is not None
        assert record.request is not None
        cards = {
            uuid: owned.card
            for uuid, owned in self._views[assumed.node_name].inventory.cards.items()
        }
        allocations = {
            name: Allocation(
                allocation_id=record.ids[name],
                node_name=assumed.node_name,
                slices=tuple(_slice(each) for each in parts),
                pod=record.owner(name),
                epoch=assumed.decision.epoch,
                account_id=record.pod.uid if assumed.decision.pod_level else "",
                source_dialect=assumed.decision.dialect,
                whole_cards=record.request.containers[name].whole_cards,
                exclusive=name in assumed.decision.exclusive,
            )
            for name, parts in assumed.decision.containers.items()
        }
        return Reservation(
            node_name=assumed.node_name,
            allocations=allocations,
            annotations=self._dialects.annotations(
                record.pod, record.request.dialect, allocations, cards
            ),
        )


def _told(report: Report) -> list[Claim]:
    """Return the claims from which a container that runs can be held without its pod."""
    return [each for each in report.claims if each.state is ClaimState.RUNNING]


def _running(report: Report) -> frozenset[str]:
    return report.running | {
        each.allocation.allocation_id for each in report.claims if each.state is ClaimState.RUNNING
    }


def _trimmed(pod: Pod) -> Pod:
    """Return the pod without what is read once; 100,000 of them are kept."""
    return replace(
        pod,
        namespace=intern(pod.namespace),
        node_name=intern(pod.node_name),
        scheduler_name=intern(pod.scheduler_name),
        gang=intern(pod.gang),
        labels={},
        annotations={},
        containers=tuple(
            Container(name=intern(each.name), kind=each.kind, uuid=each.uuid)
            for each in pod.containers
        ),
    )


def _decision(
    request: PodRequest,
    placement: Placement,
    node_name: str,
    epoch: int,
    default: CardPolicy,
) -> Decision:
    """Return our own choice in the form in which it will come back from the API server."""
    return Decision(
        dialect=NATIVE,
        node_name=node_name,
        epoch=epoch,
        containers={
            name: tuple(
                StatedSlice(
                    card=part.card_uuid,
                    memory=MemoryAmount(bytes=part.memory_bytes),
                    cores_percent=part.cores_percent,
                    reserved_percent=part.reserved_percent,
                    cores_max_percent=part.cores_max_percent,
                    compute_mode=part.compute_mode,
                    priority=part.priority,
                    weight=part.weight,
                )
                for part in slices
            )
            for name, slices in placement.items()
        },
        pod_level=request.pod_level,
        exclusive=frozenset(
            name
            for name, each in request.containers.items()
            if policy_of(each, default) is CardPolicy.EXCLUSIVE
        ),
    )


def _slice(stated: StatedSlice) -> Slice:
    """Return the slice that our own choice states in full."""
    return slice_of(stated, Card(uuid=stated.card, memory_bytes=0, slots=0))
