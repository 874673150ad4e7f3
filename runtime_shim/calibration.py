# SPDX-License-Identifier: Apache-2.0
"""What one CUDA context costs on each card of this node, measured and remembered.

A context takes memory that no call asks for: 518 MiB on an H100. libvgpu charges it before the
driver makes one, so the number must be known beforehand. It is a property of card and driver:
vgpu-probe makes a context, allocates nothing, and NVML says what its process holds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from pathlib import Path

from runtime_shim.inventory import CardFacts, Inventory
from runtime_shim.probe import Probe, ProbeError

logger = logging.getLogger(__name__)

# A card that was busy or full is tried again after this time.
_RETRY_SECONDS = 60.0


class Calibration:
    """The costs, kept in one file; a new driver version measures anew."""

    def __init__(self, file: Path, probe: Probe, inventory: Inventory) -> None:
        self._file = file
        self._probe = probe
        self._inventory = inventory
        self._driver_version = ""
        self._bytes: dict[str, int] = {}
        self._tried: dict[str, float] = {}

    def load(self, driver_version: str) -> None:
        """Read what was measured under this driver; anything else in the file is dropped."""
        self._driver_version = driver_version
        try:
            stored = json.loads(self._file.read_text())
            if stored["driver_version"] == driver_version:
                self._bytes = {str(uuid): int(size) for uuid, size in stored["bytes"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("measured context costs unreadable", extra={"reason": str(error)})

    def context_bytes(self, uuids: Iterable[str]) -> list[int]:
        """Return the cost on each card, in order; 0 where none could be measured yet."""
        return [self._bytes.get(uuid, 0) for uuid in uuids]

    async def measure(self, cards: Iterable[CardFacts]) -> None:
        """Measure every card that has no number yet, one after the other."""
        now = asyncio.get_running_loop().time()
        for card in cards:
            if card.uuid in self._bytes or now < self._tried.get(card.uuid, 0.0):
                continue
            self._tried[card.uuid] = now + _RETRY_SECONDS
            size = await self._measure_one(card.uuid)
            if size is None:
                continue
            self._bytes[card.uuid] = size
            logger.info("context measured", extra={"card": card.uuid, "context_bytes": size})
            self._write()

    async def _measure_one(self, uuid: str) -> int | None:
        try:
            async with self._probe.context(uuid) as pid:
                found = await self._inventory.processes(uuid)
                return {process.pid: process.used_bytes for process in found or ()}.get(pid)
        except ProbeError as error:
            logger.warning("context not measured", extra={"card": uuid, "reason": str(error)})
            return None

    def _write(self) -> None:
        temporary = self._file.with_suffix(".new")
        content = {"driver_version": self._driver_version, "bytes": self._bytes}
        try:
            temporary.write_text(json.dumps(content, indent=1) + "\n")
            temporary.replace(self._file)
        except OSError as error:  # measured again after a restart
            logger.warning("measured context costs not kept", extra={"reason": str(error)})
