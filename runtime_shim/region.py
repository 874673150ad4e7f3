# SPDX-License-Identifier: Apache-2.0
"""The files that the agent and one container share: limits, usage and the preload list.

`limits` is mapped here for its whole life and rewritten in place. `usage` belongs to the tenant: it
is read by pread alone, every number is clamped, and nothing in it decides anything but a display
and the overhead that NVML has already bounded.

Both stay open for writing for as long as an agent has them: the kernel then grants nobody a lease,
which would make every later open wait. Another owner would not help: CAP_SETUID is in the engines'
default set, and with it a container becomes any uid.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.abi import (
    LIMITS_BYTES,
    SLOT_BYTES,
    SLOT_OFFSET,
    USAGE_BYTES,
    USAGE_HEADER_BYTES,
    card_identity,
    constants,
    ffi,
    fill_header,
)
from runtime_shim.errors import RefusedError
from runtime_shim.files import open_at_once, read_at_once, write_all

logger = logging.getLogger(__name__)

# A tmpfs of one file: 2 MiB, and 8 inodes. Source: docs/contract.md §3.
_USAGE_MOUNT_OPTIONS = b"size=2m,nr_inodes=8,mode=0700"
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_RECORD = "claim.json"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_MODES = {
    pb.COMPUTE_MODE_HARD: constants.VGPU_MODE_HARD,
    pb.COMPUTE_MODE_BURST: constants.VGPU_MODE_BURST,
}

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class DeviceUsage:
    """What a container's processes say that they hold on one card; never above its slice."""

    used_bytes: int
    processes: int
    kept_bytes: int = 0
    """Of that, what ended processes have left to forked children: NVML names nobody for it."""


class SlotCounters(NamedTuple):
    """What one process says of itself on one card; a display, and only where it grows."""

    busy_ns: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a usage file says, clamped."""

    devices: tuple[DeviceUsage, ...]
    """In the order of the allocation's slices."""
    slots: Mapping[tuple[int, int], tuple[SlotCounters, ...]] = field(default_factory=dict)
    """Each used slot, by its index and its owner's generation, in the order of the slices."""
    damage: str = ""
    """Why not everything in the file can be true; empty when it can."""
    slots_high: int = 0
    """How many slots it says were ever used."""


