# SPDX-License-Identifier: Apache-2.0
"""Other systems' schedulers decide, and containers get exactly that (join mode).

The tests play these schedulers: under an account of theirs they write what HAMi 2.8, Volcano 1.15,
Koordinator 1.8 and KAI 0.17 write, in their order. Everything else is real.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from scheduler_cache.kube.errors import ConflictError
from tests.e2e.namespace import Namespace, until
from tests.e2e.plugins import bare_gpu_claimed, minor_of, nvidia_plugin
from tests.e2e.pods import STAY, Json, container, pod
from tests.e2e.slices import promises, sees
from tests.testbed.kubernetes.cluster import (
    CARD_BYTES,
    CARDS,
    NODE,
    OTHER_SCHEDULERS,
    Cluster,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

GIB = 1 << 30
NODE_PATH = f"/api/v1/nodes/{NODE}"
# What Volcano's plugin writes so that a pod it is done with sorts last.
MAX_UINT64 = str((1 << 64) - 1)
RESERVATIONS = "kai-resource-reservation"


@dataclass
class Scheduler:
    """Another system's scheduler."""

    client: KubeClient
    namespace: Namespace

    async def annotate_pod(self, name: str, **metadata: Mapping[str, str]) -> None:
        """Merge `annotations` and `labels` into a pod's."""
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{name}"
        await self.client.patch(path, {"metadata": metadata})

    async def annotate_node(self, annotations: Mapping[str, str]) -> None:
        """Merge annotations into the node's."""
        await self.client.patch(NODE_PATH, {"metadata": {"annotations": annotations}})

    async def bind(
        self, name: str, annotations: Mapping[str, str] | None = None, *, repeating: bool = False
    ) -> None:
        """Bind a pod to the node; `repeating` all annotations that it carries, as Volcano does."""
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{name}"
        metadata: Json = {"name": name, "annotations": dict(annotations or {})}
        if repeating:
            seen = (await self.client.get(path))["metadata"]
            metadata["uid"] = seen["uid"]
            metadata["annotations"] = {**seen["annotations"], **metadata["annotations"]}
        await self.client.create(
            f"{path}/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": metadata,
                "target": {"kind": "Node", "name": NODE},
            },
        )


@asynccontextmanager
async def joining(
    dialect: str, namespace: Namespace, folder: Path, *, labelled: bool = True
) -> AsyncIterator[Scheduler]:
    """Give the node to a system in the block; afterwards it is ours again, and free.

    Not `labelled`: that the cards are that system's must show in what is registered.
    """
    where, name = OTHER_SCHEDULERS[dialect]
    token = await account(namespace.client, where, name)
    plane = namespace.cluster.plane
    connection = KubeconfigConnection(plane.kubeconfig(folder / "kubeconfig", {"token": token}))
    await label(namespace, dialect if labelled else None, "join")
    async with KubeClient(connection) as client:
        try:
            yield Scheduler(client, namespace)
        finally:
            await namespace.clear()
            await label(namespace, None, None)


async def label(namespace: Namespace, dialect: str | None, mode: str | None) -> None:
    labels = {"vgpu.dev/dialect": dialect, "vgpu.dev/mode": mode}
    await namespace.client.patch(NODE_PATH, {"metadata": {"labels": labels}})


async def account(client: KubeClient, namespace: str, name: str) -> str:
    """Make a service account that may do everything; return a token of it."""
    folder = f"/api/v1/namespaces/{namespace}"
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    await make(client, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    await make(client, f"{folder}/serviceaccounts", {"metadata": {"name": name}})
    await make(
        client,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"metadata": {"name": f"e2e-{name}"}, "roleRef": role, "subjects": [subject]},
    )
    asked = {"spec": {"expirationSeconds": 3600}}
    answer = await client.create(f"{folder}/serviceaccounts/{name}/token", asked)
    return str(answer["status"]["token"])


async def make(client: KubeClient, path: str, item: Json) -> None:
    """Create what an earlier test may have made."""
    with suppress(ConflictError):
        await client.create(path, item)


async def node_annotations(namespace: Namespace) -> dict[str, str]:
    node = await namespace.client.get(NODE_PATH)
    return dict(node["metadata"].get("annotations", {}))


