# SPDX-License-Identifier: Apache-2.0
"""Where the programs of Kubernetes come from."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.testbed import REPOSITORY

SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class UnavailableError(Exception):
    """A program cannot be had here; the message says which and why."""


def find_installed(name: str) -> Path:
    """Return the path of a program that `scripts/setup e2e` installs. Raises UnavailableError."""
    found = shutil.which(name, path=SEARCH)
    if found is None:
        raise UnavailableError(f"{name} is not installed: run `scripts/setup e2e`")
    return Path(found)


def find_built(name: str) -> Path:
    """Return the path of a program that is built when it is not there yet.

    Raises UnavailableError.
    """
    found = subprocess.run(
        [REPOSITORY / "scripts" / "kube-program", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise UnavailableError(f"{name} cannot be had: {found.stderr[-2000:]}")
    return Path(found.stdout.strip())
