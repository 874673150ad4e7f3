# SPDX-License-Identifier: Apache-2.0
"""The host's files as one process sees them: its `/`, and the mounts of its mount namespace.

Engines may run the low-level runtime in a mount namespace of its own, in which a path leads
elsewhere: Buildah binds the volumes of a build there, Podman the root of a container with a user
namespace. What a container gets is then what that runtime sees, not what the agent does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from runtime_shim.errors import RefusedError
from runtime_shim.mount_table import HostMount, MountTable, mount_number
from runtime_shim.openat2 import open_in_root, open_path
from runtime_shim.processes import alive, pid_of

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class View:
    """Opens paths as a process would, and tells which mount shows a file. Reads only."""

    def __init__(self, table: MountTable, root_fd: int | None = None, hidden: str = "") -> None:
        """`root_fd`: the `/` of the process, borrowed; None is the agent's own. `hidden`: what
        paths of descriptors begin with, and the names in `table` do not.
        """
        self.table = table
        self._root_fd = root_fd
        self._hidden = hidden

    @property
    def foreign(self) -> bool:
        """It is not the agent's own view."""
        return self._root_fd is not None

    def open(self, path: str, bundle_fd: int, flags: int = os.O_PATH) -> int:
        """Return a descriptor of `path`, a relative one from the bundle.

        Links of /proc that mean another file to each process are not followed: ELOOP. Raises
        OSError; RefusedError where the process does not see the bundle.
        """
        if self._root_fd is None:
            return open_path(bundle_fd, path, flags)
        if not path.startswith("/"):
            # From the descriptor itself a link's text would be read from the agent's own `/`.
            path = f"{self._bundle(self._root_fd, bundle_fd)}/{path}"
        return open_in_root(self._root_fd, path, flags)

    def name(self, fd: int) -> str:
        """Return the path of a descriptor without links, as `table` names it."""
        return _below(os.readlink(f"/proc/self/fd/{fd}"), self._hidden)

    def mount_of(self, fd: int) -> HostMount | None:
        """Return the mount that shows a file; None where the process has no name for that mount."""
        return self.table.mount_of(fd)

    def _bundle(self, root_fd: int, bundle_fd: int) -> str:
        root, place = (os.readlink(f"/proc/self/fd/{fd}") for fd in (root_fd, bundle_fd))
        path = _below(place, root)
        with contextlib.suppress(OSError):
            fd = open_in_root(root_fd, path, _FOLDER)
            try:
                if os.path.samestat(os.fstat(fd), os.fstat(bundle_fd)):
                    return path
            finally:
                os.close(fd)
        raise RefusedError(
            f"its bundle is at {path[:256]!r}, where the runtime does not find it",
            "start the engine so that its runtime sees the bundle by its path",
        )


@contextlib.contextmanager
def view_of(pidfd: int) -> Iterator[View]:
    """Yield how the process behind a pidfd sees the host. Raises RefusedError.

    The process is held by its folder in /proc: every later look is at it, or fails.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(f"/proc/{pid_of(pidfd)}", _FOLDER)
            stack.callback(os.close, folder)
            if not alive([pidfd]):  # only now the folder is surely not a later process's
                raise ProcessLookupError(0, "it has ended")
            root_fd = os.open("root", _FOLDER, dir_fd=folder)
            stack.callback(os.close, root_fd)
            own_fd = os.open("/", _FOLDER)
            stack.callback(os.close, own_fd)
            same_mounts = os.readlink("ns/mnt", dir_fd=folder) == os.readlink("/proc/self/ns/mnt")
            content = None if same_mounts else _content(folder, "mountinfo")
            table = MountTable.read() if content is None else MountTable(content)
        except OSError as error:
            raise RefusedError(
                f"the node agent cannot see the host as its engine does ({error.strerror})",
                "let the node agent look at processes of the engine (CAP_SYS_PTRACE)",
            ) from error
        if same_mounts and _place(root_fd) == _place(own_fd):
            yield View(table)
        else:
            # The kernel leaves out of a process's table what is not below its root, and names the
            # rest from there; descriptors have their names from the top of the namespace.
            hidden = "" if same_mounts else os.readlink(f"/proc/self/fd/{root_fd}")
            yield View(table, root_fd, hidden)


def own_view() -> View:
    """Return the agent's own view, as it is now."""
    return View(MountTable.read())


def _content(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
        return file.read()


def _below(path: str, folder: str) -> str:
    """Return a path below `folder` as if that were `/`; any other as it is."""
    folder = folder.rstrip("/")
    return path[len(folder) :] or "/" if f"{path}/".startswith(f"{folder}/") else path


def _place(fd: int) -> tuple[int, int, bytes]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, mount_number(fd)
