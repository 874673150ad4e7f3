# SPDX-License-Identifier: Apache-2.0
"""Whether a container sees exactly what its pod was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime_shim.abi import ffi
from tests.e2e.namespace import Namespace, allocation
from tests.e2e.pods import Json


async def sees_its_slice(namespace: Namespace, item: Json, container: str = "main") -> list[str]:
    """Assert that a container that ran the probe has what was written on its pod, and no more.

    Returns its cards.
    """
    name = item["metadata"]["name"]
    given = allocation(item)[container]
    seen = await namespace.probe(name, container)

    devices = seen["devices"]
    where = f"{namespace.name}/{name} {container}: given {given}, sees {seen}"
    promised = {part["card"]: part["memory_bytes"] for part in given}
    # A driver numbers its cards as they sit on the bus, whatever the order of the slices.
    for size in ("mem_get_info", "nvml"):
        assert {each["uuid"]: each[size]["total"] for each in devices} == promised, where
    assert {each["uuid"]: each["total_memory"]["bytes"] for each in devices} == promised, where
    assert len(devices) == len(given), where
    assert seen["words"][0]["bytes"] == promised[devices[0]["uuid"]], where
    assert promises(namespace, item, container) == [
        (part["memory_bytes"], part["cores_percent"]) for part in given
    ], where
    return [part["card"] for part in given]


def promises(namespace: Namespace, item: Json, container: str) -> list[tuple[int, int]]:
    """Return memory in bytes and cores in percent by card, as libvgpu reads them."""
    uuid = json.loads(item["metadata"]["annotations"]["vgpu.dev/container-uuids"])[container]
    file: Path = namespace.cluster.node.run_dir / "containers" / uuid / "limits"
    content: Any = ffi.from_buffer("struct vgpu_limits *", bytearray(file.read_bytes()))
    return [
        (int(content.dev[index].memory_bytes), int(content.dev[index].cores_percent))
        for index in range(content.ndev)
    ]
