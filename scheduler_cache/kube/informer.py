# SPDX-License-Identifier: Apache-2.0
"""Keeps a copy of one kind of object: a paged list, then a watch that goes on where it ended.

A watch that ends is resumed at the last resource version that was seen, with bookmarks to keep that
fresh. When the server no longer remembers it (410), when an event cannot be read, and from time to
time in any case, everything is listed anew and compared with what is known: an object that is gone
is deleted, one that is another object of the same name is deleted and added. So a lost event
costs time, never truth.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, cast

import msgspec

from scheduler_cache.kube.client import Backoff, KubeClient
from scheduler_cache.kube.errors import (
    GoneError,
    KubeError,
    MissingError,
    UnreachableError,
    api_error,
)
from scheduler_cache.kube.objects import EVENT, PAGE, STATUS, Decoder, Metadata, RawPage

logger = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT")

_PAGE_ITEMS: Final = 500
# Between two looks at the event loop. One pod takes some ten microseconds.
_ITEMS_AT_ONCE: Final = 50
# A stream that lived so long counts as one that worked.
_GOOD_STREAM_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource(Generic[ObjectT]):
    """What to keep a copy of."""

    name: str
    """For people, such as `pods`."""
    path: str
    """Of its list, such as `/api/v1/pods`."""
    kind: type[ObjectT]
    """Which parts of an object to read."""
    label_selector: str = ""
    field_selector: str = ""
    optional: bool = False
    """A kind that this cluster may not have: then the copy is empty, and in step."""

    @property
    def selectors(self) -> dict[str, str]:
        """The query parameters of both selectors."""
        pairs = (("labelSelector", self.label_selector), ("fieldSelector", self.field_selector))
        return {name: value for name, value in pairs if value}


@dataclass(frozen=True, slots=True)
class Key:
    """One object, for ever: a name may be used again, a uid never."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The patience of an informer. The defaults are those of client-go where it has them."""

    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 30.0
    watch_seconds: float = 300.0
    """How long a watch may last; up to twice that, so that not all end together."""
    relist_seconds: float = 1800.0
    """After so long everything is compared with a list, in case an event was lost on the way."""
    missing_seconds: float = 60.0
    """How often to look for an optional kind that the cluster does not have."""


