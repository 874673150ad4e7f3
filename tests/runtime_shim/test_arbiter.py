# SPDX-License-Identifier: Apache-2.0
"""The arbiter's thread on real files. How it divides a card: hook_c/tests/sim_launch.c."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.abi import LIMITS_BYTES, USAGE_BYTES, ffi
from runtime_shim.arbiter import LIBRARY_NAME, Arbiter, Turns, arbitrate
from runtime_shim.region import Region, Regions
from tests.runtime_shim.allocations import CARD, OTHER_CARD, allocation, part

VGPU_MAX_SLOTS = 1024
LIBRARY = Path(__file__).parents[2] / "build" / LIBRARY_NAME
PRELOAD = b"/dev/vgpu/libvgpu.so\n"
DEADLINE_SECONDS = 30.0
SYS_FUTEX, FUTEX_WAKE = 202 if platform.machine() == "x86_64" else 98, 1
_buffers: list[Any] = []  # a cast alone does not keep the mapping


@pytest.fixture
def regions(tmp_path: Path, needs_root: None) -> Iterator[Regions]:
    regions = Regions(tmp_path / "containers")
    regions.prepare()
    yield regions
    regions.close()
    regions.sweep(())


@pytest.fixture
def arbiter() -> Iterator[Arbiter]:
    arbiter = Arbiter(LIBRARY)
    yield arbiter
    arbiter.close()


def mapped(path: Path, layout: str, size: int) -> Any:  # noqa: ANN401 - a cffi struct
    with path.open("r+b") as file:
        buffer = ffi.from_buffer(mmap.mmap(file.fileno(), size))
    _buffers.append(buffer)
    return ffi.cast(f"{layout} *", buffer)


def limits_of(region: Region) -> Any:  # noqa: ANN401 - a cffi struct
    return mapped(region.limits_path, "struct vgpu_limits", LIMITS_BYTES)


def usage_of(region: Region) -> Any:  # noqa: ANN401 - a cffi struct
    return mapped(region.usage_path, "struct vgpu_usage", USAGE_BYTES)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def test_a_container_is_told_whether_it_is_alone(regions: Regions, arbiter: Arbiter) -> None:
    first = regions.create(allocation(part(), part(OTHER_CARD)), PRELOAD)
    limits = limits_of(first)

    arbiter.follow([first])
    assert [limits.dev[0].alone, limits.dev[1].alone] == [1, 1]

    second = regions.create(allocation(part(CARD)), PRELOAD)
    arbiter.follow([first, second])
    assert [limits.dev[0].alone, limits.dev[1].alone] == [0, 1]
    assert limits_of(second).dev[0].alone == 0

    arbiter.follow([first])
    assert [limits.dev[0].alone, limits.dev[1].alone] == [1, 1]


def test_processes_look_again_when_an_arbiter_takes_over(
    regions: Regions, arbiter: Arbiter
) -> None:
    region = regions.create(allocation(part()), PRELOAD)
    before = limits_of(region).seq

    arbiter.follow([region])
    after = limits_of(region).seq
    assert after != before
    assert after % 2 == 0

    arbiter.follow([region])
    assert limits_of(region).seq == after


def test_it_shows_signs_of_life_until_it_is_closed(regions: Regions, arbiter: Arbiter) -> None:
    region = regions.create(allocation(part()), PRELOAD)
    limits = limits_of(region)
    assert limits.arbiter_ns == 0

    arbiter.follow([region])
    first = limits.arbiter_ns
    assert 0 < first <= time.monotonic_ns()
    wait_until(lambda: limits.arbiter_ns > first, "no second sign of life")

    arbiter.close()
    last = limits.arbiter_ns
    time.sleep(0.2)
    assert limits.arbiter_ns == last


def test_who_wants_a_card_gets_it_on_all_its_cards(regions: Regions, arbiter: Arbiter) -> None:
    asking = regions.create(allocation(part(), part(OTHER_CARD)), PRELOAD)
    other = regions.create(allocation(part()), PRELOAD)
    arbiter.follow([asking, other])
    limits, usage = limits_of(asking), usage_of(asking)
    wait_until(lambda: limits.dev[0].gate != 0, "nothing was written")
    assert limits.dev[0].grant_until_ns == 0

    def granted() -> bool:
        usage.turn[1].want += 1
        ends = [limits.dev[card].grant_until_ns for card in range(2)]
        return bool(ends[0] != 0 and ends[0] == ends[1])

    wait_until(granted, "no grant")
    assert limits_of(other).dev[0].grant_until_ns == 0


def test_two_that_want_the_same_card_have_it_in_turn(regions: Regions, arbiter: Arbiter) -> None:
    both = [regions.create(allocation(part(cores_percent=50)), PRELOAD) for _ in range(2)]
    arbiter.follow(both)
    limits = [limits_of(region) for region in both]
    usages = [usage_of(region) for region in both]
    for usage in usages:
        usage.slots_high = 1
        usage.slot[0].state = 2

    def both_had_turns() -> bool:
        now = time.monotonic_ns()
        for usage in usages:
            usage.turn[0].want += 1
            usage.slot[0].dev[0].queue_end_ns = now & ~1
        # The one is read after the other: not more than one of them lies ahead for good.
        ends = [limit.dev[0].grant_until_ns for limit in limits]
        assert not all(end == 2**64 - 1 for end in ends)
        turns = arbiter.turns()
        return all(turns[region.allocation.allocation_id].turns >= 10 for region in both)

    wait_until(both_had_turns, "not ten turns each")
    assert all(turn.held_ns > 0 for turn in arbiter.turns().values())


def test_who_had_a_card_alone_is_not_kept_from_it_afterwards(
    regions: Regions, arbiter: Arbiter
) -> None:
    """Else whoever comes after an hour would have the card to itself for an hour."""
    first, second = (regions.create(allocation(part()), PRELOAD) for _ in range(2))
    arbiter.follow([first, second])
    usages = [usage_of(first), usage_of(second)]
    for usage in usages:
        usage.slots_high = 1
        usage.slot[0].state = 2

    def ask(*asking: Any) -> None:  # noqa: ANN401 - cffi structs
        now = time.monotonic_ns()
        for usage in asking:
            usage.turn[0].want += 1
            usage.slot[0].dev[0].queue_end_ns = now & ~1
        time.sleep(0.001)

    def turns(region: Region) -> Turns:
        return arbiter.turns()[region.allocation.allocation_id]

    end = time.monotonic() + 2
    while time.monotonic() < end:
        ask(usages[0])
    had = turns(first).turns
    while turns(first).turns < had + 10:
        ask(*usages)
        # Ten turns of the first, of some milliseconds each: far from what it had alone.
        assert turns(second).held_ns < 1_000_000_000


def the_thread() -> Path:
    """Return what /proc says of the arbiter's thread, which names itself when it has begun."""
    found: list[Path] = []

    def is_there() -> bool:
        tasks = Path("/proc/self/task").iterdir()
        found.extend(task for task in tasks if (task / "comm").read_text() == "vgpu-arbiter\n")
        return bool(found)

    wait_until(is_there, "no thread of the arbiter")
    return found[0]


