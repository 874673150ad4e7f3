# SPDX-License-Identifier: Apache-2.0
"""Volcano's vGPU, `volcano.sh/vgpu-*`. Pure.

Source: volcano pkg/scheduler/api/devices, volcano-vgpu-device-plugin pkg/plugin. Its decision
lists one entry per container that asks, in the order of `spec.containers`; the others leave no
trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    MIB,
    card_uuid,
    containers_of,
    integer,
    items,
    memory,
    mig_place,
    names_in,
    quantity,
    request_of,
    seconds_ns,
    stated,
)
from scheduler_cache.model import MAX_SLICES, Allocation, Card, MemoryAmount, Request
from scheduler_cache.pod import Container, ContainerKind, KubeNode, Pod

COUNT = "volcano.sh/vgpu-number"
MEMORY = "volcano.sh/vgpu-memory"
MEMORY_PERCENT = "volcano.sh/vgpu-memory-percentage"
CORES = "volcano.sh/vgpu-cores"
USE_TYPE = "nvidia.com/use-gputype"
NO_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "volcano.sh/vgpu-use-gpuuuid"
NO_UUID = "volcano.sh/vgpu-nouse-gpuuuid"
NODE = "volcano.sh/vgpu-node"
TIME = "volcano.sh/vgpu-time"
IDS = "volcano.sh/vgpu-ids-new"
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
BIND_PHASE = "volcano.sh/bind-phase"
REGISTER = "volcano.sh/node-vgpu-register"
LOCK = "hamivgpu"

_DEVICE = "NVIDIA"
_MODE = "hami-core"
_ALLOCATING = "allocating"
# What the plugin writes once it is done, so that the pod sorts last.
_DONE = str((1 << 64) - 1)


@dataclass(frozen=True, kw_only=True)
class Volcano(Dialect):
    """Volcano's dialect, with the values of its device ConfigMap."""

    memory_factor: int = 1
    """`gpuMemoryFactor`: MiB per unit of memory, in requests, decisions and registrations."""

    name = "volcano"
    joins = True
    # It reads the cards of its first list of nodes before it knows that it shares cards at all.
    woken_by_nodes = True
    lock = LOCK

    vocabulary = Vocabulary(
        resources=(COUNT, MEMORY, MEMORY_PERCENT, CORES),
        cores=(CORES,),
        annotations=(USE_TYPE, NO_TYPE, USE_UUID, NO_UUID),
        decision_annotations=(NODE, TIME, IDS, TO_ALLOCATE, BIND_PHASE),
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container asks: by count or memory; cores alone ask for nothing."""
        return any(_asks(each) for each in pod.app_containers)

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return each container's request; a percentage wins over the memory."""
        return PodRequest(
            dialect=self.name,
            containers={
                each.name: self._request(pod, each) for each in pod.app_containers if _asks(each)
            },
        )

    def decided(self, pod: Pod) -> bool:
        """Return whether there is a `volcano.sh/vgpu-ids-new`."""
        return IDS in pod.annotations

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the decision; its entries belong to the containers that ask, in their order."""
        text = pod.annotations[IDS]
        entries = containers_of(text)
        asking = [each.name for each in pod.app_containers if _asks(each)]
        if len(entries) > len(asking):
            raise DialectError(
                IDS,
                text,
                f"it lists {len(entries)} containers, and {len(asking)} ask for cards",
                FIX_DECISION,
            )
        found: dict[str, tuple[StatedSlice, ...]] = {}
        doubt = ""
        for name, devices in zip(asking, entries, strict=False):
            parts = [stated(IDS, fields, self.memory_factor * MIB) for fields in devices]
            found[name] = tuple(part for part in parts if part is not None)
            if any(mig_place(fields[0]) for fields in devices):
                doubt = "a MIG place is named without the MIG instance's UUID"
        return Decision(
            dialect=self.name,
            node_name=pod.annotations.get(NODE, ""),
            decided_unix_ns=seconds_ns(pod.annotations.get(TIME)),
            containers={name: parts for name, parts in found.items() if parts},
            doubt=doubt,
        )

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return the registered cards: 5 fields (plugin ≤ 1.9.4) or 6 (≥ 1.11)."""
        text = node.annotations.get(REGISTER)
        if text is None:
            return None
        remedy = f"restart the device plugin of node {node.name}"
        cards = []
        for each in items(text, ":"):
            fields = [part.strip() for part in each.split(",")]
            if len(fields) < 5:
                raise DialectError(REGISTER, each, "a card has 5 or 6 fields", remedy)
            units = integer(f"{REGISTER}: memory", fields[2], 0, 1 << 40, remedy)
            cards.append(
                Card(
                    uuid=card_uuid(REGISTER, fields[0], remedy),
                    slots=integer(f"{REGISTER}: count", fields[1], 0, 1 << 31, remedy),
                    memory_bytes=units * self.memory_factor * MIB,
                    model=fields[3],
                    healthy=fields[4].lower() == "true",
                )
            )
        return Registration(dialect=self.name, cards=tuple(cards))

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return Volcano's decision keys, as after a plugin's success."""
        unit = self.memory_factor * MIB
        entries = [
            "".join(
                f"{part.card_uuid},{_DEVICE},{-(-part.memory_bytes // unit)},"
                f"{part.reserved_percent}:"
                for part in allocations[each.name].slices
            )
            for each in pod.containers
            if each.kind is ContainerKind.APP and each.name in allocations
        ]
        node = next(iter(allocations.values())).node_name
        return {NODE: node, IDS: ";".join(entries), TIME: _DONE, BIND_PHASE: "success"}

    def unfinished(self, pod: Pod) -> bool:
        """Return whether the pod was sent to a node and waits for a plugin."""
        return pod.annotations.get(BIND_PHASE) == _ALLOCATING

    def encode_completion(self, pod: Pod, *, admitted: bool) -> dict[str, str]:
        """Return every container's entry emptied and the phase ended; of a failure, the phase."""
        if not self.unfinished(pod):
            return {}
        if not admitted:
            return {BIND_PHASE: "failed"}
        text = pod.annotations.get(TO_ALLOCATE)
        emptied = {} if text is None else {TO_ALLOCATE: ";" * text.count(";")}
        return {**emptied, BIND_PHASE: "success", TIME: _DONE}

    def encode_registration(self, cards: Sequence[Card]) -> dict[str, str]:
        """Return the node annotation by which Volcano knows the cards, in 6 fields."""
        unit = self.memory_factor * MIB
        return {
            REGISTER: "".join(
                f"{card.uuid},{card.slots},{card.memory_bytes // unit},{_DEVICE}-{card.model},"
                f"{str(card.healthy).lower()},{_MODE}:"
                for card in cards
            )
        }

    def encode_unlock(self, node: KubeNode, pod: Pod) -> dict[str, str | None]:
        """Return the node patch that opens the lock; it names no pod."""
        return {LOCK: None} if LOCK in node.annotations else {}

    def _request(self, pod: Pod, container: Container) -> Request:
        where = f"of container {container.name!r}"
        texts = {
            resource: container.asked(resource)
            for resource in (COUNT, MEMORY, MEMORY_PERCENT, CORES)
        }

        def number(resource: str, low: int, high: int) -> int:
            text = texts[resource]
            return low if text is None else quantity(f"{resource} {where}", text, low, high)

        count = max(number(COUNT, 0, MAX_SLICES), 1)
        units = number(MEMORY, 0, 1 << 40)
        # The scheduler's own sentinel of "not set" is 101.
        percent = number(MEMORY_PERCENT, 0, 101) % 101
        cores = number(CORES, 0, 100)
        amount = (
            MemoryAmount(percent=percent or 100)
            if percent or not units
            else memory(f"{MEMORY} {where}", units * self.memory_factor * MIB, texts[MEMORY])
        )
        use = names_in(pod, USE_TYPE)
        # Volcano does not look at the denied types where some are asked for.
        deny = [] if USE_TYPE in pod.annotations else names_in(pod, NO_TYPE)
        return request_of(
            f"the request of container {container.name!r}",
            {resource: text for resource, text in texts.items() if text is not None},
            count=count,
            memory=(amount,),
            cores_percent=(cores,) if cores else (),
            shared=not (amount.percent == 100 and cores == 100),
            uuids=(
                *names_in(pod, USE_UUID),
                *(f"!{each}" for each in names_in(pod, NO_UUID)),
            ),
            models=(*use, *(f"!{each}" for each in deny)),
        )


def _asks(container: Container) -> bool:
    if container.kind is not ContainerKind.APP:
        return False
    return any(
        text not in (None, "0")
        for text in (container.limits.get(COUNT), container.limits.get(MEMORY))
    )
