# SPDX-License-Identifier: Apache-2.0
"""No call of the library's own ends a capture of the program.

A capture in the global mode, which is PyTorch's, forbids calls to all threads of a process; one of
them ends it. Among these are the numbers of a pool, queries and trims, which the library needs.
"""

import sys
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process
from tests.hook_c.test_graphs import captured
from tests.hook_c.test_pools import allocate, free, made, new_stream
from tests.hook_c.test_refused import answers

OUT_OF_MEMORY = 2
GLOBAL_CAPTURE = 0
ON_A_CARD = Path(__file__).parents[1] / "fakes/captures_h200.jsonl"


def test_the_simulated_driver_forbids_what_a_card_forbids(gpu: SimulatedGpu) -> None:
    seen = answers(gpu, sys.executable, "-m", "bench.gpu.captures")

    assert seen == ON_A_CARD.read_text().splitlines()


def test_each_call_beside_a_capture_does_what_it_does_without_the_library(
    container: Container, gpu: SimulatedGpu, needs_root: None
) -> None:
    seen = answers(gpu, *container.wrapper, sys.executable, "-m", "bench.gpu.captures")

    assert seen == ON_A_CARD.read_text().splitlines()


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process whose pool has memory to give back."""
    process = start(container)
    stream = new_stream(process)
    allocate(process, 8 * MIB, stream)
    free(process, allocate(process, 64 * MIB, stream), stream)
    assert process.do("call", "cuStreamSynchronize", stream) == 0
    return process


def begin_capture(tenant: Process) -> int:
    """Return a stream that is being captured."""
    stream = new_stream(tenant)
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, GLOBAL_CAPTURE) == 0
    return stream


def end_of(tenant: Process, stream: int) -> int:
    """End the capture; its code."""
    return int(tenant.do("capture_end", stream)[0])


def test_what_does_not_fit_leaves_the_capture(tenant: Process) -> None:
    """The pools give back first what they have free."""
    capturing = begin_capture(tenant)
    assert tenant.do("out", "cuMemAllocAsync", 4 * GIB, capturing)[0] == OUT_OF_MEMORY
    assert tenant.do("create_memory", 4 * GIB)[0] == OUT_OF_MEMORY
    free(tenant, made(tenant, "out", "cuMemAllocAsync", MIB, capturing), capturing)

    assert end_of(tenant, capturing) == 0


@pytest.mark.parametrize("size", [100 * MIB, 980 * MIB])
def test_a_graph_launched_beside_the_capture_leaves_it(
    tenant: Process, size: int, container: Container, gpu: SimulatedGpu
) -> None:
    """The larger one fits when the pool has given back what it has free."""
    graph = captured(tenant, size)
    stream = new_stream(tenant)
    other = begin_capture(tenant)
    assert graph.launch(stream) == 0
    assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0

    assert end_of(tenant, other) == 0
    assert tenant.do("call", "cuStreamSynchronize", stream) == 0
    assert container.used() == gpu.used_bytes()
