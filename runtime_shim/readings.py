# SPDX-License-Identifier: Apache-2.0
"""What the agent measured last, for `/metrics` and `vgpuctl top`: values, and the file between the
two. A tenant's words are clamped before they come here.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runtime_shim.files import write_all
from runtime_shim.region import SlotCounters

FILE = "readings.json"
FORMAT_VERSION = 1

# More than any program can be refused in a second, and far less than what breaks a counter.
_REFUSED_PER_SECOND = 1_000_000
_NOTHING = SlotCounters(0, 0)


@dataclass(frozen=True, kw_only=True)
class ProcessReading:
    """One process of a container on one card, in the eyes of the driver."""

    pid: int
    """In the host's PID namespace."""
    used_bytes: int


@dataclass(frozen=True, kw_only=True)
class ContainerReading:
    """One container on one card."""

    allocation_id: str
    container_id: str
    """Empty until the container's first create."""
    namespace: str
    pod: str
    container: str
    """These three are empty without Kubernetes."""
    card_uuid: str
    limit_bytes: int
    used_bytes: int
    """Its account and what NVML sees beyond it: what counts against the limit."""
    nvml_bytes: int | None
    """What NVML sees of its processes; None when NVML does not say."""
    cores_percent: int
    busy_seconds: float
    """How long its kernels kept the card busy since this agent first saw it."""
    busy_percent: float
    """The same for the last look."""
    refused: int
    """Allocations that its limit refused."""
    running: bool
    processes: tuple[ProcessReading, ...] = ()
    """Those that NVML names; none while it does not say."""


@dataclass(frozen=True, kw_only=True)
class CardReading:
    """One card."""

    card_uuid: str
    model: str
    health_reason: str
    """Empty when healthy."""
    memory_bytes: int
    used_bytes: int | None
    """By whomever, as NVML says; None when it does not say."""
    utilization_percent: int | None
    slices: int
    slices_memory_bytes: int
    """What is promised of it in all, to running containers and to others that hold a slice."""
    slices_cores_percent: int


@dataclass(frozen=True, kw_only=True)
class Readings:
    """One look at everything."""

    unix_seconds: float = 0.0
    containers: tuple[ContainerReading, ...] = ()
    cards: tuple[CardReading, ...] = ()


@dataclass
class Totals:
    """What one container's processes were refused and how long they were busy, card by card.

    Slots come and go with processes, so their sum falls: what they grow by is added up here.
    """

    busy_ns: list[int]
    refused: list[int]
    _last: Mapping[tuple[int, int], Sequence[SlotCounters]] = field(default_factory=dict)

    @classmethod
    def of(cls, cards: int) -> Totals:
        """Return nothing yet, for so many cards."""
        return cls(busy_ns=[0] * cards, refused=[0] * cards)

    def growth(
        self, slots: Mapping[tuple[int, int], Sequence[SlotCounters]], elapsed_seconds: float
    ) -> list[SlotCounters]:
        """Return by how much `slots` grew on each card since the last call.

        The tenant wrote them: never faster than a card can work and a program can ask.
        """
        if not slots:  # nobody, or a file that cannot be read: either way nothing is new
            return [_NOTHING] * len(self.busy_ns)
        last, self._last = self._last, slots
        most_busy_ns = int(elapsed_seconds * 1e9)
        most_refused = int(elapsed_seconds * _REFUSED_PER_SECOND)
        growth = []
        for index in range(len(self.busy_ns)):
            busy_ns = refused = 0
            for key, cards in slots.items():
                was = last[key][index] if key in last else _NOTHING
                busy_ns += max(0, cards[index].busy_ns - was.busy_ns)
                refused += max(0, cards[index].refused - was.refused)
            growth.append(SlotCounters(min(busy_ns, most_busy_ns), min(refused, most_refused)))
        return growth


def write_readings(folder: Path, readings: Readings) -> None:
    """Put the file in place of the last one, for root alone. OSError leaves the last one."""
    path = folder / FILE
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, encode_readings(readings))
    finally:
        os.close(descriptor)
    os.replace(draft, path)


def read_readings(folder: Path) -> Readings:
    """Return what the agent wrote last. OSError without it; ValueError when it is none."""
    return decode_readings((folder / FILE).read_bytes())


def remove_readings(folder: Path) -> None:
    """Take the file away: what nobody measures is not shown."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink()


def encode_readings(readings: Readings) -> bytes:
    """Return the file of `readings`."""
    return json.dumps({"version": FORMAT_VERSION, **asdict(readings)}).encode()


def decode_readings(content: bytes) -> Readings:
    """Return the readings in a file. Raises ValueError."""
    table = json.loads(content)
    if not isinstance(table, dict) or table.get("version") != FORMAT_VERSION:
        raise ValueError(f"these are not readings of version {FORMAT_VERSION}")
    try:
        return Readings(
            unix_seconds=float(table["unix_seconds"]),
            containers=tuple(map(_decode_container, table["containers"])),
            cards=tuple(CardReading(**each) for each in table["cards"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error


def _decode_container(table: Mapping[str, Any]) -> ContainerReading:
    # An agent that runs on from before an upgrade writes no processes.
    processes = tuple(ProcessReading(**each) for each in table.get("processes", ()))
    return ContainerReading(**{**table, "processes": processes})