def number_of_the_thread(file: str, name: str) -> int:
    """Return a number from a file that /proc has of the arbiter's thread."""
    text = (the_thread() / file).read_text()
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def looks_of_the_thread() -> int:
    """Return how often the arbiter's thread has gone to sleep."""
    return number_of_the_thread("status", "voluntary")


def test_who_rings_without_a_pause_is_heard_5000_times_a_second(
    regions: Regions, arbiter: Arbiter
) -> None:
    both = [regions.create(allocation(part(cores_percent=50)), PRELOAD) for _ in range(2)]
    arbiter.follow(both)
    turn = usage_of(both[0]).turn[0]
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_void_p(int(ffi.cast("uintptr_t", ffi.addressof(turn, "want"))))
    rings, before, begun = 0, looks_of_the_thread(), time.monotonic()

    while time.monotonic() < begun + 1:
        turn.want += 1
        libc.syscall(SYS_FUTEX, word, FUTEX_WAKE, 1, None, None, 0)
        rings += 1

    seconds = time.monotonic() - begun
    looks = looks_of_the_thread() - before
    assert rings > 6000 * seconds, "nothing was shown: it was not rung often enough"
    assert 0 < looks < 6000 * seconds


def test_who_has_not_the_card_costs_little_whatever_it_has_written(
    regions: Regions, arbiter: Arbiter
) -> None:
    every = [regions.create(allocation(part(cores_percent=10)), PRELOAD) for _ in range(10)]
    arbiter.follow(every)
    usages = [usage_of(region) for region in every]
    for usage in usages[1:]:
        usage.slots_high = VGPU_MAX_SLOTS
    before, looked = number_of_the_thread("io", "rchar"), looks_of_the_thread()

    def has_looked_often() -> bool:
        usages[0].turn[0].want += 1
        return looks_of_the_thread() > looked + 100

    wait_until(has_looked_often, "the arbiter does not look")
    read_bytes = number_of_the_thread("io", "rchar") - before
    assert read_bytes / (looks_of_the_thread() - looked) < USAGE_BYTES


