# SPDX-License-Identifier: Apache-2.0
"""An unmodified kube-scheduler with the configuration of deploy/scheduler, and nodes of two cards.

API server and scheduler are real, the cache runs in this process; the nodes are objects, and what
their agents would report is told to the cache.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from scheduler_cache.cache import Report
from scheduler_cache.cluster_server import Running, running
from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import ExtenderConfig, KubernetesConfig
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import ConflictError
from scheduler_cache.model import Card, Node
from tests.testbed import REPOSITORY
from tests.testbed.certificates import CertificateAuthority
from tests.testbed.kubernetes import ControlPlane
from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.programs import find_built

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SAMPLE = REPOSITORY / "deploy" / "scheduler" / "kube-scheduler.yaml"
PODS = "/api/v1/namespaces/default/pods"
GIB = 1 << 30
PATIENCE_SECONDS = 120.0


class Site:
    """One scheduler, one replica, one node of its own with a card of 8 GiB."""

    def __init__(self, client: KubeClient, replica: Running, name: str, scheduler: Process) -> None:
        self._client = client
        self._replica = replica
        self._scheduler = scheduler
        self.name = name
        self._card = Card(uuid=f"GPU-{uuid.uuid4()}", memory_bytes=8 * GIB, slots=10)

    def report(self) -> None:
        """Tell what the node's agent would: one card, and nothing runs on it."""
        node = Node(name=self.name, cards=(self._card,), ready=True)
        report = Report(node=node, running=frozenset(), claims=())
        self._replica.feed.publish(self._replica.cluster.apply_report(report, time.monotonic_ns()))

    async def create(self, name: str, gib: int, priority: str = "") -> None:
        """Create a pod that asks for GiB of a card of our node."""
        limits = {"vgpu.dev/count": "1", "vgpu.dev/memory": f"{gib}Gi"}
        spec = {
            "schedulerName": f"vgpu-{self.name}",
            "automountServiceAccountToken": False,
            "nodeSelector": {"site": self.name},
            # Nobody ends its containers: it is gone when it is told to go.
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        }
        if priority:
            spec["priorityClassName"] = priority
        await self._client.create(PODS, {"metadata": {"name": f"{self.name}-{name}"}, "spec": spec})

    async def get(self, name: str) -> dict[str, Any]:
        item: dict[str, Any] = await self._client.get(f"{PODS}/{self.name}-{name}")
        return item

    async def names(self) -> set[str]:
        """Return the pods that exist."""
        items = (await self._client.get(PODS))["items"]
        mine = (each["metadata"]["name"] for each in items)
        return {each.removeprefix(f"{self.name}-") for each in mine if each.startswith(self.name)}

    async def delete(self, name: str) -> None:
        await self._client.delete(f"{PODS}/{self.name}-{name}", {"gracePeriodSeconds": 0})

    async def ended(self, name: str, refusals: float = -1.0) -> None:
        """Wait until a pod is gone, and until pods were turned away more often than `refusals`;
        then report the end.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._held(name) or name in await self.names() or self.refusals() <= refusals:
            if time.monotonic() > deadline:
                pytest.fail(f"{name} is still there\n{self._scheduler.last_words()}")
            await asyncio.sleep(0.1)
        self.report()

    def refusals(self) -> float:
        """Return how often a pod fitted nowhere."""
        labels = {"verb": "filter", "outcome": "fits_nowhere"}
        name = "vgpu_cache_extender_seconds_count"
        return self._replica.metrics.registry.get_sample_value(name, labels) or 0.0

    def _held(self, name: str) -> bool:
        record = self._replica.cluster.pod_named("default", f"{self.name}-{name}")
        return record is not None and not record.gone

    async def allow(self, count: int) -> None:
        """Let the node have so many slices at most, which kube-scheduler counts."""
        amounts = {"vgpu.dev/count": str(count)}
        await self._client.patch(
            f"/api/v1/nodes/{self.name}/status",
            {"status": {"capacity": amounts, "allocatable": amounts}},
        )

    async def bound(self, name: str) -> dict[str, Any]:
        """Wait until a pod is bound, and return it."""
        return await self._until(name, lambda item: bool(item["spec"].get("nodeName")))

    async def turned_away(self, name: str, words: str) -> str:
        """Wait until kube-scheduler says that a pod fits nowhere, and return what it says."""

        def message(item: dict[str, Any]) -> str:
            conditions = item["status"].get("conditions", ())
            told: list[str] = [
                each.get("message", "") for each in conditions if each["type"] == "PodScheduled"
            ]
            return told[0] if told and words in told[0] else ""

        return message(await self._until(name, lambda item: bool(message(item))))

    async def _until(self, name: str, condition: Any) -> dict[str, Any]:  # noqa: ANN401
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            item = await self.get(name)
            if condition(item):
                return item
            if time.monotonic() > deadline:
                pytest.fail(f"{json.dumps(item['status'])}\n{self._scheduler.last_words()}")
            await asyncio.sleep(0.1)


@pytest.fixture
async def site(plane: ControlPlane, client: KubeClient, tmp_path: Path) -> AsyncIterator[Site]:
    name = f"n{uuid.uuid4().hex[:8]}"
    for kind, item in (
        ("/api/v1/namespaces", {"metadata": {"name": "vgpu-system"}}),
        ("/api/v1/namespaces", {"metadata": {"name": "default"}}),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "urgent"}, "value": 9},
        ),
    ):
        with suppress(ConflictError):
            await client.create(kind, item)
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "50", "vgpu.dev/count": "10"}
    ready = [{"type": "Ready", "status": "True", "reason": "Test"}]
    await client.create(
        "/api/v1/nodes",
        {
            "metadata": {"name": name, "labels": {"site": name}},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": ready},
        },
    )
    # The API server taints what is made as not ready.
    await client.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    authority = CertificateAuthority(tmp_path / "ca")
    serving = authority.issue_server("vgpu-scheduler-cache", file="serving")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "current").write_bytes(b"k" * 32)
    kubeconfig = plane.kubeconfig(tmp_path / "admin")
    config = Config(
        listen=(f"unix:{tmp_path}/cache.sock",),
        kubernetes=replace(
            KubernetesConfig(),
            kubeconfig=str(kubeconfig),
            lease_name=f"cache-{name}",
            listen=("127.0.0.1:0",),
            certificate=str(serving.certificate),
            key=str(serving.key),
            client_ca=str(authority.certificate),
            keys_dir=str(tmp_path / "keys"),
            metrics_listen="",
            extender=ExtenderConfig(listen=("127.0.0.1:0",), scheduler_names=(f"vgpu-{name}",)),
        ),
    )
    async with running(config) as replica:
        scheduler_config = tmp_path / "scheduler.json"
        scheduler_config.write_text(json.dumps(configured(replica, name, kubeconfig, authority)))
        scheduler = Process(
            "kube-scheduler",
            [
                find_built("kube-scheduler"),
                f"--config={scheduler_config}",
                f"--secure-port={free_port()}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={tmp_path}/scheduler",
            ],
            tmp_path / "kube-scheduler.log",
        )
        await replica.feed.wait_synced()
        while not leads(replica):
            await asyncio.sleep(0.05)
        site = Site(client, replica, name, scheduler)
        site.report()
        scheduler.start()
        try:
            yield site
        finally:
            scheduler.stop()
            for each in await site.names():
                await site.delete(each)
            await client.delete(f"/api/v1/nodes/{name}")


def leads(replica: Running) -> bool:
    with suppress(Exception):
        replica.leader.check()
        return True
    return False


def configured(
    replica: Running, name: str, kubeconfig: Path, authority: CertificateAuthority
) -> dict[str, Any]:
    """Return the sample's configuration with the names of this place."""
    config: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    config["leaderElection"] = {"leaderElect": False}
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    config["profiles"] = [{"schedulerName": f"vgpu-{name}"}]
    proof = authority.issue("system:kube-scheduler")
    for extender in config["extenders"]:
        extender["urlPrefix"] = f"https://{replica.extender_addresses[0]}/extender"
        extender["tlsConfig"] = {
            "serverName": "vgpu-scheduler-cache",
            "caFile": str(authority.certificate),
            "certFile": str(proof.certificate),
            "keyFile": str(proof.key),
        }
    return config


