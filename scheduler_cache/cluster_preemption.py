# SPDX-License-Identifier: Apache-2.0
"""Evicts pods of lower priority for one that waits for nothing but slices.

kube-scheduler preempts by itself where a node lacks what it counts: CPU, memory, the number of
slices. Where everything is there but the slices, its own trial finds nobody to evict, and it never
asks `preempt` about that node. Those are exactly the nodes that it asks `filter` about: so a pod
that fits on none of them is helped here, on the one where least is lost. Disruption budgets hold:
an eviction that one forbids is not made, and the pods it protects are left out for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from scheduler_cache.cluster import Cluster
from scheduler_cache.cluster_leader import Leader
from scheduler_cache.errors import NotLeaderError
from scheduler_cache.extender.verbs import Extender, Relief
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import ApiError, ConflictError, KubeError, MissingError
from scheduler_cache.node_view import Notice

logger = logging.getLogger(__name__)

# kube-scheduler's own preemption, of the same attempt, has nominated the pod by then.
_PAUSE_SECONDS: Final = 1.0
# As kube-scheduler itself: a good set on some nodes rather than the best of all.
_NODES_SEARCHED: Final = 100
# Longer than most graceful ends and the agent's report; then the pod is considered anew.
_PROMISE_SECONDS: Final = 120.0
_SPARED_SECONDS: Final = 60.0


class Preemption:
    """Makes room for pods that `filter` turned away. The leader's alone."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        extender: Extender,
        leader: Leader,
        *,
        enabled: bool = True,
        pause_seconds: float = _PAUSE_SECONDS,
        promise_seconds: float = _PROMISE_SECONDS,
        spared_seconds: float = _SPARED_SECONDS,
    ) -> None:
        """Writes only while `leader` leads, and nothing where it is not enabled."""
        self._client = client
        self._cluster = cluster
        self._extender = extender
        self._leader = leader
        self._enabled = enabled
        self._pause_seconds = pause_seconds
        self._promise_seconds = promise_seconds
        self._spared_seconds = spared_seconds
        self._spared: set[str] = set()
        self._considered: set[str] = set()

    @property
    def _may(self) -> bool:
        return self._enabled and self._leader.leading

    @property
    def considered(self) -> int:
        """How many pods are about to be looked at."""
        return len(self._considered)

    def consider(self, uid: str, names: Sequence[str]) -> None:
        """Look, in a moment, whether evictions on one of the nodes help a pod that fits on none."""
        if not names or uid in self._considered or not self._may:
            return
        self._considered.add(uid)
        asyncio.get_running_loop().call_later(
            self._pause_seconds, self._plan, uid, tuple(names[:_NODES_SEARCHED])
        )

    def _plan(self, uid: str, names: Sequence[str]) -> None:
        self._considered.discard(uid)
        if self._may:
            self._leader.upkeep.chores.plan(("preempt", uid), partial(self._relieve, uid, names))

    async def _relieve(self, uid: str, names: Sequence[str]) -> None:
        best: Relief | None = None
        for name in names:
            found = self._extender.relief(uid, name, self._spared)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
            await asyncio.sleep(0)  # a search takes a millisecond, and others want answers
        # The cluster has gone on meanwhile.
        best = best and self._extender.relief(uid, best.node_name, self._spared)
        if best is None:
            return
        self._leader.check()
        self._extender.promise(uid, best.node_name)
        loop = asyncio.get_running_loop()
        loop.call_later(self._promise_seconds, self._extender.withdraw, uid)
        try:
            # None is evicted unless all may be.
            for dry_run in (True, False):
                for victim in sorted(best.victims):
                    await self._evict(victim, dry_run=dry_run)
        except (KubeError, NotLeaderError):
            self._extender.withdraw(uid)
            raise
        self._tell(uid, best)

    async def _evict(self, uid: str, *, dry_run: bool) -> None:
        record = self._cluster.record(uid)
        if record is None:
            return
        pod = record.pod
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        self._leader.check()
        try:
            await self._client.create(
                f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body
            )
        except (MissingError, ConflictError):
            return  # gone already, or another pod by now
        except ApiError:
            self._spared.add(uid)
            loop = asyncio.get_running_loop()
            loop.call_later(self._spared_seconds, self._spared.discard, uid)
            raise

    def _tell(self, uid: str, relief: Relief) -> None:
        waiting = self._cluster.record(uid)
        if waiting is None:
            return
        logger.info(
            "evicted for a pod of higher priority",
            extra={
                "pod": str(waiting.pod),
                "node": relief.node_name,
                "victims": sorted(relief.victims),
            },
        )
        for victim in relief.victims:
            record = self._cluster.record(victim)
            if record is not None:
                message = (
                    f"evicted for pod {waiting.pod} of priority {waiting.pod.priority}, which "
                    f"needs its slices on node {relief.node_name}"
                )
                notice = Notice("Preempted", message, record.owner(""))
                self._leader.upkeep.plan_event(relief.node_name, notice)
