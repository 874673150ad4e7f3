# SPDX-License-Identifier: Apache-2.0
"""What is in libvgpu.so: it must load into any glibc image and do nothing there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hook_c.container import LIBRARY

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "hook_c"
SHIPPED = [LIBRARY, LIBRARY.with_name("vgpu-probe")]


def readelf(path: Path, *words: str) -> str:
    """Return what readelf prints."""
    return subprocess.run(
        ["readelf", "--wide", *words, path], capture_output=True, text=True, check=True
    ).stdout


def exported(path: Path) -> set[str]:
    """Return the names that the library defines for others."""
    rows = [line.split() for line in readelf(path, "--dyn-syms").splitlines()]
    return {row[7].split("@")[0] for row in rows if len(row) == 8 and row[6].isdigit()}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_needs_nothing_newer_than_glibc_2_17(path: Path) -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf(path, "--version-info"))

    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)
    assert "GLIBC_PRIVATE" not in readelf(path, "--version-info")


def test_exports_the_drivers_names_and_three_of_the_loader() -> None:
    names = exported(LIBRARY)

    assert {"dlclose", "dlsym", "dlvsym", "cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"} <= names
    strange = {n for n in names if not re.fullmatch(r"(cu|nvml)[A-Z]\w*|dlclose|dlsym|dlvsym", n)}
    assert strange == set()


def test_needs_only_libc() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", readelf(LIBRARY, "--dynamic"))

    assert needed == ["libc.so.6"]


def test_asks_libc_for_nothing_that_locks_allocates_or_ends_the_process() -> None:
    """All else it does by system calls of its own; no malloc, no stdio, no atfork, no exit."""
    pure = {"snprintf", "strerror", "__gmon_start__", "clock_gettime", "getauxval"}
    # Developer mode's variables, read once, and whether libc has them yet.
    once = {"environ", "getenv", "program_invocation_name"}
    rows = [line.split() for line in readelf(LIBRARY, "--dyn-syms").splitlines()]
    asked = {row[7].split("@")[0] for row in rows if len(row) >= 8 and row[6] == "UND"}

    assert asked <= pure | once | {"dl_iterate_phdr", "_r_debug"}


def test_does_no_work_when_it_is_loaded() -> None:
    dynamic = readelf(LIBRARY, "--dynamic")

    assert "INIT_ARRAY" not in dynamic
    assert "FINI_ARRAY" not in dynamic
    assert "TEXTREL" not in dynamic
    assert "BIND_NOW" in dynamic


def test_is_small() -> None:
    assert LIBRARY.stat().st_size < 225_000
    assert len(re.findall(r"R_X86_64_", readelf(LIBRARY, "--relocs"))) < 1000


def test_generated_files_are_those_of_the_table() -> None:
    done = subprocess.run(
        [sys.executable, HOOK / "gen.py", "--check"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_of_the_headers_is_classified() -> None:
    classified = {line.split("\t")[0] for line in rows("api.tsv")}
    bases = {line.split("\t")[1] for line in rows("prototypes.tsv")}

    assert bases - classified == set()
    assert classified - bases == set()


def rows(name: str) -> list[str]:
    """Return the lines of a table that are no comments."""
    lines = (HOOK / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_a_new_header_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "hook_c"
    (copy / "src").mkdir(parents=True)
    for name in ("gen.py", "api.tsv", "prototypes.tsv"):
        (copy / name).write_text((HOOK / name).read_text())
    header = tmp_path / "cuda.h"
    header.write_text(
        "typedef enum { CUDA_SUCCESS = 0 } CUresult;\n"
        "typedef unsigned long long CUdeviceptr;\n"
        "CUresult cuMemAllocBetter(CUdeviceptr *dptr, unsigned long bytes);\n"
    )

    done = subprocess.run(
        [sys.executable, copy / "gen.py", "--header", header],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "does not classify cuMemAllocBetter (looks like an allocation)" in done.stdout


def test_hooks_of_a_variant_come_with_its_twin_for_per_thread_streams() -> None:
    names = exported(LIBRARY)
    known = {line.split("\t")[0] for line in rows("prototypes.tsv")}

    lonely = {n for n in names if f"{n}_ptsz" in known and f"{n}_ptsz" not in names}
    assert lonely == set()
