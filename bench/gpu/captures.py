# SPDX-License-Identifier: Apache-2.0
"""captures.py: which calls of the driver end a capture of another stream?

    python3 -m bench.gpu.captures        a line for each call: its code, and the code of the end

One stream captures in the global mode while the call is made, on what was made before. The codes
of a card are kept with the tests of the simulated driver, which has to give the same.
"""

import ctypes
import json
import struct
from collections.abc import Callable

from bench.gpu.families import MIB, Driver

GLOBAL_CAPTURE, NON_BLOCKING = 0, 1
RELEASE_THRESHOLD = 4
USED_OF_GRAPHS = 0
POOL_PROPERTIES = struct.pack("iiii72x", 1, 0, 1, 0)  # pinned, not shared, on device 0
OBJECT_PROPERTIES = struct.pack("iiii16x", 1, 0, 1, 0)
ARRAY = struct.pack("QQiI", 64, 64, 0x20, 1)  # 64 x 64 floats
ARRAY_3D = struct.pack("QQQiII4x", 64, 64, 8, 0x20, 1, 0)
PAGE_BYTES = 4096

Call = Callable[[], int]
_KEPT: list[object] = []


def calls(driver: Driver) -> dict[str, Call]:
    """Return the calls, each on things of its own, which are made here."""
    stream = driver.must("cuStreamCreate", NON_BLOCKING)
    event, begun = driver.must("cuEventCreate", 0), driver.must("cuEventCreate", 0)
    for each in (begun, event):
        driver.call("cuEventRecord", each, stream)
    driver.call("cuStreamSynchronize", stream)
    pool = driver.must("cuDeviceGetDefaultMemPool", 0)
    in_use = driver.must("cuMemAllocAsync", MIB, stream)  # of a pool that has been used
    driver.call("cuMemFreeAsync", driver.must("cuMemAllocAsync", MIB, stream), stream)
    driver.call("cuStreamSynchronize", stream)
    own_pool = driver.must("cuMemPoolCreate", POOL_PROPERTIES)
    plain = driver.must("cuMemAlloc_v2", MIB)
    freed = [driver.must("cuMemAlloc_v2", MIB) for _ in range(2)]
    array = driver.must("cuArrayCreate_v2", ARRAY)
    graph = driver.must("cuGraphCreate", 0)
    instance = driver.must("cuGraphInstantiateWithFlags", graph, 0)
    spare_graph = driver.must("cuGraphCreate", 0)
    host = driver.must("cuMemHostAlloc", PAGE_BYTES, 0)
    created = driver.must("cuMemCreate", 2 * MIB, OBJECT_PROPERTIES, 0)
    pages = ctypes.create_string_buffer(3 * PAGE_BYTES)
    page = -(-ctypes.addressof(pages) // PAGE_BYTES) * PAGE_BYTES
    registered = page + PAGE_BYTES
    driver.call("cuMemHostRegister_v2", registered, PAGE_BYTES, 0)
    _KEPT.append(pages)
    word = ctypes.c_uint64()
    out = ctypes.byref(word)
    other = ctypes.c_uint64()
    text = ctypes.create_string_buffer(64)
    spare_stream = driver.must("cuStreamCreate", NON_BLOCKING)
    spare_event = driver.must("cuEventCreate", 0)

    def of(name: str, *arguments: object) -> tuple[str, Call]:
        return name, lambda: driver.call(name, *arguments)

    return dict(
        (
            of("cuCtxGetCurrent", out),
            of("cuCtxGetDevice", out),
            of("cuCtxPushCurrent_v2", driver.context),
            of("cuCtxPopCurrent_v2", out),
            of("cuCtxSynchronize"),
            of("cuDeviceGetCount", out),
            of("cuDeviceGetUuid_v2", text, 0),
            of("cuDeviceGetAttribute", out, 16, 0),
            of("cuDeviceTotalMem_v2", out, 0),
            of("cuDevicePrimaryCtxGetState", 0, out, ctypes.byref(other)),
            of("cuStreamIsCapturing", stream, out),
            of("cuStreamGetCtx", stream, out),
            of("cuStreamGetId", stream, out),
            of("cuStreamQuery", stream),
            of("cuStreamSynchronize", stream),
            of("cuStreamCreate", out, NON_BLOCKING),
            of("cuStreamDestroy_v2", spare_stream),
            of("cuEventCreate", out, 0),
            of("cuEventRecord", begun, stream),
            of("cuEventQuery", event),
            of("cuEventSynchronize", event),
            of("cuEventElapsedTime", out, event, event),
            of("cuEventDestroy_v2", spare_event),
            of("cuMemGetInfo_v2", out, ctypes.byref(other)),
            of("cuMemGetAllocationGranularity", out, OBJECT_PROPERTIES, 0),
            of("cuPointerGetAttribute", out, 2, plain),
            of("cuMemGetAddressRange_v2", out, ctypes.byref(other), plain),
            of("cuMemAlloc_v2", out, MIB),
            of("cuMemFree_v2", freed[0]),
            of("cuMemAllocManaged", out, MIB, 1),
            of("cuMemAllocPitch_v2", out, ctypes.byref(other), 1000, 16, 4),
            of("cuMemHostAlloc", out, PAGE_BYTES, 0),
            of("cuMemCreate", out, 2 * MIB, OBJECT_PROPERTIES, 0),
            of("cuMemcpyDtoH_v2", text, plain, 8),
            of("cuMemAllocAsync", out, MIB, stream),
            of("cuMemFreeAsync", freed[1], stream),
            ("cuMemFreeAsync, of a pool", of("cuMemFreeAsync", in_use, stream)[1]),
            of("cuArrayGetMemoryRequirements", text, array, 0),
            of("cuArrayCreate_v2", out, ARRAY),
            of("cuArrayDestroy", array),
            of("cuArray3DCreate_v2", out, ARRAY_3D),
            of("cuMipmappedArrayCreate", out, ARRAY_3D, 2),
            of("cuMemAllocFromPoolAsync", out, MIB, own_pool, stream),
            of("cuMemHostRegister_v2", page, PAGE_BYTES, 0),
            of("cuMemHostUnregister", registered),
            of("cuMemFreeHost", host),
            of("cuMemAddressReserve", out, 2 * MIB, 0, 0, 0),
            of("cuMemRelease", created),
            of("cuStreamWaitEvent", stream, event, 0),
            of("cuCtxSetLimit", 2, 1 * MIB),
            of("cuDeviceGetDefaultMemPool", out, 0),
            of("cuDeviceGetMemPool", out, 0),
            of("cuDeviceSetMemPool", 0, pool),
            of("cuMemPoolGetAttribute", pool, RELEASE_THRESHOLD, out),
            of("cuMemPoolSetAttribute", own_pool, RELEASE_THRESHOLD, out),
            of("cuMemPoolTrimTo", pool, 0),
            of("cuMemPoolCreate", out, POOL_PROPERTIES),
            of("cuMemPoolDestroy", own_pool),
            of("cuDeviceGetGraphMemAttribute", 0, USED_OF_GRAPHS, out),
            of("cuDeviceGraphMemTrim", 0),
            of("cuGraphCreate", out, 0),
            of("cuGraphGetNodes", graph, 0, out),
            of("cuGraphInstantiateWithFlags", out, graph, 0),
            of("cuGraphUpload", instance, stream),
            of("cuGraphLaunch", instance, stream),
            of("cuGraphExecUpdate_v2", instance, graph, text),
            of("cuGraphExecDestroy", instance),
            of("cuGraphDestroy", spare_graph),
        )
    )


def during_capture(driver: Driver, call: Call) -> tuple[int, int]:
    """Return the code of the call, and of the end of the capture around it."""
    stream = driver.must("cuStreamCreate", NON_BLOCKING)
    graph = ctypes.c_uint64()
    driver.call("cuStreamBeginCapture_v2", stream, GLOBAL_CAPTURE)
    code = call()
    end = driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    if graph.value:
        driver.call("cuGraphDestroy", graph.value)
    driver.call("cuStreamDestroy_v2", stream)
    return code, end


def answers(driver: Driver) -> dict[str, tuple[int, int]]:
    """Return both codes of each call."""
    return {name: during_capture(driver, call) for name, call in calls(driver).items()}


def main() -> None:
    """Print what each gave."""
    for name, codes in answers(Driver()).items():
        print(json.dumps([name, *codes]))


if __name__ == "__main__":
    main()
