# SPDX-License-Identifier: Apache-2.0
"""Which resources a node advertises, and how many of each a card is; pure.

A resource is only ever a number here. Which card a container gets is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import DevicePlugin

_MIB = 2**20
_GIB = 2**30
# Source: gpu-manager, pkg/types, MemoryBlockSize.
_VCUDA_BLOCK = 256 * _MIB


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One extended resource of the node."""

    name: str
    count: Callable[[pb.Card], int]
    """How many of it one card is."""


def resources_of(settings: DevicePlugin) -> tuple[Resource, ...]:
    """Return the resources of all dialects that this node speaks."""
    return tuple(each for dialect in settings.dialects for each in _resources(dialect, settings))


def _resources(dialect: str, settings: DevicePlugin) -> Iterator[Resource]:
    match dialect:
        case "native":
            yield Resource(name="vgpu.dev/count", count=_slots)
        case "hami" if settings.claim_bare_gpu:
            yield Resource(name="nvidia.com/gpu", count=_slots)
        case "volcano":
            # Its scheduler passes over nodes that lack any of the three.
            yield Resource(name="volcano.sh/vgpu-number", count=_slots)
            yield Resource(
                name="volcano.sh/vgpu-memory", count=_memory(settings.volcano_memory_factor * _MIB)
            )
            yield Resource(name="volcano.sh/vgpu-cores", count=_percent)
        case "gpu_manager":
            yield Resource(name="tencent.com/vcuda-core", count=_percent)
            yield Resource(name="tencent.com/vcuda-memory", count=_memory(_VCUDA_BLOCK))
        case "alnair":
            yield Resource(name="alnair/vgpu-memory", count=_memory(_GIB))
            yield Resource(name="alnair/vgpu-compute", count=_percent)


def _slots(card: pb.Card) -> int:
    return card.slots


def _percent(_: pb.Card) -> int:
    return 100


def _memory(unit_bytes: int) -> Callable[[pb.Card], int]:
    return lambda card: card.memory_bytes // unit_bytes
