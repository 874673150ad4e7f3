# SPDX-License-Identifier: Apache-2.0
"""What of a pod decides where it fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_cache.dialects.dialect import PodRequest
from scheduler_cache.model import Demand, Request
from scheduler_cache.pod import Container, ContainerKind, Pod

# On which parts of a card and absolute amounts are compared, when no card is in question.
_USUAL_BYTES = 80 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """Pods of equal shapes fit the same nodes: replicas of one template have one shape."""

    parts: tuple[tuple[ContainerKind, Request], ...]
    """The containers that ask for cards, in the order of the spec; init containers and sidecars
    come first."""
    pod_level: bool = False
    """All containers share the first one's request."""

    @classmethod
    def of(cls, pod: Pod, asked: PodRequest) -> Shape:
        """Return the shape of a pod."""
        return cls(
            tuple(
                (each.kind, asked.containers[each.name])
                for each in pod.containers
                if each.name in asked.containers
            ),
            asked.pod_level,
        )

    @property
    def requests(self) -> Iterator[Request]:
        """What counts: of a pod with one account, once."""
        return (request for _, request in (self.parts[:1] if self.pod_level else self.parts))

    def example(self) -> tuple[Pod, PodRequest]:
        """Return some pod of this shape."""
        named = {f"c{i}": part for i, part in enumerate(self.parts)}
        pod = Pod(
            uid="",
            name="",
            containers=tuple(Container(name=name, kind=kind) for name, (kind, _) in named.items()),
        )
        requests = {name: request for name, (_, request) in named.items()}
        return pod, PodRequest(dialect="", containers=requests, pod_level=self.pod_level)

    def hardest(self, card_bytes: int = _USUAL_BYTES) -> tuple[Request, Demand]:
        """Return the largest demand on a card of some size, and whose it is."""
        pairs = [(each, demand) for each in self.requests for demand in each.demands]
        return max(
            pairs,
            key=lambda pair: (
                pair[1].memory.of_bytes(card_bytes),
                pair[1].cores_percent or 0,
            ),
        )
