# SPDX-License-Identifier: Apache-2.0
"""A call that the driver refuses in any case gets the driver's own answer, and no argument is
looked at that the driver does not look at.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import SimulatedGpu
from tests.hook_c.conftest import MIB
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.test_lookup import compile_program


def answers(gpu: SimulatedGpu, *command: str | Path, **environment: str) -> list[str]:
    """Return the answer of each call."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **gpu.environment(), **environment},
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("context_bytes", [0, 2 * MIB])
def test_what_the_driver_refuses_in_any_case_gets_its_own_code(
    tmp_path: Path, gpu: SimulatedGpu, needs_root: None, context_bytes: int
) -> None:
    """There is room for a context, and for nothing that the program asks for."""
    container = Container(
        tmp_path / "container", {gpu.uuid(0): 2 * MIB}, context_bytes=context_bytes
    )
    program = compile_program("refused", tmp_path)

    expected = answers(gpu, program)
    codes = {line.rpartition(": ")[2] for line in expected if not line.endswith("bytes:")}
    assert codes == {"1", "2", "3", "101", "201"}
    assert answers(gpu, *container.wrapper, program) == expected
    assert answers(gpu, program, LD_PRELOAD=str(LIBRARY)) == expected  # without any limit
    assert container.used() == gpu.used_bytes() == 0
