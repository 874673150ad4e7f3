# SPDX-License-Identifier: Apache-2.0
"""What a spec says about who made the container and how closed it is."""

from __future__ import annotations

from typing import Any

import pytest
from vgpu.privileges import UNDOING

from runtime_shim.classify import Mode, classify
from runtime_shim.messages import ContainerName
from runtime_shim.spec import Spec, SpecError
from tests.runtime_shim.specs import GOLDEN, bind, load, plain_spec
from tests.testbed.oci import CAPABILITIES

ID = "c66bb71f70cc6c7fc90b28d8b41fafea836610eed8955087a36ddb90ccf0b5e1"
POD = "/var/lib/kubelet/pods/3d2a8f5e-7c1b-4a68-9f0e-2b6d4c8e1a55"


@pytest.mark.parametrize(
    ("mode", "entry", "managed"),
    [
        ("local", "VGPU_MEMORY=1Gi", True),
        ("local", "VGPU_MEMORY=", True),
        ("local", "VGPU_CORES=1", True),
        ("local", "VGPU_COUNT=1", True),
        ("local", "VGPU_UUIDS=x", True),
        ("local", "VGPU_CONTAINER_UUID=x", False),
        ("local", "VGPU_PORT=tcp://1", True),
        ("local", "VGPU_MEMROY=1Gi", True),
        ("local", "VGPU_WEIGHT=1", True),
        ("local", "VGPU_LOG=debug", False),
        ("local", "VGPU_CONFIG=/etc/x", False),
        ("local", "NVIDIA_VISIBLE_DEVICES=all", False),
        ("local", "VGPU_MEMORY", False),
        ("kubernetes", "VGPU_CONTAINER_UUID=x", True),
        ("kubernetes", "VGPU_CONTAINER_UUID=", True),
        ("kubernetes", "VGPU_MEMORY=1Gi", False),
    ],
)
def test_who_asks_for_a_slice(mode: Mode, entry: str, managed: bool) -> None:
    assert classify(plain_spec(entry), mode=mode).managed is managed


@pytest.mark.parametrize(
    ("spec", "cri"),
    [
        (plain_spec(), False),
        (plain_spec(annotations={"io.kubernetes.cri.sandbox-id": "x"}), True),
        (plain_spec(annotations={"io.kubernetes.cri-o.SandboxID": "x"}), True),
        (
            plain_spec(
                annotations={
                    "io.kubernetes.cri-o.SandboxID": "x",
                    "io.container.manager": "libpod",
                }
            ),
            False,
        ),
        (plain_spec(mounts=[bind(f"{POD}/etc-hosts", "/etc/hosts")]), True),
        (plain_spec(mounts=[bind(f"{POD}/containers/main/1", "/dev/termination-log")]), True),
        (plain_spec(mounts=[bind("/srv/pods/1/etc-hosts", "/data")]), False),
        (plain_spec(mounts=[bind("/var/lib/docker/containers/1/hosts", "/etc/hosts")]), False),
    ],
)
def test_marks_of_kubernetes(spec: Spec, cri: bool) -> None:
    assert classify(spec).cri is cri


def test_a_pod_of_containerd_is_named_by_its_annotations() -> None:
    facts = classify(load(GOLDEN / "containerd-cri-without-slice" / "config.json"))

    assert (facts.cri, facts.sandbox, facts.pod_uid) == (
        True,
        False,
        "3d2a8f5e-7c1b-4a68-9f0e-2b6d4c8e1a55",
    )
    assert facts.name(ID) == ContainerName(name="main", place="team-a/train-0")


def test_a_pod_of_crio_is_named_by_its_annotations() -> None:
    marks = {
        "io.kubernetes.cri-o.SandboxID": "x",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.pod.name": "train-0",
        "io.kubernetes.pod.namespace": "team-a",
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.container.name": "POD",
    }

    facts = classify(plain_spec(annotations=marks))

    assert (facts.sandbox, facts.pod_uid) == (True, "u")
    assert facts.name(ID) == ContainerName(name="POD", place="team-a/train-0")


def test_a_tenants_annotation_makes_no_sandbox_of_a_container_of_crio() -> None:
    marks = {
        "io.kubernetes.cri-o.SandboxID": "x",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri.container-type": "sandbox",
    }

    assert not classify(plain_spec(annotations=marks)).sandbox


def test_a_container_without_a_name_goes_by_its_id() -> None:
    name = classify(plain_spec()).name(ID)

    assert name == ContainerName(name=ID, place="c66bb71f70cc")


def test_nerdctls_name_is_used() -> None:
    facts = classify(plain_spec(annotations={"nerdctl/name": "train"}))

    assert facts.name(ID) == ContainerName(name="train", place="c66bb71f70cc")


