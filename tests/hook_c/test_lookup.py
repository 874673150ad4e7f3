# SPDX-License-Identifier: Apache-2.0
"""Every way of looking for an entry point of the driver leads to the hook of the right arity."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, SimulatedGpu
from tests.hook_c.conftest import GIB
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.program import Process

PROGRAMS = Path(__file__).with_name("programs")


def compile_program(name: str, folder: Path, *words: str) -> Path:
    """Return the built program."""
    program = folder / name
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-o", program, source, *words, "-ldl"], check=True)
    return program


def run(
    gpu: SimulatedGpu, tmp_path: Path, *command: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with the library preloaded by hand."""
    own = {
        **os.environ,
        **gpu.environment(),
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
        **environment,
    }
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=own, timeout=300
    )


def looked_up(
    gpu: SimulatedGpu, tmp_path: Path, *arguments: str, **environment: str
) -> dict[str, str]:
    """Return way of looking → object and symbol that answered."""
    program = compile_program("lookup", tmp_path)
    done = run(gpu, tmp_path, program, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_each_way_gets_the_hook_of_its_version_and_stream(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    ours, drivers = "libvgpu.so", "libcuda.so.1"

    assert looked_up(gpu, tmp_path) == {
        "before": "none",
        "before-self": "none",
        "handle": f"{ours} cuMemAlloc_v2",
        "error": "none",
        "dlvsym": "none",  # the driver has no versions: its own answer
        "default": f"{ours} cuMemAlloc_v2",
        "next": f"{ours} cuMemAlloc_v2",
        "pass": f"{drivers} cuEventCreate",
        "no-such": "none",
        "other": "none",
        "v1": f"{ours} cuMemAlloc_v2",
        "v1-2000": f"{ours} cuMemAlloc",
        "v2": f"{ours} cuMemAlloc_v2",
        "v2-async": f"{ours} cuMemAllocAsync",
        "v2-async-thread": f"{ours} cuMemAllocAsync_ptsz",
        "v2-pass": f"{drivers} cuEventCreate",
        "v2-ctx-3020": f"{ours} cuCtxCreate_v2",
        "v2-ctx-12000": f"{ours} cuCtxCreate_v3",
        "v2-ctx-13000": f"{ours} cuCtxCreate_v4",
        "v2-empty": "none",
        "v2-suffix": "none",
        "v2-self-11030": f"{ours} cuGetProcAddress",
        "v2-self-12000": f"{ours} cuGetProcAddress_v2",
        "v2-again": f"{ours} cuMemFree_v2",
    }


@pytest.mark.parametrize("arguments", [(str(LIBRARY_DIRECTORY / "libcuda.so.1"),), ("", "deep")])
def test_a_path_or_deepbind_changes_nothing(
    gpu: SimulatedGpu, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    arguments = (arguments[0] or "libcuda.so.1", *arguments[1:])

    found = looked_up(gpu, tmp_path, *arguments)

    assert found["handle"] == "libvgpu.so cuMemAlloc_v2"
    assert found["v2"] == "libvgpu.so cuMemAlloc_v2"


def test_without_limits_every_answer_is_the_drivers(gpu: SimulatedGpu, tmp_path: Path) -> None:
    program = compile_program("lookup", tmp_path)
    plain = {**os.environ, **gpu.environment()}

    bare = subprocess.run([program], capture_output=True, text=True, check=True, env=plain)
    inert = subprocess.run(
        [program],
        capture_output=True,
        text=True,
        check=True,
        env={**plain, "LD_PRELOAD": str(LIBRARY)},
    )

    # The whole program is asked: bare finds nothing, for the driver was loaded for one handle.
    ours = {"default", "next"}
    answers = [
        [line for line in done.stdout.splitlines() if line.split(" ")[0] not in ours]
        for done in (bare, inert)
    ]
    assert answers[0] == answers[1]
    assert "libvgpu" not in inert.stdout


def test_a_program_linked_with_the_driver_is_limited(gpu: SimulatedGpu, tmp_path: Path) -> None:
    program = compile_program("linked", tmp_path, f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1")

    assert run(gpu, tmp_path, program).stdout == f"0 {GIB} {GIB}\n"


def test_a_constructor_may_wait_for_a_thread_that_calls_the_driver(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    """The loader's lock is held meanwhile. NVIDIA's cuInit takes it, its other functions do not."""
    drivers = (f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-lpthread")
    library = compile_program("constructor", tmp_path, "-shared", "-fPIC", *drivers)
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('loaded')"

    done = run(gpu, tmp_path, sys.executable, "-c", script, library)

    assert done.stdout == f"0 {GIB} 0\nloaded\n"


def test_a_driver_that_was_never_looked_up_is_kept_when_its_user_is_closed(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    """Of a plugin only the constructor runs. The hooks' addresses point into the driver."""
    drivers = (f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1", "-lpthread")
    library = compile_program("constructor", tmp_path, "-shared", "-fPIC", *drivers)
    script = (
        "import _ctypes, re, sys; number = _ctypes.dlopen(sys.argv[1], 2); _ctypes.dlclose(number);"
        " maps = open('/proc/self/maps').read();"
        " names = set(re.findall('libcuda.so.1|libnvidia-ml.so.1|constructor', maps));"
        " print(sorted(names), flush=True); _ctypes.dlopen(sys.argv[1], 2)"
    )

    done = run(gpu, tmp_path, sys.executable, "-c", script, library)

    called = f"0 {GIB} 0\n"
    stay = "['libcuda.so.1', 'libnvidia-ml.so.1']\n"
    assert (done.returncode, done.stdout) == (0, called + stay + called), done.stderr


def test_an_allocator_may_look_up_while_the_loader_calls_it(
    gpu: SimulatedGpu, tmp_path: Path
) -> None:
    """The loader has the driver in its list then, and must not be asked to keep it."""
    driver = (f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1")
    plugin = compile_program("plugin", tmp_path, "-shared", "-fPIC", *driver)
    program = compile_program("allocates", tmp_path)

    done = run(gpu, tmp_path, program, plugin)

    assert (done.returncode, done.stdout) == (0, f"0 {GIB}\n"), done.stderr


def test_rtld_next_still_means_behind_the_caller(gpu: SimulatedGpu, tmp_path: Path) -> None:
    interposer = compile_program("rtld_next", tmp_path, "-shared", "-fPIC")
    for order in (f"{LIBRARY}:{interposer}", f"{interposer}:{LIBRARY}"):
        done = run(
            gpu,
            tmp_path,
            sys.executable,
            "-c",
            "import ctypes; print(ctypes.CDLL(None).puts(b'once') >= 0)",
            LD_PRELOAD=order,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["once", "True"]


def test_python_with_its_extensions_runs(gpu: SimulatedGpu, tmp_path: Path) -> None:
    done = run(
        gpu,
        tmp_path,
        sys.executable,
        "-c",
        "import ssl, sqlite3, ctypes, hashlib, multiprocessing; print(ssl.OPENSSL_VERSION)",
    )

    assert done.stdout.startswith("OpenSSL")
    assert done.stderr == ""


def test_a_process_without_cuda_opens_nothing_and_starts_nothing(tmp_path: Path) -> None:
    script = (
        "import os; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        ).stdout
        for environment in (
            {},
            {
                "LD_PRELOAD": str(LIBRARY),
                "CUDA_DEVICE_MEMORY_LIMIT": "1g",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "usage"),
            },
        )
    ]

    assert outputs[0] == outputs[1]
    assert not (tmp_path / "usage").exists()


def questions(chance: random.Random, names: list[str]) -> list[tuple[str, str, int, int]]:
    """Return look-ups by chance: good names, bad names, and good ones that were spoilt."""
    found = []
    for _ in range(2000):
        name = chance.choice(names)
        spoil = chance.randrange(8)
        if spoil == 0:
            name = name[: chance.randrange(len(name))]
        elif spoil == 1:
            name += chance.choice(["_v2", "_v3", "_ptsz", "_ptds", "x", "\x7f", "é", " "])
        elif spoil == 2:
            place = chance.randrange(len(name))
            name = name[:place] + chr(chance.randrange(33, 127)) + name[place + 1 :]
        elif spoil == 3:
            name = name.partition("_")[0]
        way = chance.choice(["v1", "v2", "v2", "dlsym", "GLIBC_2.2.5", "libcuda.so.1"])
        version = chance.choice([-1, 0, 2000, 3020, 7000, 11030, 12000, 12050, 13000, 13040, 99999])
        found.append((way, name, version, chance.choice([0, 0, 1, 2, 2, 3, 7])))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_any_look_up_gets_the_symbol_that_the_driver_gives(
    gpu: SimulatedGpu, container: Container, seed: int
) -> None:
    table = Path(__file__).parents[2] / "hook_c/prototypes.tsv"
    names = [line.split("\t")[0] for line in table.read_text().splitlines() if line[0] != "#"]
    asked = questions(random.Random(seed), names)

    with Process(gpu) as bare, Process(gpu, wrapper=container.wrapper) as hooked:
        plain, ours = bare.do("look_up", asked), hooked.do("look_up", asked)

    assert [
        (question, one, other)
        for question, one, other in zip(asked, plain, ours, strict=True)
        if one != other
    ] == []
    assert sum(not answer.endswith(" none") for answer in plain) > 100
