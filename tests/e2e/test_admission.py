# SPDX-License-Identifier: Apache-2.0
"""A real API server asks a real replica's webhooks, and holds our policies itself.

It has a cluster of its own: these rules bind everybody in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.admission.manifests import Site as Place
from scheduler_cache.admission.manifests import policies, webhook_configurations
from scheduler_cache.admission.rules import rules_of
from scheduler_cache.cluster_server import Running, running
from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import DIALECTS as DIALECT_NAMES
from scheduler_cache.config_kubernetes import AdmissionConfig
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from scheduler_cache.kube.errors import ApiError, MissingError
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.admission.test_mutation import DIALECTS
from tests.scheduler_cache.kube.replicas import Site
from tests.scheduler_cache.kube_objects import KEYRING
from tests.testbed.kubernetes import ControlPlane, UnavailableError, control_plane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NAMESPACE = "vgpu-system"
PODS = "/api/v1/namespaces/default/pods"
# Whom the API server knows the replica as, somebody else, and another scheduler.
US, ALICE, JOINED = "vgpu-replica", "alice", "volcano-scheduler"
PATIENCE_SECONDS = 60.0


class As(KubeconfigConnection):
    """Everybody who may do everything, under a name."""

    def __init__(self, path: Path, user: str, group: str = "system:masters") -> None:
        super().__init__(path)
        self._who = {"Impersonate-User": user, "Impersonate-Group": group}

    async def headers(self) -> dict[str, str]:
        return {**await super().headers(), **self._who}


class Cluster:
    """The API server, the replica's place in it, and who asks."""

    def __init__(self, plane: ControlPlane, site: Site, folder: Path) -> None:
        self.plane = plane
        self.site = site
        self.kubeconfig = plane.kubeconfig(folder / "kubeconfig")
        self.admission = AdmissionConfig(
            dialects=DIALECT_NAMES,
            dialect_scope="cluster",
            listen=("127.0.0.1:0",),
            user="tester",
            join_users=(JOINED,),
            check_seconds=0.2,
            settle_seconds=2.0,
        )

    def config(self) -> Config:
        config = self.site.config("replica", admission=self.admission)
        self.plane.kubeconfig(Path(config.kubernetes.kubeconfig))
        return config

    def client(self, user: str, group: str = "system:masters") -> KubeClient:
        return KubeClient(As(self.kubeconfig, user, group))

    @property
    def rules(self) -> Any:  # noqa: ANN401
        return rules_of(self.config().kubernetes, every_dialect(KEYRING))


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    try:
        with control_plane(tmp_path_factory.mktemp("admission")) as plane:
            plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            plane.request(
                "POST",
                "/apis/node.k8s.io/v1/runtimeclasses",
                {
                    "metadata": {"name": "vgpu"},
                    "handler": "vgpu",
                    "scheduling": {"nodeSelector": {"vgpu.dev/node": "true"}},
                },
            )
            yield plane
    except UnavailableError as error:
        pytest.fail(str(error))


