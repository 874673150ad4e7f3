# SPDX-License-Identifier: Apache-2.0
"""The mounts of a mount namespace: what of which file system is seen at a path. Reads only.

One folder may be seen at several places: by a bind, by a second mount of its disk, or through an
overlay. Names do not tell, and inodes only tell of the top folder.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runtime_shim.overlay import overlay_folders

_TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class HostMount:
    """One line of the table."""

    device: str
    """The file system, as the kernel numbers it; all subvolumes of a btrfs have the same number."""
    root: str
    """The folder of the file system that is seen."""
    place: str
    """Where it is seen."""
    type: str
    options: str
    """Of the file system."""

    def inner(self, real: str) -> str:
        """Return where a path below `place`, without links, lies in the file system."""
        return _joined(self.root, real[len(self.place.rstrip("/")) :])

    def layers(self, real: str) -> list[str]:
        """Return the host's paths that an overlay may show at `real`; empty for anything else.

        The kernel keeps the names of its folders as they were given. Relative ones began where the
        engine was then: at `/`, or above the mount or one of the other folders (Docker, containerd
        and Podman save room in the options of images with many layers that way).
        """
        folders = self._folders()
        inner = self.inner(real)
        absolute = [each for each in folders if each.startswith("/")]
        begins = dict.fromkeys(
            str(above) for each in (self.place, *absolute) for above in PurePosixPath(each).parents
        )
        guessed = [
            _joined(above, each) for each in folders if each not in absolute for above in begins
        ]
        return [_joined(each, inner) for each in (*absolute, *guessed)]

    def has_relative_layers(self) -> bool:
        """Tell whether it is an overlay of folders of which nobody can tell where they are."""
        return any(not each.startswith("/") for each in self._folders())

    def _folders(self) -> list[str]:
        return list(overlay_folders(self.options)) if self.type == "overlay" else []


class MountTable:
    """The table at one moment. Its lines are split on demand: a busy host has hundreds."""

    def __init__(self, text: bytes) -> None:
        self._lines: dict[bytes, bytes] = {}
        self._places: dict[bytes, bytes] = {}
        for line in text.splitlines():
            fields = line.split(b" ", 5)
            if len(fields) == 6:
                self._lines[fields[0]] = line
                self._places[fields[0]] = fields[4]

    @classmethod
    def read(cls) -> MountTable:
        """Return the table as it is now."""
        return cls(_TABLE.read_bytes())

    def mount_of(self, fd: int) -> HostMount | None:
        """Return the mount through which a descriptor was opened; None for one of elsewhere."""
        found = self._lines.get(mount_number(fd))
        return None if found is None else _mount(found)

    def below(self, real: str) -> list[HostMount]:
        """Return the mounts that come along with a folder when it is bound."""
        folder = os.fsencode(real).rstrip(b"/") + b"/"
        return [
            _mount(self._lines[number])
            for number, place in self._places.items()
            if _plain(place).startswith(folder) and place != b"/"
        ]


def mount_number(fd: int) -> bytes:
    """Return the number of the mount through which a descriptor was opened; it is the kernel's
    own, and the same in every mount namespace.
    """
    for line in Path(f"/proc/self/fdinfo/{fd}").read_bytes().splitlines():
        name, _, value = line.partition(b":")
        if name == b"mnt_id":
            return value.strip()
    return b""


def _mount(line: bytes) -> HostMount:
    head, _, tail = line.partition(b" - ")
    fields, of_system = head.split(b" "), tail.split(b" ", 2)
    return HostMount(
        device=fields[2].decode(),
        root=_text(fields[3]),
        place=_text(fields[4]),
        type=_text(of_system[0]),
        options=_text(of_system[-1]),
    )


def _joined(folder: str, rest: str) -> str:
    return (folder.rstrip("/") + "/" + rest.lstrip("/")).rstrip("/") or "/"


def _plain(field: bytes) -> bytes:
    if b"\\" in field:
        field = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)
    return field


def _text(field: bytes) -> str:
    return os.fsdecode(_plain(field))
