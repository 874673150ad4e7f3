# SPDX-License-Identifier: Apache-2.0
"""The node's cards: the cache of what NVML says, and NVML itself on simulated cards."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.errors import InventoryError
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory, PyNvml, Xid
from tests.fakes.gpu import H100, Card, MigInstance, SimulatedGpu
from tests.fakes.gpu.tenant import Tenant
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD
from tests.testbed import BUILD

NVML = BUILD / "fake" / "libnvidia-ml.so.1"


def card(uuid: str = CARD) -> CardFacts:
    return CardFacts(
        uuid=uuid,
        kind=pb.CARD_KIND_GPU,
        model="m",
        memory_bytes=8 * GIB,
        minor=0,
        pci_bus_id="0000:01:00.0",
    )


class Nvml:
    """NVML that says what a test wants."""

    def __init__(self) -> None:
        self.found: list[CardFacts] | InventoryError = [card()]

    def cards(self) -> list[CardFacts]:
        if isinstance(self.found, InventoryError):
            raise self.found
        return self.found

    def processes(self, uuid: str) -> list[CardProcess]:
        if isinstance(self.found, InventoryError):
            raise self.found
        return [CardProcess(pid=1, used_bytes=2)]

    def load(self, uuid: str) -> CardLoad:
        return CardLoad(used_bytes=None, utilization_percent=None, busy_percent=None)

    def xids(self) -> list[Xid]:
        if isinstance(self.found, InventoryError):
            raise self.found
        return []


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


@pytest.fixture
async def inventory(nvml: Nvml) -> AsyncIterator[Inventory]:
    inventory = Inventory(nvml)
    yield inventory
    inventory.close()


async def test_the_whole_memory_of_a_card_has_what_its_driver_keeps(
    nvml: Nvml, inventory: Inventory
) -> None:
    unknown = dataclasses.replace(card(), uuid="GPU-unknown", memory_bytes=0)
    nvml.found = [dataclasses.replace(card(), reserved_bytes=7), unknown]
    await inventory.refresh()

    assert inventory.card_bytes == {card().uuid: card().memory_bytes + 7}


async def test_cards_are_found_in_the_order_asked(nvml: Nvml, inventory: Inventory) -> None:
    nvml.found = [card(CARD), card(OTHER_CARD)]

    assert await inventory.refresh()
    assert not await inventory.refresh()

    assert [each.uuid for each in inventory.find([OTHER_CARD, CARD])] == [OTHER_CARD, CARD]
    with pytest.raises(KeyError, match="GPU-absent"):
        inventory.find([CARD, "GPU-absent"])


async def test_without_nvml_there_are_no_cards_until_it_comes(
    nvml: Nvml, inventory: Inventory, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.found = InventoryError("NVML is not available: no driver")
    assert not await inventory.refresh()
    assert not await inventory.refresh()
    assert inventory.messages(10) == []
    assert await inventory.processes(CARD) is None

    nvml.found = [card()]
    assert await inventory.refresh()

    assert [each.uuid for each in inventory.messages(10)] == [CARD]
    assert await inventory.processes(CARD) == [CardProcess(pid=1, used_bytes=2)]
    assert caplog.messages.count("cards not readable") == 1


async def test_a_failure_keeps_the_cards_and_calls_them_unhealthy(
    nvml: Nvml, inventory: Inventory
) -> None:
    await inventory.refresh()
    nvml.found = InventoryError("NVML cannot list its cards: GPU is lost")

    assert await inventory.refresh()
    assert not await inventory.refresh()

    message = inventory.messages(7)[0]
    assert (message.uuid, message.slots, message.healthy) == (CARD, 7, False)
    assert "GPU is lost" in message.health_reason
    nvml.found = [card()]
    assert await inventory.refresh()
    assert inventory.messages(7)[0].healthy


def refused(call: Callable[[], object]) -> None:
    """Call what must fail."""
    with pytest.raises(InventoryError):
        call()


def nvml_of(gpu: SimulatedGpu, expression: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what an expression over `nvml` is in a process that sees these cards."""
    script = (
        "import dataclasses, json, pathlib; from runtime_shim.inventory import PyNvml; "
        "from tests.fakes.gpu import SimulatedGpu; "
        "from tests.runtime_shim.test_inventory import refused; "
        f"nvml = PyNvml({str(NVML)!r}); "
        f"print(json.dumps([dataclasses.asdict(each) for each in {expression}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "FAKE_GPU_DIR": str(gpu.directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_nvml_names_every_card(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card(model="B", minor=5)])

    found = nvml_of(gpu, "nvml.cards()")

    assert [each["uuid"] for each in found] == [gpu.uuid(0), gpu.uuid(1)]
    assert [each["minor"] for each in found] == [0, 5]
    assert [each["memory_bytes"] for each in found] == [8 * GIB, 8 * GIB]
    assert found[1]["model"] == "B"
    assert found[0]["kind"] == pb.CARD_KIND_GPU


def test_nvml_names_the_instances_of_a_card_in_mig_mode(tmp_path: Path) -> None:
    instances = (MigInstance(gpu_instance=7), MigInstance(profile="3g.4gb", memory_bytes=4 * GIB))
    cards = [Card(), Card(instances=instances), Card(mig_mode=True)]
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards)

    whole, small, large = nvml_of(gpu, "nvml.cards()")

    assert whole["uuid"] == gpu.uuid(0)
    assert small["uuid"] == gpu.uuid(gpu.instance(0, card=1))
    assert {small["kind"], large["kind"]} == {pb.CARD_KIND_MIG}
    assert {small["parent_uuid"], large["parent_uuid"]} == {gpu.uuid(1)}
    assert [small["gpu_instance"], large["gpu_instance"]] == [7, 2]
    assert [small["index"], large["index"]] == ["1:0", "1:1"]
    assert [small["memory_bytes"], large["memory_bytes"]] == [GIB, 4 * GIB]
    assert large["model"] == "NVIDIA Simulated 8GB MIG 3g.4gb"


