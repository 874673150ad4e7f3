# SPDX-License-Identifier: Apache-2.0
"""Where a container's mounts, namespaces and hooks lead on the host. Reads only.

The sources of mounts are the user's: they may be links, and lie on a file system that hangs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runtime_shim.errors import RefusedError
from runtime_shim.hooks import host_paths, refuse_nvidia_file
from runtime_shim.mount_table import HostMount
from runtime_shim.overlay import overlay_folders
from runtime_shim.spec import (
    Item,
    Spec,
    SpecError,
    destination,
    is_bind,
    items,
    mount_type,
    mounts,
    normal_path,
    section,
    source,
    texts,
    within,
)
from runtime_shim.view import View, own_view

_Identity = tuple[int, int]
_Part = tuple[str, str]
"""A file system and a folder in it."""

_DEV = "/dev"
_OWN_PID_NAMESPACE = "/proc/self/ns/pid"
_MAX_SCRIPT_BYTES = 2**20

# File systems that the kernel makes by itself, so that no file of the host's disks is in them.
# Source: Linux, /proc/filesystems, those with "nodev" that need no source.
_KERNEL_TYPES = frozenset(
    {
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "proc",
        "pstore",
        "ramfs",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tmpfs",
        "tracefs",
    }
)
# Its folders are known to its process alone. Engines make such mounts for `-v FOLDER:/x:O`.
_OPAQUE_TYPE = "fuse.fuse-overlayfs"

_DRIVERS = "/driver"
"""Of /proc: what drivers tell of their hardware."""

_NO_FOLDER = -1
# An overlay may be made of overlays, but not those of others. Source: Linux, include/linux/fs.h,
# FILESYSTEM_MAX_STACK_DEPTH.
_OVERLAY_DEPTH = 2
_LEADS = "leads to the files that hold containers to their slices"
_LEADS_REMEDY = "mount only the folders that it needs, none of vgpu's and none above them"
_BIND_REMEDY = "mount it on the host, and bind the folder"


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The agent's own files, as the kernel knows them."""

    paths: frozenset[str]
    """Without links."""
    parents: frozenset[str]
    identities: frozenset[_Identity]
    """Of all these: a volume of Docker's may be another mount of one, under another name."""
    parts: frozenset[_Part]
    """The same files, by what they are of which file system."""
    dev: _Identity | None
    system: str
    """The file system of `/`, which no container's user has mounted."""
    complete: bool
    """All of them are there, so that the next look would find the same."""

    def hold(self, path: str, identity: _Identity | None) -> bool:
        """Tell whether a path without links is at, below or above one of them."""
        if path in self.parents or identity in self.identities:
            return True
        return any(within(path, own) for own in self.paths)

    def share(self, device: str, inner: str) -> bool:
        """Tell whether a folder of a file system is at, below or above one of them."""
        return any(
            device == own_device and (within(inner, own) or within(own, inner))
            for own_device, own in self.parts
        )


class Doors:
    """Refuses mounts that lead to what the agent enforces slices with.

    Who can write there changes the limits of every container, and a socket answers through a
    read-only mount, too.
    """

    def __init__(self, own: Iterable[Path]) -> None:
        """`own`: the agent's folders and sockets, and the folder of the library."""
        self._own = [str(path) for path in own]
        self._places: _Places | None = None

    def check(
        self, spec: Spec, bundle_fd: int, view: View | None = None, *, own_only: bool = False
    ) -> None:
        """Raise RefusedError for a root or a mount that shows an own path, or a GPU's device.

        `spec` is already stripped: our own mounts of an earlier run lie below these paths. `view`:
        how the runtime will see the host, None for as the agent does. `own_only`: devices are
        somebody else's to judge.
        """
        own = view if view is not None and not view.foreign else own_view()
        places = self._places or _look(self._own, own)
        self._places = places if places.complete else None
        look = _Look(places, view or own, own, bundle_fd, own_only=own_only)
        root = section(spec, "root").get("path")
        if isinstance(root, str) and root:
            look.judge(root, f"its root is {root!r}, which ", is_root=True)
        for mount in mounts(spec):
            look.judge_mount(mount)


