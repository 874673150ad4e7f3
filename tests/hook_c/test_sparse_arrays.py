# SPDX-License-Identifier: Apache-2.0
"""Memory that is mapped to a part of a sparse array is charged until the card has it back."""

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
SIZE = 64 * MIB
SPARSE = 0x40
FLOAT = 0x20
MAP, UNMAP = 1, 2


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card."""
    return start(container)


@pytest.fixture
def array(tenant: Process) -> int:
    """Return a sparse array, which has no memory of its own."""
    code, array = tenant.do("array", "cuArray3DCreate_v2", [4096, 4096, 0, 4 << 32 | FLOAT, SPARSE])
    assert code == 0
    return int(array)


def memory(tenant: Process) -> int:
    """Return the handle of new memory."""
    code, handle = tenant.do("create_memory", SIZE)
    assert code == 0
    return int(handle)


def change(tenant: Process, *parts: tuple[int, int, int, int]) -> int:
    """Map or unmap parts of arrays: operation, array, which part, handle; the code."""
    words: list[int] = []
    for operation, array, part, handle in parts:
        words += [0, array, 0, 0, part << 32, 1 << 32, 1 << 32 | 1, operation, handle, 0, 1, 0]
    code, _ = tenant.do("list_call", "cuMemMapArrayAsync", words, len(parts), 0)
    return int(code)


def test_it_lives_while_it_is_mapped(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handle = memory(tenant)
    assert change(tenant, (MAP, array, 0, handle)) == 0

    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == gpu.used_bytes() == SIZE
    assert change(tenant, (UNMAP, array, 0, 0)) == 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_an_unmapping_that_waits_in_a_stream_gives_nothing_back(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handle = memory(tenant)
    assert change(tenant, (MAP, array, 0, handle)) == 0
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_500ms")) == 0

    assert change(tenant, (UNMAP, array, 0, 0)) == 0
    assert container.used() == gpu.used_bytes() == SIZE
    # An allocation that needs it waits for it.
    assert tenant.do("allocate", GIB)[0] == 0
    assert container.used() == gpu.used_bytes() == GIB


def test_memory_that_takes_the_place_of_other_memory(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    for _ in range(3):
        handle = memory(tenant)
        assert change(tenant, (MAP, array, 7, handle)) == 0
        assert tenant.do("call", "cuMemRelease", handle) == 0
        assert tenant.do("call", "cuStreamSynchronize", 0) == 0

        assert container.used() == gpu.used_bytes() == SIZE


def test_a_call_that_fails_half_way_leaves_what_it_has_mapped_charged(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handles = [memory(tenant), memory(tenant)]
    gpu.inject("part of a sparse array", code=1, skip=1, times=1)

    assert change(tenant, *((MAP, array, i, handle) for i, handle in enumerate(handles))) == 1
    for handle in handles:
        assert tenant.do("call", "cuMemRelease", handle) == 0
    assert gpu.used_bytes() == SIZE
    assert container.used() == 2 * SIZE  # which of them it has mapped it does not say
    assert tenant.do("call", "cuArrayDestroy", array) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_an_unmapping_that_fails_keeps_the_charge(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handle = memory(tenant)
    assert change(tenant, (MAP, array, 0, handle)) == 0
    assert tenant.do("call", "cuMemRelease", handle) == 0
    gpu.inject("part of a sparse array", code=1, times=1)

    assert change(tenant, (UNMAP, array, 0, 0)) == 1
    assert container.used() == gpu.used_bytes() == SIZE
    assert change(tenant, (UNMAP, array, 0, 0)) == 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_wait_for_an_unmapping_that_fails_keeps_the_charge(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handle = memory(tenant)
    assert change(tenant, (MAP, array, 0, handle)) == 0
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_500ms")) == 0
    gpu.inject("cuEventCreate", code=OUT_OF_MEMORY, times=1)
    gpu.inject("cuStreamSynchronize", code=ILLEGAL_ADDRESS, times=1)

    assert change(tenant, (UNMAP, array, 0, 0)) == 0
    assert container.used() == gpu.used_bytes() == SIZE


def test_an_array_ends_with_what_is_mapped_to_it(
    tenant: Process, array: int, container: Container, gpu: SimulatedGpu
) -> None:
    handle = memory(tenant)
    for part in range(100):
        assert change(tenant, (MAP, array, part, handle)) == 0
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == gpu.used_bytes() == SIZE

    assert tenant.do("call", "cuArrayDestroy", array) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_nothing_gets_the_drivers_answer(tenant: Process) -> None:
    assert tenant.do("call", "cuMemMapArrayAsync", 0, 0, 0) == 1
    assert tenant.do("call", "cuMemMapArrayAsync", 0, 3, 0) == 1


def test_a_pool_that_keeps_memory_gives_it_up_for_memory_to_map(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, address = tenant.do("out", "cuMemAllocAsync", 900 * MIB, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0

    assert tenant.do("create_memory", GIB)[0] == 0
    assert container.used() == gpu.used_bytes() == GIB
