# SPDX-License-Identifier: Apache-2.0
"""One other system on the cluster: its programs, and its way to ask for a part of a card."""

from __future__ import annotations

import asyncio
import base64
import urllib.error
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.e2e.namespace import Namespace, until
from tests.e2e.pods import PROBE, STAY, Json, container, pod
from tests.e2e.slices import Slice
from tests.testbed.kubernetes.cluster import NODE, OTHER_SCHEDULERS, Cluster
from tests.testbed.kubernetes.process import Process

MIB = 1 << 20
NODE_PATH = f"/api/v1/nodes/{NODE}"
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True)
class Wish:
    """A container's request: `count` cards, and this much of each."""

    memory_mib: int
    cores_percent: int
    count: int = 1


@dataclass(frozen=True)
class Shape:
    """A pod: its containers by name, each with its wish; None asks for no card."""

    containers: Mapping[str, Wish | None]
    init: Mapping[str, Wish | None]
    sidecars: Mapping[str, Wish | None]

    def wishes(self) -> dict[str, Wish]:
        """Return the containers that ask."""
        everyone = {**self.init, **self.sidecars, **self.containers}
        return {name: wish for name, wish in everyone.items() if wish is not None}


def shape(
    init: Mapping[str, Wish | None] | None = None,
    sidecars: Mapping[str, Wish | None] | None = None,
    **containers: Wish | None,
) -> Shape:
    """Return a pod's shape."""
    return Shape(containers, init or {}, sidecars or {})


