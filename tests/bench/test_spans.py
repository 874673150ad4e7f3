# SPDX-License-Identifier: Apache-2.0
"""When a card was busy, from the begins and ends of its kernels."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gpu import spans
from bench.gpu.spans import BIN_NS, Span

MS = 1_000_000


def test_a_kernel_is_split_exactly_over_the_bins() -> None:
    assert spans.bins([(5 * MS, 255 * MS)], 0.3) == pytest.approx([1, 1, 0.5])


def test_bins_begin_with_the_first_kernel_and_end_with_the_run() -> None:
    kernels = [(1050 * MS, 1060 * MS), (1140 * MS, 1170 * MS), (1245 * MS, 1400 * MS)]

    assert spans.bins(kernels, 0.2) == pytest.approx([0.1 + 0.1, 0.2 + 0.05])


def test_kernels_side_by_side_keep_the_card_busy_once() -> None:
    kernels = [(0, 40 * MS), (20 * MS, 30 * MS), (30 * MS, 50 * MS), (60 * MS, 70 * MS)]

    found = spans.summary(kernels, 0.1)

    assert found["bins"] == pytest.approx([0.6])
    assert found["stamps"] == 4
    assert found["gap_ms"] == 10
    assert found["mean_ns"] == 20 * MS


def test_nothing_seen_is_nothing_busy() -> None:
    assert spans.summary([], 0.2) == {"stamps": 0, "mean_ns": 0, "gap_ms": 0, "bins": [0, 0]}


@given(st.lists(st.tuples(st.integers(0, 10 * BIN_NS), st.integers(1, BIN_NS)), min_size=1))
def test_no_time_is_lost_or_counted_twice(kernels: list[tuple[int, int]]) -> None:
    seen: list[Span] = [(begin, begin + length) for begin, length in kernels]

    apart = spans.merged(seen)
    bins = spans.bins(seen, 20)

    assert sum(bins) * BIN_NS == pytest.approx(sum(end - begin for begin, end in apart))
    assert all(0 <= share <= 1 for share in bins)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(apart))
