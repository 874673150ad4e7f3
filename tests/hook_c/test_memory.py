# SPDX-License-Identifier: Apache-2.0
"""A container's processes together never get more of a card than was promised."""

import time

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
INVALID_VALUE = 1
INVALID_HANDLE = 400

# Every family that takes memory by a size, and the argument behind it.
ALLOCATORS = [
    ("cuMemAlloc_v2", ()),
    ("cuMemAllocManaged", (1,)),
    ("cuMemAllocAsync", (0,)),
    ("cuMemAllocAsync_ptsz", (0,)),
]


@pytest.mark.parametrize(("name", "rest"), ALLOCATORS)
def test_the_limit_is_granted_and_a_byte_more_is_refused(
    container: Container, start: Start, name: str, rest: tuple[int, ...]
) -> None:
    tenant = start(container)

    assert tenant.do("out", name, GIB + 1, *rest) == [OUT_OF_MEMORY, 0]
    code, address = tenant.do("out", name, GIB, *rest)
    assert code == 0
    assert tenant.do("out", name, 1, *rest) == [OUT_OF_MEMORY, 0]
    assert tenant.do("free", address) == 0
    assert tenant.do("out", name, GIB, *rest)[0] == 0


@pytest.mark.parametrize("bytes_", [2**64 - 1, 2**64 - 2 * MIB, 2**63, 2**63 + 1])
def test_a_size_near_the_end_of_64_bits_is_refused(
    container: Container, start: Start, bytes_: int
) -> None:
    tenant = start(container)

    assert tenant.do("allocate", bytes_) == [OUT_OF_MEMORY, 0]
    assert tenant.do("memory") == [GIB, GIB]


def test_bad_arguments_get_the_drivers_own_answer(container: Container, start: Start) -> None:
    tenant = start(container)

    assert tenant.do("call", "cuMemAlloc_v2", 0, 4 * GIB) == INVALID_VALUE
    assert tenant.do("allocate", 0)[0] == INVALID_VALUE
    assert tenant.do("free", 0) == 0
    assert tenant.do("free", 12345) == INVALID_VALUE
    assert tenant.do("call", "cuMemGetInfo_v2", 0, 0) == INVALID_VALUE


def test_sizes_are_those_that_the_driver_takes(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)

    for size in (1, 512, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 33 * MIB):
        code, address = tenant.do("allocate", size)
        assert code == 0
        assert container.used() == gpu.used_bytes()
        tenant.do("free", address)
    assert container.used() == gpu.used_bytes() == 0


