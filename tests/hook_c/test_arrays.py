# SPDX-License-Identifier: Apache-2.0
"""Arrays are charged what the driver takes for them."""

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, Start
from tests.hook_c.container import Container

OUT_OF_MEMORY = 2
FLOAT = 0x20
DEFERRED = 0x80


def words(width: int, height: int, depth: int | None, channels: int, flags: int = 0) -> list[int]:
    """Return a descriptor as 64-bit words; without depth the one of cuArrayCreate."""
    sizes = [width, height] if depth is None else [width, height, depth]
    tail = [FLOAT | channels << 32]
    return [*sizes, *tail] if depth is None else [*sizes, *tail, flags]


ARRAYS = [
    ("cuArrayCreate_v2", words(4096, 4096, None, 4), (), "cuArrayDestroy"),
    ("cuArrayCreate_v2", words(1000, 1000, None, 4), (), "cuArrayDestroy"),
    ("cuArrayCreate_v2", words(100_000, 0, None, 1), (), "cuArrayDestroy"),
    ("cuArrayCreate_v2", words(16, 16, None, 1), (), "cuArrayDestroy"),
    ("cuArray3DCreate_v2", words(300, 300, 300, 1), (), "cuArrayDestroy"),
    ("cuMipmappedArrayCreate", words(2048, 2048, 0, 4), (12,), "cuMipmappedArrayDestroy"),
]


@pytest.mark.parametrize(("name", "descriptor", "rest", "destroy"), ARRAYS)
def test_the_charge_is_what_the_driver_takes(
    container: Container,
    start: Start,
    gpu: SimulatedGpu,
    name: str,
    descriptor: list[int],
    rest: tuple[int, ...],
    destroy: str,
) -> None:
    tenant = start(container)

    code, array = tenant.do("with_struct", name, descriptor, *rest)
    assert code == 0
    slab = 2 << 20
    assert container.used() == -(-gpu.used_bytes() // slab) * slab
    assert tenant.do("call", destroy, array) == 0
    assert container.used() == gpu.used_bytes() == 0


@pytest.mark.parametrize(
    ("name", "descriptor", "rest"),
    [
        ("cuArrayCreate_v2", words(16384, 16384, None, 4), ()),
        ("cuArray3DCreate_v2", words(1024, 1024, 1024, 1), ()),
        ("cuMipmappedArrayCreate", words(16384, 16384, 0, 4), (1,)),
    ],
)
def test_more_than_the_limit_is_refused(
    container: Container, start: Start, name: str, descriptor: list[int], rest: tuple[int, ...]
) -> None:
    container.write(memory_bytes=GIB - 1)
    tenant = start(container)

    assert tenant.do("with_struct", name, descriptor, *rest) == [OUT_OF_MEMORY, 0]
    assert container.used() == 0


def test_an_array_without_memory_costs_nothing(container: Container, start: Start) -> None:
    tenant = start(container)

    descriptor = words(4096, 4096, 0, 4, DEFERRED)
    assert tenant.do("with_struct", "cuArray3DCreate_v2", descriptor)[0] == 0
    assert container.used() == 0


def test_arrays_end_with_their_context(container: Container, start: Start) -> None:
    tenant = start(container)
    descriptor = words(4096, 4096, None, 4)
    assert tenant.do("with_struct", "cuArrayCreate_v2", descriptor)[0] == 0

    assert tenant.do("call", "cuDevicePrimaryCtxReset_v2", 0) == 0
    assert container.used() == 0


def test_bad_descriptors_get_the_drivers_own_answer(container: Container, start: Start) -> None:
    tenant = start(container)

    assert tenant.do("out", "cuArrayCreate_v2", 0)[0] == 1
    assert tenant.do("with_struct", "cuArrayCreate_v2", words(0, 0, None, 4))[0] == 1
    assert container.used() == 0
