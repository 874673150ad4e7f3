# SPDX-License-Identifier: Apache-2.0
"""Containers with a share of cards, on the host, and the arbiter between them.

Their files are made by the agent's own code; no agent runs. The limits of what runs inside are
changed in its limits file.
"""

import contextlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vgpu.v1 import scheduler_cache_pb2 as pb

from bench.gpu.places import BARE, CONTEXT_BYTES, ENTER, Place
from bench.gpu.workloads import WORKLOADS, Program, Run, start
from runtime_shim.arbiter import Arbiter
from runtime_shim.region import Region, Regions

MEMORY_BYTES = 16 << 30
BARE_SECONDS = 2.0


@dataclass
class Container:
    """A slice of each of its cards, their limits, and how to start something in it."""

    region: Region
    place: Place

    def limit(self, percent: int, mode: pb.ComputeMode = pb.COMPUTE_MODE_HARD) -> None:
        """Change the limit of what runs inside."""
        allocation = pb.Allocation()
        allocation.CopyFrom(self.region.allocation)
        for part in allocation.slices:
            part.cores_percent = part.reserved_percent = part.cores_max_percent = percent
            part.compute_mode = mode
            if mode == pb.COMPUTE_MODE_BURST:
                part.cores_max_percent = 100
        self.region.update(allocation)


class Slices:
    """Makes containers, and knows what workloads do without one."""

    def __init__(self, folder: Path, cards: Sequence[str], library: Path, arbiter: Path) -> None:
        self.cards = cards
        self._folder = folder
        self._library = library
        self._arbiter = arbiter
        self._regions = Regions(folder / "regions")
        self._regions.prepare()
        self.runs: dict[tuple[str, int | None], Run] = {}
        """Of one container alone, by workload and limit; None: without the library."""

    @contextlib.contextmanager
    def container(self, cards: int = 1, *, alone: bool = False) -> Iterator[Container]:
        """Yield a container with slices of so many cards, without a limit yet."""
        parts = [
            pb.Slice(
                card_uuid=card_uuid,
                memory_bytes=MEMORY_BYTES,
                cores_percent=100,
                reserved_percent=100,
                cores_max_percent=100,
                compute_mode=pb.COMPUTE_MODE_HARD,
            )
            for card_uuid in self.cards[:cards]
        ]
        allocation = pb.Allocation(allocation_id=str(uuid.uuid4()), slices=parts)
        region = self._regions.create(allocation, b"", [CONTEXT_BYTES] * cards)
        folder = self._folder / allocation.allocation_id
        folder.mkdir()
        shutil.copy2(self._library, folder / "libvgpu.so")
        (folder / "limits").symlink_to(region.limits_path)
        (folder / "usage").symlink_to(region.usage_path)
        enter = ("unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh")
        if alone:
            region.set_alone([True] * cards)
        try:
            yield Container(region, Place("vgpu", (*enter, str(folder))))
        finally:
            self._regions.remove(allocation.allocation_id)

    @contextlib.contextmanager
    def programs(self, places: Sequence[Place], name: str) -> Iterator[list[Program]]:
        """Yield a workload's program in each place, started and waiting."""
        programs = start(places, WORKLOADS[name])
        try:
            yield programs
        finally:
            for program in programs:
                program.close()

    @contextlib.contextmanager
    def arbiter(self, containers: Sequence[Container]) -> Iterator[Arbiter]:
        """Yield the arbiter of these containers."""
        arbiter = Arbiter(self._arbiter)
        try:
            arbiter.follow([container.region for container in containers])
            yield arbiter
        finally:
            arbiter.close()

    def bare(self, name: str) -> Run:
        """Return what a workload does without the library, measured once."""
        if (name, None) not in self.runs:
            with self.programs([BARE], name) as (program,):
                self.runs[name, None] = program.run(BARE_SECONDS)
        return self.runs[name, None]

    def close(self) -> None:
        """Unmap everything."""
        self._regions.close()
