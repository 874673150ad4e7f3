# SPDX-License-Identifier: Apache-2.0
"""Specs and allocations of pods' containers, in the shapes of containerd and CRI-O."""

from __future__ import annotations

import json
import uuid
from typing import Any

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.identity import Identity
from runtime_shim.spec import Spec
from tests.runtime_shim.allocations import part
from tests.runtime_shim.specs import bind, plain_spec

POD_UID = "3d2a8f5e-7c1b-4a68-9f0e-2b6d4c8e1a55"
OTHER_UID = "11111111-7c1b-4a68-9f0e-2b6d4c8e1a55"
NODE = "testbed"
MAIN = Identity(pod_uid=POD_UID, namespace="team-a", pod="train-0", container_name="main")
KUBELET = "/var/lib/kubelet/pods"


def containerd_marks(identity: Identity = MAIN, kind: str = "container") -> dict[str, str]:
    """Return the annotations of containerd's CRI. Source: internal/cri/annotations."""
    marks = {
        "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": "f" * 64,
        "io.kubernetes.cri.sandbox-name": identity.pod,
        "io.kubernetes.cri.sandbox-namespace": identity.namespace,
        "io.kubernetes.cri.sandbox-uid": identity.pod_uid,
    }
    if kind == "container":
        marks["io.kubernetes.cri.container-name"] = identity.container_name
        marks["io.kubernetes.cri.image-name"] = "registry.example/train:1"
    return marks


def crio_marks(identity: Identity = MAIN) -> dict[str, str]:
    """Return the annotations of CRI-O. Source: internal/factory/container, SpecAddAnnotations."""
    labels = {
        "io.kubernetes.pod.uid": identity.pod_uid,
        "io.kubernetes.pod.namespace": identity.namespace,
        "io.kubernetes.pod.name": identity.pod,
        "io.kubernetes.container.name": identity.container_name,
    }
    return {
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": "f" * 64,
        "io.kubernetes.cri-o.Labels": json.dumps(labels),
        **labels,
    }


def kubelet_mounts(
    pod_uid: str = POD_UID, container_name: str = "main", root: str = KUBELET
) -> list[dict[str, Any]]:
    """Return the mounts that the kubelet adds to every container."""
    return [
        bind(f"{root}/{pod_uid}/etc-hosts", "/etc/hosts"),
        bind(f"{root}/{pod_uid}/containers/{container_name}/0a1b2c3d", "/dev/termination-log"),
    ]


def systemd_cgroup(pod_uid: str = POD_UID) -> str:
    """Return a cgroupsPath of the systemd driver."""
    return f"kubepods-burstable-pod{pod_uid.replace('-', '_')}.slice:cri-containerd:{'c' * 64}"


def cgroupfs_cgroup(pod_uid: str = POD_UID) -> str:
    """Return a cgroupsPath of the cgroupfs driver."""
    return f"/kubepods/besteffort/pod{pod_uid}/{'c' * 64}"


def pod_spec(
    *env: str,
    identity: Identity = MAIN,
    annotations: dict[str, str] | None = None,
    mounts: list[dict[str, Any]] | None = None,
    cgroup: str | None = None,
) -> Spec:
    """Return the spec of a pod's container; every witness agrees unless told otherwise."""
    spec = plain_spec(
        *env,
        annotations=containerd_marks(identity) if annotations is None else annotations,
        mounts=(
            kubelet_mounts(identity.pod_uid, identity.container_name) if mounts is None else mounts
        ),
    )
    spec["linux"]["cgroupsPath"] = systemd_cgroup(identity.pod_uid) if cgroup is None else cgroup
    return spec


def pod_allocation(
    *parts: pb.Slice,
    identity: Identity = MAIN,
    container_uuid: str = "",
    node_name: str = NODE,
    void: bool = False,
) -> pb.Allocation:
    """Return the allocation of a pod's container."""
    return pb.Allocation(
        allocation_id=container_uuid or str(uuid.uuid4()),
        slices=() if void else parts or (part(),),
        node_name=node_name,
        pod=pb.PodIdentity(
            uid=identity.pod_uid,
            namespace=identity.namespace,
            name=identity.pod,
            container_name=identity.container_name,
        ),
    )
