# SPDX-License-Identifier: Apache-2.0
"""A Service's address: what kube-proxy does on a node, for servers that are processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

_CONNECT_SECONDS = 5.0


class Service:
    """A port of 127.0.0.1 behind which are the ports that `endpoints` says, the first that answers.

    As with a real one, a connection stays with its server whatever the Service selects later.
    """

    def __init__(self, endpoints: Callable[[], Sequence[int]]) -> None:
        """`endpoints` is asked in a thread for each new connection."""
        self._endpoints = endpoints
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(20)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """End it with its connections."""

        async def end() -> None:
            self._server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in await asyncio.to_thread(self._endpoints):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    inner, outer = await asyncio.open_connection("127.0.0.1", port)
            except (OSError, TimeoutError):
                continue
            try:
                # What ends on one side ends on the other: no caller waits for a dead server.
                ways = [
                    asyncio.create_task(_copy(reader, outer)),
                    asyncio.create_task(_copy(inner, writer)),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                outer.close()
            return


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
