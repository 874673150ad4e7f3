# SPDX-License-Identifier: Apache-2.0
"""What a node's rules make of containers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vgpu.privileges import UNDOING

from runtime_shim.classify import Classification, classify
from runtime_shim.errors import RefusedError
from runtime_shim.policy import Treatment, check_managed, driver_capabilities, treat_unmanaged
from tests.runtime_shim.specs import plain_spec

FACTS = classify(plain_spec())
POD = replace(FACTS, cri=True, namespace="gpu-operator", pod="nvidia-dcgm-exporter-x7")
ALLOWED = ("compute", "utility", "video")


def test_an_unmanaged_container_sees_no_gpu() -> None:
    decision = treat_unmanaged(FACTS)

    assert decision.treatment is Treatment.VOID


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("gpu-operator/nvidia-dcgm-exporter-*", True),
        ("gpu-*/*", True),
        ("*/*", True),
        ("gpu-operator/nvidia-dcgm-exporter", False),
        ("GPU-operator/*", False),
        ("*", False),
        ("gpu-operator", False),
        ("gpu-operator/*/*", False),
    ],
)
def test_a_pattern_allows_a_pod_by_namespace_and_name(pattern: str, matches: bool) -> None:
    decision = treat_unmanaged(POD, allow=[pattern])

    assert (decision.treatment is Treatment.LEAVE) is matches
    assert (repr(pattern) in decision.reason) is matches


def test_a_pattern_allows_no_container_without_a_pod() -> None:
    assert treat_unmanaged(FACTS, allow=["*/*"]).treatment is Treatment.VOID


@pytest.mark.parametrize(
    ("facts", "vouched", "default", "reason"),
    [
        (FACTS, True, "void", "the kubelet vouches"),
        (replace(FACTS, privileged=True), False, "void", "privileged"),
        (FACTS, False, "allow", "the node allows"),
    ],
)
def test_other_rules_leave_a_container_as_it_is(
    facts: Classification, vouched: bool, default: str, reason: str
) -> None:
    decision = treat_unmanaged(facts, vouched=vouched, default=default)

    assert decision.treatment is Treatment.LEAVE
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (replace(FACTS, privileged=True), "it is privileged.*without --privileged"),
        (
            replace(FACTS, undoing=frozenset({"SYS_ADMIN"})),
            "holds CAP_SYS_ADMIN.*without --cap-add SYS_ADMIN, or set policy.sys_admin",
        ),
        *(
            (replace(FACTS, undoing=frozenset({name})), f"CAP_{name}, with .*--cap-add {name}$")
            for name in UNDOING
            if name != "SYS_ADMIN"
        ),
        (replace(FACTS, host_pid=True), "host's PID namespace.*without --pid=host"),
        (replace(FACTS, host_dev=True), "mounts the host's /dev.*only the devices"),
    ],
)
def test_a_slice_for_a_container_that_could_leave_it_is_refused(
    facts: Classification, message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        check_managed(facts)


def test_a_node_may_allow_sys_admin_but_nothing_beyond() -> None:
    facts = replace(FACTS, undoing=frozenset({"SYS_ADMIN"}))

    check_managed(facts, sys_admin="allow")
    with pytest.raises(RefusedError, match="CAP_SYS_MODULE"):
        check_managed(
            replace(facts, undoing=frozenset({"SYS_ADMIN", "SYS_MODULE"})), sys_admin="allow"
        )
    with pytest.raises(RefusedError, match="it is privileged"):
        check_managed(replace(facts, privileged=True), sys_admin="allow")


def test_a_plain_container_may_have_a_slice() -> None:
    check_managed(FACTS)


@pytest.mark.parametrize(
    ("value", "granted"),
    [
        (None, ("compute", "utility")),
        ("", ("compute", "utility")),
        (" , ", ("compute", "utility")),
        ("all", ALLOWED),
        ("compute", ("compute",)),
        ("utility, COMPUTE,compute", ("compute", "utility")),
        ("graphics,video", ("video",)),
        ("all,graphics", ALLOWED),
    ],
)
def test_driver_capabilities_are_those_asked_for_and_allowed(
    value: str | None, granted: tuple[str, ...]
) -> None:
    assert driver_capabilities(value, ALLOWED) == granted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("graphics", "names nothing that this node allows"),
        ("compute,warp", "names 'warp', which does not exist; use some of compat32,"),
    ],
)
def test_capabilities_that_cannot_be_given_are_refused(value: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        driver_capabilities(value, ALLOWED)
