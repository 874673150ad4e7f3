# SPDX-License-Identifier: Apache-2.0
"""tkestack's gpu-manager with gpu-admission, and GPUSharing on top: `tencent.com/*`. Pure.

Source: gpu-admission pkg/{predicate,algorithm}, gpu-manager pkg/services, vcuda-controller.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    integer,
    items,
    memory,
    quantity,
    request_of,
    seconds_ns,
)
from scheduler_cache.model import (
    MAX_SLICES,
    Allocation,
    Card,
    ComputeMode,
    MemoryAmount,
    Request,
)
from scheduler_cache.pod import Container, KubeNode, Pod

CORES = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORE_LIMIT = "tencent.com/vcuda-core-limit"
INDEX = "tencent.com/predicate-gpu-idx-"
NODE = "tencent.com/predicate-node"
TIME = "tencent.com/predicate-time"
ASSIGNED = "tencent.com/gpu-assigned"

BLOCK_BYTES = 256 << 20


class GpuManager(Dialect):
    """gpu-manager's dialect. Only limits count; init containers get no card."""

    name = "gpu_manager"

    vocabulary = Vocabulary(
        resources=(CORES, MEMORY),
        annotations=(CORE_LIMIT,),
        decision_annotations=(INDEX, NODE, TIME, ASSIGNED),
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether a container has a limit of cores or memory."""
        return any(_asks(each) for each in pod.app_containers)

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return each container's request; `vcuda-core-limit` makes cores a floor with a
        ceiling.
        """
        return PodRequest(
            dialect=self.name,
            containers={
                each.name: _request(pod, each) for each in pod.app_containers if _asks(each)
            },
        )

    def decided(self, pod: Pod) -> bool:
        """Return whether a container has an index list."""
        return any(name.startswith(INDEX) for name in pod.annotations)

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the cards by their minor number; the amounts are those of the request."""
        found: dict[str, tuple[StatedSlice, ...]] = {}
        apps = pod.app_containers
        for key, text in pod.annotations.items():
            if not key.startswith(INDEX):
                continue
            place = integer(INDEX + "<i>", key[len(INDEX) :], 0, 1 << 16, FIX_DECISION)
            minors = [integer(key, each, 0, 1 << 20, FIX_DECISION) for each in items(text)]
            if place >= len(apps) or not _asks(apps[place]):
                raise DialectError(key, text, "its container asks for no card", FIX_DECISION)
            request = _request(pod, apps[place])
            if len(minors) != request.count:
                raise DialectError(
                    key, text, f"its container asks for {request.count} cards", FIX_DECISION
                )
            whole = request.whole_cards
            found[apps[place].name] = tuple(
                StatedSlice(
                    card=str(minor),
                    named=Named.MINOR,
                    memory=request.memory[0],
                    cores_percent=100 if whole else request.cores_percent[0],
                    cores_max_percent=request.cores_max_percent,
                    compute_mode=request.compute_mode or ComputeMode.HARD,
                )
                for minor in minors
            )
        return Decision(
            dialect=self.name,
            node_name=pod.annotations.get(NODE, ""),
            decided_unix_ns=seconds_ns(pod.annotations.get(TIME)),
            containers=found,
        )

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return that the plugin sells every card: it registers capacity, and names no card."""
        if node.allocatable.get(CORES, "0") == "0":
            return None
        return Registration(dialect=self.name, cards=(), every_card=True, resource=CORES)

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return the index lists, as after a plugin's work; nothing where a minor is not known."""
        written = {
            NODE: next(iter(allocations.values())).node_name,
            ASSIGNED: "true",
        }
        for place, each in enumerate(pod.app_containers):
            if each.name not in allocations:
                continue
            slices = allocations[each.name].slices
            minors = [cards[part.card_uuid].minor for part in slices if part.card_uuid in cards]
            if len(minors) < len(slices) or min(minors) < 0:
                return {}
            written[f"{INDEX}{place}"] = ",".join(map(str, minors))
        return written


def _asks(container: Container) -> bool:
    return any(container.limits.get(resource, "0") != "0" for resource in (CORES, MEMORY))


def _request(pod: Pod, container: Container) -> Request:
    core_field, memory_field = (
        f"{resource} of container {container.name!r}" for resource in (CORES, MEMORY)
    )
    text, blocks_text = container.limits.get(CORES, "0"), container.limits.get(MEMORY, "0")
    cores = quantity(core_field, text, 1, 100 * MAX_SLICES)
    limit_text = pod.annotations.get(CORE_LIMIT)
    limit = 0 if limit_text is None else integer(CORE_LIMIT, limit_text, 1, 100)
    if cores >= 100:
        if cores % 100:
            raise DialectError(
                core_field, text, "above 100 it must be a multiple of 100", "ask for whole cards"
            )
        # Memory and the limit are ignored: the cards are whole.
        return request_of(
            core_field,
            text,
            count=cores // 100,
            memory=(MemoryAmount(percent=100),),
            cores_percent=(100,),
        )
    blocks = quantity(memory_field, blocks_text, 1, 1 << 32)
    return request_of(
        core_field,
        text,
        memory=(memory(memory_field, blocks * BLOCK_BYTES, blocks_text),),
        cores_percent=(cores,),
        compute_mode=ComputeMode.BURST if limit else ComputeMode.HARD,
        cores_max_percent=max(limit, cores) if limit else 0,
    )
