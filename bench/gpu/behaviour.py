# SPDX-License-Identifier: Apache-2.0
"""What must be as it is without the library: signals, streams, pointers, captures.

behaviour.py prints what a program sees of them, as JSON; the table compares two such answers.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench.gpu.captures import answers
from bench.gpu.families import MIB, Driver
from bench.gpu.places import Place
from bench.gpu.table import Table

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
SENT = 50
LEGACY, PER_THREAD = 1, 2
GLOBAL_CAPTURE, RELAXED_CAPTURE = 0, 2
# CUpointer_attribute; of those whose values are addresses or numbers of the driver, what they say.
CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, BUFFER_ID, IS_MANAGED = 1, 2, 3, 4, 7, 8
ORDINAL, IPC_CAPABLE, RANGE_START, RANGE_SIZE, MAPPED, POOL = 9, 10, 11, 12, 13, 17

Facts = dict[str, Any]


def _masks() -> dict[str, str]:
    """Return which signals are blocked, ignored and caught by the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split() for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt")))


def signals(work: Callable[[], None]) -> Facts:
    """Catch both signals while the driver is at work."""
    caught: Counter[int] = Counter()

    def catch(number: int, _: FrameType | None) -> None:
        caught[number] += 1

    for number in SIGNALS:
        signal.signal(number, catch)
    for turn in range(SENT):
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        if turn % 10 == 0:
            work()
    return {
        "signals, caught": [caught[number] for number in SIGNALS],
        "signals, whose handlers": [signal.getsignal(number) is catch for number in SIGNALS],
        "signals, masks": _masks(),
    }


def _attribute(driver: Driver, attribute: int, address: int) -> tuple[int, int]:
    return driver.out("cuPointerGetAttribute", attribute, address)


def _of_pointer(driver: Driver, address: int) -> Facts:
    """Ask everything about a pointer; numbers that differ from run to run are compared first."""
    seen = {
        number: _attribute(driver, number, address)
        for number in (CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, BUFFER_ID, IS_MANAGED,
                       ORDINAL, IPC_CAPABLE, RANGE_START, RANGE_SIZE, MAPPED, POOL)
    }  # fmt: skip
    own: dict[int, Callable[[int], Any]] = {
        CONTEXT: lambda value: value == driver.context,
        DEVICE_POINTER: lambda value: value == address,
        HOST_POINTER: lambda value: value == address,
        RANGE_START: lambda value: address - value,
        BUFFER_ID: lambda value: value != 0,
        POOL: lambda value: value != 0,
    }
    return {
        str(number): (code, own.get(number, int)(value) if code == 0 else None)
        for number, (code, value) in seen.items()
    }


def pointers(driver: Driver) -> Facts:
    """Ask about a pointer of each family that has one, while it lives and after its free."""
    facts: Facts = {}
    for family in driver.families():
        if family.give not in (driver.free, driver.free_in_stream, driver.unmap):
            continue
        code, handle = family.take(5 * MIB)
        address = handle[0] if isinstance(handle, tuple) else handle
        driver.call("cuCtxSynchronize")
        facts[f"pointer of {family.name}"] = code, _of_pointer(driver, address)
        family.give(handle)
        driver.settle()
        facts[f"pointer of {family.name}, freed"] = _attribute(driver, MEMORY_TYPE, address)[0]
    return facts


def _stream_id(driver: Driver, name: str, stream: int) -> tuple[int, int]:
    value = ctypes.c_uint64()
    return driver.call(name, stream, ctypes.byref(value)), value.value


def streams(driver: Driver) -> Facts:
    """Look which stream the default one of each thread is, by either variant of the calls."""
    seen: dict[str, list[tuple[int, int]]] = {}

    def look(thread: str) -> None:
        driver.enter()
        seen[thread] = [
            _stream_id(driver, name, stream)
            for name in ("cuStreamGetId", "cuStreamGetId_ptsz")
            for stream in (0, LEGACY, PER_THREAD)
        ]
        for name, free in (
            ("cuMemAllocAsync", "cuMemFreeAsync"),
            ("cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz"),
        ):
            code, address = driver.out(name, MIB, 0)
            seen[thread].append((code, driver.call(free, address, 0)))

    for thread in ("one", "other"):
        runner = threading.Thread(target=look, args=(thread,))
        runner.start()
        runner.join()
    numbers = [number for ids in seen.values() for _, number in ids[:6]]
    return {
        "streams, codes": {thread: [code for code, _ in ids] for thread, ids in seen.items()},
        # Which of them are one: by the place where each number was first seen.
        "streams, which are one": [numbers.index(number) for number in numbers],
    }


