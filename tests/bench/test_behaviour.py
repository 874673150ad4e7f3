# SPDX-License-Identifier: Apache-2.0
"""Signals, streams, pointers and captures with the library are what they are without it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu.behaviour import SENT, table_behaviour
from bench.gpu.places import Place, on_host
from tests.fakes.gpu import H100, LIBRARY_DIRECTORY, SimulatedGpu
from tests.testbed import BUILD

GIB = 1 << 30


@pytest.fixture
def bare(tmp_path: Path) -> Place:
    """Return a place in which the driver is the simulated one."""
    SimulatedGpu.create(tmp_path, cards=[H100])
    env = {"FAKE_GPU_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(LIBRARY_DIRECTORY)}
    return Place("bare", env=env)


def test_a_program_sees_what_it_sees_without_the_library(
    bare: Place, tmp_path: Path, needs_root: None
) -> None:
    with on_host(BUILD / "libvgpu.so", SimulatedGpu(tmp_path).uuid(0), 8 * GIB) as place:
        table = table_behaviour([bare, replace(place, env=bare.env)])

    assert [check for check in table.checks if not check[3]] == [], json.dumps(table.rows)
    facts = table.raw["vgpu"]
    assert facts["signals, caught"] == [SENT, SENT]
    assert facts["capture, an allocation"] == [0, 0, 0, 0, 0, 2]
    assert facts["streams, which are one"][:6] == [0, 0, 2, 2, 0, 2]


def test_a_difference_is_named(bare: Place, tmp_path: Path) -> None:
    script = tmp_path / "caught.py"
    script.write_text(
        "import runpy, signal\n"
        "signal.signal(signal.SIGPROF, lambda *_: None)\n"
        "runpy.run_module('bench.gpu.behaviour', run_name='__main__')\n"
    )
    caught = Place("caught", ("sh", "-c", f"exec {sys.executable} {script}"), env=bare.env)

    table = table_behaviour([bare, caught])

    assert [check[0] for check in table.checks if not check[3]] == ["caught: signals"]
