# SPDX-License-Identifier: Apache-2.0
"""Looks into a container's root before it starts: can the vgpu library be loaded there, and where
do driver libraries go? Reads only, and only through openat2.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime_shim.errors import RefusedError
from runtime_shim.openat2 import open_in_root, path_in_root
from runtime_shim.spec import (
    Item,
    Spec,
    destination,
    device_path,
    devices,
    is_bind,
    mount_type,
    section,
    source,
    texts,
    within,
)
from runtime_shim.strip import PRELOAD_FILE, VGPU_FOLDER
from runtime_shim.tree import Tree, is_opaque
from runtime_shim.view import View, own_view

# Where programs name their loader (PT_INTERP). Source: System V ABI supplements, glibc and musl.
_GLIBC_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux.so.2",
    "/lib/ld-linux-armhf.so.3",
)
_MUSL_LOADERS = (
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
    "/lib/ld-musl-i386.so.1",
    "/lib/ld-musl-armhf.so.1",
)
# Nix and Guix compile another preload file into their loaders, which lie below these.
_FOREIGN_LOADERS = ("/nix/store", "/gnu/store")

# Folders that glibc searches without a cache, most specific first: Debian's, then Fedora's and
# SUSE's, then Arch's.
_LIBRARY_FOLDERS = {
    machine: (
        f"/usr/lib/{triplet}",
        f"/lib/{triplet}",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
    )
    for machine, triplet in (("x86_64", "x86_64-linux-gnu"), ("aarch64", "aarch64-linux-gnu"))
}

# What runtimes put into an empty /dev. Source: OCI runtime-spec 1.2, runtime-linux.md.
_DEV_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}

# Loaders are 0.2 MiB, 1.5 MiB with symbols; preload files are a line.
_MAX_LOADER_BYTES = 16 * 2**20
_MAX_PRELOAD_BYTES = 64 * 2**10

_GLIBC_REMEDY = "use an image that is based on glibc alone, such as Debian, Ubuntu or UBI"


@dataclass(frozen=True, kw_only=True)
class RootfsFacts:
    """What the create path has to know about a container's root. Paths are the container's own."""

    loader: str
    """A dynamic loader that honours /etc/ld.so.preload; empty when there is none."""
    library_dir: str
    """The folder for driver libraries, without links; empty when the root has no such folder."""
    preload: bytes
    """What the container's own /etc/ld.so.preload says; ours goes in front (`merge_preload`)."""
    preload_objection: RefusedError | None
    """Why /etc cannot take the mount of ld.so.preload; None when it can, or needs none."""
    read_only_filesystem: bool
    """The root lies on a file system on which no mount point can be made."""
    notes: Sequence[str] = ()
    """For the log."""


def inspect_rootfs(
    bundle_fd: int, spec: Spec, *, library: bool = True, view: View | None = None
) -> RootfsFacts:
    """Return the facts of the root that `spec` names, relative to the bundle.

    `view`: how the runtime will see the host, None for as the agent does.

    `spec` is already stripped: mounts of an earlier run of ours would be taken for the user's.
    Raises RefusedError when the vgpu library could not work there; `library=False` asks for a
    container that gets none (whole cards), and leaves these checks out.
    """
    view = view or own_view()
    with (
        _open_root(bundle_fd, spec, view) as root_fd,
        contextlib.closing(Tree(root_fd, bundle_fd, spec, view)) as tree,
    ):
        preload, objection, notes = b"", None, list[str]()
        loader = _loader(tree, strict=library)
        if library:
            _check_dev(tree)
            try:
                preload, notes = _inspect_preload(bundle_fd, root_fd, tree, view)
            except RefusedError as error:
                objection = error
            _check_covers(tree, spec, preloaded=objection is None)
        return RootfsFacts(
            loader=loader,
            library_dir=_library_dir(root_fd, loader),
            preload=preload,
            preload_objection=objection,
            read_only_filesystem=_is_read_only(root_fd),
            notes=notes,
        )


def merge_preload(library: str, own: bytes) -> bytes:
    """Return an ld.so.preload that loads `library` first and then what the image wanted.

    A carriage return would become a part of the last name on its line, so they go.
    """
    lines = own.replace(b"\r", b"").strip(b"\n")
    return os.fsencode(library) + b"\n" + (lines + b"\n" if lines else b"")


