#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the driver takes of the card for memory nodes of graphs, and when it gives it back.

    bench/gpu/graphs.py                        on a card, or on the simulated one: the same steps
    bench/gpu/graphs.py one_stream --busy 200  some rounds, with kernels of 200 ms

Every line is one step: what the driver says is reserved for graphs and used by them, and what the
card has less since the round began, in MiB. A code other than 0 stands behind the step. A round
counts on it that the next launch comes while a kernel runs.
"""

import argparse
import ctypes
import time
from collections.abc import Callable, Sequence

from bench.gpu.families import MIB, Driver

SIZE = 256 * MIB
USED, RESERVED = 0, 2
AUTO_FREE_ON_LAUNCH, UPLOAD, DEVICE_LAUNCH = 1, 2, 4
GRAPH_NODE, ALLOC_NODE, CONDITIONAL_NODE = 4, 10, 13
MOVE = 1

_KERNEL = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry busy_param(.param .u64 work_ns)
{
.reg .pred %p<2>;
.reg .b64 %d<5>;
mov.u64 %d1, %globaltimer;
ld.param.u64 %d2, [work_ns];
LOOP:
mov.u64 %d3, %globaltimer;
sub.u64 %d4, %d3, %d1;
setp.lt.u64 %p1, %d4, %d2;
@%p1 bra LOOP;
ret;
}
"""


class Card(Driver):
    """The driver, with streams and a kernel that lasts."""

    def __init__(self, busy_ns: int) -> None:
        super().__init__()
        self.busy_ns = busy_ns
        self.stream = [self.must("cuStreamCreate", 1) for _ in range(4)]
        module = self.must("cuModuleLoadData", _KERNEL)
        self.kernel = self.must("cuModuleGetFunction", module, b"busy_param")
        self.base = 0
        self.graphs: list[Graph] = []

    def attribute(self, which: int) -> int:
        """Of the memory of graphs, in bytes."""
        value = ctypes.c_uint64()
        self.call("cuDeviceGetGraphMemAttribute", 0, which, ctypes.byref(value))
        return value.value

    def say(self, step: str, code: int = 0) -> None:
        """Print what the driver says now."""
        numbers = (
            self.attribute(RESERVED),
            self.attribute(USED),
            self.base - self.memory()[0],
        )
        cells = " ".join(f"{number / MIB:8.1f}" for number in numbers)
        print(f"  {step:44}{cells}{f'  code {code}' if code else ''}", flush=True)

    def launch(self, step: str, instance: int, stream: int) -> None:
        """Launch an instance."""
        code = self.call("cuGraphLaunch", instance, self.stream[stream])
        self.say(f"{step} in s{stream}", code)

    def wait(self, step: str = "wait") -> None:
        """Wait for everything."""
        self.say(step, self.call("cuCtxSynchronize"))

    def trim(self, step: str = "trim") -> None:
        """Have graph memory given back."""
        self.say(step, self.call("cuDeviceGraphMemTrim", 0))


