# SPDX-License-Identifier: Apache-2.0
"""A program that binds libc's dlsym past ours finds hooks in the loader's table of the driver."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, SimulatedGpu
from tests.hook_c.conftest import GIB
from tests.hook_c.container import LIBRARY
from tests.hook_c.test_lookup import PROGRAMS, compile_program, run

SONAME = "libcuda.so.1"
HOOKS = {
    "dlsym": "libc.so.6",
    "hooked": "libvgpu.so",
    "pass": SONAME,
    "nvml": "libvgpu.so",
    "refused": "2",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the object of deep.c, and with the driver under its plain name."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/libcuda.so").symlink_to(LIBRARY_DIRECTORY / SONAME)
    command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", str(PROGRAMS / "deep.c"), "-ldl"]
    subprocess.run([*command, "-o", str(tmp_path / "deep.so")], check=True)
    return tmp_path


def look(
    gpu: SimulatedGpu, folder: Path, name: str, between: str = "", **environment: str
) -> dict[str, str]:
    """Return what the object finds in the library of this name."""
    paths = f"{LIBRARY_DIRECTORY}:{folder / 'plain'}"
    done = run(
        gpu,
        folder,
        compile_program("past", folder),
        folder / "deep.so",
        name,
        between,
        **{"LD_LIBRARY_PATH": paths, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    "name", [SONAME, "libcuda.so", str(LIBRARY_DIRECTORY / SONAME), "plain/libcuda.so"]
)
def test_any_name_of_the_driver_leads_to_hooks(gpu: SimulatedGpu, folder: Path, name: str) -> None:
    name = str(folder / name) if name.startswith("plain/") else name

    assert look(gpu, folder, name) == HOOKS


def test_a_driver_that_is_closed_and_opened_again(gpu: SimulatedGpu, folder: Path) -> None:
    assert look(gpu, folder, SONAME, "reopen") == HOOKS


def test_a_forked_child(gpu: SimulatedGpu, folder: Path) -> None:
    found = look(gpu, folder, SONAME, "fork")

    assert {**found, "refused": "2"} == HOOKS
    assert found["refused"] == "3"  # the driver's own answer: not initialised in a child


def test_without_limits_the_table_stays_as_it_is(gpu: SimulatedGpu, folder: Path) -> None:
    program = compile_program("past", folder)
    done = subprocess.run(
        [program, folder / "deep.so", SONAME],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **gpu.environment(), "LD_PRELOAD": str(LIBRARY)},
    )
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())

    assert found["hooked"] == SONAME
    assert found["nvml"] == "libnvidia-ml.so.1"
    assert found["refused"] == "0"


def test_a_table_that_cannot_be_written_is_left_alone(gpu: SimulatedGpu, folder: Path) -> None:
    found = look(gpu, folder, SONAME, "seccomp")

    assert found["hooked"] == SONAME
    assert b"symbol table is as it was" in (folder / "usage").read_bytes()


@pytest.mark.parametrize("words", [("-Wl,-z,now,-z,relro",), ("-Wl,-z,lazy",)])
def test_what_was_bound_before_the_first_look_up_is_bound_anew(
    gpu: SimulatedGpu, folder: Path, words: tuple[str, ...]
) -> None:
    linked = folder / "deep_linked.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", *words, str(PROGRAMS / "deep_linked.c")]
    driver = [f"-L{LIBRARY_DIRECTORY}", "-l:libcuda.so.1", "-l:libnvidia-ml.so.1"]
    subprocess.run([*command, *driver, "-o", str(linked)], check=True)

    done = run(gpu, folder, compile_program("early", folder), linked)

    assert (done.returncode, done.stdout) == (0, "0 2 2\n"), done.stderr


def test_a_driver_in_another_namespace_is_refused(gpu: SimulatedGpu, folder: Path) -> None:
    program = compile_program("early", folder)
    environment = {"LD_LIBRARY_PATH": str(LIBRARY_DIRECTORY)}

    limited = run(gpu, folder, program, "namespace", **environment)
    assert (limited.returncode, limited.stdout) == (0, "802 4\n"), limited.stderr
    own = {**os.environ, **gpu.environment(), **environment, "LD_PRELOAD": str(LIBRARY)}
    inert = subprocess.run(
        [program, "namespace"], capture_output=True, text=True, check=False, env=own
    )
    assert (inert.returncode, inert.stdout) == (0, "0 1\n"), inert.stderr


def test_a_second_driver_from_another_path_is_refused(gpu: SimulatedGpu, folder: Path) -> None:
    """The loader takes two files for two libraries, whatever their names."""
    (folder / "copy").mkdir()
    copies = [folder / "copy" / name for name in (SONAME, "libnvidia-ml.so.1")]
    for copy in copies:
        shutil.copy(LIBRARY_DIRECTORY / copy.name, copy)
    script = (
        "import ctypes, sys\n"
        "first, nvml, second, other = map(ctypes.CDLL, sys.argv[1:])\n"
        "total = ctypes.c_size_t()\n"
        "print(first.cuInit(0), first.cuDeviceTotalMem_v2(ctypes.byref(total), 0), total.value)\n"
        "print(second.cuInit(0), second.cuDeviceTotalMem_v2(ctypes.byref(total), 0))\n"
        "print(nvml.nvmlInit_v2(), other.nvmlDeviceGetMemoryInfo(None, None))\n"
    )
    paths = [LIBRARY_DIRECTORY / copy.name for copy in copies] + copies

    done = run(gpu, folder, sys.executable, "-c", script, *paths)

    assert (done.returncode, done.stdout) == (0, f"0 0 {GIB}\n802 802\n0 4\n"), done.stderr
