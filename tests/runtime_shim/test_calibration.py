# SPDX-License-Identifier: Apache-2.0
"""The cost of a context, measured on a simulated card by the real probe."""

import json
from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.calibration import Calibration
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory, Xid
from runtime_shim.probe import Probe
from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed import BUILD

MIB = 1 << 20
PROBE = BUILD / "vgpu-probe"


class Simulated:
    """What NVML would say; the real one keeps the cards that it saw first in this process."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._uuids = [card.uuid for card in gpu.description.cards]

    def cards(self) -> list[CardFacts]:
        return [
            CardFacts(
                uuid=uuid,
                kind=pb.CARD_KIND_GPU,
                model="",
                memory_bytes=8 << 30,
                minor=index,
                pci_bus_id="",
            )
            for index, uuid in enumerate(self._uuids)
        ]

    def processes(self, uuid: str) -> list[CardProcess]:
        card = self._uuids.index(uuid)
        return [
            CardProcess(pid=process.pid, used_bytes=process.memory_bytes[card])
            for process in self._gpu.processes()
        ]

    def load(self, uuid: str) -> CardLoad:
        return CardLoad(used_bytes=None, utilization_percent=None, busy_percent=None)

    def xids(self) -> list[Xid]:
        return []


@pytest.fixture
async def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """Return the inventory of two simulated cards whose contexts cost 8 and 518 MiB."""
    cards = [Card(context_bytes=8 * MIB), Card(context_bytes=518 * MIB)]
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=cards)
    monkeypatch.setenv("FAKE_GPU_DIR", str(tmp_path / "gpu"))
    inventory = Inventory(Simulated(gpu))
    await inventory.refresh()
    return inventory


def calibration(folder: Path, inventory: Inventory, probe: Path = PROBE) -> Calibration:
    return Calibration(folder / "contexts.json", Probe(lambda: probe, [BUILD / "fake"]), inventory)


async def test_each_card_is_measured(tmp_path: Path, inventory: Inventory) -> None:
    measured = calibration(tmp_path, inventory)

    await measured.measure(inventory.cards)

    uuids = [card.uuid for card in inventory.cards]
    assert measured.context_bytes(uuids) == [8 * MIB, 518 * MIB]
    assert measured.context_bytes(["GPU-unknown"]) == [0]


async def test_it_is_remembered_for_one_driver_version(
    tmp_path: Path, inventory: Inventory
) -> None:
    uuids = [card.uuid for card in inventory.cards]
    first = calibration(tmp_path, inventory)
    first.load("580.1")
    await first.measure(inventory.cards)
    same, newer = calibration(tmp_path, inventory), calibration(tmp_path, inventory)

    same.load("580.1")
    newer.load("590.1")

    assert same.context_bytes(uuids) == [8 * MIB, 518 * MIB]
    assert newer.context_bytes(uuids) == [0, 0]


@pytest.mark.parametrize("text", ["", "[]", '{"driver_version": "1", "bytes": 3}', "\x00"])
async def test_a_damaged_file_is_measured_anew(
    tmp_path: Path, inventory: Inventory, text: str
) -> None:
    (tmp_path / "contexts.json").write_text(text)
    measured = calibration(tmp_path, inventory)
    measured.load("1")

    await measured.measure(inventory.cards)

    assert json.loads((tmp_path / "contexts.json").read_text())["driver_version"] == "1"


async def test_without_a_probe_nothing_is_known_and_nothing_fails(
    tmp_path: Path, inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    measured = calibration(tmp_path, inventory, probe=tmp_path / "missing")

    await measured.measure(inventory.cards)

    assert measured.context_bytes([inventory.cards[0].uuid]) == [0]
    assert "vgpu-probe cannot run" in caplog.records[0].__dict__["reason"]


async def test_a_lost_card_is_not_measured(
    tmp_path: Path, inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    SimulatedGpu(tmp_path / "gpu").inject("cuDevicePrimaryCtxRetain", 2)
    measured = calibration(tmp_path, inventory)

    await measured.measure(inventory.cards[:1])

    assert measured.context_bytes([inventory.cards[0].uuid]) == [0]
    assert "context not measured" in caplog.text