class Region:
    """The files of one container with a library. Calls from any thread; one writer at a time."""

    def __init__(self, folder: Path, allocation: pb.Allocation) -> None:
        """Without its files until `attach` or `open`: meanwhile nothing is written."""
        self.folder = folder
        self.allocation = allocation
        self.slots_seen = 0
        """The most slots that its usage file ever said were used."""
        self._lock = threading.Lock()
        self._closed = False
        self._mapping: mmap.mmap | None = None
        self._usage: int | None = None
        self._limits: Any = None
        self._is_unwritten = False

    @property
    def limits_path(self) -> Path:
        """The file that the tenant maps read-only."""
        return self.folder / "limits"

    @property
    def usage_path(self) -> Path:
        """The file that the tenant writes."""
        return self.folder / "usage" / "usage"

    @property
    def preload_path(self) -> Path:
        """What the container sees as /etc/ld.so.preload."""
        return self.folder / "ld.so.preload"

    def attach(self, limits: int, usage: int | None) -> None:
        """Take the files, by descriptors that are open for writing; duplicates both."""
        with self._lock:
            if self._closed:
                return
            self._mapping = mmap.mmap(limits, LIMITS_BYTES)  # holds a descriptor of its own
            self._usage = None if usage is None else os.dup(usage)
            # The cast keeps no export of the buffer, so that close() can unmap.
            self._limits = ffi.cast("struct vgpu_limits *", ffi.from_buffer(self._mapping))
            if self._is_unwritten:
                write_limits(self._limits, self.allocation)

    def open(self, open_file: Callable[[Path, int], int]) -> bool:
        """Take the files that an earlier agent left; tell whether `limits` is one of ours.

        Raises FileNotFoundError without `limits`, and what `open_file` raises.
        """
        with contextlib.ExitStack() as stack:
            limits = open_file(self.limits_path, os.O_RDWR | os.O_NOFOLLOW)
            stack.callback(os.close, limits)
            if os.fstat(limits).st_size != LIMITS_BYTES:
                return False
            usage = None
            with contextlib.suppress(FileNotFoundError):
                usage = open_file(self.usage_path, os.O_RDWR | os.O_NOFOLLOW)
                stack.callback(os.close, usage)
            self.attach(limits, usage)
            return True

    def beat(self, now_ns: int) -> None:
        """Show a sign of life; `now_ns` is CLOCK_MONOTONIC."""
        with self._lock:
            if self._limits is not None:
                self._limits.heartbeat_ns = now_ns

    def set_overhead(self, index: int, overhead_bytes: int) -> None:
        """Publish what NVML sees on the index-th card beyond the container's own account."""
        with self._lock:
            if self._limits is not None:
                device = self._limits.dev[index]
                if device.overhead_bytes != overhead_bytes:
                    with _rewriting(self._limits):
                        device.overhead_bytes = overhead_bytes

    def overhead_bytes(self, index: int) -> int:
        """Return what was published last as seen on the index-th card beyond the account."""
        with self._lock:
            return int(self._limits.dev[index].overhead_bytes) if self._limits is not None else 0

    def set_alone(self, alone: Sequence[bool], *, wake: bool = False) -> None:
        """Publish on which cards no other slice is, in the order of the slices.

        `wake`: let the processes look again at everything, also if nothing has changed.
        """
        with self._lock:
            if self._limits is not None:
                devices = list(zip(self._limits.dev, map(int, alone), strict=False))
                if wake or any(device.alone != value for device, value in devices):
                    with _rewriting(self._limits):
                        for device, value in devices:
                            device.alone = value

    def set_context(self, sizes_bytes: Sequence[int]) -> None:
        """Publish what one context costs on each card, in the order of the slices."""
        with self._lock:
            if self._limits is not None:
                devices = list(zip(self._limits.dev, sizes_bytes, strict=False))
                if any(device.context_bytes != size_bytes for device, size_bytes in devices):
                    with _rewriting(self._limits):
                        for device, size_bytes in devices:
                            device.context_bytes = size_bytes

    def update(self, allocation: pb.Allocation) -> None:
        """Rewrite the promise in place; a reader sees the old one or the new one."""
        with self._lock:
            self.allocation = allocation
            if self._limits is not None:
                write_limits(self._limits, allocation)
            self._is_unwritten = self._limits is None

    def close(self) -> None:
        """Unmap; the files stay, and later calls do nothing."""
        with self._lock:
            self._closed = True
            self._limits = None
            if self._mapping is not None:
                self._mapping.close()
            if self._usage is not None:
                os.close(self._usage)
                self._usage = None


def write_limits(limits: Any, allocation: pb.Allocation) -> None:  # noqa: ANN401 - a cffi struct
    """Write the promise of `allocation`."""
    with _rewriting(limits):
        _write_promise(limits, allocation)


@contextlib.contextmanager
def _rewriting(limits: Any) -> Iterator[None]:  # noqa: ANN401 - a cffi struct
    """Change numbers of which readers keep a copy: they take another one when `seq` has changed.

    It is odd meanwhile, and readers look again. The interpreter's own atomic operations between two
    statements order the stores also on arm64.
    """
    limits.seq = (limits.seq | 1) & 0xFFFFFFFF
    yield
    limits.seq = (limits.seq + 1) & 0xFFFFFFFF


def _write_promise(limits: Any, allocation: pb.Allocation) -> None:  # noqa: ANN401 - a cffi struct
    fill_header(limits.header, constants.VGPU_LIMITS_MAGIC, LIMITS_BYTES)
    limits.allocation_uuid = _allocation_bytes(allocation.allocation_id)
    limits.ndev = len(allocation.slices)
    for device, part in zip(limits.dev, allocation.slices, strict=False):
        kind, identity = card_identity(part.card_uuid)
        device.uuid = identity
        device.kind = kind
        device.mode = _MODES[part.compute_mode]
        device.memory_bytes = part.memory_bytes
        device.virtual_memory_bytes = part.virtual_memory_bytes
        device.cores_percent = part.cores_percent
        device.reserved_percent = part.reserved_percent
        device.cores_max_percent = part.cores_max_percent
        device.priority = part.priority
        device.weight = part.weight


