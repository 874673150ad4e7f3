# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_cache.units import counted, human_bytes


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0Ki"),
        (512 << 20, "512.0Mi"),
        (8 << 30, "8.0Gi"),
        ((8 << 30) - 1, "7.9Gi"),
        (3 << 29, "1.5Gi"),
        (2 << 40, "2.0Ti"),
    ],
)
def test_bytes_are_said_in_the_largest_binary_unit(count: int, words: str) -> None:
    assert human_bytes(count) == words


@given(st.integers(1024, 1 << 50))
def test_words_never_promise_more_than_there_is(count: int) -> None:
    words = human_bytes(count)

    unit = 1 << {"K": 10, "M": 20, "G": 30, "T": 40}[words[-2]]
    assert round(float(words[:-2]) * 10) * unit <= count * 10


def test_one_thing_is_singular() -> None:
    assert (counted(1, "slot"), counted(0, "slot"), counted(2, "slot")) == (
        "1 slot",
        "0 slots",
        "2 slots",
    )
