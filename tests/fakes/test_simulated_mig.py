# SPDX-License-Identifier: Apache-2.0
"""A simulated card in MIG mode behaves as NVIDIA documents it.

Sources: NVML API reference; CUDA driver API, cuDeviceGetUuid; MIG User Guide, "Device Enumeration",
"CUDA_VISIBLE_DEVICES", "Device Nodes and Capabilities".
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu import Card, Description, MigInstance, SimulatedGpu
from tests.fakes.gpu.tenant import Tenant

MIB = 1 << 20
GIB = 1 << 30

OUT_OF_MEMORY = 2
NO_DEVICE = 100
MULTIPROCESSORS = 16
NVML_INVALID_ARGUMENT = 2
NVML_NOT_SUPPORTED = 3
NVML_NOT_FOUND = 6
NVML_GPU_IS_LOST = 15
LISTS = "nvmlDeviceGetComputeRunningProcesses"

SMALL = MigInstance(profile="1g.1gb", memory_bytes=GIB, sm_count=16)
LARGE = MigInstance(profile="3g.4gb", memory_bytes=4 * GIB, sm_count=60)


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[SimulatedGpu]:
    """Yield a card of two instances, and a whole one behind it."""
    cards = [Card(instances=(SMALL, LARGE)), Card()]
    simulated = SimulatedGpu.create(tmp_path / "gpu", cards, context_bytes=8 * MIB)
    yield simulated
    simulated.close()


def bytes_of(name: str) -> str:
    return uuid.UUID(name[4:]).hex


def on(gpu: SimulatedGpu, card: int) -> Tenant:
    """Start a process that is told to use one instance or card."""
    return Tenant(gpu, environment={"CUDA_VISIBLE_DEVICES": gpu.uuid(card)})


def test_an_instance_is_cudas_only_device(gpu: SimulatedGpu) -> None:
    large = gpu.instance(1)
    with on(gpu, large) as tenant:
        assert tenant.do("start") == 0

        assert tenant.do("out", "cuDeviceGetCount") == [0, 1]
        assert tenant.do("uuid") == bytes_of(gpu.uuid(large))
        assert tenant.do("uuid", 0, "cuDeviceGetUuid") == bytes_of(gpu.uuid(0))
        assert tenant.do("out", "cuDeviceTotalMem_v2", 0) == [0, 4 * GIB]
        assert tenant.do("out", "cuDeviceGetAttribute", MULTIPROCESSORS, 0)[1] == 60
        assert tenant.do("memory") == [4 * GIB - 8 * MIB, 4 * GIB]


def test_without_a_list_it_is_the_first_instance(gpu: SimulatedGpu) -> None:
    with Tenant(gpu) as tenant:
        assert tenant.do("start") == 0

        assert tenant.do("out", "cuDeviceGetCount") == [0, 1]
        assert tenant.do("uuid") == bytes_of(gpu.uuid(gpu.instance(0)))


@pytest.mark.parametrize("listed", [[2, 3], [1, 2], [2, 1]])
def test_of_a_list_it_is_the_first_instance(gpu: SimulatedGpu, listed: list[int]) -> None:
    names = ",".join(gpu.uuid(card) for card in listed)
    with Tenant(gpu, environment={"CUDA_VISIBLE_DEVICES": names}) as tenant:
        assert tenant.do("start") == 0

        assert tenant.do("out", "cuDeviceGetCount") == [0, 1]
        assert tenant.do("uuid") == bytes_of(gpu.uuid(2))


def test_a_card_in_mig_mode_is_no_device_itself(gpu: SimulatedGpu) -> None:
    with on(gpu, 0) as tenant:
        assert tenant.do("call", "cuInit", 0) == NO_DEVICE


def test_instances_hold_memory_of_their_own(gpu: SimulatedGpu) -> None:
    with on(gpu, gpu.instance(0)) as small, on(gpu, gpu.instance(1)) as large:
        assert small.do("start") == large.do("start") == 0

        assert small.do("allocate", GIB)[0] == OUT_OF_MEMORY
        assert small.do("allocate", 512 * MIB)[0] == 0
        assert large.do("allocate", 3 * GIB)[0] == 0
        assert small.do("memory")[0] == 512 * MIB - 8 * MIB

    assert gpu.used_bytes(gpu.instance(0)) == 0


def test_nvml_counts_cards_and_finds_instances_on_them(gpu: SimulatedGpu) -> None:
    card, whole = gpu.uuid(0), gpu.uuid(1)
    small, large = gpu.uuid(gpu.instance(0)), gpu.uuid(gpu.instance(1))
    with Tenant(gpu) as tenant:
        assert tenant.do("nvml", "nvmlDeviceGetCount") == 2
        assert tenant.do("nvml_of", card, "nvmlDeviceGetMigMode") == [1, 1]
        assert tenant.do("nvml_of", card, "nvmlDeviceGetMaxMigDeviceCount") == 7
        assert tenant.do("nvml_of", whole, "nvmlDeviceGetMaxMigDeviceCount") == 0
        found = [
            tenant.do("nvml_of", card, "nvmlDeviceGetMigDeviceHandleByIndex", i) for i in range(3)
        ]
        assert found == [small, large, {"error": NVML_NOT_FOUND}]
        assert tenant.do("nvml_of", large, "nvmlDeviceGetUUID") == large
        assert tenant.do("nvml_of", large, "nvmlDeviceGetIndex") == 1
        assert tenant.do("nvml_of", large, "nvmlDeviceIsMigDeviceHandle") == 1
        assert tenant.do("nvml_of", card, "nvmlDeviceIsMigDeviceHandle") == 0
        parent = tenant.do("nvml_of", large, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        assert parent == card


def test_nvml_describes_an_instance(gpu: SimulatedGpu) -> None:
    card, large = gpu.uuid(0), gpu.uuid(gpu.instance(1))
    with Tenant(gpu) as tenant:
        name = tenant.do("nvml_of", large, "nvmlDeviceGetName")
        assert name == "NVIDIA Simulated 8GB MIG 3g.4gb"
        assert tenant.do("nvml_of", large, "nvmlDeviceGetGpuInstanceId") == 2
        assert tenant.do("nvml_of", large, "nvmlDeviceGetComputeInstanceId") == 0
        assert tenant.do("nvml_of", card, "nvmlDeviceGetGpuInstanceId") == {
            "error": NVML_INVALID_ARGUMENT
        }
        attributes = tenant.do("nvml_of", large, "nvmlDeviceGetAttributes_v2")
        assert attributes["memorySizeMB"] == 4096
        assert attributes["multiprocessorCount"] == 60
        assert attributes["gpuInstanceSliceCount"] == 3


def test_nvml_sums_the_instances_on_their_card(gpu: SimulatedGpu) -> None:
    card, small, large = (gpu.uuid(number) for number in (0, gpu.instance(0), gpu.instance(1)))
    with on(gpu, gpu.instance(0)) as one, on(gpu, gpu.instance(1)) as two:
        assert one.do("start") == two.do("start") == 0
        assert two.do("allocate", GIB)[0] == 0

        memory = {
            each: one.do("nvml_of", each, "nvmlDeviceGetMemoryInfo") for each in (card, large)
        }
        listed = {each: one.do("nvml_of", each, LISTS) for each in (card, small, large)}

    assert (memory[large]["total"], memory[large]["used"]) == (4 * GIB, GIB + 8 * MIB)
    assert (memory[card]["total"], memory[card]["used"]) == (8 * GIB, GIB + 16 * MIB)
    places = {
        each: [(entry["gpuInstanceId"], entry["computeInstanceId"]) for entry in entries]
        for each, entries in listed.items()
    }
    assert places == {card: [(1, 0), (2, 0)], small: [(1, 0)], large: [(2, 0)]}
    assert listed[large][0]["usedGpuMemory"] == GIB + 8 * MIB


@pytest.mark.parametrize("card", [0, 2])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("nvmlDeviceGetUtilizationRates", []), ("nvmlDeviceGetProcessUtilization", [0])],
)
def test_nvml_tells_no_utilisation(
    gpu: SimulatedGpu, card: int, name: str, arguments: list[int]
) -> None:
    with Tenant(gpu) as tenant:
        assert tenant.do("nvml_of", gpu.uuid(card), name, *arguments) == {
            "error": NVML_NOT_SUPPORTED
        }


def test_an_instance_is_lost_with_its_card(gpu: SimulatedGpu) -> None:
    gpu.set_lost(0)

    with Tenant(gpu) as tenant:
        memory = tenant.do("nvml_of", gpu.uuid(2), "nvmlDeviceGetMemoryInfo")
        assert memory == {"error": NVML_GPU_IS_LOST}
        assert tenant.do("start") == 0
        assert tenant.do("uuid") == bytes_of(gpu.uuid(1))


def test_an_instance_is_seen_where_its_nodes_are(tmp_path: Path) -> None:
    nodes = tmp_path / "dev"
    gpu = SimulatedGpu.create(
        tmp_path / "gpu",
        [Card(instances=(SMALL, LARGE))],
        check_nodes=True,
        node_directory=str(nodes),
    )
    names = gpu.nodes(gpu.instance(1))
    assert names == ["nvidia0", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"]
    (nodes / "nvidia-caps").mkdir(parents=True)
    for name in names:
        (nodes / name).touch()

    with Tenant(gpu) as tenant:
        assert tenant.do("start") == 0
        assert tenant.do("uuid") == bytes_of(gpu.uuid(gpu.instance(1)))
        first = tenant.do("nvml_of", gpu.uuid(0), "nvmlDeviceGetMigDeviceHandleByIndex", 0)
        assert first == gpu.uuid(gpu.instance(1))
        assert tenant.do("nvml_of", gpu.uuid(gpu.instance(0)), "nvmlDeviceGetUUID") == {
            "error": NVML_NOT_FOUND
        }


def test_a_description_keeps_its_instances() -> None:
    described = Description(cards=(Card(instances=(SMALL, LARGE)),)).resolved()

    assert Description.from_json(described.to_json()) == described
