# SPDX-License-Identifier: Apache-2.0
"""File leases, as a hostile process takes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SOURCE = Path(__file__).with_name("lease.c")


def build_lease(target: Path) -> Path:
    """Build the program that takes a lease again and again; it needs no library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-static", "-O1", "-o", str(target), str(_SOURCE)], check=True)
    return target


@contextlib.contextmanager
def leased(path: Path, kind: str, program: Path) -> Iterator[None]:
    """Have another process keep a lease on `path`; `kind` is `r` or `w`."""
    words = [str(program), kind, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "taken\n"
            yield
        finally:
            holder.kill()


def grants_lease(path: Path, kind: int) -> bool:
    """Tell whether the kernel grants a lease on `path` now; it is given back."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
