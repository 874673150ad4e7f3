# SPDX-License-Identifier: Apache-2.0
"""Checks the library that holds containers to their slices."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runtime_shim import config
from runtime_shim.doctor.finding import Finding, fail, ok, warn
from runtime_shim.driver import discover_driver
from runtime_shim.errors import RefusedError
from runtime_shim.library import (
    DIGESTS,
    UNCONFIGURED_REMEDY,
    copies_folder,
    copies_folders,
    digest_of,
    is_unconfigured,
    recorded_digests,
    verify_library,
)
from runtime_shim.symbols import read_symbols

_AGAIN = "install the package vgpu-runtime again"
# The oldest glibc of an image that runs CUDA.
_NEWEST_GLIBC = (2, 17)
_EXPORTED = re.compile(r"(?:cu|nvml)[A-Z]\w*|dlclose|dlsym|dlvsym")
_DRIVER_NAME = re.compile(r"(cu[A-Z]\w*?)(?:_v\d+)?(?:_ptsz|_ptds)?")
# The interposer's one table, as it is in hook_c.
_TABLE = Path(__file__).parents[1] / "api.tsv"
_NAMED = 5


def check_library(library: Path) -> Finding:
    """Look whether every glibc image can load it, and whether it exports what it should."""
    try:
        real = verify_library(library).path
        symbols = read_symbols(real)
    except RefusedError as error:
        return fail("library", error.reason, error.remedy)
    except (OSError, ValueError) as error:
        return fail("library", f"{library}: {error}", _AGAIN)
    newer = sorted(each for each in symbols.needed_versions if not _is_old(each))
    if newer:
        return fail(
            "library",
            f"{real} needs {newer[0]}, so that older images cannot load it",
            _AGAIN,
        )
    strange = sorted(name for name in symbols.exported if not _EXPORTED.fullmatch(name))
    if strange or not {"dlsym", "cuInit"} <= symbols.exported:
        what = f"exports {strange[0]}" if strange else "does not export cuInit and dlsym"
        return fail("library", f"{real} {what}", _AGAIN)
    if not os.access(real.parent / "vgpu-probe", os.X_OK):
        return fail("library", f"vgpu-probe is not beside {real}", _AGAIN)
    return ok("library", f"{real}, version {real.parent.name}")


def check_copies(library: Path, state_dir: Path) -> Finding:
    """Look whether the agent can keep the copies that containers load."""
    name = "library copies"
    try:
        folder = copies_folder(library, state_dir)
    except RefusedError as error:
        return fail(name, error.reason, error.remedy)
    first = copies_folders(library, state_dir)[0]
    why = "" if folder == first else f", since containers cannot load them from {first}"
    return ok(name, f"in {folder}{why}")


def check_digests(library: Path, launcher: Path | None) -> Finding:
    """Compare every installed file that holds containers to their slices with its digest."""
    name = "digests"
    folder = Path(os.path.realpath(library)).parent
    try:
        recorded = recorded_digests(folder)
    except RefusedError as error:
        remedy = UNCONFIGURED_REMEDY if is_unconfigured(library) else _AGAIN
        return fail(name, error.reason, remedy)
    if library.name not in recorded:
        return fail(name, f"{folder / DIGESTS} does not list {library.name}", _AGAIN)
    for file, digest in recorded.items():
        # Only the launcher lies elsewhere; engines may use another than the one beside us.
        path = folder / file
        if launcher is not None and path.name == launcher.name:
            path = launcher
        try:
            differs = digest_of(path) != digest
        except OSError as error:
            return fail(name, f"{path} cannot be read: {error.strerror}", _AGAIN)
        if differs:
            return fail(name, f"{path} is not the file that was installed", _AGAIN)
    return ok(name, f"all {len(recorded)} files of {folder / DIGESTS} are as installed")


def check_driver_names(where: config.Driver, table: Path = _TABLE) -> Finding:
    """Compare what the driver exports with the table that the library was made from.

    A function that the table does not know is called past the library. It may take memory that
    nobody counts.
    """
    name = "driver functions"
    found = next(
        (each.path for each in discover_driver(where).libraries if each.name == "libcuda.so.1"),
        None,
    )
    if found is None:
        return warn(name, "not compared: libcuda.so.1 is not found", "see the line of the driver")
    try:
        known = known_names(table.read_text())
    except OSError as error:
        return warn(name, f"not compared: {table}: {error.strerror}", _AGAIN)
    try:
        exported = read_symbols(Path(found)).exported
    except (OSError, ValueError) as error:
        return fail(name, f"{found}: {error}", "install the driver again")
    unknown = unknown_names(exported, known)
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        return warn(
            name,
            f"{found} has {', '.join(unknown[:_NAMED])}{more}, which this version does not know",
            "upgrade vgpu-runtime; memory taken by them is seen by NVML alone",
        )
    return ok(name, f"every function of {found} is known")


def known_names(table: str) -> frozenset[str]:
    """Return the base names that the interposer's table classifies."""
    lines = (line for line in table.splitlines() if line and not line.startswith("#"))
    return frozenset(line.split("\t")[0] for line in lines)


def unknown_names(exported: frozenset[str], known: frozenset[str]) -> list[str]:
    """Return the base names of the driver API that are exported and not known."""
    matches = (_DRIVER_NAME.fullmatch(each) for each in exported)
    return sorted({match[1] for match in matches if match} - known)


def _is_old(version: str) -> bool:
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
    return found is not None and (int(found[1]), int(found[2])) <= _NEWEST_GLIBC
