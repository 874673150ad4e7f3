# SPDX-License-Identifier: Apache-2.0
"""Errors of cards and of programs, as the driver reports them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import health as health_module
from runtime_shim import probe as probe_module
from runtime_shim.health import Health
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory, Xid
from runtime_shim.probe import Probe, ProbeError
from runtime_shim.xids import OF_A_PROGRAM, OF_THE_CARD
from tests.fakes.gpu import Card, SimulatedGpu
from tests.runtime_shim.allocations import CARD, OTHER_CARD
from tests.runtime_shim.test_agent import until
from tests.runtime_shim.test_inventory import Nvml, card, nvml_of
from tests.testbed import BUILD


class Erring(Nvml):
    """NVML that reports errors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[CardFacts] = [card(CARD), card(OTHER_CARD)]
        self.news: list[Xid] = []

    def cards(self) -> list[CardFacts]:
        return self.found

    def processes(self, uuid: str) -> list[CardProcess]:
        return []

    def load(self, uuid: str) -> CardLoad:
        return CardLoad(used_bytes=None, utilization_percent=None, busy_percent=None)

    def xids(self) -> list[Xid]:
        news, self.news = self.news, []
        return news


class Site:
    """The health of two cards, with a clock and a probe that a test moves."""

    def __init__(self) -> None:
        self.nvml = Erring()
        self.inventory = Inventory(self.nvml)
        self.now = 1000.0
        self.works = False
        self.probed: list[str] = []
        self.changes = 0
        self.trying: Callable[[], None] = lambda: None
        self.health = Health(self.inventory, self, self._changed, lambda: self.now)

    def _changed(self) -> None:
        self.changes += 1

    @contextlib.asynccontextmanager
    async def context(self, card_uuid: str) -> AsyncIterator[int]:
        self.probed.append(card_uuid)
        self.trying()
        if not self.works:
            raise ProbeError("cuCtxCreate: 46")
        yield 1

    async def look(self, *xids: Xid) -> None:
        self.nvml.news += xids
        await self.health.look()

    def healthy(self) -> list[str]:
        return [each.uuid for each in self.inventory.messages(1) if each.healthy]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.inventory.refresh()
    yield site
    site.inventory.close()


def xid(number: int, uuid: str = CARD, gpu_instance: int = -1) -> Xid:
    return Xid(number=number, gpu_uuid=uuid, gpu_instance=gpu_instance)


@pytest.mark.parametrize("number", [*sorted(OF_A_PROGRAM), 9999])
async def test_what_a_program_did_costs_the_card_nothing(site: Site, number: int) -> None:
    """User pain D1: a tenant's bad kernel makes the card unhealthy for ever."""
    await site.look(xid(number))

    assert site.healthy() == [CARD, OTHER_CARD]
    assert site.changes == 0


@pytest.mark.parametrize("number", sorted(OF_THE_CARD))
async def test_an_error_of_the_card_holds_it_back_alone(site: Site, number: int) -> None:
    await site.look(xid(number))

    assert site.healthy() == [OTHER_CARD]
    assert site.inventory.messages(1)[0].health_reason.startswith(f"Xid {number}: ")
    assert [each.uuid for each in site.inventory.healthy] == [OTHER_CARD]
    with pytest.raises(KeyError, match=CARD):
        site.inventory.find([CARD])
    assert site.changes == 1


async def test_a_card_that_works_again_is_trusted_after_a_quiet_minute(site: Site) -> None:
    site.works = True
    await site.look(xid(48))

    site.now += 59
    await site.look()
    assert (site.healthy(), site.probed) == ([OTHER_CARD], [])

    site.now += 1
    await site.look()
    assert (site.healthy(), site.probed) == ([CARD, OTHER_CARD], [CARD])
    assert site.changes == 2


async def test_a_card_that_does_not_work_is_tried_each_minute(site: Site) -> None:
    await site.look(xid(95))

    for _ in range(3):
        site.now += 60
        await site.look()
        await site.look()

    assert site.healthy() == [OTHER_CARD]
    assert site.probed == [CARD] * 3
    assert site.changes == 1


async def test_a_new_error_begins_the_minute_anew(site: Site) -> None:
    site.works = True
    await site.look(xid(62))
    site.now += 50
    await site.look(xid(119))
    site.now += 50
    await site.look()

    assert site.probed == []
    assert "Xid 119" in site.inventory.messages(1)[0].health_reason


async def test_what_another_look_at_cards_finds_does_not_heal(site: Site) -> None:
    await site.look(xid(79))

    await site.inventory.refresh()

    assert site.healthy() == [OTHER_CARD]


async def test_a_card_that_went_away_is_forgotten(site: Site) -> None:
    await site.look(xid(79))
    site.nvml.found = [card(OTHER_CARD)]
    await site.inventory.refresh()
    site.now += 60
    await site.look()
    site.nvml.found = [card(CARD), card(OTHER_CARD)]
    await site.inventory.refresh()

    assert site.healthy() == [CARD, OTHER_CARD]


