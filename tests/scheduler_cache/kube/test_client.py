# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest

from scheduler_cache.kube.client import Backoff, KubeClient
from scheduler_cache.kube.connection import InClusterConnection, KubeconfigConnection
from scheduler_cache.kube.errors import (
    ApiError,
    ConflictError,
    KubeConfigError,
    MissingError,
    UnreachableError,
)
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import PODS, connection_to, pod, until, write_kubeconfig

DEFAULT_PODS = "/api/v1/namespaces/default/pods"


async def test_an_object_is_made_read_changed_and_deleted(
    server: FakeApiServer, client: KubeClient
) -> None:
    made = await client.create(DEFAULT_PODS, pod("a"))
    patched = await client.patch(f"{DEFAULT_PODS}/a", {"metadata": {"labels": {"x": "1"}}})
    replaced = await client.replace(f"{DEFAULT_PODS}/a", {**patched, "spec": {"nodeName": "n1"}})

    assert made["metadata"]["uid"] == replaced["metadata"]["uid"]
    assert await client.get(f"{DEFAULT_PODS}/a") == replaced
    assert replaced["metadata"]["labels"] == {"x": "1"}
    await client.delete(f"{DEFAULT_PODS}/a")
    with pytest.raises(MissingError, match=r"GET /api/v1/namespaces/default/pods/a: 404 NotFound"):
        await client.get(f"{DEFAULT_PODS}/a")


async def test_a_write_over_somebody_elses_is_a_conflict(
    server: FakeApiServer, client: KubeClient
) -> None:
    old = await client.create(DEFAULT_PODS, pod("a"))
    await client.patch(f"{DEFAULT_PODS}/a", {"metadata": {"labels": {"x": "1"}}})

    with pytest.raises(ConflictError, match="409 Conflict: the object has been modified"):
        await client.replace(f"{DEFAULT_PODS}/a", old)
    with pytest.raises(ConflictError, match="409 AlreadyExists"):
        await client.create(DEFAULT_PODS, pod("a"))


async def test_a_connection_that_breaks_is_unreachable(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.fail("POST", DEFAULT_PODS)

    with pytest.raises(UnreachableError, match=f"POST {DEFAULT_PODS} at {server.url}: "):
        await client.create(DEFAULT_PODS, pod("a"))


async def test_a_server_that_says_nothing_is_unreachable(
    server: FakeApiServer, tmp_path: Path
) -> None:
    server.bookmark_seconds = 60
    connection = connection_to(server.url, tmp_path)
    async with KubeClient(connection, watch_silence_seconds=0.2) as client:
        with pytest.raises(UnreachableError, match=r"imeout"):
            [lines async for lines in client.watch(PODS, {"timeoutSeconds": "60"})]


async def test_the_refusal_of_a_proxy_is_told_as_it_is(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.fail("GET", PODS, code=503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})

    with pytest.raises(ApiError, match="503 Injected: as the test wants it") as caught:
        await client.read(PODS)

    assert caught.value.retry_after_seconds == 0


async def test_a_token_that_is_no_longer_taken_is_read_again(
    server: FakeApiServer, tmp_path: Path
) -> None:
    server.accepted_tokens = {"first"}
    async with KubeClient(connection_to(server.url, tmp_path, token="first")) as client:
        await client.read(PODS)
        server.accepted_tokens = {"second"}
        connection_to(server.url, tmp_path, token="second")

        await asyncio.gather(*(client.read(PODS) for _ in range(5)))

        server.accepted_tokens = {"third"}
        with pytest.raises(ApiError, match="401 Unauthorized"):
            await client.read(PODS)


def plugin(folder: Path, api_version: str) -> Path:
    """Write an exec plugin that gives another token every time: token-1, token-2, …"""
    path = folder / "plugin"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        f"info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"assert info['apiVersion'] == {api_version!r} and sys.argv[1:] == ['get', 'token']\n"
        f"count = pathlib.Path({str(folder / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "print(json.dumps({'kind': 'ExecCredential', 'apiVersion': info['apiVersion'],\n"
        "    'status': {'token': os.environ['PREFIX'] + str(number)}}))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_an_exec_plugin_is_run_again_when_its_token_is_refused(
    server: FakeApiServer, tmp_path: Path, version: str
) -> None:
    api_version = f"client.authentication.k8s.io/{version}"
    user = {
        "exec": {
            "apiVersion": api_version,
            "command": str(plugin(tmp_path, api_version)),
            "args": ["get", "token"],
            "env": [{"name": "PREFIX", "value": "token-"}],
            "interactiveMode": "Never",
        }
    }
    kubeconfig = write_kubeconfig(tmp_path / "config", server.url, user)
    server.accepted_tokens = {"token-1"}
    async with KubeClient(KubeconfigConnection(kubeconfig)) as client:
        await client.read(PODS)
        await client.read(PODS)
        server.accepted_tokens = {"token-2"}
        await client.read(PODS)


async def test_a_plugin_that_fails_is_named(server: FakeApiServer, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}}
    kubeconfig = write_kubeconfig(tmp_path / "config", server.url, user)

    with pytest.raises(KubeConfigError, match=r"config: exec: process returned 1"):
        async with KubeClient(KubeconfigConnection(kubeconfig)):
            pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file"),
        ("", "malformed|Invalid|NoneType"),
        ("{]", "expected|pars"),
        ('{"clusters": []}', "Expected key current-context"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)

    with pytest.raises(KubeConfigError, match=words) as caught:
        await KubeconfigConnection(path).load()

    assert str(path) in str(caught.value)


async def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")
    path = write_kubeconfig(
        tmp_path / "config", "https://127.0.0.1:1", {}, **{"certificate-authority": "ca"}
    )

    with pytest.raises(KubeConfigError, match=r"certificates for https://127.0.0.1:1"):
        async with KubeClient(KubeconfigConnection(path)):
            pass


async def test_a_service_accounts_token_rotates(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_text("unused")
    connection = InClusterConnection(tmp_path)
    await connection.load()

    assert connection.base_url == f"https://{host}:{port}"
    assert await connection.headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    await connection.load()
    assert await connection.headers() == {"Authorization": "Bearer second"}


async def test_outside_a_cluster_there_is_no_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(KubeConfigError, match="not inside a cluster"):
        await InClusterConnection(tmp_path).load()


async def test_a_watch_yields_what_has_come_at_once(
    server: FakeApiServer, client: KubeClient
) -> None:
    seen: list[str] = []

    async def follow() -> None:
        async for lines in client.watch(PODS, {"resourceVersion": str(server.version)}):
            seen.extend(json.loads(line)["object"]["metadata"]["name"] for line in lines)

    task = asyncio.create_task(follow())
    await until(lambda: server.count("WATCH", PODS) == 1)
    await server.put(PODS, pod("a"))
    await server.put(PODS, pod("b" * 300_000))

    await until(lambda: [name[0] for name in seen] == ["a", "b"])

    task.cancel()


def test_pauses_double_within_their_range() -> None:
    longest = Backoff(1.0, 8.0, uniform=lambda low, high: high)
    shortest = Backoff(1.0, 8.0, uniform=lambda low, high: low)

    assert [longest.pause() for _ in range(5)] == [1, 2, 4, 8, 8]
    assert [shortest.pause() for _ in range(5)] == [0.5, 1, 2, 4, 4]
    assert longest.pause(at_least=20) == 20
    longest.reset()
    assert longest.pause() == 1
