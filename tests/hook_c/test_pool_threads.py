# SPDX-License-Identifier: Apache-2.0
"""Threads that use one pool at once: the account is never above the limit, nor below the card.

The account is what is held; of calls that are under way also what they have asked for.

Each test holds the call of a second thread at one place inside the simulated driver, so that the
order of things is the same in every run.
"""

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
STEP = 32 * MIB
BEFORE = "cuMemAllocAsync"
AFTER = "pool has given"
DEADLINE_SECONDS = 60
NAPS = 5000 + 500  # of 200 us, before one call is refused; and what else lets a process sleep


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card, which has 1 GiB."""
    return start(container)


@pytest.fixture
def hold(gpu: SimulatedGpu, tenant: Process) -> Iterator[Callable[..., None]]:
    """Yield a function that lets a second thread allocate, and returns when it is held."""

    def hold_one(place: str, size: int = 0, call: str = "cuMemAllocAsync") -> None:
        gpu.inject(place, times=1, delay_seconds=2 * DEADLINE_SECONDS)
        tenant.do("begin", call, size, 0)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while gpu.calls(place) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    yield hold_one
    gpu.clear_faults()


def allocate(tenant: Process, size: int) -> int:
    """Allocate on the default stream; the code."""
    return int(tenant.do("out", "cuMemAllocAsync", size, 0)[0])


def test_growth_that_another_thread_sees_first_is_counted_once(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    hold(AFTER, 600 * MIB)

    assert gpu.used_bytes() == 608 * MIB
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.counted() == 608 * MIB
    assert tenant.do("memory") == [GIB - 608 * MIB, GIB]
    gpu.clear_faults()
    assert tenant.do("finish")[0] == 0
    assert container.used() == gpu.used_bytes() == 608 * MIB


def test_a_pool_that_shrinks_under_a_call_keeps_what_the_call_will_take(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    code, address = tenant.do("out", "cuMemAllocAsync", MIB, 0)
    assert code == 0
    hold(BEFORE, MIB)

    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert gpu.used_bytes() == 0
    assert container.counted() == STEP
    assert tenant.do("allocate", GIB - STEP + 2 * MIB)[0] == OUT_OF_MEMORY
    assert tenant.do("allocate", GIB - STEP)[0] == 0
    gpu.clear_faults()
    assert tenant.do("finish")[0] == 0
    assert container.used() == gpu.used_bytes() == GIB


def test_a_call_that_fits_waits_for_one_that_is_charged_for_more_than_it_takes(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    code, address = tenant.do("out", "cuMemAllocAsync", 300 * MIB, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    hold(AFTER, 300 * MIB)
    assert gpu.used_bytes() == 320 * MIB
    assert container.counted() == 640 * MIB

    tenant.send("out", "cuMemAllocAsync", 480 * MIB, 0)
    gpu.clear_faults()

    assert tenant.answer()[0] == 0
    assert tenant.do("finish")[0] == 0
    assert container.used() == gpu.used_bytes() == 800 * MIB


def test_growth_that_the_driver_refuses_is_given_back(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    gpu.inject(BEFORE, code=OUT_OF_MEMORY, times=1)

    assert allocate(tenant, 100 * MIB) == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() == 0
    assert allocate(tenant, 1000 * MIB) == 0


def test_what_a_call_found_to_spare_is_not_found_twice(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    assert allocate(tenant, MIB) == 0
    assert tenant.do("allocate", GIB - STEP)[0] == 0
    hold(BEFORE, 20 * MIB)

    assert allocate(tenant, 20 * MIB) == OUT_OF_MEMORY
    gpu.clear_faults()
    assert tenant.do("finish")[0] == 0
    assert allocate(tenant, 12 * MIB) == OUT_OF_MEMORY
    assert allocate(tenant, 11 * MIB) == 0
    assert container.used() == gpu.used_bytes() == GIB


def freed_in_a_pool(tenant: Process) -> None:
    """Leave 608 MiB in the device's pool that nobody uses."""
    code, address = tenant.do("out", "cuMemAllocAsync", 600 * MIB, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0


def test_what_a_pool_gives_back_is_charged_until_the_card_has_it(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    freed_in_a_pool(tenant)
    hold("pool gives back", call="cuCtxSynchronize")

    assert gpu.used_bytes() == 608 * MIB  # and the pool's own number says 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == 608 * MIB
    gpu.clear_faults()
    tenant.do("finish")
    assert container.used() == gpu.used_bytes() == 0


@pytest.mark.parametrize(("size", "code"), [(300 * MIB, 0), (600 * MIB, OUT_OF_MEMORY)])
def test_what_a_pool_gives_back_is_not_taken_anew_before_the_card_has_it(
    tenant: Process,
    container: Container,
    gpu: SimulatedGpu,
    hold: Callable[..., None],
    size: int,
    code: int,
) -> None:
    freed_in_a_pool(tenant)
    hold("pool gives back", call="cuCtxSynchronize")

    most = 0
    tenant.send("out", "cuMemAllocAsync", size, 0)
    assert tenant.process.stdout is not None
    while not select.select([tenant.process.stdout], [], [], 0)[0]:
        most = max(most, gpu.used_bytes())
    most = max(most, gpu.used_bytes())
    assert tenant.answer()[0] == code
    assert 608 * MIB <= most <= GIB
    gpu.clear_faults()
    tenant.do("finish")
    assert container.used() == gpu.used_bytes() == (320 * MIB if code == 0 else 0)


@pytest.mark.parametrize("name", ["allocate", "async"])
def test_a_thread_that_waits_for_the_card_keeps_nothing_from_others(
    tenant: Process,
    container: Container,
    gpu: SimulatedGpu,
    hold: Callable[..., None],
    name: str,
) -> None:
    freed_in_a_pool(tenant)
    hold("cuStreamSynchronize", call="cuStreamSynchronize")
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert gpu.used_bytes() == 0

    if name == "allocate":
        assert tenant.do("allocate", 1000 * MIB)[0] == 0
    else:
        assert allocate(tenant, 1000 * MIB) == 0
    gpu.clear_faults()
    tenant.do("finish")
    assert container.used() == gpu.used_bytes()


def naps_of(tenant: Process) -> int:
    """How often the process has gone to sleep."""
    status = Path(f"/proc/{tenant.process.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_much_that_comes_back_late_is_waited_for_at_once(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    """Whether a wait of another thread gives it back nobody can tell: each is given 50 ms."""
    addresses = [tenant.do("allocate", 4 * MIB) for _ in range(200)]
    hold("cuStreamSynchronize", call="cuStreamSynchronize")
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_300ms"), stream) == 0
    for code, address in addresses:
        assert code == 0
        assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    before = naps_of(tenant)

    assert tenant.do("allocate", 1000 * MIB)[0] == 0
    assert naps_of(tenant) - before <= NAPS
    gpu.clear_faults()
    tenant.do("finish")


def free_behind_a_kernel(tenant: Process) -> int:
    """Free a pool's 64 MiB and 600 MiB of cuMemAlloc in a stream that is busy; the stream."""
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_300ms"), stream) == 0
    for name, size in (("cuMemAllocAsync", 64 * MIB), ("cuMemAlloc_v2", 600 * MIB)):
        code, address = tenant.do("out", name, size, stream)
        assert code == 0
        assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    return int(stream)


@pytest.mark.parametrize(
    ("call", "size"), [("cuCtxSynchronize", 0), ("cuMemAllocAsync", 500 * MIB)]
)
def test_what_a_wait_of_any_thread_gives_back_is_charged_until_the_card_has_it(
    tenant: Process,
    container: Container,
    gpu: SimulatedGpu,
    hold: Callable[..., None],
    call: str,
    size: int,
) -> None:
    """Also a wait of ours: an allocation that does not fit waits for what is freed in streams."""
    stream = free_behind_a_kernel(tenant)
    hold("freed memory goes back", size, call)

    assert tenant.do("call", "cuStreamSynchronize", stream) == 0
    assert gpu.used_bytes() >= 600 * MIB
    assert container.used() >= gpu.used_bytes()
    gpu.clear_faults()
    assert tenant.do("finish")[0] == 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes()


def test_a_plain_free_of_a_pools_memory_is_a_wait_too(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    stream = free_behind_a_kernel(tenant)
    hold("cuMemFree_v2", call="cuMemFree_v2")

    assert tenant.do("call", "cuStreamSynchronize", stream) == 0
    assert container.used() >= 600 * MIB
    gpu.clear_faults()
    tenant.do("finish")
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_plain_free_that_waits_for_the_card_leaves_the_account_of_others_alone(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    """As cuMemFree of a pool's memory does behind a kernel, for as long as that takes."""
    assert tenant.do("out", "cuMemAllocAsync", 100 * MIB, 0)[0] == 0
    hold("cuMemFree_v2", call="cuMemFree_v2")

    for _ in range(20):
        code, address = tenant.do("out", "cuMemAllocAsync", 400 * MIB, 0)
        assert code == 0
        assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    assert container.used() == gpu.used_bytes()
    gpu.clear_faults()
    tenant.do("finish")


def test_a_pool_is_not_destroyed_while_another_thread_asks_about_it(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    code, pool = tenant.do("pool", 0)
    assert code == 0
    code, address = tenant.do("out", "cuMemAllocFromPoolAsync", 40 * MIB, pool, 0)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    hold("cuMemPoolGetAttribute", call="cuCtxSynchronize")
    gpu.inject("cuMemPoolDestroy")

    tenant.send("call", "cuMemPoolDestroy", pool)
    time.sleep(0.2)
    assert gpu.calls("cuMemPoolDestroy") == 0
    gpu.clear_faults()

    assert tenant.answer() == 0
    tenant.do("finish")
    assert container.used() == gpu.used_bytes() == 0
    for _ in range(300):  # no place is lost
        code, pool = tenant.do("pool", 0)
        assert code == 0
        assert tenant.do("call", "cuMemPoolDestroy", pool) == 0


def test_a_pool_that_becomes_the_devices_own_under_a_call_gives_it_nothing_uncounted(
    tenant: Process, container: Container, gpu: SimulatedGpu, hold: Callable[..., None]
) -> None:
    code, pool = tenant.do("pool", 0)
    assert code == 0
    assert tenant.do("out", "cuMemAllocAsync", 32 * MIB, 0)[0] == 0
    hold(BEFORE, size=600 * MIB)

    assert tenant.do("call", "cuDeviceSetMemPool", 0, pool) == 0
    gpu.clear_faults()
    assert tenant.do("finish")[0] == 0
    assert container.used() >= gpu.used_bytes() == 640 * MIB
    assert tenant.do("allocate", 600 * MIB)[0] == OUT_OF_MEMORY
    code, _ = tenant.do("out", "cuMemAllocAsync", 100 * MIB, 0)
    assert code == 0
    assert container.used() == gpu.used_bytes() == 768 * MIB


@pytest.mark.parametrize(("before", "code"), [(0, 0), (600 * MIB, OUT_OF_MEMORY)])
def test_a_capture_that_ends_under_an_allocation_gives_it_nothing_uncounted(
    tenant: Process,
    container: Container,
    gpu: SimulatedGpu,
    hold: Callable[..., None],
    before: int,
    code: int,
) -> None:
    """It was to become a node of a graph, and takes its memory at once."""
    stream = tenant.do("out", "cuStreamCreate", 1)[1]
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 2) == 0
    gpu.inject(BEFORE, times=1, delay_seconds=2 * DEADLINE_SECONDS)
    tenant.do("begin", BEFORE, 600 * MIB, stream)
    while gpu.calls(BEFORE) == 0:
        time.sleep(0.001)

    assert tenant.do("capture_end", stream)[0] == 0
    if before:
        assert tenant.do("allocate", before)[0] == 0
    gpu.clear_faults()
    assert tenant.do("finish")[0] == code
    assert container.used() >= gpu.used_bytes()
    assert gpu.used_bytes() == (before or 608 * MIB)


def test_a_capture_that_ends_under_a_free_leaves_charged_what_is_not_freed(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    address = tenant.do("allocate", 600 * MIB)[1]
    stream = tenant.do("out", "cuStreamCreate", 1)[1]
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 2) == 0
    gpu.inject("cuStreamIsCapturing", times=1, delay_seconds=2 * DEADLINE_SECONDS)
    tenant.do("begin_call", "cuMemFreeAsync", address, stream)
    while gpu.calls("cuStreamIsCapturing") == 0:
        time.sleep(0.001)

    assert tenant.do("capture_end", stream)[0] == 0
    gpu.clear_faults()
    assert tenant.do("finish") == [0, 0]
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes()


def test_threads_never_bring_the_account_above_the_limit(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    most = 0

    tenant.send("churn", 8, 150)
    assert tenant.process.stdout is not None
    while not select.select([tenant.process.stdout], [], [], 0)[0]:
        most = max(most, container.used())

    assert set(tenant.answer()) <= {0, OUT_OF_MEMORY}
    assert 0 < most <= GIB
    assert container.used() == gpu.used_bytes() == 0
