# SPDX-License-Identifier: Apache-2.0
"""The nodes below /dev/dri that are an NVIDIA card's: other makers' cards share their major."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NVIDIA_VENDOR = "0x10de"
# Of cards that are no PCI devices, and of cards under the kernel's own driver.
_NVIDIA_DRIVERS = frozenset({"nvidia", "nvidia-drm", "nouveau", "tegra-drm", "nova"})
_NUMBER = re.compile(r"([0-9]+):([0-9]+)")


def nvidia_drm_numbers(root: Path = Path("/")) -> frozenset[tuple[int, int]]:
    """Return (major, minor) of every DRM node of an NVIDIA card, as sysfs below `root` says.

    Source: Linux, Documentation/ABI/stable/sysfs-class-drm; PCI ID database, vendor 10de.
    """
    found = set()
    try:
        names = os.listdir(root / "sys/class/drm")
    except OSError:
        return frozenset()
    for name in names:
        folder = root / "sys/class/drm" / name
        match = _NUMBER.fullmatch(_text(folder / "dev"))
        if match and _is_nvidia(folder / "device"):
            found.add((int(match[1]), int(match[2])))
    return frozenset(found)


def _is_nvidia(device: Path) -> bool:
    if _text(device / "vendor") == _NVIDIA_VENDOR:
        return True
    try:
        return os.path.basename(os.readlink(device / "driver")) in _NVIDIA_DRIVERS
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
