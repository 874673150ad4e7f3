# SPDX-License-Identifier: Apache-2.0
"""Memory of graphs is charged before a launch, for the most that it can make the driver take.

The simulated driver maps it as an H200 does (bench/gpu/graphs.py).
"""

import random
import select
import time
from dataclasses import dataclass

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.program import Process

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_SUPPORTED = 801
STREAMS_BYTES = 4 * MIB
AUTO_FREE_ON_LAUNCH = 1


@pytest.fixture
def tenant(container: Container, start: Start) -> Process:
    """Return a process with a current context on the first card."""
    return start(container)


@dataclass
class Graph:
    """An instance of a graph that allocates."""

    tenant: Process
    instance: int
    address: int

    def launch(self, stream: int, name: str = "cuGraphLaunch") -> int:
        """Launch it; the code."""
        return int(self.tenant.do("call", name, self.instance, stream))

    def destroy(self) -> None:
        """Forget the instance."""
        assert self.tenant.do("call", "cuGraphExecDestroy", self.instance) == 0


def new_stream(tenant: Process) -> int:
    """Create a stream that waits for no other."""
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    return int(stream)


def instantiate(tenant: Process, graph: int, address: int = 0, flags: int = 0) -> Graph:
    """Make the instance of a graph."""
    code, instance = tenant.do("out", "cuGraphInstantiateWithFlags", graph, flags)
    assert code == 0
    return Graph(tenant, instance, address)


def captured(
    tenant: Process,
    size: int,
    *,
    kernel: str = "busy_1us",
    is_freed: bool = True,
    flags: int = 0,
) -> Graph:
    """Capture an allocation, a kernel and, unless it is left, the free."""
    stream = new_stream(tenant)
    function = tenant.do("kernel", kernel)
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0
    code, address = tenant.do("out", "cuMemAllocAsync", size, stream)
    assert code == 0
    assert tenant.do("launch", function, stream) == 0
    if is_freed:
        assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    code, graph = tenant.do("capture_end", stream)
    assert code == 0
    assert tenant.do("call", "cuStreamDestroy_v2", stream) == 0
    return instantiate(tenant, graph, address, flags)


def wait(tenant: Process) -> None:
    """Wait for everything."""
    assert tenant.do("call", "cuCtxSynchronize") == 0


