# SPDX-License-Identifier: Apache-2.0
"""The room that is kept for pods for which preemption makes it. Pure.

While its victims end, a pod is *nominated* for a node (`status.nominatedNodeName`). Until it is
bound, pods of lower or equal priority get only what it leaves, as kube-scheduler has it for CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scheduler_cache.cluster import Cluster
from scheduler_cache.errors import NoRoomError
from scheduler_cache.extender.node_fit import NodeFit
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.what_if import at_worst, with_pod, without
from scheduler_cache.model import CardPolicy
from scheduler_cache.node_view import NodeView
from scheduler_cache.pod import Pod
from scheduler_cache.record import Record

# Nodes with room kept, for one set of pods each, before they are all made anew.
_MOST_KEPT = 4096


class Nominations:
    """Follows which pods are nominated where."""

    def __init__(self, cluster: Cluster, default: CardPolicy) -> None:
        self._cluster = cluster
        self._default = default
        self._nodes: dict[str, dict[str, Record]] = {}
        self._node_of: dict[str, str] = {}
        self._kept = NodeFit(default)
        self._made_of: dict[str, NodeView] = {}
        self._promised: dict[str, str] = {}

    def promise(self, uid: str, node_name: str) -> None:
        """Keep room on a node for a pod for which we evict others there. `withdraw` ends it."""
        self._promised[uid] = node_name
        self.follow(uid)

    def withdraw(self, uid: str) -> None:
        """Keep no room any more than the API server says."""
        if self._promised.pop(uid, ""):
            self.follow(uid)

    def promised(self, uid: str) -> bool:
        """Return whether room is made for a pod already, by us or by kube-scheduler."""
        return uid in self._node_of

    def follow(self, uid: str) -> None:
        """Look at a pod anew."""
        name = self._node_of.pop(uid, "")
        if name:
            self._nodes[name].pop(uid)
            if not self._nodes[name]:
                del self._nodes[name]
        record = self._cluster.record(uid)
        if (
            record is None
            or record.gone
            or record.pod.terminal
            or record.pod.deleting
            or record.request is None
            # What is bound, or about to be, holds its slices itself.
            or record.node_name
        ):
            self._promised.pop(uid, None)
            return
        name = record.pod.nominated_node_name or self._promised.get(uid, "")
        if name:
            self._nodes.setdefault(name, {})[uid] = record
            self._node_of[uid] = name

    def taken(self, pod: Pod, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        """Return those of the nodes, on which the pod fits now, where it would take what is kept
        for others; with the reason.
        """
        if not self._nodes:
            return {}
        keys: dict[str, str] = {}
        for name in self._nodes.keys() & set(names):
            first = list(self._before(pod, name))
            view = self._cluster.view(name)
            if first and view is not None:
                keys[self._key(name, view, first)] = name
        words = self._kept.why_not(shape, list(keys))
        return {
            keys[key]: f"{text}, besides what is kept for nominated pods"
            for key, text in words.items()
        }

    def later(self, pod: Pod, name: str) -> NodeView | None:
        """Return a node as it will be when all that are nominated there before the pod have come,
        and what ends for them has gone. None: not known.
        """
        view = self._cluster.view(name)
        if view is None:
            return None
        first = list(self._before(pod, name))
        return self._with(view, first) if first else view

    def _before(self, pod: Pod, name: str) -> Iterator[Record]:
        """Yield whose room is kept from the pod on a node."""
        nominated = self._nodes.get(name, {})
        for uid, record in nominated.items():
            if uid == pod.uid or record.pod.priority < pod.priority:
                continue
            # Two of equal priority on one node must not wait for each other.
            if (
                pod.uid in nominated
                and record.pod.priority == pod.priority
                and _age(record.pod) > _age(pod)
            ):
                continue
            yield record

    def _key(self, name: str, view: NodeView, first: Sequence[Record]) -> str:
        """Return the name under which the node, with room kept for `first`, is known to the fit."""
        key = "/".join([name, *sorted(record.pod.uid for record in first)])
        if self._made_of.get(key) is not view:
            if len(self._made_of) >= _MOST_KEPT:
                self._kept, self._made_of = NodeFit(self._default), {}
            kept = at_worst(view, self._with(view, first))
            self._kept.update(replace(kept, name=key))
            self._made_of[key] = view
        return key

    def _with(self, view: NodeView, first: Sequence[Record]) -> NodeView:
        ordered = sorted(first, key=lambda each: (-each.pod.priority, _age(each.pod)))
        later = without(view, self._ending_for(view, ordered[-1].pod.priority))
        for record in ordered:
            assert record.request is not None
            try:
                later = with_pod(later, record.pod, record.request, self._default)
            except NoRoomError:
                why = f"it is kept for pod {record.pod}, which waits for more room there"
                return replace(later, refusal=later.refusal or why)
        return later

    def _ending_for(self, view: NodeView, priority: int) -> set[str]:
        """Return the pods that are being deleted and come after a priority."""
        uids = {hold.pod_uid for holds in view.holds.values() for hold in holds if hold.pod_uid}
        return {
            uid
            for uid in uids
            if (record := self._cluster.record(uid)) is not None
            and record.pod.deleting
            and record.pod.priority < priority
        }


def _age(pod: Pod) -> tuple[int, str]:
    return pod.created_unix_ns, pod.uid
