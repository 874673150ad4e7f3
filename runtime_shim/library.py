# SPDX-License-Identifier: Apache-2.0
"""Verifies the installed files that hold containers to their slices, and keeps copies of them.

An installation records the digests of its files beside them, in `SHA256SUMS`. A file is read as a
whole and compared. Containers mount the agent's own copy of what was read, and the agent runs its
probe and its arbiter from there. So nothing that happens to the installed file afterwards matters.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import platform
import stat
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Final

from runtime_shim.elf import MACHINES
from runtime_shim.errors import RefusedError
from runtime_shim.files import is_noexec, is_read_only, open_at_once, read_at_once, write_all
from runtime_shim.symbols import parse_symbols

CURRENT: Final = "current"
"""The link that names the installed version, beside the folders of all versions."""

COPIES: Final = "copies"
"""The folder beside the versions that the agent uses where its state folder is mounted noexec."""

UNCONFIGURED_REMEDY: Final = "finish the installation of vgpu-runtime: dpkg --configure -a"
"""What helps where `is_unconfigured`."""

DIGESTS: Final = "SHA256SUMS"
"""The file that scripts/install writes, in the format of sha256sum(1)."""

# Source: System V ABI, "ELF Header": e_ident, e_type, e_machine, e_version, e_entry, e_phoff,
# e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_ET_DYN = 3

# The ways to the driver: by look-up and by link. Source: hook_c/src/libvgpu.map.
_HOOKS = frozenset({"dlsym", "dlvsym", "cuInit", "cuGetProcAddress", "cuMemAlloc_v2"})

_REMEDY = "install the vgpu library again"
# What dpkg unpacks; the package's postinst makes the folder of the version and the link from it.
_PACKAGED = "packaged"
# How many characters of a digest tell builds of one version apart.
_DIGEST_NAME = 12


@dataclass(frozen=True, kw_only=True)
class Verified:
    """An installed file whose content is the one that was recorded."""

    path: Path
    """Behind every link: the versioned one."""
    digest: str
    """SHA-256, in hexadecimal."""
    exported: frozenset[str]


def verify(path: Path) -> Verified:
    """Compare a file with the digest that was recorded beside it. Raises RefusedError.

    It is read once per inode, size and change time.
    """
    try:
        status = os.stat(path)
        real = Path(os.path.realpath(path))
        found = _look(real, _identity(status), _identity_of(real.parent / DIGESTS))
    except OSError as error:
        remedy = UNCONFIGURED_REMEDY if is_unconfigured(path) else _REMEDY
        raise RefusedError(f"the vgpu library {path} cannot be read", remedy) from error
    if found.problem:
        raise RefusedError(f"the vgpu library {real} {found.problem}", _REMEDY)
    return Verified(path=real, digest=found.digest, exported=found.exported)


def verify_library(path: Path) -> Verified:
    """Verify the library at `path`, and that it is ours. Raises RefusedError.

    glibc ignores a preload that it cannot load, with a line on stderr: the container would start
    without a limit. So the file is looked at before every create.
    """
    verified = verify(path)
    if missing := sorted(_HOOKS - verified.exported):
        raise RefusedError(
            f"the vgpu library {verified.path} does not export {missing[0]}", _REMEDY
        )
    return verified


def is_unconfigured(library: Path) -> bool:
    """Tell whether Debian's package of the library is unpacked and was never configured."""
    link = library.parent
    return link.name == CURRENT and not link.exists() and (link.parent / _PACKAGED).is_dir()


def recorded_digests(folder: Path) -> Mapping[str, str]:
    """Return name → digest of the files in a folder, as they were recorded. Raises RefusedError."""
    file = folder / DIGESTS
    try:
        with file.open("rb") as opened:
            if _others_write(os.fstat(opened.fileno())):
                raise RefusedError(f"{file} can be changed by others than root", _REMEDY)
            lines = opened.read().decode(errors="replace").splitlines()
    except FileNotFoundError as error:
        raise RefusedError(f"no digest was recorded: there is no {file}", _REMEDY) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RefusedError(f"{file} cannot be read: {reason}", _REMEDY) from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file's content, in hexadecimal."""
    return hashlib.sha256(read_at_once(path)).hexdigest()


def copies_folders(library: Path, state_dir: Path) -> tuple[Path, ...]:
    """Return where the agent may keep its copies, each in `<start of its digest>/<version>`.

    An installation has a second folder, beside the versions of the library: programs run there,
    whatever the host allows in its state folder.
    """
    first = state_dir / "library"
    if library.parent.name != CURRENT:
        return (first,)
    return first, library.parent.parent / COPIES


def copies_folder(library: Path, state_dir: Path) -> Path:
    """Return the first of `copies_folders` that can be written and from which a loader can map a
    library. Raises RefusedError.

    A container with a user namespace keeps the option noexec of the mount that its file comes from.
    """
    folders = copies_folders(library, state_dir)
    obstacles = []
    for folder in folders:
        if is_noexec(folder):
            obstacles.append(f"{folder} is mounted noexec")
        elif is_read_only(folder):
            obstacles.append(f"{folder} is mounted read-only")
        else:
            return folder
    raise RefusedError(
        f"no container could load the vgpu library: {' and '.join(obstacles)}",
        f"mount {folders[0]} writable and without noexec, or set paths.state_dir to a folder"
        " elsewhere",
    )


