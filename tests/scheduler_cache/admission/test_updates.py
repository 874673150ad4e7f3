# SPDX-License-Identifier: Apache-2.0
"""What may change on a pod, a Binding and a node that are there, and by whom."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_cache.admission.validation import needs_pod, validated
from tests.scheduler_cache.admission.reviews import (
    ALICE,
    JOINED,
    RULES,
    US,
    admitted,
    new_pod,
    review,
    update,
)
from tests.scheduler_cache.kube_objects import container, container_of

NAME = "VGPU_CONTAINER_UUID"
UUID = "11111111-2222-4333-8444-555555555555"
SUBRESOURCES = ["", "status", "resize", "ephemeralcontainers"]


def stored(**spec: Any) -> dict[str, Any]:  # noqa: ANN401  a spec's fields
    return admitted(new_pod(container(memory="1Gi", cores="10"), **spec))


def annotate(name: str, text: str | None) -> Any:  # noqa: ANN401  a change
    def change(source: dict[str, Any]) -> None:
        annotations = source["metadata"].setdefault("annotations", {})
        if text is None:
            del annotations[name]
        else:
            annotations[name] = text

    return change


@pytest.mark.parametrize("subresource", SUBRESOURCES)
@pytest.mark.parametrize(
    "annotation",
    ["vgpu.dev/allocation", "vgpu.dev/isolation", "volcano.sh/vgpu-ids-new", "hami.io/bind-phase"],
)
def test_a_decision_is_written_by_who_decides(annotation: str, subresource: str) -> None:
    pod = stored()
    change = annotate(annotation, "x")
    ours = annotation.startswith("vgpu.dev")

    assert annotation in update(pod, change, user=ALICE, subresource=subresource)
    assert bool(update(pod, change, user=JOINED, subresource=subresource)) is ours
    assert not update(pod, change, user=US, subresource=subresource)


def test_a_decision_is_removed_by_who_decides() -> None:
    pod = stored()
    pod["metadata"]["annotations"]["vgpu.dev/allocation"] = "{}"

    assert "vgpu alone" in update(pod, annotate("vgpu.dev/allocation", None))
    assert not update(pod, annotate("vgpu.dev/allocation", None), user=US)


def test_what_stays_is_nobodys_fault() -> None:
    pod = stored()
    pod["metadata"]["annotations"]["vgpu.dev/allocation"] = "{}"
    pod["metadata"]["finalizers"] = ["a/b"]

    assert not update(pod, lambda each: each["metadata"].pop("finalizers"))


@pytest.mark.parametrize("user", [ALICE, JOINED, US])
@pytest.mark.parametrize("text", [None, "{}"])
def test_the_list_of_names_never_changes(user: str, text: str | None) -> None:
    change = annotate("vgpu.dev/container-uuids", text)

    assert "vgpu alone" in update(stored(), change, user=user)


@pytest.mark.parametrize("subresource", SUBRESOURCES)
@pytest.mark.parametrize(
    "annotation",
    [
        "vgpu.dev/devices",
        "vgpu.dev/compute-mode",
        "vgpu.dev/use-uuid",
        "nvidia.com/use-gputype",
        "gpu-fraction",
        "gpu-memory",
        "tencent.com/vcuda-core-limit",
    ],
)
def test_a_request_never_changes(annotation: str, subresource: str) -> None:
    change = annotate(annotation, "0.5")

    for user in (ALICE, JOINED, US):
        assert "what the pod asked for" in update(
            stored(), change, user=user, subresource=subresource
        )


def test_a_pod_does_not_begin_to_ask() -> None:
    plain = new_pod(container_of("main", {}))

    assert "what the pod asked for" in update(plain, annotate("gpu-fraction", "0.5"))
    assert "what the pod asked for" in update(plain, annotate("vgpu.dev/devices", "{}"))


def test_a_pod_without_a_slice_changes_as_it_likes() -> None:
    plain = new_pod(container_of("main", {}))

    assert not update(plain, annotate("vgpu.dev/use-model", "H100"))
    assert not update(plain, annotate("a/b", "c"))


def test_a_slice_is_not_resized() -> None:
    pod = stored()

    def grow(source: dict[str, Any]) -> None:
        source["spec"]["containers"][0]["resources"]["limits"]["vgpu.dev/memory"] = "2Gi"

    def more_cpu(source: dict[str, Any]) -> None:
        source["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2"

    assert "not resized" in update(pod, grow, subresource="resize")
    assert not update(pod, more_cpu, subresource="resize")


def test_a_name_does_not_change() -> None:
    def rename(source: dict[str, Any]) -> None:
        source["spec"]["containers"][0]["env"][0]["value"] = UUID

    assert f"{NAME} is written by vgpu alone" in update(stored(), rename, user=US)


def debug(source: dict[str, Any], **fields: Any) -> None:  # noqa: ANN401  a container's
    source["spec"].setdefault("ephemeralContainers", []).append({"name": "debug", **fields})


def test_a_container_for_looking_in_gets_no_name() -> None:
    pod = stored()
    named = [{"name": NAME, "value": UUID}]

    def add(source: dict[str, Any]) -> None:
        debug(source, env=named)

    assert "has no slice and carries" in update(pod, add, subresource="ephemeralcontainers")
    assert not update(pod, debug, subresource="ephemeralcontainers")


def test_a_container_for_looking_in_undoes_no_limits() -> None:
    def add(source: dict[str, Any]) -> None:
        debug(source, securityContext={"privileged": True})

    plain = new_pod(container_of("main", {}))

    assert "container 'debug' is privileged" in update(
        stored(), add, subresource="ephemeralcontainers"
    )
    assert not update(plain, add, subresource="ephemeralcontainers")


def test_what_was_there_before_us_does_not_hinder_an_end() -> None:
    """A pod from before the webhooks: no names, privileged, and its request cannot be read."""
    old = new_pod(
        {**container(memory="zero"), "securityContext": {"privileged": True}},
        hostPID=True,
        nodeName="node-1",
        annotations={"vgpu.dev/allocation": "{}"},
    )
    old["metadata"]["finalizers"] = ["a/b"]

    assert not update(old, lambda each: each["metadata"].pop("finalizers"))
    assert not update(old, lambda each: each.update(status={"phase": "Failed"}))
    assert not update(old, debug, subresource="ephemeralcontainers")


@pytest.mark.parametrize("annotation", ["cdi.k8s.io/gpu", "nvidia.cdi.k8s.io/gpu"])
def test_no_devices_are_asked_of_the_engine_later(annotation: str) -> None:
    assert "asks an engine for devices" in update(stored(), annotate(annotation, "all"))


def binding(**annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "p",
            "annotations": {key.replace("__", "/"): text for key, text in annotations.items()},
        },
        "target": {"kind": "Node", "name": "node-1"},
    }


def bound(source: dict[str, Any], user: str) -> str:
    found = {
        validated(
            review(source, user=user, resource=resource, subresource=subresource), RULES
        ).denial
        for resource, subresource in (("pods", "binding"), ("bindings", ""))
    }
    assert len(found) == 1
    return found.pop()


def test_a_binding_carries_the_decision_of_who_decides() -> None:
    ours = binding(**{"vgpu.dev/allocation": "{}"})
    theirs = binding(**{"volcano.sh/vgpu-ids-new": "x"})

    assert not bound(binding(), ALICE)
    assert "vgpu alone" in bound(ours, ALICE)
    assert "vgpu alone" in bound(ours, JOINED)
    assert not bound(ours, US)
    assert "by a scheduler" in bound(theirs, ALICE)
    assert not bound(theirs, JOINED)
    assert not bound(theirs, US)


@pytest.mark.parametrize(
    "annotation", ["vgpu.dev/devices", "gpu-fraction", "cdi.k8s.io/x", "vgpu.dev/container-uuids"]
)
def test_a_binding_carries_no_request(annotation: str) -> None:
    for user in (ALICE, JOINED, US):
        assert annotation in bound(binding(**{annotation: "1"}), user)


# What Volcano repeats of a pod on its Binding: ours, its own, and what anybody may write.
CARRIED = {
    "vgpu.dev/container-uuids": '{"main":"00000000-0000-4000-8000-000000000001"}',
    "nvidia.com/use-gputype": "A100",
    "volcano.sh/vgpu-use-gpuuuid": "GPU-1",
    "hami.io/vgpu-node": "node-1",
    "cdi.k8s.io/x": "1",
    "a/b": "c",
}


def repeated(
    source: dict[str, Any], carried: dict[str, Any], user: str, uid: str = "uid-1"
) -> tuple[bool, str]:
    """Return whether the pod of a Binding is asked for, and why the Binding is denied."""
    source["metadata"]["uid"] = "uid-1"
    asked = review(source, user=user, resource="pods", subresource="binding")
    pod = {"metadata": {"uid": uid, **carried}}
    return needs_pod(asked, RULES), validated(asked, RULES, pod).denial


@pytest.mark.parametrize("user", [ALICE, JOINED])
def test_a_binding_may_repeat_what_the_pod_carries(user: str) -> None:
    labelled = binding(**CARRIED)
    labelled["metadata"]["labels"] = {"runai-gpu-group": "g"}
    carried = {"annotations": CARRIED, "labels": {"runai-gpu-group": "g"}}

    assert repeated(labelled, carried, user) == (True, "")


@pytest.mark.parametrize("name", [name for name in CARRIED if name != "a/b"])
def test_a_binding_changes_and_adds_nothing_that_is_reserved(name: str) -> None:
    changed = {"annotations": {**CARRIED, name: "other"}}
    missing = {"annotations": {key: CARRIED[key] for key in CARRIED if key != name}}

    for carried in (changed, missing):
        assert name in repeated(binding(**CARRIED), carried, ALICE)[1]


def test_a_binding_of_another_pod_of_that_name_repeats_nothing() -> None:
    carried = {"annotations": CARRIED}
    unnamed = review(binding(**CARRIED), user=JOINED, resource="bindings")

    assert "by vgpu alone" in repeated(binding(**CARRIED), carried, JOINED, uid="uid-2")[1]
    # Without a uid the API server binds whichever pod has the name by then.
    assert "by vgpu alone" in validated(unnamed, RULES, {"metadata": carried}).denial


def test_only_a_binding_with_something_reserved_asks_for_its_pod() -> None:
    assert not repeated(binding(**{"a/b": "c"}), {}, ALICE)[0]
    assert not repeated(binding(**{"vgpu.dev/allocation": "{}"}), {}, US)[0]
    assert not needs_pod(review(binding(**CARRIED), user=ALICE), RULES)


def node(**metadata: Any) -> dict[str, Any]:  # noqa: ANN401  a node's
    return {"kind": "Node", "metadata": {"name": "node-1", **metadata}}


def node_update(before: dict[str, Any], after: dict[str, Any], user: str, group: str) -> str:
    found = {
        validated(
            review(
                after,
                old=before,
                operation="UPDATE",
                resource="nodes",
                subresource=subresource,
                user=user,
                groups=(group,),
            ),
            RULES,
        ).denial
        for subresource in ("", "status")
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    ("metadata", "people", "kubelet", "ours"),
    [
        ({"annotations": {"vgpu.dev/inventory": "[]"}}, False, False, True),
        ({"annotations": {"vgpu.dev/room-since": "now"}}, False, False, True),
        ({"annotations": {"vgpu.dev/served-resources": "a/b"}}, False, False, True),
        ({"annotations": {"vgpu.dev/whole-cards": "{}"}}, False, False, True),
        ({"labels": {"vgpu.dev/node": "true"}}, False, False, True),
        ({"annotations": {"vgpu.dev/cordon": "GPU-1"}}, True, False, True),
        ({"labels": {"vgpu.dev/dialect": "hami"}}, True, False, True),
        ({"labels": {"vgpu.dev/mode": "join"}}, True, False, True),
        ({"labels": {"vgpu.dev/install": "true"}}, True, True, True),
        ({"annotations": {"a/b": "c"}}, True, True, True),
    ],
)
def test_a_node_is_described_by_us_and_managed_by_people(
    metadata: dict[str, Any], people: bool, kubelet: bool, ours: bool
) -> None:
    for before, after in ((node(), node(**metadata)), (node(**metadata), node())):
        assert bool(node_update(before, after, ALICE, "people")) is not people
        assert bool(node_update(before, after, "system:node:node-1", "system:nodes")) is not kubelet
        assert bool(node_update(before, after, US, "system:serviceaccounts")) is not ours
    assert not node_update(node(**metadata), node(**metadata), "system:node:n", "system:nodes")


def test_a_new_node_brings_no_inventory() -> None:
    source = node(annotations={"vgpu.dev/inventory": "[]"})

    verdict = validated(review(source, resource="nodes", namespace=""), RULES)

    assert "vgpu.dev/inventory of a node is written by vgpu alone" in verdict.denial


@pytest.mark.parametrize(
    ("operation", "resource", "subresource"),
    [
        ("DELETE", "pods", ""),
        ("CONNECT", "pods", "exec"),
        ("CREATE", "pods", "eviction"),
        ("UPDATE", "configmaps", ""),
    ],
)
def test_the_rest_is_none_of_our_business(operation: str, resource: str, subresource: str) -> None:
    verdict = validated(
        review({}, operation=operation, resource=resource, subresource=subresource), RULES
    )

    assert not verdict.denial
