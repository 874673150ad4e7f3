# SPDX-License-Identifier: Apache-2.0
"""A process that uses the simulated GPU through libvgpu, driven from a test.

As tests.fakes.gpu.tenant, with the calls that only these tests make.
"""

import _ctypes
import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.gpu.tenant import Driver, Tenant

if TYPE_CHECKING:
    from tests.fakes.gpu.simulated_gpu import SimulatedGpu

ROOT = Path(__file__).parents[2]


class DlInfo(ctypes.Structure):
    """Dl_info of <dlfcn.h>."""

    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def symbol_of(address: int | None) -> str:
    """Return the name of the exported symbol at an address."""
    info = DlInfo()
    if (
        address is None
        or ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)) == 0
    ):
        return "none"
    return (info.dli_sname or b"?").decode()


class Program(Driver):
    """The calls, made in the process."""

    _nvml_device = 0
    _second: threading.Thread
    _second_answer: tuple[int, int]

    def begin(self, name: str, *arguments: int) -> None:
        """Make a call as `out` does, in a second thread; do not wait for it."""
        self._begin(lambda: self.out(name, *arguments))

    def begin_call(self, name: str, *arguments: int) -> None:
        """As `call`; `finish` gives the code, and 0."""
        self._begin(lambda: (self.call(name, *arguments), 0))

    def _begin(self, call: Callable[[], tuple[int, int]]) -> None:
        context = ctypes.c_void_p()
        self._cuda.cuCtxGetCurrent(ctypes.byref(context))

        def run() -> None:
            self._cuda.cuCtxSetCurrent(context)
            self._second_answer = call()

        self._second = threading.Thread(target=run)
        self._second.start()

    def finish(self) -> tuple[int, int]:
        """Wait for the second thread; what its call gave."""
        self._second.join()
        return self._second_answer

    def pitch(self, width: int, height: int) -> tuple[int, int, int]:
        """Call cuMemAllocPitch; code, address and pitch."""
        address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
        code = self._cuda.cuMemAllocPitch_v2(
            ctypes.byref(address),
            ctypes.byref(pitch),
            ctypes.c_size_t(width),
            ctypes.c_size_t(height),
            ctypes.c_uint(4),
        )
        return int(code), address.value, pitch.value

    def array(self, name: str, words: list[int]) -> tuple[int, int]:
        """Create an array from a descriptor of 64-bit words; code and handle."""
        return self.with_struct(name, words)

    def pool(self, device: int) -> tuple[int, int]:
        """Call cuMemPoolCreate for a device; code and handle."""
        properties = (ctypes.c_int * 22)(1, 0, 1, device)
        handle = ctypes.c_void_p()
        code = self._cuda.cuMemPoolCreate(ctypes.byref(handle), properties)
        return int(code), int(handle.value or 0)

    def create_at(self, size: int, location: int) -> tuple[int, int]:
        """Call cuMemCreate for a type of location; code and handle."""
        handle = ctypes.c_uint64()
        properties = (ctypes.c_int * 8)(1, 0, location)
        code = self._cuda.cuMemCreate(
            ctypes.byref(handle), ctypes.c_size_t(size), properties, ctypes.c_uint64(0)
        )
        return int(code), handle.value

    def pool_at(self, kind: int, location: int) -> tuple[int, int]:
        """Call cuMemPoolCreate for a type of allocation and a type of location."""
        properties = (ctypes.c_int * 22)(kind, 0, location)
        handle = ctypes.c_void_p()
        code = self._cuda.cuMemPoolCreate(ctypes.byref(handle), properties)
        return int(code), int(handle.value or 0)

    def set_pool(self, pool: int, attribute: int, number: int) -> int:
        """Call cuMemPoolSetAttribute with a number of 64 bits."""
        value = ctypes.c_uint64(number)
        return int(
            self._cuda.cuMemPoolSetAttribute(ctypes.c_void_p(pool), attribute, ctypes.byref(value))
        )

    def get_pool(self, pool: int, attribute: int) -> tuple[int, int]:
        """Call cuMemPoolGetAttribute for a number of 64 bits; code and number."""
        value = ctypes.c_uint64()
        code = self._cuda.cuMemPoolGetAttribute(
            ctypes.c_void_p(pool), attribute, ctypes.byref(value)
        )
        return int(code), value.value

    def graph_alloc(self, graph: int, size: int, device: int = 0) -> int:
        """Call cuGraphAddMemAllocNode for a device."""
        node = ctypes.c_void_p()
        parameters = (ctypes.c_uint64 * 15)()
        parameters[0], parameters[1], parameters[13] = 1, 1 | device << 32, size
        return int(
            self._cuda.cuGraphAddMemAllocNode(
                ctypes.byref(node), ctypes.c_void_p(graph), None, ctypes.c_size_t(0), parameters
            )
        )

    def graph_nodes(self, nodes: list[tuple[int, list[int]]]) -> tuple[int, int, list[int]]:
        """Make a graph of nodes: of so many bytes, or, of number n < 0, that free node -n - 1.

        Each stands behind the nodes of its list. Code, graph and addresses.
        """
        graph = ctypes.c_void_p()
        self._cuda.cuGraphCreate(ctypes.byref(graph), 0)
        made: list[int] = []
        addresses: list[int] = []
        for size, after in nodes:
            node = ctypes.c_void_p()
            before = (ctypes.c_void_p * max(1, len(after)))(*(made[i] for i in after))
            place = (ctypes.byref(node), graph, before, ctypes.c_size_t(len(after)))
            if size > 0:
                parameters = (ctypes.c_uint64 * 15)(1, 1)
                parameters[13] = size
                code = self._cuda.cuGraphAddMemAllocNode(*place, parameters)
                addresses.append(parameters[14])
            else:
                code = self._cuda.cuGraphAddMemFreeNode(
                    *place, ctypes.c_uint64(addresses[-size - 1])
                )
                addresses.append(0)
            if code != 0:
                return int(code), 0, []
            made.append(int(node.value or 0))
        return 0, int(graph.value or 0), addresses

    def nodes_of(self, graph: int) -> list[int]:
        """Call cuGraphGetNodes."""
        count = ctypes.c_size_t(64)
        nodes = (ctypes.c_uint64 * 64)()
        self._cuda.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        return list(nodes[: count.value])

    def launch_graph(self, instance: int, stream: int, times: int) -> int:
        """Launch a graph again and again, and wait; the sum of the codes."""
        launches = (
            self._cuda.cuGraphLaunch(ctypes.c_void_p(instance), ctypes.c_void_p(stream))
            for _ in range(times)
        )
        return int(sum(launches) + self._cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))

    def launch_at_once(self, pairs: list[tuple[int, int]], rounds: int) -> list[int]:
        """Launch instances in their streams, a thread each, and trim; how many succeeded."""
        context = ctypes.c_void_p()
        self._cuda.cuCtxGetCurrent(ctypes.byref(context))
        granted = [0] * len(pairs)

        def run(number: int, instance: int, stream: int) -> None:
            self._cuda.cuCtxSetCurrent(context)
            for turn in range(rounds):
                granted[number] += self.call("cuGraphLaunch", instance, stream) == 0
                if turn % 3 == number % 3:
                    self.call("cuStreamSynchronize", stream)
                if turn % 5 == number % 5:
                    self.call("cuDeviceGraphMemTrim", 0)

        threads = [
            threading.Thread(target=run, args=(number, *pair)) for number, pair in enumerate(pairs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._cuda.cuCtxSynchronize()
        return granted

    def move_into_graph(self, child: int) -> tuple[int, int]:
        """Make a graph that takes another one over; code and graph."""
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        self._cuda.cuGraphCreate(ctypes.byref(graph), 0)
        parameters = (ctypes.c_uint64 * 32)(4, 0, child, 1)
        code = self._cuda.cuGraphAddNode_v2(
            ctypes.byref(node), graph, None, None, ctypes.c_size_t(0), parameters
        )
        return int(code), int(graph.value or 0)

    def instantiate_without_memory(self, graph: int) -> tuple[int, int]:
        """Instantiate a graph while the process can map nothing; code and instance."""
        instance, flags, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(graph)
        instantiate = self._cuda.cuGraphInstantiateWithFlags
        with Path("/proc/self/statm").open() as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped, resource.RLIM_INFINITY))
        code = instantiate(ctypes.byref(instance), handle, flags)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return int(code), int(instance.value or 0)

    def instantiate_uploaded(self, name: str, graph: int, stream: int) -> tuple[int, int]:
        """Instantiate a graph and upload it at once; code and instance."""
        instance = ctypes.c_void_p()
        parameters = (ctypes.c_uint64 * 4)(2, stream)
        code = self._cuda[name](ctypes.byref(instance), ctypes.c_void_p(graph), parameters)
        return int(code), int(instance.value or 0)

    def launch_by(self, name: str, kernel: int) -> int:
        """Launch one block of one thread by a function with the arguments of cuLaunchKernel."""
        return int(self._cuda[name](ctypes.c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None))

    def launch_config(self, kernel: int) -> int:
        """Call cuLaunchKernelEx for one block of one thread."""
        config = (ctypes.c_uint * 14)(1, 1, 1, 1, 1, 1)
        return int(self._cuda.cuLaunchKernelEx(config, ctypes.c_void_p(kernel), None, None))

    def launch_old(self, kernel: int) -> int:
        """Call cuLaunchGrid."""
        return int(self._cuda.cuLaunchGrid(ctypes.c_void_p(kernel), 1, 1))

    def module_kernel(self, name: str) -> tuple[int, int]:
        """Load a module and a kernel of it; both handles."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._cuda.cuModuleLoadData(ctypes.byref(module), b"kernels")
        self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        return int(module.value or 0), int(function.value or 0)

    def kernel_graph(self, kernel: int) -> tuple[int, int]:
        """Make a graph of one kernel; graph and node."""
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        parameters = (ctypes.c_uint64 * 9)(kernel, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32)
        self._cuda.cuGraphCreate(ctypes.byref(graph), 0)
        self._cuda.cuGraphAddKernelNode_v2(
            ctypes.byref(node), graph, None, ctypes.c_size_t(0), parameters
        )
        return int(graph.value or 0), int(node.value or 0)

    def graph_of(self, child: int) -> int:
        """Make a graph that holds another one."""
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        self._cuda.cuGraphCreate(ctypes.byref(graph), 0)
        self._cuda.cuGraphAddChildGraphNode(
            ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.c_void_p(child)
        )
        return int(graph.value or 0)

    def conditional_graph(self, kernel: int) -> int:
        """Make a graph of one conditional node, whose second body runs a kernel."""
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        parameters = (ctypes.c_uint64 * 32)(13, 0, 1, 2 << 32)
        self._cuda.cuGraphCreate(ctypes.byref(graph), 0)
        self._cuda.cuGraphAddNode_v2(
            ctypes.byref(node), graph, None, None, ctypes.c_size_t(0), parameters
        )
        body = ctypes.cast(parameters[4], ctypes.POINTER(ctypes.c_void_p))[1]
        run = (ctypes.c_uint64 * 9)(kernel, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32)
        self._cuda.cuGraphAddKernelNode_v2(
            ctypes.byref(node), ctypes.c_void_p(body), None, ctypes.c_size_t(0), run
        )
        return int(graph.value or 0)

    def set_kernel(self, instance: int, node: int, kernel: int) -> int:
        """Call cuGraphExecKernelNodeSetParams."""
        parameters = (ctypes.c_uint64 * 9)(kernel, 1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32)
        return int(
            self._cuda.cuGraphExecKernelNodeSetParams_v2(
                ctypes.c_void_p(instance), ctypes.c_void_p(node), parameters
            )
        )

    def look_up(self, questions: list[tuple[str, str, int, int]]) -> list[str]:
        """Ask for names in several ways; what each gave."""
        return [self._look_up(*question) for question in questions]

    def _look_up(self, way: str, name: str, version: int, flags: int) -> str:
        address, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = 0
        out = None if version == -1 else ctypes.byref(address)
        if way == "v1":
            code = self._cuda.cuGetProcAddress(name.encode(), out, version, ctypes.c_uint64(flags))
        elif way == "v2":
            place = None if flags == 1 else ctypes.byref(status)
            code = self._cuda.cuGetProcAddress_v2(
                name.encode(), out, version, ctypes.c_uint64(flags), place
            )
        elif way == "dlsym":
            try:
                address.value = _ctypes.dlsym(self._cuda._handle, name)
            except OSError:
                code = 1
        else:
            dlvsym = ctypes.CDLL(None).dlvsym
            dlvsym.restype = ctypes.c_void_p
            address.value = dlvsym(ctypes.c_void_p(self._cuda._handle), name.encode(), way.encode())
        return f"{code} {status.value} {symbol_of(address.value)}"

    def nvml_call(self, name: str) -> int:
        """Call a function of NVML without arguments."""
        return int(ctypes.CDLL("libnvidia-ml.so.1")[name]())

    def uuid_of_uuid(self, uuid: str) -> str:
        """Find a card of NVML by its UUID; what that one says."""
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)))

    def detail_list(self, mode: int, room: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Call nvmlDeviceGetRunningProcessDetailList; code, count, and (PID, bytes)."""
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device = ctypes.c_void_p(self._nvml_device)
        if not self._nvml_device:
            nvml.nvmlInit_v2()
            nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
            self._nvml_device = int(device.value or 0)
        entries = (ctypes.c_uint64 * (4 * room))()
        details = (ctypes.c_uint64 * 3)(24 | 1 << 24 | mode << 32, room, ctypes.addressof(entries))
        code = nvml.nvmlDeviceGetRunningProcessDetailList(device, details)
        listed = details[1] & 0xFFFFFFFF if code == 0 else 0
        found = [(entries[4 * i] & 0xFFFFFFFF, entries[4 * i + 1]) for i in range(listed)]
        return int(code), details[1] & 0xFFFFFFFF, found

    def history(self) -> tuple[int, list[int]]:
        """Call nvmlDeviceGetSamples for the utilisation of the first card; code and percents."""
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, kind, count = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(16)
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        samples = (ctypes.c_uint64 * 32)()
        code = nvml.nvmlDeviceGetSamples(
            device, 1, ctypes.c_uint64(0), ctypes.byref(kind), ctypes.byref(count), samples
        )
        return int(code), [samples[2 * i + 1] for i in range(count.value)]

    def lists_on(self, uuid: str) -> list[list[list[int]]]:
        """Ask for the processes on a device; of each list and version (PID, bytes, instances)."""
        import pynvml

        pynvml.nvmlInit()
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        found = []
        for name in ("_v2", "_v3"):
            count, entries = ctypes.c_uint(16), (ctypes.c_uint64 * (3 * 16))()
            code = nvml["nvmlDeviceGetComputeRunningProcesses" + name](
                device, ctypes.byref(count), entries
            )
            assert code == 0, code
            found.append(
                [
                    [
                        entries[3 * i] & 0xFFFFFFFF,
                        entries[3 * i + 1],
                        entries[3 * i + 2] & 0xFFFFFFFF,
                        entries[3 * i + 2] >> 32,
                    ]
                    for i in range(count.value)
                ]
            )
        entries = (ctypes.c_uint64 * (4 * 16))()
        details = (ctypes.c_uint64 * 3)(24 | 1 << 24, 16, ctypes.addressof(entries))
        code = nvml.nvmlDeviceGetRunningProcessDetailList(device, details)
        assert code == 0, code
        found.append(
            [
                [
                    entries[4 * i] & 0xFFFFFFFF,
                    entries[4 * i + 1],
                    entries[4 * i + 2] & 0xFFFFFFFF,
                    entries[4 * i + 2] >> 32,
                ]
                for i in range(details[1] & 0xFFFFFFFF)
            ]
        )
        return found

    def accounting_pids(self) -> tuple[int, int]:
        """Call nvmlDeviceGetAccountingPids with room for 16; code and count."""
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, count = ctypes.c_void_p(), ctypes.c_uint(16)
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        pids = (ctypes.c_uint * 16)()
        code = nvml.nvmlDeviceGetAccountingPids(device, ctypes.byref(count), pids)
        return int(code), count.value

    def errno_kept(self, name: str, *arguments: int) -> bool:
        """Whether a call leaves errno as it was."""
        cuda = ctypes.CDLL("libcuda.so.1", use_errno=True)
        ctypes.set_errno(77)
        value = ctypes.c_uint64()
        cuda[name](ctypes.byref(value), *(ctypes.c_uint64(a) for a in arguments))
        return ctypes.get_errno() == 77

    def open_files(self) -> list[str]:
        """What the process's descriptors point to."""
        return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")[:-1]]

    def limit_files(self, count: int) -> None:
        """Set how many descriptors the process may have; those that it has stay."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, 4096))

    def thread_count(self) -> int:
        """How many threads the process has."""
        return len(os.listdir("/proc/self/task"))


class Process(Tenant):
    """The other end of a `Program`."""

    def __init__(
        self,
        gpu: "SimulatedGpu",
        *,
        wrapper: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        own = {**os.environ, **gpu.environment(), "PYTHONPATH": str(ROOT), **(environment or {})}
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "tests.hook_c.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=own,
        )


def _serve() -> None:
    program = Program()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(program, name)(*arguments)), flush=True)


if __name__ == "__main__":
    _serve()
