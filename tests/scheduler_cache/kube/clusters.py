# SPDX-License-Identifier: Apache-2.0
"""Short ways to reach a cluster and to fill it; the same for the fake and the real API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from scheduler_cache.kube.informer import Informer, Key, Resource, Timing
from scheduler_cache.kube.objects import Pod

PODS = "/api/v1/pods"
POD_RESOURCE: Resource[Pod] = Resource(name="pods", path=PODS, kind=Pod)
QUICK = Timing(first_pause_seconds=0.01, longest_pause_seconds=0.05, missing_seconds=0.05)

# Generous: the machine may be busy. Nothing waits so long unless it fails.
PATIENCE_SECONDS = 30.0


def write_kubeconfig(path: Path, url: str, user: dict[str, Any], **cluster: object) -> Path:
    """Write a kubeconfig; JSON is YAML."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        "clusters": [{"name": "test", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


def connection_to(url: str, folder: Path, token: str = "secret") -> KubeconfigConnection:
    return KubeconfigConnection(write_kubeconfig(folder / "kubeconfig", url, {"token": token}))


def pod(
    name: str, node: str = "", namespace: str = "default", **metadata: object
) -> dict[str, Any]:
    """Return a pod that a real API server takes, too."""
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "example.org/image"}],
        "automountServiceAccountToken": False,
    }
    if node:
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(0.005)


class Copy:
    """What an informer made of the cluster: pods by (namespace, name), and everything it said."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], Pod] = {}
        self.log: list[str] = []
        self.deleted: list[Key] = []

    def upsert(self, item: Pod) -> None:
        metadata = item["metadata"]
        self.pods[metadata.get("namespace", ""), metadata["name"]] = item
        self.log.append(f"+{metadata['name']}")

    def delete(self, key: Key, version: int) -> None:
        known = self.pods[key.namespace, key.name]["metadata"].get("resourceVersion", "0")
        assert version >= int(known)
        held = self.pods.pop((key.namespace, key.name))
        assert held["metadata"]["uid"] == key.uid
        self.deleted.append(key)
        self.log.append(f"-{key.name}")

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.pods}

    def versions(self) -> dict[tuple[str, str], str]:
        return {key: item["metadata"]["resourceVersion"] for key, item in self.pods.items()}


def informer_of(
    client: KubeClient,
    copy: Copy,
    resource: Resource[Pod] = POD_RESOURCE,
    *,
    timing: Timing = QUICK,
    page_items: int = 500,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Informer[Pod]:
    return Informer(
        client,
        resource,
        copy.upsert,
        copy.delete,
        timing=timing,
        page_items=page_items,
        sleep=sleep,
    )
