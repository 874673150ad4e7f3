# SPDX-License-Identifier: Apache-2.0
"""Reads configuration files, and replaces them whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from runtime_shim.configure.editor import FaultError
from runtime_shim.files import write_all

_NEW_FILE_MODE = 0o644
# The largest known ones have some ten KiB; a device or a log in its place is no configuration.
_MOST_BYTES = 4 << 20


def read_text(path: Path) -> str | None:
    """Return the text of a file as it stands, line ends included; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FaultError(f"cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FaultError("is not a regular file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise FaultError(f"has more than {_MOST_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FaultError(f"is not UTF-8: {error}") from error


def write_text(path: Path, text: str) -> list[Path]:
    """Put `text` in the file's place, with its mode and owner; return the folders that it made.

    A link stays one: what it leads to is replaced. OSError leaves everything as it was.
    """
    path = Path(os.path.realpath(path))
    made = [folder for folder in (*path.parents,) if not folder.exists()]
    for folder in reversed(made):
        folder.mkdir(mode=0o755)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        try:
            write_all(descriptor, text.encode())
            _become_like(descriptor, path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(name, path)
    except OSError:
        os.unlink(name)
        remove_folders(made)
        raise
    return made


def remove_file(path: Path, folders: list[Path]) -> None:
    """Remove a file and, where they are empty, the folders that were made for it."""
    Path(os.path.realpath(path)).unlink(missing_ok=True)
    remove_folders(folders)


def remove_folders(folders: list[Path]) -> None:
    """Remove those of `folders` that are empty, the deepest first."""
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _become_like(descriptor: int, path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        os.fchmod(descriptor, _NEW_FILE_MODE)
        return
    os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