@contextlib.contextmanager
def _open_root(bundle_fd: int, spec: Spec, view: View) -> Iterator[int]:
    path = section(spec, "root").get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise RefusedError(
            "config.json names no rootfs", "the engine has to write root.path; see its log"
        )
    try:
        fd = view.open(path, bundle_fd, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise _cannot_read(f"the rootfs {path!r}", error) from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _opened(root_fd: int, path: str, flags: int = os.O_PATH) -> Iterator[int]:
    fd = open_in_root(root_fd, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _loader(tree: Tree, *, strict: bool) -> str:
    """Return the path of a loader that reads /etc/ld.so.preload; empty when there is none.

    `strict`: raise RefusedError if there is any other, in the image or in what is mounted over it:
    a program chooses its loader by itself.
    """
    loader = ""
    for path in (*_MUSL_LOADERS, *_GLIBC_LOADERS, *_FOREIGN_LOADERS):
        real = tree.resolve(path)
        covering = tree.covering(real)
        if strict and covering is not None and is_opaque(covering[1]):
            raise RefusedError(
                f"a mount of type {mount_type(covering[1])} covers {covering[0]!r}, so that nobody"
                f" can tell which loader is at {path}",
                "mount it elsewhere",
            )
        if not tree.exists(real):
            continue
        if path in _GLIBC_LOADERS and _honours_preload(tree, real):
            loader = loader or path
        elif strict:
            kind = "musl" if "musl" in path else "another loader than glibc's"
            whose = "the image" if covering is None else f"the mount at {covering[0]!r}"
            raise RefusedError(
                f"{whose} uses {kind} ({path}), which does not read {PRELOAD_FILE}, so that"
                " nothing would hold it to its slice",
                _GLIBC_REMEDY,
            )
    return loader


def _honours_preload(tree: Tree, real: str) -> bool:
    """Tell whether a loader reads /etc/ld.so.preload.

    By its own text: musl and gcompat also put files at glibc's path, and Nix changes the name.
    """
    try:
        with tree.opened(real, os.O_PATH) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return False
            text = _content(fd, _MAX_LOADER_BYTES)
    except OSError:
        return False
    # Strings lie near the end; from the front this search alone takes 0.05 ms.
    return text.rfind(PRELOAD_FILE.encode()) >= 0


def _check_dev(tree: Tree) -> None:
    """Demand that what we mount below /dev lies on a tmpfs of the container's: it goes with it."""
    for place, mount in tree.mounts:
        if within(place, VGPU_FOLDER):
            raise RefusedError(
                f"a mount of {source(mount)!r} at {destination(mount)!r} covers the place of the"
                " vgpu library",
                "mount it elsewhere: /dev/vgpu belongs to vgpu",
            )
    covering = tree.covering(VGPU_FOLDER)
    if covering is None or covering[0] != "/dev" or mount_type(covering[1]) != "tmpfs":
        what = f"a mount of {source(covering[1])!r}" if covering else "a part of the image"
        raise RefusedError(
            f"its /dev is {what} and not a tmpfs of its own",
            "start it with the engine's own /dev, without a volume there",
        )


def _check_covers(tree: Tree, spec: Spec, *, preloaded: bool) -> None:
    """Demand that nothing the runtime makes after the mounts covers what we mount."""
    linux = section(spec, "linux")
    ours = [VGPU_FOLDER, *(tree.trail(PRELOAD_FILE) if preloaded else ())]
    masked = [("masked path", path) for path in texts(linux, "maskedPaths")]
    for kind, path in [*masked, *(("device", device_path(node)) for node in devices(spec))]:
        real = tree.resolve(path, _DEV_LINKS)
        if within(real, VGPU_FOLDER) or any(within(own, real) for own in ours):
            raise RefusedError(
                f"its {kind} {path!r} covers what holds it to its slice",
                f"leave it out: {VGPU_FOLDER} and {PRELOAD_FILE} belong to vgpu",
            )


def _inspect_preload(
    bundle_fd: int, root_fd: int, tree: Tree, view: View
) -> tuple[bytes, list[str]]:
    """Return the container's own ld.so.preload, and notes.

    Raises RefusedError where the runtime could not mount ours over it, or where it would not stay.
    """
    folder = tree.resolve("/etc")
    place = tree.resolve(f"{folder}/ld.so.preload")
    covering = tree.covering(folder)
    if covering is not None and is_bind(covering[1]):
        # Linux takes a mount away with the name it covers, which others of a volume may remove.
        raise RefusedError(
            f"the mount of {source(covering[1])!r} covers {covering[0]}, and who shares it could"
            f" take {PRELOAD_FILE} away",
            "mount single files below /etc instead, or set policy.preload_env = allow on the node"
            " for weaker isolation",
        )
    own = tree.covering(place)
    if own is not None and own[0] == place:
        # Ours takes its place: the runtime makes the mount point as it would have anyway.
        return _read_own_mount(bundle_fd, own[1], view), [
            "its own mount of ld.so.preload is merged"
        ]
    if own != covering:
        raise _objection(f"it is a link to {place!r}, which a mount covers")
    if covering is None:
        return _inspect_image(root_fd)
    at, mount = covering
    options = texts(mount, "options")
    if mount_type(mount) == "tmpfs" and "ro" not in options:
        return _inspect_image(root_fd) if "tmpcopyup" in options else (b"", [])
    raise _objection(f"a mount of type {mount_type(mount)} covers {at}")


def _inspect_image(root_fd: int) -> tuple[bytes, list[str]]:
    notes: list[str] = []
    mode = _mode(root_fd, PRELOAD_FILE)
    if mode is not None and stat.S_ISLNK(mode):
        target = path_in_root(root_fd, PRELOAD_FILE)
        mode = None if target is None else _mode(root_fd, target)
        if target is None:
            notes.append("its ld.so.preload is a dangling link: the runtime creates the target")
    if mode is None:
        if _is_read_only(root_fd):
            raise _objection("the rootfs lies on a read-only file system without that file")
        return b"", notes
    return _read_preload(root_fd, PRELOAD_FILE, mode), notes


def _read_own_mount(bundle_fd: int, mount: Item, view: View) -> bytes:
    what = f"the mount of {source(mount)!r} at {destination(mount)!r}"
    if not is_bind(mount):
        raise _objection(f"{what} is not a file")
    try:
        fd = view.open(source(mount), bundle_fd)
    except OSError as error:
        raise _cannot_read(what, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _objection(f"{what} is not a file")
        return _content(fd, _MAX_PRELOAD_BYTES)
    except OSError as error:
        raise _cannot_read(what, error) from error
    finally:
        os.close(fd)


def _read_preload(root_fd: int, path: str, mode: int) -> bytes:
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise _objection(f"it is {kind} in the image")
    try:
        return _read(root_fd, path, _MAX_PRELOAD_BYTES)
    except OSError as error:
        raise _cannot_read(PRELOAD_FILE, error) from error


def _mode(root_fd: int, path: str) -> int | None:
    """Return the mode of `path` itself, links not followed; None when it is not there."""
    try:
        with _opened(root_fd, path, os.O_PATH | os.O_NOFOLLOW) as fd:
            return os.fstat(fd).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_read(path, error) from error


def _read(root_fd: int, path: str, limit: int) -> bytes:
    with _opened(root_fd, path) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return _content(fd, limit)


def _content(path_fd: int, limit: int) -> bytes:
    """Return what the regular file behind an O_PATH descriptor holds.

    It is surely that file, whatever its name means by now. Raises OSError, EFBIG above `limit`.
    """
    fd = os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)


def _library_dir(root_fd: int, loader: str) -> str:
    for folder in _LIBRARY_FOLDERS.get(os.uname().machine, ("/usr/lib",)):
        if (real := path_in_root(root_fd, f"{folder}/.")) is not None:
            return real
    real = path_in_root(root_fd, loader) if loader else None
    return real.rpartition("/")[0] if real else ""


def _is_read_only(fd: int) -> bool:
    return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)


def _objection(why: str) -> RefusedError:
    return RefusedError(
        f"{PRELOAD_FILE} cannot be put in place: {why}",
        "free that path, or set policy.preload_env = allow on the node for weaker isolation",
    )


def _cannot_read(what: str, error: OSError) -> RefusedError:
    code = errno.errorcode.get(error.errno or 0, str(error.errno))
    return RefusedError(f"cannot look into {what} ({code})", "check the image and its mounts")
