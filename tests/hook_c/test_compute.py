# SPDX-License-Identifier: Apache-2.0
"""The compute limit with the real library on the simulated driver, in real time.

What a busy test machine can only make smaller is checked from above, by the simulated card's own
count; that a share is reached is tested in simulated time, in hook_c/tests/sim_launch.c.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import BUSY, GIB, Busy, Start
from tests.hook_c.container import LIBRARY, SANITIZED, Container
from tests.hook_c.program import Process

HARD = 1
# Credit that is there at the beginning, and one kernel; of a run of 1 s.
SLACK = 0.05


@pytest.fixture
def limited(tmp_path: Path, gpu: SimulatedGpu, needs_root: None) -> Callable[[int], Container]:
    """Return a function that makes a container with a share of the first card."""

    def make(percent: int) -> Container:
        return Container(
            tmp_path / "limited",
            {gpu.uuid(0): GIB},
            cores_percent=percent,
            cores_max_percent=percent,
            mode=HARD,
        )

    return make


def run(process: "subprocess.Popen[str]", work_ns: int, seconds: float = 1.0) -> float:
    """Run for a second or so; the share of the card's time that it took."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    found = json.loads(process.stdout.readline())
    assert found["launches"] > 0
    return float(found["launches"] * work_ns / 1e9 / found["wall_s"])


@pytest.mark.parametrize(
    ("kind", "work_ns"),
    [("async", 20_000), ("async", 200_000), ("sync", 1_000_000), ("async", 5_000_000)],
)
def test_no_more_than_the_share(
    limited: Callable[[int], Container], busy: Busy, kind: str, work_ns: int
) -> None:
    container = limited(20)

    share = run(busy(container, kind, work_ns), work_ns)

    assert share <= 0.20 + SLACK + work_ns / 1e9
    # All of it was measured and charged: what the program has launched takes no less.
    charged_ns = container.usage.slot[0].dev[0].busy_ns
    assert charged_ns >= 0.9 * (share - SLACK) * 1e9


def _launch_100_ms(tenant: Process) -> int:
    """Launch something after an allocation, whose address this returns."""
    code, address = tenant.do("allocate", 4096)
    assert code == 0
    assert tenant.do("launch", tenant.do("kernel", "busy_100ms")) == 0
    return int(address)


@pytest.mark.parametrize("way", ["copy", "event", "event query", "stream query"])
def test_a_program_that_knows_that_its_work_has_ended_has_paid_for_it(
    limited: Callable[[int], Container], start: Start, way: str
) -> None:
    """It may end at once."""
    container = limited(10)
    tenant = start(container)
    _, event = tenant.do("out", "cuEventCreate", 0)
    address = _launch_100_ms(tenant)

    if way == "copy":
        assert tenant.do("round_trip", address, "text") == "text"
    elif way == "stream query":
        while tenant.do("call", "cuStreamQuery", 0) != 0:
            pass
    else:
        assert tenant.do("call", "cuEventRecord", event, 0) == 0
        ask = "cuEventSynchronize" if way == "event" else "cuEventQuery"
        while tenant.do("call", ask, event) != 0:
            pass

    # Work that is not charged yet is in its slot: the mark stands behind the program's own event.
    device = container.usage.slot[0].dev[0]
    assert device.busy_ns + device.pending_ns >= 90_000_000


def test_work_whose_end_a_late_wait_has_seen_is_charged_no_longer(
    limited: Callable[[int], Container], start: Start
) -> None:
    """The time from its predicted end to the look at the dead process is no work."""
    container = limited(10)
    first = start(container)
    kernel = first.do("kernel", "busy_1ms")
    for _ in range(3):
        assert first.do("launch", kernel) == 0
        assert first.do("call", "cuCtxSynchronize") == 0
    assert first.do("launch", kernel) == 0
    time.sleep(0.02)
    assert first.do("call", "cuCtxSynchronize") == 0
    first.kill()
    time.sleep(0.3)

    start(container)

    assert container.usage.turn[0].balance_ns >= -20_000_000


def test_what_a_killed_process_had_under_way_is_charged(
    limited: Callable[[int], Container], start: Start
) -> None:
    container = limited(10)
    first = start(container)
    _launch_100_ms(first)
    time.sleep(0.08)
    first.kill()

    start(container)

    assert container.usage.turn[0].balance_ns <= -70_000_000


def test_graphs_count_like_their_kernels(limited: Callable[[int], Container], busy: Busy) -> None:
    process = busy(limited(20), "graph", 20_000)

    assert run(process, 20_000) <= 0.20 + SLACK


