# SPDX-License-Identifier: Apache-2.0
"""A process that uses the simulated GPU through libvgpu, driven from a test.

As tests.fakes.gpu.tenant, with the calls that only these tests make.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.gpu.tenant import Driver, Tenant

if TYPE_CHECKING:
    from tests.fakes.gpu.simulated_gpu import SimulatedGpu

ROOT = Path(__file__).parents[2]


class Program(Driver):
    """The calls, made in the process."""

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

    def set_pool(self, pool: int, attribute: int, number: int) -> int:
        """Call cuMemPoolSetAttribute with a number of 64 bits."""
        value = ctypes.c_uint64(number)
        return int(
            self._cuda.cuMemPoolSetAttribute(ctypes.c_void_p(pool), attribute, ctypes.byref(value))
        )

    def graph_alloc(self, graph: int, size: int) -> int:
        """Call cuGraphAddMemAllocNode for device 0."""
        node = ctypes.c_void_p()
        parameters = (ctypes.c_uint64 * 15)()
        parameters[0], parameters[1], parameters[13] = 1, 1, size
        return int(
            self._cuda.cuGraphAddMemAllocNode(
                ctypes.byref(node), ctypes.c_void_p(graph), None, ctypes.c_size_t(0), parameters
            )
        )

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
