"""A process that uses the simulated GPU, driven from a test.

Run as a program it reads one JSON list a line, `[method, argument, …]`, calls that method of
`Driver`, and answers with one line of JSON. `Tenant` is the other end.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tests.fakes.gpu.simulated_gpu import SimulatedGpu

Json: TypeAlias = Any
"""Whatever JSON can carry."""


class Driver:
    """Calls of libcuda.so.1 and NVML with values that JSON can carry.

    A method returns the call's result code, or the code and what the call gave.
    """

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: int) -> int:
        """Call any function whose arguments are numbers of 64 bits or fewer."""
        return int(self._cuda[name](*(ctypes.c_uint64(a) for a in arguments)))

    def start(self, device: int = 0) -> int:
        """Initialise, and make the device's primary context current."""
        context = ctypes.c_void_p()
        return int(
            self._cuda.cuInit(0)
            or self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or self._cuda.cuCtxSetCurrent(context)
        )

    def out(self, name: str, *arguments: int) -> tuple[int, int]:
        """Call a function whose first argument is a place for a number of up to 64 bits."""
        value = ctypes.c_uint64()
        code = self._cuda[name](ctypes.byref(value), *(ctypes.c_uint64(a) for a in arguments))
        return int(code), value.value

    def allocate(self, size: int) -> tuple[int, int]:
        """Call cuMemAlloc."""
        return self.out("cuMemAlloc_v2", size)

    def free(self, address: int) -> int:
        """Call cuMemFree."""
        return self.call("cuMemFree_v2", address)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes by cuMemGetInfo, which must succeed."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self._cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        if code != 0:
            raise RuntimeError(f"cuMemGetInfo: {code}")
        return free.value, total.value

    def churn(self, threads: int, rounds: int) -> list[int]:
        """Allocate and free in several threads at once; the kinds of result codes seen."""
        seen: set[int] = set()

        def run(seed: int) -> None:
            dice = random.Random(seed)
            self._cuda.cuCtxSetCurrent(context)
            held: list[int] = []
            for _ in range(rounds):
                size = dice.choice([1000, 1 << 20, 5 << 20, 300 << 20])
                name = dice.choice(["cuMemAlloc_v2", "cuMemAllocAsync"])
                code, address = self.out(name, size, 0)
                seen.add(code)
                if code == 0:
                    held.append(address)
                if len(held) > dice.randrange(8):
                    seen.add(self.free(held.pop(dice.randrange(len(held)))))
            for address in held:
                seen.add(self.free(address))

        context = ctypes.c_void_p()
        self._cuda.cuCtxGetCurrent(ctypes.byref(context))
        runners = [threading.Thread(target=run, args=(seed,)) for seed in range(threads)]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()
        self._cuda.cuCtxSynchronize()
        return sorted(seen)

    def taken(self, name: str, *arguments: int) -> tuple[int, int]:
        """As `out`, but return the bytes that the card has less since."""
        before = self.memory()[0]
        code, _ = self.out(name, *arguments)
        return code, before - self.memory()[0]

    def uuid(self, device: int = 0, name: str = "cuDeviceGetUuid_v2") -> str:
        """The device's UUID in hexadecimal."""
        value = (ctypes.c_ubyte * 16)()
        self._cuda[name](value, device)
        return bytes(value).hex()

    def proc_address(self, name: str, version: int, flags: int) -> tuple[int, int, str]:
        """Call cuGetProcAddress_v2; code, symbol status, and the exported name that it gave."""
        address, status = ctypes.c_void_p(), ctypes.c_int(-1)
        code = self._cuda.cuGetProcAddress_v2(
            name.encode(),
            ctypes.byref(address),
            version,
            ctypes.c_uint64(flags),
            ctypes.byref(status),
        )
        return int(code), status.value, self._symbol(name, address.value)

    def proc_address_v1(self, name: str, version: int, flags: int) -> tuple[int, str]:
        """Call cuGetProcAddress of CUDA 11; code, and the exported name that it gave."""
        address = ctypes.c_void_p()
        code = self._cuda.cuGetProcAddress(
            name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags)
        )
        return int(code), self._symbol(name, address.value)

    def _symbol(self, base: str, address: int | None) -> str:
        versions = ["", "_v2", "_v3", "_v4"]
        for suffix in [v + s for v in versions for s in ("", "_ptsz", "_ptds")]:
            try:
                exported = ctypes.cast(self._cuda[base + suffix], ctypes.c_void_p).value
            except AttributeError:
                continue
            if exported == address:
                return base + suffix
        return "" if address is None else hex(address)

    def exports(self, library: str, names: list[str]) -> list[str]:
        """Those names that a library does not export."""
        handle = ctypes.CDLL(library)
        return [name for name in names if not hasattr(handle, name)]

    def kernel(self, name: str) -> int:
        """Load a kernel; its handle."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = self._cuda.cuModuleLoadData(
            ctypes.byref(module), b"kernels"
        ) or self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        if code != 0:
            raise RuntimeError(f"kernel {name}: {code}")
        return int(function.value or 0)

    def launch(self, kernel: int, stream: int = 0, suffix: str = "") -> int:
        """Launch one block of one thread."""
        return int(
            self._cuda["cuLaunchKernel" + suffix](
                ctypes.c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream), None, None
            )
        )

    def stream_id(self, stream: int, suffix: str = "") -> int:
        """Call cuStreamGetId; the stream's number."""
        value = ctypes.c_uint64()
        self._cuda["cuStreamGetId" + suffix](ctypes.c_void_p(stream), ctypes.byref(value))
        return value.value

    def elapsed_ms(self, start: int, end: int) -> tuple[int, float]:
        """Call cuEventElapsedTime; code and milliseconds."""
        value = ctypes.c_float()
        code = self._cuda.cuEventElapsedTime(
            ctypes.byref(value), ctypes.c_void_p(start), ctypes.c_void_p(end)
        )
        return int(code), value.value

    def round_trip(self, address: int, text: str) -> str:
        """Copy a text to the card and back."""
        data = text.encode()
        back = ctypes.create_string_buffer(len(data))
        code = self._cuda.cuMemcpyHtoD_v2(
            ctypes.c_uint64(address), data, ctypes.c_size_t(len(data))
        ) or self._cuda.cuMemcpyDtoH_v2(back, ctypes.c_uint64(address), ctypes.c_size_t(len(data)))
        return back.raw.decode() if code == 0 else f"error {code}"

    def with_struct(self, name: str, words: list[int], *arguments: int) -> tuple[int, int]:
        """As `out`, with a structure of 64-bit words as the second argument."""
        value = ctypes.c_uint64()
        structure = (ctypes.c_uint64 * len(words))(*words)
        code = self._cuda[name](
            ctypes.byref(value), structure, *(ctypes.c_uint64(a) for a in arguments)
        )
        return int(code), value.value

    def list_call(self, name: str, words: list[int], *arguments: int) -> tuple[int, int]:
        """Call a function whose first argument is a list of structures; code, and 0."""
        structures = (ctypes.c_uint64 * len(words))(*words)
        code = self._cuda[name](structures, *(ctypes.c_uint64(a) for a in arguments))
        return int(code), 0

    def create_memory(self, size: int, device: int = 0) -> tuple[int, int]:
        """Call cuMemCreate on a device; code and handle."""
        handle = ctypes.c_uint64()
        properties = (ctypes.c_int * 8)(1, 1, 1, device, 0, 0, 0, 0)
        code = self._cuda.cuMemCreate(
            ctypes.byref(handle), ctypes.c_size_t(size), properties, ctypes.c_uint64(0)
        )
        return int(code), handle.value

    def load_module(self, path: str) -> tuple[int, int]:
        """Call cuModuleLoad; code and handle."""
        module = ctypes.c_void_p()
        code = self._cuda.cuModuleLoad(ctypes.byref(module), path.encode())
        return int(code), int(module.value or 0)

    def capture_end(self, stream: int) -> tuple[int, int]:
        """Call cuStreamEndCapture; code and graph."""
        graph = ctypes.c_void_p()
        code = self._cuda.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        return int(code), int(graph.value or 0)

    def exchange_capture_mode(self, mode: int) -> int:
        """Call cuThreadExchangeStreamCaptureMode; the mode before."""
        value = ctypes.c_int(mode)
        self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(value))
        return value.value

    def forked(self, *steps: list[Any]) -> list[Any]:
        """Do something in a child of a fork; what each step gave."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            answers = [getattr(self, name)(*arguments) for name, *arguments in steps]
            os.write(write, json.dumps(answers).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answer: list[Any] = json.load(pipe)
        os.waitpid(child, 0)
        return answer

    def close_all_files(self) -> None:
        """What a program that daemonises does to every descriptor it does not know."""
        os.closerange(3, 4096)

    def nvml(self, name: str, *arguments: Json) -> Json:
        """Call a function of pynvml on device 0, unless the name says System."""
        import pynvml

        try:
            pynvml.nvmlInit()
            if "System" not in name and "Count" not in name and "HandleBy" not in name:
                arguments = (pynvml.nvmlDeviceGetHandleByIndex(0), *arguments)
            return _plain(getattr(pynvml, name)(*arguments))
        except pynvml.NVMLError as error:
            return {"error": error.value}

    def nvml_of(self, uuid: str, name: str, *arguments: Json) -> Json:
        """Call a function of pynvml on the device of a UUID; a handle is told as its UUID."""
        import pynvml

        try:
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            found = getattr(pynvml, name)(device, *arguments)
            if isinstance(found, pynvml.c_nvmlDevice_t):
                found = pynvml.nvmlDeviceGetUUID(found)
            return _plain(found)
        except pynvml.NVMLError as error:
            return {"error": error.value}

    def process_list(self, name: str, entry_bytes: int) -> dict[str, Any]:
        """Ask for one process, and whether anything was written behind its entry."""
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        buffer = (ctypes.c_uint64 * 4)(*[0x5A5A5A5A5A5A5A5A] * 4)
        count = ctypes.c_uint(1)
        ctypes.CDLL("libnvidia-ml.so.1")[name](handle, ctypes.byref(count), buffer)
        rest = buffer[entry_bytes // 8 :]
        return {
            "pid": buffer[0] & 0xFFFFFFFF,
            "bytes": buffer[1],
            "untouched": all(word == 0x5A5A5A5A5A5A5A5A for word in rest),
        }

    def wait_for_xid(self, timeout_ms: int) -> int:
        """Wait for a critical error of device 0; its code."""
        import pynvml

        pynvml.nvmlInit()
        events = pynvml.nvmlEventSetCreate()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        return int(pynvml.nvmlEventSetWait_v2(events, timeout_ms).eventData)

    def pid(self) -> int:
        """The process's PID in its own namespace."""
        return os.getpid()


