# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from scheduler_cache.errors import ListenError
from scheduler_cache.https import Answer, Pem, pem_files, serving
from tests.testbed.certificates import CertificateAuthority, Credentials

CALLER = "system:kube-apiserver"


async def echo(body: bytes) -> Answer:
    return Answer(body)


async def broken(body: bytes) -> Answer:
    raise RuntimeError("a secret of the code")


HANDLERS = {"/echo": echo, "/broken": broken}


class Site:
    """An authority, a server's files, and a server that follows them."""

    def __init__(self, directory: Path) -> None:
        self.authority = CertificateAuthority(directory / "ca")
        self.files = self.authority.issue_server(file="server")
        self.source = pem_files(self.files.certificate, self.files.key, self.authority.certificate)
        self.caller = self.authority.issue(CALLER)
        self.trusted = self.authority.certificate.read_bytes()

    @asynccontextmanager
    async def client(self, proof: Credentials | None) -> AsyncIterator[aiohttp.ClientSession]:
        context = ssl.create_default_context(cadata=self.trusted.decode())
        if proof is not None:
            context.load_cert_chain(proof.certificate, proof.key)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session

    def connection(self, url: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[int]]]:
        return connection(url, self.caller, self.trusted)

    @asynccontextmanager
    async def server(self, names: Sequence[str] = (), **options: float) -> AsyncIterator[str]:
        async with serving(
            HANDLERS,
            ["127.0.0.1:0"],
            self.source,
            client_names=names,
            **options,  # type: ignore[arg-type]  # the numbers that serving takes
        ) as (address,):
            yield f"https://{address}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@asynccontextmanager
async def connection(
    url: str, proof: Credentials, trusted: bytes
) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Hold one connection; each call asks on it and returns the serial number of its server."""
    context = ssl.create_default_context(cadata=trusted.decode())
    context.load_cert_chain(proof.certificate, proof.key)
    host, _, port = url.removeprefix("https://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)

    async def ask() -> int:
        writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(2) == b"{}"
        return int(writer.get_extra_info("peercert")["serialNumber"], 16)

    try:
        yield ask
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_a_caller_with_a_certificate_of_the_ca_is_answered(site: Site) -> None:
    async with (
        site.server() as url,
        site.client(site.caller) as session,
        session.post(f"{url}/echo", data=b'{"a":1}') as response,
    ):
        assert response.status == 200
        assert response.content_type == "application/json"
        assert await response.read() == b'{"a":1}'


async def test_a_caller_without_a_certificate_is_turned_away(site: Site) -> None:
    async with site.server() as url, site.client(None) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{url}/echo", data=b"{}")


async def test_a_certificate_of_another_ca_is_turned_away(site: Site, tmp_path: Path) -> None:
    stranger = CertificateAuthority(tmp_path / "other").issue(CALLER)

    async with site.server() as url, site.client(stranger) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{url}/echo", data=b"{}")


async def test_only_the_names_that_may_call_are_answered(site: Site) -> None:
    kubelet = site.authority.issue_node("node-1")

    async with (
        site.server([CALLER]) as url,
        site.client(site.caller) as ours,
        site.client(kubelet) as other,
    ):
        async with ours.post(f"{url}/echo", data=b"{}") as response:
            assert response.status == 200
        async with other.post(f"{url}/echo", data=b"{}") as response:
            assert response.status == 403
            assert "none of the names" in await response.text()


async def test_without_a_ca_of_callers_nobody_is_asked_for_a_certificate(site: Site) -> None:
    source = pem_files(site.files.certificate, site.files.key, None)

    async with (
        serving(HANDLERS, ["127.0.0.1:0"], source) as (address,),
        site.client(None) as session,
        session.post(f"https://{address}/echo", data=b"{}") as response,
    ):
        assert response.status == 200


async def test_a_new_certificate_serves_the_next_handshake_and_open_connections_go_on(
    site: Site,
) -> None:
    async with site.server() as url, site.connection(url) as early:
        before = await early()
        site.authority.issue_server(file="server")
        async with site.connection(url) as late:
            after = await late()

        assert after != before
        assert await early() == before, "the open connection was dropped"


async def test_a_new_ca_of_callers_replaces_the_old_one(site: Site, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other")
    stranger = other.issue(CALLER)
    trusted = site.authority.certificate.read_bytes()

    async with site.server() as url, site.connection(url) as early:
        await early()
        site.authority.certificate.write_bytes(other.certificate.read_bytes())

        async with connection(url, stranger, trusted) as late:
            assert await late()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with connection(url, site.caller, trusted) as refused:
                await refused()
        assert await early()


@pytest.mark.parametrize("content", ["", "half of a cert"])
async def test_files_in_the_middle_of_a_rotation_leave_the_old_certificate(
    site: Site, content: str
) -> None:
    async with site.server() as url, site.connection(url) as early:
        before = await early()
        site.files.certificate.write_text(content)

        async with site.connection(url) as late:
            assert await late() == before


async def test_a_ca_of_callers_that_vanishes_lets_nobody_in_without_a_certificate(
    site: Site,
) -> None:
    async with site.server() as url, site.client(None) as stranger:
        site.authority.certificate.write_text("")

        with pytest.raises(aiohttp.ClientError):
            await stranger.post(f"{url}/echo", data=b"{}")


async def test_a_body_over_the_limit_is_refused(site: Site) -> None:
    async with (
        site.server(body_bytes=1000) as url,
        site.client(site.caller) as session,
        session.post(f"{url}/echo", data=b"x" * 1001) as response,
    ):
        assert response.status == 413


async def test_a_compressed_body_is_not_blown_up(site: Site) -> None:
    small = gzip.compress(bytes(1 << 20))

    async with site.server() as url, site.client(site.caller) as client:
        headers = {"Content-Encoding": "gzip"}
        async with client.post(f"{url}/echo", data=small, headers=headers) as answer:
            assert await answer.read() == small


async def test_a_body_that_does_not_come_ends_in_408(site: Site) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with (
        site.server(body_seconds=0.2) as url,
        site.client(site.caller) as session,
        session.post(f"{url}/echo", data=slow()) as response,
    ):
        assert response.status == 408


async def test_a_handler_that_fails_says_nothing_of_why(site: Site) -> None:
    async with (
        site.server() as url,
        site.client(site.caller) as session,
        session.post(f"{url}/broken", data=b"{}") as response,
    ):
        assert response.status == 500
        assert "secret" not in await response.text()


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_only_posts_are_answered(site: Site, method: str) -> None:
    async with (
        site.server() as url,
        site.client(site.caller) as session,
        session.request(method, f"{url}/echo") as response,
    ):
        assert response.status == 405


async def test_plain_http_is_served_on_loopback() -> None:
    async with (
        serving(HANDLERS, ["127.0.0.1:0"], None) as (address,),
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/echo", data=b"{}") as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "unix:/run/x.sock"])
async def test_plain_http_is_refused_elsewhere(address: str) -> None:
    with pytest.raises(ListenError):
        async with serving(HANDLERS, [address], None):
            pass


async def test_an_address_that_is_taken_is_named(site: Site) -> None:
    async with site.server() as url:
        taken = url.removeprefix("https://")
        with pytest.raises(ListenError, match=f"{taken}: cannot be listened on"):
            async with serving(HANDLERS, [taken], site.source):
                pass


async def test_a_certificate_that_cannot_be_read_at_the_start_is_an_error(site: Site) -> None:
    site.files.key.write_text("no key")

    with pytest.raises(ListenError, match="TLS"):
        async with site.server():
            pass


async def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(Pem(b"certificate", b"secret"))
