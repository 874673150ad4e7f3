# SPDX-License-Identifier: Apache-2.0
"""Programs that may not make some system calls, or not write, run as without the library."""

import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, SimulatedGpu
from tests.hook_c.conftest import GIB
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.test_lookup import compile_program
from tests.testbed import REPOSITORY

DRIVER = str(LIBRARY_DIRECTORY / "libcuda.so.1")
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def number(call: str) -> str:
    found = re.search(rf"#define __NR_{call} (\d+)$", NUMBERS.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def filtered(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that gives what to put before a command to forbid it system calls."""
    program = compile_program("filtered", tmp_path)

    def words(action: str, *calls: str) -> list[str]:
        return [str(program), action, ",".join(map(number, calls))]

    return words


def run(
    gpu: SimulatedGpu,
    *command: str | Path,
    before: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=before,
        env={**os.environ, **gpu.environment(), "MARK": "seen", **(environment or {})},
    )


def developer(tmp_path: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
    }


@pytest.mark.parametrize("call", ["nanosleep", "faccessat", "readlinkat"])
def test_a_program_is_not_killed_for_a_call_that_libc_does_not_make(
    gpu: SimulatedGpu,
    tmp_path: Path,
    filtered: Callable[..., list[str]],
    call: str,
) -> None:
    """Under a compute limit, so that launches wait."""
    program = compile_program("launches", tmp_path, "-lpthread")
    container = Container(tmp_path / "container", {gpu.uuid(0): GIB}, cores_percent=30)
    container.write(reserved_percent=30, cores_max_percent=30)
    command = [*filtered("kill", call), str(program), "1"]

    assert run(gpu, *command).returncode == 0
    done = run(gpu, *container.wrapper, *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert run(gpu, *command, environment=developer(tmp_path)).returncode == 0
    assert container.usage.slots_high > 0


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("fcntl", "the usage file cannot be locked: Operation not permitted"),
        ("madvise", "madvise(MADV_WIPEONFORK) is not permitted here"),
    ],
)
def test_a_call_that_is_denied_is_the_reason(
    gpu: SimulatedGpu,
    container: Container,
    tmp_path: Path,
    filtered: Callable[..., list[str]],
    call: str,
    reason: str,
) -> None:
    program = compile_program("sanitized", tmp_path, "-lpthread")

    done = run(gpu, *container.wrapper, *filtered("1", call), str(program), DRIVER)

    assert done.stdout == "seen 802 0\n"
    assert reason in done.stderr


def test_a_limit_on_the_size_of_files_is_a_reason_and_no_end(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    program = compile_program("sanitized", tmp_path, "-lpthread")

    def forbid() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = run(gpu, program, DRIVER, before=forbid, environment=developer(tmp_path))

    assert done.stdout == "seen 802 0\n"
    assert "the usage file cannot be written: File too large" in done.stderr


def test_a_line_that_nobody_reads_ends_no_program(gpu: SimulatedGpu, tmp_path: Path) -> None:
    program = compile_program("sanitized", tmp_path, "-lpthread")
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [program, DRIVER],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
        env={
            **os.environ,
            **gpu.environment(),
            **developer(tmp_path),
            "MARK": "seen",
            "CUDA_DEVICE_MEMORY_LIMIT": "nonsense",
        },
    )
    os.close(writer)

    assert (done.returncode, done.stdout) == (0, "seen 802 0\n")


@pytest.mark.parametrize(("sent", "pending"), [("none", 0), ("thread", 1)])
@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ])
def test_a_line_that_nobody_reads_leaves_no_signal_to_a_program_that_blocks_it(
    gpu: SimulatedGpu, tmp_path: Path, number: signal.Signals, sent: str, pending: int
) -> None:
    """A program that receives it later by sigwait or signalfd gets its own one, and only that."""
    program = compile_program("pending", tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    limit = "nonsense" if number == signal.SIGPIPE else "1g"

    def forbid() -> None:
        if number == signal.SIGXFSZ:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [program, DRIVER, str(int(number)), sent],
        stdout=subprocess.PIPE,
        stderr=writer if number == signal.SIGPIPE else subprocess.DEVNULL,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=forbid,
        env={
            **os.environ,
            **gpu.environment(),
            **developer(tmp_path),
            "CUDA_DEVICE_MEMORY_LIMIT": limit,
        },
    )
    os.close(writer)

    assert (done.returncode, done.stdout) == (0, f"802 {pending}\n")


def test_every_system_call_of_the_library_is_documented() -> None:
    sources = (REPOSITORY / "hook_c/src").glob("*.[chS]")
    made = {call for path in sources for call in re.findall(r"\bSYS_(\w+)", path.read_text())}
    text = (REPOSITORY / "docs/memory.md").read_text()
    section = text.partition("## System calls")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = {call for row in rows for call in re.findall(r"`(\w+)`", row.split("|")[1])}

    assert made == documented
