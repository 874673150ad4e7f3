# SPDX-License-Identifier: Apache-2.0
"""The launcher's configuration, read as the launcher does (launcher/conf.c)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CONF_PATH = Path("/etc/vgpu/runtime.conf")
# The same places in the same order as launcher/runtime.c.
_PLACES = tuple(
    Path(folder, name)
    for name in ("runc", "crun")
    for folder in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
)


@dataclass(frozen=True, kw_only=True)
class RuntimeConf:
    """What the launcher acts on."""

    source: Path
    low_level_runtime: str = ""
    """Empty: searched."""
    gpu_runtime: str = ""
    agent_socket: str = "/run/vgpu/agent.sock"

    def low_level(self) -> Path | None:
        """Return the low-level runtime that a create ends in; None when there is none."""
        if self.low_level_runtime:
            return Path(self.low_level_runtime)
        return next((path for path in _PLACES if os.access(path, os.X_OK)), None)


def read_runtime_conf(launcher: Path, usual: Path = CONF_PATH) -> RuntimeConf:
    """Return the configuration of the launcher at `launcher`."""
    for path in (Path(f"{os.path.realpath(launcher)}.conf"), usual):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        return parse_runtime_conf(path, text)
    return RuntimeConf(source=usual)


def parse_runtime_conf(source: Path, text: str) -> RuntimeConf:
    """Return what a text says; the last of two lines counts, and unknown keys do not."""
    lines = (line.partition("=") for line in text.split("\n"))
    found = {key.strip(" \t\r"): value.strip(" \t\r") for key, _, value in lines if value.strip()}
    known = ("low_level_runtime", "gpu_runtime", "agent_socket")
    return RuntimeConf(source=source, **{key: found[key] for key in known if key in found})
