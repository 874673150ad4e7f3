# SPDX-License-Identifier: Apache-2.0
"""The parts of Kubernetes' objects that we read, as plain dictionaries.

Only these are decoded: everything else in an object is skipped byte by byte, so that a pod costs a
tenth of the time and no garbage. Keys that an object does not have are absent, as in its JSON.
Source: the API reference, core/v1 and coordination/v1.
"""

from __future__ import annotations

from typing import Any, Generic, TypedDict, TypeVar, cast

import msgspec

ObjectT = TypeVar("ObjectT")


class OwnerReference(TypedDict, total=False):
    """Who made an object."""

    kind: str
    name: str
    uid: str
    controller: bool


class Metadata(TypedDict, total=False):
    """Of every object."""

    name: str
    namespace: str
    uid: str
    resourceVersion: str
    creationTimestamp: str
    deletionTimestamp: str
    labels: dict[str, str]
    annotations: dict[str, str]
    ownerReferences: list[OwnerReference]


class Resources(TypedDict, total=False):
    """Requests and limits: numbers may stand without quotes."""

    limits: dict[str, str | int | float]
    requests: dict[str, str | int | float]


class EnvVar(TypedDict, total=False):
    """One variable of a container's environment."""

    name: str
    value: str


class Container(TypedDict, total=False):
    """A container of a pod's spec."""

    name: str
    resources: Resources
    env: list[EnvVar]
    restartPolicy: str


class PodSpec(TypedDict, total=False):
    """What a pod asks for, and where it is."""

    nodeName: str
    schedulerName: str
    runtimeClassName: str
    priority: int
    priorityClassName: str
    preemptionPolicy: str
    initContainers: list[Container]
    containers: list[Container]


class ContainerStatus(TypedDict, total=False):
    """How far a container is. `state` has one key: waiting, running or terminated."""

    name: str
    containerID: str
    restartCount: int
    started: bool
    state: dict[str, Any]


class PodCondition(TypedDict, total=False):
    """One of a pod's conditions."""

    type: str
    status: str
    reason: str
    message: str


class PodStatus(TypedDict, total=False):
    """How far a pod is."""

    phase: str
    reason: str
    nominatedNodeName: str
    conditions: list[PodCondition]
    initContainerStatuses: list[ContainerStatus]
    containerStatuses: list[ContainerStatus]


class Pod(TypedDict, total=False):
    """A pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus


class NodeStatus(TypedDict, total=False):
    """What a node can give."""

    capacity: dict[str, str | int | float]
    allocatable: dict[str, str | int | float]


class NodeSpec(TypedDict, total=False):
    """What a node takes."""

    unschedulable: bool


class Node(TypedDict, total=False):
    """A node."""

    metadata: Metadata
    spec: NodeSpec
    status: NodeStatus


class Plain(TypedDict, total=False):
    """An object of which only the metadata is read."""

    metadata: Metadata


class LeaseSpec(TypedDict, total=False):
    """Who holds a lease, and since when."""

    holderIdentity: str
    leaseDurationSeconds: int
    acquireTime: str
    renewTime: str
    leaseTransitions: int


class Lease(TypedDict, total=False):
    """A node's sign of life, or who leads."""

    metadata: Metadata
    spec: LeaseSpec


class CustomObject(TypedDict, total=False):
    """Another system's object, whole: each dialect knows its own."""

    metadata: Metadata
    spec: dict[str, Any]
    status: dict[str, Any]


class ListMetadata(msgspec.Struct):
    """Of every page of a list."""

    resource_version: str = msgspec.field(name="resourceVersion", default="")
    continue_: str = msgspec.field(name="continue", default="")


class RawPage(msgspec.Struct):
    """A page of a list whose items are not decoded yet."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] | None = None


class RawEvent(msgspec.Struct):
    """An event of a watch whose object is not decoded yet."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """What an ERROR event holds."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Decoder(Generic[ObjectT]):
    """Decodes one kind of object, one at a time, so that a page never holds up the event loop."""

    def __init__(self, kind: type[ObjectT]) -> None:
        self._object: msgspec.json.Decoder[ObjectT] = msgspec.json.Decoder(kind)

    def object(self, raw: msgspec.Raw | bytes) -> ObjectT:
        """Return an object; one of an unforeseen shape whole, since nothing may be overlooked.

        Raises msgspec.DecodeError when it is no JSON.
        """
        try:
            return self._object.decode(raw)
        except msgspec.ValidationError:
            return cast(ObjectT, msgspec.json.decode(raw))


PAGE: msgspec.json.Decoder[RawPage] = msgspec.json.Decoder(RawPage)
EVENT: msgspec.json.Decoder[RawEvent] = msgspec.json.Decoder(RawEvent)
STATUS: msgspec.json.Decoder[Status] = msgspec.json.Decoder(Status)
