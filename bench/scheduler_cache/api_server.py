# SPDX-License-Identifier: Apache-2.0
"""A synthetic API server with any number of bound pods, as a process of its own.

The bulk is kept as encoded bytes and served in pages; everything that changes (Leases, the pods
that are bound while a measurement runs) is the simulated server of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from aiohttp import web

from bench.scheduler_cache import synthetic
from bench.scheduler_cache.synthetic import Size
from tests.fakes.apiserver import Event, FakeApiServer, Place

_PODS = "/api/v1/pods"
_NODES = "/api/v1/nodes"
_DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
_FIRST_VERSION = 1_000_000
OWN_POD = "replica-0"
# A watch looks through all of it at each event.
_MOST_HISTORY = 2000


class BulkApiServer(FakeApiServer):
    """The simulated server, with pods that nobody changes in front of its own."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.version = _FIRST_VERSION
        self.bookmark_seconds = 60.0
        self.unknown = {_DEVICES}
        self._bulk = [
            synthetic.encoded(synthetic.bound(number, size)) for number in range(size.pods)
        ]
        for item in synthetic.nodes(size):
            item["metadata"].update(uid=item["metadata"]["name"], resourceVersion="1")
            self.objects.setdefault(_NODES, {})["", item["metadata"]["name"]] = item
        own = {
            "metadata": {
                "name": OWN_POD,
                "namespace": "vgpu-system",
                "uid": OWN_POD,
                "resourceVersion": "1",
            },
            "spec": {},
        }
        self.objects[_PODS] = {("vgpu-system", OWN_POD): own}

    async def _record(self, event: Event) -> None:
        """Remember what happened last alone, as etcd does after a compaction."""
        if len(self.history) >= _MOST_HISTORY:
            del self.history[: _MOST_HISTORY // 2]
            self.oldest = self.history[0].version
            self.requests.clear()
        await super()._record(event)

    def _list(self, request: web.Request, place: Place) -> web.Response:
        if place.collection != _PODS or place.namespace:
            return super()._list(request, place)
        limit = int(request.query.get("limit", 0)) or len(self._bulk)
        start, version = map(int, (request.query.get("continue") or f"0/{self.version}").split("/"))
        items = self._bulk[start : start + limit]
        metadata = {"resourceVersion": str(version)}
        if start + limit < len(self._bulk):
            metadata["continue"] = f"{start + limit}/{version}"
        else:
            items = items + [synthetic.encoded(item) for item in self.objects[_PODS].values()]
        head = b'{"metadata":' + json.dumps(metadata).encode() + b',"items":['
        return web.Response(body=head + b",".join(items) + b"]}", content_type="application/json")


async def _serve(size: Size) -> None:
    server = BulkApiServer(size)
    async with server.serving():
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(_serve(Size(nodes=options.nodes, pods=options.pods)))
