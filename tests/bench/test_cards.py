# SPDX-License-Identifier: Apache-2.0
"""Ranks that work together: all of them say something, or the first that fails ends all."""

import json
import time

import pytest

from bench.gpu import cards
from bench.gpu.places import Place
from bench.gpu.ranks import WORKLOADS

SAID = {
    "launches": 100,
    "wall_s": 2.0,
    "trace_cost": 0.01,
    "stamps": 400,
    "mean_ns": 1e5,
    "gap_ms": 0.1,
    "launch_stall_ms": 0.0,
    "first_ms": 0.0,
    "bins": [0.4],
}


def _scripted(script: str) -> Place:
    """Return a place that runs a script instead; $4 and $5 are the count and the rank."""
    return Place("scripted", ("sh", "-c", script, "sh"))


def test_each_rank_is_heard_on_each_workload() -> None:
    lines = "; ".join(
        f"echo '{json.dumps({'workload': workload, **SAID})}'" for workload in WORKLOADS
    )

    found = cards.run_ranks(_scripted(f"echo NCCL version; {lines}"), 2)

    assert {workload: [run.rate for run in runs] for workload, runs in found.items()} == {
        workload: [50.0, 50.0] for workload in WORKLOADS
    }
    assert found["all-reduce"][1].share == pytest.approx(40)


def test_a_rank_that_fails_ends_all_and_says_why() -> None:
    begun = time.monotonic()

    with pytest.raises(RuntimeError, match=r"rank 1: exit 3: no such card"):
        cards.run_ranks(
            _scripted('[ "$5" = 0 ] && exec sleep 100; echo no such card >&2; exit 3'), 2
        )

    assert time.monotonic() - begun < 60  # and not the 100 s of the other one


def test_a_rank_that_says_nothing_is_no_result() -> None:
    with pytest.raises(RuntimeError, match="a rank did not say what it did"):
        cards.run_ranks(_scripted("true"), 2)
