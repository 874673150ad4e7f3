# SPDX-License-Identifier: Apache-2.0
"""Alnair: `alnair/vgpu-*` and `ai.centaurus.io/*`. Pure.

Source: Alnair alnair-device-plugin/pkg, autonomous-scheduler/vGPUScheduler, at v0.5.0. One card per
container; memory is counted in chunks of 1 GiB that are named like their card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scheduler_cache.dialects.dialect import (
    Decision,
    Dialect,
    DialectError,
    PodRequest,
    Registration,
    StatedSlice,
    Vocabulary,
)
from scheduler_cache.dialects.fields import (
    FIX_DECISION,
    card_uuid,
    integer,
    items,
    memory,
    quantity,
    request_of,
    seconds_ns,
)
from scheduler_cache.model import Allocation, Card, Request
from scheduler_cache.pod import Container, KubeNode, Pod

MEMORY = "alnair/vgpu-memory"
CORES = "alnair/vgpu-compute"
CHUNKS = "ai.centaurus.io/alnair-gpu-id"
TIME = "ai.centaurus.io/scheduler-timestamp"
CARDS = "ai.centaurus.io/physical-gpu-uuids"
# Alnair's plugin writes the first, its scheduler reads the second.
CHUNK_COUNTS = ("ai.centaurus.io/vitual-gpu-count", "ai.centaurus.io/virtual-gpu-count")

CHUNK_BYTES = 1 << 30


class Alnair(Dialect):
    """Alnair's dialect."""

    name = "alnair"

    vocabulary = Vocabulary(
        resources=(MEMORY, CORES), cores=(CORES,), decision_annotations=(CHUNKS, TIME)
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container asks for memory or compute."""
        return any(_asks(each) for each in pod.containers)

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return each container's request: one card, all cores where none were asked for."""
        return PodRequest(
            dialect=self.name,
            containers={each.name: _request(each) for each in pod.containers if _asks(each)},
        )

    def decided(self, pod: Pod) -> bool:
        """Return whether the plugin has written chunks."""
        return CHUNKS in pod.annotations

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the card whose chunks are named.

        The plugin overwrites the chunks with every container, so that those of a pod with several
        that ask are not known.
        """
        text = pod.annotations[CHUNKS]
        asking = [each for each in pod.containers if _asks(each)]
        if len(asking) != 1:
            raise DialectError(
                CHUNKS,
                text,
                f"it holds one container's chunks, and {len(asking)} ask for a card",
                FIX_DECISION,
            )
        cores = _request(asking[0]).cores_percent[0]
        chunks = Counter(card_uuid(CHUNKS, each) for each in items(text))
        return Decision(
            dialect=self.name,
            decided_unix_ns=seconds_ns(pod.annotations.get(TIME)),
            containers={
                asking[0].name: tuple(
                    StatedSlice(
                        card=uuid,
                        memory=memory(CHUNKS, number * CHUNK_BYTES, text),
                        cores_percent=cores,
                    )
                    for uuid, number in chunks.items()
                )
            },
        )

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return the cards; their memory is the number of their chunks."""
        text = node.annotations.get(CARDS)
        if text is None:
            return None
        remedy = f"restart the device plugin of node {node.name}"
        uuids = [card_uuid(CARDS, each, remedy) for each in items(text)]
        counts_text = next(
            (node.annotations[key] for key in CHUNK_COUNTS if key in node.annotations), ""
        )
        counts = [integer(CHUNK_COUNTS[0], each, 0, 1 << 20, remedy) for each in items(counts_text)]
        if len(counts) != len(uuids):
            raise DialectError(
                CHUNK_COUNTS[0], counts_text, f"{CARDS} names {len(uuids)} cards", remedy
            )
        return Registration(
            dialect=self.name,
            cards=tuple(
                Card(uuid=uuid, memory_bytes=count * CHUNK_BYTES, slots=count)
                for uuid, count in zip(uuids, counts, strict=True)
            ),
        )

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return the chunks of the last container that has a card, as the plugin leaves them."""
        names = [each.name for each in pod.containers if each.name in allocations]
        part = allocations[names[-1]].slices[0]
        number = -(-part.memory_bytes // CHUNK_BYTES)
        return {CHUNKS: ",".join(f"{part.card_uuid}_{i}" for i in range(number))}


def _asks(container: Container) -> bool:
    return any(container.asked(resource) not in (None, "0") for resource in (MEMORY, CORES))


def _request(container: Container) -> Request:
    where = f"of container {container.name!r}"
    chunks_text = container.asked(MEMORY) or "0"
    chunks = quantity(f"{MEMORY} {where}", chunks_text, 1, 1 << 20)
    cores_text = container.asked(CORES)
    cores = 100 if cores_text is None else quantity(f"{CORES} {where}", cores_text, 1, 1 << 20)
    return request_of(
        f"{MEMORY} {where}",
        chunks_text,
        memory=(memory(f"{MEMORY} {where}", chunks * CHUNK_BYTES, chunks_text),),
        cores_percent=(min(cores, 100),),
    )
