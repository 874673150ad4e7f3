# SPDX-License-Identifier: Apache-2.0
"""Reads and replaces the `config.json` of a bundle, through a descriptor of its folder.

No path of the bundle is resolved twice, so nobody can put another folder in its place between the
launcher's look and ours.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import math
import os
import stat

from runtime_shim.errors import RefusedError
from runtime_shim.spec import Spec, items, section

CONFIG = "config.json"
_DRAFT = ".config.json.vgpu"

# Docker writes 11 KB, tests of ours 10 MB; what is larger is no spec but an attack on our memory.
MAX_CONFIG_BYTES = 64 * 2**20

_REMEDY = "start the container again; if that does not help, look at the engine's bundle folder"


class BundleError(RefusedError):
    """The bundle cannot be read or changed safely."""


class Bundle:
    """The folder of one container, for one create. Borrows the descriptor and never closes it."""

    def __init__(self, directory_fd: int, *, owner_uid: int = 0) -> None:
        """`owner_uid`: who alone may write config.json. The folder may also belong to the root of
        the container's own user namespace: podman gives it away, and the engine that then reads
        config.json there as root trusts that user in any case.
        """
        self._directory_fd = directory_fd
        self._owner_uid = owner_uid
        self._raw = b""
        self._status: os.stat_result | None = None

    def read(self) -> Spec:
        """Return the spec: integers exact, invalid UTF-8 kept as lone surrogates.

        Of a key that stands twice the last counts. A symbolic link is refused, although runc would
        follow it: no engine makes one, and replacing it would leave its target behind.
        """
        try:
            folder = os.fstat(self._directory_fd)
            raw, status = self._read_file()
        except OSError as error:
            raise BundleError(f"cannot read {CONFIG}: {_cause(error)}", _REMEDY) from error
        if len(raw) > MAX_CONFIG_BYTES:
            raise BundleError(f"{CONFIG} is larger than {MAX_CONFIG_BYTES >> 20} MiB", _REMEDY)
        spec = parse_spec(raw)
        given_away = folder.st_uid != self._owner_uid and folder.st_uid == _mapped_root(spec)
        owner_uid = folder.st_uid if given_away else self._owner_uid
        self._check_owner(folder, "the bundle folder", owner_uid)
        self._raw, self._status = raw, status
        return spec

    def write(self, spec: Spec) -> None:
        """Put `spec` in place of what `read` returned, in one step, with its owner and mode.

        Nothing is written when nothing changed. There is no fsync: engines write the file anew at
        every start, so after a power cut nobody reads this one.
        """
        if self._status is None:
            raise ValueError("write() needs a read() before it")
        data = render_spec(spec)
        if data == self._raw:
            return
        try:
            self._replace(data, self._status)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(_DRAFT, dir_fd=self._directory_fd)
            raise BundleError(f"cannot write {CONFIG}: {_cause(error)}", _REMEDY) from error
        self._raw = data

    def _read_file(self) -> tuple[bytes, os.stat_result]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(CONFIG, flags, dir_fd=self._directory_fd)
        try:
            status = os.fstat(fd)
            self._check_file(status)
            with open(fd, "rb", closefd=False) as file:
                return file.read(MAX_CONFIG_BYTES + 1), status
        finally:
            os.close(fd)

    def _replace(self, data: bytes, status: os.stat_result) -> None:
        fd = self._open_draft()
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
            os.fchmod(fd, stat.S_IMODE(status.st_mode))
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            folder = self._directory_fd
            os.rename(_DRAFT, CONFIG, src_dir_fd=folder, dst_dir_fd=folder)
            written = os.stat(CONFIG, dir_fd=folder, follow_symlinks=False)
            if not os.path.samestat(written, os.fstat(fd)):
                raise BundleError(f"{CONFIG} was replaced while it was written", _REMEDY)
        finally:
            os.close(fd)

    def _open_draft(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(_DRAFT, flags, 0o600, dir_fd=self._directory_fd)
        except FileExistsError:  # left by an agent that was killed here
            os.unlink(_DRAFT, dir_fd=self._directory_fd)
            return os.open(_DRAFT, flags, 0o600, dir_fd=self._directory_fd)

    def _check_file(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{CONFIG} is not a regular file", _REMEDY)
        if status.st_size > MAX_CONFIG_BYTES:
            raise BundleError(f"{CONFIG} is larger than {MAX_CONFIG_BYTES >> 20} MiB", _REMEDY)
        self._check_owner(status, CONFIG, self._owner_uid)

    def _check_owner(self, status: os.stat_result, what: str, owner_uid: int) -> None:
        writable = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and status.st_gid != 0
        )
        if status.st_uid != owner_uid or writable:
            raise BundleError(
                f"{what} can be changed by others than its owner"
                if status.st_uid == owner_uid
                else f"{what} belongs to uid {status.st_uid}, not to {owner_uid}",
                "vgpu needs an engine that runs as root and keeps its bundles to itself",
            )


def has_user_namespace(spec: Spec) -> bool:
    """Tell whether a container is in another user namespace than its engine."""
    namespaces = items(section(spec, "linux"), "namespaces")
    return any(namespace.get("type") == "user" for namespace in namespaces)


def _mapped_root(spec: Spec) -> int | None:
    """Return who root of the container's own user namespace is on the host; None without one."""
    if not has_user_namespace(spec):
        return None
    for mapping in items(section(spec, "linux"), "uidMappings"):
        host, size = mapping.get("hostID"), mapping.get("size")
        if mapping.get("containerID") == 0 and type(host) is int and type(size) is int and size > 0:
            return host
    return None


def parse_spec(raw: bytes) -> Spec:
    """Return the JSON object in `raw`. Raises BundleError.

    Numbers with a fraction keep their value as a double, as every other reader of the file has it;
    NaN and what no double holds are refused, as Go does.
    """
    try:
        spec = _DECODER.decode(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{CONFIG} is not JSON: {error}", _REMEDY) from error
    if not isinstance(spec, dict):
        raise BundleError(f"{CONFIG} is not a JSON object", _REMEDY)
    return spec


def render_spec(spec: Spec) -> bytes:
    """Return `spec` as JSON; bytes that were not UTF-8 come out as they went in."""
    return _ENCODER.encode(spec).encode("utf-8", "vgpu.surrogate")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number {text[:32]} is out of range")
    return number


def _surrogate(error: UnicodeError) -> tuple[bytes, int]:
    r"""Encode one lone surrogate: a byte that was not UTF-8, or what was written as `\\ud800`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    code = ord(error.object[error.start])
    escaped = bytes([code - 0xDC00]) if 0xDC80 <= code <= 0xDCFF else b"\\u%04x" % code
    return escaped, error.start + 1


codecs.register_error("vgpu.surrogate", _surrogate)

# Made once, since every create needs both; a spec is a tree, so there is no circle to look for.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def _cause(error: OSError) -> str:
    """Name an error by its symbol: engines look for the words of some others."""
    code = error.errno or 0
    words = {errno.ENOENT: "it is missing", errno.ELOOP: "it is a symbolic link"}
    return words.get(code, errno.errorcode.get(code, f"error {code}"))
