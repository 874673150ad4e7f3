# SPDX-License-Identifier: Apache-2.0
"""In a container: processes or threads that take and free without a pause, all at once.

race.py processes COUNT SECONDS     at the end half of them are killed in the middle of their calls
race.py threads COUNT SECONDS
race.py pools COUNT SECONDS         threads that allocate and free in the order of a stream alone
race.py worker SEED                 one of the processes; obeys lines on stdin
"""

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.gpu.families import MIB, Driver
from bench.gpu.talk import end, say

MOST_HELD = 24
# While nothing is asked of the card, somebody still looks at it.
LOOK_SECONDS = 0.02


class Churn:
    """Takes and frees of one thread: odd sizes, every kind of call, in random order."""

    def __init__(self, driver: Driver, seed: int, *, pools_only: bool = False) -> None:
        self.codes: Counter[int] = Counter()
        self._driver = driver
        self._dice = random.Random(seed)
        self._held: list[tuple[Callable[[Any], int], Any]] = []
        self._ways: list[tuple[Callable[[int], tuple[int, Any]], Callable[[Any], int]]] = [
            (driver.plain, driver.free),
            (driver.plain, driver.free_in_stream),
            (driver.pitch, driver.free),
            (driver.in_stream, driver.free_in_stream),
            (driver.in_stream, driver.free),
            (driver.mapped, driver.unmap),
            (driver.array, driver.free_array),
        ]
        if pools_only:
            self._ways = [(driver.in_stream, driver.free_in_stream)]

    def run(self, ended: threading.Event) -> None:
        """Go on until `ended`."""
        self._driver.enter()
        while not ended.is_set():
            if len(self._held) > self._dice.randrange(MOST_HELD):
                self._free(self._held.pop(self._dice.randrange(len(self._held))))
                continue
            take, give = self._dice.choice(self._ways)
            size = self._dice.choice(
                [4097, 333_333, MIB + 1, 5 * MIB + 12_345, 61 * MIB, 199 * MIB]
            )
            code, handle = take(size)
            self.codes[code] += 1
            if code == 0:
                self._held.append((give, handle))

    def free_all(self) -> None:
        """Give back what is held."""
        for held in self._held:
            self._free(held)
        self._held.clear()
        self._driver.settle()

    def _free(self, held: tuple[Callable[[Any], int], Any]) -> None:
        give, handle = held
        code = give(handle)
        if code != 0:
            self.codes[-code] += 1  # of a free


def worker(seed: int) -> None:
    """Obey: go, hold (and go on looking), free, and the end of stdin."""
    driver = Driver()
    churn = Churn(driver, seed)
    ended = threading.Event()
    thread = threading.Thread(target=churn.run, args=(ended,))
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "go\n":
            thread.start()
        elif line == "hold\n":
            ended.set()
            thread.join()
            driver.call("cuCtxSynchronize")
            looker = threading.Thread(target=_look, args=(driver,), daemon=True)
            looker.start()
        elif line == "free\n":
            churn.free_all()
        print(" ".join(f"{code}:{count}" for code, count in churn.codes.items()), flush=True)


def _look(driver: Driver) -> None:
    driver.enter()
    while True:
        driver.memory()
        time.sleep(LOOK_SECONDS)


class Worker:
    """The other end of a worker."""

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.gpu.race", "worker", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, line: str) -> None:
        """Give a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """Wait for the answer to a command."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """Let it end, and wait."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def _codes(lines: list[str]) -> dict[str, int]:
    codes: Counter[str] = Counter()
    for line in lines:
        for word in line.split():
            code, _, count = word.partition(":")
            codes[code] += int(count)
    return dict(codes)


def processes(count: int, seconds: float) -> dict[str, int]:
    """Race `count` processes; the codes seen by those that were not killed."""
    workers = [Worker(seed) for seed in range(count)]
    for each in workers:
        if each.answer() != "ready":
            sys.exit("a worker did not start")
    say("ready")
    _command(workers, "go")
    time.sleep(seconds)
    killed, living = workers[: count // 2], workers[count // 2 :]
    say("raced")
    for each in killed:
        each.kill()
    for each in killed:
        each.close()
    say("killed")
    codes = _codes(_command(living, "hold"))
    say("held", count=len(living))
    _command(living, "free")
    say("freed", count=len(living))
    for each in living[1:]:
        each.close()
    say("one left", count=1)
    living[0].close()
    last = Worker(count)  # whoever comes next finds what the others left
    is_up = last.answer() == "ready"
    say("a new one", count=int(is_up), code=0 if is_up else 2)
    last.close()
    return codes


def _command(workers: list[Worker], line: str) -> list[str]:
    for each in workers:
        each.send(line)
    return [each.answer() for each in workers]


def threads(count: int, seconds: float, *, pools_only: bool = False) -> dict[str, int]:
    """Race threads of this process; the codes seen."""
    driver = Driver()
    ended = threading.Event()
    churns = [Churn(driver, seed, pools_only=pools_only) for seed in range(count)]
    runners = [threading.Thread(target=churn.run, args=(ended,)) for churn in churns]
    say("ready")
    for runner in runners:
        runner.start()
    time.sleep(seconds)
    say("raced")
    ended.set()
    for runner in runners:
        runner.join()
    driver.call("cuCtxSynchronize")
    driver.memory()
    say("held", count=1)
    for churn in churns:
        churn.free_all()
    driver.memory()
    say("freed", count=1)
    codes: Counter[int] = Counter()
    for churn in churns:
        codes.update(churn.codes)
    return {str(code): number for code, number in codes.items()}


def main() -> None:
    """Race."""
    if sys.argv[1] == "worker":
        worker(int(sys.argv[2]))
        return
    races: dict[str, Callable[[int, float], dict[str, int]]] = {
        "processes": processes,
        "threads": threads,
        "pools": partial(threads, pools_only=True),
    }
    codes = races[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))
    end(codes)


if __name__ == "__main__":
    main()
