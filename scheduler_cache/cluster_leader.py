# SPDX-License-Identifier: Apache-2.0
"""What only the holder of the Lease does: bind pods and, in `cluster_upkeep`, all the rest.

Each write is preceded by a look at the Lease. A process can be stopped between that look and the
write, so that the write comes late, under an old epoch: then the record of the higher epoch wins
on a card that both chose, the other is never resolved, and its pod is evicted by the new leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from scheduler_cache.cluster import Cluster, Reservation
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.cluster_upkeep import Upkeep
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.errors import NotLeaderError, NotYetError, SchedulerCacheError
from scheduler_cache.kube.client import Backoff, KubeClient
from scheduler_cache.kube.errors import ApiError, KubeError, MissingError
from scheduler_cache.kube.leader import Election
from scheduler_cache.pod import Pod

logger = logging.getLogger(__name__)

LEADER_LABEL: Final = "vgpu.dev/leader"


class BindingRefusedError(SchedulerCacheError):
    """The API server did not bind the pod; what was reserved for it is free again."""


@dataclass(frozen=True, slots=True)
class _Binding:
    """A Binding that is being written."""

    reservation: Reservation
    writing: asyncio.Future[None]


class Leader:
    """The writer. Exists in every replica, and writes only while its election is won."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        feed: Feed,
        election: Election,
        metrics: Metrics,
        dialects: Dialects,
        *,
        namespace: str,
        pod_name: str = "",
        undecided_seconds: float = 60.0,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pod_name`: the pod of this process, to be labelled; empty: it runs in none."""
        self._client = client
        self._cluster = cluster
        self._feed = feed
        self._election = election
        self._metrics = metrics
        self._own_pod = f"/api/v1/namespaces/{namespace}/pods/{pod_name}" if pod_name else ""
        self._namespace = namespace
        self._now_ns = now_ns
        self._fresh_epoch = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._bindings: dict[str, _Binding] = {}
        """Those under way, by pod uid."""
        self.upkeep = Upkeep(
            client,
            cluster,
            dialects,
            metrics,
            self.check,
            lambda: election.leading,
            undecided_seconds=undecided_seconds,
            now_ns=now_ns,
        )

    @property
    def leading(self) -> bool:
        """Whether this replica holds the Lease, as far as it knows."""
        return self._election.leading

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
                # No report is taken before this reign has begun, so that all there are now are of
                # an earlier one, and another leader may have heard later ones in between.
                await self._feed.forget_reports()
                self._fresh_epoch = epoch
            except KubeError as error:
                logger.warning("cannot begin to lead", extra={"reason": str(error)})
                await asyncio.sleep(backoff.pause())
        logger.info("writing", extra={"epoch": epoch})
        await self.upkeep.reign()

    async def bind(self, uid: str, node_name: str) -> Reservation:
        """Choose cards for a pod and write them with its Binding; its node is told at once.

        Raises NotLeaderError, what `Cluster.reserve` raises, BindingRefusedError when the API
        server says no, and KubeError when the outcome is not known: then the cards stay reserved
        until the pod's own event, or the reservation's end, settles it.

        A call for a pod whose Binding to the same node is under way shares its outcome. A caller
        that gives up does not undo what it began.
        """
        epoch = self.check()
        under_way = self._bindings.get(uid)
        if under_way is None:
            under_way = self._begin_binding(uid, node_name, epoch)
        elif under_way.reservation.node_name != node_name:
            raise BindingRefusedError(
                f"a Binding of this pod to node {under_way.reservation.node_name} is under way; "
                "retrying is safe"
            )
        await asyncio.shield(under_way.writing)
        return under_way.reservation

    async def bind_without_cards(self, pod: Pod, node_name: str) -> None:
        """Bind a pod that asks for no card, for a scheduler that leaves all its Bindings to us.

        Raises NotLeaderError, and BindingRefusedError when it is not known to be bound.
        """
        self.check()
        try:
            await self._client.create(f"{_path(pod)}/binding", _binding(pod, node_name, {}))
        except KubeError as error:
            raise BindingRefusedError(f"the pod was not bound: {error}") from error

    def _begin_binding(self, uid: str, node_name: str, epoch: int) -> _Binding:
        """Reserve cards and start to write; nothing is awaited before both are known here."""
        record = self._cluster.record(uid)
        if record is None:
            raise NotYetError(f"pod {uid} is not known here yet; retrying is safe")
        reservation, deltas = self._cluster.reserve(uid, node_name, epoch, self._now_ns())
        self._feed.publish(deltas)
        writing = asyncio.ensure_future(self._write_binding(record.pod, reservation))
        binding = self._bindings[uid] = _Binding(reservation, writing)
        self._idle.clear()
        writing.add_done_callback(partial(self._end_binding, uid))
        return binding

    def _end_binding(self, uid: str, writing: asyncio.Future[None]) -> None:
        del self._bindings[uid]
        if not self._bindings:
            self._idle.set()
        if not writing.cancelled():
            writing.exception()  # its callers have it, if they still wait

    async def _write_binding(self, pod: Pod, reservation: Reservation) -> None:
        """Write a Binding and settle what became of it."""
        uid = pod.uid
        path = _path(pod)
        body = _binding(pod, reservation.node_name, reservation.annotations)
        # Longer than a request may take: to lapse meanwhile would give the cards away twice.
        self._cluster.hold(uid, self._now_ns())
        try:
            await self._client.create(f"{path}/binding", body)
        except MissingError as error:
            self._abandon(uid, error)
        except ApiError as error:
            # A conflict may be our own Binding, whose answer an earlier try lost.
            if error.code >= 500 or error.code in (409, 429):
                await self._settle_doubt(uid, path, reservation, error)
            else:
                self._abandon(uid, error)
        except KubeError as error:
            await self._settle_doubt(uid, path, reservation, error)
        else:
            self._confirm(uid, "accepted")

    async def drain(self, seconds: float) -> None:
        """Wait until the writes under way have ended."""
        self._fresh_epoch = 0
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("writes are still under way", extra={"writes": len(self._bindings)})

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

    # Binding

    async def _settle_doubt(
        self, uid: str, path: str, reservation: Reservation, error: KubeError
    ) -> None:
        """The Binding may or may not have been accepted: look at the pod."""
        backoff = Backoff(0.05, 1.0)
        while True:
            self._cluster.hold(uid, self._now_ns())
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


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def _binding(pod: Pod, node_name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
    }


def epoch_floor(cluster: Cluster) -> int:
    """Return the highest epoch that we wrote into any allocation, in case the Lease was deleted.

    Only what carries our MAC counts: what a node says of its containers could use up all epochs.
    """
    return max(
        (
            decision.epoch
            for record in cluster.records
            for decision in (record.decision, record.assumed and record.assumed.decision)
            if decision and not decision.doubt
        ),
        default=0,
    )
