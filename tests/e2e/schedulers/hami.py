# SPDX-License-Identifier: Apache-2.0
"""HAMi: its extender and webhook, and a kube-scheduler, as its chart configures them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import yaml  # type: ignore[import-untyped,unused-ignore]

from tests.e2e.namespace import Namespace, until
from tests.e2e.plugins import bare_gpu_claimed
from tests.e2e.pods import Json
from tests.e2e.schedulers.annotated import Annotated
from tests.e2e.schedulers.system import Shape, Wish
from tests.testbed.kubernetes.cluster import CARDS
from tests.testbed.kubernetes.process import free_port
from tests.testbed.kubernetes.programs import find_built

_RESOURCES = {
    "resourceCountName": "nvidia.com/gpu",
    "resourceMemoryName": "nvidia.com/gpumem",
    "resourceMemoryPercentageName": "nvidia.com/gpumem-percentage",
    "resourceCoreName": "nvidia.com/gpucores",
    "resourcePriorityName": "nvidia.com/priority",
}
REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"


class Hami(Annotated):
    """HAMi 2.10; our agent stands in the place of its device plugin."""

    allocated: ClassVar[str] = "hami.io/vgpu-devices-allocated"
    to_allocate: ClassVar[str] = "hami.io/vgpu-devices-to-allocate"
    bind_phase: ClassVar[str] = "hami.io/bind-phase"
    lock: ClassVar[str] = "hami.io/mutex.lock"
    name: ClassVar[str] = "hami"
    scheduler: ClassVar[str] = "hami-scheduler"
    played: ClassVar[str] = (
        "its device plugin is ours (that is what joining means); its webhook and scheduler are real"
    )
    programs: ClassVar[Sequence[str]] = ("scheduler",)

    webhook: ClassVar[str] = "hami-webhook"

    async def install(self) -> None:
        self._claimed = AsyncExitStack()
        await self._claimed.enter_async_context(bare_gpu_claimed(self.cluster))
        kubeconfig = self.account()
        port = free_port()
        devices = self.folder / "device-config.yaml"
        devices.write_text(yaml.safe_dump({"nvidia": self._device_config()}))
        serving = self.cluster.authority.issue_server("hami-scheduler.kube-system.svc", file="hami")
        self.add(
            "extender",
            self.program("scheduler"),
            f"--http_bind=127.0.0.1:{port}",
            f"--cert_file={serving.certificate}",
            f"--key_file={serving.key}",
            f"--scheduler-name={self.scheduler}",
            f"--metrics-bind-address=127.0.0.1:{free_port()}",
            "--node-scheduler-policy=binpack",
            "--gpu-scheduler-policy=spread",
            f"--device-config-file={devices}",
            "--leader-elect=false",
            "-v=4",
            env={"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": "kube-system"},
        )
        self.add(
            "kube-scheduler",
            find_built("kube-scheduler"),
            f"--config={self._scheduler_config(kubeconfig, port)}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.folder}/certificates",
        )
        self.ask_webhook = partial(self.make_webhook, port=port, path="webhook")
        self.ask_webhook(self.webhook)

    async def uninstall(self) -> None:
        await self._claimed.aclose()

    async def ready(self) -> None:
        await self.node_says(REGISTER)
        await self.node_offers("nvidia.com/gpu")
        # Its extender reads registrations every 15 seconds.
        await self._extender_answers()

    def limits(self, wish: Wish) -> dict[str, str]:
        return {
            "nvidia.com/gpu": str(wish.count),
            "nvidia.com/gpumem": str(wish.memory_mib),
            "nvidia.com/gpucores": str(wish.cores_percent),
        }

    def finish(self, item: Json, what: Shape) -> None:
        # Its webhook gives such a pod to its scheduler, as its examples want it.
        if what.wishes():
            del item["spec"]["schedulerName"]

    async def still_registered(self, namespace: Namespace) -> None:
        written = await asyncio.to_thread(self.node_annotations)
        assert len(json.loads(written[REGISTER])) == CARDS, written
        assert "Deleted" not in written[HANDSHAKE], written

    def _device_config(self) -> Mapping[str, object]:
        """Return what its chart's defaults are for NVIDIA's cards."""
        return {
            **_RESOURCES,
            "overwriteEnv": False,
            "defaultMemory": 0,
            "defaultCores": 0,
            "defaultGPUNum": 1,
            "memoryFactor": 1,
            "deviceSplitCount": 10,
            "deviceMemoryScaling": 1,
            "deviceCoreScaling": 1,
            "gpuCorePolicy": "default",
        }

    def _scheduler_config(self, kubeconfig: Path, port: int) -> Path:
        extender = {
            "urlPrefix": f"https://127.0.0.1:{port}",
            "enableHTTPS": True,
            "tlsConfig": {"insecure": True},
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "weight": 1,
            "httpTimeout": "30s",
            "managedResources": [
                {"name": name, "ignoredByScheduler": True} for name in _RESOURCES.values()
            ],
        }
        config = self.folder / "scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(kubeconfig)},
                    "leaderElection": {"leaderElect": False},
                    "profiles": [{"schedulerName": self.scheduler}],
                    "extenders": [extender],
                }
            )
        )
        return config

    async def _extender_answers(self) -> None:
        """Wait until its scheduler has asked for a handshake: it has then read the cards."""

        async def asked() -> bool:
            self.check()
            return HANDSHAKE in await asyncio.to_thread(self.node_annotations)

        await until(asked, "HAMi's scheduler has read the node")