@pytest.fixture
async def world(own_plane: ControlPlane, scratch: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster without pods, webhooks and policies."""
    cluster = Cluster(own_plane, Site(FakeApiServer(), scratch), scratch)
    yield cluster
    async with cluster.client(US) as client:
        for kind in (
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            "validatingadmissionpolicybindings",
            "validatingadmissionpolicies",
        ):
            await client.delete(f"{REGISTRATION}/{kind}")
        service = f"/api/v1/namespaces/{NAMESPACE}/services/vgpu-admission"
        if await there(client, service):
            await client.delete(service)
        # An API server goes on asking, and judging, for a moment.
        forged = gpu_pod("probe", {}, {"vgpu.dev/allocation": "{}"})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while await refusal(client, forged, dry_run=True):
            assert time.monotonic() < deadline, "the rules never went"
            await asyncio.sleep(0.1)
        for item in (await client.get(PODS))["items"]:
            await client.delete(f"{PODS}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})


async def there(client: KubeClient, path: str) -> bool:
    try:
        await client.get(path)
    except MissingError:
        return False
    return True


@asynccontextmanager
async def webhooks(world: Cluster, *, match_conditions: bool = True) -> AsyncIterator[Running]:
    """Run a replica that the API server asks, in the block; the configurations stay."""
    async with running(world.config()) as replica, world.client(US) as client:
        (address,) = await asyncio.wait_for(
            asyncio.shield(replica.admission.addresses), PATIENCE_SECONDS
        )
        # A Service of a name outside: the API server calls it as any other.
        await client.create(
            f"/api/v1/namespaces/{NAMESPACE}/services",
            {
                "metadata": {"name": "vgpu-admission"},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
        )
        place = Place(
            namespace=NAMESPACE,
            port=int(address.rpartition(":")[2]),
            match_conditions=match_conditions,
        )
        for item in webhook_configurations(world.rules, place):
            await client.create(f"{REGISTRATION}/{item['kind'].lower()}s", item)
        # Each of the two configurations has the certificate's authority, and has come into force.
        await held(world, gpu_pod("probe", {"vgpu.dev/memory": "0"}), "must lie in 1..")
        await held(world, gpu_pod("probe", {}, {"vgpu.dev/allocation": "{}"}), "vgpu alone")
        yield replica


async def install_policies(world: Cluster) -> None:
    async with world.client(US) as client:
        # The rule for new pods last: once it is heard of, so are all that were written before it.
        for item in reversed(policies(world.rules)):
            kind = "policies" if item["kind"].endswith("Policy") else "policybindings"
            await client.create(f"{REGISTRATION}/validatingadmission{kind}", item)
    forged = gpu_pod("probe", {}, {"vgpu.dev/allocation": "{}"})
    await held(world, forged, "written by vgpu alone")


async def held(world: Cluster, forged: dict[str, Any], words: str) -> None:
    """Wait until the API server has heard of the rules."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with world.client(ALICE) as client:
        last = ""
        while True:
            last = await refusal(client, forged, dry_run=True)
            if words in last:
                return
            assert time.monotonic() < deadline, f"the rules never came into force: {last}"
            await asyncio.sleep(0.2)


async def refusal(client: KubeClient, item: dict[str, Any], *, dry_run: bool = False) -> str:
    """Return why a pod may not be created; empty: it was."""
    path = f"/api/v1/namespaces/{item['metadata']['namespace']}/pods"
    try:
        await client.create(f"{path}?dryRun=All" if dry_run else path, item)
    except ApiError as error:
        return str(error)
    return ""


def gpu_pod(
    name: str,
    limits: dict[str, str],
    annotations: dict[str, str] | None = None,
    namespace: str = "default",
    **spec: Any,  # noqa: ANN401
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "main", "image": "example.org/image", "resources": {"limits": limits}}
            ],
            **spec,
        },
    }


SLICE = {"vgpu.dev/memory": "1Gi", "vgpu.dev/cores": "10"}


async def test_pods_of_every_dialect_are_named_and_others_are_left_alone(world: Cluster) -> None:
    async with webhooks(world), world.client(ALICE) as client:
        await install_policies(world)
        for name, (limits, annotations) in DIALECTS.items():
            item = gpu_pod(name.replace("_", "-"), limits, annotations)
            made = await client.create(PODS, item)
            env = made["spec"]["containers"][0]["env"]
            assert [each["name"] for each in env] == ["VGPU_CONTAINER_UUID"]
            assert json.loads(made["metadata"]["annotations"]["vgpu.dev/container-uuids"]) == {
                "main": env[0]["value"]
            }
            assert made["spec"]["runtimeClassName"] == "vgpu"
            assert made["spec"]["nodeSelector"] == {"vgpu.dev/node": "true"}, "class not merged"
        plain = await client.create(PODS, gpu_pod("plain", {"cpu": "1"}))
        assert "env" not in plain["spec"]["containers"][0]
        assert "runtimeClassName" not in plain["spec"]


async def test_while_no_replica_answers_pods_with_slices_wait_and_others_do_not(
    world: Cluster,
) -> None:
    async with webhooks(world):
        pass
    async with world.client(ALICE) as client:
        assert "failed calling webhook" in await refusal(client, gpu_pod("slice", SLICE))
        assert not await refusal(client, gpu_pod("plain", {"cpu": "1"}))
        assert not await refusal(client, gpu_pod("bare", {"nvidia.com/gpu": "1"}))
        changed = await client.patch(f"{PODS}/plain", {"metadata": {"labels": {"a": "b"}}})
        assert changed["metadata"]["labels"] == {"a": "b"}


