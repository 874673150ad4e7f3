# SPDX-License-Identifier: Apache-2.0
"""Simulated cards, and processes that use them with libvgpu preloaded."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.description import Card
from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.program import Process

MIB = 1 << 20
GIB = 1 << 30

Start = Callable[..., Process]
Probe = Callable[..., dict[str, Any]]
Busy = Callable[..., "subprocess.Popen[str]"]

BUSY = LIBRARY.parent / "bench" / "busy"


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[SimulatedGpu]:
    """Yield two cards of 8 GiB on which a context costs nothing."""
    cards = SimulatedGpu.create(tmp_path / "gpu", (Card(context_bytes=0), Card(context_bytes=0)))
    yield cards
    cards.close()


@pytest.fixture
def container(tmp_path: Path, gpu: SimulatedGpu, needs_root: None) -> Container:
    """Return the files of a container with 1 GiB of the first card and 2 GiB of the second."""
    return Container(tmp_path / "container", {gpu.uuid(0): GIB, gpu.uuid(1): 2 * GIB})


@pytest.fixture
def start(gpu: SimulatedGpu) -> Iterator[Start]:
    """Yield a function that starts a process in a container, with a current context."""
    started = []

    def start_one(container: Container, *, device: int = 0) -> Process:
        tenant = Process(gpu, wrapper=container.wrapper)
        started.append(tenant)
        assert tenant.do("start", device) == 0
        return tenant

    yield start_one
    for tenant in started:
        if tenant.process.poll() is None:
            tenant.kill()


@pytest.fixture
def developer(gpu: SimulatedGpu, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Yield a function that starts a process with the library preloaded by hand."""
    started = []

    def start_one(**environment: str) -> Process:
        usage = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage")}
        tenant = Process(gpu, environment={"LD_PRELOAD": str(LIBRARY), **usage, **environment})
        started.append(tenant)
        return tenant

    yield start_one
    for tenant in started:
        if tenant.process.poll() is None:
            tenant.kill()


@pytest.fixture
def probe(gpu: SimulatedGpu) -> Probe:
    """Return a function that runs vgpu-probe and gives what it prints, with its stderr."""

    def run(*words: str, wrapper: Sequence[str] = (), **environment: str) -> dict[str, Any]:
        done = subprocess.run(
            [*wrapper, str(LIBRARY.parent / "vgpu-probe"), *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **gpu.environment(), **environment},
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return {**found, "stderr": done.stderr}

    return run


@pytest.fixture
def busy(gpu: SimulatedGpu) -> Iterator[Busy]:
    """Yield a function that starts the bench's program in a container."""
    started = []

    def start_one(container: Container, kind: str, work_ns: int) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*container.wrapper, str(BUSY), kind, str(work_ns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **gpu.environment()},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()