@pytest.mark.parametrize(("size", "per_slab"), [(4096, 512), (512 << 10, 4), (700 << 10, 2)])
def test_small_memory_is_charged_by_the_slab(
    container: Container, start: Start, gpu: SimulatedGpu, size: int, per_slab: int
) -> None:
    """Of 700 KiB two go into 2 MiB, and one piece that is left holds all of them."""
    container.write(memory_bytes=16 * MIB)
    tenant = start(container)

    found = [tenant.do("allocate", size) for _ in range(8 * per_slab)]
    assert {code for code, _ in found} == {0}
    assert tenant.do("allocate", size)[0] == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() == 16 * MIB

    left: dict[int, int] = {}
    for _, address in found:
        if left.setdefault(address // (2 * MIB), address) != address:
            assert tenant.do("free", address) == 0
    assert container.used() == gpu.used_bytes() == 16 * MIB
    assert tenant.do("allocate", 2 * MIB)[0] == OUT_OF_MEMORY
    # There is room for pieces that need no slab of their own.
    again = [tenant.do("allocate", size) for _ in range(8 * (per_slab - 1))]
    assert {code for code, _ in again} == {0}
    assert container.used() == gpu.used_bytes() == 16 * MIB

    for address in [*left.values(), *(address for _, address in again)]:
        assert tenant.do("free", address) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_small_memory_of_a_context_ends_with_it(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    before = container.used(), gpu.used_bytes()
    for _ in range(3):
        code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
        assert code == 0
        for size in (1, 700 << 10, MIB, 700 << 10):
            assert tenant.do("allocate", size)[0] == 0
        assert container.used() - before[0] == gpu.used_bytes() - before[1]
        assert tenant.do("call", "cuCtxDestroy_v2", context) == 0
        assert (container.used(), gpu.used_bytes()) == before


def test_pitch_is_charged_as_the_driver_pads_it(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)

    assert tenant.do("pitch", 520, 10000)[0] == 0
    assert container.used() == gpu.used_bytes() == 10 * MIB
    assert tenant.do("pitch", 520, 1000 << 10)[0] == 0
    assert tenant.do("pitch", 2**63, 2)[0] == INVALID_VALUE  # nothing is left in 64 bits
    assert tenant.do("pitch", 2**62, 2)[0] == OUT_OF_MEMORY
    assert tenant.do("pitch", 520, 1 << 20)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize("allocator", ["cuMemAlloc_v2", "cuMemAllocAsync"])
@pytest.mark.parametrize("free", ["cuMemFree_v2", "cuMemFreeAsync"])
def test_any_free_is_good_for_any_memory(
    container: Container, start: Start, allocator: str, free: str
) -> None:
    tenant = start(container)
    code, address = tenant.do("out", allocator, 64 * MIB, 0)
    assert code == 0

    assert tenant.do("call", free, address, 0) == 0
    # A pool gives back what is freed at the next synchronisation.
    assert tenant.do("call", "cuStreamSynchronize", 0) == 0
    assert container.used() == 0
    assert tenant.do("memory") == [GIB, GIB]


@pytest.mark.parametrize("free", ["cuMemFreeAsync", "cuMemFreeAsync_ptsz"])
def test_what_is_freed_in_a_stream_is_charged_as_long_as_the_driver_keeps_it(
    container: Container, start: Start, gpu: SimulatedGpu, free: str
) -> None:
    tenant = start(container)

    for size in [200 * MIB] * 10 + [4096] * 10:
        code, address = tenant.do("allocate", size)
        assert code == 0
        assert tenant.do("call", free, address, 0) == 0
        assert container.used() == gpu.used_bytes()
        assert tenant.do("call", "cuMemFree_v2", address) == INVALID_VALUE
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_memory_freed_behind_a_kernel_is_charged_until_it_has_run(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    kernel = tenant.do("kernel", "busy_500ms")
    code, address = tenant.do("allocate", 900 * MIB)
    assert code == 0
    assert tenant.do("launch", kernel) == 0

    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    assert container.used() == gpu.used_bytes() == 900 * MIB
    assert tenant.do("memory")[0] == GIB - 900 * MIB
    # An allocation that needs it waits for it, as it would on a card that is full.
    assert tenant.do("allocate", 900 * MIB)[0] == 0
    assert container.used() == gpu.used_bytes() == 900 * MIB


def test_no_free_in_a_stream_waits_however_many_there_are(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    """What they stand behind may wait for the program."""
    tenant = start(container)
    kernel = tenant.do("kernel", "busy_10s")
    addresses: list[int] = []
    for _ in range(600):
        code, address = tenant.do("allocate", 2 * MIB if not addresses else 4096)
        assert code == 0
        addresses.append(address)
    assert tenant.do("launch", kernel) == 0

    begun = time.monotonic()
    for address in addresses:
        assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0

    assert time.monotonic() - begun < 8
    assert container.used() == gpu.used_bytes() > 0
    assert tenant.do("call", "cuCtxSynchronize") == 0
    assert container.used() == gpu.used_bytes() == 0


def test_a_wait_that_fails_gives_nothing_back(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(container)
    code, address = tenant.do("allocate", 900 * MIB)
    assert code == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_500ms")) == 0
    gpu.inject("cuEventCreate", code=OUT_OF_MEMORY, times=1)
    gpu.inject("cuStreamSynchronize", code=ILLEGAL_ADDRESS, times=1)

    assert tenant.do("call", "cuMemFreeAsync", address, 0) == 0
    assert container.used() == gpu.used_bytes() == 900 * MIB


def test_two_processes_share_the_limit(container: Container, start: Start) -> None:
    one, two = start(container), start(container)

    assert one.do("allocate", 600 * MIB)[0] == 0
    assert two.do("allocate", 600 * MIB) == [OUT_OF_MEMORY, 0]
    assert two.do("allocate", 424 * MIB)[0] == 0
    assert one.do("memory") == two.do("memory") == [0, GIB]


def test_memory_of_a_killed_process_is_free_within_100_ms(
    container: Container, start: Start
) -> None:
    one, two = start(container), start(container)
    assert one.do("allocate", GIB)[0] == 0
    assert two.do("allocate", 2 * MIB)[0] == OUT_OF_MEMORY

    one.kill()
    killed = time.monotonic()
    assert two.do("allocate", GIB)[0] == 0
    assert time.monotonic() - killed < 0.1


def test_reports_of_a_killed_process_end_within_100_ms(container: Container, start: Start) -> None:
    one, two = start(container), start(container)
    assert one.do("allocate", GIB)[0] == 0

    one.kill()
    time.sleep(0.1)
    assert two.do("memory") == [GIB, GIB]


def test_a_process_that_ends_gives_back(container: Container, start: Start) -> None:
    one, two = start(container), start(container)
    assert one.do("allocate", GIB)[0] == 0

    one.close()
    assert two.do("allocate", GIB)[0] == 0


def test_each_card_has_its_own_limit(container: Container, start: Start) -> None:
    one, two = start(container), start(container, device=1)

    assert one.do("allocate", GIB)[0] == 0
    assert two.do("memory") == [2 * GIB, 2 * GIB]
    assert two.do("allocate", 2 * GIB + 1)[0] == OUT_OF_MEMORY
    assert two.do("allocate", 2 * GIB)[0] == 0


def test_garbage_in_the_usage_file_raises_no_limit(container: Container, start: Start) -> None:
    tenant = start(container)
    assert tenant.do("allocate", 1000 * MIB)[0] == 0
    usage = (container.folder / "usage").open("r+b")

    for garbage in (b"\0", b"\xff", b"\x80"):
        usage.seek(128)
        usage.write(garbage * (1 << 20))
        usage.flush()
        assert tenant.do("allocate", 32 * MIB) == [OUT_OF_MEMORY, 0]
        free, total = tenant.do("memory")
        assert free <= 24 * MIB
        assert total == GIB
    usage.close()


def test_a_limit_changes_without_a_restart(container: Container, start: Start) -> None:
    tenant = start(container)
    assert tenant.do("allocate", GIB)[0] == 0

    container.write(memory_bytes=3 * GIB)
    assert tenant.do("memory") == [2 * GIB, 3 * GIB]
    assert tenant.do("allocate", 2 * GIB)[0] == 0
    container.write(memory_bytes=GIB // 2)
    assert tenant.do("memory") == [0, GIB // 2]
    assert tenant.do("allocate", 2 * MIB)[0] == OUT_OF_MEMORY


def test_overhead_that_the_agent_measures_counts(container: Container, start: Start) -> None:
    tenant = start(container)

    container.write(overhead_bytes=GIB - 8 * MIB)
    assert tenant.do("memory") == [8 * MIB, GIB]
    assert tenant.do("allocate", 10 * MIB)[0] == OUT_OF_MEMORY
    assert tenant.do("allocate", 8 * MIB)[0] == 0
    container.write(overhead_bytes=2 * GIB)
    assert tenant.do("memory") == [0, GIB]


def test_a_context_is_charged_while_it_lives(container: Container, start: Start) -> None:
    container.write(context_bytes=100 * MIB)
    tenant = start(container)

    assert tenant.do("memory") == [GIB - 100 * MIB, GIB]
    code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    assert code == 0
    assert container.used() == 200 * MIB
    assert tenant.do("allocate", 50 * MIB)[0] == 0
    assert container.used() == 250 * MIB
    assert tenant.do("call", "cuCtxDestroy_v2", context) == 0
    assert container.used() == 100 * MIB


def test_a_context_ends_with_the_last_who_is_attached(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    container.write(context_bytes=100 * MIB)
    tenant = start(container)
    code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    assert code == 0
    assert tenant.do("out", "cuCtxAttach", 0) == [0, context]
    assert tenant.do("allocate", 50 * MIB)[0] == 0

    assert tenant.do("call", "cuCtxDetach", context) == 0
    assert container.used() == 250 * MIB
    assert gpu.used_bytes() == 50 * MIB
    assert tenant.do("call", "cuCtxDetach", context) == 0
    assert container.used() == 100 * MIB
    assert gpu.used_bytes() == 0


def test_a_context_that_does_not_fit_is_refused(container: Container, start: Start) -> None:
    tenant = start(container)
    container.write(context_bytes=600 * MIB)

    assert tenant.do("out", "cuCtxCreate_v2", 0, 0)[0] == 0
    assert tenant.do("out", "cuCtxCreate_v2", 0, 0)[0] == OUT_OF_MEMORY


def test_resetting_the_primary_context_ends_its_memory(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    container.write(context_bytes=100 * MIB)
    tenant = start(container)
    for _ in range(10):
        assert tenant.do("allocate", 5 * MIB)[0] == 0
        assert tenant.do("allocate", 4096)[0] == 0

    assert tenant.do("call", "cuDevicePrimaryCtxReset_v2", 0) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_the_current_context_is_kept(container: Container, start: Start) -> None:
    """Of a stream of another context the hooks ask in that context."""
    tenant = start(container)
    _, first = tenant.do("out", "cuCtxGetCurrent")
    code, second = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    assert code == 0
    code, stream = tenant.do("out", "cuStreamCreate", 0)
    assert code == 0
    assert tenant.do("call", "cuCtxSetCurrent", first) == 0
    kernel = tenant.do("kernel", "busy_1us_local8000")
    _, address = tenant.do("allocate", 2 * MIB)

    tenant.do("out", "cuMemAllocAsync", MIB, stream)
    tenant.do("launch", kernel, stream)
    tenant.do("call", "cuMemFreeAsync", address, stream)
    assert tenant.do("out", "cuCtxGetCurrent") == [0, first]
    assert tenant.do("call", "cuCtxDestroy_v2", second) == 0
    assert tenant.do("out", "cuCtxGetCurrent") == [0, first]


def test_a_forked_child_begins_with_nothing(container: Container, start: Start) -> None:
    tenant = start(container)
    code, address = tenant.do("allocate", 700 * MIB)
    assert code == 0

    # The driver does not work in it, and what it frees is not its parent's.
    answers = tenant.do("forked", ["free", address], ["allocate", 2 * MIB])
    assert answers[0] != 0
    assert answers[1][0] != 0
    assert container.used() == 700 * MIB
    assert tenant.do("free", address) == 0
    assert container.used() == 0


def test_a_daemon_that_closes_all_files_stays_counted(container: Container, start: Start) -> None:
    one, two = start(container), start(container)
    assert one.do("allocate", 700 * MIB)[0] == 0

    one.do("close_all_files")
    time.sleep(0.1)
    assert two.do("allocate", 700 * MIB)[0] == OUT_OF_MEMORY
    assert two.do("memory") == [GIB - 700 * MIB, GIB]


def test_a_daemon_counts_in_other_pid_namespaces_until_it_ends(
    container: Container, gpu: SimulatedGpu
) -> None:
    """No namespace knows the other's PIDs, and the daemon has no descriptor left."""
    wrapper = [*container.wrapper, "unshare", "--pid", "--fork", "--kill-child"]
    with Process(gpu, wrapper=wrapper) as daemon, Process(gpu, wrapper=wrapper) as other:
        assert daemon.do("start") == 0
        assert daemon.do("allocate", 900 * MIB)[0] == 0
        daemon.do("close_all_files")
        assert other.do("start") == 0
        time.sleep(0.1)
        assert other.do("allocate", 900 * MIB)[0] == OUT_OF_MEMORY
        assert other.do("memory") == [GIB - 900 * MIB, GIB]
        assert container.used() == gpu.used_bytes() == 900 * MIB

        daemon.kill()
        deadline = time.monotonic() + 30
        while other.do("memory") != [GIB, GIB]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert other.do("allocate", 900 * MIB)[0] == 0
        assert container.used() == gpu.used_bytes() == 900 * MIB


def test_a_daemon_gets_at_once_what_an_ended_process_held(
    container: Container, start: Start
) -> None:
    daemon, child = start(container), start(container)
    assert daemon.do("allocate", 100 * MIB)[0] == 0
    assert child.do("allocate", 700 * MIB)[0] == 0
    assert daemon.do("memory") == [GIB - 800 * MIB, GIB]

    daemon.do("close_all_files")
    child.kill()
    assert daemon.do("allocate", 900 * MIB)[0] == 0


def test_a_refusal_in_a_stream_or_after_a_fault_is_the_drivers(
    container: Container, start: Start, gpu: SimulatedGpu
) -> None:
    """A fault of the context is told also where there is no room."""
    tenant = start(container)
    assert tenant.do("allocate", GIB)[0] == 0
    for name in ("cuMemAlloc_v2", "cuMemAllocAsync"):
        assert tenant.do("out", name, MIB, 0)[0] == OUT_OF_MEMORY

    gpu.inject("cuMemGetInfo_v2", ILLEGAL_ADDRESS)
    for name in ("cuMemAlloc_v2", "cuMemAllocAsync"):
        assert tenant.do("out", name, MIB, 0)[0] == ILLEGAL_ADDRESS
    gpu.clear_faults()

    gpu.inject("cuStreamIsCapturing", INVALID_HANDLE)
    assert tenant.do("out", "cuMemAllocAsync", MIB, 0)[0] == INVALID_HANDLE
    assert container.used() == gpu.used_bytes() == GIB
