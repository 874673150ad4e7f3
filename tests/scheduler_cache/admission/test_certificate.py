# SPDX-License-Identifier: Apache-2.0
"""The certificate that replicas make and share: its life, and who believes it."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.admission.certificate import (
    UnusableSecretError,
    believes,
    held_of,
    made,
    service_names,
)
from scheduler_cache.admission.manifests import Site, webhook_configurations
from scheduler_cache.cluster_certificate import CertificateKeeper
from scheduler_cache.config_kubernetes import AdmissionConfig, KubernetesConfig
from scheduler_cache.https import Answer, Pem, serving
from scheduler_cache.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.admission.reviews import RULES
from tests.scheduler_cache.kube.clusters import connection_to, until

NAMES = service_names("vgpu-admission", "vgpu-system")
START = datetime(2026, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=90)
SECRETS = "/api/v1/secrets"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIG = KubernetesConfig(admission=AdmissionConfig(check_seconds=0.02, settle_seconds=0.0))


def test_what_is_made_is_read_again_from_the_secret() -> None:
    held = made(NAMES, START, LIFE)

    assert held_of(held.data()) == held
    assert "PRIVATE" not in repr(held)


@pytest.mark.parametrize(
    ("days", "reason"),
    [(0, ""), (59, ""), (61, "less than a third"), (91, "less than a third"), (-1, "a third")],
)
def test_a_new_one_is_due_before_a_third_of_the_life_is_left(days: int, reason: str) -> None:
    held = made(NAMES, START, LIFE)

    due = held.due(NAMES, START + timedelta(days=days))

    assert reason in due
    assert bool(due) is bool(reason)


def test_a_new_one_is_due_for_other_names() -> None:
    assert made(NAMES, START, LIFE).due(service_names("other", "vgpu-system"), START)


def test_who_believes_the_new_one_believes_the_one_before_and_no_older_one() -> None:
    first = made(NAMES, START, LIFE)
    second = made(NAMES, START, LIFE, first)
    third = made(NAMES, START, LIFE, second)

    assert second.authorities.endswith(first.authorities)
    assert believes(third.authorities, third)
    assert not believes(second.authorities, third)
    assert third.authorities.count(b"BEGIN") == 2
    assert believes(b"".join((third.authorities, first.authorities)), third)
    assert not believes(b"rubbish", third)
    assert not believes(b"", third)


@pytest.mark.parametrize(
    "change",
    [
        {"tls.crt": None},
        {"tls.key": "AAAA"},
        {"tls.crt": "not base64"},
        {"tls.crt": 7},
        {"ca.crt": ""},
        {"tls.key": made(NAMES, START, LIFE).data()["tls.key"]},
        {"ca.crt": made(NAMES, START, LIFE).data()["ca.crt"]},
    ],
)
def test_a_secret_that_somebody_spoilt_is_no_certificate(change: dict[str, Any]) -> None:
    data = {**made(NAMES, START, LIFE).data(), **change}

    with pytest.raises(UnusableSecretError):
        held_of({key: value for key, value in data.items() if value is not None})


async def test_it_is_what_a_tls_client_believes() -> None:
    held = made(NAMES, datetime.now(UTC), LIFE)

    async def answer(body: bytes) -> Answer:
        return Answer(body)

    pem = Pem(held.certificate, held.key)
    async with serving({"/": answer}, ["127.0.0.1:0"], lambda: pem) as (address,):
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cadata=held.authorities.decode())
        for name in NAMES:
            _, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=name
            )
            writer.close()
            await writer.wait_closed()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname="vgpu-admission"
            )


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """Yield an API server that asks webhooks, and knows nobody to believe yet."""
    async with FakeApiServer().serving() as server:
        for kind, item in zip(
            KINDS, webhook_configurations(RULES, Site(namespace="vgpu-system")), strict=True
        ):
            await server.put(f"{REGISTRATION}/{kind}", item)
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(connection_to(server.url, tmp_path)) as client:
        yield client


def secret_of(server: FakeApiServer) -> dict[str, Any]:
    return server.objects[SECRETS]["vgpu-system", "vgpu-admission"]


def bundles(server: FakeApiServer) -> set[bytes]:
    """Return every caBundle of both configurations."""
    return {
        base64.b64decode(each["clientConfig"].get("caBundle", ""))
        for kind in KINDS
        for each in server.objects[f"{REGISTRATION}/{kind}"]["", "vgpu-admission"]["webhooks"]
    }


async def test_the_first_replica_makes_it_and_tells_the_api_servers(
    server: FakeApiServer, client: KubeClient
) -> None:
    keeper = CertificateKeeper(client, CONFIG)

    await keeper.keep()

    held = held_of(secret_of(server)["data"])
    assert secret_of(server)["type"] == "kubernetes.io/tls"
    assert bundles(server) == {held.authorities}
    assert keeper.source().certificate == held.certificate
    assert keeper.ready.is_set()


async def test_replicas_that_begin_at_once_share_one(
    server: FakeApiServer, client: KubeClient
) -> None:
    keepers = [CertificateKeeper(client, CONFIG) for _ in range(4)]

    results = await asyncio.gather(*(each.keep() for each in keepers), return_exceptions=True)
    for keeper, result in zip(keepers, results, strict=True):
        if result is not None:  # two wrote into one configuration: it looks again
            await keeper.keep()

    held = held_of(secret_of(server)["data"])
    assert {each.source().certificate for each in keepers} == {held.certificate}
    assert bundles(server) == {held.authorities}


async def test_it_is_renewed_and_announced_before_it_is_used(
    server: FakeApiServer, client: KubeClient
) -> None:
    now = START
    keeper = CertificateKeeper(client, CONFIG, lambda: now)
    other = CertificateKeeper(client, CONFIG, lambda: now)
    await keeper.keep()
    await other.keep()
    first = held_of(secret_of(server)["data"])

    now = START + timedelta(days=61)
    server.fail("PATCH", f"{REGISTRATION}/{KINDS[1]}", code=500)
    with pytest.raises(Exception, match="500"):
        await keeper.keep()

    second = held_of(secret_of(server)["data"])
    assert second != first
    assert keeper.source().certificate == first.certificate, "used before all believe it"
    await keeper.keep()
    assert keeper.source().certificate == second.certificate
    assert other.source().certificate == first.certificate
    assert bundles(server) == {second.authorities}
    assert believes(second.authorities, first), "who has not changed over is not believed"
    await other.keep()
    assert other.source().certificate == second.certificate


async def test_a_lost_race_for_the_renewal_takes_the_winners(
    server: FakeApiServer, client: KubeClient
) -> None:
    now = START
    keepers = [CertificateKeeper(client, CONFIG, lambda: now) for _ in range(3)]
    await keepers[0].keep()
    now = START + timedelta(days=70)

    await asyncio.gather(*(each.keep() for each in keepers), return_exceptions=True)
    for each in keepers:
        await each.keep()

    held = held_of(secret_of(server)["data"])
    assert {each.source().certificate for each in keepers} == {held.certificate}


async def test_a_spoilt_secret_is_made_anew_and_its_metadata_stay(
    server: FakeApiServer, client: KubeClient
) -> None:
    await server.put(
        SECRETS,
        {
            "metadata": {
                "name": "vgpu-admission",
                "namespace": "vgpu-system",
                "labels": {"a": "b"},
            },
            "type": "Opaque",
            "data": {"tls.crt": "AAAA"},
        },
    )

    await CertificateKeeper(client, CONFIG).keep()

    secret = secret_of(server)
    assert held_of(secret["data"])
    assert secret["metadata"]["labels"] == {"a": "b"}
    assert secret["type"] == "Opaque", "the type of a Secret cannot change"


async def test_a_secret_that_is_spoilt_later_costs_nobody_a_call(
    server: FakeApiServer, client: KubeClient
) -> None:
    keeper = CertificateKeeper(client, CONFIG)
    await keeper.keep()
    first = held_of(secret_of(server)["data"])
    await server.put(SECRETS, {**secret_of(server), "data": {"tls.crt": "AAAA"}})

    await keeper.keep()

    (bundle,) = bundles(server)
    assert believes(bundle, held_of(secret_of(server)["data"]))
    assert believes(bundle, first), "who has not changed over is not believed"


async def test_a_configuration_that_was_reset_is_written_again(
    server: FakeApiServer, client: KubeClient
) -> None:
    keeper = CertificateKeeper(client, CONFIG)
    running = asyncio.create_task(keeper.run())
    await asyncio.wait_for(keeper.ready.wait(), 30)
    held = held_of(secret_of(server)["data"])

    for kind, item in zip(
        KINDS, webhook_configurations(RULES, Site(namespace="vgpu-system")), strict=True
    ):
        await server.put(f"{REGISTRATION}/{kind}", item)

    await until(lambda: bundles(server) == {held.authorities}, "written again")
    running.cancel()


async def test_it_waits_for_an_api_server_that_does_not_answer(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.fail("GET", "/api/v1/namespaces/vgpu-system/secrets", times=3, code=503)
    keeper = CertificateKeeper(client, CONFIG)
    with pytest.raises(OSError, match="no certificate yet"):
        keeper.source()

    running = asyncio.create_task(keeper.run())

    await asyncio.wait_for(keeper.ready.wait(), 30)
    running.cancel()


async def test_without_configurations_it_serves_all_the_same(
    server: FakeApiServer, client: KubeClient
) -> None:
    missing = replace(CONFIG, admission=replace(CONFIG.admission, webhooks="nowhere"))
    keeper = CertificateKeeper(client, missing)

    await keeper.keep()

    assert keeper.ready.is_set()
