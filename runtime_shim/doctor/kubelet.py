# SPDX-License-Identifier: Apache-2.0
"""Checks what the kubelet knows of this node's resources (Kubernetes mode)."""

from __future__ import annotations

import asyncio

from runtime_shim.config import Config
from runtime_shim.device_plugin.listing import is_slot
from runtime_shim.device_plugin.resources import resources_of
from runtime_shim.doctor.finding import Finding, fail, ok, warn

_SECONDS = 10.0


def check_kubelet(config: Config) -> Finding:
    """Ask the kubelet which devices it has of each resource that this node advertises."""
    # gRPC takes a tenth of a second to import.
    from runtime_shim.kubelet import Kubelet, KubeletError

    settings = config.device_plugin
    try:
        devices = asyncio.run(Kubelet(settings.kubelet_dir).devices(_SECONDS))
    except KubeletError as error:
        return fail(
            "kubelet", str(error), "see that the kubelet runs, and device_plugin.kubelet_dir"
        )
    counts = []
    for resource in resources_of(settings):
        names = devices.get(resource.name, frozenset())
        if others := sorted(name for name in names if not is_slot(name)):
            return fail(
                "kubelet",
                f"another plugin serves {resource.name}: {others[0]!r} is one of its devices",
                "remove that plugin from this node, or the resource from device_plugin.dialects",
            )
        if not names:
            return warn(
                "kubelet",
                f"it has no healthy slot of {resource.name}",
                "see journalctl -u vgpu-node-agent, and the cards' health",
            )
        counts.append(f"{len(names)} of {resource.name}")
    return ok("kubelet", f"has {', '.join(counts) or 'nothing of ours, as configured'}")
