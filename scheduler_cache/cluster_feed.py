# SPDX-License-Identifier: Apache-2.0
"""Brings what the API server says into the cluster's state, and what follows from it to whoever
waits: the streams of agents, the calls that wait for a pod, the leader's chores.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.collector import short_pauses
from scheduler_cache.errors import NotSyncedError
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.informer import Informer, Key, Resource, Timing
from scheduler_cache.kube.objects import CustomObject, Lease, Node, Pod
from scheduler_cache.watchers import Watchers

logger = logging.getLogger(__name__)

PODS: Final = Resource(name="pods", path="/api/v1/pods", kind=Pod)
NODES: Final = Resource(name="nodes", path="/api/v1/nodes", kind=Node)
LEASES: Final = Resource(
    name="leases of nodes",
    path="/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    kind=Lease,
)
DEVICES: Final = Resource(
    name="Device objects of Koordinator",
    path="/apis/scheduling.koordinator.sh/v1alpha1/devices",
    kind=CustomObject,
    optional=True,
)

_TICK_SECONDS: Final = 1.0


class Waiting:
    """Calls that wait until something about their pod or their node changes."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], set[asyncio.Event]] = {}

    @contextmanager
    def on(self, uid: str, node_name: str) -> Iterator[asyncio.Event]:
        """Give an event that is set by each change. Empty `uid`: the pod is not known, any will
        do.
        """
        changed = asyncio.Event()
        keys = [("pod", uid), ("node", node_name)]
        for key in keys:
            self._by_key.setdefault(key, set()).add(changed)
        try:
            yield changed
        finally:
            for key in keys:
                self._by_key[key].discard(changed)
                if not self._by_key[key]:
                    del self._by_key[key]

    def at(self, node_name: str) -> int:
        """Return how many calls wait about a node."""
        return len(self._by_key.get(("node", node_name), ()))

    def wake(self, deltas: Deltas) -> None:
        """Set the events of everybody whom `deltas` may concern."""
        keys = [("pod", uid) for uid in deltas.pods] + [("node", name) for name in deltas.nodes]
        if deltas.pods:
            keys.append(("pod", ""))
        for key in keys:
            for changed in self._by_key.get(key, ()):
                changed.set()


class Feed:
    """The informers of the Kubernetes mode, and the one place where deltas go out."""

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        watchers: Watchers,
        *,
        chores: Callable[[Deltas], None] = lambda deltas: None,
        timing: Timing | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._cluster = cluster
        self._watchers = watchers
        self._chores = chores
        self._now_ns = now_ns
        self._loaded = asyncio.Event()
        self.waiting = Waiting()
        self.followers: list[Callable[[Deltas], None]] = []
        """Called with every change, before anybody else hears of it; they only take notes."""
        self.pods = Informer(
            client, PODS, self._applied(cluster.apply_pod), self._pod_gone, timing=timing
        )
        self.nodes = Informer(
            client, NODES, self._applied(cluster.apply_node), self._node_gone, timing=timing
        )
        self.leases = Informer(
            client, LEASES, self._lease, lambda key, version: None, timing=timing
        )
        self.devices = Informer(
            client, DEVICES, self._applied(cluster.apply_device), self._device_gone, timing=timing
        )

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All of them."""
        return (self.pods, self.nodes, self.leases, self.devices)

    @property
    def synced(self) -> bool:
        """Whether everything has been listed and taken in once since the start."""
        return self._loaded.is_set()

    def check_synced(self) -> None:
        """Raise NotSyncedError, with what is missing and why, until everything is taken in."""
        if self._loaded.is_set():
            return
        missing = [
            f"{informer.resource.name} ({informer.trouble})"
            for informer in self.informers
            if not informer.synced
        ]
        raise NotSyncedError(
            "this replica is not synced with the API server yet: "
            f"{'; '.join(missing) or 'what was listed is being read'}; retrying is safe"
        )

    async def run(self) -> None:
        """Follow until cancelled."""
        # The first lists make millions of objects that stay; to look through them again and again
        # would take longer than to read them.
        gc.disable()
        self._cluster.begin_loading()
        try:
            with short_pauses():
                async with asyncio.TaskGroup() as tasks:
                    for informer in self.informers:
                        tasks.create_task(informer.run(), name=informer.resource.name)
                    tasks.create_task(self._load())
                    tasks.create_task(self._tick())
        finally:
            gc.enable()

    async def wait_synced(self) -> None:
        """Return once everything has been listed and taken in."""
        await self._loaded.wait()

    def publish(self, deltas: Deltas) -> None:
        """Tell everybody whom `deltas` concern. No await lies between a change and this."""
        for follower in self.followers:
            follower(deltas)
        self._watchers.publish(deltas.watch)
        self.waiting.wake(deltas)
        self._chores(deltas)

    async def forget_reports(self) -> None:
        """Drop what agents have told this process, and let others run in between."""
        for deltas in self._cluster.forget_reports(self._now_ns()):
            self.publish(deltas)
            await asyncio.sleep(0)

    def _applied(
        self, apply: Callable[[Mapping[str, Any], int], Deltas]
    ) -> Callable[[Mapping[str, Any]], None]:
        def take(item: Mapping[str, Any]) -> None:
            self.publish(apply(item, self._now_ns()))

        return take

    def _pod_gone(self, key: Key, version: int) -> None:
        self.publish(self._cluster.delete_pod(key.uid, self._now_ns(), version))

    def _node_gone(self, key: Key, version: int) -> None:
        self.publish(self._cluster.delete_node(key.name, self._now_ns()))

    def _device_gone(self, key: Key, version: int) -> None:
        self.publish(self._cluster.delete_device(key.name, self._now_ns()))

    def _lease(self, item: Lease) -> None:
        name = item.get("metadata", {}).get("name", "")
        renewed = item.get("spec", {}).get("renewTime", "")
        if isinstance(renewed, str):
            self._cluster.apply_lease(name, renewed, self._now_ns())

    async def _tick(self) -> None:
        await self._loaded.wait()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.publish(self._cluster.tick(self._now_ns()))

    async def _load(self) -> None:
        """Wait for the first lists and draw the conclusions.

        What they brought is taken out of the garbage collector's sight: it stays, and a full
        collection over 100,000 records would stop the process for tens of milliseconds.
        """
        started = time.monotonic()
        for informer in self.informers:
            await informer.wait_synced()
        for deltas in self._cluster.end_loading(self._now_ns()):
            self.publish(deltas)
            await asyncio.sleep(0)
        self._loaded.set()
        logger.info("synced", extra={"seconds": round(time.monotonic() - started, 3)})
        gc.collect()
        gc.freeze()
        # The collector waits with a full collection until a quarter more is there than it found at
        # the last one. Let it find next to nothing: then it looks early, and at little each time.
        gc.collect()
        gc.enable()
