# SPDX-License-Identifier: Apache-2.0
"""KAI: its scheduler, binder, podgrouper and admission."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, ClassVar

from tests.e2e.namespace import Namespace
from tests.e2e.plugins import WHOLE_CARDS, nvidia_plugin
from tests.e2e.schedulers.system import MIB, NODE_PATH, Kind, Shape, System, Wish
from tests.e2e.slices import Slice
from tests.testbed.kubernetes.cluster import CARD_BYTES, CARDS, PAUSE_IMAGE
from tests.testbed.kubernetes.process import free_port

NAMESPACE = "kai-scheduler"
RESERVATIONS = "kai-resource-reservation"
GROUP = "runai-gpu-group"
RESERVED = "run.ai/reserve_for_gpu_index"
QUEUE = "kai.scheduler/queue"
_KINDS = (
    Kind("scheduling.run.ai", "v2", "Queue", "queues", namespaced=False),
    Kind("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),
    Kind("scheduling.run.ai", "v1alpha2", "BindRequest", "bindrequests"),
    Kind("kai.scheduler", "v1", "Config", "configs", namespaced=False),
    Kind("kai.scheduler", "v1", "SchedulingShard", "schedulingshards", namespaced=False),
    Kind("kai.scheduler", "v1alpha1", "Topology", "topologies", namespaced=False, status=False),
)
_UNLIMITED = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
_ONE_CONTAINER = "in KAI one container of a pod has cards"


class Kai(System):
    """KAI. A group is a card because a reservation pod, which holds it whole, says so."""

    name: ClassVar[str] = "kai"
    scheduler: ClassVar[str] = "kai-scheduler"
    played: ClassVar[str] = (
        "the program in its reservation pods, which tells their card; "
        "NVIDIA's device plugin is a fake"
    )
    programs: ClassVar[Sequence[str]] = ("scheduler", "binder", "podgrouper", "admission")
    cannot: ClassVar[Mapping[str, str]] = {
        "several containers": _ONE_CONTAINER,
        "init container asks": _ONE_CONTAINER,
        "sidecar asks": _ONE_CONTAINER,
    }
    # Memory alone is divided.
    counts_cores: ClassVar[bool] = False
    # Its binder may take away the reservation of a pod that it is just binding ("Did not find
    # fraction pod for gpu group"); that pod is bound all the same, and gets no card.
    at_once: ClassVar[bool] = False
    node_labels: ClassVar[Mapping[str, str]] = {
        "nvidia.com/gpu.memory": str(CARD_BYTES // MIB),
        "nvidia.com/gpu.count": str(CARDS),
        "nvidia.com/gpu.present": "true",
    }

    async def install(self) -> None:
        self._ending = AsyncExitStack()
        cards = [self.cluster.gpu.uuid(index) for index in range(CARDS)]
        await self._ending.enter_async_context(nvidia_plugin(self.cluster, cards))
        for kind in _KINDS:
            self.make_kind(kind)
        self.ensure("/api/v1/namespaces", {"metadata": {"name": RESERVATIONS}})
        self.ensure("/api/v1/namespaces", {"metadata": {"name": "kai-scale-adjust"}})
        accounts = f"/api/v1/namespaces/{RESERVATIONS}/serviceaccounts"
        self.ensure(accounts, {"metadata": {"name": RESERVATIONS}})
        self._make_queue("default-parent-queue")
        self._make_queue("default-queue", "default-parent-queue")
        self._add_scheduler()
        self._add_controllers()
        self._add_admission()
        self._player = _Player(self)
        self._ending.callback(self._player.stop)
        self._player.start()

    async def uninstall(self) -> None:
        pods = f"/api/v1/namespaces/{RESERVATIONS}/pods"
        await asyncio.to_thread(self.plane.request, "DELETE", pods)
        await self._ending.aclose()

    async def ready(self) -> None:
        await self.node_offers(WHOLE_CARDS)

    def limits(self, wish: Wish) -> dict[str, str]:
        return {}

    def finish(self, item: dict[str, Any], what: Shape) -> None:
        [(name, wish)] = what.wishes().items()
        annotations = item["metadata"]["annotations"]
        annotations["gpu-memory"] = str(wish.memory_mib)
        if wish.count > 1:
            annotations["gpu-fraction-num-devices"] = str(wish.count)
        if name != item["spec"]["containers"][0]["name"]:
            annotations["gpu-fraction-container-name"] = name
        item["metadata"]["labels"] = {QUEUE: "default-queue"}

    def decided(self, item: dict[str, Any]) -> list[Slice]:
        metadata = item["metadata"]
        groups = {
            value
            for key, value in metadata["labels"].items()
            if key == GROUP or key.startswith(f"{GROUP}/")
        }
        listed = self.plane.request("GET", f"/api/v1/namespaces/{RESERVATIONS}/pods")["items"]
        cards = {
            each["metadata"]["labels"][GROUP]: each["metadata"]["annotations"][RESERVED]
            for each in listed
            if RESERVED in each["metadata"].get("annotations", {})
        }
        size = int(metadata["annotations"]["gpu-memory"]) * MIB
        return [(cards[group], size, 100) for group in groups]

    def amount(self, wish: Wish) -> tuple[int, int]:
        return (wish.memory_mib * MIB, 100)

    async def still_registered(self, namespace: Namespace) -> None:
        node = await asyncio.to_thread(self.plane.request, "GET", NODE_PATH)
        assert node["status"]["allocatable"][WHOLE_CARDS] == str(CARDS), node["status"]

    def _make_queue(self, name: str, parent: str = "") -> None:
        resources = {each: _UNLIMITED for each in ("cpu", "gpu", "memory")}
        spec: dict[str, Any] = {"resources": resources}
        if parent:
            spec["parentQueue"] = parent
        item = {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.make("/apis/scheduling.run.ai/v2/queues", item)

    def _add_scheduler(self) -> None:
        self.add(
            "scheduler",
            self.program("scheduler"),
            f"--scheduler-name={self.scheduler}",
            f"--namespace={NAMESPACE}",
            f"--listen-address=127.0.0.1:{free_port()}",
            f"--plugin-server-port={free_port()}",
            "--v=4",
            env=self._as("scheduler"),
        )

    def _add_controllers(self) -> None:
        self.add(
            "binder",
            self.program("binder"),
            f"--scheduler-name={self.scheduler}",
            f"--resource-reservation-namespace={RESERVATIONS}",
            f"--resource-reservation-service-account={RESERVATIONS}",
            f"--resource-reservation-pod-image={PAUSE_IMAGE}",
            *self._controller_words(),
            env=self._as("binder"),
        )
        self.add(
            "podgrouper",
            self.program("podgrouper"),
            f"--scheduler-name={self.scheduler}",
            *self._controller_words(),
            env=self._as("podgrouper"),
        )

    def _add_admission(self) -> None:
        port = free_port()
        serving = self.cluster.authority.issue_server(f"admission.{NAMESPACE}.svc", file="kai")
        certificates = self.folder / "k8s-webhook-server" / "serving-certs"
        certificates.mkdir(parents=True, exist_ok=True)
        shutil.copy(serving.certificate, certificates / "tls.crt")
        shutil.copy(serving.key, certificates / "tls.key")
        self.add(
            "admission",
            self.program("admission"),
            f"--scheduler-name={self.scheduler}",
            f"--webhook-addr={port}",
            "--gpu-sharing-enabled",
            "--gpu-pod-runtime-class-name=",
            *self._controller_words(),
            # Where it looks for its certificate is below the folder for temporary files.
            env={**self._as("admission"), "TMPDIR": str(self.folder)},
        )
        condition = {
            "name": "scheduler-name",
            "expression": f"object.spec.schedulerName == '{self.scheduler}'",
        }
        self.make_webhook("kai-admission", port, "mutate--v1-pod", matchConditions=[condition])

    def _controller_words(self) -> tuple[str, ...]:
        return (
            f"--metrics-bind-address=127.0.0.1:{free_port()}",
            f"--health-probe-bind-address=127.0.0.1:{free_port()}",
        )

    def _as(self, account: str) -> dict[str, str]:
        """Return the variables of a program under its own account."""
        path = self.account_of(NAMESPACE, account, f"{account}.kubeconfig")
        return {"KUBECONFIG": str(path), "NAMESPACE": NAMESPACE}


class _Player:
    """Does what KAI's program in a reservation pod does: tells which card the pod was given."""

    def __init__(self, kai: Kai) -> None:
        self._kai = kai
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.3):
            with suppress(OSError, RuntimeError):  # not yet, or an API server that is away
                self._tell()

    def _tell(self) -> None:
        folder = f"/api/v1/namespaces/{RESERVATIONS}/pods"
        for item in self._kai.plane.request("GET", folder)["items"]:
            name = item["metadata"]["name"]
            told = RESERVED in item["metadata"].get("annotations", {})
            if told or item["status"].get("phase") != "Running":
                continue
            words = ("sh", "-c", 'echo "$NVIDIA_VISIBLE_DEVICES"')
            card = self._kai.cluster.kubectl(
                "exec", f"--namespace={RESERVATIONS}", name, "--", *words
            ).strip()
            mark = {"metadata": {"annotations": {RESERVED: card}}}
            self._kai.plane.request("PATCH", f"{folder}/{name}", mark)
