# SPDX-License-Identifier: Apache-2.0
"""Short ways to write the API objects that a test is about."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from scheduler_cache.cache import Report
from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.dialects.dialect import Dialect
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.native import Native
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.model import (
    Allocation,
    Card,
    Claim,
    ClaimState,
    Node,
    PodContainer,
    WholeCards,
)
from scheduler_cache.pod import Pod, pod_of
from tests.scheduler_cache.builders import GIB, NODE, START

KEYRING = Keyring(Key("k2", b"current secret"), Key("k1", b"previous secret"))

# Real UUIDs have 40 characters; tests that parse them use these.
A = "GPU-a1a1a1a1-0000-4000-8000-0000000000a1"
B = "GPU-b2b2b2b2-0000-4000-8000-0000000000b2"
C = "GPU-c3c3c3c3-0000-4000-8000-0000000000c3"
D = "GPU-d4d4d4d4-0000-4000-8000-0000000000d4"

_versions = itertools.count(100)


def container(
    name: str = "main", *, uuid: str = "", sidecar: bool = False, **limits: str
) -> dict[str, Any]:
    """Return a container; `count="2"` is the limit `vgpu.dev/count`, and so on."""
    return container_of(
        name,
        {f"vgpu.dev/{key.replace('_', '-')}": value for key, value in limits.items()},
        uuid=uuid,
        sidecar=sidecar,
    )


def container_of(
    name: str, limits: Mapping[str, Any], *, uuid: str = "", sidecar: bool = False
) -> dict[str, Any]:
    """Return a container with limits of any dialect."""
    source: dict[str, Any] = {"name": name, "resources": {"limits": {"cpu": "1", **limits}}}
    if uuid:
        source["env"] = [{"name": "VGPU_CONTAINER_UUID", "value": uuid}]
    if sidecar:
        source["restartPolicy"] = "Always"
    return source


def pod(
    uid: str = "p1",
    *containers: dict[str, Any],
    node: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    inits: Iterable[dict[str, Any]] = (),
    phase: str = "Running",
    init_done: Iterable[str] = (),
    created: str = "2026-01-01T00:00:00Z",
    version: int | None = None,
    namespace: str = "default",
    deleting: bool = False,
) -> dict[str, Any]:
    """Return a pod, newer than all before it unless `version` says otherwise."""
    metadata: dict[str, Any] = {
        "uid": uid,
        "name": f"name-{uid}",
        "namespace": namespace,
        "resourceVersion": str(next(_versions) if version is None else version),
        "creationTimestamp": created,
        "annotations": dict(annotations or {}),
        "labels": dict(labels or {}),
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    spec: dict[str, Any] = {
        "containers": list(containers) or [container(memory="2Gi")],
        "initContainers": list(inits),
    }
    if node:
        spec["nodeName"] = node
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {
            "phase": phase,
            "initContainerStatuses": [
                {"name": name, "state": {"terminated": {"exitCode": 0}}} for name in init_done
            ],
        },
    }


def parsed(*containers: dict[str, Any], **options: Any) -> Pod:  # noqa: ANN401  those of pod()
    """Return a pod as the dialects see it."""
    return pod_of(pod("p1", *containers, **options))


def kube_node(
    name: str = NODE,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(next(_versions)),
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "status": {"allocatable": dict(allocatable or {})},
    }


def gpu(uuid: str = A, gib: int = 8, **fields: Any) -> Card:  # noqa: ANN401  those of Card
    given = {"memory_bytes": gib * GIB, "slots": 10, "model": "NVIDIA H100", **fields}
    return Card(uuid=uuid, **given)


def node_report(*cards: Card, running: Iterable[Allocation | str] = (), node: str = NODE) -> Report:
    """Return a report; an allocation in `running` is told in full, an id alone."""
    running = list(running)
    return Report(
        node=Node(name=node, cards=tuple(sorted(cards, key=lambda each: each.uuid)), ready=True),
        running=frozenset(
            each if isinstance(each, str) else each.allocation_id for each in running
        ),
        claims=tuple(
            Claim(allocation=each, state=ClaimState.RUNNING, since_unix_ns=START, request=None)
            for each in running
            if isinstance(each, Allocation)
        ),
    )


def identity(uid: str = "p1", name: str = "main", namespace: str = "default") -> PodContainer:
    return PodContainer(uid=uid, namespace=namespace, name=f"name-{uid}", container_name=name)


def dialects(*others: Dialect, keyring: Keyring = KEYRING) -> Dialects:
    return Dialects(Native(keyring), others)


class World:
    """A cluster with a clock, the API objects that a leader would write, and one node."""

    def __init__(
        self,
        *cards: Card,
        others: Iterable[Dialect] = (),
        keyring: Keyring = KEYRING,
        **options: object,
    ) -> None:
        self.now = 1_000 * 10**9
        self.dialects = dialects(*others, keyring=keyring)
        self.cluster = Cluster(self.dialects, **options)  # type: ignore[arg-type]
        self.cards = cards
        self.cluster.apply_node(kube_node(), self.now)
        if cards:
            self.report()

    def wait(self, seconds: float) -> Deltas:
        self.now += int(seconds * 10**9)
        return self.cluster.tick(self.now)

    def report(
        self,
        *running: Allocation | str,
        node: str = NODE,
        served: Iterable[str] = (),
        whole: Mapping[str, str] | None = None,
    ) -> Deltas:
        """`whole`: cards that another device plugin gave to containers `main`, by pod uid."""
        report = node_report(*self.cards, running=running, node=node)
        given = tuple(
            WholeCards(pod=replace(identity(uid), uid=""), card_uuids=frozenset({card}))
            for uid, card in (whole or {}).items()
        )
        return self.cluster.apply_report(
            replace(report, served_resources=frozenset(served), whole_cards=given), self.now
        )

    def apply(self, source: Mapping[str, Any]) -> Deltas:
        return self.cluster.apply_pod(source, self.now)

    def bind(self, source: dict[str, Any], *, node: str = NODE, epoch: int = 1) -> dict[str, Any]:
        """Do what a leader does, and return the pod as it then is in the API server."""
        self.apply(source)
        uid = source["metadata"]["uid"]
        reservation, _ = self.cluster.reserve(uid, node, epoch, self.now)
        self.cluster.confirm(uid, self.now)
        bound = bound_pod(source, reservation.annotations, node)
        self.apply(bound)
        return bound

    def resolve(self, uid: str = "p1", name: str = "main", node: str = NODE) -> Allocation:
        return self.cluster.resolve("", node, identity(uid, name))

    def used(self, uuid: str = A, node: str = NODE) -> tuple[int, int, int]:
        """Return GiB, reserved percent and slices held of a card."""
        view = self.cluster.view(node)
        assert view is not None
        use = view.room(uuid).use
        return use.memory_bytes // GIB, use.reserved_percent, use.slices


def bound_pod(source: dict[str, Any], annotations: Mapping[str, str], node: str) -> dict[str, Any]:
    """Return a pod after its Binding with these annotations."""
    metadata = {
        **source["metadata"],
        "annotations": {**source["metadata"]["annotations"], **annotations},
        "resourceVersion": str(next(_versions)),
    }
    return {**source, "metadata": metadata, "spec": {**source["spec"], "nodeName": node}}