def test_an_instance_has_processes_and_no_utilisation(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", [Card(instances=(MigInstance(), MigInstance()))])
    uuid = gpu.uuid(gpu.instance(1))
    with Tenant(gpu, environment={"CUDA_VISIBLE_DEVICES": uuid}) as tenant:
        assert tenant.do("start") == 0
        assert tenant.do("allocate", GIB // 2)[0] == 0
        used_bytes = GIB // 2 + (8 << 20)

        found = nvml_of(gpu, f"nvml.processes({uuid!r})")
        (load,) = nvml_of(gpu, f"[nvml.load({uuid!r})]")

        assert found == [{"pid": tenant.process.pid, "used_bytes": used_bytes}]
        assert load == {
            "used_bytes": used_bytes,
            "utilization_percent": None,
            "busy_percent": None,
        }


def test_what_the_driver_keeps_for_itself_is_not_offered(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[H100])

    found = nvml_of(gpu, "nvml.cards()")

    assert found[0]["memory_bytes"] == (81559 - 480) << 20


def test_nvml_names_the_processes_of_a_card(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", context_bytes=1 << 20)
    with Tenant(gpu) as tenant:
        tenant.do("start")
        tenant.do("allocate", GIB)

        found = nvml_of(gpu, f"nvml.processes({gpu.uuid()!r})")

        assert found == [{"pid": tenant.process.pid, "used_bytes": GIB + (1 << 20)}]


def test_an_absent_library_is_an_inventory_error() -> None:
    with pytest.raises(InventoryError, match=r"NVML is not available: .*absent\.so"):
        PyNvml("/absent.so").cards()


async def test_a_failure_is_counted_for_its_card(nvml: Nvml, inventory: Inventory) -> None:
    nvml.found = [card(CARD), card(OTHER_CARD)]
    await inventory.refresh()
    assert inventory.errors == {"": 0, CARD: 0, OTHER_CARD: 0}

    nvml.found = InventoryError("NVML cannot")
    await inventory.processes(CARD)
    await inventory.refresh()

    assert inventory.errors == {"": 1, CARD: 1, OTHER_CARD: 0}


async def test_a_card_that_is_not_healthy_is_given_to_nobody(
    nvml: Nvml, inventory: Inventory
) -> None:
    nvml.found = [card(CARD), dataclasses.replace(card(OTHER_CARD), health_reason="lost")]

    await inventory.refresh()

    assert [each.uuid for each in inventory.healthy] == [CARD]
    assert [each.healthy for each in inventory.messages(1)] == [True, False]
    assert inventory.messages(1)[1].health_reason == "lost"
    with pytest.raises(KeyError, match=OTHER_CARD):
        inventory.find([CARD, OTHER_CARD])


def test_a_lost_card_is_known_and_costs_its_neighbour_nothing(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    lose = f"SimulatedGpu(pathlib.Path({str(gpu.directory)!r})).set_lost(0)"

    found = nvml_of(gpu, f"[nvml.cards(), {lose}, nvml.cards(), nvml.load({gpu.uuid(1)!r})][2]")

    assert [each["uuid"] for each in found] == [gpu.uuid(0), gpu.uuid(1)]
    assert [each["health_reason"] for each in found] == ["the driver lost it", ""]


def test_nvml_says_who_keeps_a_card_busy(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", context_bytes=1 << 20)
    gpu.set_utilisation(40)
    with Tenant(gpu) as tenant:
        tenant.do("start")
        tenant.do("allocate", GIB)

        (found,) = nvml_of(gpu, f"[nvml.load({gpu.uuid()!r})]")

        assert found["used_bytes"] >= GIB
        assert found["utilization_percent"] == 40
        assert found["busy_percent"] == {}


def test_a_card_that_fails_does_not_begin_nvml_anew(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    gpu.inject("nvmlInitWithFlags")
    gpu.inject("nvmlDeviceGetComputeRunningProcesses_v3", 999, times=3)
    failing = f"[refused(lambda: nvml.processes({gpu.uuid()!r})) for _ in range(3)]"

    found = nvml_of(gpu, f"[{failing}, nvml.cards()][1]")

    assert len(found) == 2
    assert gpu.calls("nvmlInitWithFlags") == 1


def test_a_card_that_cannot_be_described_costs_only_itself(tmp_path: Path) -> None:
    """User pain O3, N4: one error of one card, and the node has none."""
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    gpu.inject("nvmlDeviceGetName", 999, times=1)

    found = nvml_of(gpu, "nvml.cards()")

    assert [each["uuid"] for each in found] == [gpu.uuid(1)]
    assert [each["index"] for each in found] == ["1"]


def test_a_card_that_was_known_is_unhealthy_when_it_cannot_be_described(tmp_path: Path) -> None:
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    sim = f"SimulatedGpu(pathlib.Path({str(gpu.directory)!r}))"
    fail = f"{sim}.inject('nvmlDeviceGetName', 999, times=1)"

    found = nvml_of(gpu, f"[nvml.cards(), {fail}, nvml.cards()][2]")

    assert [each["uuid"] for each in found] == [gpu.uuid(0), gpu.uuid(1)]
    assert "NVML cannot describe it" in found[0]["health_reason"]
    assert (found[0]["lost"], found[1]["health_reason"]) == (False, "")


@pytest.mark.parametrize(
    ("configured", "reason"),
    [(0, "does not say how much memory"), (96 * GIB, "")],
    ids=["unset", "set"],
)
def test_a_board_that_shares_the_host_s_memory_has_what_is_configured(
    tmp_path: Path, configured: int, reason: str
) -> None:
    """User pain N4: "not supported" for the memory, and the agent panics."""
    gpu = SimulatedGpu.create(tmp_path / "gpu", cards=[Card()])
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        gpu.inject(function, 3, times=9)

    (found,) = nvml_of(gpu, f"PyNvml({str(NVML)!r}, {configured}).cards()")

    assert found["memory_bytes"] == configured
    assert reason in found["health_reason"]
    assert bool(found["health_reason"]) == bool(reason)


async def test_an_index_that_means_another_card_is_noted(nvml: Nvml, inventory: Inventory) -> None:
    first, second = (
        dataclasses.replace(card(uuid), index=str(number))
        for number, uuid in enumerate((CARD, OTHER_CARD))
    )
    nvml.found = [first, second]
    await inventory.refresh()
    assert not inventory.indices_moved

    nvml.found = [dataclasses.replace(second, index="0")]
    await inventory.refresh()

    assert inventory.indices_moved


async def test_a_card_reports_its_minor_number(nvml: Nvml, inventory: Inventory) -> None:
    nvml.found = [dataclasses.replace(card(), minor=5)]
    await inventory.refresh()

    assert inventory.messages(1)[0].minor == 5


class Events:
    """NVML's events, which fail or never end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *numbers: int, failure: int = 0) -> None:
        self.numbers = list(numbers)
        self.failure = failure
        self.freed = 0
        self.client = PyNvml()
        monkeypatch.setattr(self.client, "_start", lambda: None)
        monkeypatch.setattr(self.client, "_watch", self._watch)
        monkeypatch.setattr(pynvml, "nvmlEventSetWait_v2", self._wait)
        monkeypatch.setattr(pynvml, "nvmlEventSetFree", self._free)

    def _watch(self) -> None:
        self.client._events = self

    def _free(self, _: object) -> None:
        self.freed += 1

    def _wait(self, *_: object) -> SimpleNamespace:
        if self.numbers:
            number = self.numbers.pop(0)
            return SimpleNamespace(device=None, eventData=number, gpuInstanceId=0xFFFFFFFF)
        raise pynvml.NVMLError(self.failure or pynvml.NVML_ERROR_TIMEOUT)


def test_errors_that_were_told_before_a_failure_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = Events(monkeypatch, 48, 79, failure=pynvml.NVML_ERROR_GPU_IS_LOST)

    assert [each.number for each in events.client.xids()] == [48, 79]
    with pytest.raises(InventoryError, match="watch for errors"):
        events.client.xids()
    # The next look watches only cards that are there.
    assert events.freed == 2


def test_errors_without_a_pause_leave_the_thread_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events(monkeypatch, *[13] * 1000)

    assert 0 < len(events.client.xids()) < 1000
    assert not events.freed
