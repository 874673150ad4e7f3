# SPDX-License-Identifier: Apache-2.0
"""What only podman has."""

import pytest

from tests.engines.conftest import Bed
from tests.node.conftest import slice_env
from tests.testbed.engines.base import EngineFailedError
from tests.testbed.engines.matrix import CANDIDATES
from tests.testbed.engines.podman import Podman

PODMANS = [candidate for candidate in CANDIDATES if candidate.make is Podman]

pytestmark = pytest.mark.parametrize(
    "bed", PODMANS, indirect=True, ids=lambda candidate: candidate.name
)
both = pytest.mark.parametrize(
    "env", [slice_env("2Gi"), {"NVIDIA_VISIBLE_DEVICES": "all"}], ids=["slice", "void"]
)


def podman_of(bed: Bed) -> Podman:
    """Return the bed's engine as what it is."""
    assert isinstance(bed.engine, Podman)
    return bed.engine


@both
def test_an_overlay_of_our_folder_is_refused(bed: Bed, env: dict[str, str]) -> None:
    with pytest.raises(EngineFailedError, match="overlay of .* which leads to the files"):
        podman_of(bed).start("one", env=env, options=[f"--volume={bed.node.run_dir}:/x:O"])

    assert bed.node.claim_states() == {}


@both
def test_an_overlay_of_another_folder_starts(
    bed: Bed, tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("data")
    (folder / "model").write_text("weights")

    podman_of(bed).start("one", env=env, options=[f"--volume={folder}:/data:O"])

    assert bed.engine.exec("one", "cat", "/data/model") == "weights"
