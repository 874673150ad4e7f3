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
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from runtime_shim.inventory import CardFacts, Inventory

logger = logging.getLogger(__name__)

# A first context on an idle H100 takes 0.3 s, with eight cards and a cold driver some seconds.
_PROBE_SECONDS = 30.0
# A card that was busy or full is tried again after this time.
_RETRY_SECONDS = 60.0


class Calibration:
    """The costs, kept in one file; a new driver version measures anew."""

    def __init__(
        self, file: Path, probe: Path, library_dirs: Sequence[Path], inventory: Inventory
    ) -> None:
        self._file = file
        self._probe = probe
        self._library_dirs = library_dirs
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
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
        folders = [str(folder) for folder in self._library_dirs]
        if folders:
            inherited = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = ":".join([*folders, *filter(None, [inherited])])
        try:
            process = await asyncio.create_subprocess_exec(
                self._probe,
                "--hold",
                str(int(_PROBE_SECONDS)),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            logger.warning("vgpu-probe cannot run", extra={"reason": str(error)})
            return None
        try:
            assert process.stdout is not None
            async with asyncio.timeout(_PROBE_SECONDS):
                line = await process.stdout.readline()
            if not _made_a_context(line):
                logger.warning(
                    "context not measured",
                    extra={"card": uuid, "reason": line.decode(errors="replace")[:200].strip()},
                )
                return None
            found = await self._inventory.processes(uuid)
            held = {process.pid: process.used_bytes for process in found or ()}
            return held.get(process.pid)
        except TimeoutError:
            logger.warning("context not measured", extra={"card": uuid, "reason": "time is over"})
            return None
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _write(self) -> None:
        temporary = self._file.with_suffix(".new")
        content = {"driver_version": self._driver_version, "bytes": self._bytes}
        try:
            temporary.write_text(json.dumps(content, indent=1) + "\n")
            temporary.replace(self._file)
        except OSError as error:  # measured again after a restart
            logger.warning("measured context costs not kept", extra={"reason": str(error)})


def _made_a_context(line: bytes) -> bool:
    """Return whether the probe's output shows one card on which it has a context."""
    try:
        devices = json.loads(line)["devices"]
        return len(devices) == 1 and devices[0]["mem_get_info"]["code"] == 0
    except (ValueError, KeyError, TypeError):
        return False
