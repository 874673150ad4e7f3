# SPDX-License-Identifier: Apache-2.0
"""What nobody may create, and the sentence that they read."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_cache.admission.validation import validated
from tests.scheduler_cache.admission.reviews import (
    JOINED,
    US,
    admitted,
    denial,
    mutate,
    new_pod,
    review,
    ruled,
)
from tests.scheduler_cache.kube_objects import A, B, container, container_of

NAME = "VGPU_CONTAINER_UUID"
UUID = "aaaaaaaa-bbbb-4333-8444-555555555555"


def slice_pod(**spec: Any) -> dict[str, Any]:  # noqa: ANN401  a spec's fields
    return new_pod(container(memory="1Gi", cores="10"), **spec)


def host_path(path: str) -> dict[str, Any]:
    return {"volumes": [{"name": "host", "hostPath": {"path": path}}]}


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        # an amount of nothing
        ({"nvidia.com/gpucores": "0"}, {}, "asks for nothing else gets no card"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0"}, {}, "gets no card"),
        ({"nvidia.com/gpumem": "0"}, {}, "an amount is 1 or more"),
        ({"nvidia.com/gpumem-percentage": "0"}, {}, "an amount is 1 or more"),
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "0"}, {}, "1 or more"),
        ({"volcano.sh/vgpu-number": "0", "volcano.sh/vgpu-memory": "1"}, {}, "1 or more"),
        ({"volcano.sh/vgpu-cores": "50"}, {}, "it alone asks for no card"),
        ({"volcano.sh/vgpu-cores": "0"}, {}, "gets no card"),
        ({"vgpu.dev/memory": "0"}, {}, "must lie in 1.."),
        ({"koordinator.sh/gpu": "0"}, {}, "is required"),
        ({"tencent.com/vcuda-core": "0"}, {}, "an amount is 1 or more"),
        ({"tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "0"}, {}, "1 or more"),
        ({"alnair/vgpu-compute": "0"}, {}, "gets no card"),
        ({}, {"vgpu.dev/devices": "{}"}, "asks for nothing"),
        # an amount that is none
        ({"vgpu.dev/memory": "8Gb"}, {}, "not a quantity"),
        ({"vgpu.dev/memory": "-8Gi"}, {}, "not a quantity"),
        ({"vgpu.dev/memory": "8"}, {}, "add the unit"),
        ({"vgpu.dev/count": "17", "vgpu.dev/memory": "8Gi"}, {}, "1..16"),
        ({"nvidia.com/gpumem": "16Gi"}, {}, "it must lie in"),
        ({"nvidia.com/gpumem-percentage": "101"}, {}, "0..100"),
        ({"nvidia.com/gpumem-percentage": "1.5"}, {}, "not a whole number"),
        ({"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "1"}, {}, "multiple of 100"),
        ({}, {"gpu-fraction": "1.5"}, "between 0 and 1"),
        ({}, {"gpu-fraction": "0"}, "between 0 and 1"),
        ({}, {"gpu-fraction": "0.5", "gpu-memory": "100"}, "excludes"),
        ({}, {"gpu-memory": "-1"}, "whole number"),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}, "containers are"),
        # two meanings
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/devices": '{"main":null}'}, "leave the container"),
        ({"vgpu.dev/mem": "1Gi"}, {}, "there is no such resource"),
        ({"vgpu.dev/memory": "1Gi", "vgpu.dev/core": "1"}, {}, "no such resource"),
        (
            {"vgpu.dev/memory": "1Gi", "nvidia.com/gpumem": "1"},
            {},
            "pod default/job-* asks for cards in the dialects native and hami",
        ),
        ({"vgpu.dev/memory": "1Gi", "volcano.sh/vgpu-cores": "1"}, {}, "asks for no card"),
        ({"nvidia.com/gpumem": "1"}, {"gpu-fraction": "0.5"}, "hami and kai"),
        ({"koordinator.sh/gpu-core": "50"}, {}, "is required"),
    ],
)
def test_a_request_that_means_nothing_or_two_things_is_denied(
    limits: dict[str, str], annotations: dict[str, str], words: str
) -> None:
    assert words in denial(new_pod(container_of("main", limits), annotations=annotations))


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/use-uuid": "0"}, "named GPU-… or MIG-…"),
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/use-uuid": f"{A}, gpu-1"}, "'gpu-1'"),
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/use-uuid": "!x"}, "'x'"),
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/use-uuid": f"{A}::3"}, f"own name is {A}"),
        ({"nvidia.com/gpumem": "1"}, {"nvidia.com/use-gpuuuid": "1,2"}, "named GPU-… or MIG-…"),
        (
            {"vgpu.dev/memory": "1Gi", "vgpu.dev/count": "2"},
            {"vgpu.dev/use-uuid": f"{A},{A},!{B}"},
            "fewer than the 2 cards",
        ),
        ({"vgpu.dev/memory": "1Gi"}, {"vgpu.dev/use-uuid": f"{A},!{B},"}, ""),
        ({"vgpu.dev/memory": "1Gi", "vgpu.dev/count": "2"}, {"vgpu.dev/use-uuid": f"!{A}"}, ""),
    ],
)
def test_a_list_of_cards_that_no_node_has_is_denied(
    limits: dict[str, str], annotations: dict[str, str], words: str
) -> None:
    denied = denial(new_pod(container_of("main", limits), annotations=annotations))

    assert words in denied
    assert bool(denied) is bool(words)


def test_a_denial_is_one_sentence_with_field_value_rule_and_remedy() -> None:
    verdict = mutate(new_pod(container(memory="8Gi", cores="101")))

    assert verdict.denial == (
        "vgpu.dev/cores of container 'main' is '101': it must lie in 1..100; correct the pod's "
        "spec and create it again"
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1"},
        {"tencent.com/vcuda-core": "100"},
    ],
)
def test_an_init_container_whose_dialect_gives_it_no_card_is_denied(
    limits: dict[str, str],
) -> None:
    source = new_pod(container_of("main", limits), initContainers=[container_of("first", limits)])

    assert "an init container asks for no card" in denial(source)


def test_a_bare_card_beside_hamis_containers_is_denied() -> None:
    source = new_pod(
        container_of("main", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}),
        container_of("other", {"nvidia.com/gpu": "1"}),
    )

    assert "whose card is meant" in denial(source)


def test_two_containers_of_one_name_are_denied() -> None:
    assert "two containers are named 'main'" in denial(
        new_pod(container(memory="1Gi"), container(memory="1Gi"))
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeName": "node-1"}, "spec.nodeName is 'node-1'"),
        ({"hostPID": True}, "spec.hostPID is true"),
        ({"resourceClaims": [{"name": "gpu"}]}, "by a slice or by claims"),
        (host_path("/dev"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/dev//dri/card1"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/dev/nvidia0"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("//"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/./dev//"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/run"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/etc"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/proc"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/sys"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/sys/fs/cgroup/devices"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/proc/1/root/data"), "shows devices, processes, cgroups or vgpu's files"),
        (host_path("/var/lib/"), "shows devices, processes, cgroups or vgpu's files"),
        ({"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}, "asks an engine for devices"),
        ({"annotations": {"nvidia.cdi.k8s.io/x": "all"}}, "asks an engine for devices"),
    ],
)
def test_what_reaches_past_a_slice_is_denied(spec: dict[str, Any], words: str) -> None:
    assert words in denial(slice_pod(**spec))


@pytest.mark.parametrize("place", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({"privileged": True}, "is privileged"),
        ({"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}}, "'SYS_ADMIN'"),
        ({"capabilities": {"add": ["cap_sys_rawio"]}}, "'cap_sys_rawio'"),
        ({"capabilities": {"add": ["ALL"]}}, "'ALL'"),
    ],
)
def test_any_container_that_undoes_limits_is_denied(
    place: str, context: dict[str, Any], words: str
) -> None:
    other = {**container_of("other", {}), "securityContext": context}
    source = slice_pod()
    source["spec"].setdefault(place, []).append(other)

    assert words in denial(source)


@pytest.mark.parametrize(
    "spec",
    [
        {"hostPID": True},
        host_path("/dev"),
        {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
    ],
)
def test_the_policy_may_let_reach_in(spec: dict[str, Any]) -> None:
    assert admitted(slice_pod(**spec), ruled(deny_privileged=False))


@pytest.mark.parametrize(
    "spec",
    [
        {"hostPID": False},
        host_path("/data"),
        host_path("/device"),
        host_path("/dev/shm"),
        host_path("/dev/infiniband"),
        host_path("/processes"),
        host_path("/var/lib/data"),
        host_path("/etc/localtime"),
        host_path("/opt"),
        host_path("/usr/share/zoneinfo"),
        {"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": None}}}]},
        {"initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["KILL"]}}}]},
    ],
)
def test_what_stays_within_a_slice_is_let_in(spec: dict[str, Any]) -> None:
    assert admitted(slice_pod(**spec))


@pytest.mark.parametrize(
    "path",
    [
        "/run/vgpu",
        "/run/vgpu/agent.sock",
        "/var/run/vgpu",
        "//var//run///vgpu//containers",
        "/run/./vgpu",
        "/./var/././run/vgpu/",
        "/var/lib/vgpu/agent",
        "/dev/vgpu",
        "/etc/vgpu/runtime.conf",
        "/opt/vgpu/bin",
        "/usr/lib/vgpu",
        "/lib/vgpu",
        "/usr//local/lib/vgpu/current",
        "/proc/1/root/run/vgpu",
        "/proc/1/cwd/etc/vgpu",
        "/proc/self/root/./proc/1/task/7/root//var/lib/vgpu",
    ],
)
def test_our_folders_are_mounted_by_nobody_else(path: str) -> None:
    source = new_pod(container_of("main", {}), **host_path(path))
    slice_ = slice_pod(**host_path(path))
    open_ = ruled(deny_privileged=False)

    assert "belongs to vgpu" in denial(source, namespace="monitoring")
    assert "belongs to vgpu" in denial(slice_, open_, namespace="monitoring")
    assert not denial(source, namespace="vgpu-system")


@pytest.mark.parametrize(
    "path",
    [
        "/run",
        "/run/vgpus",
        "/run/x/vgpu",
        "/opt/run/vgpu",
        "/proc/1/run/vgpu",
        "/var/lib",
        "/lib/vgpu-other",
        "/etc/vgpu.conf",
        "/",
        "run/vgpu",
    ],
)
def test_other_folders_are_other_peoples_matter(path: str) -> None:
    assert not denial(new_pod(container_of("main", {}), **host_path(path)))


@pytest.mark.parametrize(
    "annotation",
    [
        "vgpu.dev/allocation",
        "vgpu.dev/isolation",
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/vgpu-node",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
        "scheduling.koordinator.sh/device-allocated",
        "tencent.com/predicate-gpu-idx-0",
        "ai.centaurus.io/alnair-gpu-id",
    ],
)
@pytest.mark.parametrize("asking", [True, False])
def test_nobody_creates_a_pod_with_a_decision(annotation: str, asking: bool) -> None:
    pod = container(memory="1Gi") if asking else container_of("main", {})

    assert annotation in denial(new_pod(pod, annotations={annotation: "x"}))


@pytest.mark.parametrize("label", ["runai-gpu-group", "runai-gpu-group/6f0c"])
def test_nobody_creates_a_pod_with_a_group_of_cards(label: str) -> None:
    source = new_pod(container_of("main", {}), labels={label: "6f0c"})

    assert f"{label} is written by a scheduler" in denial(source)
    assert not denial(source, user=JOINED)
    assert not denial(source, user=US)


def test_a_scheduler_that_is_known_writes_its_own_decisions_and_never_ours() -> None:
    theirs = new_pod(container_of("main", {}), annotations={"volcano.sh/vgpu-node": "n"})
    ours = new_pod(container_of("main", {}), annotations={"vgpu.dev/allocation": "{}"})

    assert not denial(theirs, user=JOINED)
    assert "vgpu alone" in denial(ours, user=JOINED)


@pytest.mark.parametrize(
    "listed", ["{}", "", "null", f'{{"main":"{UUID}"}}', "not JSON", '{"main":1}']
)
def test_a_forged_list_of_names_is_denied(listed: str) -> None:
    plain = new_pod(container_of("main", {}), annotations={"vgpu.dev/container-uuids": listed})
    stored = admitted(slice_pod())
    stored["metadata"]["annotations"]["vgpu.dev/container-uuids"] = listed

    assert "written by vgpu alone" in denial(plain)
    assert "written by vgpu alone" in validated(review(stored), ruled()).denial


def test_a_pod_that_did_not_pass_the_first_webhook_is_denied() -> None:
    verdict = validated(review(slice_pod()), ruled())

    assert "the webhook that gives it was not asked" in verdict.denial


def change(stored: dict[str, Any], env: list[dict[str, Any]]) -> dict[str, Any]:
    stored["spec"]["containers"][0]["env"] = env
    return stored


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ([], "has 0 VGPU_CONTAINER_UUID"),
        ([{"name": NAME, "value": UUID}, {"name": NAME, "value": UUID}], "has 2"),
        ([{"name": NAME, "valueFrom": {"fieldRef": {}}}], "of the right form"),
        ([{"name": NAME, "value": UUID.upper()}], "of the right form"),
        ([{"name": NAME, "value": UUID + "\n"}], "of the right form"),
        ([{"name": NAME, "value": UUID}], "does not name the pod's containers"),
    ],
)
def test_what_another_webhook_makes_of_a_name_is_denied(
    env: list[dict[str, Any]], words: str
) -> None:
    stored = change(admitted(slice_pod()), env)

    assert words in validated(review(stored), ruled()).denial


def test_one_name_for_two_containers_is_denied() -> None:
    stored = admitted(new_pod(container("a", memory="1Gi"), container("b", memory="1Gi")))
    for each in stored["spec"]["containers"]:
        each["env"] = [{"name": NAME, "value": UUID}]

    assert "two containers have one" in validated(review(stored), ruled()).denial


def test_a_runtime_class_that_another_webhook_sets_is_denied() -> None:
    stored = admitted(slice_pod())
    stored["spec"]["runtimeClassName"] = "nvidia"

    assert "something has changed that" in validated(review(stored), ruled()).denial


def test_a_container_that_another_webhook_adds_is_denied() -> None:
    stored = admitted(slice_pod())
    stored["spec"]["containers"].append(container("late", memory="1Gi"))

    assert "container 'late' asks for a card" in validated(review(stored), ruled()).denial


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"containers": "x"}}, "spec.containers is not a list"),
        ({"spec": {"containers": [1]}}, "spec.containers.0 is not an object"),
        ({"spec": {"containers": [{}]}}, "has no name"),
        ({"spec": {"containers": [{"name": 1}]}}, "is not a text"),
        ({"spec": []}, "spec is not an object"),
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations.a is not a text"),
        ({"metadata": {"labels": []}}, "metadata.labels is not an object"),
        ({"spec": {"containers": [{"name": "a", "env": {}}]}}, "env is not a list"),
        ({"spec": {"containers": [{"name": "a", "resources": 1}]}}, "resources is not an object"),
        (
            {"spec": {"containers": [{"name": "a", "resources": {"limits": {"x": True}}}]}},
            "is not a quantity",
        ),
        ({"spec": {"volumes": [1]}}, "spec.volumes.0 is not an object"),
    ],
)
def test_a_field_of_another_type_is_denied_with_its_place(
    change: dict[str, Any], words: str
) -> None:
    assert words in denial({**slice_pod(), **change})


@pytest.mark.parametrize(
    "block", ["/.", "//", "/./proc/1/root", "/proc/./././1/./././root", "/proc/1/task/1/root/."]
)
@pytest.mark.parametrize("end", ["", "/run/vgp", "/run/vgpu/\n/x"])
def test_no_path_takes_long(block: str, end: str) -> None:
    """A hundred thousand characters; a second way to match them would take for ever."""
    source = new_pod(container_of("main", {}), **host_path(block * 5000 + end))

    assert bool(denial(source)) is end.startswith("/run/vgpu")


def crowd(number: int, **limits: str) -> list[dict[str, Any]]:
    asked = {f"vgpu.dev/{name}": amount for name, amount in limits.items()}
    return [container_of(f"c{i}", asked) for i in range(number)]


def test_no_number_of_containers_takes_long() -> None:
    """Megabytes of containers; a look at each pair of them would take for minutes."""
    assert denial(new_pod(*crowd(30_000), **host_path("/run/vgpu"))).startswith("spec.volumes")
    assert "more than 128" in denial(new_pod(*crowd(30_000, memory="1Gi")))
    assert "more than 128" in denial(new_pod(*crowd(128), container(memory="1Gi")))
    assert not denial(new_pod(*crowd(127), container(memory="1Gi")))


@pytest.mark.parametrize(
    ("annotation", "limits"),
    [
        ("vgpu.dev/use-uuid", {"vgpu.dev/memory": "1Gi"}),
        ("vgpu.dev/use-model", {"vgpu.dev/memory": "1Gi"}),
        ("nvidia.com/nouse-gpuuuid", {"nvidia.com/gpumem": "1"}),
        ("nvidia.com/use-gputype", {"nvidia.com/gpumem": "1"}),
        ("volcano.sh/vgpu-use-gpuuuid", {"volcano.sh/vgpu-memory": "1"}),
        ("nvidia.com/nouse-gputype", {"volcano.sh/vgpu-memory": "1"}),
    ],
)
def test_a_list_that_every_container_keeps_is_short(
    annotation: str, limits: dict[str, str]
) -> None:
    """Of a hundred containers and a list of 256 KiB a replica would keep gigabytes."""
    names = [f"GPU-{i}" for i in range(257)]

    def denied(number: int) -> str:
        annotations = {annotation: ",".join(names[:number])}
        return denial(new_pod(container_of("main", limits), annotations=annotations))

    assert not denied(256)
    assert denied(257).startswith(annotation)
    assert "lists 257 names, more than 256" in denied(257)
