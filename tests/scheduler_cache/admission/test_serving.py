# SPDX-License-Identifier: Apache-2.0
"""The webhooks as an API server calls them: over HTTPS, believing whom it was told of."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from scheduler_cache.admission.manifests import Site as Place
from scheduler_cache.admission.manifests import webhook_configurations
from scheduler_cache.cluster_admission import Admission
from scheduler_cache.cluster_server import Running, running
from scheduler_cache.config_kubernetes import AdmissionConfig, KubernetesConfig
from scheduler_cache.errors import ListenError
from scheduler_cache.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.admission.reviews import RULES, body, new_pod
from tests.scheduler_cache.kube.clusters import QUICK, connection_to
from tests.scheduler_cache.kube.replicas import Site
from tests.scheduler_cache.kube_objects import container, container_of

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
LISTENING = AdmissionConfig(listen=("127.0.0.1:0",), check_seconds=0.05, settle_seconds=0.0)


@pytest.fixture
async def client(site: Site, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(connection_to(site.server.url, tmp_path)) as client:
        yield client


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with FakeApiServer().serving() as server:
        for kind, item in zip(
            KINDS, webhook_configurations(RULES, Place(namespace="vgpu-system")), strict=True
        ):
            await server.put(f"{REGISTRATION}/{kind}", item)
        yield Site(server, tmp_path)


class Caller:
    """An API server that calls the webhooks of one replica."""

    def __init__(self, session: aiohttp.ClientSession, url: str, server: FakeApiServer) -> None:
        self._session = session
        self._url = url
        self._server = server

    async def post(self, path: str, data: bytes) -> tuple[int, bytes]:
        async with self._session.post(
            f"{self._url}{path}",
            data=data,
            ssl=self._context(),
            server_hostname="vgpu-admission.vgpu-system.svc",
        ) as response:
            return response.status, await response.read()

    async def ask(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self.post(path, json.dumps(review).encode())
        assert status == 200, answer
        found = json.loads(answer)
        assert (found["apiVersion"], found["kind"]) == (
            "admission.k8s.io/v1",
            "AdmissionReview",
        )
        assert found["response"]["uid"] == review["request"]["uid"]
        response: dict[str, Any] = found["response"]
        return response

    def _context(self) -> ssl.SSLContext:
        """Believe whom the webhook configuration names, as an API server does."""
        configuration = self._server.objects[f"{REGISTRATION}/{KINDS[0]}"]["", "vgpu-admission"]
        bundle = base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])
        return ssl.create_default_context(cadata=bundle.decode())


@asynccontextmanager
async def calling(site: Site, replica: Running) -> AsyncIterator[Caller]:
    (address,) = await asyncio.wait_for(asyncio.shield(replica.admission.addresses), 60)
    async with aiohttp.ClientSession() as session:
        yield Caller(session, f"https://{address}", site.server)


async def test_a_replica_answers_reviews_and_counts_them(site: Site) -> None:
    slice_ = new_pod(container(memory="1Gi", cores="10"))
    async with site.replica(admission=LISTENING) as replica, calling(site, replica) as caller:
        patched = await caller.ask("/mutate", body(slice_))
        allowed = await caller.ask("/mutate", body(new_pod(container_of("main", {}))))
        denied = await caller.ask("/validate", body(slice_))
        unreadable = await caller.post("/mutate", b"{}")
        text = replica.metrics.text().decode()

    assert patched["allowed"] is True
    assert patched["patchType"] == "JSONPatch"
    paths = [op["path"] for op in json.loads(base64.b64decode(patched["patch"]))]
    assert paths == [
        "/spec/containers/0/env",
        "/metadata/annotations",
        "/spec/runtimeClassName",
    ]
    assert allowed == {"uid": allowed["uid"], "allowed": True}
    assert denied["allowed"] is False
    assert denied["status"]["code"] == 403
    assert "the webhook that gives it was not asked" in denied["status"]["message"]
    assert unreadable[0] == 400
    for webhook, outcome in (
        ("mutate", "patched"),
        ("mutate", "allowed"),
        ("validate", "denied"),
        ("mutate", "unreadable"),
    ):
        line = f'vgpu_admission_reviews_total{{outcome="{outcome}",webhook="{webhook}"}} 1.0'
        assert line in text
    assert 'vgpu_admission_seconds_count{webhook="mutate"} 2.0' in text


async def test_a_binding_is_compared_with_its_pod(site: Site) -> None:
    """Volcano repeats the pod's annotations on its Binding."""
    carried = {"vgpu.dev/container-uuids": "{}", "vgpu.dev/use-model": "A100"}
    pod = new_pod(container(memory="1Gi"), annotations=carried)
    pod["metadata"] |= {"name": "p", "uid": "uid-1"}
    await site.server.put("/api/v1/pods", pod)

    def binding(name: str = "p", **changes: str) -> dict[str, Any]:
        metadata = {"name": name, "uid": "uid-1", "annotations": {**carried, **changes}}
        target = {"kind": "Node", "name": "n1"}
        return body(
            {"kind": "Binding", "metadata": metadata, "target": target},
            resource={"group": "", "version": "v1", "resource": "pods"},
            subResource="binding",
        )

    async with site.replica(admission=LISTENING) as replica, calling(site, replica) as caller:
        same = await caller.ask("/validate", binding())
        other = await caller.ask("/validate", binding(**{"vgpu.dev/use-model": "H200"}))
        lost = await caller.ask("/validate", binding(name="gone/../p"))

    assert same["allowed"] is True, same
    assert "would change what the pod asked for" in other["status"]["message"]
    assert "the pod of the Binding was not read" in lost["status"]["message"]
    assert "bind it again" in lost["status"]["message"]


