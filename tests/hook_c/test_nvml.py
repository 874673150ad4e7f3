# SPDX-License-Identifier: Apache-2.0
"""NVML shows a container its own processes, under its own PIDs, and its own memory."""

import time
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.fakes.gpu.tenant import Tenant
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
MEMORY_V2 = 0x02000028  # sizeof(nvmlMemory_v2_t), and the version
LISTS = "nvmlDeviceGetComputeRunningProcesses"


def test_lists_the_containers_processes_with_what_they_hold(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    one, two = start(container), start(container)
    assert one.do("allocate", 100 * MIB)[0] == 0
    assert two.do("allocate", 200 * MIB)[0] == 0
    with Tenant(gpu) as neighbour:
        assert neighbour.do("start") == 0
        assert neighbour.do("allocate", 300 * MIB)[0] == 0

        listed = one.do("nvml", LISTS)

    assert {(entry["pid"], entry["usedGpuMemory"]) for entry in listed} == {
        (one.do("pid"), 100 * MIB),
        (two.do("pid"), 200 * MIB),
    }


@pytest.mark.parametrize(("name", "entry_bytes"), [(LISTS, 16), (f"{LISTS}_v2", 24)])
def test_writes_no_more_than_the_versions_entry(
    container: Container, start: Start, name: str, entry_bytes: int
) -> None:
    tenant = start(container)
    assert tenant.do("allocate", 100 * MIB)[0] == 0

    found = tenant.do("process_list", name, entry_bytes)

    assert found == {"pid": tenant.do("pid"), "bytes": 100 * MIB, "untouched": True}


def test_graphics_and_mps_lists_are_empty(container: Container, start: Start) -> None:
    tenant = start(container)
    assert tenant.do("allocate", 100 * MIB)[0] == 0

    assert tenant.do("nvml", "nvmlDeviceGetGraphicsRunningProcesses") == []
    assert tenant.do("nvml", "nvmlDeviceGetMPSComputeRunningProcesses") == []


def test_no_pid_of_another_container_is_in_the_accounting(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    gpu.inject("nvmlDeviceGetAccountingPids", code=INSUFFICIENT_SIZE)

    assert tenant.do("accounting_pids") == [0, 0]


@pytest.mark.parametrize("limit", [GIB, 8 * GIB])
def test_free_memory_is_what_cuda_says(
    tmp_path: Path, gpu: SimulatedGpu, start: Start, needs_root: None, limit: int
) -> None:
    """Also where others have more of the card than the slice leaves them."""
    container = Container(tmp_path / "slice", {gpu.uuid(0): limit})
    tenant = start(container)
    assert tenant.do("allocate", 100 * MIB)[0] == 0

    for foreign_bytes in (0, 700 * MIB, 7 * GIB):
        gpu.set_foreign_bytes(foreign_bytes)
        free, total = tenant.do("memory")
        one = tenant.do("nvml", "nvmlDeviceGetMemoryInfo")
        two = tenant.do("nvml", "nvmlDeviceGetMemoryInfo", MEMORY_V2)

        assert (one["free"], one["total"]) == (two["free"], two["total"]) == (free, total)
        assert two["used"] == 100 * MIB
        assert one["used"] == two["used"] + two["reserved"] == total - free
    assert free < 8 * GIB - 7 * GIB


def test_memory_is_the_slice_without_any_cuda_call(container: Container, gpu: SimulatedGpu) -> None:
    process = Process(gpu, wrapper=container.wrapper)

    memory = process.do("nvml", "nvmlDeviceGetMemoryInfo")

    assert (memory["total"], memory["free"], memory["used"]) == (GIB, GIB, 0)
    assert container.usage.slots_high == 0  # who only looks takes no slot
    process.close()


def test_without_limits_there_is_no_memory(gpu: SimulatedGpu, container: Container) -> None:
    (container.folder / "limits").unlink()
    process = Process(gpu, wrapper=container.wrapper)

    memory = process.do("nvml", "nvmlDeviceGetMemoryInfo")

    # Managed and broken: nothing, and never the whole card.
    assert (memory["total"], memory["free"], memory["used"]) == (0, 0, 0)
    assert process.do("nvml", LISTS) == []
    process.close()


def test_the_detailed_list_is_the_same(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    assert tenant.do("allocate", 100 * MIB)[0] == 0
    with Tenant(gpu) as neighbour:
        assert neighbour.do("start") == 0

        listed = tenant.do("detail_list", 0, 4)

        assert listed == [0, 1, [[tenant.do("pid"), 100 * MIB]]]
        assert tenant.do("detail_list", 0, 0) == [INSUFFICIENT_SIZE, 1, []]
        assert tenant.do("detail_list", 1, 4) == [0, 0, []]


def busy(process: Tenant) -> None:
    """Keep the card busy for some seconds."""
    assert process.do("launch", process.do("kernel", "busy_3s")) == 0


def wait_for_samples(process: Tenant) -> list[dict[str, int]]:
    """Return what NVML tells of processes, once it does."""
    for _ in range(100):
        found = process.do("nvml", "nvmlDeviceGetProcessUtilization", 0)
        if isinstance(found, list):
            return found
        time.sleep(0.05)
    return []


def test_utilisation_is_that_of_the_container(tmp_path: Path, needs_root: None) -> None:
    gpu = SimulatedGpu.create(tmp_path / "busy")
    container = Container(tmp_path / "container", {gpu.uuid(): GIB})
    with Tenant(gpu) as neighbour, Process(gpu, wrapper=container.wrapper) as tenant:
        assert neighbour.do("start") == tenant.do("start") == 0
        assert tenant.do("allocate", MIB)[0] == 0
        busy(neighbour)
        assert len(wait_for_samples(neighbour)) == 1

        assert tenant.do("nvml", "nvmlDeviceGetProcessUtilization", 0) == {"error": NOT_FOUND}
        assert tenant.do("nvml", "nvmlDeviceGetUtilizationRates")["gpu"] == 0
        gpu.set_utilisation(90)  # the card's, by its neighbour
        assert tenant.do("history") == [0, [0]]
        gpu.set_utilisation(None)
        busy(tenant)
        samples = wait_for_samples(tenant)
        assert [sample["pid"] for sample in samples] == [tenant.do("pid")]
        assert tenant.do("nvml", "nvmlDeviceGetUtilizationRates")["gpu"] > 0
    gpu.close()


def test_utilisation_is_the_cards_where_the_driver_does_not_tell_by_process(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    assert tenant.do("allocate", MIB)[0] == 0
    gpu.set_utilisation(42)
    gpu.inject("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED)

    assert tenant.do("nvml", "nvmlDeviceGetUtilizationRates")["gpu"] == 42
    assert tenant.do("history") == [0, [42]]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nvmlDeviceSetPersistenceMode", (1,)),
        ("nvmlDeviceSetComputeMode", (0,)),
        ("nvmlDeviceSetPowerManagementLimit", (200000,)),
        ("nvmlDeviceSetGpuLockedClocks", (500, 600)),
        ("nvmlDeviceClearAccountingPids", ()),
    ],
)
def test_a_setter_that_reaches_neighbours_is_refused(
    container: Container, start: Start, gpu: SimulatedGpu, name: str, arguments: tuple[int, ...]
) -> None:
    gpu.inject(name)
    tenant = start(container)

    assert tenant.do("nvml", name, *arguments) == {"error": NO_PERMISSION}
    assert gpu.calls(name) == 0


def test_cards_are_counted_and_found_by_their_uuid(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)

    assert tenant.do("nvml", "nvmlDeviceGetCount") == 2
    for card in range(2):
        assert tenant.do("uuid_of_uuid", gpu.uuid(card)) == gpu.uuid(card)


def test_nvml_may_be_initialised_again_and_again(container: Container, start: Start) -> None:
    tenant = start(container)
    assert tenant.do("allocate", 100 * MIB)[0] == 0

    assert tenant.do("detail_list", 0, 4)[0] == 0
    assert [tenant.do("nvml_call", "nvmlInit_v2") for _ in range(2)] == [0, 0]
    assert tenant.do("nvml_call", "nvmlShutdown") == 0
    assert tenant.do("nvml", "nvmlDeviceGetMemoryInfo")["used"] == 100 * MIB
    while tenant.do("nvml_call", "nvmlShutdown") == 0:
        pass
    assert tenant.do("detail_list", 0, 4)[0] == UNINITIALIZED
    assert tenant.do("nvml", "nvmlDeviceGetMemoryInfo")["used"] == 100 * MIB
