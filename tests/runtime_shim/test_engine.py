# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from runtime_shim.engine import engine_directory
from tests.runtime_shim.specs import bind, plain_spec

BUNDLE = "/run/containerd/io.containerd.runtime.v2.task/moby/c1"


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    for name in ("c1", "c2"):
        (tmp_path / "containers" / name).mkdir(parents=True)
    return tmp_path / "containers"


@pytest.mark.parametrize("name", ["hosts", "hostname", "resolv.conf"])
def test_docker_s_folder_is_above_the_files_of_etc(containers: Path, name: str) -> None:
    spec = plain_spec(mounts=[bind(f"{containers}/c1/{name}", f"/etc/{name}")])

    assert engine_directory(spec, "c1", BUNDLE) == f"{containers}/c1"


def test_files_of_another_container_s_network_lead_to_the_own_folder(containers: Path) -> None:
    spec = plain_spec(mounts=[bind(f"{containers}/c2/hosts", "/etc/hosts")])

    assert engine_directory(spec, "c1", BUNDLE) == f"{containers}/c1"


def test_a_user_s_own_hosts_file_leads_nowhere(containers: Path) -> None:
    spec = plain_spec(mounts=[bind("/home/me/hosts", "/etc/hosts")])

    assert engine_directory(spec, "c1", BUNDLE) == BUNDLE


def test_podman_s_folder_is_above_the_bundle(containers: Path) -> None:
    spec = plain_spec(
        mounts=[bind(f"{containers}/c1/hosts", "/etc/hosts")],
        annotations={"io.container.manager": "libpod"},
    )

    assert engine_directory(spec, "c1", "/s/overlay-containers/c1/userdata") == (
        "/s/overlay-containers/c1"
    )


def test_nerdctl_names_its_folder(tmp_path: Path, containers: Path) -> None:
    state = tmp_path / "1935db59" / "containers" / "default" / "c1"
    state.mkdir(parents=True)
    spec = plain_spec(
        mounts=[bind(f"{containers}/c1/hosts", "/etc/hosts")],
        annotations={"nerdctl/state-dir": str(state)},
    )

    assert engine_directory(spec, "c1", BUNDLE) == str(state)


@pytest.mark.parametrize("named", ["", "relative", "/absent/folder"])
def test_a_folder_that_is_not_there_does_not_count(named: str) -> None:
    spec = plain_spec(annotations={"nerdctl/state-dir": named})

    assert engine_directory(spec, "c1", BUNDLE) == BUNDLE


@pytest.mark.parametrize(
    "named",
    [
        "",
        "/",
        "/c1",
        "/containers/default/c1",
        "/x/containers/default/c2",
        "/x/containers/default/c1/..",
        "/x/containers/./default/c1",
        "/x/containers/c1",
    ],
)
def test_no_annotation_of_a_user_names_a_folder_that_stays(tmp_path: Path, named: str) -> None:
    folder = f"{tmp_path}{named}" if named not in ("/", "/containers/default/c1") else named
    (tmp_path / "x/containers/default/c1").mkdir(parents=True)
    (tmp_path / "x/containers/default/c2").mkdir(parents=True)
    (tmp_path / "x/containers/c1").mkdir()
    (tmp_path / "c1").mkdir()
    spec = plain_spec(annotations={"nerdctl/state-dir": folder})

    assert engine_directory(spec, "c1", BUNDLE) == BUNDLE


@pytest.mark.parametrize("bundle", [BUNDLE, "/s/overlay-containers/c2/userdata", "/userdata"])
def test_podmans_annotation_counts_with_a_bundle_of_podmans_alone(bundle: str) -> None:
    spec = plain_spec(annotations={"io.container.manager": "libpod"})

    assert engine_directory(spec, "c1", bundle) == bundle


def test_others_have_the_bundle_alone() -> None:
    assert engine_directory(plain_spec(), "c1", BUNDLE) == BUNDLE
