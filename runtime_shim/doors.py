# SPDX-License-Identifier: Apache-2.0
"""Where a container's mounts, namespaces and hooks lead on the host. Reads only.

The sources of binds are the user's: they may be links, and lie on a file system that hangs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runtime_shim.errors import RefusedError
from runtime_shim.hooks import host_paths, refuse_nvidia_file
from runtime_shim.spec import (
    Spec,
    SpecError,
    destination,
    is_bind,
    items,
    mounts,
    section,
    source,
    within,
)

_Identity = tuple[int, int]

_DEV = "/dev"
_OWN_PID_NAMESPACE = "/proc/self/ns/pid"
_MAX_SCRIPT_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The agent's own files, as the kernel knows them."""

    paths: frozenset[str]
    """Without links."""
    parents: frozenset[str]
    identities: frozenset[_Identity]
    """Of all these: a volume of Docker's may be another mount of one, under another name."""
    dev: _Identity | None
    complete: bool
    """All of them are there, so that the next look would find the same."""


class Doors:
    """Refuses binds that lead to what the agent enforces slices with.

    Who can write there changes the limits of every container, and a socket answers through a
    read-only mount, too.
    """

    def __init__(self, own: Iterable[Path]) -> None:
        """`own`: the agent's folders and sockets, and the folder of the library."""
        self._own = [str(path) for path in own]
        self._places: _Places | None = None

    def check(self, spec: Spec, bundle_fd: int, *, own_only: bool = False) -> None:
        """Raise RefusedError for a bind at, below or above an own path, or of a GPU's device.

        `spec` is already stripped: our own mounts of an earlier run lie below these paths.
        `own_only`: devices are somebody else's to judge.
        """
        places = self._places or _look(self._own)
        self._places = places if places.complete else None
        for mount in mounts(spec):
            if not is_bind(mount):
                continue
            shown = source(mount)
            real, identity = _resolved(shown, bundle_fd)
            what = f"it mounts {shown!r} at {destination(mount)!r}, which "
            if _leads_to(places, real, identity):
                raise RefusedError(
                    what + "leads to the files that hold containers to their slices",
                    "mount only the folders that it needs, none of vgpu's and none above them",
                )
            if own_only:
                continue
            if real == _DEV or (identity is not None and identity == places.dev):
                raise RefusedError(
                    what + "is the host's /dev, which holds every GPU",
                    "mount only the devices that it needs",
                )
            if real.startswith("/dev/nvidia"):
                raise RefusedError(what + "is a GPU", "leave it out: vgpu gives what is granted")


def check_namespaces(spec: Spec) -> None:
    """Raise RefusedError unless mounts are the container's own and its PIDs are not the host's."""
    own_mounts = False
    for namespace in items(section(spec, "linux"), "namespaces"):
        path = namespace.get("path") or ""
        if not isinstance(path, str):
            raise SpecError("path of a namespace is not a string")
        if namespace.get("type") == "mount":
            own_mounts = not path
        elif namespace.get("type") == "pid" and path and _may_be_the_hosts(path):
            raise RefusedError(
                f"it joins the PID namespace {path!r}, which is the host's or cannot be looked at,"
                " so that its processes cannot be told from others",
                "start it in a PID namespace of its own, or without a vgpu request",
            )
    if not own_mounts:
        raise RefusedError(
            "it has no mount namespace of its own, so that what holds it would not be its alone",
            "start it with its own mount namespace, or without a vgpu request",
        )


def check_hooks(spec: Spec) -> None:
    """Raise RefusedError for a hook whose file runs the NVIDIA toolkit.

    `spec` is already stripped of hooks that say so themselves.
    """
    for stage, hook, path in host_paths(spec):
        refuse_nvidia_file(stage, hook, path, os.path.realpath(path), _script(path))


def _look(own: Iterable[str]) -> _Places:
    found = [(path, *_resolved(path, None)) for path in own]
    paths = {path for path, _, _ in found} | {real for _, real, _ in found}
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    identities = {identity for _, _, identity in found} | {_identity(path) for path in parents}
    return _Places(
        paths=frozenset(paths),
        parents=frozenset(parents),
        identities=frozenset(identity for identity in identities if identity is not None),
        dev=_identity(_DEV),
        complete=all(identity is not None for _, _, identity in found),
    )


def _leads_to(places: _Places, real: str, identity: _Identity | None) -> bool:
    if real in places.parents or identity in places.identities:
        return True
    return any(within(real, path) for path in places.paths)


def _resolved(path: str, bundle_fd: int | None) -> tuple[str, _Identity | None]:
    """Return where `path` leads to, and what is there; as it is written when nothing is there.

    Opened by O_PATH, which reads nothing, waits for no FIFO and takes a relative path from the
    bundle, as runtimes do.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=bundle_fd)
    except (OSError, ValueError):
        return path, None
    try:
        status = os.fstat(fd)
        return os.readlink(f"/proc/self/fd/{fd}"), (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _may_be_the_hosts(path: str) -> bool:
    identity = _identity(path)
    return identity is None or identity == _identity(_OWN_PID_NAMESPACE)


def _script(path: str) -> str:
    """Return the text of a file; empty where there is none, or no text."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        content = os.pread(fd, _MAX_SCRIPT_BYTES, 0)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return "" if b"\0" in content else content.decode(errors="replace")
