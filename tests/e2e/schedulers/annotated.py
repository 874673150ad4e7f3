# SPDX-License-Identifier: Apache-2.0
"""A system that hands its decisions to the device plugin in the pod's annotations, one pod of a
node at a time: HAMi, and Volcano, whose vGPU comes from it.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from typing import ClassVar

from tests.e2e.namespace import Namespace, until
from tests.e2e.pods import Json
from tests.e2e.schedulers.system import MIB, System
from tests.e2e.slices import Slice


class Annotated(System, ABC):
    """Reads what such a system has decided, and whether the plugin has answered it."""

    allocated: ClassVar[str]
    """The annotation with the decision."""
    to_allocate: ClassVar[str]
    """The same, until the plugin has taken it."""
    bind_phase: ClassVar[str]
    lock: ClassVar[str]
    """The annotation of a node on which a pod is being bound."""

    def decided(self, item: Json) -> list[Slice]:
        text = item["metadata"]["annotations"][self.allocated]
        found = []
        for device in text.replace(";", ":").split(":"):
            if device:
                card, _, memory, cores = device.split(",")[:4]
                found.append((card, int(memory) * MIB, int(cores)))
        return found

    async def answered(self, namespace: Namespace, name: str) -> None:
        async def so() -> bool:
            written = (await namespace.pod(name))["metadata"]["annotations"]
            taken = not written.get(self.to_allocate, "").strip(";")
            return taken and written.get(self.bind_phase) == "success"

        await until(so, f"{name}: {self.to_allocate} is taken and {self.bind_phase} is success")

        async def unlocked() -> bool:
            return self.lock not in await asyncio.to_thread(self.node_annotations)

        await until(unlocked, f"{self.lock} is open")
