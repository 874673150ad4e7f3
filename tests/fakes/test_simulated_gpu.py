"""The simulated driver behaves as the real one was measured to."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu import H100, LIBRARY_DIRECTORY, Card, Description, SimulatedGpu
from tests.fakes.gpu.tenant import Tenant

CHECKOUT = Path(__file__).parents[2]

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 8 * MIB

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
NO_DEVICE = 100
NOT_FOUND = 500
NOT_SUPPORTED = 801
UNKNOWN = 999

NVML_INVALID_ARGUMENT = 2
NVML_INSUFFICIENT_SIZE = 7
NVML_GPU_IS_LOST = 15

NewTenant = Callable[..., Tenant]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[SimulatedGpu]:
    """Two cards of 8 GiB; a context costs 8 MiB."""
    simulated = SimulatedGpu.create(tmp_path / "gpu", cards=[Card(), Card()])
    yield simulated
    simulated.close()


@pytest.fixture
def new_tenant(gpu: SimulatedGpu) -> Iterator[NewTenant]:
    """Start processes that end with the test."""
    tenants: list[Tenant] = []

    def start(
        cards: SimulatedGpu = gpu,
        wrapper: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> Tenant:
        tenants.append(Tenant(cards, wrapper=wrapper, environment=environment))
        return tenants[-1]

    yield start
    for tenant in tenants:
        if tenant.process.poll() is None:
            tenant.kill()


@pytest.fixture
def tenant(new_tenant: NewTenant) -> Tenant:
    """A process with a context on card 0."""
    started = new_tenant()
    assert started.do("start") == 0
    return started


def private_pids() -> tuple[str, ...]:
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *user, "--pid", "--fork", "--kill-child", "--mount-proc")


# --- processes share cards -------------------------------------------------------------------


def test_processes_share_a_cards_memory(tenant: Tenant, new_tenant: NewTenant) -> None:
    other = new_tenant()
    other.do("start")
    _, address = tenant.do("allocate", 5 * GIB)

    refused, _ = other.do("allocate", 4 * GIB)
    free, total = other.do("memory")
    tenant.do("free", address)
    granted, _ = other.do("allocate", 4 * GIB)

    assert refused == OUT_OF_MEMORY
    assert (free, total) == (8 * GIB - 5 * GIB - 2 * CONTEXT, 8 * GIB)
    assert granted == 0


def test_the_last_free_byte_can_be_taken_and_no_more(tenant: Tenant) -> None:
    refused, _ = tenant.do("allocate", 8 * GIB - CONTEXT + 1)
    granted, _ = tenant.do("allocate", 8 * GIB - CONTEXT)
    after, _ = tenant.do("allocate", 1)

    assert (refused, granted, after) == (OUT_OF_MEMORY, 0, OUT_OF_MEMORY)


def test_a_killed_process_gives_its_memory_back(
    gpu: SimulatedGpu, tenant: Tenant, new_tenant: NewTenant
) -> None:
    other = new_tenant()
    other.do("start")
    other.do("allocate", 7 * GIB)

    other.kill()

    assert gpu.used_bytes() == CONTEXT
    assert tenant.do("allocate", 7 * GIB)[0] == 0


def test_cards_are_apart(gpu: SimulatedGpu, tenant: Tenant) -> None:
    tenant.do("allocate", 5 * GIB)

    assert gpu.used_bytes(0) == 5 * GIB + CONTEXT
    assert gpu.used_bytes(1) == 0


def test_many_processes_start_at_once(gpu: SimulatedGpu, new_tenant: NewTenant) -> None:
    tenants = [new_tenant() for _ in range(24)]
    for one in tenants:
        one.send("start")
    for one in tenants:
        one.send("allocate", 16 * MIB)

    codes = [(one.answer(), one.answer()[0]) for one in tenants]

    assert codes == [(0, 0)] * 24
    assert gpu.used_bytes() == 24 * (16 * MIB + CONTEXT)
    assert sorted(p.pid for p in gpu.processes()) == sorted(t.process.pid for t in tenants)


def test_a_lock_whose_owner_was_killed_is_taken_over(
    gpu: SimulatedGpu, tenant: Tenant, new_tenant: NewTenant
) -> None:
    other = new_tenant()
    other.do("start")
    other.kill()
    gpu.state.lock = 2  # slot 1 was its

    started = time.monotonic()
    code, _ = tenant.do("allocate", GIB)

    assert code == 0
    assert time.monotonic() - started < 2


def test_threads_that_allocate_at_once_lose_nothing(gpu: SimulatedGpu, tenant: Tenant) -> None:
    codes = tenant.do("churn", 8, 200)

    assert set(codes) <= {0, OUT_OF_MEMORY}
    assert gpu.used_bytes() == CONTEXT


def test_a_storm_of_kills_never_overbooks_and_leaves_nothing(
    gpu: SimulatedGpu, new_tenant: NewTenant
) -> None:
    victims: list[Tenant] = []
    highest = 0
    for _ in range(12):
        victim = new_tenant()
        victim.send("start")
        victim.send("churn", 2, 1_000_000)
        victims.append(victim)
        began = time.monotonic()
        # A busy machine may start none of them in this time.
        while time.monotonic() < began + (0.1 if highest else 60):
            highest = max(highest, gpu.used_bytes())
        if len(victims) > 4:
            victims.pop(0).kill()
    for victim in victims:
        victim.kill()

    survivor = new_tenant()
    survivor.do("start")

    assert 0 < highest <= 8 * GIB
    assert gpu.used_bytes() == CONTEXT
    assert survivor.do("allocate", 8 * GIB - CONTEXT)[0] == 0


# --- process life ----------------------------------------------------------------------------


def test_nothing_works_before_init(new_tenant: NewTenant) -> None:
    fresh = new_tenant()

    assert fresh.do("out", "cuDeviceGetCount") == [NOT_INITIALIZED, 0]
    assert fresh.do("allocate", MIB)[0] == NOT_INITIALIZED
    assert fresh.do("call", "cuInit", 1) == INVALID_VALUE


def test_no_state_means_no_device(gpu: SimulatedGpu, new_tenant: NewTenant) -> None:
    stray = new_tenant(environment={"FAKE_GPU_DIR": "/nonexistent"})

    assert stray.do("start") == NO_DEVICE
    assert stray.do("nvml", "nvmlDeviceGetCount") == {"error": 9}


def test_the_child_of_a_fork_is_not_initialised(gpu: SimulatedGpu, tenant: Tenant) -> None:
    steps = [["call", "cuInit", 0], ["out", "cuDeviceGetCount"], ["allocate", GIB]]

    answers = tenant.do("forked", *steps)

    assert answers == [NOT_INITIALIZED, [NOT_INITIALIZED, 0], [NOT_INITIALIZED, 0]]
    assert tenant.do("allocate", GIB)[0] == 0
    assert len(gpu.processes()) == 1


def test_the_child_of_a_fork_before_init_is_a_new_process(new_tenant: NewTenant) -> None:
    assert new_tenant().do("forked", ["start"], ["allocate", GIB])[0] == 0


def test_a_process_that_closes_all_its_files_keeps_its_memory(
    gpu: SimulatedGpu, tenant: Tenant
) -> None:
    tenant.do("allocate", GIB)

    tenant.do("close_all_files")

    assert gpu.used_bytes() == GIB + CONTEXT
    assert tenant.do("allocate", GIB)[0] == 0
    assert tenant.do("nvml", "nvmlDeviceGetMemoryInfo")["used"] == 2 * GIB + CONTEXT


def test_a_process_in_a_pid_namespace_is_seen_by_its_pid_outside(
    gpu: SimulatedGpu, new_tenant: NewTenant
) -> None:
    inside = new_tenant(wrapper=private_pids())
    inside.do("start")

    [seen] = gpu.processes()

    children = Path(f"/proc/{inside.process.pid}/task/{inside.process.pid}/children").read_text()
    assert seen.pid == int(children)
    assert inside.do("pid") == 1


def test_nvml_in_a_pid_namespace_lists_the_namespaces_own_pids(
    tenant: Tenant, new_tenant: NewTenant
) -> None:
    inside = new_tenant(wrapper=private_pids())
    inside.do("start")
    inside.do("allocate", GIB)

    within = inside.do("nvml", "nvmlDeviceGetComputeRunningProcesses")
    outside = tenant.do("nvml", "nvmlDeviceGetComputeRunningProcesses")

    assert [(p["pid"], p["usedGpuMemory"]) for p in within] == [(1, GIB + CONTEXT)]
    assert len(outside) == 2
    assert tenant.process.pid in [p["pid"] for p in outside]


# --- which cards a process sees --------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0,1", [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("{1}", [1]),
        ("{1:.12}, 0", [1, 0]),
        ("1,7,0", [1]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
    ],
)
def test_cuda_visible_devices(
    gpu: SimulatedGpu, new_tenant: NewTenant, value: str, indices: list[int]
) -> None:
    value = value.format(gpu.uuid(0), gpu.uuid(1))
    process = new_tenant(environment={"CUDA_VISIBLE_DEVICES": value})

    code = process.do("call", "cuInit", 0)

    want = [gpu.uuid(i).removeprefix("GPU-").replace("-", "") for i in indices]
    assert code == (0 if indices else NO_DEVICE)
    assert [process.do("uuid", i) for i in range(len(indices))] == want


def test_only_cards_with_a_node_are_seen(tmp_path: Path, new_tenant: NewTenant) -> None:
    nodes = tmp_path / "dev"
    nodes.mkdir()
    (nodes / "nvidia4").touch()
    cards = SimulatedGpu.create(
        tmp_path / "other",
        cards=[Card(minor=3), Card(minor=4)],
        check_nodes=True,
        node_directory=str(nodes),
    )
    process = new_tenant(cards)

    process.do("start")

    assert process.do("out", "cuDeviceGetCount") == [0, 1]
    assert process.do("uuid") == cards.uuid(1).removeprefix("GPU-").replace("-", "")
    assert process.do("nvml", "nvmlDeviceGetMinorNumber") == 4
    cards.close()


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 2 * MIB),
        (2 * MIB + 1, 4 * MIB),
        (4 * MIB + 1, 6 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_an_allocation_takes_what_the_driver_takes(tenant: Tenant, asked: int, taken: int) -> None:
    assert tenant.do("taken", "cuMemAlloc_v2", asked) == [0, taken]


def test_small_allocations_share_slabs_of_2_mib(gpu: SimulatedGpu, tenant: Tenant) -> None:
    addresses = [tenant.do("allocate", 1000)[1] for _ in range(3)]
    shared = gpu.used_bytes() - CONTEXT
    for address in addresses:
        tenant.do("free", address)

    assert [a - addresses[0] for a in addresses] == [0, 1024, 2048]
    assert shared == 2 * MIB
    assert gpu.used_bytes() == CONTEXT


def test_a_freed_address_is_handed_out_again(tenant: Tenant) -> None:
    _, first = tenant.do("allocate", 4 * MIB)
    tenant.do("free", first)

    assert tenant.do("allocate", 4 * MIB) == [0, first]


def test_managed_and_host_memory_take_nothing_from_the_card(
    gpu: SimulatedGpu, tenant: Tenant
) -> None:
    assert tenant.do("out", "cuMemAllocManaged", 64 * MIB, 1)[0] == 0
    assert tenant.do("out", "cuMemAllocHost_v2", 64 * MIB)[0] == 0

    assert gpu.used_bytes() == CONTEXT


def test_prefetched_managed_memory_is_listed_with_nobody(gpu: SimulatedGpu, tenant: Tenant) -> None:
    _, address = tenant.do("out", "cuMemAllocManaged", 64 * MIB, 1)

    assert tenant.do("call", "cuMemPrefetchAsync", address, 64 * MIB, 0, 0) == 0

    [process] = gpu.processes()
    assert process.memory_bytes[0] == CONTEXT
    assert process.hidden_bytes[0] == 64 * MIB


@pytest.mark.parametrize("call", ["cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"])
def test_the_end_of_a_context_frees_all_that_was_its(
    gpu: SimulatedGpu, tenant: Tenant, call: str
) -> None:
    tenant.do("allocate", 5 * MIB)
    tenant.do("allocate", 5)
    tenant.do("out", "cuMemAllocAsync", 5 * MIB, 0)

    assert tenant.do("call", call, 0) == 0

    assert gpu.used_bytes() == 0
    assert tenant.do("allocate", 1)[0] == 709  # the context is destroyed
    assert tenant.do("start") == 0
    assert gpu.used_bytes() == CONTEXT


def test_every_created_context_costs(gpu: SimulatedGpu, tenant: Tenant) -> None:
    _, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
    with_two = gpu.used_bytes()
    tenant.do("call", "cuCtxDestroy_v2", context)

    assert with_two == 2 * CONTEXT
    assert gpu.used_bytes() == CONTEXT


POOL_STEPS = [1000, MIB, 20 * MIB, 33 * MIB, 40 * MIB, 100 * MIB, 200 * MIB, *[3 * MIB] * 100]


def test_a_pool_reserves_in_steps_of_32_mib(gpu: SimulatedGpu, tenant: Tenant) -> None:
    used = reserved = 0
    for size in POOL_STEPS:
        rounded = (size + 511) // 512 * 512
        reserved += 32 * MIB * -(-max(0, used + rounded - reserved) // (32 * MIB))
        used += rounded

        assert tenant.do("out", "cuMemAllocAsync", size, 0)[0] == 0
        assert gpu.used_bytes() - CONTEXT == reserved


def test_a_pool_gives_back_at_a_synchronisation(gpu: SimulatedGpu, tenant: Tenant) -> None:
    _, address = tenant.do("out", "cuMemAllocAsync", 100 * MIB, 0)
    tenant.do("call", "cuMemFreeAsync", address, 0)
    tenant.do("call", "cuStreamQuery", 0)
    before = gpu.used_bytes()

    tenant.do("call", "cuStreamSynchronize", 0)

    assert before == 128 * MIB + CONTEXT
    assert gpu.used_bytes() == CONTEXT


def test_families_of_allocation_and_release_mix(gpu: SimulatedGpu, tenant: Tenant) -> None:
    _, plain = tenant.do("allocate", 4 * MIB)
    _, ordered = tenant.do("out", "cuMemAllocAsync", 4 * MIB, 0)

    assert tenant.do("call", "cuMemFreeAsync", plain, 0) == 0
    assert tenant.do("free", ordered) == 0
    tenant.do("call", "cuCtxSynchronize")
    assert gpu.used_bytes() == CONTEXT


def test_virtual_memory_lives_while_it_is_mapped(gpu: SimulatedGpu, tenant: Tenant) -> None:
    size = 64 * MIB
    _, handle = tenant.do("create_memory", size)
    _, address = tenant.do("out", "cuMemAddressReserve", size, 0, 0, 0)
    tenant.do("call", "cuMemMap", address, size, 0, handle, 0)

    tenant.do("call", "cuMemRelease", handle)
    while_mapped = gpu.used_bytes()
    text = tenant.do("round_trip", address + 5, "hello")
    tenant.do("call", "cuMemUnmap", address, size)

    assert while_mapped == size + CONTEXT
    assert text == "hello"
    assert gpu.used_bytes() == CONTEXT
    assert tenant.do("call", "cuMemAddressFree", address, size) == 0


def test_virtual_memory_lies_on_the_card_that_its_properties_name(
    gpu: SimulatedGpu, tenant: Tenant
) -> None:
    assert tenant.do("create_memory", 64 * MIB, 1)[0] == 0

    assert gpu.used_bytes(1) == 64 * MIB
    assert tenant.do("create_memory", 3 * MIB)[0] == INVALID_VALUE


FLOAT, BYTE, HALF = 0x20, 0x01, 0x10


@pytest.mark.parametrize(
    ("width", "height", "depth", "kind", "channels", "flags", "mib"),
    [
        (1000, 1000, 0, FLOAT, 4, 0, 16),
        (4096, 4096, 0, FLOAT, 4, 0, 256),
        (4097, 4097, 0, BYTE, 1, 0, 18),
        (100_000, 0, 0, FLOAT, 1, 0, 4),
        (300, 300, 300, FLOAT, 1, 0, 108),
        (511, 511, 97, HALF, 2, 0, 112),
        (1000, 1000, 6, FLOAT, 1, 4, 24),
        (1000, 1000, 20, FLOAT, 1, 1, 80),
    ],
)
def test_an_array_takes_what_was_measured(
    gpu: SimulatedGpu,
    tenant: Tenant,
    width: int,
    height: int,
    depth: int,
    kind: int,
    channels: int,
    flags: int,
    mib: int,
) -> None:
    words = [width, height, depth, kind | channels << 32, flags]

    code, array = tenant.do("with_struct", "cuArray3DCreate_v2", words)
    taken = gpu.used_bytes() - CONTEXT
    destroyed = tenant.do("call", "cuArrayDestroy", array)

    assert (code, taken) == (0, mib * MIB)
    assert (destroyed, gpu.used_bytes()) == (0, CONTEXT)


@pytest.mark.parametrize(("levels", "mib"), [(1, 64), (12, 86)])
def test_a_mipmapped_array_takes_what_was_measured(
    gpu: SimulatedGpu, tenant: Tenant, levels: int, mib: int
) -> None:
    words = [2048, 2048, 0, FLOAT | 4 << 32, 0]

    code, _ = tenant.do("with_struct", "cuMipmappedArrayCreate", words, levels)

    assert (code, gpu.used_bytes() - CONTEXT) == (0, mib * MIB)


def test_local_memory_is_taken_at_the_first_launch(tmp_path: Path, new_tenant: NewTenant) -> None:
    cards = SimulatedGpu.create(tmp_path / "h100", cards=[H100])
    process = new_tenant(cards)
    process.do("start")
    before = cards.used_bytes()

    process.do("launch", process.do("kernel", "busy_1us_local8000"))

    assert before == (518 + 8) * MIB + 832 * 1024
    assert (cards.used_bytes() - before) // MIB == 1798
    cards.close()


def test_a_modules_variables_take_memory(gpu: SimulatedGpu, tmp_path: Path, tenant: Tenant) -> None:
    image = tmp_path / "image"
    image.write_text("fakegpu\nglobal table 134217728\n")

    code, module = tenant.do("load_module", str(image))
    taken = gpu.used_bytes() - CONTEXT
    tenant.do("call", "cuModuleUnload", module)

    assert (code, taken) == (0, 128 * MIB)
    assert gpu.used_bytes() == CONTEXT


# --- the time line ---------------------------------------------------------------------------


def test_a_kernel_takes_its_time(tenant: Tenant) -> None:
    kernel = tenant.do("kernel", "busy_100ms")
    started = time.monotonic()
    for _ in range(2):
        tenant.do("launch", kernel)
    launched = time.monotonic() - started
    busy = tenant.do("call", "cuStreamQuery", 0)
    tenant.do("call", "cuStreamSynchronize", 0)

    assert launched < 0.1
    assert busy == 600
    assert 0.2 <= time.monotonic() - started < 1


def test_events_stamp_the_time_line(tenant: Tenant) -> None:
    _, first = tenant.do("out", "cuEventCreate", 0)
    _, last = tenant.do("out", "cuEventCreate", 0)
    kernel = tenant.do("kernel", "busy_100ms")

    tenant.do("launch", kernel)
    tenant.do("call", "cuEventRecord", first, 0)
    tenant.do("launch", kernel)
    tenant.do("call", "cuEventRecord", last, 0)
    early, _ = tenant.do("elapsed_ms", first, last)
    tenant.do("call", "cuEventSynchronize", last)

    assert early == 600
    assert tenant.do("elapsed_ms", first, last) == [0, pytest.approx(100, abs=0.001)]


def test_streams_run_side_by_side_unless_the_legacy_one_is_between(tenant: Tenant) -> None:
    _, one = tenant.do("out", "cuStreamCreate", 0)
    _, two = tenant.do("out", "cuStreamCreate", 0)
    kernel = tenant.do("kernel", "busy_150ms")

    started = time.monotonic()
    tenant.do("launch", kernel, one)
    tenant.do("launch", kernel, two)
    tenant.do("call", "cuCtxSynchronize")
    beside = time.monotonic() - started
    started = time.monotonic()
    tenant.do("launch", kernel, one)
    tenant.do("launch", kernel)
    tenant.do("launch", kernel, two)
    tenant.do("call", "cuCtxSynchronize")
    after = time.monotonic() - started

    assert 0.15 <= beside < 0.3
    assert after >= 0.45


def test_the_per_thread_stream_is_not_the_legacy_one(tenant: Tenant) -> None:
    tenant.do("launch", tenant.do("kernel", "busy_2s"), 0, "_ptsz")

    assert tenant.do("call", "cuStreamQuery_ptsz", 0) == 600
    assert tenant.do("call", "cuStreamQuery", 2) == 600
    assert tenant.do("stream_id", 0) != tenant.do("stream_id", 0, "_ptsz")


def test_busy_time_and_launches_are_counted(gpu: SimulatedGpu, tenant: Tenant) -> None:
    kernel = tenant.do("kernel", "busy_200us")
    for _ in range(3):
        tenant.do("launch", kernel)

    [process] = gpu.processes()
    assert (process.busy_ns[0], process.launches[0]) == (600_000, 3)


def test_nvml_utilisation_lags_by_its_period(tenant: Tenant) -> None:
    kernel = tenant.do("kernel", "busy_3s")
    tenant.do("nvml", "nvmlDeviceGetUtilizationRates")
    time.sleep(0.2 - time.monotonic() % 0.2)  # to the start of a period

    tenant.do("launch", kernel)
    at_once = tenant.do("nvml", "nvmlDeviceGetUtilizationRates")
    time.sleep(0.45)

    rates = tenant.do("nvml", "nvmlDeviceGetUtilizationRates")
    [sample] = tenant.do("nvml", "nvmlDeviceGetProcessUtilization", 0)

    assert at_once["gpu"] == 0
    assert rates["gpu"] >= 99
    assert (sample["pid"], sample["smUtil"]) == (tenant.process.pid, rates["gpu"])


def test_graph_memory_comes_at_the_first_launch_and_goes_with_a_trim(
    gpu: SimulatedGpu, tenant: Tenant
) -> None:
    _, stream = tenant.do("out", "cuStreamCreate", 1)
    tenant.do("call", "cuStreamBeginCapture_v2", stream, 0)
    code, address = tenant.do("out", "cuMemAllocAsync", 100 * MIB, stream)
    tenant.do("launch", tenant.do("kernel", "busy_1ms"), stream)
    tenant.do("call", "cuMemFreeAsync", address, stream)
    _, graph = tenant.do("capture_end", stream)
    instantiated, exec_ = tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0)
    before = gpu.used_bytes()

    launched = tenant.do("call", "cuGraphLaunch", exec_, stream)
    after = gpu.used_bytes()
    tenant.do("call", "cuStreamSynchronize", stream)
    waited = gpu.used_bytes()
    tenant.do("call", "cuDeviceGraphMemTrim", 0)

    assert (code, instantiated, launched) == (0, 0, 0)
    assert before == CONTEXT
    assert after == waited == CONTEXT + 128 * MIB
    assert gpu.used_bytes() == CONTEXT


@pytest.mark.parametrize(("mode", "query", "end"), [(0, 900, 901), (2, 0, 0)])
def test_an_event_query_breaks_a_capture_unless_relaxed(
    tenant: Tenant, mode: int, query: int, end: int
) -> None:
    _, event = tenant.do("out", "cuEventCreate", 0)
    _, stream = tenant.do("out", "cuStreamCreate", 1)
    tenant.do("call", "cuStreamBeginCapture_v2", stream, 0)
    before = tenant.do("exchange_capture_mode", mode)

    assert before == 0
    assert tenant.do("call", "cuEventQuery", event) == query
    assert tenant.do("allocate", MIB)[0] == query
    assert tenant.do("capture_end", stream)[0] == end


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocManaged"])
def test_small_copies_come_back(tenant: Tenant, function: str) -> None:
    _, address = tenant.do("out", function, 3 * MIB, 1)

    assert tenant.do("round_trip", address + MIB, "slice") == "slice"
    assert tenant.do("round_trip", address + 3 * MIB - 2, "slice") == f"error {INVALID_VALUE}"


# --- look-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 7000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 2, "cuMemAlloc_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 1, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
    ],
)
def test_a_look_up_gives_the_variant_of_its_version_and_flags(
    new_tenant: NewTenant, name: str, version: int, flags: int, symbol: str
) -> None:
    process = new_tenant()

    assert process.do("proc_address", name, version, flags) == [0, 0, symbol]
    assert process.do("proc_address_v1", name, version, flags) == [0, symbol]


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("cuMemAlloc_v2", 12000, 1),
        ("cuLaunchKernel_ptsz", 12000, 1),
        ("noSuchFunction", 12000, 1),
        ("", 0, 1),
        ("cuMemAllocAsync", 11010, 2),
    ],
)
def test_a_look_up_that_cannot_be_met_is_null_and_a_success(
    new_tenant: NewTenant, name: str, version: int, reason: int
) -> None:
    process = new_tenant()

    assert process.do("proc_address", name, version, 0) == [0, reason, ""]
    assert process.do("proc_address_v1", name, version, 0) == [NOT_FOUND, ""]


def test_an_older_driver_lacks_newer_functions(tmp_path: Path, new_tenant: NewTenant) -> None:
    cards = SimulatedGpu.create(tmp_path / "old", cuda_version=12040)
    process = new_tenant(cards)

    assert process.do("proc_address", "cuCtxCreate", 13000, 0) == [0, 0, "cuCtxCreate_v3"]
    assert process.do("proc_address", "cuMemGetMemPool", 13000, 0) == [0, 1, ""]
    assert process.do("out", "cuDriverGetVersion") == [0, 12040]
    cards.close()


def test_flags_must_be_known(new_tenant: NewTenant) -> None:
    assert new_tenant().do("proc_address", "cuInit", 12000, 3)[0] == INVALID_VALUE


@pytest.mark.parametrize(
    ("library", "macro"),
    [("libcuda.so.1", "VGPU_CUDA_SYMBOL"), ("libnvidia-ml.so.1", "VGPU_NVML_SYMBOL")],
)
def test_every_name_of_the_real_library_is_exported(
    new_tenant: NewTenant, library: str, macro: str
) -> None:
    generated = (CHECKOUT / "hook_c/fake_driver.gen.h").read_text()
    names = re.findall(rf"^{macro}\((\w+)", generated, re.MULTILINE)

    assert len(names) > 400
    assert new_tenant().do("exports", library, names) == []


def test_a_function_that_is_not_simulated_says_so(tenant: Tenant) -> None:
    assert tenant.do("call", "cuGreenCtxDestroy", 0) == NOT_SUPPORTED


def test_the_libraries_need_only_libc() -> None:
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        needed = re.findall(rb"lib[a-z-]+\.so\.\d+", (LIBRARY_DIRECTORY / library).read_bytes())

        assert {*needed} - {library.encode()} <= {b"libc.so.6"}


# --- NVML ------------------------------------------------------------------------------------


def test_nvml_knows_the_cards(gpu: SimulatedGpu, tenant: Tenant) -> None:
    assert tenant.do("nvml", "nvmlDeviceGetCount") == 2
    assert tenant.do("nvml", "nvmlDeviceGetUUID") == gpu.uuid(0)
    assert tenant.do("nvml", "nvmlDeviceGetName") == "NVIDIA Simulated 8GB"
    assert tenant.do("nvml", "nvmlSystemGetDriverVersion") == "580.159.04"
    assert tenant.do("nvml", "nvmlSystemGetCudaDriverVersion") == 13000
    assert tenant.do("nvml", "nvmlDeviceGetPciInfo")["busId"] == "00000000:10:00.0"
    assert tenant.do("nvml", "nvmlDeviceGetMigMode") == [0, 0]
    assert tenant.do("nvml", "nvmlDeviceGetSerial") == {"error": 3}
    assert tenant.do("nvml", "nvmlDeviceGetHandleByIndex", 2) == {"error": NVML_INVALID_ARGUMENT}


def test_nvml_counts_the_reserve_in_v1_and_apart_in_v2(
    tmp_path: Path, new_tenant: NewTenant
) -> None:
    cards = SimulatedGpu.create(tmp_path / "h100", cards=[H100])
    process = new_tenant(cards)
    process.do("start")
    free, total = process.do("memory")

    v1 = process.do("nvml", "nvmlDeviceGetMemoryInfo")
    v2 = process.do("nvml", "nvmlDeviceGetMemoryInfo", 0x02000028)

    assert total == (81559 - 480) * MIB
    assert v1["total"] == v2["total"] == 81559 * MIB
    assert v1["used"] == v2["used"] + 480 * MIB
    assert (v2["reserved"], v1["free"], v2["free"]) == (480 * MIB, free, free)
    cards.close()


def test_nvml_lists_a_process_from_its_first_context_on(new_tenant: NewTenant) -> None:
    process = new_tenant()
    process.do("call", "cuInit", 0)
    without = process.do("nvml", "nvmlDeviceGetComputeRunningProcesses")
    process.do("start")
    process.do("allocate", GIB)

    for version in ("", "_v2", "_v3"):
        [listed] = process.do("nvml", f"nvmlDeviceGetComputeRunningProcesses{version}")

        assert (listed["pid"], listed["usedGpuMemory"]) == (process.process.pid, GIB + CONTEXT)
    assert without == []


def test_the_first_version_of_the_process_list_has_short_entries(tenant: Tenant) -> None:
    short = tenant.do("process_list", "nvmlDeviceGetComputeRunningProcesses", 16)
    long = tenant.do("process_list", "nvmlDeviceGetComputeRunningProcesses_v3", 24)

    assert short == {"pid": tenant.process.pid, "bytes": CONTEXT, "untouched": True}
    assert long == short


def test_utilisation_can_be_set(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.set_utilisation(37)

    assert tenant.do("nvml", "nvmlDeviceGetUtilizationRates")["gpu"] == 37


# --- things that go wrong --------------------------------------------------------------------


def test_the_nth_call_fails(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.inject("cuMemAlloc_v2", OUT_OF_MEMORY, skip=1, times=1)

    codes = [tenant.do("allocate", MIB)[0] for _ in range(3)]

    assert codes == [0, OUT_OF_MEMORY, 0]
    assert gpu.calls("cuMemAlloc_v2") == 3


def test_a_call_can_be_slow(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.inject("nvmlDeviceGetMemoryInfo", delay_seconds=0.2, times=1)

    started = time.monotonic()
    tenant.do("nvml", "nvmlDeviceGetMemoryInfo")

    assert time.monotonic() - started >= 0.2


def test_a_function_that_is_not_simulated_can_fail_too(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.inject("cuGreenCtxDestroy", 400)
    injected = tenant.do("call", "cuGreenCtxDestroy", 0)
    gpu.clear_faults()

    assert injected == 400
    assert tenant.do("call", "cuGreenCtxDestroy", 0) == NOT_SUPPORTED


def test_a_lost_card_fails_everywhere(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.set_lost(0)

    assert tenant.do("allocate", MIB)[0] == UNKNOWN
    assert tenant.do("nvml", "nvmlDeviceGetMemoryInfo") == {"error": NVML_GPU_IS_LOST}
    gpu.set_lost(0, lost=False)
    assert tenant.do("allocate", MIB)[0] == 0


def test_a_critical_error_reaches_whoever_waits_for_it(gpu: SimulatedGpu, tenant: Tenant) -> None:
    tenant.send("wait_for_xid", 2000)
    time.sleep(0.2)

    gpu.raise_xid(79)

    assert tenant.answer() == 79


def test_foreign_memory_is_gone_for_everyone(gpu: SimulatedGpu, tenant: Tenant) -> None:
    gpu.set_foreign_bytes(6 * GIB)

    assert tenant.do("memory")[0] == 2 * GIB - CONTEXT
    assert tenant.do("allocate", 2 * GIB)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("cuMemAlloc_v2", [0, MIB]),
        ("cuDeviceGetCount", [0]),
        ("cuMemGetInfo_v2", [0, 0]),
        ("cuDeviceTotalMem_v2", [0, 0]),
        ("cuMemFree_v2", [12345]),
        ("cuGetProcAddress_v2", [0, 0, 12000, 0, 0]),
    ],
)
def test_bad_arguments_are_invalid_values(
    tenant: Tenant, function: str, arguments: list[int]
) -> None:
    assert tenant.do("call", function, *arguments) == INVALID_VALUE


def test_an_allocation_of_nothing_is_an_invalid_value(tenant: Tenant) -> None:
    assert tenant.do("allocate", 0)[0] == INVALID_VALUE
    assert tenant.do("allocate", (1 << 64) - 1)[0] == OUT_OF_MEMORY


# --- the description -------------------------------------------------------------------------


def test_a_description_survives_its_file() -> None:
    description = Description(cards=(H100, Card(minor=7)), cuda_version=12040).resolved()

    assert Description.from_json(description.to_json()) == description


def test_a_short_description_is_enough() -> None:
    description = Description.from_json('{"cards": [{"memory_bytes": 1073741824}, {}]}')

    assert [card.memory_bytes for card in description.cards] == [GIB, 8 * GIB]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match="memory_mib"):
        Description.from_json('{"cards": [{"memory_mib": 1024}]}')
