# SPDX-License-Identifier: Apache-2.0
"""Stream-ordered memory is charged as the driver's pools hold it."""

import select

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
MOST_POOLS = 256
RELAXED = 2
RELEASE_THRESHOLD = 4
MOST_LOOKS = 5000 + 10  # at streams, before one call is refused: a second, and once a step


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card."""
    return start(container)


def made(tenant: Process, name: str, *arguments: int | str) -> int:
    """What a call that must not fail has made."""
    code, handle = tenant.do(name, *arguments)
    assert code == 0
    return int(handle)


def allocate(tenant: Process, size: int, stream: int = 0) -> int:
    """Allocate from the device's pool."""
    return made(tenant, "out", "cuMemAllocAsync", size, stream)


def allocate_from(tenant: Process, pool: int, size: int) -> int:
    """Allocate from a pool on the default stream."""
    return made(tenant, "out", "cuMemAllocFromPoolAsync", size, pool, 0)


def code_of(tenant: Process, size: int, stream: int = 0) -> int:
    """Try to allocate from the device's pool."""
    return int(tenant.do("out", "cuMemAllocAsync", size, stream)[0])


def free(tenant: Process, address: int, stream: int = 0) -> None:
    """Free in the order of a stream."""
    assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0


def new_stream(tenant: Process) -> int:
    """Create a stream that waits for no other."""
    return made(tenant, "out", "cuStreamCreate", 1)


def default_pool(tenant: Process) -> int:
    """The first device's own pool."""
    return made(tenant, "out", "cuDeviceGetDefaultMemPool", 0)


def free_behind_a_kernel(tenant: Process, kernel: str, size: int, stream: int) -> None:
    """Allocate in a stream, and free while its kernel runs."""
    address = allocate(tenant, size, stream)
    assert tenant.do("launch", tenant.do("kernel", kernel), stream) == 0
    free(tenant, address, stream)


