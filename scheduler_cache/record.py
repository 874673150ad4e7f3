# SPDX-License-Identifier: Apache-2.0
"""What is kept of one pod: what it asked for, what it was given, and how far its life is. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from scheduler_cache.dialects.dialect import Decision, PodRequest
from scheduler_cache.model import PodContainer
from scheduler_cache.pod import Container, Pod

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

# Under this the ids of containers that no webhook has seen are made; any constant will do.
_NAMESPACE = uuid.UUID("6c1d7f0e-5a3b-4c5e-9d55-0f6a7e3b2c11")


class AllocationState(Enum):
    """The life of what a pod holds. All but PENDING and RELEASED hold their slices."""

    PENDING = "pending"
    """Nobody has decided, or it is not bound."""
    ASSUMED = "assumed"
    """The leader has chosen cards; the Binding is not confirmed."""
    BOUND = "bound"
    RUNNING = "running"
    """Its node's agent reports a live process."""
    ORPHAN = "orphan"
    """The API server no longer knows it, and its end was not reported."""
    RELEASED = "released"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """What the leader has chosen for a pod and not yet seen come back."""

    node_name: str
    decision: Decision
    confirmed: bool = False
    """The API server has accepted the Binding."""
    expires_ns: int
    """On the leader's monotonic clock; no matter once confirmed."""


@dataclass(kw_only=True, slots=True)
class Record:
    """One pod. Only the cluster changes it."""

    pod: Pod
    """Without labels and annotations: they are read once."""
    request: PodRequest | None = None
    request_error: str = ""
    decision: Decision | None = None
    decision_error: str = ""
    deciders: tuple[str, ...] = ()
    """The dialects in which something was decided about it."""
    groups: Mapping[str, str] = field(default_factory=dict)
    unfinished: str = ""
    """The dialect whose scheduler waits for its plugin to do something about the pod."""
    isolation: str = ""
    """What its annotation `vgpu.dev/isolation` says."""
    assumed: Assumption | None = None
    gone: bool = False
    """The API server no longer knows it."""
    finished: bool = False
    """Terminal or gone, and then its end was reported or its node was lost: it holds nothing."""
    ended_version: int = 0
    """The resourceVersion at which it was first seen to be terminal or gone; 0: not known."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Allocation ids by container name, of containers that ask or were given something."""

    @property
    def node_name(self) -> str:
        """Where it is, or where the leader has just sent it; empty: nowhere."""
        if self.pod.node_name or self.assumed is None:
            return self.pod.node_name
        return self.assumed.node_name

    @property
    def ending(self) -> bool:
        """Whether only its end, reported by its node, is missing."""
        return (self.gone or self.pod.terminal) and not self.finished

    @property
    def lapses(self) -> bool:
        """Whether it holds a reservation that time alone ends."""
        return self.assumed is not None and not self.assumed.confirmed and not self.gone

    @property
    def restless(self) -> bool:
        """Whether time alone may change it."""
        return self.lapses or self.ending

    def owner(self, container_name: str) -> PodContainer:
        """Return who one of its containers is."""
        return PodContainer(
            uid=self.pod.uid,
            namespace=self.pod.namespace,
            name=self.pod.name,
            container_name=container_name,
        )


def allocation_id(pod_uid: str, container: Container) -> str:
    """Return the id of a container's allocation.

    It is the UUID of its environment, which cannot change after admission. A container that no
    webhook has seen gets one made of its pod's uid and its name, the same in every process.
    """
    text = container.uuid.lower()
    if _UUID.fullmatch(text):
        return text
    return str(uuid.uuid5(_NAMESPACE, f"{pod_uid}/{container.name}"))
