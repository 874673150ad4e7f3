# SPDX-License-Identifier: Apache-2.0
"""The CUDA runtimes of 11, 12 and 13, the real ones: what they find of the driver is hooks.

A runtime finds all of the driver that it will ever call when it starts, hundreds of functions, and
keeps the addresses. Further it does not come on a simulated driver: docs/decisions.md says why.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from hook_c import gen
from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.container import LIBRARY, Container

CUDARTS = LIBRARY.parent / "cudart"

# Starts a runtime, and prints the symbols of the driver and of libvgpu whose addresses it keeps.
PROGRAM = textwrap.dedent(
    """
    import bisect, ctypes, json, os, sys
    from tests.hook_c.program import symbol_of

    runtime = ctypes.CDLL(sys.argv[1])
    runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))
    maps = [line.split() for line in open("/proc/self/maps")]
    spans = [(*(int(end, 16) for end in line[0].split("-")), line[1], line[5:6]) for line in maps]
    code = {"libcuda.so.1": [], "libvgpu.so": []}
    kept, is_own = [], False
    for start, end, rights, path in spans:
        name = os.path.basename(path[0]) if path else ""
        if "x" in rights and name in code:
            code[name].append((start, end))
        is_own = name == os.path.basename(sys.argv[1]) or (is_own and not path)  # its .bss
        if is_own and "w" in rights:
            kept.append((start, end))
    found = {name: set() for name in code}
    for start, end in kept:
        for word in (ctypes.c_uint64 * ((end - start) // 8)).from_address(start):
            for name, places in code.items():
                if any(low <= word < high for low, high in places):
                    found[name].add(symbol_of(word))
    print(json.dumps({name: sorted(symbols) for name, symbols in found.items()}), flush=True)
    os._exit(0)
    """
)
ALLOCATING = {
    "cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync", "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate",
    "cuGraphAddMemAllocNode", "cuGraphLaunch", "cuMemPoolCreate", "cuMemFree_v2", "cuMemFreeAsync",
    "cuMemGetInfo_v2", "cuLaunchKernel",
}  # fmt: skip


@pytest.mark.parametrize("name", ["libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13"])
def test_a_runtime_keeps_no_address_of_the_driver_where_there_is_a_hook(
    gpu: SimulatedGpu, container: Container, name: str
) -> None:
    done = subprocess.run(
        [*container.wrapper, sys.executable, "-c", PROGRAM, str(CUDARTS / name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **gpu.environment(), "PYTHONPATH": str(LIBRARY.parents[1])},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    api, symbols = gen.read_api(), gen.read_prototypes()
    hooked = {each for each, symbol in symbols.items() if gen.is_hooked(symbol, api)}
    assert len(found["libcuda.so.1"]) > 100
    assert not hooked & set(found["libcuda.so.1"])
    assert set(found["libvgpu.so"]) <= hooked | {"dlclose", "dlsym", "dlvsym"}
    assert set(found["libvgpu.so"]) >= ALLOCATING
