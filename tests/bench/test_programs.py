# SPDX-License-Identifier: Apache-2.0
"""The programs of the bench, over the simulated driver, and what is made of what they say."""

import json
import sys
from pathlib import Path

import pytest

from bench.gpu.places import Place
from bench.gpu.report import report
from bench.gpu.table import Table, command
from bench.gpu.workloads import GRAPH_KERNELS, WORKLOADS, start
from tests.fakes.gpu import H100, LIBRARY_DIRECTORY, SimulatedGpu
from tests.testbed import BUILD


@pytest.fixture
def simulated(tmp_path: Path) -> Place:
    """Return a place in which the driver is the simulated one."""
    SimulatedGpu.create(tmp_path, cards=[H100])
    env = {"FAKE_GPU_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(LIBRARY_DIRECTORY)}
    return Place("bare", env=env)


def test_a_workload_runs_as_long_as_it_is_told_to(simulated: Place) -> None:
    (program,) = start([simulated], WORKLOADS["graph of 64 x 20 us"])
    try:
        run = program.run(0.2)
    finally:
        program.close()

    assert run.found["launches"] >= GRAPH_KERNELS
    assert run.found["launches"] % GRAPH_KERNELS == 0
    assert run.found["wall_s"] >= 0.2
    assert 0 < run.share <= 101


def reserved_by_step(text: str) -> list[tuple[str, float]]:
    """Of what bench.gpu.graphs prints, the first of the numbers behind every step."""
    steps = [line for line in text.splitlines() if line.startswith("  ") and line.strip()]
    return [(step[2:46].strip(), float(step[46:].split()[0])) for step in steps if step[2] != " "]


def test_memory_of_graphs_is_simulated_as_an_h200_was_measured(simulated: Place) -> None:
    measured = Path(__file__).with_name("graphs-h200.txt").read_text()
    rounds = ["one_stream", "two_streams", "larger", "left"]

    said = simulated.run([sys.executable, "-m", "bench.gpu.graphs", *rounds, "--busy", "200"])

    assert reserved_by_step(said)[1:] == reserved_by_step(measured)


def test_every_launch_reaches_the_driver_and_is_timed_in_parts(simulated: Place) -> None:
    found = json.loads(simulated.run([BUILD / "bench" / "launch", "0", "1"]))

    assert found["calls"] == 5000
    for way in ("direct", "hook"):
        driver, beside, whole = (found[way][part]["mean"] for part in ("driver", "beside", "whole"))
        assert driver > 0
        assert beside > 0
        assert whole == pytest.approx(driver + beside, abs=0.1)


def test_a_program_that_breaks_off_is_named(simulated: Place) -> None:
    (program,) = start([simulated], WORKLOADS["200 us"])
    program.send(9)
    try:
        with pytest.raises(
            (RuntimeError, BrokenPipeError), match=r"broke off: exit -9|Broken pipe"
        ):
            program.run(0.1)
    finally:
        program.close()


def test_a_report_lists_what_was_missed() -> None:
    table = Table("one", "One thing", ("a", "b"), rows=[["x", 1.25]])
    table.check("this", "<= 1", "0", holds=True)
    table.check("that", "<= 2", "3", holds=False)

    text = report({"tables": [table.as_json()]})

    assert "| x | 1.2 |" in text
    assert "1 of 2 targets hold." in text
    assert "| that | <= 2 | 3 | **no** |" in text
    assert "| this |" not in text


def test_runs_that_were_put_together_are_reported_like_one() -> None:
    table = Table("one", "One", ("what",), [["a row"]]).as_json()

    assert report({"runs": [{"tables": [table]}, {"tables": [table]}]}) == "\n".join(
        [report({"tables": [table]})] * 2
    )


def test_of_a_call_the_words_are_kept_and_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.argv", ["/a/b/compute.py", "--seconds", "5", "--json", "/tmp/x/it.json"]
    )

    assert command("bench.gpu.compute") == (
        "python3 -m bench.gpu.compute --seconds 5 --json it.json"
    )
