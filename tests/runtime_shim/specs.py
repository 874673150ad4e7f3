# SPDX-License-Identifier: Apache-2.0
"""Specs and edits for tests: a small spec of the shape that every engine writes; golden files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from runtime_shim.spec import ContainerEdits, DeviceNode, Mount, Spec

GOLDEN = Path(__file__).parent.parent / "golden" / "spec"

_PLAIN: Spec = {
    "ociVersion": "1.0.2-dev",
    "process": {"args": ["/bin/true"], "env": ["PATH=/bin"], "cwd": "/"},
    "root": {"path": "rootfs"},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
    ],
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "mount"}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}]},
    },
}


def plain_spec(
    *env: str,
    mounts: list[dict[str, Any]] | None = None,
    rules: list[dict[str, Any]] | None = None,
    devices: list[dict[str, Any]] | None = None,
    annotations: dict[str, str] | None = None,
) -> Spec:
    """Return a spec of a container that asks for nothing, with these things added at the end."""
    spec = copy.deepcopy(_PLAIN)
    spec["process"]["env"] += env
    spec["mounts"] += mounts or []
    spec["linux"]["resources"]["devices"] += rules or []
    if devices is not None:
        spec["linux"]["devices"] = devices
    if annotations is not None:
        spec["annotations"] = annotations
    return spec


def bind(source: str, destination: str, *options: str) -> dict[str, Any]:
    """Return a bind mount as docker writes it."""
    return {
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": ["rbind", "rprivate", *options],
    }


def edits_of(data: dict[str, Any]) -> ContainerEdits:
    """Return the edits in a golden file's `edits`."""
    return ContainerEdits(
        env=data.get("env", {}),
        mounts=[Mount(**mount) for mount in data.get("mounts", [])],
        devices=[DeviceNode(**device) for device in data.get("devices", [])],
    )


def load(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON in a golden file."""
    return json.loads(path.read_text())
