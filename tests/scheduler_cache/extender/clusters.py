# SPDX-License-Identifier: Apache-2.0
"""A cluster of several nodes with an extender that follows it."""

from __future__ import annotations

from typing import Any, cast

from scheduler_cache.cluster import Deltas
from scheduler_cache.extender.node_fit import Filtered
from scheduler_cache.extender.verbs import Extender
from scheduler_cache.kube import objects
from scheduler_cache.model import Card
from tests.scheduler_cache.kube_objects import World, container, kube_node, node_report, pod


def waiting(
    uid: str = "p1",
    *containers: dict[str, Any],
    priority: int = 0,
    nominated: str = "",
    scheduler: str = "vgpu-scheduler",
    **options: Any,  # noqa: ANN401 - those of pod()
) -> dict[str, Any]:
    """Return a pod that waits for a node; with `node=` one that is bound."""
    source = pod(uid, *containers, **{"phase": "Pending", **options})
    source["spec"].update(schedulerName=scheduler, priority=priority)
    if nominated:
        source["status"]["nominatedNodeName"] = nominated
    return source


def asking(gib: int, count: int = 1) -> dict[str, Any]:
    """Return a container that asks for so many GiB of each of `count` cards."""
    return container(memory=f"{gib}Gi", count=str(count))


class Fleet(World):
    """Nodes by name, each with its cards; events reach the extender as they do in a replica."""

    def __init__(self, **nodes: Card | tuple[Card, ...]) -> None:
        super().__init__()
        self.extender = Extender(self.cluster, self.dialects)
        for name, cards in nodes.items():
            given = cards if isinstance(cards, tuple) else (cards,)
            self.extender.follow(self.cluster.apply_node(kube_node(name), self.now))
            self.extender.follow(
                self.cluster.apply_report(node_report(*given, node=name), self.now)
            )
        self.names = list(nodes)

    def apply(self, source: Any) -> Deltas:  # noqa: ANN401 - JSON
        deltas = super().apply(source)
        self.extender.follow(deltas)
        return deltas

    def hold(self, source: dict[str, Any], node: str) -> dict[str, Any]:
        """Bind a pod, and return it as it then is."""
        return self.bind(source, node=node)

    def end(self, bound: dict[str, Any]) -> None:
        """Ask for the deletion of a pod that is bound."""
        metadata = {**bound["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
        self.apply({**bound, "metadata": metadata})

    def filter(self, source: dict[str, Any], *names: str) -> Filtered:
        return self.extender.filter(cast(objects.Pod, source), list(names or self.names))

    def prioritize(self, source: dict[str, Any], *names: str) -> list[int]:
        return self.extender.prioritize(cast(objects.Pod, source), list(names or self.names))