async def test_a_pod_is_placed_and_the_next_is_told_why_it_waits(site: Site) -> None:
    await site.create("first", 6)
    placed = await site.bound("first")
    await site.create("second", 6)

    words = await site.turned_away("second", "less memory free")

    assert "vgpu.dev/allocation" in placed["metadata"]["annotations"]
    assert "none of 1 cards fits 6.0Gi: 1 with less memory free" in words


async def test_a_pod_that_waits_is_tried_again_when_its_node_gets_room(site: Site) -> None:
    await site.create("first", 6)
    await site.bound("first")
    await site.create("second", 6)
    await site.turned_away("second", "less memory free")
    refusals = site.refusals()

    await site.delete("first")
    # The deletion lets the scheduler try again, in vain: what the node holds it holds until the
    # report of the end, and after that only we can wake the scheduler.
    await site.ended("first", refusals)

    await site.bound("second")


async def test_a_pod_that_waits_for_slices_alone_preempts_a_lower_priority(site: Site) -> None:
    await site.create("low", 6)
    await site.bound("low")
    await site.create("small", 1)
    await site.bound("small")
    await site.create("urgent", 6, priority="urgent")

    await site.ended("low")
    await site.bound("urgent")

    assert await site.names() == {"small", "urgent"}


async def test_kube_scheduler_preempts_for_its_own_count_and_we_name_who_holds_the_card(
    site: Site,
) -> None:
    await site.allow(3)
    for name, gib in (("large", 6), ("small", 1)):
        await site.create(name, gib)
        await site.bound(name)
    await site.create("tiny", 1)
    await site.bound("tiny")
    await site.create("urgent", 5, priority="urgent")

    await site.ended("large")
    await site.bound("urgent")

    assert "large" not in await site.names()
