# SPDX-License-Identifier: Apache-2.0
"""The files of a container, on real tmpfs mounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.abi import (
    LIMITS_BYTES,
    SLOT_BYTES,
    SLOT_OFFSET,
    USAGE_BYTES,
    USAGE_HEADER_BYTES,
    constants,
    ffi,
)
from runtime_shim.errors import RefusedError
from runtime_shim.region import Region, Regions, check_allocation, read_usage, repair_usage
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD, allocation, part

PRELOAD = b"/dev/vgpu/libvgpu.so\n"


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    regions = Regions(tmp_path / "containers")
    regions.prepare()
    yield regions
    regions.close()
    regions.sweep(())


@pytest.fixture
def region(regions: Regions) -> Region:
    return regions.create(allocation(part(), part(OTHER_CARD, 5 * GIB, 50)), PRELOAD)


def limits_of(region: Region) -> Any:  # noqa: ANN401 - a cffi struct
    content = region.limits_path.read_bytes()
    assert len(content) == LIMITS_BYTES
    limits = ffi.new("struct vgpu_limits *")
    ffi.memmove(limits, content, LIMITS_BYTES)
    return limits


def write_slot(path: Path, index: int, used_bytes: int, state: int = 2, flags: int = 0) -> None:
    slot: Any = ffi.new("struct vgpu_usage_slot *")
    slot.state = state
    slot.flags = flags
    slot.dev[0].used_bytes = used_bytes
    header: Any = ffi.new("struct vgpu_usage *")
    with path.open("r+b") as file:
        ffi.buffer(header)[:USAGE_HEADER_BYTES] = file.read(USAGE_HEADER_BYTES)
        header.slots_high = max(header.slots_high, index + 1)
        file.seek(0)
        file.write(ffi.buffer(header)[:USAGE_HEADER_BYTES])
        file.seek(SLOT_OFFSET + index * SLOT_BYTES)
        file.write(ffi.buffer(slot)[:])


def mounted_at(path: Path) -> int:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sum(line.split()[4] == str(path) for line in lines)


def test_limits_say_what_was_promised(region: Region) -> None:
    limits = limits_of(region)

    assert limits.header.magic == constants.VGPU_LIMITS_MAGIC
    assert (limits.header.major, limits.header.size) == (1, LIMITS_BYTES)
    assert limits.ndev == 2
    assert limits.seq % 2 == 0
    assert bytes(limits.dev[1].uuid).hex() == OTHER_CARD[4:].replace("-", "")
    assert limits.dev[1].kind == constants.VGPU_KIND_GPU
    assert limits.dev[1].memory_bytes == 5 * GIB
    assert (limits.dev[1].cores_percent, limits.dev[1].mode) == (50, constants.VGPU_MODE_HARD)


def test_files_have_the_modes_of_the_contract(region: Region) -> None:
    assert region.limits_path.stat().st_mode & 0o777 == 0o444
    assert region.usage_path.stat().st_mode & 0o777 == 0o666
    assert region.folder.stat().st_mode & 0o777 == 0o700
    assert region.usage_path.parent.stat().st_mode & 0o777 == 0o700
    assert region.preload_path.read_bytes() == PRELOAD


def test_a_preload_list_is_written_whole(regions: Regions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may take a part. Half of our line would preload nothing."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:5]))

    region = regions.create(allocation(), PRELOAD)

    assert region.preload_path.read_bytes() == PRELOAD


def test_usage_has_a_small_tmpfs_of_its_own(region: Region) -> None:
    status = os.statvfs(region.usage_path)

    assert mounted_at(region.usage_path.parent) == 1
    assert status.f_blocks * status.f_frsize == 2 << 20
    assert status.f_files == 8
    assert region.usage_path.stat().st_size == USAGE_BYTES


def test_limits_change_in_place(region: Region) -> None:
    inode, seq = region.limits_path.stat().st_ino, limits_of(region).seq
    changed = pb.Allocation()
    changed.CopyFrom(region.allocation)
    changed.slices[0].memory_bytes = GIB

    region.update(changed)
    region.beat(123)
    region.set_overhead(1, 456)

    limits = limits_of(region)
    assert region.limits_path.stat().st_ino == inode
    assert limits.dev[0].memory_bytes == GIB
    assert limits.seq == seq + 4, "libvgpu copies the numbers only when it changes"
    assert limits.heartbeat_ns == 123
    assert limits.dev[1].overhead_bytes == 456


def test_a_restart_gets_fresh_files_in_the_same_place(regions: Regions, region: Region) -> None:
    write_slot(region.usage_path, 0, GIB)

    again = regions.create(region.allocation, PRELOAD)

    assert again.folder == region.folder
    assert read_usage(again.usage_path, again.allocation).devices[0].used_bytes == 0
    assert mounted_at(again.usage_path.parent) == 1


def test_a_usage_file_that_is_still_held_does_not_starve_the_next(
    regions: Regions, region: Region
) -> None:
    with region.usage_path.open("r+b") as held:
        held.write(b"x" * USAGE_BYTES)
        held.flush()

        again = regions.create(region.allocation, PRELOAD)

        again.usage_path.write_bytes(b"y" * USAGE_BYTES)  # would fail with ENOSPC
    assert mounted_at(again.usage_path.parent) == 1


def test_remove_leaves_nothing(regions: Regions, region: Region) -> None:
    regions.remove(region.allocation.allocation_id)

    assert not region.folder.exists()
    assert mounted_at(region.usage_path.parent) == 0
    region.beat(1)  # a late writer does nothing
    regions.remove(region.allocation.allocation_id)  # nor does a second removal


def test_sweep_removes_what_nobody_owns(regions: Regions, region: Region) -> None:
    kept = regions.create(allocation(), PRELOAD)
    (regions.folder / "stray file").write_text("")

    removed = regions.sweep([kept.allocation.allocation_id])

    assert set(removed) == {region.allocation.allocation_id, "stray file"}
    assert os.listdir(regions.folder) == [kept.allocation.allocation_id]
    assert mounted_at(kept.usage_path.parent) == 1


def test_another_agent_adopts_the_files(regions: Regions, region: Region) -> None:
    regions.close()
    later = Regions(regions.folder)

    adopted = later.adopt(region.allocation)

    assert adopted is not None
    adopted.beat(77)
    assert limits_of(adopted).heartbeat_ns == 77
    assert later.adopt(allocation()) is None
    later.close()


def test_usage_adds_up_live_slots(region: Region) -> None:
    write_slot(region.usage_path, 0, GIB)
    write_slot(region.usage_path, 1, 7, state=constants.VGPU_SLOT_FREE)
    write_slot(region.usage_path, 2, 5)

    usage = read_usage(region.usage_path, region.allocation)

    assert usage.damage == ""
    assert usage.devices[0].used_bytes == GIB + 5
    assert usage.devices[0].processes == 2
    assert usage.devices[1].used_bytes == 0


@pytest.mark.parametrize(
    ("used", "part_of_reason"),
    [
        ([3 * GIB], "a process claims"),
        ([2**64 - 1], "a process claims"),
        ([2 * GIB, 2 * GIB], "processes claim"),
    ],
)
def test_no_number_exceeds_the_slice(region: Region, used: list[int], part_of_reason: str) -> None:
    for index, amount in enumerate(used):
        write_slot(region.usage_path, index, amount)

    usage = read_usage(region.usage_path, region.allocation)

    assert usage.devices[0].used_bytes == 2 * GIB
    assert part_of_reason in usage.damage


@pytest.mark.parametrize(
    ("size", "part_of_reason"), [(0, "size is 0"), (10, "size is 10"), (1 << 30, "size is 1073")]
)
def test_a_changed_size_is_damage_and_is_repaired(
    region: Region, size: int, part_of_reason: str
) -> None:
    os.truncate(region.usage_path, size)

    damage = read_usage(region.usage_path, region.allocation).damage
    repair_usage(region.usage_path)

    assert part_of_reason in damage
    assert read_usage(region.usage_path, region.allocation, 1024).damage == ""
    assert region.usage_path.stat().st_size == USAGE_BYTES


def test_an_erased_header_is_damage_and_is_repaired(region: Region) -> None:
    with region.usage_path.open("r+b") as file:
        file.write(bytes(64))

    damage = read_usage(region.usage_path, region.allocation).damage
    repair_usage(region.usage_path)

    assert damage == "header is overwritten"
    assert read_usage(region.usage_path, region.allocation, 1024).damage == ""


def test_more_slots_than_there_are_is_damage(region: Region) -> None:
    with region.usage_path.open("r+b") as file:
        file.seek(ffi.offsetof("struct vgpu_usage", "slots_high"))
        file.write(b"\xff\xff\xff\xff")

    assert "4294967295 slots" in read_usage(region.usage_path, region.allocation).damage


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(offset=st.integers(0, USAGE_BYTES), garbage=st.binary(min_size=1, max_size=4096))
def test_any_bytes_are_read_without_harm(region: Region, offset: int, garbage: bytes) -> None:
    with region.usage_path.open("r+b") as file:
        file.seek(min(offset, USAGE_BYTES - len(garbage)))
        file.write(garbage)

    usage = read_usage(region.usage_path, region.allocation)

    for device, promised in zip(usage.devices, region.allocation.slices, strict=True):
        assert 0 <= device.used_bytes <= promised.memory_bytes


def _with(**changes: object) -> pb.Allocation:
    broken = allocation()
    for name, value in changes.items():
        setattr(broken.slices[0], name, value)
    return broken


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (_with(memory_bytes=0), "has no valid limit"),
        (_with(cores_percent=0), "has no valid limit"),
        (_with(cores_percent=101), "has no valid limit"),
        (_with(cores_max_percent=5), "has no valid limit"),
        (_with(reserved_percent=26), "has no valid limit"),
        (_with(virtual_memory_bytes=1), "has no valid limit"),
        (_with(memory_bytes=2**63), rf"gives {2**63} bytes of card {CARD}, which has {8 * GIB}"),
        (_with(memory_bytes=8 * GIB + 1), "which has"),
        (_with(compute_mode=0), "has no valid limit"),
        (_with(card_uuid="GPU-0"), "does not end in a UUID"),
        (_with(card_uuid="0"), "neither a GPU- nor a MIG- UUID"),
        (allocation(part(), part()), "names a card twice"),
        (allocation(*[part()] * 17), "has 17 cards"),
        (allocation(allocation_id="../x"), "allocation id '../x' is not valid"),
        (pb.Allocation(allocation_id="a"), "has 0 cards"),
    ],
)
def test_an_allocation_that_limits_nothing_is_refused(broken: pb.Allocation, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        check_allocation(broken, {CARD: 8 * GIB})


def test_a_sound_allocation_is_taken() -> None:
    whole = part(CARD, memory_bytes=8 * GIB)
    check_allocation(allocation(whole, part("MIG-" + OTHER_CARD[4:])), {CARD: 8 * GIB})
