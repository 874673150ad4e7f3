# SPDX-License-Identifier: Apache-2.0
"""A question that could not be answered once is asked again: a failure is kept nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.fakes.gpu.tenant import Tenant
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
SYSTEM_NOT_READY = 802
UNKNOWN = 999

THREADS = 132 * 2048


@pytest.fixture
def tenant(container: Container, gpu: SimulatedGpu) -> Iterator[Tenant]:
    """Yield a process in the container that has not called cuInit."""
    with Process(gpu, wrapper=container.wrapper) as process:
        yield process


def works(tenant: Tenant) -> None:
    """Use the card, within its limit."""
    assert tenant.do("start") == 0
    assert tenant.do("memory") == [GIB, GIB]
    assert tenant.do("allocate", GIB + 1)[0] == OUT_OF_MEMORY
    assert tenant.do("allocate", GIB)[0] == 0


@pytest.mark.parametrize(
    "call",
    [
        ("out", "cuDevicePrimaryCtxRetain", 0),
        ("out", "cuCtxCreate_v2", 0, 0),
        ("out", "cuMemAlloc_v2", MIB),
        ("out", "cuMemAllocAsync", MIB, 0),
        ("create_memory", 2 * MIB),
        ("pool", 0),
    ],
)
def test_a_call_before_cuinit_spoils_nothing(tenant: Tenant, call: tuple[str, ...]) -> None:
    answer = tenant.do(*call)

    assert answer[0] == NOT_INITIALIZED
    works(tenant)


def test_a_graph_before_cuinit_spoils_nothing(tenant: Tenant) -> None:
    assert tenant.do("graph_alloc", 0, MIB) == NOT_INITIALIZED
    works(tenant)


def test_a_driver_that_does_not_tell_its_cards_once_is_asked_again(
    tenant: Tenant, gpu: SimulatedGpu, container: Container
) -> None:
    gpu.inject("cuDeviceGetUuid_v2", UNKNOWN)
    assert tenant.do("call", "cuInit", 0) == SYSTEM_NOT_READY
    assert "the driver does not tell the cards' UUIDs" in container.messages()[-1]

    gpu.clear_faults()
    works(tenant)


def test_a_card_whose_uuid_could_not_be_read_is_known_later(
    tenant: Tenant, gpu: SimulatedGpu
) -> None:
    """The first card is known, the second one only the next time."""
    gpu.inject("cuDeviceGetUuid_v2", UNKNOWN, skip=1, times=2)
    assert tenant.do("start") == 0
    assert tenant.do("start", 1) == OUT_OF_MEMORY
    assert tenant.do("start", 1) == 0
    assert tenant.do("memory") == [2 * GIB, 2 * GIB]


def test_a_process_without_a_free_descriptor_is_let_in_when_it_has_one(tenant: Tenant) -> None:
    tenant.do("limit_files", 3)
    assert tenant.do("call", "cuInit", 0) == SYSTEM_NOT_READY
    tenant.do("limit_files", 1024)
    works(tenant)


def test_a_container_whose_slots_are_taken_lets_a_process_in_when_one_is_free(
    tenant: Tenant, container: Container
) -> None:
    with container.all_slots_taken():
        assert tenant.do("call", "cuInit", 0) == SYSTEM_NOT_READY
    works(tenant)


def test_a_kernel_whose_local_memory_could_not_be_read_is_charged_at_its_next_launch(
    tmp_path: Path, gpu: SimulatedGpu, start: Start
) -> None:
    container = Container(tmp_path / "container", {gpu.uuid(0): GIB})
    tenant = start(container)
    kernel = tenant.do("kernel", "busy_20us_local8000")
    gpu.inject("cuFuncGetAttribute", UNKNOWN)
    gpu.inject("cuKernelGetAttribute", UNKNOWN)
    gpu.inject("cuLaunchKernel", UNKNOWN, times=1)
    assert tenant.do("launch", kernel) == UNKNOWN

    gpu.clear_faults()
    assert (8000 - 1024) * THREADS > GIB
    assert tenant.do("launch", kernel) == OUT_OF_MEMORY
    assert gpu.used_bytes() == 0