async def test_before_match_conditions_namespaces_say_whether_pods_wait(world: Cluster) -> None:
    async with world.client(US) as client:
        await client.create(
            "/api/v1/namespaces",
            {"metadata": {"name": "strict", "labels": {"vgpu.dev/admission": "enforce"}}},
        )
    async with webhooks(world, match_conditions=False), world.client(ALICE) as client:
        made = await client.create(PODS, gpu_pod("slice", SLICE))
        assert made["spec"]["runtimeClassName"] == "vgpu"
        assert not await refusal(client, gpu_pod("plain", {"cpu": "1"}))
    async with world.client(ALICE) as client:
        strict = gpu_pod("slice", SLICE, namespace="strict")
        assert "failed calling webhook" in await refusal(client, strict)
        assert not await refusal(client, gpu_pod("late", {"cpu": "1"}))
    async with world.client(US) as client:
        await client.delete("/api/v1/namespaces/strict")


@pytest.mark.parametrize("by", ["webhooks", "policies"])
async def test_decisions_are_written_by_who_decides(world: Cluster, by: str) -> None:
    """Each of the two holds the same rules without the other."""
    async with world.client("tester") as us, world.client(US) as setup:
        if by == "webhooks":
            async with webhooks(world):
                await decisions(world, us)
        else:
            await setup.create("/api/v1/nodes", {"metadata": {"name": "before"}})
            await install_policies(world)
            await decisions(world, us)
            await setup.delete("/api/v1/nodes/before")


async def decisions(world: Cluster, us: KubeClient) -> None:
    async with world.client(ALICE) as alice, world.client(JOINED) as joined:
        for key, others in (("vgpu.dev/allocation", False), ("volcano.sh/vgpu-ids-new", True)):
            forged = gpu_pod("forged", {"cpu": "1"}, {key: "{}"})
            assert "is written by" in await refusal(alice, forged)
            assert bool(await refusal(joined, forged, dry_run=True)) is not others
        await alice.create(PODS, gpu_pod("plain", {"cpu": "1"}))
        for path in (f"{PODS}/plain", f"{PODS}/plain/status"):
            change = {"metadata": {"annotations": {"vgpu.dev/isolation": "enforced"}}}
            for client in (alice, joined):
                with pytest.raises(ApiError, match="written by vgpu alone"):
                    await client.patch(path, change)
            await us.patch(path, change)
            await us.patch(path, {"metadata": {"annotations": {"vgpu.dev/isolation": None}}})
            with pytest.raises(ApiError, match="by vgpu alone"):
                await alice.patch(
                    path, {"metadata": {"annotations": {"vgpu.dev/container-uuids": "{}"}}}
                )
            with pytest.raises(ApiError, match="what the pod asked for"):
                await alice.patch(path, {"metadata": {"annotations": {"gpu-fraction": "0.5"}}})
        await alice.patch(f"{PODS}/plain", {"metadata": {"annotations": {"a/b": "c"}}})
        bind = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "plain", "annotations": {"vgpu.dev/allocation": "{}"}},
            "target": {"kind": "Node", "name": "nowhere"},
        }
        for client in (alice, joined):
            with pytest.raises(ApiError, match="written by vgpu alone"):
                await client.create(f"{PODS}/plain/binding", bind)
        await us.create(f"{PODS}/plain/binding", bind)
        await repeated(world, us)
        await nodes(world, us, alice)


async def repeated(world: Cluster, us: KubeClient) -> None:
    """Volcano repeats on its Binding what the pod carries; nobody may change it there."""
    carried = {"nvidia.com/use-gputype": "A100", "a/b": "c"}
    async with world.client(ALICE) as alice, world.client(JOINED) as joined:
        pod = await alice.create(PODS, gpu_pod("repeated", {"cpu": "1"}, carried))
        written = {**carried, "volcano.sh/vgpu-ids-new": "x"}
        bind = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": "repeated",
                "uid": pod["metadata"]["uid"],
                "annotations": written,
            },
            "target": {"kind": "Node", "name": "nowhere"},
        }
        with pytest.raises(ApiError, match="is written by a scheduler"):
            await alice.create(f"{PODS}/repeated/binding", bind)
        await joined.create(f"{PODS}/repeated/binding", bind)
        bound = await us.get(f"{PODS}/repeated")
        assert bound["metadata"]["annotations"].items() >= written.items()