def test_gaps_between_a_graphs_kernels_are_not_charged(
    limited: Callable[[int], Container], busy: Busy
) -> None:
    """On a card there is 1 us between two of a graph; the simulated card has no gaps."""
    container = limited(20)
    process = busy(container, "graph", 5_000)
    assert process.stdin is not None
    assert process.stdout is not None

    process.stdin.write("1.0\n")
    process.stdin.flush()
    launched_ns = json.loads(process.stdout.readline())["launches"] * 5_000

    assert 0.6 <= container.usage.slot[0].dev[0].busy_ns / launched_ns <= 0.93


def test_what_is_disabled_leaves_no_gap(limited: Callable[[int], Container], start: Start) -> None:
    """With the gaps of 61 kernels a third of the one's time would not be charged."""
    container = limited(90)
    tenant = start(container)
    kernel = tenant.do("kernel", "busy_60us")
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0
    for _ in range(61):
        assert tenant.do("launch", kernel, stream) == 0
    code, graph = tenant.do("capture_end", stream)
    assert code == 0
    code, instance = tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0)
    assert code == 0
    nodes = tenant.do("nodes_of", graph)
    for node in nodes + nodes:
        assert tenant.do("call", "cuGraphNodeSetEnabled", instance, node, 0) == 0
    assert tenant.do("call", "cuGraphNodeSetEnabled", instance, nodes[30], 1) == 0

    assert tenant.do("launch_graph", instance, stream, 400) == 0
    assert container.usage.slot[0].dev[0].busy_ns >= 0.85 * 400 * 60_000


def test_a_limit_may_be_changed_while_it_runs(
    limited: Callable[[int], Container], busy: Busy
) -> None:
    container = limited(100)
    process = busy(container, "async", 200_000)
    assert run(process, 200_000) > 0
    assert container.usage.slot[0].dev[0].busy_ns == 0  # nothing is measured without a limit

    container.write(cores_percent=10)
    assert run(process, 200_000) <= 0.10 + SLACK
    assert container.usage.slot[0].dev[0].busy_ns > 0


