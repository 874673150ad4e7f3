# SPDX-License-Identifier: Apache-2.0
"""Answers POSTs over HTTPS for those who ask from outside: the API server and kube-scheduler.

Whoever listens without TLS does so on loopback alone. A certificate that changes is used by the
next handshake; connections that are open go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from scheduler_cache.errors import ListenError
from scheduler_cache.listen import checked_address

logger = logging.getLogger(__name__)

# The API server takes objects of 3 MiB, and a review holds the object twice.
_BODY_BYTES: Final = 8 << 20
# How long a caller may take for its body: a hundred times what a busy network needs.
_BODY_SECONDS: Final = 10.0
_HANDSHAKE_SECONDS: Final = 10.0
# Go's clients keep an idle connection for 90 s. Who closes first loses no request: they do.
_IDLE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Pem:
    """What a server proves itself with, and whom it believes."""

    certificate: bytes
    """Its own certificate, then those that lead to the CA."""
    key: bytes = field(repr=False)
    client_ca: bytes = b""
    """Who signs the certificates of callers. Empty: nobody is asked for one."""


PemSource = Callable[[], Pem]
"""Asked before every handshake. Raises OSError while it cannot tell; the last answer then holds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `body` is JSON unless the status says that something is wrong."""

    body: bytes
    status: int = 200


Handler = Callable[[bytes], Awaitable[Answer]]
"""Takes the body of a POST. What it raises is the caller's 500 and a line in the log."""


def pem_files(certificate: Path, key: Path, client_ca: Path | None) -> PemSource:
    """Return a source that reads PEM files, as a Secret that is mounted holds them."""

    def read() -> Pem:
        return Pem(
            certificate.read_bytes(),
            key.read_bytes(),
            client_ca.read_bytes() if client_ca is not None else b"",
        )

    return read


@asynccontextmanager
async def serving(
    handlers: Mapping[str, Handler],
    listen: Sequence[str],
    source: PemSource | None,
    *,
    client_names: Sequence[str] = (),
    body_bytes: int = _BODY_BYTES,
    body_seconds: float = _BODY_SECONDS,
    drain_seconds: float = 2.0,
) -> AsyncIterator[list[str]]:
    """Answer POSTs at the paths of `handlers` inside the block; yield the addresses with true
    ports.

    `listen` is HOST:PORT. `source` None: without TLS, which is for loopback alone.
    `client_names`: the common names that a caller's certificate may carry; empty: any that the CA
    signed. At the end, calls under way get `drain_seconds`. Raises ListenError.
    """
    if source is None:
        listen = [_loopback(address) for address in listen]
    context = None if source is None else server_context(source)
    names = frozenset(client_names)
    app = web.Application(client_max_size=body_bytes)
    app.add_routes(
        [web.post(path, _endpoint(each, names, body_seconds)) for path, each in handlers.items()]
    )
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=_IDLE_SECONDS,
        shutdown_timeout=drain_seconds,
        # Nobody who calls compresses, and a small body that becomes a large one is an attack.
        auto_decompress=False,
    )
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        addresses = []
        for address in listen:
            server = await _bound(runner, address, context)
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            addresses.append(f"{address.rpartition(':')[0]}:{port}")
        yield addresses


def server_context(source: PemSource) -> ssl.SSLContext:
    """Return a TLS context that follows `source`. Raises ListenError when it cannot be used now."""
    try:
        last = source()
        current = _context(last)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ListenError(f"TLS: the certificate, its key or the CA of callers: {error}") from error

    def renew(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """Give the handshake that begins what the source says now."""
        nonlocal last, current
        try:
            now = source()
            if now != last:
                if bool(now.client_ca) != bool(last.client_ca):
                    raise ValueError("whether callers need a certificate cannot change")
                current = _context(now)
                last = now
                logger.info("the certificate has changed")
        except (OSError, ssl.SSLError, ValueError) as error:
            # In the middle of a rotation; the old one goes on working.
            logger.warning("the certificate cannot be read anew", extra={"reason": str(error)})
        connection.context = current

    front = _context(last)
    # Called for every ClientHello, also for one that names no server.
    front.sni_callback = renew
    return front


def _context(pem: Pem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A session that is taken up again would skip the check of the caller's certificate.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    # OpenSSL takes a certificate from a file only; this one is in memory and has no name.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem.certificate.rstrip() + b"\n" + pem.key)
        file.flush()
        # A key with a password must not ask for it on a terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    if pem.client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pem.client_ca.decode())
    return context


def _endpoint(
    handler: Handler, names: frozenset[str], body_seconds: float
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        if names and not names & _common_names(request):
            return _refused(403, "the caller's certificate has none of the names that may call")
        try:
            async with asyncio.timeout(body_seconds):
                body = await request.read()
        except TimeoutError:
            return _refused(408, f"the body did not come within {body_seconds:g} s")
        try:
            answered = await handler(body)
        except Exception:  # one request must not end the others'
            logger.exception("a request failed", extra={"path": request.path})
            return _refused(500, "the request failed; the log of the scheduler cache says why")
        if answered.status != 200:
            return web.Response(body=answered.body, status=answered.status)
        return web.Response(body=answered.body, content_type="application/json")

    return answer


def _refused(status: int, words: str) -> web.Response:
    return web.Response(text=f"{words}\n", status=status)


def _common_names(request: web.Request) -> set[str]:
    """Return the common names of the caller's certificate, which the handshake has verified."""
    certificate = request.get_extra_info("peercert") or {}
    return {
        value
        for part in certificate.get("subject", ())
        for name, value in part
        if name == "commonName"
    }


def _loopback(address: str) -> str:
    if address.startswith("unix:"):
        raise ListenError(f"{address}: HTTP is served at HOST:PORT")
    return checked_address(address)


async def _bound(
    runner: web.AppRunner, address: str, context: ssl.SSLContext | None
) -> asyncio.Server:
    host, _, port = address.rpartition(":")
    server = runner.server
    assert server is not None, "the runner is set up"
    try:
        return await asyncio.get_running_loop().create_server(
            server,
            host.strip("[]") or None,
            int(port),
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HANDSHAKE_SECONDS,
            reuse_address=True,
        )
    except (OSError, ValueError, OverflowError) as error:
        raise ListenError(f"{address}: cannot be listened on: {error}") from error