class Graph:
    """A graph that is made by hand."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.handle = card.must("cuGraphCreate", 0)
        self.instance = 0
        self.addresses: list[int] = []
        self.code = 0
        card.graphs.append(self)

    def _add(self, name: str, after: Sequence[int], *rest: object) -> int:
        before = (ctypes.c_uint64 * max(1, len(after)))(*after)
        code, node = self.card.out(name, self.handle, before if after else 0, len(after), *rest)
        self.code = self.code or code
        return node

    def alloc(self, size: int, after: Sequence[int] = ()) -> tuple[int, int]:
        """Add a node that allocates; it and the address."""
        parameters = (ctypes.c_uint64 * 15)(1, 1)
        parameters[13] = size
        node = self._add("cuGraphAddMemAllocNode", after, parameters)
        self.addresses.append(parameters[14])
        return node, parameters[14]

    def free(self, address: int, after: Sequence[int] = ()) -> int:
        """Add a node that frees."""
        return self._add("cuGraphAddMemFreeNode", after, address)

    def child(self, handle: int) -> int:
        """Add another graph."""
        return self._add("cuGraphAddChildGraphNode", (), handle)

    def work(self, after: Sequence[int] = (), work_ns: int = 0) -> int:
        """Add a kernel."""
        value = ctypes.c_uint64(work_ns or self.card.busy_ns)
        places = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        parameters = (ctypes.c_uint64 * 9)(
            self.card.kernel, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, ctypes.addressof(places)
        )
        return self._add("cuGraphAddKernelNode_v2", after, parameters)

    def instantiate(self, flags: int = 0) -> int:
        """Make the instance; a code."""
        code, self.instance = self.card.out("cuGraphInstantiateWithFlags", self.handle, flags)
        return code

    def end(self) -> None:
        """Forget both."""
        if self.instance:
            self.card.call("cuGraphExecDestroy", self.instance)
        if self.handle:
            self.card.call("cuGraphDestroy", self.handle)
        self.instance = self.handle = 0


def block(
    card: Card, size: int = SIZE, *, left: bool = False, flags: int = 0, work_ns: int = 0
) -> Graph:
    """Make an instance that allocates, works and, unless it leaves it, frees."""
    graph = Graph(card)
    node, address = graph.alloc(size)
    work = graph.work([node], work_ns)
    if not left:
        graph.free(address, [work])
    if code := graph.instantiate(flags) or graph.code:
        print(f"  instantiate: code {code}")
    return graph


def sizes(card: Card) -> None:
    """One node, alone."""
    for size in (
        1,
        64 << 10,
        MIB,
        2 * MIB,
        31 * MIB,
        32 * MIB,
        33 * MIB,
        100 * MIB,
        255 * MIB,
        256 * MIB,
        1000 * MIB,
    ):
        graph = block(card, size, work_ns=1000)
        card.launch(f"{size / MIB:.3f} MiB at {graph.addresses[0]:x}", graph.instance, 0)
        card.call("cuCtxSynchronize")
        graph.end()
        card.call("cuDeviceGraphMemTrim", 0)
    card.say("in the end")


def shapes(card: Card) -> None:
    """What several nodes of one graph share: by their addresses, and by what is taken."""

    def show(name: str, graph: Graph) -> None:
        code = graph.instantiate() or graph.code
        spread = " ".join(f"{(a - min(graph.addresses)) / MIB:.1f}" for a in graph.addresses)
        print(f"  {name}: at +{spread} MiB, code {code}")
        card.launch(name, graph.instance, 0)
        card.wait()
        graph.end()
        card.trim()

    graph = Graph(card)  # one after the other
    before: list[int] = []
    for size in (64, 128, 64, 128):
        node, address = graph.alloc(size * MIB, before)
        before = [graph.free(address, [graph.work([node], 1000)])]
    show("64 128 64 128 in a chain", graph)

    graph = Graph(card)  # no order between them
    for size in (64, 128, 64, 128):
        node, address = graph.alloc(size * MIB)
        graph.free(address, [graph.work([node], 1000)])
    show("64 128 64 128 side by side", graph)

    graph = Graph(card)  # two at once, then one larger
    node1, one = graph.alloc(96 * MIB)
    node2, two = graph.alloc(96 * MIB, [node1])
    first = graph.free(one, [node2])
    second = graph.free(two, [first])
    node3, three = graph.alloc(192 * MIB, [second])
    graph.free(three, [node3])
    show("96 + 96, then 192", graph)

    graph = Graph(card)  # a hole that does not fit
    node1, one = graph.alloc(64 * MIB)
    node2, two = graph.alloc(64 * MIB, [node1])
    node3, three = graph.alloc(64 * MIB, [node2])
    first = graph.free(one, [node3])
    second = graph.free(three, [first])
    node4, four = graph.alloc(128 * MIB, [second])
    graph.free(four, [graph.free(two, [node4])])
    show("64 64 64, holes, 128", graph)

    graph = Graph(card)  # many small ones
    node = 0
    frees = []
    for _ in range(100):
        node, address = graph.alloc(MIB, [node] if node else [])
        frees.append(address)
    for address in frees:
        node = graph.free(address, [node])
    show("100 x 1 MiB", graph)

    graph = Graph(card)
    for _ in range(3):
        graph.alloc(40 * MIB)
    code = graph.instantiate()
    card.launch(f"3 x 40 MiB left (instantiate {code})", graph.instance, 0)
    card.wait()
    for address in graph.addresses:
        card.call("cuMemFreeAsync", address, card.stream[0])
    card.wait("freed, wait")
    card.trim()


def alone(card: Card) -> None:
    """One graph, again and again, and in two streams."""
    a = block(card)
    card.say("instantiated")
    for _ in range(3):
        card.launch("A", a.instance, 0)
    card.trim("trim while it runs")
    card.launch("A, running in s0,", a.instance, 1)
    card.wait()
    card.trim()
    card.launch("A", a.instance, 0)
    card.wait()
    card.launch("A", a.instance, 2)
    card.wait()
    a.end()
    card.say("instance destroyed")
    card.trim()


def one_stream(card: Card) -> None:
    """Two graphs in one stream, then in two."""
    a, b = block(card), block(card)
    card.launch("A", a.instance, 0)
    card.launch("B", b.instance, 0)
    card.launch("A", a.instance, 0)
    card.wait()
    card.launch("A", a.instance, 0)
    card.launch("B, A running in s0,", b.instance, 1)
    card.wait()
    card.launch("A", a.instance, 0)
    card.launch("B, A running,", b.instance, 0)
    card.wait()
    card.trim()


def two_streams(card: Card) -> None:
    """Two graphs at once, then one after the other."""
    a, b, c = block(card), block(card), block(card)
    card.launch("A", a.instance, 0)
    card.launch("B, A running,", b.instance, 1)
    card.wait()
    card.launch("C", c.instance, 0)
    card.wait()
    card.trim()
    card.launch("A", a.instance, 0)
    card.wait()
    card.launch("B", b.instance, 1)
    card.wait()
    card.launch("C", c.instance, 2)
    card.wait()
    card.launch("A", a.instance, 0)
    card.launch("B, A running,", b.instance, 1)
    card.launch("C, A B running,", c.instance, 2)
    card.wait()
    card.trim()


def finished(card: Card) -> None:
    """A graph that has long ended, for which nobody has waited, and one in another stream."""
    a, b = block(card), block(card)
    card.launch("A", a.instance, 0)
    time.sleep(3 * card.busy_ns / 1e9)
    card.launch("B, A has ended,", b.instance, 1)
    time.sleep(3 * card.busy_ns / 1e9)
    card.trim("trim, both have ended")
    card.launch("A", a.instance, 0)
    time.sleep(3 * card.busy_ns / 1e9)
    card.say("query", card.call("cuStreamQuery", card.stream[0]))
    card.launch("B, A was seen to have ended,", b.instance, 1)
    card.wait()
    card.trim()


def larger(card: Card) -> None:
    """A graph that needs more than the one before it."""
    a, d, e = block(card), block(card, SIZE + SIZE // 2), block(card, SIZE // 2)
    card.launch("A of 256", a.instance, 0)
    card.launch("D of 384", d.instance, 0)
    card.launch("A of 256", a.instance, 0)
    card.launch("E of 128", e.instance, 1)
    card.wait()
    card.launch("D of 384", d.instance, 1)
    card.wait()
    card.trim()
    card.launch("E of 128", e.instance, 0)
    card.wait()
    card.launch("D of 384", d.instance, 1)
    card.wait()
    card.trim()


def behind_an_event(card: Card) -> None:
    """Two streams, of which one waits for the other: the graphs cannot run at once."""
    a, b = block(card), block(card)
    event = card.must("cuEventCreate", 2)
    for _ in range(2):
        card.launch("A", a.instance, 0)
        card.call("cuEventRecord", event, card.stream[0])
        card.call("cuStreamWaitEvent", card.stream[1], event, 0)
        card.launch("B, behind A,", b.instance, 1)
    card.wait()
    card.trim()


def steps(card: Card) -> None:
    """Whether what several graphs take at once is rounded together."""
    graphs = [block(card, 100 * MIB) for _ in range(4)]
    for number, graph in enumerate(graphs):
        card.launch(f"100 MiB, number {number},", graph.instance, number)
    card.wait()
    big = block(card, 400 * MIB)
    card.launch("400 MiB", big.instance, 0)
    card.wait()
    card.trim()
    small = [block(card, MIB) for _ in range(4)]
    for number, graph in enumerate(small):
        card.launch(f"1 MiB, number {number},", graph.instance, number)
    card.wait()
    card.launch("100 MiB", graphs[0].instance, 0)
    card.wait()
    card.trim()


def left(card: Card) -> None:
    """What a launch leaves allocated."""
    a, rest = block(card), block(card, left=True)
    card.launch("A", a.instance, 0)
    card.launch("L", rest.instance, 0)
    card.launch("A", a.instance, 0)
    card.wait()
    card.trim()
    card.launch("A", a.instance, 0)
    card.wait()
    card.launch("L again", rest.instance, 0)
    card.call("cuMemFreeAsync", rest.addresses[0], card.stream[0])
    card.say("freed in s0")
    card.launch("A", a.instance, 0)
    card.launch("L", rest.instance, 0)
    card.wait()
    a.end()
    card.say("A destroyed")
    rest.end()
    card.say("L destroyed, its memory held")
    card.trim()
    card.say("freed", card.call("cuMemFree_v2", rest.addresses[0]))
    card.trim()
    again = block(card, left=True, flags=AUTO_FREE_ON_LAUNCH)
    for _ in range(3):
        card.launch("L, freed by its launch,", again.instance, 0)
    card.wait()
    card.say("freed", card.call("cuMemFreeAsync", again.addresses[0], card.stream[0]))
    card.wait()
    card.trim()


def uploads(card: Card) -> None:
    """When the memory comes."""
    a = block(card)
    card.say("upload", card.call("cuGraphUpload", a.instance, card.stream[0]))
    card.trim("trim, not waited")
    card.wait()
    card.trim()
    card.launch("A", a.instance, 0)
    card.wait()
    b = freeing(card, SIZE)
    parameters = (ctypes.c_uint64 * 4)(UPLOAD, card.stream[0])
    code, b.instance = card.out("cuGraphInstantiateWithParams", b.handle, parameters)
    card.say("B, instantiated with an upload", code)
    card.launch("A", a.instance, 0)
    card.launch("B, A running,", b.instance, 1)
    card.wait()
    card.trim()
    c = freeing(card, 2 * SIZE)
    parameters = (ctypes.c_uint64 * 4)(UPLOAD, card.stream[2])
    code, c.instance = card.out("cuGraphInstantiateWithParams", c.handle, parameters)
    card.say("C of 512, instantiated with an upload", code)
    card.wait()
    card.trim()
    a.end()
    b.end()
    c.end()
    card.trim("all destroyed, trim")


def freeing(card: Card, size: int) -> Graph:
    """Make a graph that allocates, works and frees; no instance of it."""
    graph = Graph(card)
    node, address = graph.alloc(size)
    graph.free(address, [graph.work([node])])
    return graph


def refusals(card: Card) -> None:
    """What the driver does not do with memory nodes."""
    a = block(card)
    print(f"  clone: code {card.out('cuGraphClone', a.handle)[0]}")
    print(f"  second instance: code {card.out('cuGraphInstantiateWithFlags', a.handle, 0)[0]}")
    outer = Graph(card)
    outer.child(a.handle)
    print(f"  child graph: code {outer.code}")
    inner = freeing(card, SIZE)
    parameters = (ctypes.c_uint64 * 34)(GRAPH_NODE, 0, inner.handle, MOVE)
    outer = Graph(card)
    code, _ = card.out("cuGraphAddNode_v2", outer.handle, 0, 0, 0, parameters)
    print(f"  child graph, moved: code {code}")
    if code == 0:
        inner.handle = 0
        print(f"  its instance: code {outer.instantiate()}")
        card.launch("moved child", outer.instance, 0)
        card.wait()
    for name, size in (("update", SIZE), ("update to more", 2 * SIZE)):
        result = (ctypes.c_uint64 * 4)()
        graph = freeing(card, size)
        code = card.call("cuGraphExecUpdate_v2", a.instance, graph.handle, result)
        print(f"  {name}: code {code}, result {result[0] & 0xFFFFFFFF}")
    card.launch("A", a.instance, 0)
    card.wait()
    conditional(card)
    device = block(card, flags=DEVICE_LAUNCH)
    if device.instance:
        card.launch("device-launchable", device.instance, 0)
        card.wait()
    card.trim()


def conditional(card: Card) -> None:
    """An allocation in the body of a condition."""
    graph = Graph(card)
    code, handle = card.out("cuGraphConditionalHandleCreate", graph.handle, card.context, 1, 1)
    parameters = (ctypes.c_uint64 * 34)(CONDITIONAL_NODE, 0, handle, 1 << 32, 0, card.context)
    code, _ = card.out("cuGraphAddNode_v2", graph.handle, 0, 0, 0, parameters)
    print(f"  conditional node: code {code}")
    if code != 0:
        return
    body = Graph(card)
    card.call("cuGraphDestroy", body.handle)
    body.handle = ctypes.cast(parameters[4], ctypes.POINTER(ctypes.c_uint64))[0]
    node, address = body.alloc(SIZE)
    print(f"  allocation in its body: code {body.code}")
    body.free(address, [body.work([node])])
    print(f"  and free: code {body.code}; instance: code {graph.instantiate()}")
    body.handle = 0
    if graph.instance:
        card.launch("conditional", graph.instance, 0)
        card.wait()


def cost(card: Card) -> None:
    """What the questions cost."""
    a = block(card, work_ns=1000)
    ways: dict[str, Callable[[], object]] = {
        "one attribute": lambda: card.attribute(RESERVED),
        "launch": lambda: card.call("cuGraphLaunch", a.instance, card.stream[0]),
        "launch and wait": lambda: (
            card.call("cuGraphLaunch", a.instance, card.stream[0]),
            card.call("cuStreamSynchronize", card.stream[0]),
        ),
        "launch, wait and trim": lambda: (
            card.call("cuGraphLaunch", a.instance, card.stream[0]),
            card.call("cuStreamSynchronize", card.stream[0]),
            card.call("cuDeviceGraphMemTrim", 0),
        ),
    }
    for name, call in ways.items():
        begun = time.perf_counter_ns()
        for _ in range(100):
            call()
        print(f"  {name}: {(time.perf_counter_ns() - begun) / 100 / 1000:.2f} us")
        card.call("cuCtxSynchronize")


def main() -> None:
    """Make every round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("round", nargs="*")
    parser.add_argument("--busy", type=int, default=60, help="ms that a kernel takes")
    args = parser.parse_args()
    card = Card(args.busy * 1_000_000)
    card.wait()
    rounds: list[Callable[[Card], None]] = [
        sizes,
        shapes,
        alone,
        one_stream,
        two_streams,
        finished,
        larger,
        behind_an_event,
        steps,
        left,
        uploads,
        cost,
        refusals,
    ]
    for make in rounds:
        if args.round and make.__name__ not in args.round:
            continue
        print(f"\n{make.__name__}: {make.__doc__}\n  {'':44}reserved     used    taken")
        card.base = card.memory()[0]
        try:
            make(card)
        except Exception as error:
            print(f"  broke off: {error!r}")
        card.call("cuCtxSynchronize")
        for graph in card.graphs:
            graph.end()
        card.graphs.clear()
        card.trim("end")


if __name__ == "__main__":
    main()
