# SPDX-License-Identifier: Apache-2.0
"""Memory of cuMemCreate is charged while a handle or a mapping of it lives, to its own device."""

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
SIZE = 64 * MIB


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card."""
    return start(container)


def reserve(tenant: Process, size: int) -> int:
    """Return the start of a new address range."""
    code, address = tenant.do("out", "cuMemAddressReserve", size, 0, 0, 0)
    assert code == 0
    return int(address)


def map_new(tenant: Process, address: int, size: int) -> int:
    """Create memory, map it, and return its handle."""
    code, handle = tenant.do("create_memory", size)
    assert code == 0
    assert tenant.do("call", "cuMemMap", address, size, 0, handle, 0) == 0
    return int(handle)


def test_the_limit_holds(tenant: Process) -> None:
    assert tenant.do("create_memory", GIB + 2 * MIB)[0] == OUT_OF_MEMORY
    code, handle = tenant.do("create_memory", GIB)
    assert code == 0
    assert tenant.do("create_memory", 2 * MIB)[0] == OUT_OF_MEMORY
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert tenant.do("memory") == [GIB, GIB]


@pytest.mark.parametrize("location", [0, 5, 99])
def test_memory_of_an_unknown_place_is_refused(tenant: Process, location: int) -> None:
    """It may be some of a card's."""
    assert tenant.do("create_at", SIZE, location) == [INVALID_VALUE, 0]


@pytest.mark.parametrize("host", [0, 1, 2])
def test_a_range_is_given_back_whole_whatever_else_is_mapped_in_it(
    tenant: Process, container: Container, gpu: SimulatedGpu, host: int
) -> None:
    address = reserve(tenant, 3 * SIZE)
    for place in range(3):
        code, handle = tenant.do("create_at", SIZE, 2 if place == host else 1)
        assert code == 0
        assert tenant.do("call", "cuMemMap", address + place * SIZE, SIZE, 0, handle, 0) == 0
        assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == gpu.used_bytes() == 2 * SIZE

    assert tenant.do("call", "cuMemUnmap", address, 3 * SIZE) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_handle_released_early_leaves_the_mapping_charged(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    address = reserve(tenant, SIZE)
    handle = map_new(tenant, address, SIZE)

    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == gpu.used_bytes() == SIZE
    assert tenant.do("call", "cuMemUnmap", address, SIZE) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_handle_kept_after_unmapping_stays_charged(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    address = reserve(tenant, SIZE)
    handle = map_new(tenant, address, SIZE)

    assert tenant.do("call", "cuMemUnmap", address, SIZE) == 0
    assert container.used() == gpu.used_bytes() == SIZE
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_retained_handle_is_one_more_reference(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    address = reserve(tenant, SIZE)
    handle = map_new(tenant, address, SIZE)

    code, again = tenant.do("out", "cuMemRetainAllocationHandle", address + 4096)
    assert code == 0
    for step, arguments in (
        ("cuMemRelease", (handle,)),
        ("cuMemUnmap", (address, SIZE)),
    ):
        assert tenant.do("call", step, *arguments) == 0
        assert container.used() == gpu.used_bytes() == SIZE
    assert tenant.do("call", "cuMemRelease", again) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_memory_mapped_twice_is_charged_once(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    one, two = reserve(tenant, SIZE), reserve(tenant, SIZE)
    handle = map_new(tenant, one, SIZE)
    assert tenant.do("call", "cuMemMap", two, SIZE, 0, handle, 0) == 0
    assert tenant.do("call", "cuMemRelease", handle) == 0

    assert tenant.do("call", "cuMemUnmap", one, SIZE) == 0
    assert container.used() == gpu.used_bytes() == SIZE
    assert tenant.do("call", "cuMemUnmap", two, SIZE) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_one_unmapping_of_several_mappings(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    address = reserve(tenant, 4 * SIZE)
    for index in range(4):
        handle = map_new(tenant, address + index * SIZE, SIZE)
        assert tenant.do("call", "cuMemRelease", handle) == 0
    assert container.used() == 4 * SIZE

    assert tenant.do("call", "cuMemUnmap", address, 4 * SIZE) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_call_that_the_driver_refuses_changes_nothing(
    tenant: Process, container: Container
) -> None:
    address = reserve(tenant, SIZE)
    handle = map_new(tenant, address, SIZE)

    assert tenant.do("call", "cuMemMap", address, SIZE, 0, handle, 0) != 0
    assert tenant.do("call", "cuMemUnmap", address, SIZE // 2) != 0
    assert tenant.do("call", "cuMemUnmap", address + 2 * MIB, SIZE) != 0
    assert tenant.do("call", "cuMemRelease", handle + 999) != 0
    assert container.used() == SIZE
    assert tenant.do("call", "cuMemRelease", handle) == 0
    assert tenant.do("call", "cuMemUnmap", address, SIZE) == 0
    assert container.used() == 0


def test_the_card_is_that_of_the_memory_not_of_the_context(
    tenant: Process, container: Container
) -> None:
    assert tenant.do("create_memory", SIZE, 1)[0] == 0

    assert container.used(0) == 0
    assert container.used(1) == SIZE


def test_no_current_context_is_needed(container: Container, gpu: SimulatedGpu) -> None:
    process = Process(gpu, wrapper=container.wrapper)

    assert process.do("call", "cuInit", 0) == 0
    assert process.do("create_memory", SIZE)[0] == 0
    assert container.used() == SIZE
    process.close()
