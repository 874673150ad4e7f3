# SPDX-License-Identifier: Apache-2.0
"""Whose container it is: every witness alone, all together, and against each other."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.identity import (
    Identity,
    IdentityError,
    check_container_uuid,
    identity_of,
)
from tests.runtime_shim.pods import (
    MAIN,
    OTHER_UID,
    POD_UID,
    cgroupfs_cgroup,
    containerd_marks,
    crio_marks,
    kubelet_mounts,
    pod_spec,
    systemd_cgroup,
)
from tests.runtime_shim.specs import GOLDEN, bind, load

CRI = "io.kubernetes.cri."


def without(marks: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in marks.items() if name not in names}


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"annotations": crio_marks()},
        {"mounts": []},
        {"cgroup": ""},
        {"cgroup": cgroupfs_cgroup()},
        {"cgroup": f"/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/x"},
        {"cgroup": f"/system.slice/kubelet/kubepods/burstable/pod{POD_UID}/x"},
        {"cgroup": "/user.slice/whatever"},
        {"annotations": without(containerd_marks(), f"{CRI}sandbox-uid")},  # before 1.6.?
        {"annotations": without(crio_marks(), "io.kubernetes.pod.uid")},
        {"mounts": kubelet_mounts(root="/mnt/disk/kubelet/pods")},
    ],
)
def test_every_engine_says_whose_it_is(words: dict[str, Any]) -> None:
    assert identity_of(pod_spec(**words)) == MAIN


def test_a_real_container_of_containerd_is_known() -> None:
    spec = load(GOLDEN / "containerd-cri-without-slice" / "config.json")

    assert identity_of(spec) == MAIN


def test_a_static_pod_is_known_by_its_hash() -> None:
    identity = Identity(
        pod_uid="0123456789abcdef0123456789abcdef",
        namespace="kube-system",
        pod="p",
        container_name="c",
    )

    assert identity_of(pod_spec(identity=identity)) == identity


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"mounts": kubelet_mounts(OTHER_UID)}, "the kubelet's /etc/hosts says '11111111"),
        ({"mounts": kubelet_mounts(POD_UID, "side")}, "termination log says 'side'"),
        ({"cgroup": systemd_cgroup(OTHER_UID)}, "the cgroup's path says '11111111"),
        ({"cgroup": cgroupfs_cgroup(OTHER_UID)}, "the cgroup's path says '11111111"),
        (
            {"annotations": {**crio_marks(), f"{CRI}sandbox-uid": OTHER_UID}},
            "says pod uid '11111111.* and CRI-O's annotation says '3d2a8f5e",
        ),
        (
            {
                "annotations": {
                    **crio_marks(),
                    "io.kubernetes.cri-o.Labels": json.dumps({"io.kubernetes.pod.name": "other"}),
                }
            },
            "says pod 'train-0' and CRI-O's label says 'other'",
        ),
        (
            {"annotations": without(containerd_marks(), f"{CRI}container-name"), "mounts": []},
            "say its container",
        ),
        (
            {
                "annotations": without(containerd_marks(), f"{CRI}sandbox-uid"),
                "mounts": [],
                "cgroup": "/x",
            },
            "say its pod uid",
        ),
        ({"annotations": {}, "mounts": [], "cgroup": ""}, "say its pod uid"),
    ],
)
def test_what_contradicts_itself_or_is_silent_is_refused(
    words: dict[str, Any], reason: str
) -> None:
    with pytest.raises(IdentityError, match=reason):
        identity_of(pod_spec(**words))


def test_a_volume_that_looks_like_the_kubelet_s_elsewhere_says_nothing() -> None:
    mounts = [*kubelet_mounts(), bind(f"/srv/pods/{OTHER_UID}/etc-hosts", "/data/hosts")]

    assert identity_of(pod_spec(mounts=mounts)) == MAIN


@pytest.mark.parametrize("labels", ["{", "[]", '{"io.kubernetes.pod.uid": 7}', '"x"'])
def test_labels_that_are_none_say_nothing(labels: str) -> None:
    marks = {**crio_marks(), "io.kubernetes.cri-o.Labels": labels}

    assert identity_of(pod_spec(annotations=marks)) == MAIN


@given(st.uuids(version=4), st.text(max_size=20))
def test_two_witnesses_agree_or_nobody_is_believed(uid: uuid.UUID, junk: str) -> None:
    spec = pod_spec(cgroup=f"{junk}/kubepods/pod{uid}/x")

    if str(uid) == POD_UID:
        assert identity_of(spec).pod_uid == POD_UID
    else:
        with pytest.raises(IdentityError, match="the cgroup's path says"):
            identity_of(spec)


@pytest.mark.parametrize(
    "text", ["", "x", POD_UID.upper(), POD_UID + "\n", f"{{{POD_UID}}}", "../" + POD_UID]
)
def test_what_admission_does_not_write_is_no_uuid(text: str) -> None:
    with pytest.raises(IdentityError, match="is not what admission writes"):
        check_container_uuid(text)


def test_what_admission_writes_is_a_uuid() -> None:
    assert check_container_uuid(POD_UID) == POD_UID
