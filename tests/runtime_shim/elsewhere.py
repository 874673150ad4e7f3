# SPDX-License-Identifier: Apache-2.0
"""Processes that see another host than this one: with mounts of their own, or another root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime_shim.view import View, view_of

_PROGRAM = """
import os, subprocess, sys
root, *commands = sys.argv[1:]
for command in commands:
    subprocess.run(command, shell=True, check=True)
os.chroot(root)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(
    *commands: str, root: Path = Path("/"), own_mounts: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has run some commands of a shell and then waits."""
    unshare: Sequence[str] = ("unshare", "--mount", "--propagation=private") if own_mounts else ()
    argv = [*unshare, sys.executable, "-c", _PROGRAM, str(root), *commands]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield running
        running.communicate()


@contextmanager
def view_with(*commands: str, root: Path = Path("/"), own_mounts: bool = True) -> Iterator[View]:
    """Yield how such a process sees the host."""
    with process(*commands, root=root, own_mounts=own_mounts) as running:
        pidfd = os.pidfd_open(running.pid)
        try:
            with view_of(pidfd) as view:
                yield view
        finally:
            os.close(pidfd)