def check_allocation(allocation: pb.Allocation, card_bytes: Mapping[str, int]) -> None:
    """Raise RefusedError unless every number in `allocation` is a limit that can be kept.

    `card_bytes`: the whole memory of each card that is known, by its UUID. Whether a card is here
    at all is not asked.
    """
    remedy = "this is a fault of the scheduler cache; this container is not started"
    if not _ID.fullmatch(allocation.allocation_id):
        raise RefusedError(f"the allocation id {allocation.allocation_id!r} is not valid", remedy)
    if not 1 <= len(allocation.slices) <= constants.VGPU_MAX_DEVICES:
        raise RefusedError(f"the allocation has {len(allocation.slices)} cards", remedy)
    for part in allocation.slices:
        try:
            card_identity(part.card_uuid)
        except ValueError as error:
            raise RefusedError(f"the allocation's card {error}", remedy) from error
        if (
            part.memory_bytes == 0
            or not 1 <= part.cores_percent <= 100
            or not part.cores_percent <= part.cores_max_percent <= 100
            or part.reserved_percent > part.cores_max_percent
            or 0 < part.virtual_memory_bytes < part.memory_bytes
            or part.compute_mode not in _MODES
        ):
            raise RefusedError(
                f"the allocation on card {part.card_uuid} has no valid limit", remedy
            )
        card = card_bytes.get(part.card_uuid)
        if card is not None and part.memory_bytes > card:
            raise RefusedError(
                f"the allocation gives {part.memory_bytes} bytes of card {part.card_uuid}, which"
                f" has {card}",
                "let the scheduler that decided it give no more than the card has",
            )
    if len({part.card_uuid for part in allocation.slices}) != len(allocation.slices):
        raise RefusedError("the allocation names a card twice", remedy)


