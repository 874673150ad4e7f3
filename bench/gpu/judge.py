# SPDX-License-Identifier: Apache-2.0
"""What NVML says of the card, and what a container's own account says. Both read from outside."""

import mmap
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pynvml

from runtime_shim.abi import SLOT_BYTES, SLOT_OFFSET, constants

MIB = 1 << 20
# Of struct vgpu_usage_slot, in words: grants, and the first card's used_bytes.
# Source: hook_c/include/vgpu_abi.h.
_GRANTS = 32 // 8
_USED = 128 // 8
# Of struct vgpu_limits: the first card's overhead_bytes.
_OVERHEAD_OFFSET = 128 + 256


class Card:
    """Card 0 as the driver sees it; processes that were there before do not count."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle: Any = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._before = set(self._processes())
        self._used_before = self._used()

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return str(pynvml.nvmlDeviceGetUUID(self._handle))

    @property
    def name(self) -> str:
        """Model and driver."""
        driver = pynvml.nvmlSystemGetDriverVersion()
        return f"{pynvml.nvmlDeviceGetName(self._handle)}, driver {driver}"

    def used_bytes(self) -> int:
        """What all processes since the start hold, contexts included."""
        return sum(used for pid, used in self._processes().items() if pid not in self._before)

    def device_bytes(self) -> int:
        """What the whole card has less than at the start: one number, so of one moment."""
        return self._used() - self._used_before

    def _used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def _processes(self) -> dict[int, int]:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return {process.pid: int(process.usedGpuMemory or 0) for process in found}


class Account:
    """The two files of one container: what its processes write, and what the agent measured."""

    def __init__(self, usage: Path, limits: Path) -> None:
        self._words, self._halves = _mapped(usage), _mapped(usage, "I")
        self._limits = _mapped(limits)

    def used_bytes(self) -> int:
        """The sum of all slots, of one moment: no process was granted anything during the look."""
        while True:
            slots = self._slots()
            before = [self._words[slot + _GRANTS] for slot in slots]
            used = sum(self._words[slot + _USED] for slot in slots)
            if before == [self._words[slot + _GRANTS] for slot in slots]:
                return used

    def overhead_bytes(self) -> int:
        """What the agent has published of memory beyond the account."""
        return self._limits[_OVERHEAD_OFFSET // 8]

    def _slots(self) -> list[int]:
        high = min(self._halves[4], int(constants.VGPU_MAX_SLOTS))
        starts = range(SLOT_OFFSET, SLOT_OFFSET + high * SLOT_BYTES, SLOT_BYTES)
        free = int(constants.VGPU_SLOT_FREE)
        return [start // 8 for start in starts if self._halves[start // 4] != free]


def _mapped(path: Path, word: Literal["Q", "I"] = "Q") -> "memoryview[int]":
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast(word)


@dataclass
class Samples:
    """What a sampler has seen."""

    limit_bytes: int
    ceiling_bytes: int
    device_ceiling_bytes: int
    count: int = 0
    account_above: int = 0
    nvml_above: int = 0
    device_above: int = 0
    device_high: int = 0
    account_high: int = 0
    nvml_high: int = 0


class Sampler:
    """Looks at account and card without a pause, in a thread, until it is stopped."""

    def __init__(self, card: Card, account: Account | None, samples: Samples) -> None:
        self.samples = samples
        self._card = card
        self._account = account
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> Samples:
        """End, and return what was seen."""
        self._ended.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        seen = self.samples
        while not self._ended.is_set():
            used = self._card.used_bytes()
            seen.nvml_high = max(seen.nvml_high, used)
            seen.nvml_above += used > seen.ceiling_bytes
            device = self._card.device_bytes()
            seen.device_high = max(seen.device_high, device)
            seen.device_above += device > seen.device_ceiling_bytes
            seen.count += 1
            if self._account is not None:
                tracked = self._account.used_bytes()
                seen.account_high = max(seen.account_high, tracked)
                seen.account_above += tracked > seen.limit_bytes
            time.sleep(0)


# What the driver takes for a process and its context that NVML lists with no process; measured
# on an H100 with driver 580: 3.25 and 5.6 MiB.
HIDDEN_BYTES = 9 * MIB


def ceiling_bytes(limit_bytes: int, processes: int) -> int:
    """What NVML may show at most for a container that is held to `limit_bytes`."""
    return limit_bytes + max(64 * MIB, limit_bytes // 100) + 8 * MIB * processes