@pytest.mark.parametrize("by", ["webhooks", "policies"])
async def test_a_binding_in_the_scope_of_nodes_is_judged_with_and_without_a_uid(
    world: Cluster, by: str
) -> None:
    """Of a pod with a uid, the webhook alone can say whether it is ours."""
    world.admission = replace(world.admission, dialect_scope="nodes")
    selector: dict[str, Any] = {"nodeSelector": {"vgpu.dev/dialect": "hami"}}
    written: list[dict[str, Any]] = [
        {"annotations": {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,0:;"}},
        {"annotations": {"gpu-fraction": "0.9"}},
        {"labels": {"runai-gpu-group": "g"}},
    ]

    async def bind(client: KubeClient, pod: dict[str, Any], metadata: dict[str, Any]) -> str:
        name = pod["metadata"]["name"]
        source = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **metadata},
            "target": {"kind": "Node", "name": "nowhere"},
        }
        try:
            await client.create(f"{PODS}/{name}/binding", source)
        except ApiError as error:
            return str(error)
        return ""

    async def check() -> None:
        async with world.client(ALICE) as alice, world.client(JOINED) as joined:
            ours = await alice.create(PODS, gpu_pod("ours", {"cpu": "1"}, **selector))
            uid = {"uid": ours["metadata"]["uid"]}
            for each in written:
                assert "vgpu" in await bind(alice, ours, each), each
                if by == "webhooks":
                    assert "webhook" in await bind(alice, ours, {**uid, **each}), each
                theirs = await alice.create(PODS, gpu_pod("theirs", {"cpu": "1"}))
                assert "vgpu" in await bind(alice, theirs, each), each
                named = {**each, "uid": theirs["metadata"]["uid"]}
                assert await bind(alice, theirs, named) == "", each
                await alice.delete(f"{PODS}/theirs", {"gracePeriodSeconds": 0})
            assert await bind(joined, ours, {**uid, **written[0]}) == ""

    if by == "webhooks":
        async with webhooks(world):
            await check()
    else:
        await install_policies(world)
        await check()


async def nodes(world: Cluster, us: KubeClient, alice: KubeClient) -> None:
    name = "/api/v1/nodes/n1"
    inventory = {"metadata": {"annotations": {"vgpu.dev/inventory": "[]"}}}
    cordon = {"metadata": {"annotations": {"vgpu.dev/cordon": "GPU-1"}}}
    with pytest.raises(ApiError, match="vgpu alone"):
        await alice.create("/api/v1/nodes", {"metadata": {"name": "n1", **inventory["metadata"]}})
    await alice.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
    async with world.client("system:node:n1", "system:nodes") as kubelet:
        for path in (name, f"{name}/status"):
            with pytest.raises(ApiError, match="vgpu alone"):
                await alice.patch(path, inventory)
            for change in (inventory, cordon):
                with pytest.raises(ApiError, match=r"vgpu alone|people|forbidden"):
                    await kubelet.patch(path, change)
            await us.patch(path, inventory)
            await us.patch(path, {"metadata": {"annotations": {"vgpu.dev/inventory": None}}})
    await alice.patch(name, cordon)
    await us.delete(name)


async def test_the_policies_alone_let_no_pod_in_that_was_not_named(world: Cluster) -> None:
    await install_policies(world)
    async with world.client(ALICE) as client:
        for name, (limits, annotations) in DIALECTS.items():
            item = gpu_pod(name.replace("_", "-"), limits, annotations, runtimeClassName="vgpu")
            assert "was not named by vgpu" in await refusal(client, item), name
        named = gpu_pod("named", SLICE, runtimeClassName="vgpu")
        uuid = "aaaaaaaa-bbbb-4333-8444-555555555555"
        variable = {"name": "VGPU_CONTAINER_UUID", "value": uuid}
        named["spec"]["containers"][0]["env"] = [variable]
        assert not await refusal(client, named, dry_run=True)
        for change, words in (
            ({"runtimeClassName": None}, "RuntimeClass vgpu"),
            ({"nodeName": "n1"}, "no nodeName"),
        ):
            item = json.loads(json.dumps(named))
            item["spec"].update(change)
            assert words in await refusal(client, item)
        for env in (
            [variable, variable],
            [{**variable, "value": uuid.upper()}],
            [{"name": variable["name"], "value": ""}],
        ):
            item = json.loads(json.dumps(named))
            item["spec"]["containers"][0]["env"] = env
            assert "was not named by vgpu" in await refusal(client, item, dry_run=True), env
        stray = gpu_pod("stray", {"cpu": "1"})
        stray["spec"]["containers"][0]["env"] = [variable]
        assert "asks for no card and names" in await refusal(client, stray)


