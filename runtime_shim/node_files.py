# SPDX-License-Identifier: Apache-2.0
"""Puts launcher and library on a node, and takes them away, without disturbing what runs on them.

The layout below a prefix is that of scripts/install: `bin/vgpu-container-runtime` and
`lib/vgpu/<version>/` with the link `lib/vgpu/current`. Nothing is ever written into a file that a
process may have mapped or may execute: each step is one rename. Blocking calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import os
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from runtime_shim.configure.launcher import LAUNCHER_NAME
from runtime_shim.errors import RuntimeShimError
from runtime_shim.files import is_noexec, write_all
from runtime_shim.library import COPIES, CURRENT

_LIBRARIES = Path("lib/vgpu")
_LAUNCHER = Path("bin") / LAUNCHER_NAME
_OTHER_PREFIX = "choose a prefix that is writable and not mounted noexec"

_AT_FDCWD = -100  # Source: linux/fcntl.h
_RENAME_EXCHANGE = 2  # Source: linux/fs.h


class NodeFilesError(RuntimeShimError):
    """The files of the runtime cannot be put in place."""


def launcher_in(prefix: Path) -> Path:
    """Return where engines find the runtime."""
    return prefix / _LAUNCHER


def place_files(source: Path, prefix: Path, launcher_conf: Path | None) -> bool:
    """Copy the version that `source`, another prefix, holds; return whether anything changed.

    `launcher_conf` goes beside the launcher, which reads it before /etc/vgpu/runtime.conf; None
    takes it away.
    """
    if is_noexec(prefix):
        raise NodeFilesError(
            f"cannot install below {prefix}: it is mounted noexec; {_OTHER_PREFIX}"
        )
    try:
        version = os.readlink(source / _LIBRARIES / CURRENT)
        changed = _place_version(source / _LIBRARIES / version, prefix / _LIBRARIES / version)
        changed |= _switch(prefix / _LIBRARIES / CURRENT, version)
        launcher = launcher_in(prefix)
        conf = launcher.with_name(f"{LAUNCHER_NAME}.conf")
        if launcher_conf is None:
            changed |= conf.exists()
            conf.unlink(missing_ok=True)
        else:
            changed |= _replace(conf, launcher_conf.read_bytes(), 0o644)
        # Last: an engine that already names it starts containers as soon as it is there.
        return _replace(launcher, (source / _LAUNCHER).read_bytes(), 0o755) or changed
    except OSError as error:
        raise NodeFilesError(
            f"cannot install below {prefix}: {error.filename}: {error.strerror}; {_OTHER_PREFIX}"
        ) from error


def remove_files(prefix: Path, mounted: Collection[str]) -> list[str]:
    """Remove what `place_files` has put there; return the versions that stay.

    `mounted` names the versions that containers have: their folders stay.
    """
    launcher = launcher_in(prefix)
    libraries = prefix / _LIBRARIES
    kept = []
    try:
        launcher.unlink(missing_ok=True)
        launcher.with_name(f"{LAUNCHER_NAME}.conf").unlink(missing_ok=True)
        (libraries / CURRENT).unlink(missing_ok=True)
        if (libraries / COPIES).is_dir():
            shutil.rmtree(libraries / COPIES)
        for folder in sorted(libraries.iterdir()) if libraries.is_dir() else ():
            if not folder.name[:1].isdigit() or folder.is_symlink():
                continue
            if folder.name in mounted:
                kept.append(folder.name)
            else:
                shutil.rmtree(folder)
    except OSError as error:
        raise NodeFilesError(
            f"cannot remove {error.filename}: {error.strerror}; what is left below {prefix} may be "
            "removed by hand"
        ) from error
    for folder in (launcher.parent, libraries, libraries.parent, prefix):
        with contextlib.suppress(OSError):  # not empty, or not there
            folder.rmdir()
    return kept


def _place_version(source: Path, target: Path) -> bool:
    if target.is_dir() and _same_files(source, target):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name of a version: once nobody has it mounted, the agent removes it like one.
    aside = target.with_name(f"{target.name}.{time.time_ns()}")
    aside.mkdir(mode=0o755)
    for file in source.iterdir():
        _replace(aside / file.name, file.read_bytes(), file.stat().st_mode & 0o777)
    if target.is_dir():
        # Other files under the same version: containers keep those that they have mounted.
        _exchange(aside, target)
    else:
        aside.rename(target)
    return True


def _same_files(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in one.iterdir())
    if names != sorted(file.name for file in other.iterdir()):
        return False
    return not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


def _switch(link: Path, version: str) -> bool:
    if link.is_symlink() and os.readlink(link) == version:
        return False
    new = link.with_name(f"{CURRENT}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(version)
    new.rename(link)
    return True


def _replace(target: Path, content: bytes, mode: int) -> bool:
    """Put a file in place by one rename, unless it is there already."""
    with contextlib.suppress(FileNotFoundError):
        if target.read_bytes() == content and target.stat().st_mode & 0o777 == mode:
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        try:
            write_all(descriptor, content)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(name, target)
    except OSError:
        os.unlink(name)
        raise
    return True


def _exchange(one: Path, other: Path) -> None:
    """Let two folders change names, so that neither is missing for an instant."""
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))
