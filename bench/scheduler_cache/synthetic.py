# SPDX-License-Identifier: Apache-2.0
"""Clusters of any size, as the API server would hold them: nodes with cards, pods with slices."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache.cluster_wire import card_message
from scheduler_cache.config_kubernetes import key_of
from scheduler_cache.dialects.keyring import Keyring
from scheduler_cache.dialects.native import Native
from scheduler_cache.model import Allocation, Card, ComputeMode, PodContainer, Slice
from scheduler_cache.pod import pod_of

KEYRING = Keyring(key_of(b"a key that only benchmarks sign with"))
GIB = 1 << 30
_SPACE = uuid.UUID(int=0)
_SLICES_A_CARD = 10


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a cluster is."""

    nodes: int
    pods: int
    cards: int = 8

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes of {self.cards} cards, {self.pods:,} pods"


def node_name(number: int) -> str:
    """Return the name of the n-th node."""
    return f"node-{number:05}"


def card_uuid(node: int, card: int) -> str:
    """Return the UUID of a card of the n-th node."""
    return f"GPU-{uuid.UUID(int=(node << 8) | card)}"


def cards_of(number: int, size: Size) -> tuple[Card, ...]:
    """Return the cards of the n-th node."""
    return tuple(
        Card(
            uuid=card_uuid(number, card),
            memory_bytes=80 * GIB,
            slots=_SLICES_A_CARD,
            model="NVIDIA H100 80GB HBM3",
            minor=card,
        )
        for card in range(size.cards)
    )


def report_of(number: int, size: Size) -> pb.ReportNodeRequest:
    """Return what the agent of the n-th node reports while no container runs there."""
    return pb.ReportNodeRequest(
        ready=True, cards=[card_message(card) for card in cards_of(number, size)]
    )


def nodes(size: Size) -> Iterator[dict[str, Any]]:
    """Yield the Node objects."""
    native = Native(KEYRING)
    for number in range(size.nodes):
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": node_name(number),
                "labels": {"kubernetes.io/hostname": node_name(number), "vgpu.dev/node": "true"},
                "annotations": native.encode_inventory(cards_of(number, size)),
            },
        }


def container_uuid(number: int) -> str:
    """Return the UUID of the container of the n-th pod."""
    return str(uuid.uuid5(_SPACE, f"container-{number}"))


def pod_uid(number: int) -> str:
    """Return the uid of the n-th pod, where we may choose it."""
    return str(uuid.uuid5(_SPACE, f"pod-{number}"))


def pod_name(number: int) -> str:
    """Return the name of the n-th pod."""
    return f"job-{number:06}"


def place_of(number: int, size: Size) -> tuple[int, int]:
    """Return (node, card) of the n-th pod: all nodes in turn, then all cards."""
    return number % size.nodes, number // size.nodes % size.cards


def asking(number: int) -> dict[str, Any]:
    """Return the n-th pod as its user made it and our webhook changed it: 8 KB of JSON."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(number),
            "namespace": "default",
            "labels": {f"example.org/label-{each}": "a-value-of-some-length" for each in range(8)},
            "annotations": {"example.org/note": "n" * 400},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "schedulerName": "vgpu-scheduler",
            "containers": [
                {
                    "name": "main",
                    "image": "example.org/team/image@sha256:" + "0" * 64,
                    "env": [
                        {"name": "VGPU_CONTAINER_UUID", "value": container_uuid(number)},
                        *({"name": f"VARIABLE_{each}", "value": "v" * 40} for each in range(30)),
                    ],
                    "resources": {
                        "limits": {
                            "vgpu.dev/count": "1",
                            "vgpu.dev/memory": "8Gi",
                            "vgpu.dev/cores": "10",
                        },
                        "requests": {"vgpu.dev/count": "1"},
                    },
                }
            ],
            "tolerations": [
                {"key": f"example.org/{each}", "operator": "Exists"} for each in range(6)
            ],
        },
    }


def allocation_of(pod: dict[str, Any], number: int, size: Size) -> dict[str, str]:
    """Return the annotations of our decision about a pod whose uid is known."""
    node, card = place_of(number, size)
    source = pod_of(pod)
    allocation = Allocation(
        allocation_id=container_uuid(number),
        node_name=node_name(node),
        pod=PodContainer(
            uid=source.uid, namespace=source.namespace, name=source.name, container_name="main"
        ),
        epoch=1,
        source_dialect="native",
        slices=(
            Slice(
                card_uuid=card_uuid(node, card),
                memory_bytes=8 * GIB,
                cores_percent=10,
                reserved_percent=10,
                cores_max_percent=10,
                compute_mode=ComputeMode.HARD,
                weight=10,
            ),
        ),
    )
    return Native(KEYRING).encode_allocation(source, {"main": allocation}, {})


def bound(number: int, size: Size, version: int = 1) -> dict[str, Any]:
    """Return the n-th pod as it runs."""
    pod = asking(number)
    pod["metadata"].update(uid=pod_uid(number), resourceVersion=str(version + number))
    pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    pod["metadata"]["annotations"].update(allocation_of(pod, number, size))
    pod["spec"]["nodeName"] = node_name(place_of(number, size)[0])
    pod["status"] = {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": "main",
                "containerID": "containerd://" + "0" * 64,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    }
    return pod


def encoded(item: dict[str, Any]) -> bytes:
    """Return an object as the API server sends it."""
    return json.dumps(item, separators=(",", ":")).encode()
