# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of the Kubernetes mode. Cards are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scheduler_cache.cluster import Cluster
from scheduler_cache.cluster_feed import Feed

# From a tenth of a millisecond to the longest wait for an unknown pod.
_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1, 2, 8)


class Metrics:
    """One registry of its own, so that several caches fit into one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "vgpu_cache_rpc_seconds",
            "Time until a call was answered; of a stream, until it ended.",
            ("method", "status"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._extender = Histogram(
            "vgpu_cache_extender_seconds",
            "Time until a scheduler was answered, by verb and what became of it.",
            ("verb", "outcome"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._streams = Gauge(
            "vgpu_cache_watch_streams", "Agents that watch their node.", registry=self.registry
        )
        self.bindings = Counter(
            "vgpu_cache_bindings",
            "Bindings that this replica wrote, by what became of them.",
            ("outcome",),
            registry=self.registry,
        )
        self.evictions = Counter(
            "vgpu_cache_evictions",
            "Pods that lost a card to a later leader's decision.",
            registry=self.registry,
        )

    def called(self, method: str, status: grpc.StatusCode, seconds: float) -> None:
        """Count a call that has ended."""
        self._seconds.labels(method, status.name).observe(seconds)

    def extended(self, verb: str, outcome: str, seconds: float) -> None:
        """Count an answer to a scheduler."""
        self._extender.labels(verb, outcome).observe(seconds)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count a stream as long as it lasts."""
        self._streams.inc()
        try:
            yield
        finally:
            self._streams.dec()

    def watch_chores(self, waiting: Callable[[], int], failures: Callable[[], int]) -> None:
        """Show how many of the leader's chores wait, and how many tries have failed."""
        words = {
            "waiting": ("The leader's writes that wait, those after a failure included.", waiting),
            "failed_tries": ("Tries of such writes that failed since the start.", failures),
        }
        for name, (text, read) in words.items():
            gauge = Gauge(f"vgpu_cache_chores_{name}", text, registry=self.registry)
            gauge.set_function(read)

    def watch(self, cluster: Cluster, feed: Feed, leading: Callable[[], bool]) -> None:
        """Show what the cluster holds, and how the copies of the API server's objects stand."""
        self.registry.register(_State(cluster, feed, leading))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _State(Collector):
    """Reads the cluster when Prometheus asks."""

    def __init__(self, cluster: Cluster, feed: Feed, leading: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._feed = feed
        self._leading = leading

    def collect(self) -> Iterable[Metric]:
        """Yield every gauge."""
        yield _gauge("vgpu_cache_leading", "1: this replica may write.", float(self._leading()))
        yield _gauge(
            "vgpu_cache_synced", "1: everything was listed once.", float(self._feed.synced)
        )
        objects = GaugeMetricFamily(
            "vgpu_cache_objects", "Objects that are copied from the API server.", labels=["kind"]
        )
        silent = GaugeMetricFamily(
            "vgpu_cache_api_silent_seconds",
            "Seconds since the API server was heard of this kind; a watch speaks once a minute.",
            labels=["kind"],
        )
        lists = GaugeMetricFamily(
            "vgpu_cache_lists", "Whole lists that were taken in since the start.", labels=["kind"]
        )
        for informer in self._feed.informers:
            kind = informer.resource.name
            objects.add_metric([kind], len(informer))
            silent.add_metric([kind], informer.silent_seconds)
            lists.add_metric([kind], informer.lists)
        yield from (objects, silent, lists)
        if self._feed.synced:
            yield from self._cards()

    def _cards(self) -> Iterable[Metric]:
        labels = ["node", "card", "model"]
        memory = GaugeMetricFamily("vgpu_card_memory_bytes", "Memory of a card.", labels=labels)
        held = GaugeMetricFamily(
            "vgpu_card_held_memory_bytes", "Memory of a card that is held.", labels=labels
        )
        reserved = GaugeMetricFamily(
            "vgpu_card_held_cores_ratio", "GPU time that is reserved, 1 = all.", labels=labels
        )
        slots = GaugeMetricFamily("vgpu_card_held_slots", "Slices of a card.", labels=labels)
        open_ = GaugeMetricFamily(
            "vgpu_card_open", "1: new slices may be placed on the card.", labels=labels
        )
        for name in self._cluster.node_names:
            view = self._cluster.view(name)
            for room in view.rooms() if view is not None else ():
                where = [name, room.card.uuid, room.card.model]
                memory.add_metric(where, room.card.memory_bytes)
                held.add_metric(where, room.use.memory_bytes)
                reserved.add_metric(where, room.use.reserved_percent / 100)
                slots.add_metric(where, room.use.slices)
                may = view is not None and not view.refused(room.card.uuid) and room.card.healthy
                open_.add_metric(where, float(may))
        yield from (memory, held, reserved, slots, open_)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)
