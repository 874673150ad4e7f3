# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from scheduler_cache.collector import short_pauses


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_the_survivors_of_a_long_collection_are_not_looked_at_again() -> None:
    kept = [[number] for number in range(1000)]
    with short_pauses(long_seconds=-1.0):
        gc.collect()

        assert gc.get_freeze_count() >= len(kept)
        assert not any(each is kept for each in gc.get_objects())


def test_what_is_garbage_is_collected_all_the_same() -> None:
    class Circle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            gone.append(True)

    gone: list[bool] = []
    with short_pauses(long_seconds=-1.0):
        gc.collect()
        Circle()
        gc.collect()

    assert gone == [True]


@pytest.mark.parametrize("generation", [0, 1])
def test_a_collection_of_the_young_freezes_nothing(generation: int) -> None:
    before = gc.get_freeze_count()
    with short_pauses(long_seconds=-1.0):
        gc.collect(generation)

    assert gc.get_freeze_count() == before


def test_a_short_collection_freezes_nothing_and_after_the_block_none_does() -> None:
    before = gc.get_freeze_count()
    with short_pauses(long_seconds=3600.0):
        gc.collect()
    with short_pauses(long_seconds=-1.0):
        pass
    gc.collect()

    assert gc.get_freeze_count() == before
