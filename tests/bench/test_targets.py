# SPDX-License-Identifier: Apache-2.0
"""The promises of a compute limit, as the bench puts them into numbers."""

import pytest

from bench.gpu import targets
from bench.gpu.workloads import WORKLOADS, Run


@pytest.mark.parametrize(
    ("limit", "bare", "expected"),
    [(25, 99.1, 25), (90, 69.0, 69.0), (100, 99.1, 99.1), (75, 75.0, 75.0)],
)
def test_expected_is_the_limit_or_what_the_workload_wants(
    limit: int, bare: float, expected: float
) -> None:
    assert targets.expected(limit, bare) == expected


@pytest.mark.parametrize(
    ("workload", "seconds", "points"),
    [
        ("20 us", 10, 2.0),
        ("5 ms", 10, 2.0),
        ("150 ms, sync", 10, 2.0),  # a kernel is 1.5 % of the run
        ("150 ms, sync", 5, 3.0),  # a kernel is 3 % of it: one is allowed
        ("20 us, sync", 10, 5.0),
        ("graph of 64 x 20 us", 10, 2.0),
        ("decode", 10, 2.0),
        ("training", 10, 2.0),
    ],
)
def test_a_run_is_two_points_or_a_kernel_off_at_most(
    workload: str, seconds: float, points: float
) -> None:
    assert targets.run_points(WORKLOADS[workload].nature, seconds) == points


@pytest.mark.parametrize(
    ("workload", "points"),
    [
        ("20 us", 2.0),
        ("graph of 64 x 20 us", 2.0),
        ("200 us", 1.0),
        ("gemm", 1.0),
        ("5 ms", 1.0),
        ("150 ms, sync", None),
        ("20 us, sync", None),
        ("training", None),
        ("decode", None),
    ],
)
def test_steady_state_is_closer(workload: str, points: float | None) -> None:
    assert targets.steady_points(WORKLOADS[workload].nature) == points


def test_bins_of_100_ms_are_even_where_kernels_are_short_enough() -> None:
    assert targets.rms_points(WORKLOADS["5 ms"].nature) == 3.0
    assert targets.rms_points(WORKLOADS["150 ms, sync"].nature) is None


def test_a_stall_is_short_or_what_the_share_makes_of_one_kernel() -> None:
    assert targets.stall_ms(WORKLOADS["5 ms"].nature, 10) == 100.0
    assert targets.stall_ms(WORKLOADS["150 ms, sync"].nature, 25) == 600.0


def test_of_a_card_shared_out_whole_idle_time_lies_in_the_turns() -> None:
    assert targets.in_turns(70, 92.5) == pytest.approx(64.75)


def _found(bins: list[float], stamps: int) -> dict[str, object]:
    return {
        "launches": 5000,
        "wall_s": 2.0,
        "stamps": stamps,
        "mean_ns": 200e3,
        "gap_ms": 1.5,
        "launch_stall_ms": 7.0,
        "first_ms": 0.2,
        "bins": bins,
    }


def test_a_run_is_steady_after_its_first_second() -> None:
    run = Run(_found([0.9] * 10 + [0.4, 0.6] * 5, 5000), WORKLOADS["200 us"].nature)

    assert run.share == pytest.approx(70)
    assert run.steady == pytest.approx(50)
    assert run.rms == pytest.approx(10)
    assert run.between(1.0, 1.2) == pytest.approx(50)
    assert run.stall_ms == 1.5


def test_kernels_that_stamp_nothing_took_what_they_were_told_to() -> None:
    run = Run(_found([], 0), WORKLOADS["200 us"].nature)

    assert run.share == pytest.approx(50)  # 5000 of 200 us in 2 s
    assert run.between(0.5, 1.5) == pytest.approx(50)
