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
from dataclasses import dataclass, field
from functools import partial

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import Answer
from runtime_shim.claims import Claims, Held
from runtime_shim.counters import Counters
from runtime_shim.enforcement import Enforcer, Holding, Sight
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory
from runtime_shim.processes import Init, boottime_ns, cgroup_pids, pid_namespace
from runtime_shim.readings import (
    CardReading,
    ContainerReading,
    ProcessReading,
    Readings,
    Totals,
)
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


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What one tick has seen, for the readings."""

    usages: Mapping[str, Usage]
    """The last account of each container that has one, by allocation."""
    held: Mapping[str, Sequence[CardProcess]]
    """The processes on each card of which NVML said them."""
    owners: Mapping[int, str]
    running: Mapping[str, Answer]
    elapsed_seconds: float
    loads: Mapping[str, CardLoad | None] = field(default_factory=dict)


class Meter:
    """Looks at every running container once per `tick`."""

    def __init__(
        self,
        claims: Claims,
        regions: Regions,
        inventory: Inventory,
        enforcer: Enforcer | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`enforcer`: acts on what is seen; without it nobody does."""
        self.readings = Readings()
        """What the last tick saw, replaced as a whole."""
        self._counters = counters or Counters()
        self._totals: dict[str, Totals] = {}
        self._ticked = time.monotonic()
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
        shared = {part.card_uuid for each in measured for part in each.region.allocation.slices}
        whole = {part.card_uuid for answer, _ in running for part in answer.allocation.slices}
        held = {
            uuid: found
            for uuid in sorted(shared | whole)
            if (found := await self._inventory.processes(uuid)) is not None
        }
        owners = await in_thread(partial(_owners, running, _pids(held)))
        after = await in_thread(partial(self._read_all, measured))
        holdings = await in_thread(partial(self._publish, measured, (before, after), held, owners))
        if self._enforcer is not None:
            await self._enforcer.look(
                Sight(
                    holdings=holdings,
                    inits={answer.allocation_id: init for answer, init in running if init},
                    strangers={
                        process.pid: uuid
                        for uuid, found in held.items()
                        if uuid in shared
                        for process in found
                        if process.pid not in owners
                    },
                    complete=all(init is not None for _, init in running),
                )
            )
        now = time.monotonic()
        elapsed_seconds, self._ticked = now - self._ticked, now
        await self._take_readings(
            _Look(
                usages={
                    each.answer.allocation_id: usage
                    for each, usage in zip(measured, after, strict=True)
                },
                held=held,
                owners=owners,
                running={answer.allocation_id: answer for answer, _ in running},
                elapsed_seconds=elapsed_seconds,
                loads={
                    card.uuid: await self._inventory.load(card.uuid)
                    for card in self._inventory.healthy
                },
            )
        )

    async def _take_readings(self, look: _Look) -> None:
        everything = self._claims.held()
        self._totals = {key: self._totals[key] for key in look.running if key in self._totals}
        self.readings = Readings(
            unix_seconds=time.time(),
            containers=tuple(
                reading
                for each in everything
                if each.running or each.awaited
                for reading in self._container_readings(each, look)
            ),
            cards=tuple(
                _card_reading(card, everything, look.loads.get(card.uuid), self._inventory.failure)
                for card in self._inventory.cards
            ),
        )

    def _container_readings(self, each: Held, look: _Look) -> list[ContainerReading]:
        allocation, parts = each.allocation, each.allocation.slices
        allocation_id = allocation.allocation_id
        usage = look.usages.get(allocation_id)
        if usage is not None and len(usage.devices) != len(parts):
            usage = None
        totals = self._totals.get(allocation_id)
        elapsed_seconds = look.elapsed_seconds
        if totals is None or len(totals.busy_ns) != len(parts):
            totals = Totals.of(len(parts))
            if allocation_id in look.running:
                self._totals[allocation_id] = totals
                verdict_ns = look.running[allocation_id].verdict_boottime_ns
                elapsed_seconds = max(0.0, (boottime_ns() - verdict_ns) / 1e9)
        growth = totals.growth(usage.slots if usage is not None else {}, elapsed_seconds)
        region = self._regions.get(allocation_id)
        readings = []
        for index, part in enumerate(parts):
            processes = _processes(part.card_uuid, allocation_id, look)
            nvml_bytes = None if processes is None else sum(p.used_bytes for p in processes)
            busy_ns = _seen_busy_ns(part.card_uuid, allocation_id, look)
            if busy_ns is None:  # NVML does not say: a MIG instance
                busy_ns = growth[index].busy_ns
            totals.busy_ns[index] += busy_ns
            totals.refused[index] += growth[index].refused
            account = usage.devices[index].used_bytes if usage is not None else None
            beyond = region.overhead_bytes(index) if region is not None else 0
            readings.append(
                ContainerReading(
                    allocation_id=allocation_id,
                    container_id=each.container_id,
                    namespace=allocation.pod.namespace,
                    pod=allocation.pod.name,
                    container=allocation.pod.container_name,
                    card_uuid=part.card_uuid,
                    limit_bytes=part.memory_bytes,
                    used_bytes=nvml_bytes or 0 if account is None else account + beyond,
                    nvml_bytes=nvml_bytes,
                    cores_percent=part.cores_percent,
                    busy_seconds=totals.busy_ns[index] / 1e9,
                    busy_percent=_percent(busy_ns, look.elapsed_seconds),
                    refused=totals.refused[index],
                    running=each.running,
                    processes=tuple(
                        ProcessReading(pid=process.pid, used_bytes=process.used_bytes)
                        for process in processes or ()
                    ),
                )
            )
        return readings

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
        accounts: tuple[Sequence[Usage], Sequence[Usage]],
        held: dict[str, list[CardProcess]],
        owners: dict[int, str],
    ) -> list[Holding]:
        """`accounts`: before and after NVML was asked."""
        holdings: list[Holding] = []
        windows: dict[tuple[str, str], deque[int]] = {}
        for each, *usages in zip(measured, *accounts, strict=True):
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
                window.append(max(0, seen - max(_seen_by_nvml(usage, index) for usage in usages)))
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
            self._counters.events["damaged_usage"] += 1
            logger.warning(
                "usage file damaged", extra={"allocation_id": allocation_id, "reason": reason}
            )


