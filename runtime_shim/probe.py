# SPDX-License-Identifier: Apache-2.0
"""Makes a context on a card by vgpu-probe, which computes nothing: the proof that a card works."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from runtime_shim.errors import RefusedError, RuntimeShimError

# A first context on an idle H100 takes 0.3 s, with eight cards and a cold driver some seconds.
_PROBE_SECONDS: Final = 30.0
# A process that hangs in a driver does not even end when it is killed.
_END_SECONDS: Final = 5.0


class ProbeError(RuntimeShimError):
    """There is no context on the card; the message says why, as far as anybody knows."""


class Probe:
    """Where the probe is, and how it finds the driver."""

    def __init__(self, program: Callable[[], Path], library_dirs: Sequence[Path]) -> None:
        """`program` returns the probe's verified file. Raises RefusedError and OSError.

        `library_dirs`: searched for driver libraries before the loader's own folders.
        """
        self._program = program
        self._library_dirs = library_dirs
        self._hanging: dict[str, asyncio.subprocess.Process] = {}
        """Those that did not end when they were killed, by card."""

    @contextlib.asynccontextmanager
    async def context(self, card_uuid: str) -> AsyncIterator[int]:
        """Hold a context on a card meanwhile; yields the process that has it. Raises ProbeError."""
        earlier = self._hanging.pop(card_uuid, None)
        if earlier is not None and earlier.returncode is None:  # a card takes no second one with it
            self._hanging[card_uuid] = earlier
            raise ProbeError(f"process {earlier.pid}, an earlier probe, hangs in the driver")
        try:
            process = await asyncio.create_subprocess_exec(
                self._program(),
                "--hold",
                str(int(_PROBE_SECONDS)),
                env=self._environment(card_uuid),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (RefusedError, OSError) as error:
            raise ProbeError(f"vgpu-probe cannot run: {error}") from error
        try:
            assert process.stdout is not None
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    line = await process.stdout.readline()
            except TimeoutError:
                raise ProbeError("time is over") from None
            if not _made_a_context(line):
                raise ProbeError(line.decode(errors="replace")[:200].strip())
            yield process.pid
        finally:
            if process.returncode is None:
                process.kill()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                self._hanging[card_uuid] = process

    def _environment(self, card_uuid: str) -> dict[str, str]:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": card_uuid}
        folders = [str(folder) for folder in self._library_dirs]
        if folders:
            inherited = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = ":".join([*folders, *filter(None, [inherited])])
        return environment


def _made_a_context(line: bytes) -> bool:
    """Return whether the probe's output shows one card on which it has a context."""
    try:
        devices = json.loads(line)["devices"]
        return len(devices) == 1 and devices[0]["mem_get_info"]["code"] == 0
    except (ValueError, KeyError, TypeError):
        return False