def test_a_captured_allocation_is_checked_when_captured_and_charged_when_launched(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, stream = tenant.do("out", "cuStreamCreate", 1)
    assert code == 0
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0
    assert tenant.do("out", "cuMemAllocAsync", GIB + 1, stream) == [OUT_OF_MEMORY, 0]
    code, address = tenant.do("out", "cuMemAllocAsync", 100 * MIB, stream)
    assert code == 0
    assert container.used() == gpu.used_bytes() == 0
    assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    code, graph = tenant.do("capture_end", stream)
    assert code == 0
    made = instantiate(tenant, graph)

    assert made.launch(stream) == 0
    assert container.used() == gpu.used_bytes() == 128 * MIB
    assert tenant.do("call", "cuStreamSynchronize", stream) == 0
    made.destroy()
    assert tenant.do("call", "cuGraphDestroy", graph) == 0
    assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0
    assert container.used() == gpu.used_bytes() == 0


def test_an_allocation_node_above_the_limit_is_refused(tenant: Process) -> None:
    code, graph = tenant.do("out", "cuGraphCreate", 0)
    assert code == 0

    assert tenant.do("graph_alloc", graph, GIB + 1) == OUT_OF_MEMORY
    assert tenant.do("graph_alloc", graph, GIB) == 0


def test_a_graph_is_charged_to_the_card_of_its_nodes(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, graph = tenant.do("out", "cuGraphCreate", 0)
    assert code == 0
    assert tenant.do("graph_alloc", graph, 2 * GIB + 1, 1) == OUT_OF_MEMORY
    assert tenant.do("graph_alloc", graph, 2 * GIB, 1) == 0

    assert instantiate(tenant, graph).launch(0) == 0
    assert container.used(1) == gpu.used_bytes(1) == 2 * GIB
    assert container.used(0) == gpu.used_bytes(0) == 0


def test_a_graph_that_allocates_on_two_cards_is_refused(tenant: Process) -> None:
    code, graph = tenant.do("out", "cuGraphCreate", 0)
    assert code == 0
    assert tenant.do("graph_alloc", graph, MIB, 0) == 0
    assert tenant.do("graph_alloc", graph, MIB, 1) == 0

    assert tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0) == [NOT_SUPPORTED, 0]


@pytest.mark.parametrize("name", ["cuMemAllocAsync", "cuGraphAddMemAllocNode"])
def test_pools_give_back_what_is_free_before_a_node_is_refused(
    tenant: Process, container: Container, name: str
) -> None:
    stream = new_stream(tenant)
    code, address = tenant.do("out", "cuMemAllocAsync", 800 * MIB, stream)
    assert code == 0
    assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    assert container.used() == 800 * MIB

    if name == "cuMemAllocAsync":
        assert captured(tenant, 900 * MIB).launch(0) == 0
    else:
        code, graph = tenant.do("out", "cuGraphCreate", 0)
        assert tenant.do("graph_alloc", graph, 900 * MIB) == 0
        assert instantiate(tenant, graph).launch(0) == 0
    assert container.used() == 928 * MIB


@pytest.mark.parametrize("name", ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload"])
def test_a_graph_that_does_not_fit_is_refused_before_it_takes_anything(
    tenant: Process, container: Container, gpu: SimulatedGpu, name: str
) -> None:
    code, graph, _ = tenant.do("graph_nodes", [[300 * MIB, []], [300 * MIB, [0]]])
    assert code == 0
    both = instantiate(tenant, graph, flags=AUTO_FREE_ON_LAUNCH)
    code, address = tenant.do("allocate", 600 * MIB)
    assert code == 0

    assert both.launch(0, name) == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() == 600 * MIB
    assert tenant.do("free", address) == 0
    for _ in range(3):
        assert both.launch(0, name) == 0
        assert container.used() == gpu.used_bytes() == 608 * MIB
    assert tenant.do("allocate", GIB - 608 * MIB)[0] == 0
    assert both.launch(0, name) == 0


def test_what_a_graph_frees_it_may_have_again(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    assert tenant.do("call", "cuStreamBeginCapture_v2", stream, 0) == 0
    for _ in range(5):
        code, address = tenant.do("out", "cuMemAllocAsync", 400 * MIB, stream)
        assert code == 0
        assert tenant.do("call", "cuMemFreeAsync", address, stream) == 0
    code, graph = tenant.do("capture_end", stream)
    assert code == 0

    assert instantiate(tenant, graph).launch(stream) == 0
    assert container.used() == gpu.used_bytes() == 416 * MIB


def test_branches_of_a_graph_may_run_at_once_and_have_memory_of_their_own(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """In the order in which the nodes were made, each is freed before the next is allocated."""
    for size, code in ((200 * MIB, 0), (300 * MIB, OUT_OF_MEMORY)):
        nodes = [[size if i % 2 == 0 else -i, [] if i % 2 == 0 else [i - 1]] for i in range(8)]
        made, graph, addresses = tenant.do("graph_nodes", nodes)
        assert made == 0
        assert len(set(addresses)) == 4 + 1
        branches = instantiate(tenant, graph)

        assert branches.launch(0) == code
        assert container.used() == gpu.used_bytes() == (800 * MIB if code == 0 else 0)
        wait(tenant)
        branches.destroy()
        assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0


def test_a_free_place_that_is_too_small_is_not_used(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, graph, _ = tenant.do(
        "graph_nodes", [[300 * MIB, []], [-1, [0]], [400 * MIB, [1]], [-3, [2]]]
    )
    assert code == 0

    assert instantiate(tenant, graph).launch(0) == 0
    assert container.used() == gpu.used_bytes() == 704 * MIB


def test_a_graph_that_was_moved_into_another_counts_with_it(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, inner, _ = tenant.do("graph_nodes", [[256 * MIB, []], [-1, [0]]])
    assert code == 0
    code, outer = tenant.do("move_into_graph", inner)
    assert code == 0
    made = instantiate(tenant, outer)
    code, address = tenant.do("allocate", 750 * MIB)
    assert code == 0

    assert made.launch(0) == OUT_OF_MEMORY
    assert tenant.do("free", address) == 0
    assert made.launch(0) == 0
    assert container.used() == gpu.used_bytes() == 288 * MIB


@pytest.mark.parametrize("depth", [9, 64])
def test_graphs_in_graphs_are_counted_however_deep(
    tenant: Process, container: Container, gpu: SimulatedGpu, depth: int
) -> None:
    code, graph, _ = tenant.do("graph_nodes", [[600 * MIB, []], [600 * MIB, []]])
    assert code == 0
    for _ in range(depth):
        code, graph = tenant.do("move_into_graph", graph)
        assert code == 0

    made = instantiate(tenant, graph)
    assert made.launch(0) == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() == 0


def test_graphs_in_graphs_deeper_than_can_be_seen_are_refused(tenant: Process) -> None:
    graph = tenant.do("kernel_graph", tenant.do("kernel", "busy_1us"))[0]
    for _ in range(65):
        graph = tenant.do("graph_of", graph)

    assert tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0) == [NOT_SUPPORTED, 0]


def test_a_graph_that_cannot_be_looked_at_is_refused(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    code, graph, _ = tenant.do("graph_nodes", [[600 * MIB, []], [600 * MIB, []]])
    assert code == 0

    assert tenant.do("instantiate_without_memory", graph) == [OUT_OF_MEMORY, 0]
    made = instantiate(tenant, graph)
    assert made.launch(0) == OUT_OF_MEMORY
    assert container.used() == gpu.used_bytes() == 0


@pytest.mark.parametrize(
    "name", ["cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphMemAllocNodeGetParams"]
)
def test_a_graph_that_the_driver_says_nothing_of_is_refused(
    tenant: Process, gpu: SimulatedGpu, name: str
) -> None:
    code, graph, _ = tenant.do("graph_nodes", [[600 * MIB, []], [600 * MIB, []]])
    assert code == 0
    gpu.inject(name, 999, times=1)

    assert tenant.do("out", "cuGraphInstantiateWithFlags", graph, 0) == [999, 0]


@pytest.mark.parametrize(
    "name", ["cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"]
)
def test_an_instance_that_is_uploaded_when_it_is_made_is_charged_then(
    tenant: Process, container: Container, gpu: SimulatedGpu, name: str
) -> None:
    code, graph, _ = tenant.do("graph_nodes", [[512 * MIB, []], [-1, [0]]])
    assert code == 0
    code, address = tenant.do("allocate", 600 * MIB)
    assert code == 0

    assert tenant.do("instantiate_uploaded", name, graph, 0) == [OUT_OF_MEMORY, 0]
    assert container.used() == gpu.used_bytes() == 600 * MIB
    assert tenant.do("free", address) == 0
    code, instance = tenant.do("instantiate_uploaded", name, graph, 0)
    assert code == 0
    assert container.used() == gpu.used_bytes() == 512 * MIB
    assert Graph(tenant, instance, 0).launch(0) == 0
    assert container.used() == gpu.used_bytes() == 512 * MIB


def test_memory_that_graphs_keep_makes_room_for_another(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    assert captured(tenant, 800 * MIB).launch(stream) == 0
    assert container.used() == 800 * MIB

    assert tenant.do("allocate", 900 * MIB)[0] == 0
    assert container.used() == 900 * MIB


def test_what_graphs_leave_allocated_adds_up(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    left = [captured(tenant, 300 * MIB, is_freed=False) for _ in range(3)]
    for graph in left:
        assert graph.launch(stream) == 0

    assert container.used() == 3 * 320 * MIB
    assert container.used() <= gpu.used_bytes() <= container.used() + STREAMS_BYTES
    assert tenant.do("allocate", 200 * MIB)[0] == OUT_OF_MEMORY
    for graph in left:
        assert tenant.do("call", "cuMemFreeAsync", graph.address, stream) == 0
    assert tenant.do("allocate", 1000 * MIB)[0] == 0
    assert container.used() == 1000 * MIB


def test_graphs_of_one_stream_share_their_memory(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    graphs = [captured(tenant, 600 * MIB, kernel="busy_20ms") for _ in range(3)]
    for _ in range(3):
        for graph in graphs:
            assert graph.launch(stream) == 0
            assert container.used() == 608 * MIB
            assert gpu.used_bytes() <= 608 * MIB + STREAMS_BYTES


def test_graphs_that_cannot_run_at_once_within_the_limit_run_one_after_the_other(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """Both have run before, in one stream, with the same memory."""
    streams = [new_stream(tenant) for _ in range(2)]
    graphs = [captured(tenant, 600 * MIB, kernel="busy_100ms") for _ in range(2)]
    for graph in graphs:
        assert graph.launch(streams[0]) == 0
    wait(tenant)

    for _ in range(2):
        for graph, stream in zip(graphs, streams, strict=True):
            assert graph.launch(stream) == 0
            assert container.used() == 608 * MIB
            assert gpu.used_bytes() <= 608 * MIB + STREAMS_BYTES


@pytest.mark.parametrize("is_destroyed", [False, True])
def test_a_graph_is_refused_while_another_one_uses_the_memory_that_it_had(
    tenant: Process, container: Container, gpu: SimulatedGpu, *, is_destroyed: bool
) -> None:
    streams = [new_stream(tenant) for _ in range(2)]
    first = captured(tenant, 600 * MIB, kernel="busy_20s")
    second = captured(tenant, 600 * MIB)
    assert second.launch(streams[0]) == 0
    assert first.launch(streams[0]) == 0
    if is_destroyed:
        first.destroy()

    assert second.launch(streams[1]) == OUT_OF_MEMORY
    assert container.used() == 608 * MIB
    assert gpu.used_bytes() <= 608 * MIB + STREAMS_BYTES
    assert second.launch(streams[0]) == 0


def test_a_stream_that_is_destroyed_goes_on_until_its_work_is_done(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    first = captured(tenant, 600 * MIB, kernel="busy_20s")
    second = captured(tenant, 600 * MIB)
    assert second.launch(stream) == 0
    assert first.launch(stream) == 0
    assert tenant.do("call", "cuStreamDestroy_v2", stream) == 0
    assert new_stream(tenant) == stream  # the handle is given anew

    assert second.launch(stream) == OUT_OF_MEMORY
    assert container.used() == 608 * MIB
    assert gpu.used_bytes() <= 608 * MIB + STREAMS_BYTES


def test_a_graph_gets_no_memory_that_another_one_has_left_allocated(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    frees, leaves = captured(tenant, 600 * MIB), captured(tenant, 600 * MIB, is_freed=False)
    assert frees.launch(stream) == 0
    assert leaves.launch(stream) == 0
    assert container.used() == 608 * MIB

    assert frees.launch(stream) == OUT_OF_MEMORY
    assert leaves.launch(stream) == INVALID_VALUE
    assert gpu.used_bytes() <= 608 * MIB + STREAMS_BYTES
    assert tenant.do("call", "cuMemFreeAsync", leaves.address, stream) == 0
    assert frees.launch(stream) == 0
    assert container.used() == 608 * MIB


def test_a_trim_by_the_program_takes_nothing_from_a_launch(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    stream = new_stream(tenant)
    graph = captured(tenant, 600 * MIB)
    for _ in range(2):
        assert graph.launch(stream) == 0
        wait(tenant)
        assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0
        assert container.used() == 0
        code, address = tenant.do("allocate", 600 * MIB)
        assert code == 0
        assert graph.launch(stream) == OUT_OF_MEMORY
        assert tenant.do("free", address) == 0


def test_a_trim_takes_nothing_from_a_launch_that_is_under_way(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """It counts on what the device had when it began, and takes it anew."""
    stream = new_stream(tenant)
    graph = captured(tenant, 600 * MIB)
    assert graph.launch(stream) == 0
    wait(tenant)
    gpu.inject("cuGraphLaunch", delay_seconds=60)
    tenant.do("begin_call", "cuGraphLaunch", graph.instance, stream)
    while gpu.calls("cuGraphLaunch") == 0:
        time.sleep(0.001)

    assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0
    assert gpu.used_bytes() <= STREAMS_BYTES
    refused = tenant.do("allocate", 600 * MIB)[0]
    gpu.clear_faults()

    assert tenant.do("finish") == [0, 0]
    assert refused == OUT_OF_MEMORY
    assert container.used() == 608 * MIB
    wait(tenant)
    assert tenant.do("allocate", 600 * MIB)[0] == 0
    assert container.used() == 600 * MIB


def test_launches_beside_one_that_does_not_come_to_an_end_count_once(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    """As cuGraphLaunch waits for room in its stream."""
    streams = [new_stream(tenant) for _ in range(2)]
    graphs = [captured(tenant, 200 * MIB) for _ in range(2)]
    gpu.inject("cuGraphLaunch", times=1, delay_seconds=60)
    tenant.do("begin_call", "cuGraphLaunch", graphs[1].instance, streams[1])
    while gpu.calls("cuGraphLaunch") == 0:
        time.sleep(0.001)

    for _ in range(20):
        assert graphs[0].launch(streams[0]) == 0
        wait(tenant)
        assert container.used() <= 2 * 224 * MIB
    gpu.clear_faults()
    assert tenant.do("finish") == [0, 0]
    assert container.used() >= gpu.used_bytes() - STREAMS_BYTES


def test_an_instance_that_is_updated_is_asked_anew(tenant: Process, container: Container) -> None:
    graphs = []
    for size in (100 * MIB, 700 * MIB):
        code, graph, _ = tenant.do("graph_nodes", [[size, []], [-1, [0]]])
        assert code == 0
        graphs.append(graph)
    made = instantiate(tenant, graphs[0])
    assert made.launch(0) == 0
    assert container.used() == 128 * MIB
    assert tenant.do("allocate", 600 * MIB)[0] == 0

    assert tenant.do("call", "cuGraphExecUpdate_v2", made.instance, graphs[1], 0) == 0
    assert made.launch(0) == OUT_OF_MEMORY
    assert tenant.do("call", "cuGraphExecUpdate_v2", made.instance, graphs[0], 0) == 0
    assert made.launch(0) == 0


def test_an_instance_of_nothing_gets_the_drivers_answer(tenant: Process) -> None:
    for name in ("cuGraphLaunch", "cuGraphUpload", "cuGraphExecDestroy", "cuGraphExecUpdate_v2"):
        assert tenant.do("call", name, 0, 0, 0) == 1
    assert tenant.do("out", "cuGraphInstantiateWithFlags", 0, 0) == [1, 0]
    assert tenant.do("call", "cuGraphInstantiateWithFlags", 0, 0, 0) == 1
    assert tenant.do("call", "cuGraphInstantiateWithParams", 0, 0, 0) == 1


def test_threads_that_launch_at_once_do_not_pass_the_limit(
    tenant: Process, container: Container, gpu: SimulatedGpu
) -> None:
    graphs = [captured(tenant, size * MIB, kernel="busy_1ms") for size in (600, 500, 400, 300)]
    pairs = [(graph.instance, new_stream(tenant)) for graph in graphs]
    room = GIB + STREAMS_BYTES

    tenant.send("launch_at_once", pairs, 60)
    highest = 0
    assert tenant.process.stdout is not None
    while not select.select([tenant.process.stdout], [], [], 0.0005)[0]:
        highest = max(highest, gpu.used_bytes())
    granted = tenant.answer()

    assert sum(granted) > 60
    assert 0 < highest <= room
    assert tenant.do("call", "cuDeviceGraphMemTrim", 0) == 0
    assert container.used() == 0


class Storm:
    """Graphs of all kinds, launched, left, freed, trimmed and destroyed at random."""

    def __init__(self, tenant: Process, seed: int) -> None:
        self.tenant = tenant
        self.dice = random.Random(seed)
        self.streams = [new_stream(tenant) for _ in range(3)]
        self.graphs: list[Graph] = []
        self.left: list[int] = []
        self.granted = 0

    def make(self) -> None:
        """Add an instance, in place of another one."""
        if len(self.graphs) == 6:
            self.graphs.pop(self.dice.randrange(6)).destroy()
        self.graphs.append(
            captured(
                self.tenant,
                self.dice.choice([1, 40, 150, 300]) * MIB,
                kernel=self.dice.choice(["busy_1us", "busy_20ms"]),
                is_freed=self.dice.random() < 0.7,
                flags=self.dice.choice([0, AUTO_FREE_ON_LAUNCH]),
            )
        )

    def launch(self) -> None:
        """Launch one of them anywhere."""
        graph = self.dice.choice(self.graphs)
        self.granted += graph.launch(self.dice.choice(self.streams)) == 0
        self.left.append(graph.address)

    def free(self) -> None:
        """Free what may be left of one."""
        if self.left:
            address = self.left.pop(self.dice.randrange(len(self.left)))
            self.tenant.do("call", "cuMemFreeAsync", address, self.dice.choice(self.streams))

    def trim(self) -> None:
        """Trim, now and then when all is done."""
        if self.dice.random() < 0.5:
            wait(self.tenant)
        self.tenant.do("call", "cuDeviceGraphMemTrim", 0)

    def step(self) -> None:
        """Do any of that."""
        chances = [self.make] * 2 + [self.launch] * 8 + [self.free] * 3 + [self.trim]
        self.dice.choice(chances)()


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_launches_passes_the_limit(
    tenant: Process, container: Container, gpu: SimulatedGpu, seed: int
) -> None:
    storm = Storm(tenant, seed)
    storm.make()
    for _ in range(150):
        storm.step()
        assert container.used() <= gpu.used_bytes() <= container.used() + STREAMS_BYTES
        assert container.used() <= GIB

    assert storm.granted > 20