class VerifiedCopies:
    """The agent's copies of what was verified. Blocking calls; any thread.

    Each stays open for as long as an agent runs: many containers have the same one, and no process
    can then take the lease that would make the others' starts wait (F_WRLCK; no other matters to
    who reads). Where a container has taken one before, the next containers get another copy.
    """

    def __init__(self, library: Path, state_dir: Path) -> None:
        self._library = library
        self._state_dir = state_dir
        self._known: dict[Path, tuple[int, ...]] = {}
        self._open: dict[Path, mmap.mmap] = {}

    def library(self) -> Path:
        """Return what containers mount. Raises RefusedError and OSError."""
        return self._copy(verify_library(self._library))

    def beside(self, name: str) -> Path:
        """Return the copy of a file of the library's version. Raises RefusedError and OSError."""
        return self._copy(verify(self._library.with_name(name)))

    def _copy(self, verified: Verified) -> Path:
        build = verified.digest[:_DIGEST_NAME]
        folder = copies_folder(self._library, self._state_dir)
        for name in chain([build], (f"{build}-{number}" for number in count(2))):
            with contextlib.suppress(BlockingIOError):
                return self._copy_in(folder / name, verified)
        raise AssertionError("count() has no end")

    def _copy_in(self, folder: Path, verified: Verified) -> Path:
        """Return the copy in one folder. BlockingIOError where a process has a lease on it."""
        path = verified.path
        copy = folder / path.parent.name / path.name
        # Root alone enters the folder, and nobody writes here but this: each copy is read once by
        # each agent, and again if it has changed all the same.
        identity = _identity_of(copy)
        if not identity or self._known.get(copy) != identity:
            if not identity or not _is_whole(copy, verified):
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(copy, verified)
            self._open[copy] = _mapped(copy)
            self._known[copy] = _identity_of(copy)
            # Those of other builds, which containers of earlier agents may have.
            for other in folder.parent.glob("*/*/*"):
                if other not in self._open:
                    with contextlib.suppress(OSError, ValueError):
                        self._open[other] = _mapped(other)
        return copy

    def _write(self, copy: Path, verified: Verified) -> None:
        content = verified.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != verified.digest:
            raise RefusedError(f"the vgpu library {verified.path} was just changed", _REMEDY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{copy.name}.", dir=copy.parent)
        try:
            try:
                write_all(descriptor, content)
                os.fchmod(descriptor, 0o555)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(name, copy)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _mapped(path: Path) -> mmap.mmap:
    """Keep a file open, by a mapping. BlockingIOError when a process has a lease on it."""
    with open(open_at_once(path, os.O_RDONLY), "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _is_whole(copy: Path, verified: Verified) -> bool:
    mode = copy.lstat().st_mode
    return stat.S_ISREG(mode) and mode & 0o777 == 0o555 and digest_of(copy) == verified.digest


@dataclass(frozen=True, kw_only=True)
class _Found:
    digest: str = ""
    exported: frozenset[str] = frozenset()
    problem: str = ""


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (
        *(status.st_dev, status.st_ino, status.st_size),
        *(status.st_mtime_ns, status.st_ctime_ns),
    )


def _identity_of(path: Path) -> tuple[int, ...]:
    """Return what changes when the file does; empty when there is none."""
    try:
        return _identity(path.lstat())
    except OSError:
        return ()


@lru_cache(maxsize=16)
def _look(real: Path, *_unless_these_change: tuple[int, ...]) -> _Found:
    with open(real, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return _Found(problem="is not a regular file")
        content = file.read()
    if problem := _problem(status, content):
        return _Found(problem=problem)
    try:
        recorded = recorded_digests(real.parent).get(real.name)
    except RefusedError as error:
        return _Found(problem=f"cannot be verified: {error.reason}")
    digest = hashlib.sha256(content).hexdigest()
    if recorded is None:
        return _Found(problem=f"cannot be verified: {real.parent / DIGESTS} does not list it")
    if digest != recorded:
        return _Found(
            problem="is not the file that was installed:"
            f" its digest is not the one in {real.parent / DIGESTS}"
        )
    try:
        return _Found(digest=digest, exported=parse_symbols(content).exported)
    except ValueError as error:
        return _Found(problem=f"cannot be used: {error}")


def _problem(status: os.stat_result, content: bytes) -> str:
    if status.st_size == 0:
        return "is empty"
    if len(content) < _HEADER.size or not content.startswith(_ELF64_LITTLE_ENDIAN):
        return "is not a 64-bit ELF file"
    fields = _HEADER.unpack_from(content)
    if fields[1] != _ET_DYN or fields[2] != MACHINES.get(platform.machine()):
        return f"is not a shared library for {platform.machine()}"
    # Linkers put the section headers last: what is cut off ends before them.
    section_offset, section_bytes, section_count = fields[6], fields[11], fields[12]
    if status.st_size < section_offset + section_bytes * section_count:
        return "is cut off"
    if _others_write(status):
        return "can be changed by others than root"
    if not status.st_mode & stat.S_IROTH:
        return "cannot be read by every user"
    return ""


def _others_write(status: os.stat_result) -> bool:
    writable = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    return bool(writable) or status.st_uid not in (0, os.geteuid())