def _plain(value: Json) -> Json:
    """Make a value of pynvml fit for JSON."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, ctypes.c_uint):
        return value.value
    fields = getattr(value, "_fields_", None)
    if fields is None:
        return vars(value) if hasattr(value, "__dict__") else value
    return {name: _plain(getattr(value, name)) for name, *_ in fields}


def _serve() -> None:
    driver = Driver()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = getattr(driver, name)(*arguments)
        print(json.dumps(answer, default=str), flush=True)


class Tenant:
    """A process of its own that does what the test says.

        with Tenant(gpu) as tenant:
            tenant.do("start")
            code, address = tenant.do("allocate", 1 << 30)

    `wrapper` is put before the command, to put the process into namespaces, say.
    """

    def __init__(
        self,
        gpu: "SimulatedGpu",
        *,
        wrapper: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **gpu.environment(), **(environment or {})},
        )

    def send(self, method: str, *arguments: Json) -> None:
        """Have a method of `Driver` called, without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Json:
        """The answer to the oldest call that has not been answered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        return json.loads(line)

    def do(self, method: str, *arguments: Json) -> Json:
        """Call a method of `Driver` in the process."""
        self.send(method, *arguments)
        return self.answer()

    def kill(self) -> None:
        """End the process the hard way, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Let the process end, and wait until it is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> "Tenant":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


if __name__ == "__main__":
    _serve()
