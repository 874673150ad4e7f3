# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server in this process: any kind of object, and faults on demand.

It knows what an informer and a writer depend on: paged lists with continue tokens, watches with
resource versions, bookmarks, 410 for what history no longer holds, selectors by equality,
optimistic locking, merge patches, bindings, and reviews of tokens. It checks no schema and no
rights: the same tests run against the real one in tests/e2e.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Object = dict[str, Any]


@dataclass
class Fault:
    """The next `times` requests that match are answered with a status, or cut off."""

    method: str
    path: str
    times: int
    code: int = 0
    """0: the connection is closed without an answer."""
    headers: dict[str, str] = field(default_factory=dict)
    after: bool = False
    """The request is carried out first: only its answer is lost."""
    token: str = ""
    """Only requests of this bearer; empty: anybody's."""
    hold: asyncio.Event | None = None
    """The request is carried out once this is set: it was long on its way."""


@dataclass(frozen=True)
class Event:
    """One entry of history."""

    version: int
    kind: str
    collection: str
    item: Object
    before: Object | None


@dataclass(frozen=True)
class Place:
    """What a URL names: `collection` is the path without the namespace."""

    collection: str
    namespace: str
    name: str
    subresource: str


class FakeApiServer:
    """Objects by collection, and everything that happened to them."""

    def __init__(self) -> None:
        self.url = ""
        self.version = 100
        self.oldest = 0
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        self.history: list[Event] = []
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.unknown: set[str] = set()
        self.tokens: dict[str, Object] = {}
        self.accepted_tokens: set[str] | None = None
        self.lose: Callable[[Event], bool] = lambda event: False
        self.repeat: Callable[[Event], bool] = lambda event: False
        self.bookmark_seconds = 0.05
        self._changed = asyncio.Event()
        self._watches: set[asyncio.Task[object]] = set()
        self._breaking = 0
        self._snapshots: dict[tuple[str, int], list[Object]] = {}

    # For tests: what happens in the cluster

    async def put(self, collection: str, item: Object) -> Object:
        """Create or replace an object, as somebody else would."""
        metadata = item.setdefault("metadata", {})
        name = (metadata.get("namespace", ""), metadata["name"])
        old = self.objects.get(collection, {}).get(name)
        if old is not None:
            metadata.setdefault("uid", old["metadata"]["uid"])
        return await self._store(collection, copy.deepcopy(item))

    async def remove(self, collection: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        item = self.objects[collection].pop((namespace, name))
        before = copy.deepcopy(item)
        item["metadata"]["resourceVersion"] = str(self._next())
        await self._record(Event(self.version, "DELETED", collection, item, before))

    async def compact(self) -> None:
        """Forget all history: older resource versions are gone."""
        self.oldest = self.version
        self.history.clear()

    async def break_watches(self) -> None:
        """Close the connection of every watch, in the middle of a line."""
        self._breaking += 1
        self._notify()

    def fail(
        self,
        method: str,
        path: str,
        *,
        times: int = 1,
        code: int = 0,
        headers: dict[str, str] | None = None,
        after: bool = False,
        token: str = "",
    ) -> Fault:
        """Let the next requests whose path begins with `path` fail."""
        fault = Fault(method, path, times, code, headers or {}, after, token)
        self.faults.append(fault)
        return fault

    def hold(self, method: str, path: str, token: str = "") -> asyncio.Event:
        """Let the next request be carried out only when the event is set."""
        released = asyncio.Event()
        self.faults.append(Fault(method, path, 1, token=token, hold=released))
        return released

    def count(self, method: str, path: str) -> int:
        """Return how many requests were for exactly this path."""
        return self.requests.count((method, path))

    # Serving

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeApiServer]:
        """Serve on a free port of loopback."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            for task in list(self._watches):
                task.cancel()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(
            ("WATCH" if request.query.get("watch") else request.method, request.path)
        )
        fault = self._fault(request)
        if fault is not None and fault.hold is not None:
            await request.read()
            # Whoever sent it may be gone by then; it is carried out all the same.
            return await asyncio.shield(asyncio.ensure_future(self._late(request, fault.hold)))
        if fault is not None and not fault.after:
            return await self._failed(request, fault)
        if self.accepted_tokens is not None:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in self.accepted_tokens:
                return _status(401, "Unauthorized", "who are you?")
        try:
            response = await self._answer(request)
        except web.HTTPException:
            raise
        except KeyError as error:
            response = _status(404, "NotFound", f"{error} not found")
        return await self._failed(request, fault) if fault is not None else response

    def _fault(self, request: web.Request) -> Fault | None:
        method = "WATCH" if request.query.get("watch") else request.method
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        for fault in self.faults:
            if (
                fault.times
                and fault.method in (method, "*")
                and request.path.startswith(fault.path)
                and fault.token in ("", token)
            ):
                fault.times -= 1
                return fault
        return None

    async def _late(self, request: web.Request, released: asyncio.Event) -> web.StreamResponse:
        await released.wait()
        return await self._answer(request)

    async def _failed(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.code:
            return _status(fault.code, "Injected", "as the test wants it", fault.headers)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = _place(request.path)
        if place.collection in self.unknown:
            return _status(404, "NotFound", "the server could not find the requested resource")
        body = json.loads(await request.read() or b"null")
        if request.method == "GET" and place.name:
            return web.json_response(self._object(place))
        if request.method == "GET" and request.query.get("watch"):
            return await self._watch(request, place)
        if request.method == "GET":
            return self._list(request, place)
        if place.collection.endswith("/tokenreviews"):
            status = self.tokens.get(body["spec"]["token"], {"authenticated": False})
            return web.json_response({**body, "status": status}, status=201)
        if request.method == "POST" and place.subresource == "binding":
            return await self._bind(place, body)
        if request.method == "POST" and place.subresource == "eviction":
            if not body.get("deleteOptions", {}).get("dryRun"):
                await self.remove(place.collection, place.name, place.namespace)
            return web.json_response({"kind": "Status", "status": "Success"}, status=201)
        if request.method == "POST":
            return await self._create(place, body)
        if request.method == "PUT":
            return await self._replace(place, body)
        if request.method == "PATCH":
            return await self._patch(place, body)
        if request.method == "DELETE":
            await self.remove(place.collection, place.name, place.namespace)
            return web.json_response({"kind": "Status", "status": "Success"})
        return _status(405, "MethodNotAllowed", request.method)

    def _object(self, place: Place) -> Object:
        return self.objects.get(place.collection, {})[(place.namespace, place.name)]

    def _list(self, request: web.Request, place: Place) -> web.Response:
        limit, token = int(request.query.get("limit", 0)), request.query.get("continue", "")
        start, version = map(int, token.split("/")) if token else (0, self.version)
        if version < self.oldest:
            return _status(410, "Expired", "the provided continue parameter is too old")
        if not token:
            # As etcd does: all pages of a list show the same moment.
            self._snapshots[request.path, version] = [
                item
                for name, item in sorted(self.objects.get(place.collection, {}).items())
                if place.namespace in ("", name[0]) and _selected(request, item)
            ]
        items = self._snapshots[request.path, version]
        end = start + limit if limit else len(items)
        metadata = {"resourceVersion": str(version)}
        if end < len(items):
            metadata["continue"] = f"{end}/{version}"
        return web.json_response({"metadata": metadata, "items": items[start:end]})

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion", 0) or self.version)
        if version < self.oldest:
            return _status(410, "Expired", f"too old resource version: {version}")
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            await asyncio.wait_for(
                self._stream(request, response, place, version),
                float(request.query.get("timeoutSeconds", 300)),
            )
        except (TimeoutError, ConnectionResetError):
            pass
        finally:
            self._watches.discard(task)
        return response

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, place: Place, version: int
    ) -> None:
        breaking = self._breaking
        while True:
            if breaking != self._breaking:
                await response.write(b'{"type":"MOD')
                assert request.transport is not None
                request.transport.close()
                return
            if version < self.oldest:
                error = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                await response.write(_line("ERROR", error))
                return
            changed = self._changed
            for event in [event for event in self.history if event.version > version]:
                version = event.version
                for line in self._lines(request, place, event):
                    await response.write(line)
            if breaking != self._breaking:
                continue
            try:
                async with asyncio.timeout(self.bookmark_seconds):
                    await changed.wait()
            except TimeoutError:
                if request.query.get("allowWatchBookmarks"):
                    mark = {"metadata": {"resourceVersion": str(version)}}
                    await response.write(_line("BOOKMARK", mark))

    def _lines(self, request: web.Request, place: Place, event: Event) -> list[bytes]:
        namespace = event.item["metadata"].get("namespace", "")
        if event.collection != place.collection or place.namespace not in ("", namespace):
            return []
        now = event.kind != "DELETED" and _selected(request, event.item)
        before = event.before is not None and _selected(request, event.before)
        if self.lose(event) or not (now or before):
            return []
        kind = {(True, False): "ADDED", (True, True): "MODIFIED"}.get((now, before), "DELETED")
        return [_line(kind, event.item)] * (2 if self.repeat(event) else 1)

    async def _create(self, place: Place, body: Object) -> web.Response:
        metadata = body.setdefault("metadata", {})
        if place.namespace:
            metadata["namespace"] = place.namespace
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{uuid.uuid4()}"
        name = (metadata.get("namespace", ""), metadata["name"])
        if name in self.objects.get(place.collection, {}):
            return _status(409, "AlreadyExists", f"{name[1]} already exists")
        return web.json_response(await self._store(place.collection, body), status=201)

    async def _replace(self, place: Place, body: Object) -> web.Response:
        old = self._object(place)["metadata"]
        asked = body.get("metadata", {}).get("resourceVersion", "")
        if asked and asked != old["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        body["metadata"]["uid"] = old["uid"]
        return web.json_response(await self._store(place.collection, body))

    async def _patch(self, place: Place, body: Object) -> web.Response:
        item = copy.deepcopy(self._object(place))
        asked = body.get("metadata", {}).get("resourceVersion", "")
        if asked and asked != item["metadata"]["resourceVersion"]:
            return _status(409, "Conflict", "the object has been modified")
        if body.get("metadata", {}).get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
            return _status(409, "Conflict", "the uid in the precondition is another")
        _merge(item, body)
        return web.json_response(await self._store(place.collection, item))

    async def _bind(self, place: Place, body: Object) -> web.Response:
        item = copy.deepcopy(self._object(place))
        if item.setdefault("spec", {}).get("nodeName"):
            return _status(409, "Conflict", f"pod {place.name} is already assigned to a node")
        if body["metadata"].get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
            return _status(409, "Conflict", "the uid in the precondition is another")
        item["spec"]["nodeName"] = body["target"]["name"]
        annotations = item["metadata"].setdefault("annotations", {})
        annotations.update(body["metadata"].get("annotations", {}))
        await self._store(place.collection, item)
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    def _next(self) -> int:
        self.version += 1
        return self.version

    async def _store(self, collection: str, item: Object) -> Object:
        metadata = item["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata["resourceVersion"] = str(self._next())
        name = (metadata.get("namespace", ""), metadata["name"])
        objects = self.objects.setdefault(collection, {})
        before = objects.get(name)
        objects[name] = item
        await self._record(
            Event(self.version, "MODIFIED" if before else "ADDED", collection, item, before)
        )
        return item

    async def _record(self, event: Event) -> None:
        self.history.append(event)
        self._notify()

    def _notify(self) -> None:
        """Wake every watch."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _place(path: str) -> Place:
    parts = deque(part for part in path.split("/") if part)
    head = [parts.popleft() for _ in range(2 if parts[0] == "api" else 3)]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        parts.popleft()
        namespace = parts.popleft()
    plural, name, subresource, *_ = [*parts, "", "", ""]
    return Place("/" + "/".join([*head, plural]), namespace, name, subresource)


def _selected(request: web.Request, item: Object) -> bool:
    """Return whether the selectors, both by equality alone, let an object through."""
    for term in filter(None, request.query.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if item["metadata"].get("labels", {}).get(name) != value:
            return False
    for term in filter(None, request.query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = item
        negated = path.endswith("!")
        for part in path.removesuffix("!").split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if (found == value) is negated:
            return False
    return True


def _merge(item: Object, patch: Object) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict) and isinstance(item.get(key), dict):
            _merge(item[key], value)
        else:
            item[key] = value


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(
    code: int, reason: str, message: str, headers: dict[str, str] | None = None
) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)
