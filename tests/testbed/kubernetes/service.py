# SPDX-License-Identifier: Apache-2.0
"""Services whose pods are processes of this host: what kube-proxy does on a node."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_CONNECT_SECONDS = 5.0

Endpoints = Callable[[], Sequence[int]]
"""Ports of 127.0.0.1, asked in a thread for each new connection."""


class Services:
    """Addresses of Services, added to the loopback for as long as this is open.

    Each connection goes to the first of its endpoints that answers, and stays there whatever the
    Service selects later, as with a real one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._addresses: set[str] = set()

    def add(self, address: str, port: int, endpoints: Endpoints) -> None:
        """Listen on an address that no host has, such as a Service's `clusterIP`."""
        if address not in self._addresses:
            _ip("add", address)
            self._addresses.add(address)
        self._servers.append(self._run(self._listen(address, port, endpoints)))

    def close(self) -> None:
        """End all connections and take the addresses off."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for address in self._addresses:
            _ip("delete", address)

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listen(self, address: str, port: int, endpoints: Endpoints) -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                with suppress(OSError, asyncio.CancelledError):
                    await _serve(reader, writer, endpoints)
            finally:
                self._connections.discard(task)
                writer.close()

        return await asyncio.start_server(accepted, address, port)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoints: Endpoints
) -> None:
    for port in await asyncio.to_thread(endpoints):
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                inner, outer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, TimeoutError):
            continue
        ways = [
            asyncio.create_task(_copy(reader, outer)),
            asyncio.create_task(_copy(inner, writer)),
        ]
        try:
            # What ends on one side ends on the other: no caller waits for a dead server.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            outer.close()
        return


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


def _ip(verb: str, address: str) -> None:
    subprocess.run(
        ["ip", "address", verb, f"{address}/32", "dev", "lo"], check=True, capture_output=True
    )
