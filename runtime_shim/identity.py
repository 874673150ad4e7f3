# SPDX-License-Identifier: Apache-2.0
"""Which container of which pod a spec belongs to; pure.

The engine's annotations say it, and so do the kubelet's mounts and the cgroup's path, which no
tenant writes. What they say must agree: who can forge one of them can hardly forge them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runtime_shim.errors import RefusedError
from runtime_shim.spec import (
    Spec,
    annotations_of,
    destination,
    is_bind,
    mounts,
    section,
    source,
)

# A pod's uid is a UUID; that of a static pod is a hash of its file.
_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
# `pod<uid>` of the cgroupfs driver; systemd's unit names have `_` for `-`.
# Source: Kubernetes, pkg/kubelet/cm/pod_container_manager_linux.go, GetPodContainerName.
_CGROUP = re.compile(r"(?:^|[/-])kubepods(?:[./-].*)?[/-]pod([0-9a-f_-]{32,36})(?=[./:]|$)")
# What the kubelet binds into every container.
# Source: Kubernetes, pkg/kubelet/kubelet_pods.go, kubelet_getters.go.
_HOSTS = re.compile(rf".*/pods/({_UID})/etc-hosts")
_TERMINATION_LOG = re.compile(rf".*/pods/({_UID})/containers/([^/]+)/[^/]+")

_CONTAINER_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_FIELDS = ("pod_uid", "namespace", "pod", "container_name")
_WORDS = {
    "pod_uid": "pod uid",
    "namespace": "namespace",
    "pod": "pod",
    "container_name": "container",
}


class IdentityError(RefusedError):
    """It cannot be told for certain whose container it is."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One container of one pod."""

    pod_uid: str
    namespace: str
    """This and the pod's name are empty where the engine does not say them."""
    pod: str
    container_name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.pod}" if self.pod else f"pod {self.pod_uid}"
        return f"container {self.container_name!r} of {place}"


def identity_of(spec: Spec) -> Identity:
    """Return whose container it is. Raises IdentityError when that is open or contradicts itself.

    Source: containerd, internal/cri/annotations; CRI-O, internal/factory/container.
    """
    told: dict[str, tuple[str, str]] = {}
    for field, value, witness in _testimony(spec):
        if not value:
            continue
        first, first_witness = told.setdefault(field, (value, witness))
        if first != value:
            raise IdentityError(
                f"{first_witness} says {_WORDS[field]} {first[:64]!r} and {witness} says"
                f" {value[:64]!r}",
                "see who made this container: only the kubelet may",
            )
    found = {field: told.get(field, ("", ""))[0] for field in _FIELDS}
    for field in ("pod_uid", "container_name"):
        if not found[field]:
            raise IdentityError(
                f"neither annotations nor mounts nor cgroup say its {_WORDS[field]}",
                "only the kubelet starts containers with a VGPU_CONTAINER_UUID",
            )
    return Identity(**found)


def check_container_uuid(text: str) -> str:
    """Return a VGPU_CONTAINER_UUID as admission writes it. Raises IdentityError for another."""
    if not _CONTAINER_UUID.fullmatch(text):
        raise IdentityError(
            f"VGPU_CONTAINER_UUID={text[:64]!r} is not what admission writes",
            "leave this variable to vgpu",
        )
    return text


def _testimony(spec: Spec) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, witness) for everything that is said about the container."""
    marks = annotations_of(spec)
    yield from _annotations(marks, "io.kubernetes.cri.", "containerd's annotation")
    if "io.kubernetes.cri-o.SandboxID" in marks:
        yield from _labels(marks, "CRI-O's annotation")
        yield from _labels(_crio_labels(marks), "CRI-O's label")
    for mount in mounts(spec):
        if is_bind(mount):
            yield from _kubelet_mount(destination(mount), source(mount))
    cgroup = section(spec, "linux").get("cgroupsPath")
    if isinstance(cgroup, str) and (match := _CGROUP.search(cgroup)):
        yield "pod_uid", match[1].replace("_", "-"), "the cgroup's path"


def _annotations(
    marks: Mapping[str, str], prefix: str, witness: str
) -> Iterator[tuple[str, str, str]]:
    yield "pod_uid", marks.get(f"{prefix}sandbox-uid", ""), witness
    yield "namespace", marks.get(f"{prefix}sandbox-namespace", ""), witness
    yield "pod", marks.get(f"{prefix}sandbox-name", ""), witness
    yield "container_name", marks.get(f"{prefix}container-name", ""), witness


def _labels(marks: Mapping[str, str], witness: str) -> Iterator[tuple[str, str, str]]:
    yield "pod_uid", marks.get("io.kubernetes.pod.uid", ""), witness
    yield "namespace", marks.get("io.kubernetes.pod.namespace", ""), witness
    yield "pod", marks.get("io.kubernetes.pod.name", ""), witness
    yield "container_name", marks.get("io.kubernetes.container.name", ""), witness


def _crio_labels(marks: Mapping[str, str]) -> dict[str, str]:
    try:
        labels = json.loads(marks.get("io.kubernetes.cri-o.Labels", "{}"))
    except ValueError:
        return {}
    if not isinstance(labels, dict):
        return {}
    return {name: value for name, value in labels.items() if isinstance(value, str)}


def _kubelet_mount(place: str, shown: str) -> Iterator[tuple[str, str, str]]:
    if place == "/etc/hosts" and (match := _HOSTS.fullmatch(shown)):
        yield "pod_uid", match[1], "the kubelet's /etc/hosts"
    if place == "/dev/termination-log" and (match := _TERMINATION_LOG.fullmatch(shown)):
        yield "pod_uid", match[1], "the kubelet's termination log"
        yield "container_name", match[2], "the kubelet's termination log"
