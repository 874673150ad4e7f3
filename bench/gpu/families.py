# SPDX-License-Identifier: Apache-2.0
"""Every family of calls that takes memory of a card, by the driver and by a cudart.

A family takes so many bytes and gives them back; a take that fails leaves nothing behind.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

MIB = 1 << 20
FLOAT4_BYTES = 16
ROW_PIXELS = 16384
# Elements of a one-dimensional array, at most. Source: CUDA programming guide, technical specs.
MOST_1D_PIXELS = 131072
_POOL_PROPERTIES = (ctypes.c_int * 22)(1, 0, 1, 0)  # pinned, not shared, on device 0
_RELAXED = 2

Handle: TypeAlias = Any
"""Whatever `give` needs."""
Taken: TypeAlias = tuple[int, Handle]


class _Graph(ctypes.Structure):
    """A launched graph and the memory that its node took."""

    _fields_: ClassVar = [
        ("graph", ctypes.c_void_p),
        ("instance", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
    ]


class _Channel(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_int) for name in ("x", "y", "z", "w", "kind")]


class _Extent(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in ("width", "height", "depth")]


@dataclass(frozen=True)
class Family:
    """One way to take memory."""

    name: str
    take: Callable[[int], Taken]
    give: Callable[[Handle], int]
    piece_bytes: int = 256 * MIB
    most_bytes: int = 1 << 62
    """The largest single request that its arguments allow."""
    seen_by_nvml: bool = True


@dataclass(frozen=True)
class Crossing:
    """Memory of one family, freed by a call of another."""

    name: str
    take: Callable[[int], Taken]
    give: Callable[[Handle], int]
    own_give: Callable[[Handle], int]


class Api(ABC):
    """What driver and cudart have in common: all take a place for a number first."""

    prefix = ""
    _names: ClassVar[dict[str, str]]

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._stream = 0
        self._pool = 0

    def call(self, name: str, *arguments: Any) -> int:  # noqa: ANN401  of ctypes, or a number
        """Call a function; its code."""
        words = (ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments)
        return int(self._library[name](*words))

    def out(self, name: str, *arguments: Any) -> tuple[int, int]:  # noqa: ANN401  as for call
        """Call a function whose first argument is a place for a number; code and number."""
        value = ctypes.c_uint64()
        return self.call(name, ctypes.byref(value), *arguments), value.value

    def must(self, name: str, *arguments: Any) -> int:  # noqa: ANN401  as for call
        """As `out`; the number of a call that must succeed."""
        code, value = self.out(name, *arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")
        return value

    @abstractmethod
    def families(self) -> list[Family]:
        """All of them."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for the card, and let pools and graphs give back what they keep."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

    def crossings(self) -> list[Crossing]:
        """Pairs of a take and the free of another family."""
        return []

    # -- graphs: the same calls under other names --------------------------------------------

    def _graph_node(self, bytes_: int) -> Taken:
        graph = self.must(self._names["create"], 0)
        parameters = (ctypes.c_uint64 * 15)()
        ctypes.memmove(parameters, _POOL_PROPERTIES, ctypes.sizeof(_POOL_PROPERTIES))
        parameters[13] = bytes_
        code, _ = self.out(self._names["node"], graph, 0, 0, parameters)
        return self._launched(code, graph, parameters[14])

    def _captured(self, bytes_: int) -> Taken:
        code = self.call(self._names["begin"], self._stream, _RELAXED)
        if code == 0:
            code, address = self.out(self._names["async"], bytes_, self._stream)
            graph = ctypes.c_uint64()
            end = self.call(self._names["end"], self._stream, ctypes.byref(graph))
            if graph.value != 0:
                return self._launched(code or end, graph.value, address)
            code = code or end
        return code, None

    def _launched(self, code: int, graph: int, address: int) -> Taken:
        instance = 0
        if code == 0:
            code, instance = self.out(self._names["instantiate"], graph, 0)
        if code == 0:
            code = self.call(self._names["launch"], instance, self._stream)
        taken = _Graph(graph, instance or None, address)
        if code == 0:
            return code, taken
        self._drop(taken)
        return code, None

    def _give_graph(self, taken: _Graph) -> int:
        code = self.call(self._names["free_async"], taken.address, self._stream)
        self.call(self._names["wait"], self._stream)
        self._drop(taken)
        return code

    def _drop(self, taken: _Graph) -> None:
        if taken.instance:
            self.call(self._names["drop_instance"], taken.instance)
        self.call(self._names["drop"], taken.graph)


