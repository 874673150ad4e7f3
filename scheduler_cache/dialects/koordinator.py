# SPDX-License-Identifier: Apache-2.0
"""Koordinator's GPU share, `koordinator.sh/gpu*`. Pure.

Source: Koordinator apis/extension/device_share.go, pkg/scheduler/plugins/deviceshare, at v1.8. It
asks and decides for the pod as a whole: nothing says which container gets which card. Every
container that asks sees all of the pod's cards, and they share one account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scheduler_cache.dialects.dialect import (
    Decision,
    Dialect,
    DialectError,
    Named,
    PodRequest,
    Registration,
    StatedSlice,
    Vocabulary,
)
from scheduler_cache.dialects.fields import (
    FIX_DECISION,
    card_uuid,
    integer,
    json_object,
    memory,
    quantity,
    request_of,
    seconds_ns,
)
from scheduler_cache.model import (
    MAX_BYTES,
    MAX_SLICES,
    UNLIMITED_SLOTS,
    Allocation,
    Card,
    MemoryAmount,
    Request,
)
from scheduler_cache.pod import ContainerKind, Pod

PERCENT = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORES = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
WHOLE_CARDS = "nvidia.com/gpu"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
BIND_TIME = "scheduling.koordinator.sh/bind-timestamp"
MINORS = "scheduling.koordinator.sh/gpu-minors"

_RESOURCES = (PERCENT, SHARED, CORES, MEMORY, RATIO)


class Koordinator(Dialect):
    """Koordinator's dialect."""

    name = "koordinator"
    joins = True
    limits_slots = False

    vocabulary = Vocabulary(
        resources=_RESOURCES,
        cores=(CORES,),
        decision_annotations=(ALLOCATED, BIND_TIME, MINORS),
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container names one of Koordinator's shared resources."""
        return bool(_asking(pod))

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return the pod's one request under the name of every container that asks."""
        request = _request(_totals(pod))
        return PodRequest(
            dialect=self.name, containers=dict.fromkeys(_asking(pod), request), pod_level=True
        )

    def decided(self, pod: Pod) -> bool:
        """Return whether the pod's `device-allocated` has GPUs (it may have RDMA or FPGA alone)."""
        text = pod.annotations.get(ALLOCATED)
        return text is not None and '"gpu"' in text

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the pod's cards under the name of every container that asks."""
        text = pod.annotations[ALLOCATED]
        listed = json_object(ALLOCATED, text, FIX_DECISION).get("gpu")
        if not isinstance(listed, list):
            raise DialectError(f"{ALLOCATED}: gpu", listed, "it must be a list", FIX_DECISION)
        parts = tuple(_stated(each) for each in listed)
        # Who asks for nothing holds nothing, but what was decided must not vanish.
        asking = _asking(pod)
        whole = [each.name for each in pod.containers if each.asked(WHOLE_CARDS) is not None]
        names = asking or whole or [each.name for each in pod.app_containers[:1]]
        by_plugin = bool(whole) and not asking
        asked = _total(pod, WHOLE_CARDS) if by_plugin else 0
        return Decision(
            dialect=self.name,
            decided_unix_ns=seconds_ns(pod.annotations.get(BIND_TIME)),
            containers=dict.fromkeys(names, parts),
            pod_level=True,
            by_plugin=by_plugin,
            doubt=f"it gives {len(parts)} whole cards where {asked} were asked for"
            if by_plugin and len(parts) > asked
            else "",
        )

    def parse_device(self, source: Mapping[str, Any]) -> Registration | None:
        """Return the GPUs of a `Device` object."""
        if source.get("kind", "Device") != "Device":
            return None
        spec = source.get("spec")
        listed = spec.get("devices") if isinstance(spec, Mapping) else None
        if not isinstance(listed, list):
            return None
        found = [each for each in listed if isinstance(each, Mapping) and each.get("type") == "gpu"]
        metadata = source.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
        model = labels.get("node.koordinator.sh/gpu-model") if isinstance(labels, Mapping) else None
        cards = tuple(_card(each, model if isinstance(model, str) else "") for each in found)
        return Registration(dialect=self.name, cards=cards) if cards else None

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return the pod's cards in Koordinator's form; nothing where a card's minor is not
        known.
        """
        slices = next(iter(allocations.values())).slices
        minors = [cards[part.card_uuid].minor for part in slices if part.card_uuid in cards]
        if len(minors) < len(slices) or min(minors) < 0:
            return {}
        entries = [
            {
                "minor": minor,
                "id": part.card_uuid,
                "resources": {
                    CORES: str(part.reserved_percent),
                    MEMORY: str(part.memory_bytes),
                    RATIO: str(part.memory_bytes * 100 // cards[part.card_uuid].memory_bytes),
                },
            }
            for minor, part in zip(minors, slices, strict=True)
        ]
        return {
            ALLOCATED: json.dumps({"gpu": entries}, separators=(",", ":")),
            MINORS: ",".join(map(str, minors)),
        }


def _asking(pod: Pod) -> list[str]:
    return [
        each.name
        for each in pod.containers
        if any(each.asked(resource) is not None for resource in _RESOURCES)
    ]


def _totals(pod: Pod) -> dict[str, int]:
    """Return what the pod asks for by resource."""
    totals = {resource: _total(pod, resource) for resource in _RESOURCES}
    return {resource: total for resource, total in totals.items() if total}


def _total(pod: Pod, resource: str) -> int:
    """Return what the pod asks of a resource, with the rule of Kubernetes for init containers."""
    together, sidecars, most = 0, 0, 0
    for each in pod.containers:
        text = each.asked(resource)
        if text is None:
            continue
        field = f"{resource} of container {each.name!r}"
        amount = quantity(field, text, 0)
        other = each.requests.get(resource, text)
        if quantity(field, other, 0) != amount:
            raise DialectError(field, other, f"the limit is {text}", "let request and limit agree")
        if each.kind is ContainerKind.INIT:
            most = max(most, amount + sidecars)
        else:
            together += amount
            sidecars += amount if each.kind is ContainerKind.SIDECAR else 0
    return max(together, most)


def _request(totals: Mapping[str, int]) -> Request:
    asked = dict(totals)
    if PERCENT in asked:
        if asked.keys() - {PERCENT, SHARED}:
            raise _illegal(totals, f"{PERCENT} stands alone")
        asked[CORES] = asked[RATIO] = asked.pop(PERCENT)
    if MEMORY in asked and RATIO in asked:
        raise _illegal(totals, f"{MEMORY} and {RATIO} exclude each other")
    if MEMORY not in asked and RATIO not in asked:
        raise _illegal(totals, f"{MEMORY} or {RATIO} is required")
    count = asked.get(SHARED, 0)
    for resource in (RATIO, CORES):
        total = asked.get(resource, 0)
        if not count and total > 100:
            if total % 100:
                raise _illegal(totals, f"{resource} above 100 must be a multiple of 100")
            count = total // 100
    count = count or 1
    if count > MAX_SLICES:
        raise _illegal(totals, f"a pod sees at most {MAX_SLICES} cards")
    for resource in (RATIO, CORES):
        total = asked.get(resource, 0)
        if total % count or total > 100 * count:
            raise _illegal(
                totals, f"{resource} must be divisible by the {count} cards, at most {100 * count}"
            )
    cores = asked.get(CORES, 0) // count
    if MEMORY in asked:
        amount = memory(MEMORY, asked[MEMORY] // count, str(asked[MEMORY]))
    else:
        amount = MemoryAmount(percent=asked[RATIO] // count)
    return request_of(
        "the pod's request",
        totals,
        count=count,
        memory=(amount,),
        cores_percent=(cores,) if cores else (),
        shared=not (amount.percent == 100 and cores == 100),
    )


def _illegal(totals: Mapping[str, int], rule: str) -> DialectError:
    return DialectError(
        "the sum of the containers' koordinator.sh resources",
        dict(totals),
        rule,
        "correct the pod's spec and create it again",
    )


def _stated(source: object) -> StatedSlice:
    if not isinstance(source, dict):
        raise DialectError(
            f"{ALLOCATED}: gpu", source, "a card must be a JSON object", FIX_DECISION
        )
    resources = source.get("resources")
    if not isinstance(resources, dict):
        raise DialectError(
            f"{ALLOCATED}: resources", resources, "it must be a JSON object", FIX_DECISION
        )
    if MEMORY in resources:
        amount = memory(MEMORY, quantity(f"{ALLOCATED}: {MEMORY}", resources[MEMORY], 1), source)
    else:
        ratio = quantity(f"{ALLOCATED}: {RATIO}", resources.get(RATIO, ""), 1, 100)
        amount = MemoryAmount(percent=ratio)
    cores = quantity(f"{ALLOCATED}: {CORES}", resources.get(CORES, "0"), 0, 100)
    uuid = source.get("id")
    named = isinstance(uuid, str) and bool(uuid)
    minor = integer(f"{ALLOCATED}: minor", source.get("minor", 0), 0, 1 << 20, FIX_DECISION)
    return StatedSlice(
        card=card_uuid(f"{ALLOCATED}: id", str(uuid)) if named else str(minor),
        named=Named.UUID if named else Named.MINOR,
        memory=amount,
        cores_percent=cores or None,
    )


def _card(source: Mapping[str, Any], model: str) -> Card:
    remedy = "restart koordlet on the node, which reports it anew"
    resources = source.get("resources")
    topology = source.get("topology")
    resources = resources if isinstance(resources, Mapping) else {}
    numa = topology.get("nodeID") if isinstance(topology, Mapping) else 0
    return Card(
        uuid=card_uuid("Device: id", str(source.get("id", "")), remedy),
        model=model,
        memory_bytes=quantity(f"Device: {MEMORY}", resources.get(MEMORY, "0"), 0, MAX_BYTES),
        slots=UNLIMITED_SLOTS,
        healthy=source.get("health") is True,
        minor=integer("Device: minor", source.get("minor", 0), 0, 1 << 20, remedy),
        numa_node=numa if isinstance(numa, int) and 0 <= numa < 1 << 31 else 0,
    )