async def registered(namespace: Namespace, key: str) -> str:
    """Wait until the node's cards are registered in a system's own words; return them."""
    text = ""

    async def there() -> bool:
        nonlocal text
        text = (await node_annotations(namespace)).get(key, "")
        return bool(text)

    await until(there, f"{key} is on the node")
    return text


async def taken_back(namespace: Namespace, key: str) -> None:
    """Wait until a registration of ours is gone."""

    async def gone() -> bool:
        return key not in await node_annotations(namespace)

    await until(gone, f"{key} is taken back")


def by_minor(namespace: Namespace) -> list[str]:
    """Return all cards of the node in the order of their device nodes."""
    cluster = namespace.cluster
    cards = [cluster.gpu.uuid(index) for index in range(CARDS)]
    return sorted(cards, key=lambda card: minor_of(cluster, card))


async def completed(
    namespace: Namespace, name: str, expected: Mapping[str, str], lock: str
) -> Json:
    """Wait until the plugin's half of a handshake is done and the lock open; return the pod."""
    item: Json = {}

    async def so() -> bool:
        nonlocal item
        item = await namespace.pod(name)
        written = item["metadata"]["annotations"]
        return all(
            written.get(key) == text for key, text in expected.items()
        ) and lock not in await node_annotations(namespace)

    try:
        await until(so, f"the handshake of {name} is complete")
    except AssertionError as error:
        annotations = item["metadata"]["annotations"]
        raise AssertionError(f"{error}: {annotations}, expected {expected}") from None
    return item


async def test_hami(namespace: Namespace, tmp_path: Path) -> None:
    gpu = namespace.cluster.gpu
    first, second = gpu.uuid(2), gpu.uuid(5)
    register = "hami.io/node-nvidia-register"
    async with (
        bare_gpu_claimed(namespace.cluster),
        joining("hami", namespace, tmp_path) as hami,
    ):
        listed = json.loads(await registered(namespace, register))
        assert [each["devmem"] for each in listed] == [8192] * CARDS
        by_index = sorted(listed, key=lambda each: int(each["index"]))
        assert [each["id"] for each in by_index] == by_minor(namespace)
        await namespace.create(
            pod(
                "one",
                container("plain", script=STAY),
                container("large", hami_limits(2048, 30)),
                container("small", hami_limits(1024, 10)),
                schedulerName="hami-scheduler",
            )
        )

        devices = f";{first},NVIDIA,2048,30:;{second},NVIDIA,1024,10:;"
        await hami_places(hami, "one", devices)

        [item] = await namespace.running("one")
        await sees(namespace, item, "large", [(first, 2 * GIB, 30)])
        await sees(namespace, item, "small", [(second, GIB, 10)])
        done = {
            "hami.io/bind-phase": "success",
            "hami.io/vgpu-devices-to-allocate": ";;;",
            "hami.io/vgpu-devices-allocated": devices,
        }
        await completed(namespace, "one", done, "hami.io/mutex.lock")
        await more_than_asked(namespace, hami)
    await taken_back(namespace, register)


def hami_limits(mebibytes: int, cores: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(mebibytes),
        "nvidia.com/gpucores": str(cores),
    }


async def hami_places(hami: Scheduler, name: str, devices: str) -> None:
    """Do as HAMi's extender does: filter, then bind."""
    now = str(int(time.time()))
    await hami.annotate_pod(
        name,
        annotations={
            "hami.io/vgpu-node": NODE,
            "hami.io/vgpu-time": now,
            "hami.io/vgpu-devices-to-allocate": devices,
            "hami.io/vgpu-devices-allocated": devices,
        },
        labels={"hami.io/vgpu-node": NODE},
    )
    lock = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{hami.namespace.name},{name}"
    await hami.annotate_node({"hami.io/mutex.lock": lock})
    await hami.annotate_pod(
        name, annotations={"hami.io/bind-phase": "allocating", "hami.io/bind-time": now}
    )
    await hami.bind(name)