def _capture(driver: Driver, begin: str, stream: int, mode: int, inside: str) -> list[int]:
    """Return all codes of a capture in which one call is made, and its number of nodes."""
    graph, count = ctypes.c_uint64(), ctypes.c_size_t()
    codes = [driver.call(begin, stream, mode)]
    address = 0
    if inside == "cuMemAllocAsync":
        code, address = driver.out(inside, MIB, stream)
        codes += [code, driver.call("cuMemFreeAsync", address, stream)]
    elif inside == "cuMemAlloc_v2":
        code, address = driver.out(inside, MIB)
        codes.append(code)
    else:
        codes.append(driver.call(inside, stream))
    end = "cuStreamEndCapture_ptsz" if begin.endswith("_ptsz") else "cuStreamEndCapture"
    codes.append(driver.call(end, stream, ctypes.byref(graph)))
    if graph.value:
        codes.append(driver.call("cuGraphGetNodes", graph.value, 0, ctypes.byref(count)))
        driver.call("cuGraphDestroy", graph.value)
    if inside == "cuMemAlloc_v2" and address:
        driver.call("cuMemFree_v2", address)
    return [*codes, count.value]


def captures(driver: Driver) -> Facts:
    """Capture what may be captured, and what ends a capture."""
    stream = driver.must("cuStreamCreate", 1)
    plain, of_thread = "cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"
    cases = (
        ("an allocation", plain, stream, GLOBAL_CAPTURE, "cuMemAllocAsync"),
        ("a wait", plain, stream, GLOBAL_CAPTURE, "cuStreamSynchronize"),
        ("a plain allocation", plain, stream, GLOBAL_CAPTURE, "cuMemAlloc_v2"),
        ("a plain allocation, relaxed", plain, stream, RELAXED_CAPTURE, "cuMemAlloc_v2"),
        ("the default stream", plain, 0, RELAXED_CAPTURE, "cuMemAllocAsync"),
        ("the thread's stream", of_thread, 0, RELAXED_CAPTURE, "cuMemAlloc_v2"),
    )
    facts: Facts = {
        f"capture, {name}": _capture(driver, begin, where, mode, inside)
        for name, begin, where, mode, inside in cases
    }
    beside = answers(driver)
    return facts | {f"capture, beside {name}": list(codes) for name, codes in beside.items()}


def main() -> None:
    """Print all facts."""
    driver = Driver()

    def work() -> None:
        code, address = driver.plain(5 * MIB)
        if code == 0:
            driver.free(address)
        driver.call("cuCtxSynchronize")

    facts = {**signals(work), **pointers(driver), **streams(driver), **captures(driver)}
    print(json.dumps(facts))


def table_behaviour(places: Sequence[Place]) -> Table:
    """Compare what a program sees in the first place with what it sees in the others."""
    table = Table("behaviour", "What must be as without the library", ("what", "variant", "seen"))
    program = [sys.executable, "-m", "bench.gpu.behaviour"]
    seen = {place.name: json.loads(place.run(program).splitlines()[-1]) for place in places}
    table.raw = seen
    bare, *others = (place.name for place in places)
    for other in others:
        different = [what for what in seen[bare] if seen[bare][what] != seen[other].get(what)]
        for what in different:
            for name in (bare, other):
                table.rows.append([what, name, json.dumps(seen[name].get(what))])
        for kind in ("signals", "pointer", "streams", "capture"):
            count = sum(what.startswith(kind) for what in seen[bare])
            wrong = [what for what in different if what.startswith(kind)]
            table.check(
                f"{other}: {kind}",
                f"{count} of {count} as {bare}",
                ", ".join(wrong) or f"{count} of {count}",
                holds=not wrong and count != 0,
            )
    return table


if __name__ == "__main__":
    main()
