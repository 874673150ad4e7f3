# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scheduler_cache.admission.mutation import mutated
from scheduler_cache.admission.review import ALLOWED, review_of
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.registry import every_dialect
from tests.scheduler_cache.admission.reviews import (
    RULES,
    admitted,
    body,
    mutate,
    new_pod,
    patched,
    review,
    ruled,
    uuids,
)
from tests.scheduler_cache.kube_objects import KEYRING, container, container_of

NAME = "VGPU_CONTAINER_UUID"
STALE = "99999999-9999-4999-8999-999999999999"

# One container in each dialect, and what else its pod needs.
DIALECTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "native": ({"vgpu.dev/memory": "8Gi", "vgpu.dev/cores": "30"}, {}),
    "devices": ({"vgpu.dev/count": "1"}, {"vgpu.dev/devices": '{"main":[{"memory":"1Gi"}]}'}),
    "volcano": ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4096"}, {}),
    "hami": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, {}),
    "koordinator": ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}),
    "kai": ({}, {"gpu-fraction": "0.5"}),
    "gpu_manager": ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}, {}),
    "alnair": ({"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "30"}, {}),
}


def values(source: dict[str, Any], name: str = "main") -> list[str]:
    """Return all values of the variable in a container."""
    spec = source["spec"]
    (found,) = (
        each
        for each in [*spec.get("initContainers", ()), *spec["containers"]]
        if each["name"] == name
    )
    return [each.get("value") for each in found.get("env", ()) if each["name"] == NAME]


@pytest.mark.parametrize(("limits", "annotations"), DIALECTS.values(), ids=DIALECTS)
def test_a_pod_of_each_dialect_gets_names_and_our_runtime(
    limits: dict[str, str], annotations: dict[str, str]
) -> None:
    stored = admitted(new_pod(container_of("main", limits), annotations=annotations))

    (value,) = values(stored)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value)
    assert json.loads(stored["metadata"]["annotations"]["vgpu.dev/container-uuids"]) == {
        "main": value
    }
    assert stored["spec"]["runtimeClassName"] == "vgpu"


def test_init_containers_and_sidecars_get_names_of_their_own() -> None:
    stored = admitted(
        new_pod(
            container("main", memory="2Gi"),
            container_of("web", {}),
            initContainers=[
                container("first", memory="1Gi"),
                container("side", memory="1Gi", sidecar=True),
                container_of("fetch", {}),
            ],
        )
    )

    listed = json.loads(stored["metadata"]["annotations"]["vgpu.dev/container-uuids"])
    assert list(listed) == ["first", "side", "main"]
    assert len(set(listed.values())) == 3
    for name, value in listed.items():
        assert values(stored, name) == [value]
    assert values(stored, "web") == values(stored, "fetch") == []


