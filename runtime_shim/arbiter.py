# SPDX-License-Identifier: Apache-2.0
"""The slot arbiter's thread, and what it has to know: who is on which card, with which weight.

The thread is native (hook_c/arbiter): it decides several hundred times a second. Without it, or
when it shows no sign of life for 200 ms, every container keeps to its own share by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import cffi

from runtime_shim.errors import RefusedError
from runtime_shim.region import Region, Regions
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

LIBRARY_NAME: Final = "libvgpu-arbiter.so"
_MOST_CARDS = 64
_FOLLOW_SECONDS = 0.1
_HEADER = Path(__file__).with_name("vgpu_arbiter.h").read_text()

_ffi = cffi.FFI()
_ffi.cdef(_HEADER.partition("/* arbiter: begin */")[2].partition("/* arbiter: end */")[0])


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What a container has had of its cards while others wanted them, too."""

    held_ns: int
    turns: int


@dataclass(kw_only=True)
class _Tenant:
    region: Region
    number: int
    weight: int


class Arbiter:
    """One arbiter for all regions of the node. Calls from any thread."""

    def __init__(self, library: Path) -> None:
        """Start the thread; OSError when the library cannot be loaded."""
        self._native = cast(Any, _ffi.dlopen(os.fspath(library)))
        self._handle = self._native.vgpu_arbiter_start()
        if self._handle == _ffi.NULL:
            raise OSError(_ffi.errno, os.strerror(_ffi.errno), "the arbiter's thread")
        self._lock = threading.Lock()
        self._tenants: dict[str, _Tenant] = {}
        self._cards: dict[str, int] = {}
        self._told: set[str] = set()

    def follow(self, regions: Sequence[Region]) -> None:
        """Arbitrate between exactly these containers from now on."""
        with self._lock:
            if self._handle != _ffi.NULL:
                self._follow(regions)

    def _follow(self, regions: Sequence[Region]) -> None:
        present = {region.allocation.allocation_id: region for region in regions}
        for allocation_id, gone in list(self._tenants.items()):
            if present.get(allocation_id) is not gone.region:
                del self._tenants[allocation_id]
                self._native.vgpu_arbiter_remove(self._handle, gone.number)
        counts = _sharers(regions)
        self._cards = {uuid: number for uuid, number in self._cards.items() if uuid in counts}
        self._told &= present.keys()
        for allocation_id, region in present.items():
            try:
                self._follow_one(region, counts)
            except Exception as error:  # one container's files must not end the turns of all others
                self._say_without_turns(allocation_id, repr(error))

    def _follow_one(self, region: Region, counts: Mapping[str, int]) -> None:
        first = region.allocation.slices[0]
        weight = first.weight or max(1, first.reserved_percent)
        known = self._tenants.get(region.allocation.allocation_id)
        tenant: _Tenant | None = known or self._add(region, weight)
        if tenant is not None and tenant.weight != weight:
            tenant.weight = weight
            self._native.vgpu_arbiter_set_weight(self._handle, tenant.number, tenant.weight)
        region.set_alone(_alone(region, counts), wake=known is None and tenant is not None)

    def _say_without_turns(self, allocation_id: str, reason: str) -> None:
        """Say it once: it is tried again at every look."""
        if allocation_id not in self._told:
            self._told.add(allocation_id)
            logger.warning(
                "no turns for a container: it keeps to its own share",
                extra={"allocation_id": allocation_id, "reason": reason},
            )

    def turns(self) -> dict[str, Turns]:
        """Return what each container has had, by allocation."""
        with self._lock:
            counts = {
                allocation_id: self._native.vgpu_arbiter_read(self._handle, tenant.number)
                for allocation_id, tenant in self._tenants.items()
            }
        return {
            allocation_id: Turns(held_ns=count.held_ns, turns=count.turns)
            for allocation_id, count in counts.items()
        }

    def close(self) -> None:
        """End the thread; the containers keep to their own shares."""
        with self._lock:
            if self._handle != _ffi.NULL:
                self._native.vgpu_arbiter_stop(self._handle)
                self._handle = _ffi.NULL
                self._tenants.clear()

    def _number_of(self, card_uuid: str) -> int:
        """Return the card's number among those that are in use."""
        taken = set(self._cards.values())
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        return self._cards.setdefault(card_uuid, free)

    def _add(self, region: Region, weight: int) -> _Tenant | None:
        cards = [self._number_of(part.card_uuid) for part in region.allocation.slices]
        number = (
            self._native.vgpu_arbiter_add(
                self._handle,
                os.fsencode(region.limits_path),
                os.fsencode(region.usage_path),
                cards,
                len(cards),
                weight,
            )
            if max(cards) < _MOST_CARDS
            else -1
        )
        if number < 0:
            self._say_without_turns(region.allocation.allocation_id, os.strerror(-number))
            return None
        tenant = _Tenant(region=region, number=number, weight=weight)
        self._tenants[region.allocation.allocation_id] = tenant
        return tenant


def _sharers(regions: Sequence[Region]) -> Mapping[str, int]:
    """Return how many containers are on each card."""
    return Counter(part.card_uuid for region in regions for part in region.allocation.slices)


def _alone(region: Region, counts: Mapping[str, int]) -> list[bool]:
    return [counts[part.card_uuid] == 1 for part in region.allocation.slices]


def _say_who_is_alone(regions: Sequence[Region]) -> None:
    counts = _sharers(regions)
    for region in regions:
        region.set_alone(_alone(region, counts))


async def arbitrate(library: Callable[[], Path], regions: Regions) -> None:
    """Keep an arbiter that follows the node's regions, until cancelled.

    `library` returns the arbiter's verified file. Raises RefusedError and OSError.
    """
    try:
        arbiter = Arbiter(library())
    except (RefusedError, OSError) as error:
        logger.error(
            "no arbiter: containers that share a card keep to less than their shares",
            extra={"reason": str(error)},
        )
        # What was alone may not stay so: it would take what a newcomer is promised.
        while True:
            await in_thread(partial(_say_who_is_alone, regions.all()))
            await asyncio.sleep(_FOLLOW_SECONDS)
    try:
        while True:
            try:
                await in_thread(partial(arbiter.follow, regions.all()))
            except Exception:  # one container's files must not end the turns of all others
                logger.exception("a container cannot be followed")
            await asyncio.sleep(_FOLLOW_SECONDS)
    finally:
        arbiter.close()
