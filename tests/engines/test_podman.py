# SPDX-License-Identifier: Apache-2.0
"""Options that only podman has."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import Bed, eventually
from tests.node.conftest import slice_env, totals
from tests.testbed.engines.base import IMAGE, EngineFailedError
from tests.testbed.engines.matrix import CANDIDATES
from tests.testbed.engines.podman import Podman
from tests.testbed.finished import Finished
from tests.testbed.node import GIB, card_nodes_in_dev

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


@pytest.mark.parametrize("place", ["/etc/ld.so.preload", "/dev/vgpu", "/etc"])
def test_a_mask_over_our_files_is_refused(bed: Bed, place: str) -> None:
    with pytest.raises(EngineFailedError, match=f"masked path '{place}' covers what holds it"):
        podman_of(bed).start("one", env=slice_env("2Gi"), options=[f"--security-opt=mask={place}"])

    assert bed.node.claim_states() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--security-opt=seccomp={profile}"], "profile does not always allow access"),
        (["--annotation=run.oci.seccomp_bpf_data=AAAA"], "'run.oci.seccomp_bpf_data' changes how"),
    ],
)
def test_a_profile_or_an_annotation_that_hides_our_file_is_refused(
    bed: Bed, tmp_path: Path, options: list[str], message: str
) -> None:
    rule = {"names": ["access"], "action": "SCMP_ACT_ERRNO", "errnoRet": 2}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    words = [word.format(profile=profile) for word in options]

    with pytest.raises(EngineFailedError, match=message):
        podman_of(bed).start("one", env=slice_env("2Gi"), options=words)

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
    """Put the simulated cards' nodes where a driver has them."""
    with card_nodes_in_dev(bed.node):
        yield


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


@pytest.mark.parametrize("words", ["VGPU_MEMORY=2Gi VGPU_CORES=25", "NVIDIA_VISIBLE_DEVICES=all"])
@pytest.mark.parametrize("shown", ["run_dir", "state_dir"])
def test_a_build_does_not_see_our_folders(bed: Bed, tmp_path: Path, words: str, shown: str) -> None:
    """Buildah binds volumes in a mount namespace of its own, where it starts the runtime, too."""
    volume = f"--volume={getattr(bed.node, shown)}:/x"

    done = build(bed, tmp_path, words, "ls /x", volume)

    assert done.status != 0
    assert "which leads to the files that hold containers" in done.stderr
    assert bed.node.claim_states() == {}


def test_a_build_that_mounts_another_folder_runs(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/model").write_text("weights")
    volume = f"--volume={tmp_path}/data:/data"

    done = build(bed, tmp_path, "NVIDIA_VISIBLE_DEVICES=all", "cat /data/model; ls /dev", volume)

    assert done.status == 0, done.stderr
    assert "weights" in done.stdout
    assert "nvidia" not in done.stdout


def build(bed: Bed, folder: Path, env: str, command: str, *options: str) -> Finished:
    """Build an image whose one step runs by our runtime, with the variables of a Dockerfile."""
    (folder / "Dockerfile").write_text(f"FROM {IMAGE}\nENV {env}\nRUN {command}\n")
    words = ("build", "--isolation=oci", "--no-cache", "--network=none", *options)
    return podman_of(bed).finish(*words, str(folder))
