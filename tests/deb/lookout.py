# SPDX-License-Identifier: Apache-2.0
"""Watches paths until its stdin closes (`lookout.py PATH...`); prints what was missing.

It looks again and again, and lets the kernel tell it besides when a name is taken away: a busy
machine may leave it no moment in which to look. A rename over a name takes nothing away.
"""

import ctypes
import json
import os
import select
import struct
import sys
import time
from pathlib import Path

# Source: inotify(7).
_IN_MOVED_FROM, _IN_DELETE, _IN_NONBLOCK = 0x40, 0x200, 0o4000
_PAUSE_SECONDS = 0.001  # leaves the processor to those who are watched
_EVENT = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Watch."""
    paths = [Path(word) for word in sys.argv[1:]]
    notifier = _libc.inotify_init1(_IN_NONBLOCK)
    names: dict[int, set[str]] = {}
    # Also what is on the way: a link, and the folder that it names.
    links = [path.parent for path in paths if path.parent.is_symlink()]
    for path in [*paths, *links, *(path.resolve() for path in paths)]:
        folder = os.fsencode(path.parent.resolve())
        watch = _libc.inotify_add_watch(notifier, folder, _IN_MOVED_FROM | _IN_DELETE)
        if watch < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path.parent}")
        names.setdefault(watch, set()).add(path.name)
    missing: list[str] = []
    looks = 0
    print("watching", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        looks += 1
        time.sleep(_PAUSE_SECONDS)
        for path in paths:
            try:
                if not path.stat().st_size:
                    missing.append(f"{path} is empty")
            except OSError as error:
                missing.append(f"{path}: {error.strerror}")
    missing += taken(notifier, names)
    print(json.dumps({"looks": looks, "missing": missing[:10]}))


def taken(notifier: int, names: dict[int, set[str]]) -> list[str]:
    """Return which of the watched names were deleted or moved away."""
    found: list[str] = []
    while True:
        try:
            content = os.read(notifier, 65536)
        except BlockingIOError:
            return found
        while content:
            watch, _, _, length = _EVENT.unpack_from(content)
            name = content[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
            content = content[_EVENT.size + length :]
            if watch == -1:
                found.append("events were lost")
            elif name in names[watch]:
                found.append(f"{name} was taken away")


if __name__ == "__main__":
    main()
