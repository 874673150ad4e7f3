# SPDX-License-Identifier: Apache-2.0
"""What a kernel's local memory takes is charged before its first launch, and refused there."""

from pathlib import Path

import pytest

from tests.fakes.gpu.description import Card
from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
STACK_SIZE = 0
THREADS = 132 * 2048

LAUNCHES = ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel"]
KERNEL = "busy_20us_local8000"
GROWN = (8000 - 1024) * THREADS


@pytest.fixture
def container(tmp_path: Path, gpu: SimulatedGpu, needs_root: None) -> Container:
    """Return a container with room for one grown context, not for two."""
    return Container(tmp_path / "container", {gpu.uuid(0): 3 * GIB, gpu.uuid(1): 3 * GIB})


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    return start(container)


def fill(tenant: Process, free_bytes: int) -> int:
    """Leave so much; the address of what fills the rest."""
    code, address = tenant.do("allocate", (tenant.do("memory")[0] - free_bytes) // MIB * MIB)
    assert code == 0
    return int(address)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_first_launch_is_charged_as_the_card_pays(
    tenant: Process, container: Container, gpu: SimulatedGpu, name: str
) -> None:
    kernel = tenant.do("kernel", KERNEL)
    assert container.used() == 0

    for _ in range(3):
        assert tenant.do("launch_by", name, kernel) == 0
        assert container.used() == gpu.used_bytes() == GROWN


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_does_not_fit_is_refused_and_nothing_is_charged(
    tenant: Process, container: Container, gpu: SimulatedGpu, name: str
) -> None:
    kernel = tenant.do("kernel", KERNEL)
    address = fill(tenant, GIB)
    before = container.used()

    assert tenant.do("launch_by", name, kernel) == OUT_OF_MEMORY
    assert tenant.do("launch", tenant.do("kernel", "busy_20us")) == 0
    assert container.used() == gpu.used_bytes() == before
    assert tenant.do("free", address) == 0
    assert tenant.do("launch_by", name, kernel) == 0


def test_a_configured_launch_and_one_of_many_cards(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    assert tenant.do("launch_config", tenant.do("kernel", "busy_1us_local2048")) == 0
    assert container.used() == gpu.used_bytes() == 1024 * THREADS
    assert tenant.do("launch_config", tenant.do("kernel", "busy_1us_local500000")) == OUT_OF_MEMORY
    assert tenant.do("launch_old", tenant.do("kernel", "busy_1us_local4096")) == 0
    assert container.used() == gpu.used_bytes() == 3072 * THREADS


def test_the_largest_kernel_so_far_counts(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    for local, held in ((1024, 0), (2000, 976), (1500, 976), (4000, 2976), (3000, 2976)):
        assert tenant.do("launch", tenant.do("kernel", f"busy_1us_local{local}")) == 0
        assert container.used() == gpu.used_bytes() == held * THREADS


def test_a_pool_that_keeps_memory_makes_room(tenant: Process, container: Container) -> None:
    code, pool = tenant.do("out", "cuDeviceGetDefaultMemPool", 0)
    assert code == 0
    assert tenant.do("set_pool", pool, 4, 2**64 - 1) == 0
    code, address = tenant.do("out", "cuMemAllocAsync", 2 * GIB, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == 2 * GIB

    assert tenant.do("launch", tenant.do("kernel", KERNEL)) == 0
    assert container.used() == GROWN


def test_a_launch_that_fails_takes_its_charge_back(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    kernel = tenant.do("kernel", KERNEL)
    gpu.inject("cuLaunchKernel", 719, times=1)

    assert tenant.do("launch", kernel) == 719
    assert container.used() == gpu.used_bytes() == 0
    assert tenant.do("launch", kernel) == 0
    assert container.used() == gpu.used_bytes() == GROWN


def test_each_context_has_its_own(tenant: Process, container: Container, gpu: SimulatedGpu) -> None:
    kernel = tenant.do("kernel", "busy_1us_local4096")
    assert tenant.do("launch", kernel) == 0
    code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    assert code == 0

    assert tenant.do("launch", kernel) == 0
    assert container.used() == gpu.used_bytes() == 2 * 3072 * THREADS
    assert tenant.do("launch", tenant.do("kernel", "busy_1us_local12000")) == OUT_OF_MEMORY
    assert tenant.do("call", "cuCtxDestroy_v2", context) == 0
    assert container.used() == gpu.used_bytes() == 3072 * THREADS
    assert tenant.do("launch", tenant.do("kernel", KERNEL)) == 0
    assert tenant.do("call", "cuDevicePrimaryCtxReset_v2", 0) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_context_made_after_the_growth_of_another_is_asked(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    kernel = tenant.do("kernel", KERNEL)
    assert tenant.do("launch", kernel) == 0

    assert tenant.do("start", 1) == 0
    assert tenant.do("launch", kernel) == 0
    assert container.used(1) == gpu.used_bytes(1) == GROWN


def test_a_handle_that_is_given_anew_is_read_again(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """Whatever address the next kernel has, its own need counts."""
    for local in (500, 2000, 600, 5000):
        module, kernel = tenant.do("module_kernel", f"busy_1us_local{local}")
        assert tenant.do("launch", kernel) == 0
        assert container.used() == gpu.used_bytes()
        assert tenant.do("call", "cuModuleUnload", module) == 0


def test_the_stack_limit_up_and_down(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    kernel = tenant.do("kernel", KERNEL)

    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 4096) == 0
    assert container.used() == gpu.used_bytes() == 3072 * THREADS
    assert tenant.do("launch", kernel) == 0
    assert container.used() == gpu.used_bytes() == GROWN
    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 16384) == OUT_OF_MEMORY
    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 2**63) == INVALID_VALUE
    assert container.used() == gpu.used_bytes() == GROWN
    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 1024) == 0
    assert container.used() == gpu.used_bytes() == 0
    assert tenant.do("launch", kernel) == 0
    assert container.used() == gpu.used_bytes() == GROWN
    assert tenant.do("call", "cuCtxSetLimit", 1, 1 << 30) == 0
    assert tenant.do("call", "cuCtxSetLimit", 99, 1 << 30) == INVALID_VALUE


def test_a_captured_kernel_is_charged_with_its_graph(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    kernel = tenant.do("kernel", KERNEL)
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0
    assert tenant.do("launch", kernel, stream) == 0
    code, graph = tenant.do("capture_end", stream)
    assert code == 0
    assert container.used() == gpu.used_bytes() == 0
    address = fill(tenant, GIB)

    assert tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0) == [OUT_OF_MEMORY, 0]
    assert tenant.do("free", address) == 0
    code, instance = tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0)
    assert code == 0
    assert container.used() == GROWN
    assert tenant.do("call", "cuGraphLaunch", instance, stream) == 0
    assert container.used() == gpu.used_bytes() == GROWN


def test_a_kernel_deep_in_a_graph_and_one_that_is_put_in_later(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    small, large = tenant.do("kernel", "busy_1us_local2000"), tenant.do("kernel", KERNEL)
    inner, node = tenant.do("kernel_graph", small)
    outer = tenant.do("graph_of", inner)
    code, instance = tenant.do("out", "cuGraphInstantiateWithFlags", outer, 0)
    assert code == 0
    assert tenant.do("call", "cuGraphLaunch", instance, 0) == 0
    assert container.used() == gpu.used_bytes() == 976 * THREADS

    assert tenant.do("set_kernel", instance, node, large) == 0
    assert tenant.do("call", "cuGraphLaunch", instance, 0) == 0
    assert container.used() == gpu.used_bytes() == GROWN
    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 1024) == 0
    fill(tenant, GIB)
    assert tenant.do("call", "cuGraphLaunch", instance, 0) == OUT_OF_MEMORY
    assert tenant.do("call", "cuGraphExecDestroy", instance) == 0


def test_a_kernel_in_the_body_of_a_condition(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    graph = tenant.do("conditional_graph", tenant.do("kernel", KERNEL))

    code, instance = tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0)
    assert code == 0
    assert tenant.do("call", "cuGraphLaunch", instance, 0) == 0
    assert container.used() == gpu.used_bytes() == GROWN
    assert tenant.do("call", "cuCtxSetLimit", STACK_SIZE, 1024) == 0
    fill(tenant, GIB)
    assert tenant.do("call", "cuGraphLaunch", instance, 0) == OUT_OF_MEMORY


def test_without_limits_nothing_is_asked(gpu: SimulatedGpu, tmp_path: Path) -> None:
    gpu.inject("cuFuncGetAttribute")
    with Process(gpu, environment={"LD_PRELOAD": str(LIBRARY)}) as process:
        assert process.do("start") == 0
        assert process.do("launch", process.do("kernel", KERNEL)) == 0
    assert gpu.calls("cuFuncGetAttribute") == 0


def test_a_kernel_is_read_once(tenant: Process, gpu: SimulatedGpu) -> None:
    kernel = tenant.do("kernel", KERNEL)
    gpu.inject("cuFuncGetAttribute")
    gpu.inject("cuDeviceGetAttribute")

    for _ in range(5):
        assert tenant.do("launch", kernel) == 0
    assert gpu.calls("cuFuncGetAttribute") == 1
    assert gpu.calls("cuDeviceGetAttribute") == 2


def test_a_launch_of_nothing_gets_the_drivers_answer(tenant: Process) -> None:
    assert tenant.do("launch", 0) == 400
    assert tenant.do("call", "cuLaunchKernelEx", 0, 0, 0, 0) == INVALID_VALUE


def test_a_card_of_other_size(tmp_path: Path, needs_root: None) -> None:
    gpu = SimulatedGpu.create(
        tmp_path / "small", (Card(context_bytes=0, sm_count=10, threads_per_sm=1536),)
    )
    container = Container(tmp_path / "container", {gpu.uuid(0): GIB})
    with Process(gpu, wrapper=container.wrapper) as process:
        assert process.do("start", 0) == 0
        assert process.do("launch", process.do("kernel", KERNEL)) == 0
        assert container.used() == gpu.used_bytes() == (8000 - 1024) * 10 * 1536
    gpu.close()