@pytest.mark.parametrize("by", ["webhooks", "policies"])
async def test_our_folders_are_mounted_by_our_pods_alone(world: Cluster, by: str) -> None:
    def mounting(path: str, namespace: str = "default") -> dict[str, Any]:
        volumes = [{"name": "host", "hostPath": {"path": path}}]
        return gpu_pod("mounting", {"cpu": "1"}, namespace=namespace, volumes=volumes)

    async def check() -> None:
        async with world.client(ALICE) as client:
            for path in (
                "/run/vgpu",
                "//var/./run//vgpu/x",
                "/var/lib/vgpu/agent",
                "/dev/vgpu",
                "/run/vgpu/\n",
                "/proc/1/root/run/vgpu",
            ):
                assert "belongs to vgpu" in await refusal(client, mounting(path)), path
                assert not await refusal(client, mounting(path, NAMESPACE), dry_run=True)
            for path in ("/run", "/run/vgpus", "/data"):
                assert not await refusal(client, mounting(path), dry_run=True), path

    if by == "webhooks":
        async with webhooks(world):
            await check()
    else:
        await install_policies(world)
        await check()


async def test_a_container_for_looking_in_is_judged(world: Cluster) -> None:
    def debug(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
        container = {"name": "debug", "image": "example.org/image", **fields}
        return {"spec": {"ephemeralContainers": [container]}}

    path = f"{PODS}/slice/ephemeralcontainers"
    env = [{"name": "VGPU_CONTAINER_UUID", "value": "aaaaaaaa-bbbb-4333-8444-555555555555"}]
    kind = "application/strategic-merge-patch+json"
    async with webhooks(world), world.client(ALICE) as client:
        await client.create(PODS, gpu_pod("slice", SLICE))
        with pytest.raises(ApiError, match="is privileged"):
            await client.patch(path, debug(securityContext={"privileged": True}), kind)
        with pytest.raises(ApiError, match="has no slice and carries"):
            await client.patch(path, debug(env=env), kind)
        await client.patch(path, debug(), kind)


async def test_the_certificate_is_changed_while_pods_are_created(world: Cluster) -> None:
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/vgpu-admission"
    async with webhooks(world), world.client(ALICE) as client, world.client(US) as us:
        first = (await us.get(secret))["data"]["tls.crt"]
        await us.patch(secret, {"data": {"tls.crt": "c3BvaWx0"}})
        deadline = time.monotonic() + PATIENCE_SECONDS
        number, changed = 0, False
        while not changed or number < 20:
            number += 1
            assert not await refusal(client, gpu_pod(f"slice-{number}", SLICE))
            changed = (await us.get(secret))["data"]["tls.crt"] not in (first, "c3BvaWx0")
            assert time.monotonic() < deadline, "never renewed"


async def test_a_large_pod_of_somebody_else_costs_no_more_than_an_api_server_allows(
    world: Cluster,
) -> None:
    """An expression that costs too much is a denial."""
    item = gpu_pod(
        "large",
        {"cpu": "1"},
        {f"example.org/annotation-{number}": "x" * 50 for number in range(1000)},
        volumes=[
            {"name": f"v{number}", "hostPath": {"path": "/data/./" * 20 + str(number)}}
            for number in range(100)
        ],
    )
    env = [{"name": f"VARIABLE_{number}", "value": "x"} for number in range(200)]
    item["spec"]["containers"] = [
        {**item["spec"]["containers"][0], "name": f"c{number}", "env": env} for number in range(50)
    ]
    async with webhooks(world), world.client(ALICE) as client:
        await install_policies(world)

        assert not await refusal(client, item)
        for path in (f"{PODS}/large", f"{PODS}/large/status"):
            change = {"metadata": {"annotations": {f"a/{n}": "b" for n in range(500)}}}
            await client.patch(path, change)
            await client.patch(
                path, {"metadata": {"annotations": {f"a/{n}": None for n in range(9)}}}
            )