async def test_an_error_of_a_card_that_is_not_known_holds_back_nobody(site: Site) -> None:
    await site.look(xid(79, uuid=""))

    assert site.healthy() == [CARD, OTHER_CARD]


async def test_what_nobody_has_thought_of_does_not_end_the_look(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "_LOOK_SECONDS", 0.01)
    broken = True

    def xids() -> list[Xid]:
        nonlocal broken
        if broken:
            broken = False
            raise ValueError("an odd name of a card")
        return [xid(79)]

    monkeypatch.setattr(site.nvml, "xids", xids)
    looking = asyncio.create_task(site.health.run())
    await until(lambda: site.healthy() == [OTHER_CARD])
    looking.cancel()


async def test_a_card_is_held_back_before_another_one_is_tried(site: Site) -> None:
    """To try a card whose driver hangs takes half a minute, in which creates would go on."""
    await site.look(xid(79))
    site.now += 60
    healthy: list[list[str]] = []
    site.trying = lambda: healthy.append(site.healthy())
    await site.look(xid(48, OTHER_CARD))

    assert healthy == [[]]


def instance(uuid: str, gpu_instance: int) -> CardFacts:
    return dataclasses.replace(
        card(uuid), kind=pb.CARD_KIND_MIG, parent_uuid=CARD, gpu_instance=gpu_instance
    )


@pytest.mark.parametrize(
    ("error", "held"),
    [(xid(95, gpu_instance=2), ["MIG-b"]), (xid(95), ["MIG-a", "MIG-b"])],
    ids=["of-an-instance", "of-the-gpu"],
)
async def test_an_error_hits_the_mig_instances_where_it_happened(
    site: Site, error: Xid, held: list[str]
) -> None:
    site.nvml.found = [instance("MIG-a", 1), instance("MIG-b", 2), card(OTHER_CARD)]
    await site.inventory.refresh()

    await site.look(error)

    sick = [each.uuid for each in site.inventory.messages(1) if not each.healthy]
    assert sick == held


def errors_of(gpu: SimulatedGpu, *steps: str) -> list[tuple[int, str]]:
    """Return what the real client of NVML tells after `steps`; `sim` are the cards."""
    sim = f"SimulatedGpu(pathlib.Path({str(gpu.directory)!r}))"
    done = ", ".join(step.replace("sim", sim, 1) for step in steps)
    found = nvml_of(gpu, f"[nvml.xids(), {done}, nvml.xids()][-1]")
    return [(each["number"], each["gpu_uuid"]) for each in found]


def test_nvml_s_errors_are_told_once_with_their_card(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])

    told = errors_of(gpu, "sim.raise_xid(48, 1)", "sim.raise_xid(31, 0)")
    again = errors_of(gpu, "sim.raise_xid(48, 1)", "nvml.xids()")

    assert told == [(31, gpu.uuid(0)), (48, gpu.uuid(1))]
    assert again == []


def test_a_lost_card_does_not_hide_its_neighbour_s_errors(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])

    told = errors_of(gpu, "sim.set_lost(0)", "sim.raise_xid(48, 1)")

    assert told == [(48, gpu.uuid(1))]


async def test_the_real_probe_tells_a_card_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    monkeypatch.setenv("FAKE_GPU_DIR", str(gpu.directory))
    probe = Probe(lambda: BUILD / "vgpu-probe", [BUILD / "fake"])

    async with probe.context(gpu.uuid(1)) as pid:
        assert pid in {each.pid for each in gpu.processes()}

    gpu.inject("cuCtxCreate_v4", 46)
    gpu.inject("cuCtxCreate_v2", 46)
    gpu.inject("cuDevicePrimaryCtxRetain", 46)
    with pytest.raises(ProbeError):
        async with probe.context(gpu.uuid(1)):
            pass


async def test_a_probe_that_cannot_be_killed_is_the_only_one_on_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in a driver that hangs survives SIGKILL; one more each minute would fill a node."""
    program = tmp_path / "vgpu-probe"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(probe_module, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(probe_module, "_END_SECONDS", 0.1)
    probe = Probe(lambda: program, ())
    with monkeypatch.context() as unkillable:
        unkillable.setattr(asyncio.subprocess.Process, "kill", lambda _: None)
        with pytest.raises(ProbeError, match="time is over"):
            async with probe.context(CARD):
                pass
    with pytest.raises(ProbeError, match=r"process (\d+), an earlier probe, hangs") as raised:
        async with probe.context(CARD):
            pass
    os.kill(int(str(raised.value).split(",")[0].split()[1]), signal.SIGKILL)
    async with asyncio.timeout(60):
        while True:
            try:
                async with probe.context(CARD):
                    pass
            except ProbeError as error:
                if "time is over" in str(error):
                    break
            await asyncio.sleep(0.05)


async def test_a_probe_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="vgpu-probe cannot run"):
        async with Probe(lambda: tmp_path / "none", ()).context(CARD):
            pass
