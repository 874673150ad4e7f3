# SPDX-License-Identifier: Apache-2.0
"""What the leader keeps true on Nodes and Pods beside the bindings.

On a node: the inventory, the label that lets pods come, and, where another system's scheduler
decides (join), what its own plugin would write. On a pod: whether it is isolated, the plugin's half
of another scheduler's handshake, and its eviction when it lost a card. Everything follows from what
the cluster knows when the write is made; a write that is no longer needed is not made.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from scheduler_cache.cache import Report
from scheduler_cache.chores import Chores
from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.dialects.native import INVENTORY, ISOLATION
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.inventory import NODE_LABEL, SERVED, WHOLE_CARDS, whole_cards_text
from scheduler_cache.isolation import (
    Isolation,
    IsolationState,
    annotated,
    by_pod,
    worth_telling,
)
from scheduler_cache.joining import joined_dialect, liveness_patch, registration_patch
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import ApiError, ConflictError, MissingError
from scheduler_cache.model import PodContainer
from scheduler_cache.node_view import Notice
from scheduler_cache.pod import KubeNode, kube_node_of, pod_of
from scheduler_cache.record import Record

logger = logging.getLogger(__name__)

_COMPONENT: Final = "vgpu-scheduler-cache"

_SECOND: Final = 10**9
_LOOK_SECONDS: Final = 10.0
# An agent reports every ten seconds. One that is silent for so long starts no container either.
_SILENCE_SECONDS: Final = 90.0
# How long a node may stay locked for no pod that is on its way: a scheduler locks before it binds.
_LOCK_SECONDS: Final = 30.0
# A joined scheduler that was just started binds without a decision until the Node changes.
_TOUCH_SECONDS: Final = 60.0
_TOUCHED: Final = "vgpu.dev/touched"
"""An annotation of a Node: when the leader changed it, so that its scheduler looks at it anew."""
_MESSAGE_CHARACTERS: Final = 1000


class Upkeep:
    """Plans the leader's chores. Nothing is planned or written while this replica does not lead."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        dialects: Dialects,
        metrics: Metrics,
        check: Callable[[], int],
        leading: Callable[[], bool],
        *,
        undecided_seconds: float = 60.0,
        now_ns: Callable[[], int] = time.monotonic_ns,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        chores: Chores | None = None,
    ) -> None:
        """`check` raises NotLeaderError; it is called right before each write.

        `undecided_seconds`: how long a pod may be bound without a decision; 0: for ever.
        """
        self._undecided_seconds = undecided_seconds
        self._client = client
        self._cluster = cluster
        self._dialects = dialects
        self._metrics = metrics
        self._check = check
        self._leading = leading
        self._now_ns = now_ns
        self._now = now
        self.chores = chores or Chores()
        metrics.watch_chores(lambda: len(self.chores), lambda: self.chores.failures)
        self._began_ns = 0
        self._isolation: dict[str, tuple[Isolation, ...]] = {}
        """What each node told last, so that the same again costs nothing."""
        self._locks: dict[str, tuple[str, int]] = {}
        """By node: a lock's text, and since when it has been there for no pod on its way."""
        self._touched: dict[str, int] = {}
        """By node: when it was last touched."""
        self._undecided: dict[tuple[str, bool, str], int | None] = {}
        """By pod uid, whether it may be evicted, and the group that is gone (empty: nothing was
        decided): since when it is bound so; None: that has been dealt with."""

    async def reign(self) -> None:
        """Do the chores until cancelled, beginning with what an earlier leader left undone."""
        self.chores.clear()
        self._began_ns = self._now_ns()
        self._isolation.clear()
        self._locks.clear()
        self._touched.clear()
        self._undecided.clear()
        for name in self._cluster.node_names:
            view = self._cluster.view(name)
            for owner in view.evict.values() if view else ():
                self._plan_eviction(owner)
            self._plan_completions(name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.chores.run())
            tasks.create_task(self._look_around())

    def reported(self, report: Report) -> None:
        """Plan what follows from a node's report."""
        name = report.node.name
        self._plan_node(name)
        if self._isolation.get(name, ()) == report.isolation:
            return
        self._isolation[name] = report.isolation
        for uid, told in by_pod(report.isolation).items():
            # A node speaks for its own pods alone, and takes nobody else's place in the queue.
            if self._is_on(uid, name):
                self.chores.plan(("isolation", uid), partial(self._annotate, uid, name, told))

    def changed(self, deltas: Deltas) -> None:
        """Plan what follows from a change of the cluster."""
        if not self._leading():
            return
        for owner in deltas.evict:
            self._plan_eviction(owner)
        for node_name, notice in deltas.notices:
            self.plan_event(node_name, notice)
        for name in deltas.nodes:
            # The pod's event may have come before that of the node's label.
            self._plan_completions(name)
            if self._cluster.view(name) is None:
                self._isolation.pop(name, None)
                self._locks.pop(name, None)
                self._touched.pop(name, None)

    def look(self) -> None:
        """Plan what follows from the time that has passed."""
        undecided: dict[tuple[str, bool, str], int | None] = {}
        for name in self._cluster.node_names:
            for record in self._undecided_on(name):
                key = record.pod.uid, _may_go(record), self._cluster.untied(record)
                undecided[key] = self._undecided.get(key, self._now_ns())
                if key not in self._undecided:
                    self._touched.pop(name, None)
            node = self._cluster.node(name)
            if node is None:
                continue
            self._keep_touched(node)
            if node.labels.get(NODE_LABEL) and self._silent(name):
                self._plan_node(name)
            if liveness_patch(node, self._dialects, self._now()):
                self.chores.plan(("liveness", name), partial(self._answer, name))
            self._watch_lock(node)
        self._undecided = undecided
        if not self._undecided_seconds:
            return
        latest_ns = self._now_ns() - int(self._undecided_seconds * _SECOND)
        for key, since_ns in undecided.items():
            if since_ns is not None and since_ns <= latest_ns:
                undecided[key] = None
                self.chores.plan(("undecided", key[0]), partial(self._end_undecided, key[0]))

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    # Nodes

    def _plan_node(self, name: str) -> None:
        if self._node_patch(name):
            self.chores.plan(("node", name), partial(self._describe, name))

    async def _describe(self, name: str) -> None:
        """Write what is not yet so on a Node."""
        if patch := self._node_patch(name):
            await self._patch_node(name, patch)

    def _node_patch(self, name: str) -> dict[str, Any]:
        """Return what a Node lacks of its cards' inventory, its label and its registrations."""
        node, report = self._cluster.node(name), self._cluster.reported(name)
        if node is None:
            return {}
        annotations: dict[str, str | None] = {}
        ready = node.labels.get(NODE_LABEL)
        if report is not None:
            ready = "true" if report.node.ready else None
            inventory = self._dialects.native.encode_inventory(report.node.cards)
            if node.annotations.get(INVENTORY) != inventory[INVENTORY]:
                annotations.update(inventory)
            served = ",".join(sorted(report.served_resources)) or None
            if node.annotations.get(SERVED) != served:
                annotations[SERVED] = served
            if report.whole_cards is not None:
                whole = whole_cards_text(report.whole_cards)
                if node.annotations.get(WHOLE_CARDS) != whole:
                    annotations[WHOLE_CARDS] = whole
            annotations.update(registration_patch(node, report.node.cards, self._dialects))
        if self._silent(name):
            ready = None
        patch: dict[str, Any] = {}
        if annotations:
            patch["annotations"] = annotations
        if node.labels.get(NODE_LABEL) != ready:
            patch["labels"] = {NODE_LABEL: ready}
        return patch

    def _silent(self, name: str) -> bool:
        """Return whether the node's agent has had time enough to report to us, and did not."""
        heard_ns = max(self._cluster.reported_ns(name) or 0, self._began_ns)
        return self._now_ns() - heard_ns >= _SILENCE_SECONDS * _SECOND

    async def _answer(self, name: str) -> None:
        node = self._cluster.node(name)
        if node is not None and (patch := liveness_patch(node, self._dialects, self._now())):
            await self._patch_node(name, {"annotations": patch})

    def _watch_lock(self, node: KubeNode) -> None:
        """Open a lock that no pod on its way explains: its pod was deleted, or never bound."""
        joined = joined_dialect(node, self._dialects)
        lock = node.annotations.get(joined.lock) if joined and joined.lock else None
        if lock is None or self._cluster.unfinished(node.name):
            self._locks.pop(node.name, None)
            return
        known, since_ns = self._locks.get(node.name, ("", 0))
        if known != lock:
            self._locks[node.name] = (lock, self._now_ns())
        elif self._now_ns() - since_ns >= _LOCK_SECONDS * _SECOND:
            self.chores.plan(("lock", node.name), partial(self._unlock, node.name, lock))

    async def _unlock(self, name: str, lock: str) -> None:
        path = f"/api/v1/nodes/{name}"
        item = await self._client.get(path)
        node = kube_node_of(item)
        joined = joined_dialect(node, self._dialects)
        if joined and node.annotations.get(joined.lock) == lock:
            logger.warning("opening a lock that no pod holds", extra={"node": name, "lock": lock})
            await self._patch_node(name, {"annotations": {joined.lock: None}}, item)

    def _keep_touched(self, node: KubeNode) -> None:
        """Let a scheduler look at a node again that may have missed its cards."""
        joined = joined_dialect(node, self._dialects)
        if joined is None or not joined.woken_by_nodes:
            return
        since_ns = self._touched.get(node.name)
        if since_ns is None or self._now_ns() - since_ns >= _TOUCH_SECONDS * _SECOND:
            self._touched[node.name] = self._now_ns()
            self.chores.plan(("touch", node.name), partial(self._touch, node.name))

    async def _touch(self, name: str) -> None:
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        await self._patch_node(name, {"annotations": {_TOUCHED: stamp}})

    async def _patch_node(
        self, name: str, metadata: dict[str, Any], seen: dict[str, Any] | None = None
    ) -> None:
        """Patch a Node; with `seen`, only if it has not changed since."""
        if seen is not None:
            metadata = {**metadata, "resourceVersion": seen["metadata"]["resourceVersion"]}
        self._check()
        try:
            await self._client.patch(f"/api/v1/nodes/{name}", {"metadata": metadata})
        except MissingError:
            return  # and so is what was to be said about it

    # Pods

    def _plan_completions(self, node_name: str) -> None:
        """Plan a plugin's half of the handshakes to which the kubelet has said yes or no."""
        records = self._cluster.unfinished(node_name)
        node = self._cluster.node(node_name) if records else None
        joined = joined_dialect(node, self._dialects) if node else None
        for record in records if joined else ():
            pod = record.pod
            if joined and joined.name == record.unfinished and (pod.admitted or pod.terminal):
                self.chores.plan(("handshake", pod.uid), partial(self._complete, pod.uid))

    async def _complete(self, uid: str) -> None:
        """Open the lock, then end the handshake: whatever fails in between is tried again."""
        record = self._cluster.record(uid)
        if record is None or not record.unfinished:
            return
        dialect = self._dialects.get(record.unfinished)
        path = f"/api/v1/namespaces/{record.pod.namespace}/pods/{record.pod.name}"
        try:
            item = await self._client.get(path)
            node = await self._client.get(f"/api/v1/nodes/{record.pod.node_name}")
        except MissingError:
            return  # the lock that it may have left is opened by `look`
        pod = pod_of(item)
        if pod.uid != uid or not dialect.unfinished(pod):
            return
        if unlock := dialect.encode_unlock(kube_node_of(node), pod):
            await self._patch_node(pod.node_name, {"annotations": unlock}, node)
        done = dialect.encode_completion(pod, admitted=pod.admitted)
        await self._patch_pod(path, item, done)

    def _is_on(self, uid: str, node_name: str) -> bool:
        record = self._cluster.record(uid)
        return record is not None and not record.gone and record.node_name == node_name

    async def _annotate(self, uid: str, node_name: str, told: list[Isolation]) -> None:
        """Say on a pod, and by Events, what its node told of its containers."""
        record = self._cluster.record(uid)
        if record is None or not self._is_on(uid, node_name):
            return
        known = {each.name for each in record.pod.containers}
        told = [each for each in told if each.pod.container_name in known]
        text = annotated(record.isolation, told)
        if not told or text == record.isolation:
            return
        path = f"/api/v1/namespaces/{record.pod.namespace}/pods/{record.pod.name}"
        for each in worth_telling(record.isolation, told):
            refused = each.state is IsolationState.REFUSED
            self.plan_event(
                node_name,
                Notice(
                    "IsolationRefused" if refused else "IsolationWeak",
                    f"container {each.pod.container_name} "
                    f"{'was not started' if refused else 'runs less isolated'}: {each.reason}",
                    record.owner(each.pod.container_name),
                ),
            )
        # The uid makes it a conflict when another pod has that name by now.
        await self._patch_pod(path, {"metadata": {"uid": uid}}, {ISOLATION: text})

    async def _patch_pod(self, path: str, seen: dict[str, Any], annotations: object) -> None:
        """Annotate a pod, if it is still the one that was seen."""
        known = {
            name: seen["metadata"][name]
            for name in ("uid", "resourceVersion")
            if name in seen["metadata"]
        }
        self._check()
        try:
            await self._client.patch(path, {"metadata": {**known, "annotations": annotations}})
        except MissingError:
            return
        except ConflictError:
            if "resourceVersion" in known:
                raise

    def _plan_eviction(self, owner: PodContainer) -> None:
        self.chores.plan(("evict", owner.uid), partial(self._evict, owner))

    async def _evict(self, owner: PodContainer) -> None:
        """Evict a pod that lost its card; disruption budgets hold, and it is tried again."""
        record = self._cluster.record(owner.uid)
        view = self._cluster.view(record.node_name) if record and not record.gone else None
        if view is None or owner.uid not in view.evict:
            return
        logger.warning("evicting a pod that lost its card", extra={"pod": str(owner)})
        await self._post_eviction(owner)

    def _undecided_on(self, node_name: str) -> list[Record]:
        """Return the pods that nothing gives cards on a node whose plugin we stand for."""
        node = self._cluster.node(node_name)
        dialect = joined_dialect(node, self._dialects) if node else None
        return [
            each
            for each in self._cluster.undecided(node_name)
            if dialect and each.request and each.request.dialect == dialect.name
        ]

    async def _end_undecided(self, uid: str) -> None:
        """Evict a pod that nothing gives cards, or say why it stays."""
        record = self._cluster.record(uid)
        if record is None or record not in self._undecided_on(record.node_name):
            return
        pod, owner = record.pod, record.owner("")
        dialect = record.request.dialect if record.request else ""
        if _may_go(record):
            what = "it is evicted, so that its controller makes another"
        elif pod.runs:
            what = "it is not evicted, since a container of it runs; delete it"
        else:
            what = "it is not evicted, since no controller makes another; create it again"
        reason, why = "NoDecision", f"{dialect}'s scheduler chose no cards for it"
        if group := self._cluster.untied(record):
            reason = "NoReservation"
            why = f"{dialect}'s reservation of its group {group} is gone, and its card with it"
        message = f"pod {pod} was bound and {why}: {what}"
        self.plan_event(record.node_name, Notice(reason, message, owner))
        if _may_go(record):
            logger.warning("evicting a pod that nothing gives cards", extra={"pod": str(owner)})
            await self._post_eviction(owner)

    async def _post_eviction(self, owner: PodContainer) -> None:
        path = f"/api/v1/namespaces/{owner.namespace}/pods/{owner.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": owner.name, "namespace": owner.namespace},
            "deleteOptions": {"preconditions": {"uid": owner.uid}},
        }
        self._check()
        try:
            await self._client.create(path, body)
            self._metrics.evictions.inc()
        except (MissingError, ConflictError):
            pass  # gone already, or another pod by now

    # Events

    def plan_event(self, node_name: str, notice: Notice) -> None:
        """Plan to say something of a pod, or of a node where the notice names none."""
        about = notice.pod.uid if notice.pod else node_name
        name = notice.pod.container_name if notice.pod else ""
        key = ("event", about, name, notice.reason)
        self.chores.plan(key, partial(self._tell, node_name, notice))

    async def _tell(self, node_name: str, notice: Notice) -> None:
        """Make an Event of a notice; the same one again is counted, as kubectl shows it."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        owner = notice.pod
        about = (
            {"kind": "Pod", "namespace": owner.namespace, "name": owner.name, "uid": owner.uid}
            if owner
            else {"kind": "Node", "name": node_name}
        )
        namespace = owner.namespace if owner else "default"
        message = notice.message[:_MESSAGE_CHARACTERS]
        subject = owner.uid if owner else node_name
        text = "\0".join((subject, notice.reason, message))
        name = f"vgpu.{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:32]}"
        events = f"/api/v1/namespaces/{namespace}/events"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **about},
            "reason": notice.reason,
            "message": message,
            "type": "Warning",
            "source": {"component": _COMPONENT},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        self._check()
        try:
            await self._client.create(events, event)
        except ConflictError:
            known = await self._client.get(f"{events}/{name}")
            again = {"lastTimestamp": stamp, "count": int(known.get("count") or 1) + 1}
            await self._client.patch(f"{events}/{name}", again)
        except ApiError as error:
            # A namespace that is being deleted takes none, for ever.
            if error.code not in (403, 404, 422):
                raise
            logger.warning("an Event was refused", extra={"reason": str(error)})


def _may_go(record: Record) -> bool:
    """Return whether to evict a pod costs nobody anything."""
    return record.pod.controlled and not record.pod.runs