@dataclass(frozen=True)
class Kind:
    """A kind of object that a system defines."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True
    status: bool = True
    """Whether its status is a subresource."""
    defaults: Mapping[str, str | int] = field(default_factory=dict)
    """The value in its spec when nobody writes one."""


class System(ABC):
    """A system whose programs run beside ours, each as the account that its own chart makes."""

    name: ClassVar[str]
    """As its folder of programs and our dialect are named."""
    scheduler: ClassVar[str]
    """`schedulerName` in its documents."""
    played: ClassVar[str]
    """The parts of the system that the tests play."""
    programs: ClassVar[Sequence[str]]
    cannot: ClassVar[Mapping[str, str]] = {}
    """By case, why the system itself has no such thing."""
    pod_script: ClassVar[str] = f"{PROBE}; {STAY}"
    counts_cores: ClassVar[bool] = True
    at_once: ClassVar[bool] = True
    """Whether its scheduler can be given several pods at the same moment."""
    node_labels: ClassVar[Mapping[str, str]] = {}

    def __init__(self, cluster: Cluster, programs: Path) -> None:
        """`programs`: the folder with those of this system."""
        self.cluster = cluster
        self.plane = cluster.plane
        self.folder = cluster.folder / f"other-{self.name}"
        self.processes: list[Process] = []
        self._programs = programs
        self._made: list[str] = []

    # -- life ------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the system in the block, on a node whose cards it sells."""
        self.folder.mkdir(exist_ok=True)
        labels = {"vgpu.dev/dialect": self.name, "vgpu.dev/mode": "join", **self.node_labels}
        self.label_node(labels)
        try:
            await self.install()
            await self.whole()
            await self.ready()
            yield
        finally:
            self.stop()
            await self.uninstall()
            for path in reversed(self._made):
                with suppress(urllib.error.HTTPError):
                    self.plane.request("DELETE", path)
            self.label_node(dict.fromkeys(labels))

    @abstractmethod
    async def install(self) -> None:
        """Make what its chart makes, and add its processes."""

    async def uninstall(self) -> None:
        """Take back what is not an object that `make` made."""
        return

    @abstractmethod
    async def ready(self) -> None:
        """Wait until it can schedule."""

    async def whole(self) -> None:
        """Start whatever does not run, of ours as well, and wait until pods can be made."""
        await asyncio.to_thread(self.cluster.whole)
        for process in self.processes:
            process.start()
        await until(self._admits, "the webhooks of both sides answer")

    def stop(self) -> None:
        """End every program of it."""
        for process in reversed(self.processes):
            process.stop()

    def kill(self) -> None:
        """End every program of it with SIGKILL."""
        for process in self.processes:
            process.kill()

    def check(self) -> None:
        """Raise when a program of it has ended by itself."""
        for process in self.processes:
            process.check()

    # -- pods ------------------------------------------------------------------------------

    @abstractmethod
    def limits(self, wish: Wish) -> dict[str, str]:
        """Return a container's limits."""

    def pod(self, name: str, what: Shape) -> Json:
        """Return a pod as a user of the system writes it."""
        item = pod(
            name,
            *(self._container(each, wish) for each, wish in what.containers.items()),
            init=[
                *(
                    self._container(each, wish, restartPolicy="Always")
                    for each, wish in what.sidecars.items()
                ),
                *(self._container(each, wish, ends=True) for each, wish in what.init.items()),
            ],
            schedulerName=self.scheduler,
        )
        self.finish(item, what)
        return item

    def finish(self, item: Json, what: Shape) -> None:
        """Write into a pod what does not stand in its containers."""
        return

    @abstractmethod
    def decided(self, item: Json) -> list[Slice]:
        """Return what the system's scheduler gave to a pod, in any order."""

    def given(self, what: Shape, decided: Sequence[Slice]) -> dict[str, list[Slice]]:
        """Return whose each decided slice is, by container.

        A shape's containers ask for different amounts, so that nothing else has to tell. Raises
        AssertionError where the decision is not exactly what the pod asked for.
        """
        left = list(decided)
        found: dict[str, list[Slice]] = {}
        for name, wish in what.wishes().items():
            found[name] = [each for each in left if each[1:] == self.amount(wish)]
            left = [each for each in left if each not in found[name]]
            assert len(found[name]) == wish.count, (name, wish, decided)
        assert not left, (what, decided)
        return found

    def amount(self, wish: Wish) -> tuple[int, int]:
        """Return bytes and percent that a container then has of each card."""
        return (wish.memory_mib * MIB, wish.cores_percent)

    async def answered(self, namespace: Namespace, name: str) -> None:
        """Wait until our half of the handshake about a pod that runs is done."""
        return

    @abstractmethod
    async def still_registered(self, namespace: Namespace) -> None:
        """Assert that the system goes on to believe in the node's cards."""

    # -- for those below -------------------------------------------------------------------

    def program(self, name: str) -> Path:
        """Return the path of a program."""
        return self._programs / name

    def add(self, name: str, *words: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Add a process; its log has its name."""
        label = f"{self.name}-{name}"
        log = self.folder / f"{name}.log"
        self.processes.append(Process(label, words, log, env))

    def account(self, kubeconfig: str = "kubeconfig") -> Path:
        """Make the account that decides; return its kubeconfig."""
        return self.account_of(*OTHER_SCHEDULERS[self.name], kubeconfig)

    def account_of(self, namespace: str, name: str, kubeconfig: str) -> Path:
        """Make a service account that may do everything; return its kubeconfig."""
        subject = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        role = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        }
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.ensure("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.ensure(accounts, {"metadata": {"name": name}})
        self.ensure(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {"metadata": {"name": f"other-{name}"}, "roleRef": role, "subjects": [subject]},
        )
        asked = {"spec": {"expirationSeconds": 4 * 3600}}
        token = self.plane.request("POST", f"{accounts}/{name}/token", asked)["status"]["token"]
        return self.plane.kubeconfig(self.folder / kubeconfig, {"token": token})

    def ensure(self, path: str, item: Json) -> None:
        """Create what may be there already, and stays."""
        try:
            self.plane.request("POST", path, item)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise RuntimeError(f"POST {path}: {error.read().decode()}") from None

    def make(self, path: str, item: Json) -> None:
        """Create an object that goes when the system goes."""
        self.ensure(path, item)
        self._made.append(f"{path}/{item['metadata']['name']}")

    def make_kind(self, kind: Kind) -> None:
        """Define a kind of object without a schema: who writes them has one of its own."""
        anything: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        defaults = {
            name: {"type": "string" if isinstance(value, str) else "integer", "default": value}
            for name, value in kind.defaults.items()
        }
        schema = {**anything, "properties": {"spec": {**anything, "properties": defaults}}}
        version = {
            "name": kind.version,
            "served": True,
            "storage": True,
            "subresources": {"status": {}} if kind.status else {},
            "schema": {"openAPIV3Schema": schema},
        }
        self.ensure(
            KINDS,
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{kind.plural}.{kind.group}",
                    # Where the group is one of Kubernetes' own, it wants to see who agreed.
                    "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
                },
                "spec": {
                    "group": kind.group,
                    "scope": "Namespaced" if kind.namespaced else "Cluster",
                    "names": {
                        "kind": kind.name,
                        "listKind": f"{kind.name}List",
                        "plural": kind.plural,
                        "singular": kind.name.lower(),
                    },
                    "versions": [version],
                },
            },
        )

    def make_webhook(self, name: str, port: int, path: str, **more: Any) -> None:  # noqa: ANN401 - JSON
        """Have the API server ask a webhook of the system's about every new pod."""
        authority = self.cluster.authority.certificate.read_bytes()
        hook = {
            "name": f"{name}.example.org",
            "admissionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {
                "url": f"https://127.0.0.1:{port}/{path}",
                "caBundle": base64.b64encode(authority).decode(),
            },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }
            ],
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": ["kube-system", "vgpu-system"],
                    }
                ]
            },
            **more,
        }
        self.make(WEBHOOKS, {"metadata": {"name": name}, "webhooks": [hook]})

    def label_node(self, labels: Mapping[str, str | None]) -> None:
        """Merge labels into the node's."""
        self.plane.request("PATCH", NODE_PATH, {"metadata": {"labels": dict(labels)}})

    def node_annotations(self) -> dict[str, str]:
        """Return the node's annotations."""
        return dict(self.plane.request("GET", NODE_PATH)["metadata"].get("annotations", {}))

    async def node_says(self, key: str) -> None:
        """Wait until the node has an annotation."""

        async def there() -> bool:
            return bool(self.node_annotations().get(key))

        await until(there, f"{key} is on the node")

    async def node_offers(self, *resources: str) -> None:
        """Wait until schedulers know of resources of the node."""

        async def there() -> bool:
            allocatable = self.plane.request("GET", NODE_PATH)["status"]["allocatable"]
            return all(allocatable.get(each, "0") != "0" for each in resources)

        await until(there, f"the node offers {', '.join(resources)}")

    async def _admits(self) -> bool:
        """Return whether a pod that both sides look at could be made."""
        self.check()
        item = self.pod("asks", shape(main=Wish(1024, 10)))
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        try:
            await asyncio.to_thread(self.plane.request, "POST", path, item)
        except OSError:
            return False
        return True

    def _container(
        self, name: str, wish: Wish | None, *, ends: bool = False, **more: object
    ) -> Json:
        if wish is None:
            script = "ls /dev" if ends else f"ls /dev; {STAY}"
            return {**container(name, script=script), **more}
        script = PROBE if ends else self.pod_script
        return {**container(name, self.limits(wish), script), **more}
