# SPDX-License-Identifier: Apache-2.0
"""Totals that only grow, whatever a tenant writes; the file of the readings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.readings import (
    CardReading,
    ContainerReading,
    Readings,
    Totals,
    decode_readings,
    encode_readings,
    read_readings,
    write_readings,
)
from runtime_shim.region import SlotCounters
from tests.runtime_shim.allocations import CARD, GIB

Slots = Mapping[tuple[int, int], tuple[SlotCounters, ...]]

WORD = st.integers(0, 2**64 - 1)
SLOTS: st.SearchStrategy[Slots] = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.builds(SlotCounters, WORD, WORD), st.builds(SlotCounters, WORD, WORD)),
    max_size=4,
)


def container(**changes: object) -> ContainerReading:
    plain: dict[str, object] = {
        "allocation_id": "a-1",
        "container_id": "c1",
        "namespace": "",
        "pod": "",
        "container": "",
        "card_uuid": CARD,
        "limit_bytes": 2 * GIB,
        "used_bytes": GIB,
        "nvml_bytes": GIB,
        "cores_percent": 25,
        "busy_seconds": 1.5,
        "busy_percent": 50.0,
        "refused": 3,
        "running": True,
    }
    return ContainerReading(**{**plain, **changes})  # type: ignore[arg-type]


def card(**changes: object) -> CardReading:
    plain: dict[str, object] = {
        "card_uuid": CARD,
        "model": "m",
        "health_reason": "",
        "memory_bytes": 8 * GIB,
        "used_bytes": GIB,
        "utilization_percent": 50,
        "slices": 1,
        "slices_memory_bytes": 2 * GIB,
        "slices_cores_percent": 25,
    }
    return CardReading(**{**plain, **changes})  # type: ignore[arg-type]


def test_a_process_that_ends_takes_nothing_away() -> None:
    totals = Totals.of(1)
    both = {(0, 1): (SlotCounters(900, 2),), (1, 1): (SlotCounters(50, 1),)}

    first = totals.growth(both, 1.0)
    second = totals.growth({(1, 1): (SlotCounters(60, 1),)}, 1.0)

    assert first == [SlotCounters(950, 3)]
    assert second == [SlotCounters(10, 0)]


def test_the_next_owner_of_a_slot_begins_anew() -> None:
    totals = Totals.of(1)
    totals.growth({(0, 1): (SlotCounters(900, 5),)}, 1.0)

    assert totals.growth({(0, 2): (SlotCounters(7, 1),)}, 1.0) == [SlotCounters(7, 1)]


def test_a_look_that_fails_counts_nothing_twice() -> None:
    totals = Totals.of(1)
    slots = {(0, 1): (SlotCounters(900, 5),)}
    totals.growth(slots, 1.0)
    totals.growth({}, 1.0)

    assert totals.growth(slots, 1.0) == [SlotCounters(0, 0)]


@given(looks=st.lists(SLOTS, max_size=8), seconds=st.floats(0, 10))
def test_whatever_is_written_grows_no_faster_than_a_card_works(
    looks: list[Slots], seconds: float
) -> None:
    totals = Totals.of(2)
    for slots in looks:
        for growth in totals.growth(slots, seconds):
            assert 0 <= growth.busy_ns <= seconds * 1e9
            assert 0 <= growth.refused <= seconds * 1_000_000


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    readings = Readings(unix_seconds=5.0, containers=(container(),), cards=(card(used_bytes=None),))

    write_readings(tmp_path, readings)

    assert read_readings(tmp_path) == readings
    assert (tmp_path / "readings.json").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["readings.json"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 2}', encode_readings(Readings())[:-20]]
)
def test_what_are_no_readings_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"readings of version|Expecting|missing|Unterminated"):
        decode_readings(content)
