# SPDX-License-Identifier: Apache-2.0
"""Options that only podman has."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import Bed, eventually
from tests.node.conftest import slice_env, totals
from tests.testbed.engines.base import EngineFailedError
from tests.testbed.engines.matrix import CANDIDATES
from tests.testbed.engines.podman import Podman
from tests.testbed.node import GIB

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


@pytest.fixture
def host_nodes(bed: Bed) -> Iterator[None]:
    """Put the simulated cards' nodes where a driver has them: runc binds those of the host."""
    made = []
    for source in (bed.node.directory / "driver/dev").iterdir():
        target = Path("/dev") / source.name
        if not target.exists():
            os.mknod(target, stat.S_IFCHR, source.stat().st_rdev)
            target.chmod(0o666)
            made.append(target)
    yield
    for target in made:
        target.unlink()


@pytest.fixture
def shared_mounts(bed: Bed) -> Iterator[None]:
    """Let mounts of the agent appear in podman's own mount namespace, as systemd's hosts do."""
    folder = str(bed.node.run_dir / "containers")
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    yield
    bed.engine.remove_all()
    eventually(lambda: bed.node.claim_states() == {}, "every claim is freed")
    subprocess.run(["umount", "--lazy", folder], check=True)


MAPPING = ("--uidmap=0:100000:65536", "--gidmap=0:100000:65536")


def test_a_slice_in_a_user_namespace(bed: Bed, host_nodes: None, shared_mounts: None) -> None:
    """Podman gives the bundle's folder to the mapped root."""
    podman_of(bed).start("one", env=slice_env("2Gi"), options=MAPPING)

    assert bed.engine.exec("one", "cat", "/proc/self/uid_map").split() == ["0", "100000", "65536"]
    assert totals(bed.probe("one")) == {2 * GIB}


def test_a_container_without_a_slice_in_a_user_namespace(bed: Bed) -> None:
    podman_of(bed).start("one", env={"NVIDIA_VISIBLE_DEVICES": "all"}, options=MAPPING)

    assert "nvidia" not in bed.engine.exec("one", "ls", "/dev")
