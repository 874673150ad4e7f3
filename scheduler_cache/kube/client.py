# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server: bytes in, bytes out, errors in our own words."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from scheduler_cache.kube.connection import Connection
from scheduler_cache.kube.errors import ApiError, UnreachableError, api_error

Params = Mapping[str, str]
Json = dict[str, Any]

MERGE_PATCH: Final = "application/merge-patch+json"

# The server sends a bookmark about once a minute; silence for twice that is a dead connection.
_WATCH_SILENCE_SECONDS: Final = 130.0


class KubeClient:
    """One pool of connections to one API server. Use as an async context manager."""

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str = "vgpu-scheduler-cache",
        request_seconds: float = 30.0,
        watch_silence_seconds: float = _WATCH_SILENCE_SECONDS,
    ) -> None:
        self._connection = connection
        self._user_agent = user_agent
        self._request_timeout = aiohttp.ClientTimeout(total=request_seconds)
        self._watch_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=request_seconds, sock_read=watch_silence_seconds
        )
        self._session: aiohttp.ClientSession | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._loads = 0
        self._loading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._load(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def read(self, path: str, params: Params | None = None) -> bytes:
        """GET and return the body. Raises KubeError."""
        return await self._call("GET", path, params=params)

    async def get(self, path: str, params: Params | None = None) -> Json:
        """GET and return the object. Raises KubeError."""
        return _object(await self.read(path, params))

    async def create(self, path: str, body: object) -> Json:
        """POST an object and return what became of it. Raises KubeError."""
        return _object(await self._call("POST", path, body=body))

    async def replace(self, path: str, body: object) -> Json:
        """PUT an object; ConflictError when its resourceVersion is not the present one."""
        return _object(await self._call("PUT", path, body=body))

    async def patch(self, path: str, body: object, kind: str = MERGE_PATCH) -> Json:
        """PATCH an object and return the whole of it. Raises KubeError."""
        return _object(await self._call("PATCH", path, body=body, content_type=kind))

    async def delete(self, path: str, body: object = None) -> Json:
        """DELETE an object. Raises KubeError."""
        return _object(await self._call("DELETE", path, body=body))

    async def watch(self, path: str, params: Params) -> AsyncIterator[list[bytes]]:
        """Yield the lines of a watch, as many at once as have come, until the server ends it.

        The first, empty list says that the server has agreed. Raises KubeError; UnreachableError
        also for a stream that broke off in the middle of a line.
        """
        what = f"watch {path}"
        async with self._response("GET", path, what, {**params, "watch": "1"}, watch=True) as got:
            yield []
            rest = b""
            async for chunk in got.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield lines
            if rest:
                raise UnreachableError(f"{what}: the stream broke off in the middle of an event")

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        what = f"{method} {path}"
        async with self._response(
            method, path, what, params or {}, data=data, content_type=content_type
        ) as got:
            return await got.read()

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        what: str,
        params: Params,
        *,
        data: bytes | None = None,
        content_type: str = "application/json",
        watch: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response of success; a refused proof is read anew once."""
        for attempt in (0, 1):
            loads = self._loads
            session = self._session
            assert session is not None, "use the client as a context manager"
            headers = await self._connection.headers()
            if data is not None:
                headers["Content-Type"] = content_type
            try:
                async with session.request(
                    method,
                    self._connection.base_url + path,
                    params=params,
                    data=data,
                    headers=headers,
                    timeout=self._watch_timeout if watch else self._request_timeout,
                    proxy=self._connection.proxy,
                    server_hostname=self._connection.server_name,
                ) as response:
                    if response.status == 401 and attempt == 0:
                        await self._load(loads)
                        continue
                    if response.status >= 400:
                        raise _refusal(what, response, await response.read())
                    yield response
                    return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                words = str(error) or type(error).__name__
                raise UnreachableError(f"{what} at {self._connection.base_url}: {words}") from error

    async def _load(self, seen: int) -> None:
        """Read the configuration anew, unless somebody did since `seen`."""
        async with self._loading:
            if seen != self._loads:
                return
            await self._connection.load()
            old = self._session
            context = self._connection.ssl_context()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=True if context is None else context, limit=0),
                # Compressing costs the API server more than a cluster's network does.
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
            )
            self._loads += 1
            if old is not None:
                retiring = asyncio.create_task(self._retire(old))
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, session: aiohttp.ClientSession) -> None:
        """Close a session once its requests are over; its streams are opened anew."""
        try:
            await asyncio.sleep(self._request_timeout.total or 0)
        finally:
            await session.close()


class Backoff:
    """Pauses that double, each drawn from the upper half of its range, up to a longest one."""

    def __init__(
        self,
        first_seconds: float = 0.2,
        longest_seconds: float = 30.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._uniform = uniform
        self._next = first_seconds

    def reset(self) -> None:
        """Start small again: something worked."""
        self._next = self._first

    def pause(self, at_least: float = 0.0) -> float:
        """Return the next pause in seconds."""
        seconds = self._uniform(self._next / 2, self._next)
        self._next = min(self._next * 2, self._longest)
        return max(float(seconds), at_least)


def _object(body: bytes) -> Json:
    answer: Json = json.loads(body)
    return answer


def _refusal(what: str, response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    """Return the error of a Status object, or of whatever a proxy said."""
    reason, message = "", body[:200].decode(errors="replace")
    try:
        status = json.loads(body)
        reason, message = status.get("reason", ""), status.get("message", message)
    except (ValueError, AttributeError):
        pass
    try:
        retry_after = float(response.headers.get("Retry-After", 0))
    except ValueError:
        retry_after = 0.0
    return api_error(what, response.status, reason, message, retry_after)
