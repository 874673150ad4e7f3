# SPDX-License-Identifier: Apache-2.0
"""A cluster's scheduler cache of one node, run beside synchronous tests."""

import asyncio
import threading
from pathlib import Path

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.identity import Identity
from tests.fakes.scheduler_cache import Failure, ScriptedCache, serving
from tests.runtime_shim.allocations import part
from tests.runtime_shim.pods import pod_allocation


class PodCache:
    """Answers for the pods that were bound; of others it says that they have no slice."""

    def __init__(self, socket: Path, node_name: str) -> None:
        self.socket = socket
        self._node_name = node_name
        self._bound: dict[tuple[str, str], pb.Allocation] = {}
        self._cache = ScriptedCache()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Serve on the socket."""
        self._thread.start()
        ready = threading.Event()
        asyncio.run_coroutine_threadsafe(self._serve(ready), self._loop)
        assert ready.wait(20), "the cache of the test does not serve"

    def stop(self) -> None:
        """End the server and its thread."""

        async def end() -> None:
            self._ended.set()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(others, timeout=10)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def bind(self, identity: Identity, container_uuid: str, card: str, memory_bytes: int) -> None:
        """Give a pod's container a slice."""
        allocation = pod_allocation(
            part(card, memory_bytes),
            identity=identity,
            container_uuid=container_uuid,
            node_name=self._node_name,
        )
        self._bound[(identity.pod_uid, identity.container_name)] = allocation

    def running(self) -> list[str]:
        """Return the allocations that the agent reported last as running."""
        reports = self._cache.reports
        return list(reports[-1].running_allocation_ids) if reports else []

    def _resolve(self, request: pb.ResolveRequest) -> pb.ResolveResponse | Failure:
        allocation = self._bound.get((request.pod.uid, request.pod.container_name))
        if allocation is None:
            return grpc.StatusCode.FAILED_PRECONDITION, "the pod has no slice for this container"
        uuid = request.container_uuid
        if uuid and uuid != allocation.allocation_id:
            return grpc.StatusCode.PERMISSION_DENIED, "the UUID is another container's"
        return pb.ResolveResponse(allocation=allocation)

    async def _serve(self, ready: threading.Event) -> None:
        self._cache.resolve = self._resolve
        async with serving(self._cache, self.socket):
            ready.set()
            await self._ended.wait()
