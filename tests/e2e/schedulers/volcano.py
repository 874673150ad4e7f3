# SPDX-License-Identifier: Apache-2.0
"""Volcano: vc-scheduler with its plugin `deviceshare`, and vc-controller-manager."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tests.e2e.namespace import Namespace, until
from tests.e2e.pods import Json
from tests.e2e.schedulers.annotated import Annotated
from tests.e2e.schedulers.system import Kind, Shape, Wish
from tests.testbed.kubernetes.cluster import CARDS
from tests.testbed.kubernetes.process import free_port

REGISTER = "volcano.sh/node-vgpu-register"

# Its chart's, and what its guide to vGPUs adds.
_CONFIG = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
      deviceshare.NodeLockEnable: true
      deviceshare.SchedulePolicy: binpack
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
_KINDS = (
    Kind(
        "scheduling.volcano.sh",
        "v1beta1",
        "PodGroup",
        "podgroups",
        status=False,
        defaults={"queue": "default"},
    ),
    Kind(
        "scheduling.volcano.sh",
        "v1beta1",
        "Queue",
        "queues",
        namespaced=False,
        defaults={"weight": 1, "dequeueStrategy": "traverse"},
    ),
    Kind("batch.volcano.sh", "v1alpha1", "Job", "jobs"),
    Kind("batch.volcano.sh", "v1alpha1", "CronJob", "cronjobs"),
    Kind("bus.volcano.sh", "v1alpha1", "Command", "commands", status=False),
    Kind("flow.volcano.sh", "v1alpha1", "JobFlow", "jobflows"),
    Kind("flow.volcano.sh", "v1alpha1", "JobTemplate", "jobtemplates"),
    Kind(
        "nodeinfo.volcano.sh",
        "v1alpha1",
        "Numatopology",
        "numatopologies",
        namespaced=False,
        status=False,
    ),
    Kind("topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes", namespaced=False),
    Kind("shard.volcano.sh", "v1alpha1", "NodeShard", "nodeshards", namespaced=False),
    Kind("config.volcano.sh", "v1alpha1", "ColocationConfiguration", "colocationconfigurations"),
)


class Volcano(Annotated):
    """Volcano after 1.15; our agent stands in the place of its vGPU device plugin."""

    allocated: ClassVar[str] = "volcano.sh/vgpu-ids-new"
    to_allocate: ClassVar[str] = "volcano.sh/devices-to-allocate"
    bind_phase: ClassVar[str] = "volcano.sh/bind-phase"
    lock: ClassVar[str] = "hamivgpu"
    name: ClassVar[str] = "volcano"
    scheduler: ClassVar[str] = "volcano"
    played: ClassVar[str] = (
        "its device plugin is ours (that is what joining means); vc-webhook-manager is left out"
    )
    programs: ClassVar[Sequence[str]] = ("vc-scheduler", "vc-controller-manager")
    cannot: ClassVar[Mapping[str, str]] = {
        "init container asks": "Volcano counts no init containers",
        "init container alone asks": "Volcano counts no init containers",
        "sidecar asks": "Volcano counts no init containers",
    }

    async def install(self) -> None:
        for kind in _KINDS:
            self.make_kind(kind)
        config = self.folder / "volcano-scheduler.conf"
        config.write_text(_CONFIG)
        self.add(
            "scheduler",
            self.program("vc-scheduler"),
            "--logtostderr",
            f"--kubeconfig={self.account()}",
            f"--scheduler-conf={config}",
            f"--scheduler-name={self.scheduler}",
            "--leader-elect=false",
            "--cache-dumper=false",
            "-v=3",
            # Where its log level may be changed while it runs.
            env={"DEBUG_SOCKET_DIR": str(self.folder / "klog-scheduler")},
        )
        controllers = self.account_of("volcano-system", "volcano-controllers", "controllers")
        self.add(
            "controllers",
            self.program("vc-controller-manager"),
            "--logtostderr",
            f"--kubeconfig={controllers}",
            f"--scheduler-name={self.scheduler}",
            "--leader-elect=false",
            f"--healthz-address=127.0.0.1:{free_port()}",
            "-v=3",
            env={"DEBUG_SOCKET_DIR": str(self.folder / "klog-controllers")},
        )

    async def ready(self) -> None:
        await self.node_says(REGISTER)
        resources = ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores")
        await self.node_offers(*resources)
        queue = "/apis/scheduling.volcano.sh/v1beta1/queues"

        async def there() -> bool:
            self.check()
            listed = await asyncio.to_thread(self.plane.request, "GET", queue)
            states = {
                each["metadata"]["name"]: each.get("status", {}).get("state")
                for each in listed["items"]
            }
            return states.get("default") == "Open"

        await until(there, "Volcano's default queue is open")

    def limits(self, wish: Wish) -> dict[str, str]:
        return {
            "volcano.sh/vgpu-number": str(wish.count),
            "volcano.sh/vgpu-memory": str(wish.memory_mib),
            "volcano.sh/vgpu-cores": str(wish.cores_percent),
        }

    def finish(self, item: Json, what: Shape) -> None:
        item["metadata"]["annotations"]["volcano.sh/vgpu-mode"] = "hami-core"

    async def still_registered(self, namespace: Namespace) -> None:
        written = await asyncio.to_thread(self.node_annotations)
        assert len(written[REGISTER].split(":")[:-1]) == CARDS, written
