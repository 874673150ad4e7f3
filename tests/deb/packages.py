# SPDX-License-Identifier: Apache-2.0
"""The packages under test: this version, and a higher one whose library differs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from runtime_shim import __version__
from tests.testbed import BUILD, REPOSITORY

CONTROL = REPOSITORY / "packaging/deb/debian/control"


@dataclass(frozen=True)
class Packages:
    """Both packages of one version for amd64."""

    version: str
    runtime: Path
    cache: Path


def build(folder: Path, version: str, *, differing: bool) -> Packages:
    """Build the packages into `folder`; `differing` gives the library other bytes."""
    built = folder / "built"
    built.mkdir(parents=True)
    for path in BUILD.iterdir():
        if path.is_file():
            shutil.copy2(path, built / path.name)
    if differing:
        with (built / "libvgpu.so").open("ab") as library:
            library.write(b"another build")  # behind the end of the ELF file: nothing reads it
    words = ["packaging/deb/build", "--version", version, "--no-arm64", "--built", str(built)]
    done = subprocess.run([*words, str(folder)], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Packages(
        version,
        folder / f"vgpu-runtime_{version}_amd64.deb",
        folder / f"vgpu-scheduler-cache_{version}_all.deb",
    )


def this_and_next(folder: Path) -> tuple[Packages, Packages]:
    """Return this version and a higher one."""
    return (
        build(folder / "this", __version__, differing=False),
        build(folder / "next", f"{__version__}+next", differing=True),
    )
