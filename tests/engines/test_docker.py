# SPDX-License-Identifier: Apache-2.0
"""What only Docker has."""

import signal
from pathlib import Path

import pytest

from tests.engines.conftest import Bed, eventually
from tests.node.conftest import slice_env, totals
from tests.testbed.engines.base import EngineFailedError
from tests.testbed.engines.docker import DockerEngine
from tests.testbed.engines.matrix import CANDIDATES
from tests.testbed.node import GIB

DOCKERS = [candidate for candidate in CANDIDATES if candidate.make is DockerEngine]

pytestmark = pytest.mark.parametrize(
    "bed", DOCKERS, indirect=True, ids=lambda candidate: candidate.name
)


def docker_of(bed: Bed) -> DockerEngine:
    """Return the bed's engine as what it is."""
    assert isinstance(bed.engine, DockerEngine)
    return bed.engine


def test_a_device_option_does_not_widen_the_slice(bed: Bed) -> None:
    nodes = bed.node.directory / "driver/dev"
    places = {"nvidia0": "/dev/nvidia7", "nvidia1": "/dev/other"}
    options = [f"--device={nodes / node}:{place}" for node, place in places.items()]

    docker_of(bed).start("one", env=slice_env("2Gi"), options=options)

    listing = bed.engine.exec("one", "ls", "/dev").split()
    assert len({"nvidia0", "nvidia1"} & set(listing)) == 1
    assert not {"nvidia7", "other"} & set(listing)


@pytest.mark.parametrize(
    "env", [slice_env("2Gi"), {"NVIDIA_VISIBLE_DEVICES": "all"}], ids=["slice", "void"]
)
def test_a_volume_that_is_an_overlay_of_our_folder_is_refused(
    bed: Bed, tmp_path: Path, env: dict[str, str]
) -> None:
    docker = docker_of(bed).docker
    layers = f"lowerdir={bed.node.run_dir}:{tmp_path}"
    options = ["--opt=type=overlay", "--opt=device=overlay", f"--opt=o={layers}"]
    docker.command("volume", "create", *options, "alias")
    try:
        with pytest.raises(EngineFailedError, match="leads to the files"):
            docker_of(bed).start("one", env=env, options=["--volume=alias:/x"])
    finally:
        bed.engine.remove_all()
        docker.command("volume", "rm", "alias")


def test_containers_outlive_agent_and_cache(bed: Bed) -> None:
    bed.engine.start("one", env=slice_env("2Gi"))
    bed.node.stop_agent(signal.SIGKILL)
    bed.node.stop_cache(signal.SIGKILL)

    assert totals(bed.probe("one")) == {2 * GIB}
    bed.engine.stop("one")
    bed.node.start_cache()
    bed.node.start_agent()

    states = bed.node.claim_states
    eventually(lambda: list(states().values()) == ["stopped"], "the stop is noticed afterwards")
    bed.engine.start_again("one")
    assert totals(bed.probe("one")) == {2 * GIB}


def test_an_update_of_the_engine_leaves_the_card_open(bed: Bed) -> None:
    bed.engine.start("one", env=slice_env("2Gi"))

    docker_of(bed).docker.command("update", "--pids-limit=500", "one")

    assert totals(bed.probe("one")) == {2 * GIB}