def test_a_damaged_usage_file_harms_nobody_else(regions: Regions, arbiter: Arbiter) -> None:
    bad = regions.create(allocation(part()), PRELOAD)
    good = regions.create(allocation(part()), PRELOAD)
    arbiter.follow([bad, good])
    os.truncate(bad.usage_path, 0)
    limits, usage = limits_of(good), usage_of(good)

    def granted() -> bool:
        usage.turn[0].want += 1
        return bool(limits.dev[0].grant_until_ns != 0)

    wait_until(granted, "no grant beside a truncated file")
    with bad.usage_path.open("r+b") as file:
        file.write(os.urandom(USAGE_BYTES))
    sign = limits.arbiter_ns
    wait_until(lambda: limits.arbiter_ns > sign, "no sign of life beside a file of garbage")


def test_files_that_are_missing_leave_a_container_without_turns(
    regions: Regions, arbiter: Arbiter
) -> None:
    region = regions.create(allocation(part()), PRELOAD)
    limits = limits_of(region)
    region.usage_path.unlink()

    arbiter.follow([region])

    assert limits.arbiter_ns == 0
    assert arbiter.turns() == {}


def test_one_that_cannot_be_followed_is_said_once_and_ends_nobody_elses_turns(
    regions: Regions, arbiter: Arbiter, caplog: pytest.LogCaptureFixture
) -> None:
    bad = regions.create(allocation(part()), PRELOAD)
    del bad.allocation.slices[:]
    good = [regions.create(allocation(part(cores_percent=50)), PRELOAD) for _ in range(2)]

    for _ in range(3):
        arbiter.follow([bad, *good])

    assert arbiter.turns().keys() == {each.allocation.allocation_id for each in good}
    assert [limits_of(each).dev[0].alone for each in good] == [0, 0]
    said = [record for record in caplog.records if "no turns" in record.message]
    assert [record.allocation_id for record in said] == [bad.allocation.allocation_id]  # type: ignore[attr-defined]


def test_cards_that_come_and_go_have_turns_however_many_there_were(
    regions: Regions, arbiter: Arbiter
) -> None:
    stays = regions.create(allocation(part(cores_percent=50)), PRELOAD)
    for _ in range(70):
        comes = regions.create(allocation(part(f"MIG-{uuid.uuid4()}")), PRELOAD)
        arbiter.follow([stays, comes])
        assert comes.allocation.allocation_id in arbiter.turns()
        regions.remove(comes.allocation.allocation_id)


async def test_without_the_library_nobody_stays_alone_beside_another(
    regions: Regions, tmp_path: Path
) -> None:
    first = regions.create(allocation(part()), PRELOAD)
    second = regions.create(allocation(part()), PRELOAD)
    first.set_alone([True])
    arbitrating = asyncio.create_task(arbitrate(lambda: tmp_path / LIBRARY_NAME, regions))

    async def until(alone: int) -> None:
        while limits_of(first).dev[0].alone != alone:
            assert not arbitrating.done()
            await asyncio.sleep(0.01)

    await asyncio.wait_for(until(0), DEADLINE_SECONDS)
    regions.remove(second.allocation.allocation_id)
    await asyncio.wait_for(until(1), DEADLINE_SECONDS)
    arbitrating.cancel()
