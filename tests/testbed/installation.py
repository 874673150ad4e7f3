# SPDX-License-Identifier: Apache-2.0
"""Library folders as an installation leaves them."""

import subprocess
from pathlib import Path

from runtime_shim.library import DIGESTS


def record_digests(folder: Path) -> None:
    """Record what is in a folder now, with the program that scripts/install uses."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    names = [name for name in names if name != DIGESTS]
    with (folder / DIGESTS).open("wb") as file:
        subprocess.run(["sha256sum", *names], cwd=folder, stdout=file, check=True)
