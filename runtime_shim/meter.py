# SPDX-License-Identifier: Apache-2.0
"""Measures the running containers: signs of life, damaged usage files, memory beyond the account.

`overhead_bytes` is what NVML sees of a container's processes beyond their own account: contexts,
and whatever a tenant has erased from its usage file. libvgpu adds it to what is used, so that an
erased account gains nothing. The account may change between two looks, and memory counted twice
would refuse an allocation that fits: so it is read before and after NVML, the larger counts, and
the smallest of the last few differences is published. The account is never believed beyond the
container's limit, so what NVML sees above that is published whatever a tenant writes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from runtime_shim.answers import Answer
from runtime_shim.claims import Claims
from runtime_shim.enforcement import Enforcer, Holding, Sight
from runtime_shim.inventory import CardProcess, Inventory
from runtime_shim.processes import Init, cgroup_pids, pid_namespace
from runtime_shim.region import Region, Regions, Usage, read_usage, repair_usage
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

# A tenant that damages its file without end makes one event in this time, not one a second.
_EVENT_SECONDS = 60.0
# Differences looked at; as many seconds pass until an erased account is made up for.
_WINDOW = 3


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """A running container with its files."""

    answer: Answer
    init: Init | None
    region: Region


class Meter:
    """Looks at every running container once per `tick`."""

    def __init__(
        self,
        claims: Claims,
        regions: Regions,
        inventory: Inventory,
        enforcer: Enforcer | None = None,
    ) -> None:
        """`enforcer`: acts on what is seen; without it nobody does."""
        self._claims = claims
        self._regions = regions
        self._inventory = inventory
        self._enforcer = enforcer
        self._reported: dict[str, float] = {}
        self._windows: dict[tuple[str, str], deque[int]] = {}

    async def tick(self) -> None:
        """Beat in every limits file, read every usage file, publish every overhead."""
        running = self._claims.running()
        measured = [
            _Measured(answer=answer, init=init, region=region)
            for answer, init in running
            if (region := self._regions.get(answer.allocation_id)) is not None
        ]
        self._reported = {
            key: since
            for key, since in self._reported.items()
            if time.monotonic() - since < _EVENT_SECONDS
        }
        before = await in_thread(partial(self._read_all, measured))
        cards = {part.card_uuid for each in measured for part in each.region.allocation.slices}
        held = {
            uuid: found
            for uuid in sorted(cards)
            if (found := await self._inventory.processes(uuid)) is not None
        }
        owners = await in_thread(partial(_owners, running, _pids(held)))
        holdings = await in_thread(partial(self._publish, measured, before, held, owners))
        if self._enforcer is not None:
            await self._enforcer.look(
                Sight(
                    holdings=holdings,
                    inits={answer.allocation_id: init for answer, init in running if init},
                    strangers={
                        process.pid: uuid
                        for uuid, found in held.items()
                        for process in found
                        if process.pid not in owners
                    },
                    complete=all(init is not None for _, init in running),
                )
            )

    def _read_all(self, measured: Sequence[_Measured]) -> list[Usage]:
        return [self._read(each.region) for each in measured]

    def _read(self, region: Region) -> Usage:
        region.beat(time.monotonic_ns())
        try:
            usage = read_usage(region.usage_path, region.allocation, region.slots_seen)
            region.slots_seen = max(region.slots_seen, usage.slots_high)
            if usage.damage:
                self._report_damage(region, usage.damage)
                repair_usage(region.usage_path)
        except OSError as error:
            self._report_damage(region, str(error))
            return Usage(devices=())
        return usage

    def _publish(
        self,
        measured: Sequence[_Measured],
        before: Sequence[Usage],
        held: dict[str, list[CardProcess]],
        owners: dict[int, str],
    ) -> list[Holding]:
        after = self._read_all(measured)
        holdings: list[Holding] = []
        windows: dict[tuple[str, str], deque[int]] = {}
        for each, *usages in zip(measured, before, after, strict=True):
            allocation_id = each.answer.allocation_id
            for index, part in enumerate(each.region.allocation.slices):
                key = (allocation_id, part.card_uuid)
                window = windows[key] = self._windows.get(key) or deque(maxlen=_WINDOW)
                if part.card_uuid not in held:
                    continue  # what was published stands: a blind look frees nothing
                own = [
                    process
                    for process in held[part.card_uuid]
                    if owners.get(process.pid) == allocation_id
                ]
                seen = sum(process.used_bytes for process in own)
                window.append(max(0, seen - max(_used(usage, index) for usage in usages)))
                each.region.set_overhead(index, min(window) if len(window) == _WINDOW else 0)
                holdings.append(
                    Holding(
                        allocation_id=allocation_id,
                        card_uuid=part.card_uuid,
                        limit_bytes=part.memory_bytes,
                        held_bytes=seen,
                        pids=tuple(process.pid for process in own),
                    )
                )
        self._windows = windows
        return holdings

    def _report_damage(self, region: Region, reason: str) -> None:
        allocation_id = region.allocation.allocation_id
        if allocation_id not in self._reported:
            self._reported[allocation_id] = time.monotonic()
            logger.warning(
                "usage file damaged", extra={"allocation_id": allocation_id, "reason": reason}
            )


def _used(usage: Usage, index: int) -> int:
    return usage.devices[index].used_bytes if usage.devices else 0


def _pids(held: Mapping[str, Sequence[CardProcess]]) -> set[int]:
    return {process.pid for found in held.values() for process in found}


def _owners(running: Sequence[tuple[Answer, Init | None]], pids: set[int]) -> dict[int, str]:
    """Return which allocation each host PID belongs to: by cgroup, else by PID namespace.

    Containers with a slice have a PID namespace of their own; some runtimes give them no cgroup.
    """
    owners: dict[int, str] = {}
    namespaces: dict[int, str] = {}
    host = pid_namespace(os.getpid())
    for answer, init in running:
        if init is None:
            continue
        if init.pid_namespace not in (0, host):
            namespaces[init.pid_namespace] = answer.allocation_id
        if init.cgroup is not None:
            owners.update(dict.fromkeys(cgroup_pids(init.cgroup), answer.allocation_id))
    for pid in pids - owners.keys():
        owner = namespaces.get(pid_namespace(pid))
        if owner is not None:
            owners[pid] = owner
    return owners