@pytest.mark.parametrize(
    "env",
    [
        [{"name": NAME, "value": STALE}],
        [{"name": NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        [{"name": "A", "value": "1"}, {"name": NAME}, {"name": NAME, "value": STALE}],
        [{"name": NAME, "value": STALE}, {"name": "A", "value": "1"}, {"name": NAME}],
    ],
)
def test_a_name_that_was_there_is_replaced(env: list[dict[str, Any]]) -> None:
    source = new_pod({**container(memory="1Gi"), "env": env})

    stored = admitted(source)

    (value,) = values(stored)
    assert value != STALE
    others = [each for each in stored["spec"]["containers"][0]["env"] if each["name"] != NAME]
    assert others == [each for each in env if each["name"] != NAME]


def test_a_container_without_a_slice_loses_a_name() -> None:
    lone = {**container_of("web", {}), "env": [{"name": NAME, "value": STALE}]}

    beside = admitted(new_pod(container("main", memory="1Gi"), lone))
    alone = mutate(new_pod(lone))

    assert values(beside, "web") == []
    assert values(patched(new_pod(lone), alone), "web") == []
    assert alone.warnings == (f"{NAME} is for containers with a slice: removed",)


def test_a_copied_pod_gets_new_names() -> None:
    first = admitted(new_pod(container(memory="1Gi")))

    second = admitted(first)

    assert values(first) != values(second)
    assert len(values(second)) == 1


def test_asking_again_changes_nothing_but_the_names() -> None:
    source = new_pod(container(memory="1Gi"), container("side", memory="1Gi"), priority=0)
    once = admitted(source, rules := ruled(scheduler_name="ours", priority_class="gpu"))
    twice = patched(once, mutated(review(once), rules, uuids()))

    for each in (once, twice):
        each["metadata"]["annotations"].pop("vgpu.dev/container-uuids")
        for one in each["spec"]["containers"]:
            assert [item["name"] for item in one["env"]] == [NAME]
            one["env"].clear()
    assert once == twice


def test_a_pod_that_asks_for_nothing_stays_as_it_is() -> None:
    plain = new_pod(container_of("main", {"nvidia.com/gpu": "1"}))

    assert mutate(plain) == ALLOWED


def test_only_the_creation_of_pods_is_changed() -> None:
    source = new_pod(container(memory="1Gi"))

    assert mutate(source, operation="UPDATE") == ALLOWED
    assert mutate(source, subresource="binding") == ALLOWED
    assert mutate(source, resource="deployments") == ALLOWED


@pytest.mark.parametrize("found", [None, "", "nvidia", "vgpu"])
def test_the_runtime_class_becomes_ours(found: str | None) -> None:
    source = new_pod(container(memory="1Gi"))
    if found is not None:
        source["spec"]["runtimeClassName"] = found

    assert admitted(source)["spec"]["runtimeClassName"] == "vgpu"


def test_another_runtime_class_is_refused() -> None:
    verdict = mutate(new_pod(container(memory="1Gi"), runtimeClassName="kata"))

    assert verdict.denial == (
        "spec.runtimeClassName is 'kata': a pod with a slice runs under vgpu; leave the field out"
    )


@pytest.mark.parametrize(
    ("configured", "found", "stored"),
    [
        ("", "default-scheduler", "default-scheduler"),
        ("vgpu-scheduler", "default-scheduler", "vgpu-scheduler"),
        ("vgpu-scheduler", "", "vgpu-scheduler"),
        ("vgpu-scheduler", "volcano", "volcano"),
    ],
)
def test_the_scheduler_is_set_where_it_was_the_default_one(
    configured: str, found: str, stored: str
) -> None:
    source = new_pod(container(memory="1Gi"), schedulerName=found)

    assert admitted(source, ruled(scheduler_name=configured))["spec"]["schedulerName"] == stored


def test_a_priority_class_takes_the_place_of_the_default_number() -> None:
    spec = admitted(new_pod(container(memory="1Gi")), ruled(priority_class="gpu"))["spec"]

    assert spec["priorityClassName"] == "gpu"
    assert "priority" not in spec
    assert "preemptionPolicy" not in spec


def test_a_priority_class_of_the_pods_own_stays() -> None:
    source = new_pod(container(memory="1Gi"), priorityClassName="high", priority=1000)

    spec = admitted(source, ruled(priority_class="gpu"))["spec"]

    assert (spec["priorityClassName"], spec["priority"]) == ("high", 1000)


def test_a_dialect_that_is_not_ours_is_left_alone() -> None:
    rules = ruled(ours=frozenset({"native"}))
    source = new_pod(container_of("main", {"volcano.sh/vgpu-number": "1"}))

    assert mutate(source, rules) == ALLOWED


def test_annotations_of_others_are_kept() -> None:
    stored = admitted(new_pod(container(memory="1Gi"), annotations={"a/b": "c", "d~e": ""}))

    annotations = stored["metadata"]["annotations"]
    assert (annotations["a/b"], annotations["d~e"]) == ("c", "")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"vgpu.dev/memory": "8Gi"}, ["names no cores"]),
        ({"vgpu.dev/memory": "8Gi", "vgpu.dev/cores": "30"}, []),
        ({"nvidia.com/gpucores": "50"}, ["names no memory of its own"]),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/gpucores": "150"}, [">100"]),
        ({"volcano.sh/vgpu-number": "2"}, ["names no memory", "names no cores"]),
        ({"alnair/vgpu-memory": "4", "alnair/vgpu-compute": "101"}, [">100"]),
    ],
)
def test_what_is_given_unasked_is_warned_of(limits: dict[str, str], words: list[str]) -> None:
    verdict = mutate(new_pod(container_of("main", limits)))

    assert not verdict.denial
    assert len(verdict.warnings) == len(words)
    for text, part in zip(verdict.warnings, words, strict=True):
        assert part.replace(">100", "is more than 100") in text


def test_a_misspelt_annotation_is_warned_of() -> None:
    verdict = mutate(
        new_pod(container(memory="1Gi", cores="5"), annotations={"vgpu.dev/card-polcy": "spread"})
    )

    (warning,) = verdict.warnings
    assert warning.startswith("vgpu.dev/card-polcy is no annotation of vgpu.dev")


def test_a_review_of_the_api_server_is_read() -> None:
    source = new_pod(container(memory="1Gi"))
    read = review_of(json.dumps(body(source)).encode())

    verdict = mutated(read, RULES, uuids())

    assert values(patched(source, verdict)) == ["00000000-0000-4000-8000-000000000001"]


def test_a_bare_card_is_named_where_it_is_hamis() -> None:
    rules = ruled(dialects=every_dialect(KEYRING, hami=Hami(claim_bare_gpu=True)))

    stored = admitted(new_pod(container_of("main", {"nvidia.com/gpu": "2"})), rules)

    assert len(values(stored)) == 1
    assert stored["spec"]["runtimeClassName"] == "vgpu"
    assert rules.resource("nvidia.com/gpu")
