# SPDX-License-Identifier: Apache-2.0
"""Signs of life, damaged usage files and overhead, on real files; NVML says what a test wants."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.abi import LIMITS_BYTES, ffi
from runtime_shim.answers import Answer, AnswerStore
from runtime_shim.claims import Claims
from runtime_shim.config import Policy
from runtime_shim.enforcement import Enforcer, Sight
from runtime_shim.errors import InventoryError
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory, Xid
from runtime_shim.meter import Meter
from runtime_shim.readings import ProcessReading
from runtime_shim.region import Region, Regions
from tests.runtime_shim.allocations import GIB, allocation, answer
from tests.runtime_shim.containers import Process, write_runc_state
from tests.runtime_shim.test_region import write_slot


class Cache:
    async def release(self, allocation_id: str) -> None:
        pass


class Nvml:
    def __init__(self) -> None:
        self.held: list[CardProcess] | InventoryError = []
        self.loads: CardLoad | InventoryError = InventoryError("NVML does not say")
        self.found: list[CardFacts] = []

    def cards(self) -> list[CardFacts]:
        return self.found

    def processes(self, uuid: str) -> list[CardProcess]:
        if isinstance(self.held, InventoryError):
            raise self.held
        return self.held

    def load(self, uuid: str) -> CardLoad:
        if isinstance(self.loads, InventoryError):
            raise self.loads
        return self.loads

    def xids(self) -> list[Xid]:
        return []


class Node:
    """A node with one running container whose init is `init`."""

    def __init__(self, folder: Path, init: Process) -> None:
        self.folder = folder
        self.init = init
        self.nvml = Nvml()
        self.inventory = Inventory(self.nvml)
        self.store = AnswerStore(folder / "answers")
        self.regions = Regions(folder / "containers")
        self.claims = Claims(self.store, self.regions, Cache(), lambda: None)
        self.meter = Meter(self.claims, self.regions, self.inventory)

    async def start(self) -> Region:
        self.store.load()
        self.regions.prepare()
        cgroup = self.folder / "cgroup"
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text(f"{self.init.pid}\n")
        self.answer: Answer = answer(
            allocation(root=str(self.folder / "root")), engine_directory=str(self.folder)
        )
        self.store.put(self.answer)
        region = self.regions.create(self.answer.allocation, b"")
        write_runc_state(self.folder / "root", "c1", self.init.pid, cgroup=cgroup)
        pidfd = os.pidfd_open(self.init.pid)
        self.claims.started(self.answer, pidfd)
        os.close(pidfd)
        await self.claims.look()
        return region

    def stop(self) -> None:
        self.claims.close()
        self.regions.close()
        self.regions.sweep(())
        self.inventory.close()


@pytest.fixture
def init() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
async def node(tmp_path: Path, init: Process) -> AsyncIterator[Node]:
    node = Node(tmp_path, init)
    yield node
    node.stop()


def limits_of(region: Region) -> Any:  # noqa: ANN401 - a cffi struct
    limits = ffi.new("struct vgpu_limits *")
    ffi.memmove(limits, region.limits_path.read_bytes(), LIMITS_BYTES)
    return limits


async def ticks(node: Node, count: int = 3) -> None:
    for _ in range(count):
        await node.meter.tick()


async def test_a_running_container_sees_the_agent_live(node: Node) -> None:
    region = await node.start()
    before = time.monotonic_ns()

    await node.meter.tick()

    assert limits_of(region).heartbeat_ns >= before


async def test_what_nvml_sees_beyond_the_account_is_overhead(node: Node, init: Process) -> None:
    region = await node.start()
    write_slot(region.usage_path, 0, GIB)
    node.nvml.held = [
        CardProcess(pid=init.pid, used_bytes=GIB + 500),
        CardProcess(pid=os.getpid(), used_bytes=7 * GIB),  # somebody else's
    ]

    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == 500


async def test_what_children_keep_hides_no_overhead(node: Node, init: Process) -> None:
    region = await node.start()
    write_slot(region.usage_path, 0, GIB // 2)
    write_slot(region.usage_path, 1, GIB, flags=1)
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB // 2 + 500)]

    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == 500


async def test_an_erased_account_gains_nothing(node: Node, init: Process) -> None:
    region = await node.start()
    write_slot(region.usage_path, 0, GIB)
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB)]
    await ticks(node)
    assert limits_of(region).dev[0].overhead_bytes == 0

    write_slot(region.usage_path, 0, 0)
    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == GIB


async def test_a_blind_look_frees_nothing(node: Node, init: Process) -> None:
    region = await node.start()
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB)]
    await ticks(node)
    assert limits_of(region).dev[0].overhead_bytes == GIB

    node.nvml.held = InventoryError("NVML cannot list the processes")
    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == GIB


async def test_the_overhead_falls_at_the_first_look_that_finds_no_process(
    node: Node, init: Process
) -> None:
    region = await node.start()
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=40 * GIB)]
    await ticks(node)
    assert limits_of(region).dev[0].overhead_bytes == 40 * GIB

    node.nvml.held = []
    await ticks(node, 1)

    assert limits_of(region).dev[0].overhead_bytes == 0


async def test_one_odd_look_refuses_nobody(node: Node, init: Process) -> None:
    region = await node.start()
    await ticks(node)

    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB)]
    await ticks(node, 2)

    assert limits_of(region).dev[0].overhead_bytes == 0


async def test_an_account_above_nvml_is_no_overhead(node: Node) -> None:
    region = await node.start()
    write_slot(region.usage_path, 0, GIB)

    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == 0


@pytest.mark.parametrize("size", [0, 1 << 30])
async def test_a_damaged_file_is_one_event_and_is_repaired(
    node: Node, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    region = await node.start()
    wanted = region.usage_path.stat().st_size
    for _ in range(3):
        os.truncate(region.usage_path, size)

        await node.meter.tick()

        assert region.usage_path.stat().st_size == wanted
    assert caplog.messages.count("usage file damaged") == 1
    assert f"size is {size}" in caplog.records[-1].__dict__["reason"]


async def test_a_file_that_is_gone_hurts_nobody(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    region = await node.start()
    region.usage_path.unlink()

    await ticks(node)

    assert "usage file damaged" in caplog.messages
    assert limits_of(region).heartbeat_ns > 0


def set_slots_high(path: Path, slots_high: int) -> None:
    with path.open("r+b") as file:
        file.seek(ffi.offsetof("struct vgpu_usage", "slots_high"))
        file.write(slots_high.to_bytes(4, "little"))


async def test_a_word_that_goes_down_hides_no_slot(
    node: Node, init: Process, caplog: pytest.LogCaptureFixture
) -> None:
    region = await node.start()
    write_slot(region.usage_path, 3, GIB)
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB + 500)]
    await ticks(node)

    set_slots_high(region.usage_path, 0)
    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == 500
    assert "usage file damaged" in caplog.messages
    assert "only 0 slots" in caplog.records[-1].__dict__["reason"]


async def test_no_claim_hides_what_is_above_the_limit(node: Node, init: Process) -> None:
    region = await node.start()
    for slot in range(8):
        write_slot(region.usage_path, slot, 100 * GIB)
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=16 * GIB)]

    await ticks(node)

    assert limits_of(region).dev[0].overhead_bytes == 14 * GIB


async def test_the_enforcer_sees_containers_and_strangers(node: Node, init: Process) -> None:
    await node.start()
    seen: list[Sight] = []

    class Recorder(Enforcer):
        async def look(self, sight: Sight) -> None:
            seen.append(sight)

    recorder = Recorder(Policy(), Path("/none/libvgpu.so"), node.folder)
    meter = Meter(node.claims, node.regions, node.inventory, recorder)
    node.nvml.held = [
        CardProcess(pid=init.pid, used_bytes=3 * GIB),
        CardProcess(pid=os.getpid(), used_bytes=7 * GIB),
    ]

    await meter.tick()

    (sight,) = seen
    (holding,) = sight.holdings
    assert holding.allocation_id == node.answer.allocation_id
    assert (holding.limit_bytes, holding.held_bytes) == (2 * GIB, 3 * GIB)
    assert holding.pids == (init.pid,)
    assert sight.inits[node.answer.allocation_id].pid == init.pid
    assert list(sight.strangers) == [os.getpid()]
    assert sight.complete


async def test_what_libvgpu_writes_when_it_finds_a_forgery_is_one_event(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    region = await node.start()
    await ticks(node)

    set_slots_high(region.usage_path, 1024)
    await ticks(node)

    assert [record.__dict__["reason"] for record in caplog.records] == [
        "the number of used slots was forged"
    ]
    assert region.slots_seen == 1024


def load(**busy_percent: int) -> CardLoad:
    busy = {int(pid[1:]): percent for pid, percent in busy_percent.items()}
    return CardLoad(used_bytes=5 * GIB, utilization_percent=60, busy_percent=busy)


async def start_with_card(node: Node) -> Region:
    region = await node.start()
    node.nvml.found = [
        CardFacts(
            uuid=node.answer.allocation.slices[0].card_uuid,
            kind=pb.CARD_KIND_GPU,
            model="m",
            memory_bytes=8 * GIB,
            minor=0,
            pci_bus_id="",
        )
    ]
    await node.inventory.refresh()
    return region


async def test_readings_have_a_container_from_its_first_moment(node: Node) -> None:
    await start_with_card(node)

    await node.meter.tick()

    (container,) = node.meter.readings.containers
    assert container.allocation_id == node.answer.allocation_id
    assert (container.limit_bytes, container.used_bytes, container.nvml_bytes) == (2 * GIB, 0, 0)
    assert (container.busy_seconds, container.refused, container.cores_percent) == (0, 0, 25)
    (card,) = node.meter.readings.cards
    assert (card.slices, card.slices_memory_bytes, card.slices_cores_percent) == (1, 2 * GIB, 25)
    assert (card.used_bytes, card.utilization_percent) == (None, None)
    assert node.inventory.errors[card.card_uuid] == 1


async def test_readings_say_what_nvml_sees(node: Node, init: Process) -> None:
    region = await start_with_card(node)
    write_slot(region.usage_path, 0, GIB)
    node.nvml.held = [CardProcess(pid=init.pid, used_bytes=GIB + 500)]
    node.nvml.loads = load(**{f"p{init.pid}": 40, f"p{os.getpid()}": 20})

    await ticks(node)

    (container,) = node.meter.readings.containers
    assert (container.used_bytes, container.nvml_bytes) == (GIB + 500, GIB + 500)
    assert container.processes == (ProcessReading(pid=init.pid, used_bytes=GIB + 500),)
    assert container.busy_percent == pytest.approx(40, abs=0.1)
    assert 0 < container.busy_seconds < 60
    (card,) = node.meter.readings.cards
    assert (card.used_bytes, card.utilization_percent) == (5 * GIB, 60)


async def test_readings_believe_no_impossible_count(node: Node) -> None:
    region = await start_with_card(node)
    write_slot(region.usage_path, 0, 0)
    await ticks(node, 1)
    with region.usage_path.open("r+b") as file:
        for name in ("busy_ns", "refused"):
            place = ffi.offsetof("struct vgpu_usage", "slot") + ffi.offsetof(
                "struct vgpu_usage_slot", "dev"
            )
            file.seek(place + ffi.offsetof("struct vgpu_usage_device", name))
            file.write(b"\xff" * 8)

    await ticks(node, 1)

    (container,) = node.meter.readings.containers
    assert container.busy_percent <= 100
    assert container.busy_seconds < 60
    assert container.refused < 60_000_000


async def test_readings_forget_a_container_that_ended(node: Node, init: Process) -> None:
    await start_with_card(node)
    await ticks(node, 1)
    init.end()
    (node.folder / "cgroup" / "cgroup.procs").write_text("")
    await node.claims.look()

    await ticks(node, 1)

    assert node.meter.readings.containers == ()
    (card,) = node.meter.readings.cards
    assert card.slices == 1, "a stopped container holds its slice"
