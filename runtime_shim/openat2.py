# SPDX-License-Identifier: Apache-2.0
"""Opens files of a container's root as the container would see them, never outside it.

An image may hold any symbolic link; host code that follows one has been NVIDIA's CVE-2024-0132. So
nothing below a root is opened but through the kernel's own openat2(2) with RESOLVE_IN_ROOT.
"""

from __future__ import annotations

import ctypes
import errno
import os

from runtime_shim.errors import RefusedError

# The same number on every architecture. Source: Linux, scripts/syscall.tbl.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10

# The kernel answers EAGAIN when a rename or mount elsewhere raced with a `..`. Source: openat2(2).
_TRIES = 16


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(_OpenHow),
    ctypes.c_size_t,
)


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Return a descriptor of `path`, with `root_fd` taken for `/` by every link and every `..`.

    Never waits for a FIFO's other end. Raises OSError; RefusedError on a kernel without openat2.
    """
    return _open(root_fd, path, flags, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)


def open_path(folder_fd: int, path: str, flags: int = os.O_PATH) -> int:
    """Return a descriptor of a path of the host, a relative one below `folder_fd`.

    Links such as /proc/self/fd/3 and /proc/1/root, which mean another file to each process, are not
    followed: ELOOP. Raises OSError; RefusedError on a kernel without openat2.
    """
    return _open(folder_fd, path, flags, _RESOLVE_NO_MAGICLINKS)


def _open(folder_fd: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(
        flags=flags | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY),
        resolve=resolve,
    )
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # JSON can write what no file's name can be
        name = b"\0"
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    for _ in range(_TRIES):
        fd: int = _syscall(_SYS_OPENAT2, folder_fd, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    if code == errno.ENOSYS:
        raise RefusedError(
            "this kernel cannot open files inside an image safely (no openat2)",
            "vgpu needs Linux 5.6 or newer",
        )
    raise OSError(code, os.strerror(code), path)


def path_in_root(root_fd: int, path: str) -> str | None:
    """Return where `path` leads to inside the root, without links; None when it leads nowhere."""
    try:
        fd = open_in_root(root_fd, path, os.O_PATH)
    except OSError:
        return None
    try:
        root = os.readlink(f"/proc/self/fd/{root_fd}")
        real = os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return "/" + real.removeprefix(root).lstrip("/")
