# SPDX-License-Identifier: Apache-2.0
"""Our own dialect, `vgpu.dev/*`. Pure.

Source: docs/contract.md §2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    card_uuid,
    integer,
    items,
    json_array,
    json_object,
    names_in,
    quantity,
    request_of,
    text_of,
)
from scheduler_cache.dialects.keyring import Keyring
from scheduler_cache.model import (
    MAX_BYTES,
    MAX_SLICES,
    Allocation,
    Card,
    CardKind,
    CardPolicy,
    ComputeMode,
    MemoryAmount,
    Request,
)
from scheduler_cache.pod import Container, KubeNode, Pod

NATIVE = "native"
COUNT = "vgpu.dev/count"
MEMORY = "vgpu.dev/memory"
MEMORY_PERCENT = "vgpu.dev/memory-percent"
CORES = "vgpu.dev/cores"
DEVICES = "vgpu.dev/devices"
CARD_POLICY = "vgpu.dev/card-policy"
COMPUTE_MODE = "vgpu.dev/compute-mode"
USE_MODEL = "vgpu.dev/use-model"
USE_UUID = "vgpu.dev/use-uuid"
CONTAINER_UUIDS = "vgpu.dev/container-uuids"
ALLOCATION = "vgpu.dev/allocation"
ISOLATION = "vgpu.dev/isolation"
INVENTORY = "vgpu.dev/inventory"
CORDON = "vgpu.dev/cordon"

_RESOURCES = (COUNT, MEMORY, MEMORY_PERCENT, CORES)
_VERSION = 1
# Below this is a forgotten unit: no context fits in it.
_LEAST_BYTES = 1 << 20
_LEAST_TEXT = "1Mi"


class Native(Dialect):
    """`vgpu.dev/*`; allocations carry a MAC over everything they say and the pod's uid."""

    name = NATIVE

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    vocabulary = Vocabulary(
        # A resource of ours that there is not is a misspelt one.
        resources=("vgpu.dev/",),
        cores=(CORES,),
        annotations=(DEVICES, CARD_POLICY, COMPUTE_MODE, USE_MODEL, USE_UUID),
        asking_annotations=(DEVICES,),
        decision_annotations=(ALLOCATION, ISOLATION),
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container names one of our resources, or an annotation gives amounts."""
        return DEVICES in pod.annotations or any(
            each.asked(resource) is not None for each in pod.containers for resource in _RESOURCES
        )

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return each container's amounts; those in `vgpu.dev/devices` may differ from card to
        card.
        """
        listed = json_object(DEVICES, pod.annotations.get(DEVICES, "{}"))
        names = {each.name for each in pod.containers}
        for name in listed:
            if name not in names:
                raise DialectError(
                    DEVICES,
                    name,
                    "the pod has no container of this name",
                    f"name one of {sorted(names)}",
                )
        containers = {}
        for each in pod.containers:
            if each.name in listed and listed[each.name] is None:
                raise DialectError(
                    f"{DEVICES} of container {each.name!r}",
                    None,
                    f"it must list 1..{MAX_SLICES} cards",
                    "list them, or leave the container out",
                )
            request = _container_request(pod, each, listed.get(each.name))
            if request is not None:
                containers[each.name] = request
        return PodRequest(dialect=self.name, containers=containers)

    def decided(self, pod: Pod) -> bool:
        """Return whether there is a `vgpu.dev/allocation`."""
        return ALLOCATION in pod.annotations

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return what `vgpu.dev/allocation` says; a MAC that does not fit is a doubt, not an
        error.
        """
        text = pod.annotations[ALLOCATION]
        source = json_object(ALLOCATION, text, FIX_DECISION)
        integer(f"{ALLOCATION}: version", source.get("version"), _VERSION, _VERSION, FIX_DECISION)
        listed = source.get("containers")
        if not isinstance(listed, dict):
            raise DialectError(
                f"{ALLOCATION}: containers", listed, "it must be a JSON object", FIX_DECISION
            )
        exclusive = source.get("exclusive", [])
        if not isinstance(exclusive, list) or not all(isinstance(each, str) for each in exclusive):
            raise DialectError(
                f"{ALLOCATION}: exclusive", exclusive, "it must be a list of names", FIX_DECISION
            )
        return Decision(
            dialect=self.name,
            node_name=text_of(source, ALLOCATION, "node"),
            epoch=integer(f"{ALLOCATION}: epoch", source.get("epoch"), 0, MAX_BYTES, FIX_DECISION),
            containers={name: _stated(name, parts) for name, parts in listed.items()},
            pod_level=source.get("pod_level") is True,
            exclusive=frozenset(exclusive),
            doubt=self._doubt(pod, source),
        )

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return the inventory that the leader wrote from the agent's last report."""
        text = node.annotations.get(INVENTORY)
        if text is None:
            return None
        remedy = f"restart the agent of node {node.name}, which reports it anew"
        cards = []
        for each in json_array(INVENTORY, text, remedy):
            if not isinstance(each, dict):
                raise DialectError(INVENTORY, each, "a card must be a JSON object", remedy)
            kind = each.get("kind", CardKind.GPU.value)
            if kind not in (CardKind.GPU.value, CardKind.MIG.value):
                raise DialectError(f"{INVENTORY}: kind", kind, "it must be gpu or mig", remedy)
            cards.append(
                Card(
                    uuid=card_uuid(f"{INVENTORY}: uuid", text_of(each, INVENTORY, "uuid", remedy)),
                    kind=CardKind(kind),
                    model=str(each.get("model", "")),
                    memory_bytes=integer(
                        f"{INVENTORY}: memory_bytes", each.get("memory_bytes"), 0, MAX_BYTES, remedy
                    ),
                    slots=integer(f"{INVENTORY}: slots", each.get("slots"), 0, 1 << 31, remedy),
                    # Absent health is no health: nothing is sold that nobody vouches for.
                    healthy=each.get("healthy") is True,
                    health_reason=str(each.get("health_reason", "")),
                    parent_uuid=str(each.get("parent_uuid", "")),
                    numa_node=integer(
                        f"{INVENTORY}: numa_node", each.get("numa_node", 0), 0, 1 << 31, remedy
                    ),
                    minor=integer(f"{INVENTORY}: minor", each["minor"], 0, 1 << 20, remedy)
                    if "minor" in each
                    else -1,
                )
            )
        return Registration(dialect=self.name, cards=tuple(cards))

    def encode_inventory(self, cards: tuple[Card, ...]) -> dict[str, str]:
        """Return the node annotation from which `parse_node` reads the same cards."""
        listed = []
        for card in cards:
            each: dict[str, Any] = {
                "uuid": card.uuid,
                "kind": card.kind.value,
                "model": card.model,
                "memory_bytes": card.memory_bytes,
                "slots": card.slots,
                "healthy": card.healthy,
                "numa_node": card.numa_node,
            }
            if card.health_reason:
                each["health_reason"] = card.health_reason
            if card.parent_uuid:
                each["parent_uuid"] = card.parent_uuid
            if card.minor >= 0:
                each["minor"] = card.minor
            listed.append(each)
        return {INVENTORY: _compact(listed)}

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return the signed allocation, to be written on the Binding."""
        first = next(iter(allocations.values()))
        source: dict[str, Any] = {
            "version": _VERSION,
            "node": first.node_name,
            "epoch": first.epoch,
            "containers": {
                name: [
                    {
                        "card": part.card_uuid,
                        "memory_bytes": part.memory_bytes,
                        "cores_percent": part.cores_percent,
                        "reserved_percent": part.reserved_percent,
                        "cores_max_percent": part.cores_max_percent,
                        "compute_mode": part.compute_mode.value,
                        "priority": part.priority,
                        "weight": part.weight,
                    }
                    for part in allocation.slices
                ]
                for name, allocation in allocations.items()
            },
            "key": self._keyring.current.name,
        }
        exclusive = sorted(name for name, each in allocations.items() if each.exclusive)
        if exclusive:
            source["exclusive"] = exclusive
        if any(each.account_id for each in allocations.values()):
            source["pod_level"] = True
        source["mac"] = self._keyring.sign(_signed(pod.uid, source))
        return {ALLOCATION: _compact(source)}

    def _doubt(self, pod: Pod, source: dict[str, Any]) -> str:
        key, mac = source.get("key"), source.get("mac")
        if not isinstance(key, str) or not isinstance(mac, str):
            return f"{ALLOCATION} has no key and MAC"
        if not self._keyring.knows(key):
            return (
                f"{ALLOCATION} is signed with key {key[:64]!r}, which is neither the current nor "
                f"the previous one (the current one is {self._keyring.current.name!r}); put it "
                "back as `previous` into the Secret of the keys, or create the pod anew"
            )
        unsigned = {name: value for name, value in source.items() if name != "mac"}
        if not self._keyring.proves(key, _signed(pod.uid, unsigned), mac):
            return f"the MAC of {ALLOCATION} is wrong: somebody else wrote it, or for another pod"
        return ""


def cordoned(node: KubeNode) -> frozenset[str]:
    """Return the UUIDs that people took out of service (`vgpu.dev/cordon`, a comma list)."""
    return frozenset(items(node.annotations.get(CORDON, "")))


def _signed(pod_uid: str, source: dict[str, Any]) -> bytes:
    """Return what the MAC covers: everything said, and whose it is, so that no pod can copy it."""
    try:
        return _compact({"pod_uid": pod_uid, "allocation": source}).encode()
    except UnicodeEncodeError:
        return b""  # a lone surrogate: nothing that we wrote


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _container_request(pod: Pod, container: Container, listed: object) -> Request | None:
    where = f"of container {container.name!r}"
    texts = {resource: container.asked(resource) for resource in _RESOURCES}
    if listed is None and all(text is None for text in texts.values()):
        return None
    count_text = texts[COUNT]
    count = None if count_text is None else quantity(f"{COUNT} {where}", count_text, 1, MAX_SLICES)
    if listed is not None:
        amounts, cores = _listed(container, listed)
        if count is not None and count != len(amounts):
            raise DialectError(
                f"{COUNT} {where}",
                count_text,
                f"{DEVICES} lists {len(amounts)} cards",
                "let both agree",
            )
        for resource in (MEMORY, MEMORY_PERCENT, CORES):
            if texts[resource] is not None:
                raise DialectError(
                    f"{resource} {where}",
                    texts[resource],
                    f"{DEVICES} gives this container's amounts",
                    "remove one of the two",
                )
        count = len(amounts)
    else:
        amounts = (_memory(where, texts),)
        cores = (
            () if texts[CORES] is None else (quantity(f"{CORES} {where}", texts[CORES], 1, 100),)
        )
    mode = _choice(pod, COMPUTE_MODE, [each.value for each in ComputeMode])
    policy = _choice(pod, CARD_POLICY, [each.value for each in CardPolicy])
    return request_of(
        f"the request of container {container.name!r}",
        {resource: text for resource, text in texts.items() if text is not None},
        count=1 if count is None else count,
        memory=amounts,
        cores_percent=cores,
        compute_mode=ComputeMode(mode) if mode else None,
        uuids=tuple(names_in(pod, USE_UUID)),
        models=tuple(names_in(pod, USE_MODEL)),
        card_policy=CardPolicy(policy) if policy else None,
    )


def _memory(where: str, texts: Mapping[str, str | None]) -> MemoryAmount:
    size, percent = texts[MEMORY], texts[MEMORY_PERCENT]
    if (size is None) == (percent is None):
        raise DialectError(
            f"{MEMORY} {where}",
            size or "",
            "memory is required, in bytes or as a percentage, not both",
            f"set {MEMORY} or {MEMORY_PERCENT}",
        )
    if percent is not None:
        return MemoryAmount(percent=quantity(f"{MEMORY_PERCENT} {where}", percent, 1, 100))
    return MemoryAmount(bytes=_bytes(f"{MEMORY} {where}", size))


def _bytes(field: str, text: object) -> int:
    number = quantity(field, text, 1)
    if number < _LEAST_BYTES:
        raise DialectError(
            field, text, f"it must be {_LEAST_TEXT} or more", "add the unit, such as 8Gi"
        )
    return number


def _listed(
    container: Container, listed: object
) -> tuple[tuple[MemoryAmount, ...], tuple[int, ...]]:
    """Return the unequal amounts of `vgpu.dev/devices`; cores are given for all cards or for
    none.
    """
    field = f"{DEVICES} of container {container.name!r}"
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_SLICES:
        raise DialectError(field, listed, f"it must list 1..{MAX_SLICES} cards", "correct the list")
    amounts, cores = [], []
    for each in listed:
        if not isinstance(each, dict) or not each.keys() <= {"memory", "cores"}:
            raise DialectError(
                field, each, 'a card is {"memory":"8Gi","cores":30}', "correct the list"
            )
        size = each.get("memory")
        if isinstance(size, str) and size.endswith("%"):
            amounts.append(MemoryAmount(percent=integer(f"{field}: memory", size[:-1], 1, 100)))
        else:
            amounts.append(MemoryAmount(bytes=_bytes(f"{field}: memory", size)))
        if "cores" in each:
            cores.append(integer(f"{field}: cores", each["cores"], 1, 100))
    if cores and len(cores) != len(amounts):
        raise DialectError(
            field, listed, "cores are given for some of the cards", "give them for all or for none"
        )
    return tuple(amounts), tuple(cores)


def _choice(pod: Pod, annotation: str, choices: list[str]) -> str:
    text = pod.annotations.get(annotation)
    if text is None:
        return ""
    if text not in choices:
        raise DialectError(
            annotation, text, f"it must be one of {', '.join(choices)}", "correct the annotation"
        )
    return text


def _stated(name: str, parts: object) -> tuple[StatedSlice, ...]:
    field = f"{ALLOCATION}: container {name!r}"
    if not isinstance(parts, list) or len(parts) > MAX_SLICES:
        raise DialectError(field, parts, f"it must list at most {MAX_SLICES} slices", FIX_DECISION)
    return tuple(_stated_slice(field, each) for each in parts)


def _stated_slice(field: str, source: object) -> StatedSlice:
    if not isinstance(source, dict):
        raise DialectError(field, source, "a slice must be a JSON object", FIX_DECISION)

    def number(key: str, low: int, high: int) -> int:
        return integer(f"{field}: {key}", source.get(key), low, high, FIX_DECISION)

    mode = source.get("compute_mode")
    if mode not in (ComputeMode.HARD.value, ComputeMode.BURST.value):
        raise DialectError(f"{field}: compute_mode", mode, "it must be hard or burst", FIX_DECISION)
    cores = number("cores_percent", 1, 100)
    reserved = number("reserved_percent", 0, 100)
    if reserved not in (0, cores):
        raise DialectError(
            f"{field}: reserved_percent", reserved, f"it must be 0 or {cores}", FIX_DECISION
        )
    priority = source.get("priority")
    if not isinstance(priority, int) or abs(priority) >= 1 << 31:
        raise DialectError(f"{field}: priority", priority, "it must be a number", FIX_DECISION)
    return StatedSlice(
        card=card_uuid(f"{field}: card", text_of(source, field, "card")),
        memory=MemoryAmount(bytes=number("memory_bytes", 1, MAX_BYTES)),
        cores_percent=cores,
        reserved_percent=reserved,
        cores_max_percent=number("cores_max_percent", cores, 100),
        compute_mode=ComputeMode(mode),
        priority=priority,
        weight=number("weight", 1, 1 << 31),
    )
