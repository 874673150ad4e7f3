# SPDX-License-Identifier: Apache-2.0
"""Options that only containerd's own client has."""

import os
from pathlib import Path

import pytest

from tests.engines.conftest import Bed
from tests.node.conftest import slice_env, totals
from tests.testbed.engines.containerd import Ctr
from tests.testbed.engines.matrix import CANDIDATES
from tests.testbed.node import GIB

CTRS = [candidate for candidate in CANDIDATES if candidate.make is Ctr]

pytestmark = pytest.mark.parametrize(
    "bed", CTRS, indirect=True, ids=lambda candidate: candidate.name
)


@pytest.mark.parametrize(
    "env",
    [slice_env("2Gi"), {"NVIDIA_VISIBLE_DEVICES": "all"}, {}],
    ids=["slice", "image", "nothing"],
)
def test_the_gpus_option_runs_nothing_of_nvidia(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    """Its hook is `containerd oci-hook -- nvidia-container-cli …`, run by the host's root."""
    assert isinstance(bed.engine, Ctr)
    ran = tmp_path / "ran"
    cli = tmp_path / "nvidia-container-cli"
    cli.write_text(f'#!/bin/sh\necho "$@" >{ran}\n')
    cli.chmod(0o755)
    search = f"{tmp_path}{os.pathsep}{bed.engine.containerd.environment['PATH']}"
    monkeypatch.setitem(bed.engine.containerd.environment, "PATH", search)

    bed.engine.start("one", env=env, options=["--gpus=0"])

    assert not ran.exists()
    if "VGPU_MEMORY" in env:
        assert totals(bed.probe("one")) == {2 * GIB}
    else:
        assert "nvidia" not in bed.engine.exec("one", "ls", "/dev")
