# SPDX-License-Identifier: Apache-2.0
"""Programs that replace libc's functions, sanitized ones first of all, run as without us.

Their replacements look for libc's functions by dlsym before they work, and dlsym is ours.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, SimulatedGpu
from tests.hook_c.conftest import GIB
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.test_lookup import compile_program

DRIVER = str(LIBRARY_DIRECTORY / "libcuda.so.1")
LINKED = ("-DLINKED", f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1")

SANITIZERS = {
    "none": (),
    "thread": ("-fsanitize=thread",),
    "thread, static": ("-fsanitize=thread", "-static-libtsan"),
    "address": ("-fsanitize=address",),
    "address, static": ("-fsanitize=address", "-static-libasan"),
    "leak": ("-fsanitize=leak",),
    "undefined": ("-fsanitize=undefined",),
    "address, undefined": ("-fsanitize=address,undefined",),
}
# The shared runtime objects to every library that is preloaded before it. Leaks that the simulated
# driver has are its own.
OPTIONS = {
    "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0",
    "LSAN_OPTIONS": "detect_leaks=0",
}


@pytest.fixture(scope="module", params=SANITIZERS)
def words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the compiler's options of one sanitizer."""
    return SANITIZERS[request.param]


def run(gpu: SimulatedGpu, *command: str | Path, **environment: str) -> str:
    own = {**os.environ, **gpu.environment(), **OPTIONS, "MARK": "seen", **environment}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=own, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def developer(tmp_path: Path) -> Mapping[str, str]:
    """Return what limits a program by hand."""
    return {
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
    }


@pytest.mark.parametrize("linking", [(), LINKED], ids=["loaded", "linked"])
def test_a_sanitized_program_runs_and_is_limited(
    gpu: SimulatedGpu,
    container: Container,
    tmp_path: Path,
    words: tuple[str, ...],
    linking: tuple[str, ...],
) -> None:
    program = compile_program("sanitized", tmp_path, "-g", *words, *linking, "-lpthread")
    if linking and "-fsanitize=thread" in words:
        # The simulated driver's own thread, made by clone, does not live under gcc's runtime.
        for environment in ({}, {"LD_PRELOAD": str(LIBRARY)}, developer(tmp_path)):
            assert run(gpu, program, **environment) == "seen -1 0\n"
        return
    bare = run(gpu, program, DRIVER)

    assert bare.startswith("seen 0 ")
    assert run(gpu, program, DRIVER, LD_PRELOAD=str(LIBRARY)) == bare
    assert run(gpu, program, DRIVER, **developer(tmp_path)) == f"seen 0 {GIB}\n"
    assert run(gpu, *container.wrapper, program, DRIVER) == f"seen 0 {GIB}\n"


def test_a_look_up_calls_nothing_that_a_program_can_replace(
    gpu: SimulatedGpu, container: Container, tmp_path: Path
) -> None:
    program = compile_program(
        "replaces", tmp_path, "-fno-builtin", "-Wno-builtin-declaration-mismatch", "-lpthread"
    )
    bare = run(gpu, program, DRIVER)

    assert bare.startswith("seen 0 ")
    assert run(gpu, program, DRIVER, LD_PRELOAD=str(LIBRARY)) == bare
    assert run(gpu, program, DRIVER, **developer(tmp_path)) == f"seen 0 {GIB}\n"
    assert run(gpu, *container.wrapper, program, DRIVER) == f"seen 0 {GIB}\n"
