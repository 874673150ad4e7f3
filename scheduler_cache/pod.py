# SPDX-License-Identifier: Apache-2.0
"""What the cache reads of a Pod and a Node of the Kubernetes API. Pure; unknown fields are ignored.

`pod_of` and `kube_node_of` take decoded JSON. They never raise for what a tenant can write: a
field of a wrong type counts as absent, and the dialects say what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

# What the runtime looks a container up by; the webhook writes it into every container that asks.
UUID_VARIABLE = "VGPU_CONTAINER_UUID"

# Where schedulers find the name of a pod's group, in this order. Source: coscheduling (both
# spellings; Koordinator uses the second), KAI, and the annotation of Volcano.
_GROUP_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group-name",
)
_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"

# Resources of every pod, in which no GPU is ever asked for.
_PLAIN_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "pods", "storage"})


class ContainerKind(Enum):
    """When a container runs: before all others, beside everything, or last."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One container of a pod's spec. Its resources are immutable once the pod exists."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    """Without CPU, memory and the like."""
    requests: Mapping[str, str] = field(default_factory=dict)
    uuid: str = ""
    """The value of VGPU_CONTAINER_UUID in its environment; empty: none."""

    def asked(self, resource: str) -> str | None:
        """Return what is asked of a resource: the limit, else the request, else None."""
        limit = self.limits.get(resource)
        return self.requests.get(resource) if limit is None else limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod as the API server has it."""

    uid: str
    namespace: str = "default"
    name: str
    version: int = 0
    """Its resourceVersion; 0: not known, taken as newer than anything."""
    created_unix_ns: int = 0
    node_name: str = ""
    """Empty: not bound."""
    nominated_node_name: str = ""
    """Where room is being made for it by preemption; empty: nowhere."""
    scheduler_name: str = ""
    priority: int = 0
    preempts: bool = True
    """Pods of lower priority may be evicted for it."""
    gang: str = ""
    """The group of pods of its namespace that only start together; empty: it is in none."""
    deleting: bool = False
    """Its deletion was asked for; it may run for its grace period yet."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    """Init containers and sidecars in the order of the spec, then the others in theirs."""
    terminal: bool = False
    """Its phase is Succeeded or Failed."""
    admitted: bool = False
    """Its kubelet has taken it in: it says how far the containers are."""
    init_finished: bool = False
    """Its last ordinary init container has succeeded."""
    runs: bool = False
    """Its kubelet says that one of its containers runs."""
    controlled: bool = False
    """A controller makes another one in its place."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def gang_key(self) -> tuple[str, str]:
        """Its namespace and its gang."""
        return self.namespace, self.gang

    @property
    def app_containers(self) -> tuple[Container, ...]:
        """`spec.containers`."""
        return tuple(each for each in self.containers if each.kind is ContainerKind.APP)


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeNode:
    """A Node as the API server has it."""

    name: str
    version: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


def pod_of(source: Mapping[str, Any]) -> Pod:
    """Return a pod from its decoded JSON."""
    metadata, spec, status = (_mapping(source.get(key)) for key in ("metadata", "spec", "status"))
    inits = tuple(
        _container(
            each,
            ContainerKind.SIDECAR if each.get("restartPolicy") == "Always" else ContainerKind.INIT,
        )
        for each in _mappings(spec.get("initContainers"))
    )
    apps = tuple(_container(each, ContainerKind.APP) for each in _mappings(spec.get("containers")))
    ordinary = {each.name for each in inits if each.kind is ContainerKind.INIT}
    succeeded = {
        each.get("name")
        for each in _mappings(status.get("initContainerStatuses"))
        if _mapping(_mapping(each.get("state")).get("terminated")).get("exitCode") == 0
    }
    return Pod(
        uid=_text(metadata.get("uid")),
        namespace=_text(metadata.get("namespace")) or "default",
        name=_text(metadata.get("name")),
        version=_version(metadata.get("resourceVersion")),
        created_unix_ns=unix_ns_of(metadata.get("creationTimestamp")),
        node_name=_text(spec.get("nodeName")),
        nominated_node_name=_text(status.get("nominatedNodeName")),
        scheduler_name=_text(spec.get("schedulerName")),
        priority=_whole(spec.get("priority")),
        preempts=spec.get("preemptionPolicy") != "Never",
        gang=_gang(metadata),
        deleting=bool(_text(metadata.get("deletionTimestamp"))),
        labels=_strings(metadata.get("labels")),
        annotations=_strings(metadata.get("annotations")),
        containers=inits + apps,
        terminal=status.get("phase") in ("Succeeded", "Failed"),
        admitted=bool(status.get("containerStatuses") or status.get("initContainerStatuses")),
        init_finished=ordinary <= succeeded,
        runs=any(
            isinstance(_mapping(each.get("state")).get("running"), dict)
            for key in ("containerStatuses", "initContainerStatuses")
            for each in _mappings(status.get(key))
        ),
        controlled=any(
            each.get("controller") is True for each in _mappings(metadata.get("ownerReferences"))
        ),
    )


def kube_node_of(source: Mapping[str, Any]) -> KubeNode:
    """Return a node from its decoded JSON."""
    metadata = _mapping(source.get("metadata"))
    return KubeNode(
        name=_text(metadata.get("name")),
        version=_version(metadata.get("resourceVersion")),
        labels=_strings(metadata.get("labels")),
        annotations=_strings(metadata.get("annotations")),
        allocatable=_resources(_mapping(source.get("status")).get("allocatable")),
    )


def unix_ns_of(text: object) -> int:
    """Return an RFC 3339 time as ns of the Unix epoch; 0 when it is none."""
    if not isinstance(text, str):
        return 0
    try:
        moment = datetime.fromisoformat(text)
        return int(moment.timestamp()) * 10**9 if moment.tzinfo else 0
    except (ValueError, OverflowError):
        return 0


def _container(source: Mapping[str, Any], kind: ContainerKind) -> Container:
    resources = _mapping(source.get("resources"))
    # The last one of a name counts, as in the kubelet.
    uuids = [
        _text(each.get("value"))
        for each in _mappings(source.get("env"))
        if each.get("name") == UUID_VARIABLE
    ]
    return Container(
        name=_text(source.get("name")),
        kind=kind,
        limits=_resources(resources.get("limits")),
        requests=_resources(resources.get("requests")),
        uuid=uuids[-1] if uuids else "",
    )


def _resources(value: object) -> dict[str, str]:
    return {
        name: str(amount)
        for name, amount in _mapping(value).items()
        if name not in _PLAIN_RESOURCES and not name.startswith("hugepages-")
    }


def _gang(metadata: Mapping[str, Any]) -> str:
    labels, annotations = _strings(metadata.get("labels")), _strings(metadata.get("annotations"))
    named = next((labels[key] for key in _GROUP_LABELS if labels.get(key)), "")
    return named or annotations.get(_GROUP_ANNOTATION, "")


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _version(value: object) -> int:
    """Return a resourceVersion, which the API server's etcd counts up; 0 when it is no number."""
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _strings(value: object) -> dict[str, str]:
    return {name: text for name, text in _mapping(value).items() if isinstance(text, str)}


def _mapping(value: object) -> Mapping[str, Any]:
    # Not Mapping: what JSON gives is a dict, and this runs forty times for each pod of a cluster.
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (
        (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())
    )