class Driver(Api):
    """libcuda.so.1."""

    _names: ClassVar = {
        "create": "cuGraphCreate",
        "node": "cuGraphAddMemAllocNode",
        "begin": "cuStreamBeginCapture_v2",
        "end": "cuStreamEndCapture",
        "async": "cuMemAllocAsync",
        "instantiate": "cuGraphInstantiateWithFlags",
        "launch": "cuGraphLaunch",
        "free_async": "cuMemFreeAsync",
        "wait": "cuStreamSynchronize",
        "drop_instance": "cuGraphExecDestroy",
        "drop": "cuGraphDestroy",
    }

    def __init__(self) -> None:
        super().__init__("libcuda.so.1")
        if code := self.call("cuInit", 0):
            raise RuntimeError(f"cuInit: {code}")
        self.context = self.must("cuDevicePrimaryCtxRetain", 0)
        self.enter()
        self._stream = self.must("cuStreamCreate", 1)

    def enter(self) -> None:
        """Make the context current in this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def settle(self) -> None:
        """Wait for the card, and let pools and graphs give back what they keep."""
        self.call("cuCtxSynchronize")
        self.call("cuDeviceGraphMemTrim", 0)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        total = ctypes.c_size_t()
        return self.must("cuMemGetInfo_v2", ctypes.byref(total)), total.value

    def families(self) -> list[Family]:
        """All of them."""
        default = self.must("cuDeviceGetDefaultMemPool", 0)
        self._pool = self.must("cuMemPoolCreate", _POOL_PROPERTIES)
        most_1d = MOST_1D_PIXELS * FLOAT4_BYTES
        return [
            Family("cuMemAlloc", self.plain, self.free),
            Family("cuMemAllocPitch", self.pitch, self.free),
            Family("cuMemAllocManaged", self._managed, self.free, seen_by_nvml=False),
            Family("cuMemAllocAsync", self.in_stream, self.free_in_stream),
            Family(
                "cuMemAllocFromPoolAsync, default pool",
                lambda size: self.out("cuMemAllocFromPoolAsync", size, default, 0),
                self.free_in_stream,
            ),
            Family("cuMemAllocFromPoolAsync, own pool", self._own_pool, self.free_in_stream),
            Family("cuMemCreate + cuMemMap", self.mapped, self.unmap),
            Family("cuArrayCreate, 1D", self._array_1d, self._free_array, most_1d, most_1d),
            Family("cuArrayCreate, 2D", self.array, self._free_array),
            Family("cuArray3DCreate", self._array_3d, self._free_array),
            Family("cuMipmappedArrayCreate", self._mipmapped, self._free_mipmapped),
            Family("graph memory node", self._graph_node, self._give_graph),
            Family("captured cuMemAllocAsync", self._captured, self._give_graph),
        ]

    def crossings(self) -> list[Crossing]:
        """Pairs of a take and the free of another family."""
        asynchronous = self.free_in_stream
        return [
            Crossing("cuMemAlloc, cuMemFreeAsync", self.plain, asynchronous, self.free),
            Crossing("cuMemAllocPitch, cuMemFreeAsync", self.pitch, asynchronous, self.free),
            Crossing("cuMemAllocManaged, cuMemFreeAsync", self._managed, asynchronous, self.free),
            Crossing("cuMemAllocAsync, cuMemFree", self.in_stream, self.free, asynchronous),
            Crossing("own pool, cuMemFree", self._own_pool, self.free, asynchronous),
        ]

    def plain(self, bytes_: int) -> Taken:
        """Call cuMemAlloc."""
        return self.out("cuMemAlloc_v2", bytes_)

    def pitch(self, bytes_: int) -> Taken:
        """Call cuMemAllocPitch for rows of 1 MiB."""
        pitch = ctypes.c_size_t()
        width = min(bytes_, MIB)
        return self.out("cuMemAllocPitch_v2", ctypes.byref(pitch), width, bytes_ // width, 4)

    def in_stream(self, bytes_: int) -> Taken:
        """Call cuMemAllocAsync."""
        return self.out("cuMemAllocAsync", bytes_, 0)

    def mapped(self, bytes_: int) -> Taken:
        """Call cuMemCreate and map; the handle is released early, as PyTorch does."""
        size = -(-bytes_ // (2 * MIB)) * 2 * MIB
        properties = (ctypes.c_int * 8)(1, 0, 1, 0)
        code, handle = self.out("cuMemCreate", size, properties, 0)
        if code != 0:
            return code, None
        address = self.must("cuMemAddressReserve", size, 0, 0, 0)
        access = (ctypes.c_int * 3)(1, 0, 3)
        code = (
            self.call("cuMemMap", address, size, 0, handle, 0)
            or self.call("cuMemRelease", handle)
            or self.call("cuMemSetAccess", address, size, access, 1)
        )
        return code, (address, size)

    def unmap(self, handle: tuple[int, int]) -> int:
        """Call cuMemUnmap."""
        return self.call("cuMemUnmap", *handle) or self.call("cuMemAddressFree", *handle)

    def array(self, bytes_: int) -> Taken:
        """Call cuArrayCreate for two dimensions."""
        width = min(ROW_PIXELS, bytes_ // FLOAT4_BYTES)
        return self._array(width, bytes_ // FLOAT4_BYTES // width)

    def free(self, address: int) -> int:
        """Call cuMemFree."""
        return self.call("cuMemFree_v2", address)

    def free_in_stream(self, address: int) -> int:
        """Call cuMemFreeAsync."""
        return self.call("cuMemFreeAsync", address, 0)

    def free_array(self, array: int) -> int:
        """Call cuArrayDestroy."""
        return self.call("cuArrayDestroy", array)

    _free_array = free_array

    def _free_mipmapped(self, array: int) -> int:
        return self.call("cuMipmappedArrayDestroy", array)

    def _managed(self, bytes_: int) -> Taken:
        return self.out("cuMemAllocManaged", bytes_, 1)

    def _own_pool(self, bytes_: int) -> Taken:
        return self.out("cuMemAllocFromPoolAsync", bytes_, self._pool, 0)

    def _array(self, width: int, height: int) -> Taken:
        descriptor = (ctypes.c_uint64 * 3)(width, height, 0x20 | 4 << 32)
        return self.out("cuArrayCreate_v2", descriptor)

    def _array_1d(self, bytes_: int) -> Taken:
        return self._array(bytes_ // FLOAT4_BYTES, 0)

    def _array_3d(self, bytes_: int) -> Taken:
        depth = bytes_ // (1024 * 1024 * FLOAT4_BYTES)
        return self.out(
            "cuArray3DCreate_v2", (ctypes.c_uint64 * 5)(1024, 1024, depth, 0x20 | 4 << 32, 0)
        )

    def _mipmapped(self, bytes_: int) -> Taken:
        height = bytes_ // (ROW_PIXELS * FLOAT4_BYTES)
        descriptor = (ctypes.c_uint64 * 5)(ROW_PIXELS, height, 0, 0x20 | 4 << 32, 0)
        return self.out("cuMipmappedArrayCreate", descriptor, 2)


class Runtime(Api):
    """A libcudart."""

    _names: ClassVar = {
        "create": "cudaGraphCreate",
        "node": "cudaGraphAddMemAllocNode",
        "begin": "cudaStreamBeginCapture",
        "end": "cudaStreamEndCapture",
        "async": "cudaMallocAsync",
        "instantiate": "cudaGraphInstantiateWithFlags",
        "launch": "cudaGraphLaunch",
        "free_async": "cudaFreeAsync",
        "wait": "cudaStreamSynchronize",
        "drop_instance": "cudaGraphExecDestroy",
        "drop": "cudaGraphDestroy",
    }

    def __init__(self, library: str) -> None:
        super().__init__(library)
        if code := self.call("cudaFree", 0):
            raise RuntimeError(f"cudaFree(0): {code}")
        self._channel = _Channel(32, 32, 32, 32, 2)
        self._stream = self.must("cudaStreamCreateWithFlags", 1)

    @property
    def version(self) -> int:
        """As cudaRuntimeGetVersion."""
        return self.must("cudaRuntimeGetVersion")

    def settle(self) -> None:
        """Wait for the card, and let pools and graphs give back what they keep."""
        self.call("cudaDeviceSynchronize")
        self.call("cudaDeviceGraphMemTrim", 0)
        self.call("cudaGetLastError")

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        total = ctypes.c_size_t()
        return self.must("cudaMemGetInfo", ctypes.byref(total)), total.value

    def families(self) -> list[Family]:
        """All of them; cudart has no calls for mapped memory."""
        default = self.must("cudaDeviceGetDefaultMemPool", 0)
        self._pool = self.must("cudaMemPoolCreate", _POOL_PROPERTIES)
        most_1d = MOST_1D_PIXELS * FLOAT4_BYTES
        return [
            Family("cudaMalloc", self._plain, self._free),
            Family("cudaMallocPitch", self._pitch, self._free),
            Family("cudaMallocManaged", self._managed, self._free, seen_by_nvml=False),
            Family("cudaMallocAsync", self._in_stream, self._free_in_stream),
            Family(
                "cudaMallocFromPoolAsync, default pool",
                lambda size: self.out("cudaMallocFromPoolAsync", size, default, 0),
                self._free_in_stream,
            ),
            Family("cudaMallocFromPoolAsync, own pool", self._own_pool, self._free_in_stream),
            Family("cudaMallocArray, 1D", self._array_1d, self._free_array, most_1d, most_1d),
            Family("cudaMallocArray, 2D", self._array_2d, self._free_array),
            Family("cudaMalloc3DArray", self._array_3d, self._free_array),
            Family("cudaMallocMipmappedArray", self._mipmapped, self._free_mipmapped),
            Family("graph memory node", self._graph_node, self._give_graph),
            Family("captured cudaMallocAsync", self._captured, self._give_graph),
        ]

    def crossings(self) -> list[Crossing]:
        """Pairs of a take and the free of another family."""
        asynchronous = self._free_in_stream
        return [
            Crossing("cudaMalloc, cudaFreeAsync", self._plain, asynchronous, self._free),
            Crossing("cudaMallocAsync, cudaFree", self._in_stream, self._free, asynchronous),
            Crossing("own pool, cudaFree", self._own_pool, self._free, asynchronous),
        ]

    def _plain(self, bytes_: int) -> Taken:
        return self.out("cudaMalloc", bytes_)

    def _pitch(self, bytes_: int) -> Taken:
        pitch = ctypes.c_size_t()
        width = min(bytes_, MIB)
        return self.out("cudaMallocPitch", ctypes.byref(pitch), width, bytes_ // width)

    def _managed(self, bytes_: int) -> Taken:
        return self.out("cudaMallocManaged", bytes_, 1)

    def _in_stream(self, bytes_: int) -> Taken:
        return self.out("cudaMallocAsync", bytes_, 0)

    def _own_pool(self, bytes_: int) -> Taken:
        return self.out("cudaMallocFromPoolAsync", bytes_, self._pool, 0)

    def _array(self, width: int, height: int) -> Taken:
        return self.out("cudaMallocArray", ctypes.byref(self._channel), width, height, 0)

    def _array_1d(self, bytes_: int) -> Taken:
        return self._array(bytes_ // FLOAT4_BYTES, 0)

    def _array_2d(self, bytes_: int) -> Taken:
        return self._array(ROW_PIXELS, bytes_ // (ROW_PIXELS * FLOAT4_BYTES))

    def _array_3d(self, bytes_: int) -> Taken:
        extent = _Extent(1024, 1024, bytes_ // (1024 * 1024 * FLOAT4_BYTES))
        return self.out("cudaMalloc3DArray", ctypes.byref(self._channel), extent, 0)

    def _mipmapped(self, bytes_: int) -> Taken:
        extent = _Extent(ROW_PIXELS, bytes_ // (ROW_PIXELS * FLOAT4_BYTES), 0)
        return self.out("cudaMallocMipmappedArray", ctypes.byref(self._channel), extent, 2, 0)

    def _free(self, address: int) -> int:
        return self.call("cudaFree", address)

    def _free_in_stream(self, address: int) -> int:
        return self.call("cudaFreeAsync", address, 0)

    def _free_array(self, array: int) -> int:
        return self.call("cudaFreeArray", array)

    def _free_mipmapped(self, array: int) -> int:
        return self.call("cudaFreeMipmappedArray", array)
