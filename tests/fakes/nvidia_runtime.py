#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's container runtime, as far as a container of whole cards sees it.

Run as `nvidia_runtime.py SITE WORDS…`. It writes down the config.json that it was given, adds the
nodes and libraries of the cards that NVIDIA_VISIBLE_DEVICES names, and executes the low-level
runtime with WORDS. Source: NVIDIA container toolkit 1.17, legacy mode. The standard library alone:
an engine executes it with an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MAJOR = 195
CONTROL_MINOR = 255


def main(site_file: str, words: list[str]) -> None:
    """Do what the module says. SITE is the JSON that `install` writes."""
    site = json.loads(Path(site_file).read_text())
    if "create" in words:
        config = Path(words[words.index("--bundle") + 1], "config.json")
        given = config.read_bytes()
        Path(site["seen"], f"{words[-1]}.json").write_bytes(given)
        config.write_text(json.dumps(_with_cards(json.loads(given), site)))
    os.execv(site["low_level"], [site["low_level"], *words])


def install(folder: Path, *, low_level: str, minors: dict[str, int], libraries: list[Path]) -> Path:
    """Return the program of a runtime for these cards, by UUID; it writes to `folder`/seen."""
    (folder / "seen").mkdir(parents=True)
    site = folder / "site.json"
    site.write_text(
        json.dumps(
            {
                "seen": str(folder / "seen"),
                "low_level": low_level,
                "minors": minors,
                "libraries": [str(each) for each in libraries],
            }
        )
    )
    program = folder / "nvidia-container-runtime"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {site} "$@"\n')
    program.chmod(0o755)
    return program


def _with_cards(spec: dict[str, Any], site: dict[str, Any]) -> dict[str, Any]:
    env = dict(entry.split("=", 1) for entry in spec["process"].get("env", ()))
    named = env.get("NVIDIA_VISIBLE_DEVICES", "")
    minors: dict[str, int] = site["minors"]
    wanted = minors.values() if named == "all" else [minors[each] for each in named.split(",")]
    linux = spec["linux"]
    for minor in (*wanted, CONTROL_MINOR):
        path = "/dev/nvidiactl" if minor == CONTROL_MINOR else f"/dev/nvidia{minor}"
        node = {"type": "c", "major": MAJOR, "minor": minor}
        linux.setdefault("devices", []).append({"path": path, "fileMode": 0o666, **node})
        linux["resources"].setdefault("devices", []).append(
            {"allow": True, "access": "rwm", **node}
        )
    for library in site["libraries"]:
        spec["mounts"].append(
            {
                "destination": f"/usr/lib/{os.uname().machine}-linux-gnu/{Path(library).name}",
                "type": "bind",
                "source": library,
                "options": ["rbind", "ro"],
            }
        )
    return spec


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
