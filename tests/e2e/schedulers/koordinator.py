# SPDX-License-Identifier: Apache-2.0
"""Koordinator: koord-scheduler with its plugin `DeviceShare`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests.e2e.namespace import Namespace
from tests.e2e.plugins import minor_of
from tests.e2e.pods import STAY
from tests.e2e.schedulers.system import MIB, NODE_PATH, Kind, Shape, System, Wish
from tests.e2e.slices import Slice
from tests.testbed.kubernetes.cluster import CARD_BYTES, CARDS, NODE
from tests.testbed.kubernetes.process import free_port

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
_PERCENT = 100 * CARDS
# The sums that koord-manager makes of the Device object and writes on the node.
_CAPACITY = {
    "koordinator.sh/gpu": str(_PERCENT),
    "koordinator.sh/gpu-core": str(_PERCENT),
    "koordinator.sh/gpu-memory-ratio": str(_PERCENT),
    "koordinator.sh/gpu-memory": str(CARD_BYTES * CARDS),
    "koordinator.sh/gpu.shared": str(_PERCENT),
}
_KINDS = (
    Kind("analysis.koordinator.sh", "v1alpha1", "Recommendation", "recommendations"),
    Kind(
        "config.koordinator.sh",
        "v1alpha1",
        "ClusterColocationProfile",
        "clustercolocationprofiles",
        namespaced=False,
    ),
    Kind(
        "quota.koordinator.sh",
        "v1alpha1",
        "ElasticQuotaProfile",
        "elasticquotaprofiles",
        status=False,
    ),
    Kind(
        "scheduling.koordinator.sh",
        "v1alpha1",
        "PodMigrationJob",
        "podmigrationjobs",
        namespaced=False,
    ),
    Kind("scheduling.koordinator.sh", "v1alpha1", "Reservation", "reservations", namespaced=False),
    Kind(
        "scheduling.koordinator.sh",
        "v1alpha1",
        "ClusterNetworkTopology",
        "clusternetworktopologies",
        namespaced=False,
    ),
    Kind("scheduling.koordinator.sh", "v1alpha1", "ScheduleExplanation", "scheduleexplanations"),
    Kind("scheduling.sigs.k8s.io", "v1alpha1", "ElasticQuota", "elasticquotas", status=False),
    Kind("scheduling.sigs.k8s.io", "v1alpha1", "PodGroup", "podgroups", status=False),
    Kind("slo.koordinator.sh", "v1alpha1", "NodeMetric", "nodemetrics", namespaced=False),
    Kind("slo.koordinator.sh", "v1alpha1", "NodeSLO", "nodeslos", namespaced=False),
    Kind(
        "topology.node.k8s.io",
        "v1alpha1",
        "NodeResourceTopology",
        "noderesourcetopologies",
        namespaced=False,
        status=False,
    ),
)
# As its chart enables them, at each of the scheduler's steps.
_PLUGINS = {
    "preEnqueue": ("Coscheduling",),
    "preFilter": (
        "SchedulingHint",
        "Reservation",
        "NodeNUMAResource",
        "DeviceShare",
        "Coscheduling",
        "ElasticQuota",
    ),
    "filter": ("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
    "preScore": ("Reservation", "Coscheduling"),
    "reserve": (
        "LoadAwareScheduling",
        "NodeNUMAResource",
        "DeviceShare",
        "Reservation",
        "Coscheduling",
        "ElasticQuota",
    ),
    "permit": ("Coscheduling",),
    "preBind": (
        "NodeNUMAResource",
        "DeviceShare",
        "Reservation",
        "Coscheduling",
        "DefaultPreBind",
    ),
    "postBind": ("Coscheduling",),
}
_SCORES = {
    "LoadAwareScheduling": 1,
    "NodeNUMAResource": 1,
    "DeviceShare": 1,
    "Reservation": 5000,
    "Coscheduling": 1,
}
_IN_PLACE_OF_ALL = {
    "queueSort": ("PrioritySort",),
    "postFilter": ("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"),
    "bind": ("Reservation", "DefaultBinder"),
}


class Koordinator(System):
    """Koordinator 1.8. It decides for the pod: who asks sees all of its cards, as one account."""

    name: ClassVar[str] = "koordinator"
    scheduler: ClassVar[str] = "koord-scheduler"
    played: ClassVar[str] = (
        "koordlet's Device object, and koord-manager's sums of it on the node; "
        "its webhook is left out"
    )
    programs: ClassVar[Sequence[str]] = ("koord-scheduler",)
    # Containers that share an account would count each other's memory.
    pod_script: ClassVar[str] = f"vgpu-probe; {STAY}"

    async def install(self) -> None:
        for kind in _KINDS:
            self.make_kind(kind)
        self._report_devices()
        self._offer(_CAPACITY)
        kubeconfig = self.account()
        config = self.folder / "scheduler.json"
        config.write_text(json.dumps(self._config(str(kubeconfig))))
        self.add(
            "scheduler",
            self.program("koord-scheduler"),
            f"--config={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--port=0",
            f"--cert-dir={self.folder}/certificates",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--v=4",
        )

    async def uninstall(self) -> None:
        self._offer(dict.fromkeys(_CAPACITY))

    async def ready(self) -> None:
        await self.node_offers(*_CAPACITY)

    def limits(self, wish: Wish) -> dict[str, str]:
        return {
            "koordinator.sh/gpu.shared": str(wish.count),
            "koordinator.sh/gpu-core": str(wish.cores_percent * wish.count),
            "koordinator.sh/gpu-memory": f"{wish.memory_mib * wish.count}Mi",
        }

    def decided(self, item: dict[str, Any]) -> list[Slice]:
        entries = json.loads(item["metadata"]["annotations"][ALLOCATED])["gpu"]
        found = []
        for each in entries:
            resources = each["resources"]
            memory = _bytes(str(resources["koordinator.sh/gpu-memory"]))
            cores = int(resources["koordinator.sh/gpu-core"])
            found.append((self._card(each["minor"]), memory, cores))
        return found

    def given(self, what: Shape, decided: Sequence[Slice]) -> dict[str, list[Slice]]:
        total = self._total(what)
        assert [each[1:] for each in decided] == [self.amount(total)] * total.count, decided
        return {name: list(decided) for name in what.wishes()}

    async def still_registered(self, namespace: Namespace) -> None:
        node = await asyncio.to_thread(self.plane.request, "GET", NODE_PATH)
        for name, amount in _CAPACITY.items():
            found = node["status"]["allocatable"].get(name, "0")
            assert _bytes(found) == int(amount), (name, found)

    @staticmethod
    def _total(what: Shape) -> Wish:
        """Return what the pod asks for: by resource, the more of its steps and of what stays."""

        def amounts(wish: Wish | None) -> tuple[int, int, int]:
            if wish is None:
                return (0, 0, 0)
            return (wish.count, wish.memory_mib * wish.count, wish.cores_percent * wish.count)

        def sums(rows: list[tuple[int, int, int]]) -> tuple[int, int, int]:
            return (sum(r[0] for r in rows), sum(r[1] for r in rows), sum(r[2] for r in rows))

        beside = [amounts(each) for each in what.sidecars.values()]
        staying = sums([*beside, *(amounts(each) for each in what.containers.values())])
        steps = [sums([*beside, amounts(each)]) for each in what.init.values()]
        count, memory, cores = (max(each) for each in zip(staying, *steps, strict=True))
        return Wish(memory // count, cores // count, count)

    def _card(self, minor: int) -> str:
        uuids = [self.cluster.gpu.uuid(index) for index in range(CARDS)]
        return next(each for each in uuids if minor_of(self.cluster, each) == minor)

    def _report_devices(self) -> None:
        """Report the node's cards as koordlet does."""
        cards = [self.cluster.gpu.uuid(index) for index in range(CARDS)]
        devices = [
            {
                "type": "gpu",
                "id": card,
                "minor": minor_of(self.cluster, card),
                "health": True,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory-ratio": "100",
                    "koordinator.sh/gpu-memory": str(CARD_BYTES),
                },
            }
            for card in cards
        ]
        self.make(
            DEVICES,
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": NODE},
                "spec": {"devices": devices},
            },
        )

    def _offer(self, resources: Mapping[str, str | None]) -> None:
        status = {"capacity": dict(resources), "allocatable": dict(resources)}
        self.plane.request("PATCH", f"{NODE_PATH}/status", {"status": status})

    def _config(self, kubeconfig: str) -> dict[str, Any]:
        plugins: dict[str, Any] = {
            step: {"enabled": [{"name": name} for name in names]}
            for step, names in _PLUGINS.items()
        }
        plugins["score"] = {
            "enabled": [{"name": name, "weight": weight} for name, weight in _SCORES.items()]
        }
        for step, names in _IN_PLACE_OF_ALL.items():
            plugins[step] = {
                "disabled": [{"name": "*"}],
                "enabled": [{"name": name} for name in names],
            }
        quota = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "ElasticQuotaArgs",
            "quotaGroupNamespace": "koordinator-system",
        }
        load = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "LoadAwareSchedulingArgs",
            "filterExpiredNodeMetrics": False,
        }
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig},
            "leaderElection": {"leaderElect": False},
            "profiles": [
                {
                    "schedulerName": self.scheduler,
                    "pluginConfig": [
                        {"name": "ElasticQuota", "args": quota},
                        {"name": "LoadAwareScheduling", "args": load},
                    ],
                    "plugins": plugins,
                }
            ],
        }


def _bytes(quantity: str) -> int:
    """Return a quantity that has no unit or a binary one."""
    for unit, factor in (("Ki", 1 << 10), ("Mi", MIB), ("Gi", 1 << 30)):
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    return int(quantity)
