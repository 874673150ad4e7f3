# SPDX-License-Identifier: Apache-2.0
"""What processes differ by is not taken for what the library costs."""

import pytest

from bench.gpu.costs import AGAIN, table_training
from bench.gpu.places import BARE, Place
from bench.gpu.table import ratio_of_processes

# In place of training: each step of the kind takes what its environment says.
PROGRAM = """
import json, os, sys
print("ready", flush=True)
for line in sys.stdin:
    name, steps = line.split()
    print(json.dumps([float(os.environ.get("STEP_MS", "10"))] * int(steps)), flush=True)
"""


@pytest.mark.parametrize(("step_ms", "ratio", "holds"), [(10, 1, True), (12.5, 0.8, False)])
def test_training_compares_every_kind_with_bare(step_ms: float, ratio: float, holds: bool) -> None:
    places = [BARE, Place("vgpu", env={"STEP_MS": str(step_ms)})]

    table = table_training(places, processes=2, rounds=2, steps=3, program=("-c", PROGRAM))

    assert [row[1:4] for row in table.rows] == 2 * [
        [AGAIN, 2, 12],
        ["bare", 2, 12],
        ["vgpu", 2, 12],
    ]
    assert [check[3] for check in table.checks] == 2 * [True, holds]
    assert table.rows[-1][-2:] == [f"{ratio:.4f}", f"{ratio:.4f} to {ratio:.4f}"]


def test_a_program_that_does_not_train_is_named() -> None:
    with pytest.raises(RuntimeError, match="bare, others: training ended with 3"):
        table_training([BARE], 1, 1, 1, program=("-c", "raise SystemExit(3)"))


def test_the_interval_holds_what_processes_differ_by() -> None:
    """Ten percent between processes and none between rounds: no number of rounds helps."""
    rows = [[ms] * 50 for ms in (9.5, 9.8, 10.2, 10.5)]
    other = [[ms] * 50 for ms in (9.7, 10.0, 10.4, 10.7)]

    ratio, low, high = ratio_of_processes(rows, other)

    assert ratio == pytest.approx(10 / 10.2)
    assert low < 0.95
    assert high > 1.01


def test_what_all_processes_share_in_a_round_is_no_difference() -> None:
    rows = [[10.0, 14.0, 12.0, 20.0, 11.0]] * 4
    other = [[ms * 1.1 for ms in row] for row in rows]

    assert ratio_of_processes(rows, other) == pytest.approx((1 / 1.1,) * 3)
