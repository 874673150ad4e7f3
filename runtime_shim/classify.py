# SPDX-License-Identifier: Apache-2.0
"""What a spec says about its container: who asks for it, in whose name, how closed it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vgpu.privileges import UNDOING

from runtime_shim.messages import ContainerName, name_by_id
from runtime_shim.request import is_request
from runtime_shim.spec import (
    Spec,
    annotations_of,
    check_keys,
    destination,
    environment,
    host_path,
    is_bind,
    items,
    mounts,
    section,
    source,
    texts,
)
from runtime_shim.strip import UUID_VARIABLE, allows_all_devices

Mode = Literal["kubernetes", "local"]

# What the kubelet binds into every container of a pod.
# Source: Kubernetes, pkg/kubelet/kubelet_pods.go, kubelet_getters.go.
_KUBELET_SOURCE = re.compile(
    r".*/pods/[^/]+/(etc-hosts|containers/.+|volumes/kubernetes\.io~.+|volume-subpaths/.+)"
)


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The facts on which the agent decides before it asks anybody."""

    managed: bool
    """It asks for a slice (local mode), or admission gave it a UUID (Kubernetes mode)."""
    container_uuid: str
    """VGPU_CONTAINER_UUID as it is written; empty when there is none."""
    cri: bool
    """A CRI made it: containerd's or CRI-O's marks, or the kubelet's mounts."""
    sandbox: bool
    """It is the sandbox of a pod: it runs nothing but `pause`, and the kubelet mounts nothing."""
    privileged: bool
    """Every device is allowed and CAP_SYS_ADMIN is held: root of the host in all but name."""
    undoing: frozenset[str]
    """Its capabilities with which it could undo what limits it, without `CAP_`."""
    host_pid: bool
    """It is in the host's PID namespace."""
    host_dev: bool
    """The host's /dev is mounted into it."""
    pod_uid: str
    namespace: str
    pod: str
    container_name: str
    """These four are empty where the engine does not say."""

    def name(self, container_id: str) -> ContainerName:
        """Return what to call the container in a message."""
        by_id = name_by_id(container_id)
        place = f"{self.namespace}/{self.pod}" if self.pod else by_id.place
        return ContainerName(name=self.container_name or by_id.name, place=place)


def classify(spec: Spec, *, mode: Mode = "local") -> Classification:
    """Return the facts of a spec; raises SpecError when it is none."""
    check_keys(spec)
    env = environment(spec)
    marks = annotations_of(spec)
    podman = marks.get("io.container.manager") == "libpod"
    undoing = _undoing_capabilities(spec)
    kubelet_mount = _has_kubelet_mount(spec)
    asks = UUID_VARIABLE in env if mode == "kubernetes" else any(map(is_request, env))
    return Classification(
        managed=asks,
        container_uuid=env.get(UUID_VARIABLE, ""),
        cri="io.kubernetes.cri.sandbox-id" in marks
        or ("io.kubernetes.cri-o.SandboxID" in marks and not podman)
        or kubelet_mount,
        sandbox=_is_marked_sandbox(marks) and not kubelet_mount,
        privileged="SYS_ADMIN" in undoing and allows_all_devices(spec),
        undoing=undoing,
        host_pid=_is_in_host_pid_namespace(spec),
        host_dev=any(host_path(mount) == "/dev" for mount in mounts(spec)),
        pod_uid=_mark(marks, "cri.sandbox-uid", "pod.uid"),
        namespace=_mark(marks, "cri.sandbox-namespace", "pod.namespace"),
        pod=_mark(marks, "cri.sandbox-name", "pod.name"),
        container_name=_mark(marks, "cri.container-name", "container.name")
        or marks.get("nerdctl/name", ""),
    )


def _mark(marks: Mapping[str, str], containerd: str, crio: str) -> str:
    """Return what containerd's annotation or else CRI-O's says; empty when neither is there."""
    return marks.get(f"io.kubernetes.{containerd}") or marks.get(f"io.kubernetes.{crio}") or ""


def _is_marked_sandbox(marks: Mapping[str, str]) -> bool:
    """Tell whether every mark of a kind says so: CRI-O hands a pod's annotations to its containers,
    and with them whatever a tenant wrote in containerd's name.
    """
    kinds = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
    return {marks[kind] for kind in kinds if kind in marks} == {"sandbox"}


def _has_kubelet_mount(spec: Spec) -> bool:
    return any(
        is_bind(mount)
        and destination(mount) in ("/etc/hosts", "/dev/termination-log")
        and _KUBELET_SOURCE.fullmatch(source(mount)) is not None
        for mount in mounts(spec)
    )


def _undoing_capabilities(spec: Spec) -> frozenset[str]:
    """Return what any set holds: what is bounding alone comes by a program with file caps.

    crun takes names in any case, with anything behind them, and numbers (21), which count as all.
    """
    capabilities = section(section(spec, "process"), "capabilities")
    names = {name.upper() for kind in capabilities for name in texts(capabilities, kind)}
    if any(name[:1].isdigit() for name in names):
        return frozenset(UNDOING)
    return frozenset(undoing for undoing in UNDOING if any(undoing in name for name in names))


def _is_in_host_pid_namespace(spec: Spec) -> bool:
    namespaces = items(section(spec, "linux"), "namespaces")
    return not any(namespace.get("type") == "pid" for namespace in namespaces)
