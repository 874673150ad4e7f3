# SPDX-License-Identifier: Apache-2.0
"""Edits of a spec: what they replace, what they keep, what they refuse to read."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.spec import (
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    Spec,
    SpecError,
    annotations_of,
    apply_edits,
    destination,
    env_entries,
    environment,
    is_bind,
    merge_edits,
    mounts,
    within,
)
from tests.runtime_shim.specs import bind, plain_spec

NAMES = st.text("ABab_0 ", min_size=1, max_size=4)
VALUES = st.text("aé=\udc80☃ :/", max_size=8)
ENVS = st.dictionaries(NAMES, VALUES, max_size=5)
PATHS = st.sampled_from(["/a", "/b", "/a/b", "/dev/x", "/a/../c", "//d", "e"])
MOUNTS = st.lists(st.builds(Mount, destination=PATHS, source=PATHS), max_size=4)
DEVICES = st.lists(
    st.builds(
        DeviceNode,
        path=PATHS,
        major=st.integers(0, 3),
        minor=st.integers(0, 3),
        access=st.sampled_from(["rwm", "rw"]),
    ),
    max_size=4,
)
HOOKS = st.lists(
    st.builds(
        Hook,
        stage=st.sampled_from(["prestart", "createContainer"]),
        path=st.just("/bin/true"),
        args=st.just(["true"]),
        env=st.just(["PATH=/bin"]),
        timeout_seconds=st.sampled_from([None, 3]),
    ),
    max_size=3,
)
EDITS = st.builds(
    ContainerEdits,
    env=ENVS,
    mounts=MOUNTS,
    devices=DEVICES,
    hooks=HOOKS,
    additional_gids=st.lists(st.integers(1, 4), max_size=3),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | VALUES,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=6,
)
SPECS = st.builds(
    lambda env, extra: {**extra, **plain_spec(*(f"{k}={v}" for k, v in env.items()), "bare")},
    ENVS,
    st.dictionaries(st.sampled_from(["vendor", "vm", "zos"]), JSON),
)


@given(spec=SPECS, edits=EDITS)
def test_applying_twice_is_applying_once(spec: Spec, edits: ContainerEdits) -> None:
    once = apply_edits(spec, edits)

    assert apply_edits(once, edits) == once


@given(spec=SPECS, edits=EDITS)
def test_the_argument_is_left_alone(spec: Spec, edits: ContainerEdits) -> None:
    before = copy.deepcopy(spec)

    apply_edits(spec, edits)

    assert spec == before


@given(spec=SPECS, edits=EDITS)
def test_unknown_keys_and_bare_variables_are_kept(spec: Spec, edits: ContainerEdits) -> None:
    patched = apply_edits(spec, edits)

    assert {key: patched[key] for key in spec if key in ("vendor", "vm", "zos")} == {
        key: spec[key] for key in spec if key in ("vendor", "vm", "zos")
    }
    assert "bare" in env_entries(patched) or "bare" in edits.env


@given(spec=SPECS, edits=EDITS)
def test_every_edit_is_in_the_result(spec: Spec, edits: ContainerEdits) -> None:
    patched = apply_edits(spec, edits)

    assert edits.env.items() <= environment(patched).items()
    assert {mount.source for mount in edits.mounts} <= {
        mount["source"] for mount in mounts(patched)
    }


def test_a_variable_that_is_set_twice_has_its_last_value() -> None:
    assert environment(plain_spec("A=1", "A=2", "B"))["A"] == "2"


def test_a_new_variable_replaces_every_earlier_one() -> None:
    patched = apply_edits(plain_spec("A=1", "A=2", "AB=3"), ContainerEdits(env={"A": "4"}))

    assert env_entries(patched) == ["PATH=/bin", "AB=3", "A=4"]


def test_a_mount_replaces_the_one_at_the_same_place_however_it_is_written() -> None:
    spec = plain_spec(mounts=[bind("/old", "/etc/../x/"), bind("/kept", "/x/y")])

    patched = apply_edits(spec, ContainerEdits(mounts=[Mount(destination="/x", source="/new")]))

    assert [mount["source"] for mount in mounts(patched)][2:] == ["/kept", "/new"]


def test_a_granted_device_is_allowed_after_every_rule_that_was_there() -> None:
    deny = {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rwm"}
    allow = {**deny, "allow": True}
    spec = plain_spec(rules=[allow, deny])

    edits = ContainerEdits(devices=[DeviceNode(path="/dev/nvidia0", major=195, minor=0)])
    patched = apply_edits(spec, edits)

    rules = patched["linux"]["resources"]["devices"]
    assert rules == [{"allow": False, "access": "rwm"}, deny, allow]


def test_integers_beyond_a_double_stay_exact() -> None:
    spec = plain_spec()
    spec["linux"]["resources"]["memory"] = {"limit": 2**63 - 1}

    patched = apply_edits(
        spec, ContainerEdits(devices=[DeviceNode(path="/dev/x", major=1, minor=2)])
    )

    assert patched["linux"]["resources"]["memory"]["limit"] == 2**63 - 1


def test_a_hook_always_has_an_environment_of_its_own() -> None:
    hook = Hook(stage="createContainer", path="/bin/true", args=["true"], env=["PATH=/bin"])

    patched = apply_edits(plain_spec(), ContainerEdits(hooks=[hook]))

    assert patched["hooks"]["createContainer"] == [
        {"path": "/bin/true", "args": ["true"], "env": ["PATH=/bin"]}
    ]


def test_merged_edits_keep_order_and_the_last_value() -> None:
    first = ContainerEdits(env={"A": "1"}, mounts=[Mount(destination="/a", source="/1")])
    second = ContainerEdits(env={"A": "2"}, mounts=[Mount(destination="/b", source="/2")])

    merged = merge_edits(first, second)

    assert merged.env == {"A": "2"}
    assert [mount.destination for mount in merged.mounts] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("dev/x", "/dev/x"), ("//dev//x/", "/dev/x"), ("/a/../dev/./x", "/dev/x"), ("", "/")],
)
def test_a_destination_is_read_as_the_runtime_reads_it(written: str, meant: str) -> None:
    assert destination({"destination": written}) == meant


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [("/a", "/a", True), ("/a/b", "/a", True), ("/ab", "/a", False), ("/a", "/", True)],
)
def test_within_compares_whole_names(path: str, folder: str, inside: bool) -> None:
    assert within(path, folder) is inside


def test_annotations_that_are_no_text_are_left_out() -> None:
    assert annotations_of({"annotations": {"a": "b", "c": 1}}) == {"a": "b"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"process": []}, "process is not an object"),
        ({"process": {"env": "A=1"}}, "env is not a list"),
        ({"process": {"env": [1]}}, "env is not a list of strings"),
        ({"mounts": {}}, "mounts is not a list"),
        ({"mounts": ["/a"]}, "mounts is not a list of objects"),
        ({"mounts": [{"destination": 1}]}, "destination is not a string"),
        ({"mounts": [{"destination": "/a\0b"}]}, r"destination is not a path: '/a\\x00b'"),
        ({"mounts": [{"destination": "/\ud800"}]}, "destination is not a path"),
        ({"linux": {"devices": 1}}, "devices is not a list"),
        ({"linux": {"devices": [{"major": [1]}]}}, "major of a device is not a whole number"),
        ({"linux": {"devices": [{"type": 7}]}}, "type of a device is not a string"),
        ({"linux": {"resources": {"devices": [{"minor": 1.0}]}}}, "minor of a device is not"),
        ({"linux": {"resources": {"devices": [{"major": True}]}}}, "major of a device is not"),
        ({"linux": {"resources": {"devices": [{"access": []}]}}}, "access of a device is not"),
        ({"linux": {"resources": {"devices": [{"allow": 1}]}}}, "allow of a device rule is not"),
        ({"process": {"user": {"additionalGids": 7}}}, "additionalGids is not a list"),
    ],
)
def test_what_is_no_spec_is_refused(spec: dict[str, Any], message: str) -> None:
    everything = ContainerEdits(
        env={"A": "1"},
        mounts=[Mount(destination="/a", source="/b")],
        devices=[DeviceNode(path="/dev/x", major=1, minor=1)],
        additional_gids=[1],
    )

    with pytest.raises(SpecError, match=message):
        apply_edits(spec, everything)


@pytest.mark.parametrize("options", [7, "bind", [7], {"bind": 1}])
def test_options_that_are_none_are_refused(options: object) -> None:
    with pytest.raises(SpecError, match="options is not a list of strings"):
        is_bind({"type": "none", "options": options})


@pytest.mark.parametrize("spec", [{}, {"process": None, "mounts": None, "linux": None}])
def test_absent_and_null_are_empty(spec: Spec) -> None:
    patched = apply_edits(spec, ContainerEdits(env={"A": "1"}))

    assert environment(patched) == {"A": "1"}
