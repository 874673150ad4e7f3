# SPDX-License-Identifier: Apache-2.0
"""Pods as users write them; what a container then saw of its slice is the first line of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.testbed.kubernetes.cluster import PROBE_IMAGE

Json = dict[str, Any]

# What is refused beyond the limit is part of what the probe prints. PID 1 has to want to end.
STEP_BYTES = 64 << 20
PROBE = f"vgpu-probe --until-refused {STEP_BYTES}"
STAY = "trap 'exit 0' TERM; sleep 3600 & wait"


def limits(memory: str = "1Gi", count: int = 1, cores: int | None = None) -> dict[str, str]:
    """Return what a container asks for in our own dialect."""
    asked = {"vgpu.dev/count": str(count), "vgpu.dev/memory": memory}
    return asked if cores is None else {**asked, "vgpu.dev/cores": str(cores)}


def container(
    name: str = "main",
    asked: Mapping[str, str] | None = None,
    script: str = f"{PROBE}; {STAY}",
    **more: object,
) -> Json:
    """Return a container that tells what it sees, and stays. `asked`: its limits."""
    return {
        "name": name,
        "image": PROBE_IMAGE,
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": dict(asked or {})},
        **more,
    }


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    """Return a pod of these containers; without any, of one that asks for 1 GiB of a card."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "containers": list(containers) or [container(asked=limits())],
            "initContainers": list(init),
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            **spec,
        },
    }