class Regions:
    """All regions of the node, below one folder. Blocking calls; any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Region] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Make the folder, root's alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    def get(self, allocation_id: str) -> Region | None:
        """Return the open region of an allocation, if it has one."""
        return self._open.get(allocation_id)

    def all(self) -> list[Region]:
        """Return every open region."""
        with self._lock:
            return list(self._open.values())

    def create(
        self, allocation: pb.Allocation, preload: bytes, context_bytes: Sequence[int] = ()
    ) -> Region:
        """Make the files of a container that is about to start, anew if there were any.

        `preload` is the whole text of its ld.so.preload, `context_bytes` the cost of a context on
        each card in the order of the slices, where it is known.
        The slots of an earlier run would name processes of a PID namespace that is gone.
        """
        self._close_one(allocation.allocation_id)
        folder = self.folder / allocation.allocation_id
        usage = folder / "usage"
        try:
            folder.mkdir(mode=0o700)
            fresh = True
        except FileExistsError:
            fresh = not (os.path.ismount(usage) and _emptied(folder))
            if fresh:
                _remove_folder(folder)
                folder.mkdir(mode=0o700)
        if fresh:
            usage.mkdir(mode=0o700)
            _mount_usage(usage)
        region = Region(folder, allocation)
        with _new_file(folder / "ld.so.preload", 0o444) as descriptor:
            write_all(descriptor, preload)
        with (
            _new_file(region.usage_path, 0o666) as opened_usage,
            _new_file(region.limits_path, 0o444) as opened_limits,
        ):
            os.ftruncate(opened_usage, USAGE_BYTES)
            os.pwrite(opened_usage, _FRESH_HEADER, 0)
            os.ftruncate(opened_limits, LIMITS_BYTES)
            region.attach(opened_limits, opened_usage)
        region.update(allocation)
        region.set_context(context_bytes)
        return self._remember(region)

    def adopt(self, allocation: pb.Allocation) -> Region | None:
        """Open the files that an earlier agent left for a running container; None without files.

        Where the container took a lease on one while no agent ran, the region has no files yet. A
        thread waits for them: from the moment it asks, the kernel grants no further lease.
        """
        if not _ID.fullmatch(allocation.allocation_id):
            return None
        region = Region(self.folder / allocation.allocation_id, allocation)
        try:
            if not region.open(open_at_once):
                return None
        except FileNotFoundError:
            return None
        except BlockingIOError as error:
            logger.warning(
                "files of a container are kept from the agent",
                extra={"allocation_id": allocation.allocation_id, "reason": str(error)},
            )
            threading.Thread(target=_wait_for_files, args=(region,), daemon=True).start()
        return self._remember(region)

    def record(self, allocation_id: str, content: bytes) -> None:
        """Keep what the agent knows of a container beside its files, for an agent that lost it."""
        folder = self.folder / allocation_id
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(
            folder / _RECORD, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)

    def records(self) -> dict[str, bytes]:
        """Return what `record` kept, by allocation id."""
        found = {}
        for name in self.names():
            with contextlib.suppress(OSError):
                found[name] = (self.folder / name / _RECORD).read_bytes()
        return found

    def names(self) -> set[str]:
        """Return the names of all folders, of whatever allocation."""
        return set(os.listdir(self.folder))

    def remove(self, allocation_id: str) -> None:
        """Unmount and delete the files of an allocation; a live container keeps its own view."""
        self._close_one(allocation_id)
        _remove_folder(self.folder / allocation_id)

    def sweep(self, keep: Iterable[str]) -> list[str]:
        """Remove what belongs to no allocation in `keep` and return the names."""
        leftovers = sorted(set(os.listdir(self.folder)) - set(keep))
        for name in leftovers:
            _remove_folder(self.folder / name)
        return leftovers

    def close(self) -> None:
        """Unmap everything; files and mounts stay for the containers and the next agent."""
        with self._lock:
            regions, self._open = self._open, {}
        for region in regions.values():
            region.close()

    def _close_one(self, allocation_id: str) -> None:
        with self._lock:
            region = self._open.pop(allocation_id, None)
        if region is not None:
            region.close()

    def _remember(self, region: Region) -> Region:
        with self._lock:
            self._open[region.allocation.allocation_id] = region
        return region


def read_usage(path: Path, allocation: pb.Allocation, slots_seen: int = 0) -> Usage:
    """Return what the usage file at `path` says about the slices of `allocation`, clamped.

    A file that says that fewer than `slots_seen` slots were ever used is forged: all are read. So
    is one of which all were used without the last one: libvgpu writes that when it finds a forgery.
    OSError when there is no file, or a lease on it.
    """
    descriptor = open_at_once(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        header = os.pread(descriptor, USAGE_HEADER_BYTES, 0)
        damage = _header_damage(size, header)
        if damage:
            return Usage(devices=_nothing(allocation), damage=damage)
        high = count = _usage_header(header).slots_high
        if high < slots_seen:
            damage = f"only {high} slots are said to be used, after {slots_seen}"
            count = constants.VGPU_MAX_SLOTS
        slots = os.pread(descriptor, count * SLOT_BYTES, SLOT_OFFSET)
        if high == constants.VGPU_MAX_SLOTS > slots_seen and not any(slots[-SLOT_BYTES:]):
            damage = "the number of used slots was forged"
    finally:
        os.close(descriptor)
    usage = _sum_slots(slots, allocation)
    return replace(usage, damage=damage or usage.damage, slots_high=high)


def read_overhead(path: Path, cards: int) -> tuple[int, ...]:
    """Return what a limits file at `path` adds to the account of each card, for a display.

    OSError when there is no file, or a lease on it; nothing when it is none.
    """
    content = read_at_once(path)
    if len(content) != LIMITS_BYTES:
        return (0,) * cards
    limits: Any = ffi.cast("struct vgpu_limits *", ffi.from_buffer(content))
    return tuple(limits.dev[index].overhead_bytes for index in range(cards))


def repair_usage(path: Path) -> None:
    """Give a damaged usage file its size and header back; what else the tenant wrote stays.

    A page that a process has mapped must not end up beyond the end of the file, and a process that
    starts later needs the header. Its word for the slots in use may be forged, too: from now on
    everybody looks at all of them. The tenant's mappings are not touched.
    """
    descriptor = open_at_once(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != USAGE_BYTES:
            os.ftruncate(descriptor, USAGE_BYTES)
        os.pwrite(descriptor, _FRESH_HEADER, 0)
        word = constants.VGPU_MAX_SLOTS.to_bytes(4, "little")
        os.pwrite(descriptor, word, ffi.offsetof("struct vgpu_usage", "slots_high"))
    finally:
        os.close(descriptor)


def _wait_for_files(region: Region) -> None:
    """Open a region's files, which takes until the kernel ends the container's leases."""
    extra = {"allocation_id": region.allocation.allocation_id}
    try:
        if region.open(_open_at_last):
            logger.info("files of a container are the agent's again", extra=extra)
            return
        reason = "limits has another size"
    except OSError as error:
        reason = str(error)
    logger.error("files of a container not opened", extra={**extra, "reason": reason})


def _open_at_last(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _usage_header(header: bytes) -> Any:  # noqa: ANN401 - a cffi struct
    return ffi.cast("struct vgpu_usage *", ffi.from_buffer(header))


def _header_damage(size: int, header: bytes) -> str:
    if size != USAGE_BYTES:
        return f"size is {size}, not {USAGE_BYTES} bytes"
    if len(header) < USAGE_HEADER_BYTES:
        return "it is shorter than its header"
    usage = _usage_header(header)
    if (usage.header.magic, usage.header.major, usage.header.size) != (
        constants.VGPU_USAGE_MAGIC,
        constants.VGPU_ABI_MAJOR,
        USAGE_BYTES,
    ):
        return "header is overwritten"
    if usage.slots_high > constants.VGPU_MAX_SLOTS:
        return f"{usage.slots_high} slots are claimed"
    return ""


def _nothing(allocation: pb.Allocation) -> tuple[DeviceUsage, ...]:
    return tuple(DeviceUsage(used_bytes=0, processes=0) for _ in allocation.slices)


def _sum_slots(slots: bytes, allocation: pb.Allocation) -> Usage:
    limits = [max(part.memory_bytes, part.virtual_memory_bytes) for part in allocation.slices]
    used = [0] * len(limits)
    kept = [0] * len(limits)
    processes = [0] * len(limits)
    damage = ""
    table: Any = ffi.from_buffer("struct vgpu_usage_slot[]", slots)
    counters: dict[tuple[int, int], tuple[SlotCounters, ...]] = {}
    for number, slot in enumerate(table):
        if slot.state == constants.VGPU_SLOT_FREE:
            continue
        if slot.state > constants.VGPU_SLOT_LIVE:
            damage = "a slot has an unknown state"
            continue
        for index, limit in enumerate(limits):
            held = slot.dev[index].used_bytes
            if held > limit:
                damage = f"a process claims {held} bytes of card {index}"
            used[index] += min(held, limit)
            if slot.flags & constants.VGPU_FLAG_KEPT:
                kept[index] += min(held, limit)
            processes[index] += held > 0
        counters[number, slot.gen] = tuple(
            SlotCounters(slot.dev[index].busy_ns, slot.dev[index].refused)
            for index in range(len(limits))
        )
    for index, limit in enumerate(limits):
        if used[index] > limit and not damage:
            damage = f"processes claim {used[index]} bytes of card {index}"
    return Usage(
        devices=tuple(
            DeviceUsage(used_bytes=min(total, limit), processes=count, kept_bytes=min(left, limit))
            for total, limit, count, left in zip(used, limits, processes, kept, strict=True)
        ),
        slots=counters,
        damage=damage,
    )


def _allocation_bytes(allocation_id: str) -> bytes:
    try:
        return uuid.UUID(allocation_id).bytes
    except ValueError:  # a hand-made id in a test or a foreign cache; only shown, never compared
        return bytes(16)


def _fresh_header() -> bytes:
    header = ffi.new("struct vgpu_header *")
    fill_header(header, constants.VGPU_USAGE_MAGIC, USAGE_BYTES)
    return bytes(ffi.buffer(header)[:])


_FRESH_HEADER = _fresh_header()


def _emptied(folder: Path) -> bool:
    """Remove the files of an earlier run; tell whether its tmpfs has room for the next one.

    To unmount takes 5 ms, and a create has not that much time. But a usage file that a process
    still holds keeps its memory.
    """
    for name in ("usage/usage", "limits", "ld.so.preload"):
        (folder / name).unlink(missing_ok=True)
    status = os.statvfs(folder / "usage")
    return status.f_bfree * status.f_frsize >= USAGE_BYTES


@contextlib.contextmanager
def _new_file(path: Path, mode: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield descriptor
        os.fchmod(descriptor, mode)  # whatever the umask is
    finally:
        os.close(descriptor)


def _mount_usage(folder: Path) -> None:
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    target = os.fsencode(folder)
    if _libc.mount(b"vgpu", target, b"tmpfs", flags, _USAGE_MOUNT_OPTIONS) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(folder))


def _remove_folder(folder: Path) -> None:
    # A folder of an earlier agent may carry more than one mount if that agent died in between.
    while _libc.umount2(os.fsencode(folder / "usage"), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        folder.unlink(missing_ok=True)
