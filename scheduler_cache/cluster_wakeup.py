# SPDX-License-Identifier: Apache-2.0
"""Lets kube-scheduler try the pods again that found no room, once a node has more of it.

kube-scheduler tries a pod again that an extender turned away when something happens in the API
server that may help, else only after five minutes. That an agent reports the end of a container, or
a card that works again, is no such event: so the leader makes one, by an annotation on the node.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.cluster_leader import Leader
from scheduler_cache.inventory import ROOM
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import MissingError
from scheduler_cache.node_view import NodeView
from scheduler_cache.record import AllocationState


class Wakeup:
    """Knows who was turned away, and sees when nodes get more room."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        leader: Leader,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Writes only while `leader` leads."""
        self._client = client
        self._cluster = cluster
        self._leader = leader
        self._now = now
        self._waiting: set[str] = set()
        self._views: dict[str, NodeView] = {}

    def turned_away(self, uid: str) -> None:
        """Take note of a pod that fits on no node now."""
        self._waiting.add(uid)

    def follow(self, deltas: Deltas) -> None:
        """Look at what changed, and plan to tell kube-scheduler where there is more room."""
        for uid in self._waiting & deltas.pods:
            if self._cluster.state(uid) is not AllocationState.PENDING:
                self._waiting.discard(uid)
        for name in deltas.nodes:
            before, now = self._views.get(name), self._cluster.view(name)
            if now is None:
                self._views.pop(name, None)
                continue
            self._views[name] = now
            if self._leader.leading and self._anybody_waits() and has_more_room(before, now):
                self._leader.upkeep.chores.plan(("wakeup", name), partial(self._tell, name))

    def _anybody_waits(self) -> bool:
        """Return whether a pod that was turned away waits yet; forget those that do not."""
        while self._waiting:
            uid = next(iter(self._waiting))
            if self._cluster.state(uid) is AllocationState.PENDING:
                return True
            # Deleted while kube-scheduler asked: no event will come by that says so.
            self._waiting.discard(uid)
        return False

    async def _tell(self, name: str) -> None:
        self._leader.check()
        stamp = self._now().isoformat(timespec="milliseconds")
        try:
            await self._client.patch(
                f"/api/v1/nodes/{name}", {"metadata": {"annotations": {ROOM: stamp}}}
            )
        except MissingError:
            return


def has_more_room(before: NodeView | None, now: NodeView) -> bool:
    """Return whether a card of a node takes something that it did not take before."""
    for uuid in now.inventory.cards:
        room = now.room(uuid)
        if now.refused(uuid) or not room.card.healthy:
            continue
        if before is None or uuid not in before.inventory.cards:
            return True
        old = before.room(uuid)
        if before.refused(uuid) or not old.card.healthy:
            return True
        if (
            room.free_bytes > old.free_bytes
            or room.free_cores_percent > old.free_cores_percent
            or room.card.slots - room.use.slices > old.card.slots - old.use.slices
            or len(room.use.exclusive_holders) < len(old.use.exclusive_holders)
        ):
            return True
    return False