def test_processes_of_a_container_share_it(limited: Callable[[int], Container], busy: Busy) -> None:
    container = limited(20)
    processes = [busy(container, "async", 500_000) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("1.0\n")
        process.stdin.flush()

    found = [json.loads(process.stdout.readline()) for process in processes if process.stdout]

    total = sum(each["launches"] * 500_000 / 1e9 / each["wall_s"] for each in found)
    # Each begins with a kernel of unknown length, and a predicted queue of its own.
    assert total <= 3 * (0.20 + SLACK)
    assert container.usage.turn[0].refilled_ns > 0


def test_a_capture_is_left_alone(limited: Callable[[int], Container], start: Start) -> None:
    tenant = start(limited(5))
    kernel = tenant.do("module_kernel", "busy_20us")[1]
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0

    launch = ["call", "cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0]
    assert [tenant.do(*launch) for _ in range(100)] == [0] * 100

    code, graph = tenant.do("capture_end", stream)
    assert code == 0
    assert graph != 0
    assert tenant.do("call", "cuStreamSynchronize", stream) == 0


def seconds_of_ten(tenant: Process, kernel: int, stream: int = 0) -> float:
    """Launch ten kernels of 20 ms; how long that took. Ten times as long under 10 %."""
    begun = time.monotonic()
    for _ in range(10):
        assert tenant.do("launch", kernel, stream) == 0
    return time.monotonic() - begun


LEAST_SECONDS = 7 * 0.02 / 0.1
CAPTURE_RELAXED = 2
NON_BLOCKING = 1


@pytest.mark.parametrize("end", ["open", "destroyed", "unjoined", "invalidated"])
def test_a_capture_leaves_the_default_stream_measured(
    limited: Callable[[int], Container], start: Start, gpu: SimulatedGpu, end: str
) -> None:
    """One of a non-blocking stream, which the default stream does not wait for."""
    if end in ("unjoined", "invalidated"):
        gpu.inject("cuStreamEndCapture", {"unjoined": 904, "invalidated": 901}[end])
    tenant = start(limited(10))
    kernel = tenant.do("kernel", "busy_20ms")
    _, stream = tenant.do("out", "cuStreamCreate", NON_BLOCKING)
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED) == 0
    assert tenant.do("launch", kernel, stream) == 0
    if end == "destroyed":
        assert tenant.do("call", "cuStreamDestroy_v2", stream) == 0
    elif end != "open":
        assert tenant.do("capture_end", stream)[0] != 0

    assert seconds_of_ten(tenant, kernel) >= LEAST_SECONDS


@pytest.mark.parametrize("contexts", [9, 40])
def test_every_context_is_measured_however_many_there_are(
    limited: Callable[[int], Container], start: Start, contexts: int
) -> None:
    tenant = start(limited(10))
    for _ in range(contexts):
        assert tenant.do("out", "cuCtxCreate_v2", 0, 0)[0] == 0
        kernel = tenant.do("module_kernel", "busy_20ms")[1]
        assert tenant.do("launch", tenant.do("module_kernel", "busy_1us")[1]) == 0
        assert tenant.do("call", "cuCtxSynchronize") == 0

    assert seconds_of_ten(tenant, kernel) >= LEAST_SECONDS


def test_what_no_event_can_measure_is_waited_for(
    limited: Callable[[int], Container], start: Start, gpu: SimulatedGpu
) -> None:
    gpu.inject("cuEventCreate", 2)
    tenant = start(limited(10))

    assert seconds_of_ten(tenant, tenant.do("kernel", "busy_20ms")) >= LEAST_SECONDS


def test_every_context_is_measured_by_events_of_its_own(
    limited: Callable[[int], Container], start: Start
) -> None:
    """Where one context's work ends, another one is current already."""
    container = limited(90)
    tenant = start(container)
    launches = []
    for _ in range(2):
        code, context = tenant.do("out", "cuCtxCreate_v2", 0, 0)
        assert code == 0
        launches.append((context, tenant.do("module_kernel", "busy_20ms")[1]))

    for _ in range(20):
        for context, kernel in launches:
            assert tenant.do("call", "cuCtxSetCurrent", context) == 0
            assert tenant.do("launch", kernel) == 0
            assert tenant.do("out", "cuCtxGetCurrent") == [0, context]
    for context, _ in launches:
        assert tenant.do("call", "cuCtxSetCurrent", context) == 0
        assert tenant.do("call", "cuCtxSynchronize") == 0

    # Without events the time at which somebody looked counts, and that is too early here.
    assert container.usage.slot[0].dev[0].busy_ns >= 0.7 * 40 * 20_000_000


def test_an_event_that_cannot_be_recorded_is_not_kept(
    limited: Callable[[int], Container], start: Start, gpu: SimulatedGpu
) -> None:
    tenant = start(limited(90))
    kernel = tenant.do("module_kernel", "busy_1ms")[1]
    gpu.inject("cuEventRecord", 400)
    gpu.inject("cuEventCreate", 0)
    gpu.inject("cuEventDestroy_v2", 0)

    for _ in range(10):
        assert tenant.do("launch", kernel) == 0
        assert tenant.do("call", "cuCtxSynchronize") == 0

    assert gpu.calls("cuEventDestroy_v2") == gpu.calls("cuEventCreate") > 0


def test_developer_mode_has_a_share_too(gpu: SimulatedGpu, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BUSY), "async", "200000"],
        input="1.0\n",
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            **gpu.environment(),
            "LD_PRELOAD": str(LIBRARY),
            "CUDA_DEVICE_SM_LIMIT": "20",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
        },
    )

    found = json.loads(done.stdout.splitlines()[1])

    assert 0 < found["launches"] * 200e3 / 1e9 / found["wall_s"] <= 0.20 + SLACK


@pytest.mark.parametrize("percent", [100, 50, 10])
def test_threads_streams_captures_and_graphs_at_once(
    gpu: SimulatedGpu, tmp_path: Path, needs_root: None, percent: int
) -> None:
    program = tmp_path / "launches"
    source = Path(__file__).with_name("programs") / "launches.c"
    build = ["gcc", "-O1", "-D_GNU_SOURCE", "-pthread", "-o", str(program), str(source), "-ldl"]
    subprocess.run(build, check=True)
    container = Container(
        tmp_path / "limited",
        {gpu.uuid(0): GIB},
        SANITIZED,
        cores_percent=percent,
        cores_max_percent=percent,
        mode=HARD,
    )

    done = subprocess.run(
        [*container.wrapper, str(program), "1.5"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **gpu.environment()},
    )

    assert (done.returncode, done.stderr) == (0, "")
    device = container.usage.slot[0].dev[0]
    assert device.pending_ns < 50_000_000  # nearly everything was measured
    assert (device.busy_ns > 0) == (percent < 100)
