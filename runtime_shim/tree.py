# SPDX-License-Identifier: Apache-2.0
"""What a container sees at a path once its mounts are made over its root, in their order.

Nothing is opened but through openat2.py; of links only the text is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from runtime_shim.errors import RefusedError
from runtime_shim.openat2 import open_in_root
from runtime_shim.spec import Item, Spec, destination, is_bind, mount_type, mounts, source, texts
from runtime_shim.view import View

# As many as the kernel follows. Source: path_resolution(7).
_MAX_LINKS = 40

# File systems that hold no file of a user's when they are mounted.
_EMPTY_TYPES = frozenset({"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"})

_ABSENT = ""
"""No link has an empty text."""

_NO_LINKS: Mapping[str, str] = MappingProxyType({})


class Tree:
    """A root and the mounts over it. `close` it after use."""

    def __init__(self, root_fd: int, bundle_fd: int, spec: Spec, view: View) -> None:
        """Borrow the descriptors; sources are paths of `view`, relative ones from the bundle."""
        self._root_fd = root_fd
        self._bundle_fd = bundle_fd
        self._view = view
        self._looks: dict[str, str | None] = {}
        self._sources: dict[str, int | None] = {}
        self.mounts: list[tuple[str, Item]] = []
        """Where each mount ends up, in order; the last that covers a path is what is seen."""
        self._last_at: dict[str, int] = {}
        for index, mount in enumerate(mounts(spec)):
            place = self.resolve(destination(mount))
            self.mounts.append((place, mount))
            self._last_at[place] = index
            below = place.rstrip("/") + "/"
            for path in [path for path in self._looks if f"{path}/".startswith(below)]:
                del self._looks[path]

    def close(self) -> None:
        """Close the sources of binds."""
        for fd in self._sources.values():
            if fd is not None:
                os.close(fd)
        self._sources.clear()

    def resolve(self, path: str, later: Mapping[str, str] = _NO_LINKS) -> str:
        """Return `path` without links, also where a link dangles, as runtimes resolve it.

        `later`: links that the runtime makes where nothing is, once its mounts are there.
        """
        return self.trail(path, later)[-1]

    def trail(self, path: str, later: Mapping[str, str] = _NO_LINKS) -> list[str]:
        """Return where each link on the way of `path` lies, and at last where it leads."""
        names = path.split("/")[::-1]
        at, links = "", list[str]()
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            if name == "..":
                at = at.rpartition("/")[0]
                continue
            here = f"{at}/{name}"
            if _is_process(name) and self._is_proc(at):
                raise RefusedError(
                    f"{path!r} leads through {here!r}, which is another place to each process",
                    "name the file by its own path",
                )
            link = self._look(here)
            if link == _ABSENT:
                link = later.get(here)
            if not link:
                at = here
                continue
            links.append(here)
            if len(links) > _MAX_LINKS:
                raise RefusedError(
                    f"{path!r} leads through more than {_MAX_LINKS} links of its image",
                    "correct the links of the image",
                )
            at = "" if link.startswith("/") else at
            names += link.split("/")[::-1]
        return [*links, at or "/"]

    def exists(self, real: str) -> bool:
        """Tell whether something is at a resolved path."""
        return self._look(real) != _ABSENT

    def covering(self, real: str) -> tuple[str, Item] | None:
        """Return the mount that shows what is at a resolved path; None: it is the root's."""
        last = -1
        at = real
        while True:
            last = max(last, self._last_at.get(at, -1))
            if at == "/":
                return self.mounts[last] if last >= 0 else None
            at = at.rpartition("/")[0] or "/"

    @contextlib.contextmanager
    def opened(self, real: str, flags: int) -> Iterator[int]:
        """Open a resolved path. Raises OSError."""
        base, rest = self._base(real)
        if base is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), real)
        if not rest:
            fd = os.open(f"/proc/self/fd/{base}", flags | os.O_CLOEXEC)
        else:
            fd = open_in_root(base, rest, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _look(self, here: str) -> str | None:
        """Return the text of the link at `here`, whose parents are none; None: it is no link."""
        if here in self._looks:
            return self._looks[here]
        base, rest = self._base(here)
        link: str | None = None
        if base is None:
            link = _ABSENT if rest else None
        elif rest:
            try:
                link = os.readlink(rest, dir_fd=base)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    link = _ABSENT
        self._looks[here] = link
        return link

    def _is_proc(self, real: str) -> bool:
        """Tell whether the top of the kernel's own /proc is at a resolved path."""
        covering = self.covering(real or "/")
        return covering is not None and covering[0] == real and covering[1].get("type") == "proc"

    def _base(self, real: str) -> tuple[int | None, str]:
        """Return what `real` lies in, None for nothing, and the path there; "" is its top."""
        covering = self.covering(real)
        if covering is None:
            return self._root_fd, real.lstrip("/")
        place, mount = covering
        rest = real[len(place) :].lstrip("/")
        if is_bind(mount):
            return self._source(mount), rest
        if mount_type(mount) == "tmpfs" and "tmpcopyup" in texts(mount, "options"):
            return self._root_fd, real.lstrip("/")
        return None, rest

    def _source(self, mount: Item) -> int | None:
        path = source(mount)
        if path not in self._sources:
            try:
                self._sources[path] = self._view.open(path, self._bundle_fd)
            except OSError:
                self._sources[path] = None
        return self._sources[path]


def _is_process(name: str) -> bool:
    """Tell whether /proc has a folder of that name whose links lead anywhere."""
    return name in ("self", "thread-self") or name.isdigit()


def is_opaque(mount: Item) -> bool:
    """Tell whether a mount shows files that cannot be looked at before it is made."""
    return not is_bind(mount) and mount_type(mount) not in _EMPTY_TYPES
