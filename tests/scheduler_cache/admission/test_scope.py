# SPDX-License-Identifier: Apache-2.0
"""Beside another system: whose pods are looked at, and whose are left to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_cache.admission.rules import Rules
from scheduler_cache.admission.validation import needs_pod, validated
from scheduler_cache.config_kubernetes import AdmissionConfig
from scheduler_cache.errors import ConfigError
from tests.scheduler_cache.admission.reviews import (
    ALICE,
    RULES,
    admitted,
    denial,
    mutate,
    new_pod,
    review,
    update,
)
from tests.scheduler_cache.admission.test_mutation import DIALECTS
from tests.scheduler_cache.kube_objects import container_of

NODES = replace(RULES, scope="nodes")
FOREIGN = [name for name in DIALECTS if name not in ("native", "devices")]


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def term(key: str, operator: str = "In") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": ["hami"]}]}


CHOOSING: dict[str, dict[str, Any]] = {
    "a node selector": {"nodeSelector": {"vgpu.dev/dialect": "hami"}},
    "an affinity": {"affinity": affinity(term("vgpu.dev/dialect"))},
    "an affinity that it exists": {"affinity": affinity(term("vgpu.dev/dialect", "Exists"))},
}
ANYWHERE: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another label": {"nodeSelector": {"pool": "gpu"}},
    "one of two terms": {"affinity": affinity(term("vgpu.dev/dialect"), term("pool"))},
    "other nodes": {"affinity": affinity(term("vgpu.dev/dialect", "NotIn"))},
    "no term": {"affinity": affinity()},
    "nulls": {"affinity": None, "nodeSelector": None},
}


def asking(dialect: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401  a spec's
    limits, annotations = DIALECTS[dialect]
    return new_pod(container_of("main", limits), annotations=annotations, **spec)


@pytest.mark.parametrize("spec", ANYWHERE.values(), ids=ANYWHERE)
@pytest.mark.parametrize("dialect", FOREIGN)
def test_a_pod_of_another_system_is_left_to_it(dialect: str, spec: dict[str, Any]) -> None:
    source = asking(dialect, **spec)

    assert mutate(source, NODES).patch == ()
    assert denial(source, NODES) == ""


@pytest.mark.parametrize("spec", CHOOSING.values(), ids=CHOOSING)
@pytest.mark.parametrize("dialect", FOREIGN)
def test_a_pod_of_another_system_that_chooses_our_nodes_is_ours(
    dialect: str, spec: dict[str, Any]
) -> None:
    stored = admitted(asking(dialect, **spec), NODES)

    assert stored["spec"]["runtimeClassName"] == "vgpu"
    assert "vgpu.dev/container-uuids" in stored["metadata"]["annotations"]


def test_a_pod_in_our_own_dialect_is_ours_anywhere() -> None:
    assert admitted(asking("native"), NODES)["spec"]["runtimeClassName"] == "vgpu"


def test_another_systems_scheduler_decides_about_its_own_pods_undisturbed() -> None:
    decision = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,0:;"}
    limits, _ = DIALECTS["hami"]
    ours = {"nodeSelector": {"vgpu.dev/dialect": "hami"}}

    def decide(pod: dict[str, Any]) -> None:
        pod["metadata"].setdefault("annotations", {}).update(decision)

    theirs = new_pod(container_of("main", limits), annotations={"a": "b"})
    stored = admitted(new_pod(container_of("main", limits), annotations={"a": "b"}, **ours), NODES)

    assert update(theirs, decide, NODES, user="system:serviceaccount:kube-system:hami") == ""
    assert "is written by a scheduler" in update(stored, decide, NODES)
    assert bound(theirs, {"annotations": decision}) == ""
    assert "is written by a scheduler" in bound(stored, {"annotations": decision})
    assert "is written by a scheduler" in bound(theirs, {"annotations": decision}, RULES)


WRITTEN: list[dict[str, dict[str, str]]] = [
    {"annotations": {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,0:;"}},
    {"annotations": {"gpu-fraction": "0.9"}},
    {"labels": {"runai-gpu-group": "g"}},
]


def bound(
    pod: dict[str, Any],
    written: dict[str, dict[str, str]],
    rules: Rules = NODES,
    user: str = ALICE,
    uid: str = "uid-1",
) -> str:
    """Return why a Binding is denied whose pod has the uid `uid-1`; empty: it is not."""
    metadata = {"name": "job", **({"uid": uid} if uid else {}), **written}
    source = {"metadata": metadata, "target": {"name": "n1"}}
    asked = review(source, user=user, resource="pods", subresource="binding")
    assert needs_pod(asked, rules)
    return validated(asked, rules, {**pod, "metadata": {**pod["metadata"], "uid": "uid-1"}}).denial


@pytest.mark.parametrize("written", WRITTEN, ids=["decision", "request", "label"])
@pytest.mark.parametrize("uid", ["uid-1", "", "uid-2"])
def test_a_binding_of_a_pod_of_ours_is_judged_alike_with_and_without_its_uid(
    written: dict[str, dict[str, str]], uid: str
) -> None:
    limits, _ = DIALECTS["hami"]
    ours = new_pod(container_of("main", limits), nodeSelector={"vgpu.dev/dialect": "hami"})

    assert bound(ours, written, uid=uid) != ""


@pytest.mark.parametrize("written", WRITTEN, ids=["decision", "request", "label"])
def test_a_binding_without_a_uid_may_be_of_a_pod_of_ours(
    written: dict[str, dict[str, str]],
) -> None:
    """The pod that was read may be gone when the API server binds whichever has its name."""
    limits, _ = DIALECTS["hami"]
    theirs = new_pod(container_of("main", limits))

    assert bound(theirs, written) == ""
    assert bound(theirs, written, uid="") != ""
    assert bound(theirs, written, uid="uid-2") != ""


def test_a_selector_of_another_type_is_denied() -> None:
    assert "nodeSelector" in denial(asking("hami", nodeSelector="vgpu.dev/dialect"), NODES)


def test_only_our_own_dialect_is_spoken_unless_somebody_says_so() -> None:
    settings = AdmissionConfig()

    assert (settings.dialects, settings.dialect_scope) == (("native",), "nodes")
    assert AdmissionConfig(dialects=("native", "hami")).guarded == frozenset()
    assert AdmissionConfig(dialects=("native",), dialect_scope="cluster").guarded == {"native"}
    with pytest.raises(ConfigError, match="dialect_scope must be one of nodes, cluster"):
        AdmissionConfig(dialect_scope="all")
