# SPDX-License-Identifier: Apache-2.0
"""Passes every change of a node to the streams that watch it. A slow stream costs only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scheduler_cache.cache import Cache, Changes
from scheduler_cache.errors import NotSyncedError
from scheduler_cache.model import Allocation

# A node has one; one more that has lost its other end, or two, until that is noticed.
_MOST_STREAMS: Final = 4

Event = Allocation | str
"""An allocation that is new or changed, or the id of one that is gone."""


class Subscription:
    """The events of one stream, in order. At most `length` wait; one more ends the stream."""

    def __init__(self, length: int) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._length = length
        self._end = ""

    def put(self, event: Event) -> None:
        """Queue an event, or end the stream when its reader is too far behind."""
        if self._end:
            return
        if self._events.qsize() >= self._length:
            self.end("this watcher reads too slowly; a new stream starts with a full snapshot")
            return
        self._events.put_nowait(event)

    def end(self, reason: str) -> None:
        """Drop what waits and make `get` raise NotSyncedError with `reason`."""
        self._end = reason
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait("")

    async def get(self) -> Event:
        """Return the next event; raise NotSyncedError once the stream has ended."""
        event = await self._events.get()
        if self._end:
            raise NotSyncedError(self._end)
        return event


class Watchers:
    """All streams, by node."""

    def __init__(self, queue_length: int) -> None:
        self._queue_length = queue_length
        self._by_node: dict[str, dict[Subscription, None]] = {}
        self._closed = ""

    @contextmanager
    def subscribed(self, node_name: str) -> Iterator[Subscription]:
        """Give every change of the node, from now on, until the block is left.

        A few streams are open for a node at most: one more ends the oldest.
        """
        subscription = Subscription(self._queue_length)
        if self._closed:
            subscription.end(self._closed)
        streams = self._by_node.setdefault(node_name, {})
        if len(streams) >= _MOST_STREAMS:
            oldest = next(iter(streams))
            oldest.end(f"{_MOST_STREAMS} newer streams of this node are open")
            del streams[oldest]
        streams[subscription] = None
        try:
            yield subscription
        finally:
            streams.pop(subscription, None)
            # One that was ended may be left late, when the node has other streams than it knew.
            if not streams and self._by_node.get(node_name) is streams:
                del self._by_node[node_name]

    def close(self, reason: str) -> None:
        """End all streams, and all that are opened later."""
        self._closed = reason
        for subscriptions in self._by_node.values():
            for subscription in subscriptions:
                subscription.end(reason)

    def publish(self, events: list[tuple[str, Event]]) -> None:
        """Queue (node name, event) pairs."""
        for node_name, event in events:
            for subscription in self._by_node.get(node_name, ()):
                subscription.put(event)


def events_of(cache: Cache, changes: Changes) -> list[tuple[str, Event]]:
    """Return what watchers must hear of `changes`, which `cache` has not applied yet.

    A claim's state is no event: the node told it.
    """
    events: list[tuple[str, Event]] = []
    for allocation_id in changes.removed:
        known = cache.get(allocation_id)
        node_name = known.allocation.node_name if known else changes.reported
        events.append((node_name, allocation_id))
    for claim in changes.claims:
        allocation = claim.allocation
        known = cache.get(allocation.allocation_id)
        if known is None or known.allocation != allocation:
            events.append((allocation.node_name, allocation))
    return events