class Informer(Generic[ObjectT]):
    """One copy. `upsert` and `delete` are called in the order in which things happened.

    `delete` is also told the resource version of the moment at which the object was gone.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[ObjectT],
        upsert: Callable[[ObjectT], None],
        delete: Callable[[Key, int], None],
        *,
        timing: Timing | None = None,
        page_items: int = _PAGE_ITEMS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.resource = resource
        self._client = client
        self._upsert = upsert
        self._delete = delete
        self._timing = timing or Timing()
        self._page_items = page_items
        self._sleep = sleep
        self._decoder = Decoder(resource.kind)
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self._resource_version = ""
        self._hurry = asyncio.Event()
        self._listing = False
        self._waiting: list[asyncio.Future[None]] = []
        self._synced = asyncio.Event()
        self._trouble = "the first list is under way"
        self._contact = time.monotonic()
        self._backoff = Backoff(
            self._timing.first_pause_seconds, self._timing.longest_pause_seconds
        )
        self.lists = 0
        self.events = 0
        self.restarts: dict[str, int] = {}

    @property
    def synced(self) -> bool:
        """Whether a whole list has been taken in since the start."""
        return self._synced.is_set()

    @property
    def trouble(self) -> str:
        """Why it is not in step with the API server, in words; empty when it is."""
        return self._trouble

    @property
    def silent_seconds(self) -> float:
        """How long ago the API server was heard last."""
        return time.monotonic() - self._contact

    @property
    def version(self) -> int:
        """The resource version up to which all was taken in; 0: it is being listed anew."""
        return number_of(self._resource_version)

    def __len__(self) -> int:
        return len(self._known)

    async def wait_synced(self) -> None:
        """Return once a whole list has been taken in."""
        await self._synced.wait()

    async def wait_version(self, version: str) -> None:
        """Return once everything up to a resource version has been taken in."""
        while number_of(self._resource_version) < number_of(version):
            moved = asyncio.get_running_loop().create_future()
            self._waiting.append(moved)
            await moved

    async def relist(self) -> None:
        """Return once a whole list that began after this call has been taken in."""
        wanted = self.lists + (2 if self._listing else 1)
        self._hurry.set()
        while self.lists < wanted:
            moved = asyncio.get_running_loop().create_future()
            self._waiting.append(moved)
            await moved

    async def run(self) -> None:
        """Follow until cancelled; every error is waited out."""
        paged = True
        while True:
            try:
                if not self._resource_version:
                    await self._list(paged=paged)
                    paged = True
                await self._follow()
            except GoneError as error:
                # A page's continuation can be as old as a watch's start; all at once cannot.
                paged = bool(self._resource_version)
                self._restart("gone", str(error))
                await self._sleep(self._backoff.pause())
            except MissingError as error:
                if not self.resource.optional:
                    await self._wait(error)
                    continue
                self._forget_all()
                await self._sleep(self._timing.missing_seconds)
            except (KubeError, msgspec.MsgspecError) as error:
                await self._wait(error)

    async def _wait(self, error: Exception) -> None:
        """Say what is wrong and pause. What cannot be read is listed anew."""
        if isinstance(error, msgspec.MsgspecError):
            self._restart("unreadable", f"an answer cannot be read: {error}")
        self._trouble = str(error)
        pause = self._backoff.pause(getattr(error, "retry_after_seconds", 0.0))
        logger.warning(
            "%s: out of step with the API server",
            self.resource.name,
            extra={"reason": self._trouble, "pause_seconds": round(pause, 2)},
        )
        await self._sleep(pause)

    def _restart(self, why: str, words: str) -> None:
        self._resource_version = ""
        self.restarts[why] = self.restarts.get(why, 0) + 1
        logger.info("%s: listing anew", self.resource.name, extra={"reason": words})

    def _reached(self, version: str) -> None:
        self._resource_version = version
        waiting, self._waiting = self._waiting, []
        for moved in waiting:
            if not moved.done():
                moved.set_result(None)

    # Listing

    async def _list(self, *, paged: bool) -> None:
        """Take in a whole list, then delete what was known and is not in it."""
        self._hurry.clear()
        self._listing = True
        try:
            await self._list_all(paged=paged)
        finally:
            self._listing = False

    async def _list_all(self, *, paged: bool) -> None:
        """Take in page by page; the API server works on the next one meanwhile."""
        seen: set[tuple[str, str]] = set()
        params = dict(self.resource.selectors)
        if paged:
            params["limit"] = str(self._page_items)
        following = asyncio.ensure_future(self._page(params))
        try:
            while True:
                page = await following
                self._contact = time.monotonic()
                if page.metadata.continue_:
                    params = {**params, "continue": page.metadata.continue_}
                    following = asyncio.ensure_future(self._page(params))
                for number, raw in enumerate(page.items or (), 1):
                    seen.add(self._take(self._decoder.object(raw)))
                    if number % _ITEMS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                if not page.metadata.continue_:
                    break
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        version = page.metadata.resource_version
        for name in [name for name in self._known if name not in seen]:
            self._drop(name, version)
        self.lists += 1
        self._reached(version)
        self._in_step()

    async def _page(self, params: dict[str, str]) -> RawPage:
        return PAGE.decode(await self._client.read(self.resource.path, params))

    def _take(self, item: ObjectT) -> tuple[str, str]:
        """Take in an object; another one of the same name is gone then."""
        metadata = _metadata(item)
        name = (metadata.get("namespace", ""), metadata.get("name", ""))
        uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
        known = self._known.get(name)
        if known == (uid, version):
            return name
        if known is not None and known[0] != uid:
            self._drop(name, version)
        self._known[name] = (uid, version)
        self._upsert(item)
        return name

    def _drop(self, name: tuple[str, str], version: str) -> None:
        uid, _ = self._known.pop(name)
        self._delete(Key(*name, uid), number_of(version))

    def _forget_all(self) -> None:
        """Take the cluster's word that there is no such kind, and so no such object."""
        for name in list(self._known):
            self._drop(name, "")
        self._resource_version = ""
        self._in_step()

    def _in_step(self) -> None:
        self._trouble = ""
        if not self._synced.is_set():
            self._synced.set()
            logger.info("%s: synced", self.resource.name, extra={"objects": len(self._known)})

    # Watching

    async def _follow(self) -> None:
        """Watch, again and again, until it is time to list anew."""
        listed = time.monotonic()
        patience = self._timing.relist_seconds * random.uniform(0.9, 1.1)
        while time.monotonic() - listed < patience and not self._hurry.is_set():
            started = time.monotonic()
            await self._until_hurried(self._watch())
            if time.monotonic() - started >= _GOOD_STREAM_SECONDS:
                self._backoff.reset()
            elif not self._hurry.is_set():
                await self._sleep(self._backoff.pause())
        self._restart("periodic", "it is time to compare")

    async def _until_hurried(self, watching: Coroutine[None, None, None]) -> None:
        """Await, unless somebody wants a whole list first."""
        task = asyncio.ensure_future(watching)
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((task, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

    async def _watch(self) -> None:
        """Take in one watch until the server ends it."""
        seconds = self._timing.watch_seconds * random.uniform(1.0, 2.0)
        params = {
            **self.resource.selectors,
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        async for lines in self._client.watch(self.resource.path, params):
            self._contact = time.monotonic()
            self._trouble = ""
            for number, line in enumerate(lines, 1):
                if line:
                    self._event(line)
                if number % _ITEMS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _event(self, line: bytes) -> None:
        event = EVENT.decode(line)
        if event.type == "ERROR":
            status = STATUS.decode(event.object)
            raise api_error(
                f"watch {self.resource.path}", status.code, status.reason, status.message
            )
        item = self._decoder.object(event.object)
        version = _metadata(item).get("resourceVersion", "")
        self.events += 1
        if event.type in ("ADDED", "MODIFIED"):
            self._take(item)
        elif event.type == "DELETED":
            self._gone(item)
        elif event.type != "BOOKMARK":
            raise UnreachableError(f"watch {self.resource.path}: event {event.type} is not known")
        if version:
            self._reached(version)

    def _gone(self, item: ObjectT) -> None:
        metadata = _metadata(item)
        name = (metadata.get("namespace", ""), metadata.get("name", ""))
        known = self._known.get(name)
        # The end of an earlier object of that name does not end the present one.
        if known is not None and known[0] == metadata.get("uid", ""):
            self._drop(name, metadata.get("resourceVersion", ""))


def number_of(version: str) -> int:
    """Return a resource version as the number that etcd counts up; 0 when it is none."""
    return int(version) if version.isascii() and version.isdigit() else 0


def _metadata(item: object) -> Metadata:
    return cast(dict[str, Metadata], item).get("metadata", {})
