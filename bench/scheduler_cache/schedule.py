# SPDX-License-Identifier: Apache-2.0
"""How many pods a second an unmodified kube-scheduler places with our extender, and without.

etcd, kube-apiserver and kube-scheduler are real; the nodes are objects without a kubelet. Pods are
made first; then the scheduler starts, and what counts is the time from the first pod placed to the
last. Both kinds of run alternate on the same API server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.stage import SERVER_NAME, Child, Stage, print_machine, stage
from bench.scheduler_cache.synthetic import Size
from scheduler_cache.config_kubernetes import ExtenderConfig
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from scheduler_cache.kube.errors import ConflictError
from scheduler_cache.kube.informer import Informer, Key, Resource
from scheduler_cache.kube.objects import Pod
from tests.testbed import REPOSITORY
from tests.testbed.kubernetes import control_plane
from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.programs import find_built

SAMPLE = REPOSITORY / "deploy" / "scheduler" / "kube-scheduler.yaml"
_PODS = "/api/v1/namespaces/default/pods"
_WRITERS = 16
_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run gave."""

    name: str
    pods: int
    seconds: float
    scheduler_cpu: float
    """Seconds of processor time of kube-scheduler."""
    cache_cpu: float


def main(arguments: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.cache schedule")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000, help="of each run")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(arguments)
    size = Size(nodes=options.nodes, pods=options.pods)
    with stage() as place, control_plane(place.folder / "plane") as plane:
        kubeconfig = plane.kubeconfig(place.folder / "kubeconfig")
        asyncio.run(_make_nodes(kubeconfig, size))
        config = place.config(
            kubeconfig, own_pod="", extender=ExtenderConfig(listen=("127.0.0.1:0",))
        )
        replica = place.replica(config)
        synced = replica.json()
        replica.ask(f"report {size.nodes} {size.cards}")
        bench = Bench(place, kubeconfig, size, replica, synced["extender"][0])
        print_machine()
        print(f"{size.nodes:,} nodes of {size.cards} cards, {size.pods:,} pods a run\n")
        print("| run | pods/s | seconds | kube-scheduler, CPU s | scheduler cache, CPU s |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for _ in range(options.rounds):
            for extended in (False, True):
                outcome = asyncio.run(bench.run(extended))
                print(
                    f"| {outcome.name} | {outcome.pods / outcome.seconds:.0f} "
                    f"| {outcome.seconds:.2f} | {outcome.scheduler_cpu:.2f} "
                    f"| {outcome.cache_cpu:.2f} |",
                    flush=True,
                )
        _print_verbs(replica.ask("verbs"))


class Bench:
    """One API server, one replica; a scheduler for each run."""

    def __init__(
        self, place: Stage, kubeconfig: Path, size: Size, replica: Child, address: str
    ) -> None:
        self._place = place
        self._kubeconfig = kubeconfig
        self._size = size
        self._replica = replica
        self._address = address
        self._runs = 0
        self._program = find_built("kube-scheduler")

    async def run(self, extended: bool) -> Outcome:
        """Place pods, remove them, and return what it took."""
        self._runs += 1
        folder = self._place.folder / f"run-{self._runs}"
        folder.mkdir()
        config = folder / "config.json"
        config.write_text(json.dumps(self._config(extended)))
        scheduler = Process(
            "kube-scheduler",
            [
                self._program,
                f"--config={config}",
                f"--secure-port={free_port()}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={folder}",
            ],
            folder / "kube-scheduler.log",
        )
        async with KubeClient(KubeconfigConnection(self._kubeconfig)) as client:
            await _all(
                client.create(_PODS, _pod(self._runs, number, extended))
                for number in range(self._size.pods)
            )
            watched = Placed(client)
            try:
                cache_before = self._replica.cpu_seconds()
                scheduler.start()
                seconds = await watched.until(self._size.pods, scheduler)
                cache_cpu = self._replica.cpu_seconds() - cache_before
                scheduler_cpu = _cpu_seconds(scheduler.pid)
            finally:
                scheduler.stop()
                await watched.stop()
            await _all(
                client.delete(f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
                for name in watched.names
            )
        # The agents' next reports: nothing runs any more.
        self._replica.ask(f"report {self._size.nodes} {self._size.cards}")
        return Outcome(
            name="with the extender" if extended else "without",
            pods=self._size.pods,
            seconds=seconds,
            scheduler_cpu=scheduler_cpu,
            cache_cpu=cache_cpu,
        )

    def _config(self, extended: bool) -> dict[str, Any]:
        """Return the sample's configuration for this place, with the extender or without."""
        config: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
        config["leaderElection"] = {"leaderElect": False}
        config["clientConnection"].update(kubeconfig=str(self._kubeconfig), qps=5000, burst=5000)
        proof = self._place.authority.issue("system:kube-scheduler")
        for extender in config["extenders"]:
            extender["urlPrefix"] = f"https://{self._address}/extender"
            extender["tlsConfig"] = {
                "serverName": SERVER_NAME,
                "caFile": str(self._place.authority.certificate),
                "certFile": str(proof.certificate),
                "keyFile": str(proof.key),
            }
        if not extended:
            # The resources that no node has are ignored all the same.
            del config["extenders"][0]
        return config


class Placed:
    """Sees pods of the namespace become bound."""

    def __init__(self, client: KubeClient) -> None:
        self.names: set[str] = set()
        self._bound: dict[str, float] = {}
        informer = Informer(
            client, Resource(name="pods", path=_PODS, kind=Pod), self._seen, self._gone
        )
        self._task = asyncio.create_task(informer.run())

    async def until(self, number: int, scheduler: Process) -> float:
        """Wait until so many are bound; return the seconds from the first to the last."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while len(self._bound) < number:
            scheduler.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self._bound)} of {number} pods were placed")
            await asyncio.sleep(0.02)
        return max(self._bound.values()) - min(self._bound.values())

    async def stop(self) -> None:
        """Stop looking."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _seen(self, item: Pod) -> None:
        name = item["metadata"]["name"]
        self.names.add(name)
        if item["spec"].get("nodeName"):
            self._bound.setdefault(name, time.monotonic())

    def _gone(self, key: Key, version: int) -> None:
        pass


async def _make_nodes(kubeconfig: Path, size: Size) -> None:
    async with KubeClient(KubeconfigConnection(kubeconfig)) as client:
        for name in ("vgpu-system", "default"):
            with suppress(ConflictError):
                await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        await _all(client.create("/api/v1/nodes", _node(item)) for item in synthetic.nodes(size))
        # The API server taints what is made as not ready.
        await _all(
            client.patch(f"/api/v1/nodes/{synthetic.node_name(number)}", {"spec": {"taints": None}})
            for number in range(size.nodes)
        )


def _node(source: dict[str, Any]) -> dict[str, Any]:
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "500", "vgpu.dev/count": "80"}
    conditions = [{"type": "Ready", "status": "True", "reason": "Bench"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    return {**source, "status": status}


def _pod(run: int, number: int, extended: bool) -> dict[str, Any]:
    """Return the pod of one template, as users make it, whichever way it is placed."""
    pod = synthetic.asking(number)
    pod["metadata"]["name"] = f"run-{run}-{number:06}"
    limits = pod["spec"]["containers"][0]["resources"]
    limits["requests"] = {"cpu": "100m", "memory": "64Mi", **limits["requests"]}
    uuid = synthetic.container_uuid(run * 1_000_000 + number)
    pod["spec"]["containers"][0]["env"][0]["value"] = uuid
    return pod


async def _all(work: Iterable[Awaitable[object]]) -> None:
    """Await everything, a few at a time."""
    waiting = iter(work)

    async def worker() -> None:
        for each in waiting:
            await each

    await asyncio.gather(*(worker() for _ in range(_WRITERS)))


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _print_verbs(verbs: dict[str, dict[str, dict[str, float]]]) -> None:
    print("\n| verb | outcome | calls | mean, ms |")
    print("| --- | --- | ---: | ---: |")
    for verb, outcomes in sorted(verbs.items()):
        for outcome, found in sorted(outcomes.items()):
            mean = found["sum"] / found["count"] * 1e3
            print(f"| {verb} | {outcome} | {found['count']:.0f} | {mean:.2f} |")