async def more_than_asked(namespace: Namespace, hami: Scheduler) -> None:
    """What a decision gives beyond the pod's request is given to nobody, and said."""
    card = namespace.cluster.gpu.uuid(0)
    await namespace.create(
        pod("greedy", container(asked=hami_limits(1024, 10)), schedulerName="hami-scheduler")
    )
    await hami_places(hami, "greedy", f"{card},NVIDIA,4096,10:;")

    described = await namespace.described("greedy", "AllocationRefused")

    assert "Started" not in described


async def test_volcano(namespace: Namespace, tmp_path: Path) -> None:
    gpu = namespace.cluster.gpu
    first, second, third = gpu.uuid(1), gpu.uuid(3), gpu.uuid(4)
    register = "volcano.sh/node-vgpu-register"
    async with joining("volcano", namespace, tmp_path) as volcano:
        listed = (await registered(namespace, register)).split(":")[:-1]
        assert [each.split(",")[0] for each in listed] == by_minor(namespace)
        assert {each.split(",")[2] for each in listed} == {"8192"}
        await namespace.create(
            pod(
                "one",
                container("plain", script=STAY),
                container("pair", volcano_limits(2, 2048, 30)),
                container("small", volcano_limits(1, 1024, 10)),
                annotations={"volcano.sh/vgpu-use-gpuuuid": f"{first},{second},{third}"},
                schedulerName="volcano",
            )
        )

        # Who asks for nothing leaves no trace; no `;` at the end.
        devices = f"{first},NVIDIA,2048,30:{second},NVIDIA,2048,30:;{third},NVIDIA,1024,10:"
        now = int(time.time())
        await volcano.annotate_node({"hamivgpu": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"})
        await volcano.bind(
            "one",
            {
                "volcano.sh/vgpu-node": NODE,
                "volcano.sh/vgpu-time": str(now),
                "volcano.sh/vgpu-ids-new": devices,
                "volcano.sh/devices-to-allocate": devices,
                "volcano.sh/bind-phase": "allocating",
                "volcano.sh/bind-time": str(now),
            },
            repeating=True,
        )

        [item] = await namespace.running("one")
        await sees(namespace, item, "pair", [(first, 2 * GIB, 30), (second, 2 * GIB, 30)])
        await sees(namespace, item, "small", [(third, GIB, 10)])
        done = {
            "volcano.sh/bind-phase": "success",
            "volcano.sh/devices-to-allocate": ";",
            "volcano.sh/vgpu-ids-new": devices,
            "volcano.sh/vgpu-time": MAX_UINT64,
        }
        await completed(namespace, "one", done, "hamivgpu")
    await taken_back(namespace, register)


def volcano_limits(count: int, mebibytes: int, cores: int) -> dict[str, str]:
    return {
        "volcano.sh/vgpu-number": str(count),
        "volcano.sh/vgpu-memory": str(mebibytes),
        "volcano.sh/vgpu-cores": str(cores),
    }


async def test_koordinator(namespace: Namespace, tmp_path: Path) -> None:
    """A decision for the whole pod: the containers that ask hold the same cards, as one account."""
    cluster = namespace.cluster
    first, second = cluster.gpu.uuid(3), cluster.gpu.uuid(6)
    async with (
        joining("koordinator", namespace, tmp_path, labelled=False) as koordinator,
        device_object(koordinator),
    ):
        half = {
            "koordinator.sh/gpu.shared": "1",
            "koordinator.sh/gpu-core": "30",
            "koordinator.sh/gpu-memory": "2Gi",
        }
        await namespace.create(
            pod(
                "one",
                container("left", half, script=f"vgpu-probe; {STAY}"),
                container("right", half, script=f"vgpu-probe; {STAY}"),
                container("plain", script=f"ls /dev; {STAY}"),
                schedulerName="koord-scheduler",
            )
        )

        # The second is named by its minor alone, as older versions do.
        decided = {"gpu": [{**koordinator_entry(cluster, first), "id": first}]}
        decided["gpu"].append(koordinator_entry(cluster, second))
        await koordinator.annotate_pod(
            "one",
            annotations={
                "scheduling.koordinator.sh/device-allocated": json.dumps(decided),
                "scheduling.koordinator.sh/bind-timestamp": str(time.time_ns()),
            },
        )
        await koordinator.bind("one")

        [item] = await namespace.running("one")
        for name in ("left", "right"):
            seen = await namespace.probe("one", name)
            sizes = {each["uuid"]: each["nvml"]["total"] for each in seen["devices"]}
            assert sizes == {first: 2 * GIB, second: 2 * GIB}, seen
            assert promises(namespace, item, name) == [(2 * GIB, 30)] * 2
        assert not {"vgpu", "nvidiactl"} & set((await namespace.log("one", "plain")).split())


def koordinator_entry(cluster: Cluster, card: str) -> dict[str, Any]:
    return {
        "minor": minor_of(cluster, card),
        "resources": {
            "koordinator.sh/gpu-core": "30",
            "koordinator.sh/gpu-memory": "2Gi",
            "koordinator.sh/gpu-memory-ratio": "25",
        },
    }


@asynccontextmanager
async def device_object(koordinator: Scheduler) -> AsyncIterator[None]:
    """Report the node's cards as koordlet does, in the block."""
    cluster = koordinator.namespace.cluster
    path = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    devices = [
        {
            "type": "gpu",
            "id": card,
            "minor": minor_of(cluster, card),
            "health": True,
            "resources": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": CARD_BYTES,
            },
        }
        for card in by_minor(koordinator.namespace)
    ]
    await koordinator.client.create(
        path,
        {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": NODE},
            "spec": {"devices": devices},
        },
    )
    try:
        yield
    finally:
        await koordinator.namespace.clear()
        await koordinator.client.delete(f"{path}/{NODE}")


async def test_kai(namespace: Namespace, tmp_path: Path) -> None:
    """A group is a card because a reservation pod, which holds it whole, says so."""
    cluster = namespace.cluster
    card, group = cluster.gpu.uuid(7), str(uuid.uuid4())
    async with (
        nvidia_plugin(cluster, [card]),
        joining("kai", namespace, tmp_path) as kai,
        reservation(kai, group) as reserved,
    ):
        assert reserved == card
        variable = {
            "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"configMapKeyRef": {"name": "one-shared-gpu-0", "key": "cards"}},
        }
        await namespace.create(
            pod(
                "one",
                container("plain", script=STAY),
                container(env=[variable]),
                annotations={"gpu-fraction": "0.25", "gpu-fraction-container-name": "main"},
                schedulerName="kai-scheduler",
            )
        )

        config = {"metadata": {"name": "one-shared-gpu-0"}, "data": {"cards": reserved}}
        await kai.client.create(f"/api/v1/namespaces/{namespace.name}/configmaps", config)
        await kai.annotate_pod(
            "one",
            annotations={"received-resource-type": "Fraction"},
            labels={"runai-gpu-group": group},
        )
        await kai.bind("one")

        [item] = await namespace.running("one")
        # Memory alone is divided: the rest of the card's time is anybody's. KAI counts 8,100 of the
        # card's 8,192 MiB.
        await sees(namespace, item, "main", [(card, 2025 << 20, 100)])


@asynccontextmanager
async def reservation(kai: Scheduler, group: str) -> AsyncIterator[str]:
    """Reserve a card as KAI's binder does; yield the card that its pod got."""
    await make(kai.client, "/api/v1/namespaces", {"metadata": {"name": RESERVATIONS}})
    there = Namespace(kai.namespace.cluster, kai.client, RESERVATIONS)
    name = f"gpu-reservation-{NODE}-{group[:5]}"
    item = pod(
        name,
        container(asked={"nvidia.com/gpu": "1"}, script=f'echo "$NVIDIA_VISIBLE_DEVICES"; {STAY}'),
        nodeName=NODE,
    )
    item["metadata"]["labels"] = {"runai-gpu-group": group}
    await there.create(item)
    try:
        await there.running(name)
        card = ""

        async def told() -> bool:
            nonlocal card
            card = (await there.log(name)).strip()
            return bool(card)

        await until(told, "the reservation pod has told its card")
        # In KAI this pod does so itself, by a key whose name says index.
        mark = {"annotations": {"run.ai/reserve_for_gpu_index": card}}
        await kai.client.patch(f"/api/v1/namespaces/{RESERVATIONS}/pods/{name}", {"metadata": mark})
        yield card
    finally:
        await there.delete(name)
