# SPDX-License-Identifier: Apache-2.0
"""NVML shows a container its own processes, under its own PIDs, and its own memory."""

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.fakes.gpu.tenant import Tenant
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

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