@dataclass(frozen=True)
class _Look:
    """One look at a spec."""

    places: _Places
    view: View
    own: View
    """The agent's own, in which the folders of an overlay may have been named, too."""
    bundle_fd: int
    own_only: bool

    def judge_mount(self, mount: Item) -> None:
        shown, kind = source(mount), mount_type(mount)
        what = f"it mounts {shown!r} at {destination(mount)!r}, which "
        if is_bind(mount):
            read_only = not {"ro", "rro"}.isdisjoint(texts(mount, "options"))
            # As it is written: the kernel follows a link before it goes up by `..`.
            self.judge(str(mount.get("source") or ""), what, is_root=False, read_only=read_only)
        elif kind == "overlay":
            for folder in overlay_folders(",".join(texts(mount, "options"))):
                of_folder = f"it mounts an overlay of {folder!r} at {destination(mount)!r}, which "
                if not folder.startswith("/"):
                    raise RefusedError(
                        of_folder + "is another folder to each process",
                        "name the overlay's folders by absolute paths",
                    )
                self.judge(folder, of_folder, is_root=False)
        elif kind == "devtmpfs":
            if not self.own_only:
                raise _all_devices(what)
        elif kind not in _KERNEL_TYPES:
            raise RefusedError(
                what + f"is of type {kind[:64]!r}, so that nobody can tell what of the host it"
                " shows",
                _BIND_REMEDY,
            )

    def judge(self, path: str, what: str, *, is_root: bool, read_only: bool = False) -> None:
        """Raise RefusedError for a path of the host, as it is written, that a container may not
        see; `what` begins the sentence. `is_root`: engines also make roots of fuse-overlayfs.
        `read_only`: as far as the mount at the path goes; mounts below it stay writable.
        """
        try:
            real, identity, mount = _found(path, self.bundle_fd, self.view)
        except OSError as error:
            raise _unseen(what, error) from error
        if self._leads(real, identity, mount):
            raise RefusedError(what + _LEADS, _LEADS_REMEDY)
        if identity is not None and mount is None:
            raise RefusedError(
                what + "is on a mount that its runtime cannot name, so that nobody can tell what of"
                " the host it shows",
                "start the engine where the mounts of its own folders are seen",
            )
        for each in self._mounts(real, mount):
            if self._is_unclear(each) and not (is_root and each is mount):
                raise RefusedError(
                    what
                    + f"shows the overlay at {each.place!r}, whose folders have relative names,"
                    " so that nobody can tell what of the host it shows",
                    "mount that overlay with absolute names, or mount the folder itself",
                )
        if mount is not None and mount.type == _OPAQUE_TYPE and not is_root:
            raise RefusedError(
                what + "is a mount of fuse-overlayfs, so that nobody can tell what of the host it"
                " shows",
                "mount the folder itself, or let the engine use the kernel's overlay",
            )
        if self.own_only:
            return
        for each in self._mounts(real, mount):
            inner = each.inner(real) if each is mount else each.root
            if each.type == "proc" and not within(inner, _DRIVERS):
                raise RefusedError(
                    what + "shows the host's processes and settings",
                    "leave it out: each container gets its own /proc",
                )
            if leads_out(each) and not (each is mount and read_only):
                raise RefusedError(
                    what + "shows the host's cgroups, through which a process leaves the device"
                    " rules of its container",
                    "leave it out, or mount it read-only where the host has cgroup v2",
                )
        if real == _DEV or (identity is not None and identity == self.places.dev):
            raise _all_devices(what)
        inner = mount.inner(real) if mount is not None and mount.type == "devtmpfs" else ""
        if real.startswith("/dev/nvidia") or inner.startswith("/nvidia"):
            raise RefusedError(what + "is a GPU", "leave it out: vgpu gives what is granted")

    def _leads(self, real: str, identity: _Identity | None, mount: HostMount | None) -> bool:
        if self.places.hold(real, identity):
            return True
        return any(
            self._shows(each, real if each is mount else each.place)
            for each in self._mounts(real, mount)
        )

    def _mounts(self, real: str, mount: HostMount | None) -> list[HostMount]:
        """Return the mount at a path, and those that come along when it is bound."""
        return [] if mount is None else [mount, *self.view.table.below(real)]

    def _is_unclear(self, mount: HostMount) -> bool:
        return mount.device != self.places.system and mount.has_relative_layers()

    def _shows(self, mount: HostMount, real: str, depth: int = _OVERLAY_DEPTH) -> bool:
        """Tell whether a mount of the host shows an own path at or below `real`."""
        if self.places.share(mount.device, mount.inner(real)):
            return True
        return depth > 0 and any(
            self._layer_leads(layer, view, depth - 1)
            for layer in mount.layers(real)
            for view in self._views
        )

    @cached_property
    def _views(self) -> tuple[View, ...]:
        return (self.own, self.view) if self.view.foreign else (self.own,)

    def _layer_leads(self, layer: str, view: View, depth: int) -> bool:
        try:
            real, identity, mount = _found(layer, _NO_FOLDER, view)
        except OSError:
            return False
        if self.places.hold(real, identity):
            return True
        return mount is not None and self._shows(mount, real, depth)


def leads_out(mount: HostMount) -> bool:
    """Tell whether a process that writes there can get other device rules. Of cgroup v1 only the
    hierarchy with that controller has them; Podman binds the one of systemd.
    """
    return mount.type == "cgroup2" or (
        mount.type == "cgroup" and "devices" in mount.options.split(",")
    )