def _seen_by_nvml(usage: Usage, index: int) -> int:
    """Return what of the account NVML sees, too."""
    if not usage.devices:
        return 0
    return usage.devices[index].used_bytes - usage.devices[index].kept_bytes


def _processes(card_uuid: str, allocation_id: str, look: _Look) -> list[CardProcess] | None:
    """Return the container's processes on a card; None when NVML does not say."""
    held = look.held.get(card_uuid)
    if held is None:
        return None
    return [each for each in held if look.owners.get(each.pid) == allocation_id]


def _seen_busy_ns(card_uuid: str, allocation_id: str, look: _Look) -> int | None:
    load = look.loads.get(card_uuid)
    if load is None or load.busy_percent is None:
        return None
    percent = sum(
        percent
        for pid, percent in load.busy_percent.items()
        if look.owners.get(pid) == allocation_id
    )
    return int(min(100, percent) * look.elapsed_seconds * 1e7)


def _percent(busy_ns: int, elapsed_seconds: float) -> float:
    return round(min(100.0, busy_ns / 1e7 / elapsed_seconds), 1) if elapsed_seconds > 0 else 0.0


def _card_reading(
    card: CardFacts, everything: Sequence[Held], load: CardLoad | None, failure: str
) -> CardReading:
    promised: list[pb.Slice] = [
        part
        for each in everything
        for part in each.allocation.slices
        if part.card_uuid == card.uuid
    ]
    return CardReading(
        card_uuid=card.uuid,
        model=card.model,
        health_reason=failure or card.health_reason,
        memory_bytes=card.memory_bytes,
        used_bytes=load.used_bytes if load is not None else None,
        utilization_percent=load.utilization_percent if load is not None else None,
        slices=len(promised),
        slices_memory_bytes=sum(part.memory_bytes for part in promised),
        slices_cores_percent=sum(part.reserved_percent for part in promised),
    )


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
