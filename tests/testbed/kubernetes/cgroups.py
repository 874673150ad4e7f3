# SPDX-License-Identifier: Apache-2.0
"""A cgroup of a test's own for a kubelet, which ends what it does not know below its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# A new cpuset of version 1 is empty and takes no process.
_CPUSET = ("cpuset.cpus", "cpuset.mems")


def make_cgroup(name: str) -> None:
    """Make a cgroup below the root of every hierarchy."""
    for root in _hierarchies():
        control = root / "cgroup.subtree_control"
        if control.exists() and root == _ROOT:
            words = (root / "cgroup.controllers").read_text().split()
            control.write_text(" ".join(f"+{word}" for word in words))
        (root / name).mkdir(exist_ok=True)
        for file in _CPUSET:
            if (root / file).exists():
                (root / name / file).write_text((root / file).read_text())


def remove_cgroup(name: str) -> None:
    """Remove a cgroup with everything below it, as far as nothing runs there."""
    for root in _hierarchies():
        folders = [*(root / name).glob("**/"), root / name]
        for folder in sorted(set(folders), reverse=True):
            with suppress(OSError):  # gone with its parent, or in use
                folder.rmdir()


def _hierarchies() -> Iterator[Path]:
    """Yield where cgroups are mounted; version 2 has one place, version 1 one for a controller."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        place = Path(left.split()[4])
        if right.split()[0] in ("cgroup", "cgroup2") and place.is_relative_to(_ROOT):
            yield place