@pytest.mark.parametrize("size", [1024, MIB, 20 * MIB, 33 * MIB, 40 * MIB, 100 * MIB, 200 * MIB])
def test_the_charge_is_what_the_pool_reserves(
    tenant: Process, container: Container, gpu: SimulatedGpu, size: int
) -> None:
    addresses = [allocate(tenant, size) for _ in range(3)]

    assert container.used() == gpu.used_bytes() > 0
    for address in addresses:
        free(tenant, address)
    assert container.used() == gpu.used_bytes()
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_what_a_plain_free_takes_from_a_pool_is_given_back_at_once(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """The driver's count of what is used keeps it, and would fill the account round by round."""
    for _ in range(4):
        addresses = [allocate(tenant, 300 * MIB) for _ in range(3)]
        assert container.used() == gpu.used_bytes() == 928 * MIB
        for address in addresses:
            assert tenant.do("call", "cuMemFree_v2", address) == 0
        assert container.used() == gpu.used_bytes() == 0


def test_growth_that_cannot_be_foreseen_is_not_granted(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    allocate(tenant, 600 * MIB)
    gpu.inject("cuMemPoolGetAttribute", 999, times=1)  # the first question: what is used

    assert tenant.do("out", "cuMemAllocAsync", 500 * MIB, 0) == [OUT_OF_MEMORY, 0]
    assert container.used() == gpu.used_bytes() == 608 * MIB


def test_growth_above_the_limit_is_refused(tenant: Process, container: Container) -> None:
    allocate(tenant, GIB - 32 * MIB)

    assert tenant.do("out", "cuMemAllocAsync", 33 * MIB, 0) == [OUT_OF_MEMORY, 0]
    assert code_of(tenant, 32 * MIB) == 0
    assert container.used() == GIB


def test_a_pool_that_keeps_memory_gives_it_up_before_anything_is_refused(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    pool = default_pool(tenant)
    assert tenant.do("set_pool", pool, RELEASE_THRESHOLD, 2**64 - 1) == 0
    address = allocate(tenant, 900 * MIB)
    free(tenant, address)
    assert tenant.do("call", "cuStreamSynchronize", 0) == 0
    assert container.used() == gpu.used_bytes() > 900 * MIB

    assert tenant.do("allocate", 800 * MIB)[0] == 0
    assert container.used() == gpu.used_bytes() == 800 * MIB


def test_a_pool_of_its_own(tenant: Process, container: Container, gpu: SimulatedGpu) -> None:
    pool = made(tenant, "pool", 0)

    address = allocate_from(tenant, pool, 100 * MIB)
    assert container.used() == gpu.used_bytes() == 128 * MIB
    assert tenant.do("out", "cuMemAllocFromPoolAsync", GIB, pool, 0) == [OUT_OF_MEMORY, 0]
    assert tenant.do("set_pool", pool, RELEASE_THRESHOLD, 2**64 - 1) == 0
    free(tenant, address)
    assert tenant.do("call", "cuMemPoolTrimTo", pool, 0) == 0
    assert container.used() == gpu.used_bytes() == 128 * MIB
    assert tenant.do("call", "cuStreamSynchronize", 0) == 0
    assert tenant.do("call", "cuMemPoolTrimTo", pool, 0) == 0
    assert container.used() == gpu.used_bytes() == 0
    assert tenant.do("call", "cuMemPoolDestroy", pool) == 0


def test_a_destroyed_pool_is_charged_for_what_is_left_of_it(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """Its count of what is used holds what cuMemFree has given back, its reserve what it kept."""
    pool = made(tenant, "pool", 0)
    assert tenant.do("set_pool", pool, RELEASE_THRESHOLD, 2**64 - 1) == 0
    gone = allocate_from(tenant, pool, 100 * MIB)
    allocate_from(tenant, pool, 20 * MIB)  # is left
    assert tenant.do("call", "cuMemFree_v2", gone) == 0
    assert container.used() == gpu.used_bytes() == 128 * MIB

    assert tenant.do("call", "cuMemPoolDestroy", pool) == 0
    assert container.used() == gpu.used_bytes() == 32 * MIB


def test_a_pool_that_is_destroyed_before_its_frees_are_done_leaves_nothing_charged(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream, kernel = new_stream(tenant), tenant.do("kernel", "busy_2ms")
    before = gpu.used_bytes()
    for _ in range(8):
        pool = made(tenant, "pool", 0)
        address = made(tenant, "out", "cuMemAllocFromPoolAsync", 200 * MIB, pool, stream)
        assert tenant.do("launch", kernel, stream) == 0
        free(tenant, address, stream)
        assert tenant.do("call", "cuMemPoolDestroy", pool) == 0
        assert tenant.do("call", "cuStreamSynchronize", stream) == 0

    assert container.used() == gpu.used_bytes() - before == 0


def test_beside_many_pools_the_devices_own_ones_have_room(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    pools = 0
    while tenant.do("pool", 0)[0] == 0:
        pools += 1
    assert pools == MOST_POOLS

    own = default_pool(tenant)
    assert tenant.do("out", "cuMemAllocFromPoolAsync", GIB + MIB, own, 0) == [OUT_OF_MEMORY, 0]
    allocate_from(tenant, own, 100 * MIB)
    assert container.used() == gpu.used_bytes() == 128 * MIB
    assert code_of(tenant, GIB) == OUT_OF_MEMORY
    graph = made(tenant, "out", "cuGraphCreate", 0)
    assert tenant.do("graph_alloc", graph, MIB) == 0


@pytest.mark.parametrize(("kind", "location"), [(2, 0), (2, 1), (2, 2), (1, 0), (1, 99)])
def test_a_pool_that_could_be_charged_to_no_card_is_refused(
    tenant: Process, kind: int, location: int
) -> None:
    """Managed ones of CUDA 13, and those of places that are not known."""
    assert tenant.do("pool_at", kind, location) == [NOT_SUPPORTED, 0]


@pytest.mark.parametrize("name", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
def test_the_drivers_own_managed_pool_is_refused(tenant: Process, name: str) -> None:
    assert tenant.do("with_struct", name, [1], 2) == [NOT_SUPPORTED, 0]
    assert tenant.do("with_struct", name, [1], 1)[0] == 0


def test_what_the_driver_takes_past_the_limit_is_undone(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    assert tenant.do("allocate", 960 * MIB)[0] == 0
    gpu.inject("pool takes steps", 2, times=2)

    assert code_of(tenant, MIB) == OUT_OF_MEMORY  # after a second try
    assert container.used() == gpu.used_bytes() == 960 * MIB
    assert tenant.do("memory") == [64 * MIB, GIB]
    assert code_of(tenant, MIB) == 0
    assert container.used() == gpu.used_bytes() == 992 * MIB


def test_what_is_undone_breaks_no_capture(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    streams = [new_stream(tenant) for _ in range(2)]
    held = gpu.used_bytes()
    assert tenant.do("allocate", 960 * MIB)[0] == 0
    gpu.inject("pool takes steps", 2, times=2)
    assert tenant.do("call", "cuStreamBeginCapture_v2", streams[0], 0) == 0
    # The only mode in which the driver allocates beside the capture.
    assert tenant.do("exchange_capture_mode", RELAXED) == 0

    assert code_of(tenant, MIB, streams[1]) == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() - held == 960 * MIB
    assert tenant.do("capture_end", streams[0])[0] == 0


def test_scattered_pieces_do_not_bring_the_card_above_the_limit(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """What is free between pieces may be of no use: 14.8 GiB of 6 on an H200, without this."""
    small = [allocate(tenant, 16 * MIB) for _ in range(64)]
    assert container.used() == gpu.used_bytes() == GIB
    for address in small[::2]:
        free(tenant, address)

    for size in (200 * MIB, 64 * MIB, 17 * MIB):
        assert code_of(tenant, size) == OUT_OF_MEMORY
        assert container.used() == gpu.used_bytes() == GIB
    for _ in range(32):
        assert code_of(tenant, 16 * MIB) == 0
    assert container.used() == gpu.used_bytes() == GIB


@pytest.mark.parametrize("ends", ["stream", "context"])
def test_a_stream_that_is_gone_is_not_waited_for(
    tenant: Process, container: Container, ends: str
) -> None:
    context = made(tenant, "out", "cuCtxCreate_v2", 0, 0)
    stream = new_stream(tenant)
    address = allocate(tenant, 600 * MIB, stream)
    free(tenant, address, stream)
    if ends == "stream":
        assert tenant.do("call", "cuStreamDestroy_v2", stream) == 0
    else:
        assert tenant.do("call", "cuCtxDestroy_v2", context) == 0

    assert tenant.do("allocate", GIB + 1)[0] == OUT_OF_MEMORY
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert tenant.do("allocate", 1000 * MIB)[0] == 0


def test_a_stream_has_at_once_what_it_has_freed(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """Also where it is busy, and two of the same size do not fit."""
    stream = new_stream(tenant)
    held = gpu.used_bytes()
    for _ in range(4):
        free_behind_a_kernel(tenant, "busy_60000ms", 600 * MIB, stream)
    assert container.used() == gpu.used_bytes() - held == 608 * MIB


def test_the_program_reads_the_threshold_that_it_has_set(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    pool = default_pool(tenant)
    assert tenant.do("get_pool", pool, RELEASE_THRESHOLD) == [0, 0]
    allocate(tenant, MIB)
    assert tenant.do("get_pool", pool, RELEASE_THRESHOLD) == [0, 0]
    assert tenant.do("set_pool", pool, RELEASE_THRESHOLD, 64 * MIB) == 0
    assert tenant.do("get_pool", pool, RELEASE_THRESHOLD) == [0, 64 * MIB]

    address = allocate(tenant, 200 * MIB)
    free(tenant, address)
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 64 * MIB


@pytest.mark.parametrize("wait", ["cuCtxSynchronize", "cuStreamSynchronize"])
def test_a_wait_gives_back_what_is_kept_beyond_the_threshold(
    tenant: Process, container: Container, gpu: SimulatedGpu, wait: str
) -> None:
    pool = made(tenant, "pool", 0)
    for size in (20 * MIB, 300 * MIB):
        address = allocate_from(tenant, pool, size)
    free(tenant, address)

    assert tenant.do("call", wait, 0) == 0
    assert container.used() == gpu.used_bytes() == 32 * MIB


def test_memory_that_another_stream_still_uses_makes_no_room(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """The card is never above the limit; what fits when the stream is done is granted."""
    streams = [new_stream(tenant) for _ in range(2)]
    held = gpu.used_bytes()
    free_behind_a_kernel(tenant, "busy_300ms", 600 * MIB, streams[0])

    most = 0
    tenant.send("out", "cuMemAllocAsync", 500 * MIB, streams[1])
    while not tenant_answered(tenant):
        most = max(most, gpu.used_bytes() - held)
    assert tenant.answer()[0] == 0
    assert 600 * MIB < most <= GIB
    assert container.used() == gpu.used_bytes() - held


def test_memory_that_another_stream_never_gives_up_is_refused(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    streams = [new_stream(tenant) for _ in range(2)]
    held = gpu.used_bytes()
    free_behind_a_kernel(tenant, "busy_60000ms", 600 * MIB, streams[0])
    gpu.inject("cuEventQuery")

    assert code_of(tenant, 500 * MIB, streams[1]) == OUT_OF_MEMORY
    assert gpu.calls("cuEventQuery") <= MOST_LOOKS
    assert container.used() == gpu.used_bytes() - held == 608 * MIB
    assert code_of(tenant, 500 * MIB, streams[0]) == 0
    assert container.used() == gpu.used_bytes() - held == 608 * MIB
    assert code_of(tenant, 400 * MIB, streams[1]) == 0
    assert container.used() == gpu.used_bytes() - held == 1024 * MIB


def test_many_pools_one_after_the_other(tenant: Process, container: Container) -> None:
    for _ in range(300):
        pool = made(tenant, "pool", 0)
        assert tenant.do("call", "cuMemPoolDestroy", pool) == 0
    assert container.used() == 0


def test_the_card_is_that_of_the_pool(tenant: Process, container: Container) -> None:
    pool = made(tenant, "pool", 1)

    tenant.do("out", "cuMemAllocFromPoolAsync", 10 * MIB, pool, 0)
    assert container.used(0) == 0


def test_the_driver_is_asked_once_an_allocation_and_never_for_a_free(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    keep = allocate(tenant, MIB)
    free(tenant, allocate(tenant, MIB))
    gpu.inject("cuMemPoolGetAttribute")
    gpu.inject("cuCtxGetCurrent")

    for _ in range(64):
        free(tenant, allocate(tenant, MIB))
    assert gpu.calls("cuCtxGetCurrent") == 64  # there are two cards: for which one
    assert gpu.calls("cuMemPoolGetAttribute") == 64
    free(tenant, keep)
    assert gpu.calls("cuMemPoolGetAttribute") == 64
    assert container.used() == gpu.used_bytes() == 32 * MIB


def test_what_was_to_spare_is_gone_after_a_trim(tenant: Process, container: Container) -> None:
    keep = allocate(tenant, 20 * MIB)
    free(tenant, keep)
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == 0
    assert tenant.do("allocate", GIB - 20 * MIB)[0] == 0

    assert tenant.do("out", "cuMemAllocAsync", MIB, 0) == [OUT_OF_MEMORY, 0]


def test_threads_that_share_a_pool_pass_the_limit_by_a_pools_step_at_most(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """Which of two threads makes a pool grow is the driver's to decide, after both were let in."""
    tenant.send("churn", 8, 300)
    seen = []
    while not tenant_answered(tenant):
        seen.append(gpu.used_bytes())

    assert set(tenant.answer()) <= {0, OUT_OF_MEMORY}
    assert max(seen) <= GIB + 32 * MIB
    assert container.used() == gpu.used_bytes()


def tenant_answered(tenant: Process) -> bool:
    """Whether an answer waits to be read."""
    assert tenant.process.stdout is not None
    return bool(select.select([tenant.process.stdout], [], [], 0)[0])
