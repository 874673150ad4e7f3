# SPDX-License-Identifier: Apache-2.0
"""HAMi 2.4 to 2.10, NVIDIA cards: `nvidia.com/gpu*` and `hami.io/*`. Pure.

Source: HAMi pkg/device, pkg/device/nvidia, pkg/util, pkg/scheduler/score.go at v2.4 … v2.10. Its
decision lists entries of containers in their order. Which containers without a card have an empty
entry differs: all of `spec.containers` (2.7, 2.8), init containers as well (2.9), those behind the
first card (2.4 to 2.6), none (2.10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    json_array,
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
from scheduler_cache.units import counted

COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
USE_TYPE = "nvidia.com/use-gputype"
NO_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
NO_UUID = "nvidia.com/nouse-gpuuuid"
NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
REGISTER = "hami.io/node-nvidia-register"
LOCK = "hami.io/mutex.lock"
HANDSHAKE = "hami.io/node-handshake"

# What a container without a card asks by: each of them alone makes it a GPU container.
_ASKING = (MEMORY, MEMORY_PERCENT, CORES)
_DEVICE = "NVIDIA"
_MODE = "hami-core"
_ALLOCATING = "allocating"
_MAX_MIB = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Hami(Dialect):
    """HAMi's dialect, with the values of its Helm chart."""

    memory_factor: int = 1
    """`memoryFactor`: MiB per unit of `nvidia.com/gpumem`."""
    default_memory: int = 0
    """`defaultMemory` in units; 0: the whole card."""
    claim_bare_gpu: bool = False
    """Whether `nvidia.com/gpu` alone is HAMi's; else it belongs to NVIDIA's plugin."""
    full_card_cores: bool = True
    """Since 2.7 a request of the whole memory without cores gets all cores."""

    json_register: bool = True
    """Whether its scheduler reads registrations in JSON (≥ 2.8) or in fields (2.5 to 2.7)."""

    name = "hami"
    joins = True
    lock = LOCK

    @property
    def vocabulary(self) -> Vocabulary:
        """Return HAMi's names; `nvidia.com/gpu` is among them only where it is HAMi's alone."""
        return Vocabulary(
            resources=(*_ASKING, COUNT) if self.claim_bare_gpu else _ASKING,
            cores=(CORES,),
            shared_resources=() if self.claim_bare_gpu else (COUNT,),
            annotations=(USE_TYPE, NO_TYPE, USE_UUID, NO_UUID),
            decision_annotations=(
                *(NODE, TIME, TO_ALLOCATE, ALLOCATED),
                *(MIG_ALLOCATIONS, BIND_PHASE, BIND_TIME),
            ),
        )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container names one of HAMi's resources."""
        return any(self._asks(each) for each in pod.containers)

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return each container's request; memory in MiB wins over the percentage."""
        return PodRequest(
            dialect=self.name,
            containers={
                each.name: self._request(pod, each) for each in pod.containers if self._asks(each)
            },
        )

    def decided(self, pod: Pod) -> bool:
        """Return whether there is a `hami.io/vgpu-devices-allocated`."""
        return ALLOCATED in pod.annotations

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the decision; MIG places count on their card and are resolved by MIG UUID only."""
        text = pod.annotations[ALLOCATED]
        migs = _mig_uuids(pod.annotations.get(MIG_ALLOCATIONS))
        doubt = ""
        entries: dict[int, tuple[StatedSlice, ...]] = {}
        listed = containers_of(text)
        for i, devices in enumerate(listed):
            slices = []
            for j, fields in enumerate(devices):
                part = stated(ALLOCATED, fields, MIB)
                if part is None:
                    continue
                if (i, j) in migs or mig_place(fields[0]):
                    mig = migs.get((i, j), "")
                    if not mig:
                        doubt = "a MIG place is named without the MIG instance's UUID"
                    part = stated(ALLOCATED, [mig or fields[0], *fields[1:]], MIB)
                    assert part is not None
                slices.append(part)
            if slices:
                entries[i] = tuple(slices)
        names = _holders(pod, list(entries), len(listed), text)
        found = dict(zip(names, entries.values(), strict=True))
        return Decision(
            dialect=self.name,
            node_name=pod.annotations.get(NODE, ""),
            decided_unix_ns=seconds_ns(pod.annotations.get(TIME)),
            containers=found,
            # To HAMi, a sidecar is an init container, which has ended before the others start.
            uncounted=tuple(
                each.name
                for each in pod.containers
                if each.kind is ContainerKind.SIDECAR and each.name in found
            ),
            doubt=doubt,
        )

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return the registered cards: 7 fields (≤ 2.4), 9 (2.5 to 2.7), or JSON (≥ 2.8)."""
        text = node.annotations.get(REGISTER)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            remedy = _remedy(node)
            cards = [_json_card(each, remedy) for each in json_array(REGISTER, text, remedy)]
        else:
            cards = [_text_card(each, _remedy(node)) for each in items(text, ":")]
        return Registration(dialect=self.name, cards=tuple(cards))

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return HAMi's decision keys: they keep its metrics and its monitor right."""
        text = "".join(
            "".join(
                f"{part.card_uuid},{_DEVICE},{-(-part.memory_bytes // MIB)},"
                f"{part.reserved_percent}:"
                for part in (allocations[each.name].slices if each.name in allocations else ())
            )
            + ";"
            for each in pod.containers
        )
        node = next(iter(allocations.values())).node_name
        return {NODE: node, ALLOCATED: text, BIND_PHASE: "success"}

    def unfinished(self, pod: Pod) -> bool:
        """Return whether the pod is bound and waits for a plugin."""
        return pod.annotations.get(BIND_PHASE) == _ALLOCATING

    def encode_completion(self, pod: Pod, *, admitted: bool) -> dict[str, str]:
        """Return every container's entry erased and the phase ended; of a failure, the phase."""
        if not self.unfinished(pod):
            return {}
        if not admitted:
            return {BIND_PHASE: "failed"}
        text = pod.annotations.get(TO_ALLOCATE)
        erased = {} if text is None else {TO_ALLOCATE: ";" * text.count(";")}
        return {**erased, BIND_PHASE: "success"}

    def encode_liveness(self, node: KubeNode, now: datetime) -> dict[str, str]:
        """Return the answer of a plugin up to 2.7; later ones are not asked."""
        asked = node.annotations.get(HANDSHAKE, "").startswith(("Requesting_", "Deleted_"))
        if self.json_register or not asked:
            return {}
        return {HANDSHAKE: f"Reported {now:%Y-%m-%d %H:%M:%S}"}

    def encode_registration(self, cards: Sequence[Card]) -> dict[str, str]:
        """Return the node annotation by which HAMi's scheduler knows the cards."""
        if self.json_register:
            listed = [
                {
                    "id": card.uuid,
                    "index": i,
                    "count": card.slots,
                    "devmem": card.memory_bytes // MIB,
                    "devcore": card.cores_percent,
                    "type": f"{_DEVICE}-{card.model}",
                    "numa": card.numa_node,
                    "mode": _MODE,
                    "health": card.healthy,
                }
                for i, card in enumerate(cards)
            ]
            return {REGISTER: json.dumps(listed, separators=(",", ":"))}
        return {
            REGISTER: "".join(
                f"{card.uuid},{card.slots},{card.memory_bytes // MIB},{card.cores_percent},"
                f"{_DEVICE}-{card.model},{card.numa_node},{str(card.healthy).lower()},{i},{_MODE}:"
                for i, card in enumerate(cards)
            )
        }

    def encode_unlock(self, node: KubeNode, pod: Pod) -> dict[str, str | None]:
        """Return the node patch that opens HAMi's lock, if it is this pod's.

        `TIME,NAMESPACE,NAME`; before 2.4 only the time, which is anybody's.
        """
        lock = node.annotations.get(LOCK)
        if lock is None:
            return {}
        _, _, owner = lock.partition(",")
        return {LOCK: None} if owner in ("", f"{pod.namespace},{pod.name}") else {}

    def _asks(self, container: Container) -> bool:
        if any(container.asked(resource) is not None for resource in _ASKING):
            return True
        return self.claim_bare_gpu and container.asked(COUNT) is not None

    def _request(self, pod: Pod, container: Container) -> Request:
        where = f"of container {container.name!r}"
        texts = {resource: container.asked(resource) for resource in (COUNT, *_ASKING, PRIORITY)}

        def number(resource: str, low: int, high: int) -> int | None:
            text = texts[resource]
            return None if text is None else quantity(f"{resource} {where}", text, low, high)

        count = number(COUNT, 1, MAX_SLICES)
        # 0 of any of these means that it was not set.
        units = number(MEMORY, 0, _MAX_MIB // self.memory_factor) or 0
        percent = number(MEMORY_PERCENT, 0, 100) or 0
        cores = number(CORES, 0, 1 << 31)
        cores = None if cores is None else min(cores, 100)
        whole = percent == 100 or not (units or percent)
        if not (units or percent):
            units = self.default_memory
            whole = not units
        amount = (
            memory(f"{MEMORY} {where}", units * self.memory_factor * MIB, texts[MEMORY])
            if units
            else MemoryAmount(percent=percent or 100)
        )
        if cores is None and whole and not units and self.full_card_cores:
            cores = 100
        return request_of(
            f"the request of container {container.name!r}",
            {resource: text for resource, text in texts.items() if text is not None},
            count=1 if count is None else count,
            memory=(amount,),
            cores_percent=(cores,) if cores else (),
            shared=not (amount.percent == 100 and cores == 100),
            uuids=(
                *names_in(pod, USE_UUID),
                *(f"!{each}" for each in names_in(pod, NO_UUID)),
            ),
            models=(
                *names_in(pod, USE_TYPE),
                *(f"!{each}" for each in names_in(pod, NO_TYPE)),
            ),
            # HAMi's 0 is the high priority, 1 and none the low one; ours is the larger number.
            priority=1 if number(PRIORITY, 0, 1) == 0 else 0,
        )


def _holders(pod: Pod, places: list[int], listed: int, text: str) -> list[str]:
    """Return the names of the containers to which the entries with cards belong, in their order.

    `places`: the positions of these entries among all `listed` ones. If they are as many as the
    containers that ask, they belong to those: HAMi's own plugin serves them so. Else their
    positions count.
    """
    if not places:
        return []
    apps = [each.name for each in pod.app_containers]
    every = [each.name for each in pod.containers]
    asking = [each.name for each in pod.containers if _asks_hami(each)]
    # Up to 2.8 the init containers did not count.
    for names in (asking, [name for name in asking if name in apps]):
        if len(names) == len(places):
            return names
    for names in (every, apps):
        if len(names) == listed:
            return [names[place] for place in places]
    raise DialectError(
        ALLOCATED,
        text,
        f"it gives cards to {counted(len(places), 'container')}, and the pod has {len(asking)} "
        "that ask",
        FIX_DECISION,
    )


def _asks_hami(container: Container) -> bool:
    """Return whether HAMi looks for cards for a container, whoever owns `nvidia.com/gpu` here."""
    asked = (container.asked(resource) for resource in (COUNT, *_ASKING))
    return container.asked(COUNT) != "0" and any(text is not None for text in asked)


def _mig_uuids(text: str | None) -> dict[tuple[int, int], str]:
    """Return the MIG UUIDs by container and device number; empty where the plugin is not done."""
    if text is None:
        return {}
    found = {}
    for each in json_array(MIG_ALLOCATIONS, text, FIX_DECISION):
        if not isinstance(each, dict):
            raise DialectError(MIG_ALLOCATIONS, each, "it must be a JSON object", FIX_DECISION)
        place = tuple(
            integer(f"{MIG_ALLOCATIONS}: {key}", each.get(key, 0), 0, 1 << 16, FIX_DECISION)
            for key in ("containerIndex", "deviceIndex")
        )
        mig = each.get("migUUID", "")
        found[place[0], place[1]] = (
            card_uuid(MIG_ALLOCATIONS, mig) if isinstance(mig, str) and mig else ""
        )
    return found


def _remedy(node: KubeNode) -> str:
    return f"restart the device plugin of node {node.name}"


def _text_card(text: str, remedy: str) -> Card:
    fields = [part.strip() for part in text.split(",")]
    if len(fields) < 7:
        raise DialectError(REGISTER, text, "a card has 7 or 9 fields", remedy)
    return Card(
        uuid=card_uuid(REGISTER, fields[0], remedy),
        slots=integer(f"{REGISTER}: count", fields[1], 0, 1 << 31, remedy),
        memory_bytes=integer(f"{REGISTER}: memory", fields[2], 0, 1 << 40, remedy) * MIB,
        cores_percent=integer(f"{REGISTER}: cores", fields[3], 0, 1 << 31, remedy),
        model=fields[4],
        numa_node=_numa(fields[5]),
        healthy=fields[6].lower() == "true",
    )


def _json_card(source: Any, remedy: str) -> Card:  # noqa: ANN401  whatever JSON holds
    if not isinstance(source, dict):
        raise DialectError(REGISTER, source, "a card must be a JSON object", remedy)

    def number(key: str) -> int:
        # Go leaves out what is 0.
        return integer(f"{REGISTER}: {key}", source.get(key, 0), 0, 1 << 40, remedy)

    uuid = source.get("id")
    numa = source.get("numa", 0)
    return Card(
        uuid=card_uuid(REGISTER, uuid if isinstance(uuid, str) else "", remedy),
        slots=number("count"),
        memory_bytes=number("devmem") * MIB,
        cores_percent=number("devcore"),
        model=str(source.get("type", "")),
        numa_node=_numa(json.dumps(numa)),
        # Left out means false.
        healthy=source.get("health") is True,
    )


def _numa(text: str) -> int:
    """Return a NUMA node; -1, which means none, and anything else is 0."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else 0