def check_namespaces(spec: Spec, bundle_fd: int = _NO_FOLDER, view: View | None = None) -> None:
    """Raise RefusedError unless mounts are the container's own and its PIDs are not the host's.

    `view`: how the runtime will see the host, None for as the agent does.
    """
    own_mounts = False
    for namespace in items(section(spec, "linux"), "namespaces"):
        path = namespace.get("path") or ""
        if not isinstance(path, str):
            raise SpecError("path of a namespace is not a string")
        if namespace.get("type") == "mount":
            own_mounts = not path
        elif (
            namespace.get("type") == "pid"
            and path
            and (_may_be_the_hosts(path) or (view and _is_another(path, bundle_fd, view)))
        ):
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


def check_hooks(spec: Spec, view: View | None = None) -> None:
    """Raise RefusedError for a hook whose file runs the NVIDIA toolkit.

    `spec` is already stripped of hooks that say so themselves. `view`: how the runtime will see the
    host, None for as the agent does.
    """
    for stage, hook, path in host_paths(spec):
        refuse_nvidia_file(stage, hook, path, os.path.realpath(path), _script(path))
        if view is None or not view.foreign:
            continue
        with contextlib.suppress(OSError):
            fd = view.open(path, _NO_FOLDER)
            try:
                text = _script(f"/proc/self/fd/{fd}")
                refuse_nvidia_file(stage, hook, path, view.name(fd), text)
            finally:
                os.close(fd)


def check_own_files(paths: Iterable[Path], view: View) -> None:
    """Raise RefusedError where a runtime finds other files than the agent's own at these paths: it
    mounts them by name.
    """
    if not view.foreign:
        return
    for path in paths:
        try:
            _, identity, _ = _found(str(path), _NO_FOLDER, view)
        except OSError:
            identity = None
        if identity is None or identity != _identity(str(path)):
            raise RefusedError(
                f"its runtime does not see the node agent's {path}",
                "start the engine where that path is the host's own",
            )


def _look(own: Iterable[str], view: View) -> _Places:
    found = [(path, *_found(path, _NO_FOLDER, view)) for path in own]
    top = _found("/", _NO_FOLDER, view)[2]
    paths = {path for path, *_ in found} | {real for _, real, _, _ in found}
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    identities = {identity for _, _, identity, _ in found} | {_identity(path) for path in parents}
    return _Places(
        paths=frozenset(paths),
        parents=frozenset(parents),
        identities=frozenset(identity for identity in identities if identity is not None),
        parts=frozenset((mount.device, mount.inner(real)) for _, real, _, mount in found if mount),
        dev=_identity(_DEV),
        system="" if top is None else top.device,
        complete=all(identity is not None for _, _, identity, _ in found),
    )


def _found(path: str, bundle_fd: int, view: View) -> tuple[str, _Identity | None, HostMount | None]:
    """Return where `path` leads to, what is there and the mount that shows it; the path as it is
    written when nothing is there.

    Opened by O_PATH, which reads nothing, waits for no FIFO and takes a relative path from the
    bundle, as runtimes do. Raises OSError.
    """
    try:
        fd = view.open(path, bundle_fd)
    except (FileNotFoundError, NotADirectoryError):
        return normal_path(path) if path.startswith("/") else path, None, None
    try:
        status = os.fstat(fd)
        return view.name(fd), (status.st_dev, status.st_ino), view.mount_of(fd)
    finally:
        os.close(fd)


def _unseen(what: str, error: OSError) -> RefusedError:
    if error.errno == errno.ELOOP:
        return RefusedError(
            what + "leads through a link of /proc, which is another file to each process",
            "name the file by its own path",
        )
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    return RefusedError(what + f"cannot be looked at ({code})", "check the path on the host")


def _all_devices(what: str) -> RefusedError:
    return RefusedError(
        what + "is the host's /dev, which holds every GPU", "mount only the devices that it needs"
    )


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _may_be_the_hosts(path: str) -> bool:
    identity = _identity(path)
    return identity is None or identity == _identity(_OWN_PID_NAMESPACE)


def _is_another(path: str, bundle_fd: int, view: View) -> bool:
    """Tell whether a path of a namespace leads elsewhere for the runtime than for the agent."""
    if not view.foreign:
        return False
    # The last link of /proc/1/ns/pid means the same in whoever's /proc that is the same one.
    folder, _, _ = path.rpartition("/")
    for of_view, own in ((path, path), (folder, folder)):
        try:
            fd = view.open(of_view, bundle_fd)
        except OSError:
            continue
        try:
            status = os.fstat(fd)
            return (status.st_dev, status.st_ino) != _identity(own)
        finally:
            os.close(fd)
    return True


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
