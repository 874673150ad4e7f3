# SPDX-License-Identifier: Apache-2.0
"""Many processes at once, and processes that are killed at any instruction."""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Start
from tests.hook_c.container import Container
from tests.hook_c.test_lookup import compile_program

WORKERS = 4


@contextlib.contextmanager
def many(
    program: Path, gpu: SimulatedGpu, container: Container, count: int, what: str
) -> "Iterator[tuple[subprocess.Popen[str], IO[str]]]":
    """Start so many processes in the container; the first of them, and what they print."""
    started = subprocess.Popen(
        [*container.wrapper, program, str(count), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **gpu.environment()},
        start_new_session=True,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        yield started, started.stdout
        started.stdin.close()
        assert started.wait(30) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


def test_three_hundred_processes_start_at_once(
    tmp_path: Path, gpu: SimulatedGpu, container: Container, start: Start
) -> None:
    program = compile_program("many", tmp_path)
    witness = start(container)

    with many(program, gpu, container, 300, "start") as (_, lines):
        assert lines.readline() == "300\n"
        assert container.used() == gpu.used_bytes() == 300 * 2 * MIB
        assert witness.do("memory") == [GIB - 600 * MIB, GIB]

    assert witness.do("allocate", GIB)[0] == 0


def test_whoever_is_killed_wherever_is_out_of_the_account_at_once(
    tmp_path: Path, gpu: SimulatedGpu, container: Container, start: Start
) -> None:
    program = compile_program("many", tmp_path)
    witness = start(container)
    assert witness.do("allocate", 100 * MIB)[0] == 0
    chance = random.Random(1)
    waits = []

    for _ in range(12):
        with many(program, gpu, container, WORKERS, "churn") as (started, lines):
            workers = [int(lines.readline()) for _ in range(WORKERS)]
            assert lines.readline() == f"{WORKERS}\n"
            for worker in workers:
                time.sleep(chance.random() / 50)
                assert gpu.used_bytes() <= GIB
                os.kill(worker, signal.SIGKILL)
            assert started.wait() == 0
            killed = time.monotonic()
            while witness.do("memory") != [GIB - 100 * MIB, GIB]:
                assert time.monotonic() - killed < 2
            waits.append(time.monotonic() - killed)
        assert container.used() == gpu.used_bytes() == 100 * MIB

    assert statistics.median(waits) < 0.1