@pytest.mark.parametrize(
    ("capabilities", "rules", "is_privileged"),
    [
        (["CAP_SYS_ADMIN"], [{"allow": True, "access": "rwm"}], True),
        (["CAP_SYS_ADMIN"], [{"allow": False, "access": "rwm"}], False),
        (["CAP_MKNOD"], [{"allow": True, "access": "rwm"}], False),
        (None, [{"allow": True, "access": "rwm"}], False),
    ],
)
def test_privileged_is_all_devices_and_the_right_to_mount(
    capabilities: list[str] | None, rules: list[dict[str, Any]], is_privileged: bool
) -> None:
    spec = plain_spec()
    spec["process"]["capabilities"] = {"bounding": capabilities}
    spec["linux"]["resources"]["devices"] = rules

    assert classify(spec).privileged is is_privileged


@pytest.mark.parametrize("kind", ["bounding", "effective", "permitted", "inheritable", "ambient"])
@pytest.mark.parametrize("name", ["CAP_SYS_ADMIN", "cap_sys_admin", "SYS_ADMIN", "21"])
def test_the_right_to_unmount_counts_in_every_set(kind: str, name: str) -> None:
    spec = plain_spec()
    spec["process"]["capabilities"] = {"bounding": ["CAP_CHOWN"], kind: ["CAP_CHOWN", name]}

    assert "SYS_ADMIN" in classify(spec).undoing


@pytest.mark.parametrize("name", UNDOING)
def test_what_undoes_a_limit_is_known_by_its_name(name: str) -> None:
    spec = plain_spec()
    spec["process"]["capabilities"] = {"bounding": ["CAP_CHOWN", f"CAP_{name}"]}

    assert classify(spec).undoing == {name}


def test_what_images_for_gpus_need_undoes_nothing() -> None:
    spec = plain_spec()
    needed = ["SYS_PTRACE", "SYS_NICE", "IPC_LOCK", "NET_ADMIN", "SYS_RESOURCE", "PERFMON"]
    names = [*CAPABILITIES, *(f"CAP_{name}" for name in needed)]
    spec["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), names)

    assert not classify(spec).undoing


def in_another_case(path: str) -> Spec:
    """Return a spec in which the key at the end of `path` is written in another case."""
    *way, key = path.split(".")
    spec = plain_spec(rules=[{}], devices=[{}], mounts=[{}])
    spec["hooks"] = {"prestart": [{}]}
    spec["process"] |= {"capabilities": {}, "user": {}}
    item: Any = spec
    for name in way:
        item = item[int(name)] if name.isdigit() else item[name]
    item[key] = item.pop(key.lower(), None)
    return spec


@pytest.mark.parametrize(
    "path",
    [
        "Mounts",
        "PROCESS",
        "Linux",
        "Annotations",
        "Hooks",
        "Root",
        "mount\u017f",
        "root.Path",
        "process.ENV",
        "process.Capabilities",
        "process.capabilities.Bounding",
        "process.user.AdditionalGIDs",
        "mounts.0.Destination",
        "mounts.0.\u017fource",
        "mounts.0.Options",
        "linux.Namespaces",
        "linux.namespaces.0.Type",
        "linux.namespaces.0.Path",
        "linux.Resources",
        "linux.Devices",
        "linux.devices.0.Major",
        "linux.resources.Devices",
        "linux.resources.devices.0.Allow",
        "linux.resources.devices.0.MAJOR",
        "hooks.PreStart",
        "hooks.prestart.0.Path",
    ],
)
def test_a_key_in_another_case_is_refused_since_go_reads_it(path: str) -> None:
    with pytest.raises(SpecError, match=r"is the key '.*' in another case"):
        classify(in_another_case(path))


def test_other_keys_may_be_in_any_case() -> None:
    spec = plain_spec("Env=1", annotations={"Mounts": "1"})
    spec["Vm"] = spec["linux"]["IntelRdt"] = {"Mounts": []}

    assert not classify(spec).managed


@pytest.mark.parametrize("bounding", [7, "CAP_SYS_ADMIN", [7], {"CAP_SYS_ADMIN": 1}])
def test_capabilities_that_are_none_are_refused(bounding: object) -> None:
    spec = plain_spec()
    spec["process"]["capabilities"] = {"bounding": bounding}

    with pytest.raises(SpecError, match="bounding is not a list of strings"):
        classify(spec)


def test_the_hosts_pid_namespace_and_dev_are_noticed() -> None:
    spec = plain_spec(mounts=[bind("/dev/", "/host/dev")])
    spec["linux"]["namespaces"] = [{"type": "mount"}]

    facts = classify(spec)

    assert facts.host_pid
    assert facts.host_dev


def test_a_plain_container_is_closed() -> None:
    facts = classify(plain_spec())

    assert not any((facts.privileged, facts.undoing, facts.host_pid, facts.host_dev))
