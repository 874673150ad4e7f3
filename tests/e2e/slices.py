# SPDX-License-Identifier: Apache-2.0
"""Whether a container sees exactly what its pod was given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime_shim.abi import ffi
from tests.e2e.namespace import Namespace, allocation
from tests.e2e.pods import STEP_BYTES, Json

Slice = tuple[str, int, int]
"""A card's UUID, bytes of its memory, and percent of its cores."""


async def sees_its_slice(namespace: Namespace, item: Json, container: str = "main") -> list[str]:
    """Assert that a container that ran the probe has what was written on its pod, and no more.

    Returns its cards.
    """
    given = [
        (part["card"], part["memory_bytes"], part["cores_percent"])
        for part in allocation(item)[container]
    ]
    await sees(namespace, item, container, given)
    return [card for card, _, _ in given]


async def sees(namespace: Namespace, item: Json, container: str, given: Sequence[Slice]) -> None:
    """Assert that a container that ran the probe has these slices, and no more."""
    name = item["metadata"]["name"]
    seen = await namespace.probe(name, container)

    devices = seen["devices"]
    where = f"{namespace.name}/{name} {container}: given {given}, sees {seen}"
    promised = {card: memory for card, memory, _ in given}
    # A driver numbers its cards as they sit on the bus, whatever the order of the slices.
    for size in ("mem_get_info", "nvml"):
        assert {each["uuid"]: each[size]["total"] for each in devices} == promised, where
    assert {each["uuid"]: each["total_memory"]["bytes"] for each in devices} == promised, where
    assert len(devices) == len(given), where
    first = promised[devices[0]["uuid"]]
    assert seen["words"][0]["bytes"] == first - first % STEP_BYTES, where
    amounts = [(memory, cores) for _, memory, cores in given]
    assert promises(namespace, item, container) == amounts, where


def promises(namespace: Namespace, item: Json, container: str) -> list[tuple[int, int]]:
    """Return memory in bytes and cores in percent by card, as libvgpu reads them."""
    uuid = json.loads(item["metadata"]["annotations"]["vgpu.dev/container-uuids"])[container]
    file: Path = namespace.cluster.node.run_dir / "containers" / uuid / "limits"
    content: Any = ffi.from_buffer("struct vgpu_limits *", bytearray(file.read_bytes()))
    return [
        (int(content.dev[index].memory_bytes), int(content.dev[index].cores_percent))
        for index in range(content.ndev)
    ]
