# SPDX-License-Identifier: Apache-2.0
"""What a user of the cluster does in a namespace, and sees there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import KubeError, MissingError
from tests.e2e.pods import Json
from tests.testbed.kubernetes.cluster import Cluster

# Generous: nothing waits so long unless it fails.
PATIENCE_SECONDS = 180.0


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait for a condition; what the API server refuses meanwhile is not yet true."""
    deadline = time.monotonic() + seconds
    trouble = ""
    while True:
        try:
            if await condition():
                return
        except KubeError as error:
            trouble = f": {error}"
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s{trouble}"
        await asyncio.sleep(0.3)


class Namespace:
    """One namespace of a test's own."""

    def __init__(self, cluster: Cluster, client: KubeClient, name: str) -> None:
        self.cluster = cluster
        self.client = client
        self.name = name
        self._pods = f"/api/v1/namespaces/{name}/pods"

    async def create(self, *pods: Json) -> None:
        """Create pods, all at once."""
        await asyncio.gather(*(self.client.create(self._pods, each) for each in pods))

    async def keep(self, item: Json) -> None:
        """Have a pod kept by a ReplicaSet: when a node refuses it, another takes its place."""
        name, labels = item["metadata"]["name"], {"kept": item["metadata"]["name"]}
        metadata = {
            "labels": {**item["metadata"].get("labels", {}), **labels},
            "annotations": item["metadata"]["annotations"],
        }
        sets = f"/apis/apps/v1/namespaces/{self.name}/replicasets"
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": item["spec"]},
        }
        await self.client.create(sets, {"metadata": {"name": name}, "spec": spec})

    async def kept(self, name: str) -> Json:
        """Wait until a pod that is kept runs; return it."""
        found: Json = {}

        async def runs() -> bool:
            nonlocal found
            listed = await self.client.get(self._pods, {"labelSelector": f"kept={name}"})
            living = [item for item in listed["items"] if is_running(item)]
            found = living[0] if living else {}
            return bool(found)

        try:
            await until(runs, f"a pod of the ReplicaSet {self.name}/{name} runs")
        except AssertionError as error:
            described = await self._kubectl("describe", "pods", f"--selector=kept={name}")
            raise AssertionError(f"{error}\n{described}") from None
        return found

    async def open_gate(self, name: str) -> None:
        """Let the scheduler have a pod that was held back."""
        await self.client.patch(f"{self._pods}/{name}", {"spec": {"schedulingGates": None}})

    async def pod(self, name: str) -> Json:
        """Return a pod as the API server has it."""
        return await self.client.get(f"{self._pods}/{name}")

    async def running(self, *names: str, seconds: float = PATIENCE_SECONDS) -> list[Json]:
        """Wait until all containers of pods run; return the pods."""
        return [await self._in_state(name, is_running, "runs", seconds) for name in names]

    async def ended(self, name: str, phase: str = "Succeeded") -> Json:
        """Wait until a pod has ended; return it."""
        return await self._in_state(
            name, lambda item: item["status"].get("phase") == phase, f"is {phase}", PATIENCE_SECONDS
        )

    async def described(self, name: str, words: str) -> str:
        """Wait until `kubectl describe pod` shows words; return all of it."""
        text = ""

        async def shows() -> bool:
            nonlocal text
            text = await self.describe(name)
            return words in text

        try:
            await until(shows, f"`kubectl describe pod {name}` shows {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows\n{text}") from None
        return text

    async def describe(self, name: str) -> str:
        """Return what `kubectl describe pod` prints."""
        return await self._kubectl("describe", "pod", name)

    async def log(self, name: str, container: str = "main") -> str:
        """Return what a container has written."""
        return (
            await self.client.read(f"{self._pods}/{name}/log", {"container": container})
        ).decode()

    async def probe(self, name: str, container: str = "main") -> Json:
        """Return what the probe of a running or ended container saw."""
        text = ""

        async def told() -> bool:
            nonlocal text
            text = await self.log(name, container)
            return text.startswith("{") and "\n" in text

        await until(told, f"the probe of {self.name}/{name} {container} has told")
        found: Json = json.loads(text.splitlines()[0])
        return found

    async def exec(self, name: str, container: str, *words: str) -> str:
        """Run a program in a container, by `kubectl exec`."""
        return await self._kubectl("exec", name, f"--container={container}", "--", *words)

    async def delete(self, *names: str, force: bool = False) -> None:
        """Delete pods and wait until the API server knows them no more."""
        how = {"gracePeriodSeconds": 0} if force else None
        for name in names:
            with suppress(MissingError):  # somebody else was quicker
                await self.client.delete(f"{self._pods}/{name}", how)
        await until(lambda: self._gone(names), f"{names} are gone")

    async def names(self) -> list[str]:
        """Return the pods that there are."""
        listed = await self.client.get(self._pods)
        return [item["metadata"]["name"] for item in listed["items"]]

    async def clear(self) -> None:
        """Delete every pod, and wait until their cards are free."""
        await self.client.delete(f"/apis/apps/v1/namespaces/{self.name}/replicasets")
        names = await self.names()
        if names:
            await self.delete(*names)
        containers = self.cluster.node.run_dir / "containers"

        async def free() -> bool:
            return not containers.exists() or not any(containers.iterdir())

        await until(free, "the node has forgotten every container")

    async def _in_state(
        self, name: str, reached: Callable[[Json], bool], what: str, seconds: float
    ) -> Json:
        item: Json = {}

        async def so() -> bool:
            nonlocal item
            item = await self.pod(name)
            return reached(item)

        try:
            await until(so, f"{self.name}/{name} {what}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.describe(name)}") from None
        return item

    async def _gone(self, names: tuple[str, ...]) -> bool:
        for name in names:
            try:
                await self.pod(name)
            except MissingError:
                continue
            return False
        return True

    async def _kubectl(self, *words: str) -> str:
        return await asyncio.to_thread(self.cluster.kubectl, f"--namespace={self.name}", *words)


def is_running(item: Json) -> bool:
    """Return whether every container of a pod runs, sidecars too, and none is told to end."""
    status = item["status"]
    if "deletionTimestamp" in item["metadata"]:
        return False
    sidecars = {
        each["name"]
        for each in item["spec"].get("initContainers", ())
        if each.get("restartPolicy") == "Always"
    }
    states = [
        *status.get("containerStatuses", ()),
        *(each for each in status.get("initContainerStatuses", ()) if each["name"] in sidecars),
    ]
    wanted = len(item["spec"]["containers"]) + len(sidecars)
    return len(states) == wanted and all("running" in each["state"] for each in states)


def is_pending(item: Json) -> bool:
    """Return whether the scheduler has found no node for a pod."""
    conditions = item["status"].get("conditions", ())
    return any(
        each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in conditions
    )


def allocation(item: Json) -> dict[str, Any]:
    """Return the slices that were written on a pod, by container."""
    found: dict[str, Any] = json.loads(item["metadata"]["annotations"]["vgpu.dev/allocation"])
    return dict(found["containers"])
