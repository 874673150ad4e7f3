# SPDX-License-Identifier: Apache-2.0
"""What only the holder of the Lease does: bind pods, describe nodes, evict, say what is wrong.

Each write is preceded by a look at the Lease. A process can be stopped between that look and the
write, so that the write comes late, under an old epoch: then the record of the higher epoch wins
on a card that both chose, the other is never resolved, and its pod is evicted by the new leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from scheduler_cache.cache import Report
from scheduler_cache.cluster import Cluster, Deltas, Reservation
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.dialects.native import INVENTORY, Native
from scheduler_cache.errors import NotLeaderError, NotYetError, SchedulerCacheError
from scheduler_cache.kube.client import Backoff, KubeClient
from scheduler_cache.kube.errors import ApiError, ConflictError, KubeError, MissingError
from scheduler_cache.kube.leader import Election
from scheduler_cache.model import PodContainer
from scheduler_cache.node_view import Notice

logger = logging.getLogger(__name__)

NODE_LABEL: Final = "vgpu.dev/node"
LEADER_LABEL: Final = "vgpu.dev/leader"
_COMPONENT: Final = "vgpu-scheduler-cache"

# Chores that wait: more than a cluster has nodes, small beside the process.
_CHORES: Final = 20_000


class BindingRefusedError(SchedulerCacheError):
    """The API server did not bind the pod; what was reserved for it is free again."""


class Leader:
    """The writer. Exists in every replica, and writes only while its election is won."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        feed: Feed,
        election: Election,
        metrics: Metrics,
        native: Native,
        *,
        namespace: str,
        pod_name: str = "",
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pod_name`: the pod of this process, to be labelled; empty: it runs in none."""
        self._client = client
        self._cluster = cluster
        self._feed = feed
        self._election = election
        self._metrics = metrics
        self._native = native
        self._own_pod = f"/api/v1/namespaces/{namespace}/pods/{pod_name}" if pod_name else ""
        self._namespace = namespace
        self._now_ns = now_ns
        self._fresh_epoch = 0
        self._writes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._chores: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(_CHORES)

    def check(self) -> int:
        """Return the epoch under which this replica may write now, or raise NotLeaderError."""
        epoch = self._election.check()
        if self._fresh_epoch != epoch:
            raise NotLeaderError(
                "this replica has just become the leader and is reading what was written before; "
                "retrying is safe"
            )
        return epoch

    async def reign(self, epoch: int) -> None:
        """Make sure of everything that was written before this Lease, then do the chores.

        Given to `Election.run`. The mark on our own pod is younger than the Lease; when its event
        comes by, so has everything before it. A process without a pod lists anew instead.
        """
        backoff = Backoff(0.1, 2.0)
        while self._fresh_epoch != epoch:
            try:
                await self._feed.wait_synced()
                await self._catch_up(epoch)
                self._fresh_epoch = epoch
            except KubeError as error:
                logger.warning("cannot begin to lead", extra={"reason": str(error)})
                await asyncio.sleep(backoff.pause())
        logger.info("writing", extra={"epoch": epoch})
        self._begin_chores()
        while True:
            chore = await self._chores.get()
            try:
                self.check()
                await chore()
            except NotLeaderError:
                continue
            except KubeError as error:
                logger.warning("a chore failed", extra={"reason": str(error)})

    async def bind(self, uid: str, node_name: str) -> Reservation:
        """Choose cards for a pod and write them with its Binding; its node is told at once.

        Raises NotLeaderError, what `Cluster.reserve` raises, BindingRefusedError when the API
        server says no, and KubeError when the outcome is not known: then the cards stay reserved
        until the pod's own event, or the reservation's end, settles it.
        """
        epoch = self.check()
        record = self._cluster.record(uid)
        if record is None:
            raise NotYetError(f"pod {uid} is not known here yet; retrying is safe")
        pod = record.pod
        reservation, deltas = self._cluster.reserve(uid, node_name, epoch, self._now_ns())
        self._feed.publish(deltas)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": uid,
                "annotations": dict(reservation.annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        self._begin_write()
        try:
            await self._client.create(f"{path}/binding", body)
        except (ConflictError, MissingError) as error:
            await self._settle_refusal(uid, path, reservation, error)
        except ApiError as error:
            if error.code >= 500 or error.code == 429:
                await self._settle_doubt(uid, path, reservation, error)
            else:
                self._abandon(uid, error)
        except KubeError as error:
            await self._settle_doubt(uid, path, reservation, error)
        else:
            self._confirm(uid, "accepted")
        finally:
            self._end_write()
        return reservation

    def reported(self, report: Report) -> None:
        """Plan what a node's report changes on its Node object: the inventory, and the label."""
        self._plan(partial(self._describe, report))

    def chores(self, deltas: Deltas) -> None:
        """Plan the Events and evictions that follow from changes."""
        if not self._election.leading:
            return
        for owner in deltas.evict:
            self._plan(partial(self._evict, owner))
        for node_name, notice in deltas.notices:
            self._plan(partial(self._tell, node_name, notice))

    async def drain(self, seconds: float) -> None:
        """Wait until the writes under way have ended."""
        self._fresh_epoch = 0
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("writes are still under way", extra={"writes": self._writes})

    async def unmark(self) -> None:
        """Take the leader's label off our own pod."""
        if self._own_pod:
            try:
                await self._client.patch(
                    self._own_pod, {"metadata": {"labels": {LEADER_LABEL: None}}}
                )
            except KubeError as error:
                logger.warning("cannot take the label off", extra={"reason": str(error)})

    # Becoming the leader

    async def _catch_up(self, epoch: int) -> None:
        if self._own_pod:
            await self._unmark_others()
            marked = await self._client.patch(
                self._own_pod,
                {
                    "metadata": {
                        "labels": {LEADER_LABEL: "true"},
                        "annotations": {"vgpu.dev/epoch": str(epoch)},
                    }
                },
            )
            await self._feed.pods.wait_version(marked["metadata"]["resourceVersion"])
        else:
            await self._feed.pods.relist()

    async def _unmark_others(self) -> None:
        """Take the label off a leader that died with it, so that writes find us alone."""
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        listed = await self._client.get(pods, {"labelSelector": f"{LEADER_LABEL}=true"})
        for item in listed.get("items", ()):
            path = f"{pods}/{item['metadata']['name']}"
            if path != self._own_pod:
                await self._client.patch(path, {"metadata": {"labels": {LEADER_LABEL: None}}})

    def _begin_chores(self) -> None:
        """Plan what an earlier leader may have left undone."""
        while not self._chores.empty():
            self._chores.get_nowait()
        for name in self._cluster.node_names:
            view = self._cluster.view(name)
            for owner in view.evict.values() if view else ():
                self._plan(partial(self._evict, owner))

    def _plan(self, chore: Callable[[], Awaitable[None]]) -> None:
        try:
            self._chores.put_nowait(chore)
        except asyncio.QueueFull:
            logger.warning("too many chores wait; one is dropped")

    # Binding

    async def _settle_refusal(
        self, uid: str, path: str, reservation: Reservation, error: ApiError
    ) -> None:
        """A conflict may be our own Binding, whose answer an earlier try lost."""
        if isinstance(error, MissingError):
            self._abandon(uid, error)
        elif await self._is_ours(uid, path, reservation):
            self._confirm(uid, "found")
        else:
            self._abandon(uid, error)

    async def _settle_doubt(
        self, uid: str, path: str, reservation: Reservation, error: KubeError
    ) -> None:
        """The Binding may or may not have been accepted: look at the pod."""
        backoff = Backoff(0.05, 1.0)
        while True:
            try:
                ours = await self._is_ours(uid, path, reservation)
                break
            except KubeError:
                if not self._election.leading:
                    self._metrics.bindings.labels("unknown").inc()
                    raise error from None
            await asyncio.sleep(backoff.pause())
        if ours:
            self._confirm(uid, "found")
        else:
            self._abandon(uid, error)

    async def _is_ours(self, uid: str, path: str, reservation: Reservation) -> bool:
        """Return whether the pod carries exactly what we wanted to write."""
        try:
            item = await self._client.get(path)
        except MissingError:
            return False
        annotations = item["metadata"].get("annotations", {})
        return (
            item["metadata"]["uid"] == uid
            and item["spec"].get("nodeName") == reservation.node_name
            and all(annotations.get(key) == text for key, text in reservation.annotations.items())
        )

    def _confirm(self, uid: str, outcome: str) -> None:
        self._metrics.bindings.labels(outcome).inc()
        self._feed.publish(self._cluster.confirm(uid, self._now_ns()))

    def _abandon(self, uid: str, error: KubeError) -> None:
        self._metrics.bindings.labels("refused").inc()
        self._feed.publish(self._cluster.abandon(uid, self._now_ns()))
        raise BindingRefusedError(f"the pod was not bound: {error}") from error

    def _begin_write(self) -> None:
        self._writes += 1
        self._idle.clear()

    def _end_write(self) -> None:
        self._writes -= 1
        if not self._writes:
            self._idle.set()

    # Chores

    async def _describe(self, report: Report) -> None:
        """Write a node's inventory and whether it is ready, where that is not yet so."""
        path = f"/api/v1/nodes/{report.node.name}"
        metadata = (await self._client.get(path))["metadata"]
        wanted = self._native.encode_inventory(report.node.cards)
        label = "true" if report.node.ready else None
        patch: dict[str, Any] = {}
        if metadata.get("annotations", {}).get(INVENTORY) != wanted[INVENTORY]:
            patch["annotations"] = wanted
        if metadata.get("labels", {}).get(NODE_LABEL) != label:
            patch["labels"] = {NODE_LABEL: label}
        if patch:
            self.check()
            await self._client.patch(path, {"metadata": patch})

    async def _evict(self, owner: PodContainer) -> None:
        """Evict a pod that lost its card; disruption budgets hold, and it is tried again."""
        path = f"/api/v1/namespaces/{owner.namespace}/pods/{owner.name}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": owner.name, "namespace": owner.namespace},
            "deleteOptions": {"preconditions": {"uid": owner.uid}},
        }
        logger.warning("evicting a pod that lost its card", extra={"pod": str(owner)})
        try:
            await self._client.create(path, body)
            self._metrics.evictions.inc()
        except (MissingError, ConflictError):
            pass  # gone already, or another pod by now
        except KubeError as error:
            seconds = max(5.0, getattr(error, "retry_after_seconds", 0.0))
            asyncio.get_running_loop().call_later(seconds, self._plan, partial(self._evict, owner))
            raise

    async def _tell(self, node_name: str, notice: Notice) -> None:
        """Make an Event of a notice."""
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        owner = notice.pod
        about = (
            {"kind": "Pod", "namespace": owner.namespace, "name": owner.name, "uid": owner.uid}
            if owner
            else {"kind": "Node", "name": node_name}
        )
        namespace = owner.namespace if owner else "default"
        await self._client.create(
            f"/api/v1/namespaces/{namespace}/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": "vgpu.", "namespace": namespace},
                "involvedObject": {"apiVersion": "v1", **about},
                "reason": notice.reason,
                "message": notice.message[:1000],
                "type": "Warning",
                "source": {"component": _COMPONENT},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            },
        )


def epoch_floor(cluster: Cluster) -> int:
    """Return the highest epoch that any allocation carries, in case the Lease was deleted."""
    return max(
        (
            allocation.epoch
            for name in cluster.node_names
            if (view := cluster.view(name)) is not None
            for allocation in view.allocations.values()
        ),
        default=0,
    )