async def test_a_dry_run_is_answered_and_changes_nothing(site: Site) -> None:
    async with site.replica(admission=LISTENING) as replica, calling(site, replica) as caller:
        before = len(site.server.requests)
        answer = await caller.ask("/mutate", body(new_pod(container(memory="1Gi")), dryRun=True))
        written = [
            each
            for each in site.server.requests[before:]
            if each[0] != "GET" and "/leases/" not in each[1]
        ]

    assert answer["patchType"] == "JSONPatch"
    assert written == []


async def test_reviews_are_answered_before_everything_is_known(site: Site) -> None:
    hold = site.server.hold("GET", "/api/v1/nodes")
    async with (
        site.replica(admission=LISTENING, synced=False) as replica,
        calling(site, replica) as caller,
    ):
        answer = await caller.ask("/mutate", body(new_pod(container(memory="1Gi"))))
        assert not replica.feed.synced
        hold.set()

    assert answer["allowed"] is True


async def test_a_certificate_of_somebody_else_is_served_as_it_is(site: Site) -> None:
    files = site.authority.issue_server("vgpu-admission.vgpu-system.svc", file="webhook")
    config = AdmissionConfig(
        listen=("127.0.0.1:0",),
        certificate=str(files.certificate),
        key=str(files.key),
        client_ca=str(site.authority.certificate),
        client_names=("system:kube-apiserver",),
    )
    caller = site.authority.issue("system:kube-apiserver")
    context = ssl.create_default_context(cafile=str(site.authority.certificate))
    context.load_cert_chain(caller.certificate, caller.key)

    async with site.replica(admission=config) as replica:
        (address,) = await asyncio.wait_for(asyncio.shield(replica.admission.addresses), 60)
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://{address}/mutate",
                json=body(new_pod(container(memory="1Gi"))),
                ssl=context,
            ) as response,
        ):
            assert response.status == 200
        assert ("vgpu-system", "vgpu-admission") not in site.server.objects.get(
            "/api/v1/secrets", {}
        ), "a Secret was made beside the files"


async def test_a_replica_that_stops_answers_until_others_have_heard_of_it(site: Site) -> None:
    review = body(new_pod(container(memory="1Gi")))
    config = replace(site.config(admission=LISTENING), drain_seconds=3.0)
    stack = AsyncExitStack()
    replica = await stack.enter_async_context(running(config, timing=QUICK))
    async with calling(site, replica) as caller:
        assert (await caller.ask("/mutate", review))["allowed"] is True
        began = time.monotonic()
        leaving = asyncio.create_task(stack.aclose())
        await asyncio.sleep(0)

        assert (await caller.ask("/mutate", review))["allowed"] is True
        assert not leaving.done()
        await leaving
        assert time.monotonic() - began >= config.drain_seconds
        with pytest.raises(aiohttp.ClientConnectorError):
            await caller.ask("/mutate", review)


async def test_without_an_address_no_webhook_is_served(site: Site) -> None:
    async with site.replica() as replica:
        assert list(await replica.admission.addresses) == []
        assert site.server.objects.get("/api/v1/secrets", {}) == {}


async def test_an_address_that_is_taken_ends_the_webhooks_and_says_so(
    site: Site, client: KubeClient
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = KubernetesConfig(admission=replace(LISTENING, listen=(address,)))
        admission = Admission(client, config, RULES, CollectorRegistry())

        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(admission.run(), 60)

    (error,) = caught.value.exceptions
    assert isinstance(error, ListenError)
    assert address in str(error)
