# SPDX-License-Identifier: Apache-2.0
"""Where the program is that engines are to run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LAUNCHER_NAME = "vgpu-container-runtime"
# Of the Debian package, of `make install`, and of the DaemonSet.
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/vgpu/bin")


def launcher_places(given: Path | None) -> list[Path]:
    """Return where it is looked for: where somebody says, else beside this program and as usual."""
    if given is not None:
        return [given.absolute()]
    folders = [Path(sys.argv[0]).resolve().parent, *map(Path, _FOLDERS)]
    return [folder / LAUNCHER_NAME for folder in dict.fromkeys(folders)]


def find_launcher(given: Path | None = None) -> Path | None:
    """Return the launcher; None when there is none."""
    for path in launcher_places(given):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
