# SPDX-License-Identifier: Apache-2.0
"""A slice of a MIG instance: the instance is a card of its own, to CUDA and to NVML."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import Card, MigInstance, SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Busy, Probe, Start
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
SYSTEM_NOT_READY = 802
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
NVML_MEMORY_V2 = 2 << 24 | 40
HARD = 1
KERNEL_NS = 200_000
# Credit that is there at the beginning, and one kernel; of a run of 1 s.
SLACK = 0.05

SMALL = MigInstance(profile="1g.2gb", memory_bytes=2 * GIB, sm_count=16, gpu_instance=9)
LARGE = MigInstance(profile="3g.4gb", memory_bytes=4 * GIB, sm_count=60, gpu_instance=2)
PARENT = 0
WHOLE = 1

Make = Callable[..., Container]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[SimulatedGpu]:
    """Yield a card of 8 GiB with two instances, and a whole one; seen where their nodes are."""
    cards = [Card(instances=(SMALL, LARGE)), Card()]
    simulated = SimulatedGpu.create(tmp_path / "gpu", cards, context_bytes=0, check_nodes=True)
    yield simulated
    simulated.close()


@pytest.fixture
def small(gpu: SimulatedGpu) -> int:
    """Return the number of the first instance."""
    return gpu.instance(0)


@pytest.fixture
def large(gpu: SimulatedGpu) -> int:
    """Return the number of the second instance."""
    return gpu.instance(1)


@pytest.fixture
def make(tmp_path: Path, gpu: SimulatedGpu, needs_root: None) -> Make:
    """Return a function that makes a container that sees what it has slices of, or else `sees`."""

    def make_one(
        slices: dict[int, int], sees: Sequence[int] = (), name: str = "container", **numbers: int
    ) -> Container:
        nodes = sorted({node for number in sees or slices for node in gpu.nodes(number)})
        promised = {gpu.uuid(number): size for number, size in slices.items()}
        return Container(tmp_path / name, promised, LIBRARY, nodes=nodes, **numbers)

    return make_one


def memory_of(tenant: Process, uuid: str) -> list[tuple[int, int, int]]:
    """What both versions say: total, free and used."""
    answers = [
        tenant.do("nvml_of", uuid, "nvmlDeviceGetMemoryInfo", *version)
        for version in ((), (NVML_MEMORY_V2,))
    ]
    assert answers[1].get("reserved") == 0
    return [(answer["total"], answer["free"], answer["used"]) for answer in answers]


# --- memory ----------------------------------------------------------------------------------


def test_the_limit_holds_inside_an_instance(
    make: Make, start: Start, gpu: SimulatedGpu, large: int
) -> None:
    container = make({large: GIB})
    tenant = start(container)

    code, address = tenant.do("allocate", 600 * MIB)
    assert code == 0
    assert tenant.do("allocate", 600 * MIB)[0] == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes(large) == 600 * MIB
    assert tenant.do("free", address) == 0
    assert tenant.do("allocate", GIB)[0] == 0
    assert tenant.do("allocate", MIB)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize(("limit", "total"), [(GIB, GIB), (4 * GIB, 4 * GIB), (6 * GIB, 4 * GIB)])
def test_cuda_and_nvml_agree_on_the_instances_memory(
    make: Make, start: Start, gpu: SimulatedGpu, large: int, limit: int, total: int
) -> None:
    tenant = start(make({large: limit}))
    assert tenant.do("allocate", 256 * MIB)[0] == 0

    seen = (total, total - 256 * MIB, 256 * MIB)
    assert tenant.do("memory") == [seen[1], total]
    assert tenant.do("out", "cuDeviceTotalMem_v2", 0) == [0, total]
    assert memory_of(tenant, gpu.uuid(large)) == [seen, seen]
    assert memory_of(tenant, gpu.uuid(PARENT)) == [seen, seen]
    attributes = tenant.do("nvml_of", gpu.uuid(large), "nvmlDeviceGetAttributes_v2")
    assert attributes["memorySizeMB"] == total // MIB
    assert attributes["multiprocessorCount"] == 60


def test_local_memory_is_that_of_the_instances_multiprocessors(
    make: Make, start: Start, gpu: SimulatedGpu, small: int
) -> None:
    container = make({small: GIB})
    tenant = start(container)

    assert tenant.do("launch", tenant.do("kernel", "busy_20us_local8000")) == 0

    assert container.used() == gpu.used_bytes(small) == (8000 - 1024) * 16 * 2048


# --- what NVML shows -------------------------------------------------------------------------


def test_a_neighbours_use_is_seen_neither_on_the_instance_nor_on_its_card(
    make: Make, start: Start, gpu: SimulatedGpu, small: int, large: int
) -> None:
    one, two = start(make({small: GIB})), start(make({large: 3 * GIB}, name="neighbour"))
    assert two.do("allocate", 2 * GIB)[0] == 0
    assert one.do("allocate", 100 * MIB)[0] == 0

    seen = (GIB, GIB - 100 * MIB, 100 * MIB)
    for number in (small, PARENT):
        assert memory_of(one, gpu.uuid(number)) == [seen, seen]
        assert one.do("lists_on", gpu.uuid(number)) == [[[one.do("pid"), 100 * MIB, 9, 0]]] * 3
        assert one.do("nvml_of", gpu.uuid(number), "nvmlDeviceGetUtilizationRates") == {
            "error": NOT_SUPPORTED
        }


def test_what_an_instance_is_is_asked_as_nvidia_smi_does(
    make: Make, start: Start, gpu: SimulatedGpu, large: int
) -> None:
    tenant = start(make({large: GIB}))
    parent = gpu.uuid(PARENT)

    assert tenant.do("nvml", "nvmlDeviceGetCount") == 1
    assert tenant.do("nvml", "nvmlDeviceGetUUID") == parent
    assert tenant.do("nvml", "nvmlDeviceGetMigMode") == [1, 1]
    assert tenant.do("nvml_of", parent, "nvmlDeviceGetMaxMigDeviceCount") == 7
    uuid = tenant.do("nvml_of", parent, "nvmlDeviceGetMigDeviceHandleByIndex", 0)
    assert uuid == gpu.uuid(large)
    assert tenant.do("uuid_of_uuid", uuid) == uuid
    assert tenant.do("nvml_of", uuid, "nvmlDeviceGetGpuInstanceId") == 2
    assert tenant.do("nvml_of", uuid, "nvmlDeviceGetComputeInstanceId") == 0
    assert tenant.do("nvml_of", uuid, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle") == parent


def test_a_card_shows_the_sum_of_the_containers_instances(
    make: Make, gpu: SimulatedGpu, small: int, large: int
) -> None:
    container = make({large: GIB, small: 3 * GIB})
    tenants = []
    for number in (small, large):
        environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid(number)}
        tenant = Process(gpu, wrapper=container.wrapper, environment=environment)
        tenants.append(tenant)
        assert tenant.do("start") == 0
    one, two = tenants
    assert one.do("allocate", 100 * MIB)[0] == 0
    assert two.do("allocate", 200 * MIB)[0] == 0
    on_small, on_large = [one.do("pid"), 100 * MIB, 9, 0], [two.do("pid"), 200 * MIB, 2, 0]

    total = 2 * GIB + GIB  # the small instance has no more than 2 GiB
    seen = (total, total - 300 * MIB, 300 * MIB)
    assert memory_of(one, gpu.uuid(PARENT)) == [seen, seen]
    for found in one.do("lists_on", gpu.uuid(PARENT)):
        assert sorted(found) == sorted([on_small, on_large])
    assert one.do("lists_on", gpu.uuid(small)) == [[on_small]] * 3
    assert one.do("lists_on", gpu.uuid(large)) == [[on_large]] * 3
    for tenant in tenants:
        tenant.close()


def test_a_gap_among_the_instances_hides_none_behind_it(
    make: Make, start: Start, gpu: SimulatedGpu, small: int, large: int
) -> None:
    tenant = start(make({small: GIB, large: 3 * GIB}))
    gpu.inject("nvmlDeviceGetMigDeviceHandleByIndex", code=NOT_FOUND, times=1)

    memory = tenant.do("nvml_of", gpu.uuid(PARENT), "nvmlDeviceGetMemoryInfo")

    assert memory["total"] == 3 * GIB


def test_after_the_limit_was_made_smaller_nothing_is_free(
    make: Make, start: Start, gpu: SimulatedGpu, large: int
) -> None:
    container = make({large: 2 * GIB})
    tenant = start(container)
    assert tenant.do("allocate", GIB)[0] == 0

    container.write(memory_bytes=512 * MIB)

    assert tenant.do("memory") == [0, 512 * MIB]
    for number in (large, PARENT):
        assert memory_of(tenant, gpu.uuid(number)) == [(512 * MIB, 0, 512 * MIB)] * 2


def test_a_card_that_nvml_tells_nothing_of_stays_so(
    make: Make, start: Start, gpu: SimulatedGpu, large: int
) -> None:
    """Of a card in MIG mode the driver may tell the privileged alone."""
    tenant = start(make({large: GIB}))
    gpu.inject("nvmlDeviceGetMemoryInfo", code=NO_PERMISSION)
    gpu.inject("nvmlDeviceGetMemoryInfo_v2", code=NO_PERMISSION)

    for version in ((), (NVML_MEMORY_V2,)):
        found = tenant.do("nvml_of", gpu.uuid(PARENT), "nvmlDeviceGetMemoryInfo", *version)
        assert found == {"error": NO_PERMISSION}


@pytest.mark.parametrize(
    ("name", "arguments"), [("nvmlDeviceSetMigMode", [0]), ("nvmlDeviceCreateGpuInstance", [0])]
)
def test_instances_are_neither_made_nor_ended(
    make: Make, start: Start, gpu: SimulatedGpu, large: int, name: str, arguments: list[int]
) -> None:
    gpu.inject(name)
    tenant = start(make({large: GIB}))

    assert tenant.do("nvml", name, *arguments) == {"error": NO_PERMISSION}
    assert gpu.calls(name) == 0


# --- which instance --------------------------------------------------------------------------


def test_two_instances_of_a_card_are_held_apart(
    make: Make, start: Start, gpu: SimulatedGpu, small: int, large: int
) -> None:
    one, two = make({small: GIB}), make({large: 3 * GIB}, name="other")
    first, second = start(one), start(two)

    assert first.do("allocate", GIB)[0] == second.do("allocate", 3 * GIB)[0] == 0
    assert first.do("allocate", MIB)[0] == second.do("allocate", MIB)[0] == OUT_OF_MEMORY
    assert (one.used(), two.used()) == (GIB, 3 * GIB)
    assert (gpu.used_bytes(small), gpu.used_bytes(large)) == (GIB, 3 * GIB)


def test_two_slices_of_an_instance_are_held_apart(
    make: Make, start: Start, gpu: SimulatedGpu, large: int
) -> None:
    first, second = start(make({large: GIB})), start(make({large: 3 * GIB}, name="other"))

    assert second.do("allocate", 3 * GIB)[0] == 0
    assert first.do("memory") == [GIB, GIB]
    assert first.do("allocate", GIB)[0] == 0
    assert first.do("allocate", MIB)[0] == OUT_OF_MEMORY
    seen = (GIB, 0, GIB)
    for number in (large, PARENT):
        assert memory_of(first, gpu.uuid(number)) == [seen, seen]
        assert first.do("lists_on", gpu.uuid(number)) == [[[first.do("pid"), GIB, 2, 0]]] * 3


def test_a_process_uses_the_instance_that_it_names(
    make: Make, gpu: SimulatedGpu, small: int, large: int
) -> None:
    container = make({small: GIB, large: 3 * GIB})
    environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid(large)}
    with Process(gpu, wrapper=container.wrapper, environment=environment) as tenant:
        assert tenant.do("start") == 0

        assert tenant.do("memory") == [3 * GIB, 3 * GIB]
        assert tenant.do("allocate", 2 * GIB)[0] == 0
        assert (container.used(0), container.used(1)) == (0, 2 * GIB)


@pytest.mark.parametrize(
    ("seen", "chosen"),
    [("large", None), ("both", "large"), ("whole", None), ("both", "whole")],
)
def test_an_instance_that_is_not_promised_is_refused(
    make: Make,
    probe: Probe,
    gpu: SimulatedGpu,
    small: int,
    large: int,
    seen: str,
    chosen: str | None,
) -> None:
    numbers = {"small": small, "large": large, "whole": WHOLE}
    sees = [small, large, WHOLE] if seen == "both" else [numbers[seen]]
    container = make({small: GIB}, sees)
    chosen_uuid = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": gpu.uuid(numbers[chosen])}

    found = probe(wrapper=container.wrapper, **chosen_uuid)

    assert found["init"]["code"] == SYSTEM_NOT_READY
    assert "no card that is visible here is named in the limits file" in found["stderr"]


def test_a_card_is_not_promised_with_its_instance_nor_an_instance_with_its_card(
    make: Make, probe: Probe, small: int
) -> None:
    found = probe(wrapper=make({PARENT: GIB}, [small]).wrapper)

    assert found["init"]["code"] == SYSTEM_NOT_READY


def test_nvml_shows_nothing_of_an_instance_that_is_not_promised(
    make: Make, start: Start, gpu: SimulatedGpu, small: int, large: int
) -> None:
    tenant = start(make({small: GIB}, [small, large]))
    neighbour = start(make({large: 2 * GIB}, name="neighbour"))
    assert neighbour.do("allocate", GIB)[0] == 0
    uuid = gpu.uuid(large)

    assert memory_of(tenant, uuid) == [(0, 0, 0)] * 2
    assert tenant.do("lists_on", uuid) == [[]] * 3
    assert tenant.do("nvml_of", uuid, "nvmlDeviceGetAttributes_v2")["memorySizeMB"] == 0
    seen = (GIB, GIB, 0)
    assert memory_of(tenant, gpu.uuid(PARENT)) == [seen, seen]


def test_without_the_instances_own_uuid_it_is_refused(
    make: Make, probe: Probe, gpu: SimulatedGpu, small: int
) -> None:
    gpu.inject("cuDeviceGetUuid_v2", code=999)

    found = probe(wrapper=make({small: GIB}).wrapper)

    assert found["init"]["code"] == SYSTEM_NOT_READY


def test_the_probe_names_an_instance_as_nvml_does(
    make: Make, probe: Probe, gpu: SimulatedGpu, large: int
) -> None:
    (device,) = probe(wrapper=make({large: GIB}).wrapper)["devices"]

    assert device["uuid"] == gpu.uuid(large)
    assert device["nvml"]["total"] == device["mem_get_info"]["total"] == GIB


def test_developer_mode_knows_the_instance_as_the_only_device(
    gpu: SimulatedGpu, developer: Callable[..., Process], large: int
) -> None:
    tenant = developer(
        FAKE_GPU_CHECK_NODES="0",
        CUDA_VISIBLE_DEVICES=gpu.uuid(large),
        CUDA_DEVICE_MEMORY_LIMIT_0="1g",
        CUDA_DEVICE_MEMORY_LIMIT_1="2g",
    )
    assert tenant.do("start") == 0
    assert tenant.do("allocate", 100 * MIB)[0] == 0

    seen = (GIB, GIB - 100 * MIB, 100 * MIB)
    assert tenant.do("memory") == [seen[1], GIB]
    assert memory_of(tenant, gpu.uuid(large)) == [seen, seen]
    assert memory_of(tenant, gpu.uuid(PARENT)) == [seen, seen]


# --- compute ---------------------------------------------------------------------------------


def begin(process: "subprocess.Popen[str]") -> None:
    """Let it run for a second."""
    assert process.stdin is not None
    process.stdin.write("1.0\n")
    process.stdin.flush()


def share(process: "subprocess.Popen[str]") -> float:
    """Wait for its end; the share of the time for which its kernels ran."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    assert found["launches"] > 0
    return float(found["launches"] * KERNEL_NS / 1e9 / found["wall_s"])


def test_two_instances_have_a_share_each(
    make: Make,
    busy: Busy,
    gpu: SimulatedGpu,
    small: int,
    large: int,
) -> None:
    containers = [
        make(
            {number: GIB},
            name=str(percent),
            cores_percent=percent,
            cores_max_percent=percent,
            mode=HARD,
        )
        for number, percent in ((small, 10), (large, 30))
    ]
    processes = [busy(container, "async", KERNEL_NS) for container in containers]
    for process in processes:
        begin(process)

    one, two = (share(process) for process in processes)

    assert one <= 0.10 + SLACK
    assert two <= 0.30 + SLACK
    ran_on = [[each.busy_ns[number] > 0 for number in (small, large)] for each in gpu.processes()]
    assert sorted(ran_on) == [[False, True], [True, False]]
    assert all(container.usage.slot[0].dev[0].busy_ns > 0 for container in containers)
