# SPDX-License-Identifier: Apache-2.0
"""`vgpu.v1.SchedulerCache` of the embedded mode: claims of one host, kept in SQLite.

A change is written, applied and published without an await in between, so that every caller sees
the states before and after it and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheServicer

from scheduler_cache import explain, wire
from scheduler_cache.cache import Cache, Changes
from scheduler_cache.errors import (
    InvalidRequestError,
    NotSyncedError,
    WrongNodeError,
)
from scheduler_cache.rpc import Context, errors_mapped, node_stream
from scheduler_cache.sqlite_store import Store
from scheduler_cache.watchers import Watchers, events_of

logger = logging.getLogger(__name__)


class EmbeddedService(SchedulerCacheServicer):
    """Answers from memory; what it acknowledges is in the store."""

    def __init__(
        self,
        cache: Cache,
        store: Store,
        watchers: Watchers,
        saved: Callable[[], None],
        now_unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._cache = cache
        self._store = store
        self._watchers = watchers
        self._saved = saved
        self._now_unix_ns = now_unix_ns

    async def Resolve(self, request: pb.ResolveRequest, context: Context) -> pb.ResolveResponse:
        """Return the allocation of that id. Pods, and so identities, are unknown on this host."""
        async with errors_mapped(context):
            if not request.container_uuid:
                raise InvalidRequestError("container_uuid is required: this host knows no pods")
            claim = self._cache.claim(request.container_uuid)
            if request.node_name not in ("", claim.allocation.node_name):
                raise WrongNodeError(
                    f"allocation {request.container_uuid} belongs to another node than "
                    f"{request.node_name}"
                )
            return pb.ResolveResponse(allocation=wire.allocation_message(claim.allocation))

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Give a container its claim. See `Cache.allocate`."""
        async with errors_mapped(context):
            claim, changes = self._cache.allocate(
                wire.node_name_of(request.node_name),
                wire.key_of(request.claim),
                wire.request_of(request.request),
                self._now_unix_ns(),
                spare_stopped=request.spare_stopped,
            )
            self._commit(changes)
            if changes.durable:
                logger.info(
                    "claim allocated",
                    extra={
                        "allocation_id": claim.allocation.allocation_id,
                        "container_id": claim.allocation.claim.container_id,
                        "cards": [part.card_uuid for part in claim.allocation.slices],
                        "removed": list(changes.removed),
                    },
                )
            return pb.AllocateResponse(
                allocation=wire.allocation_message(claim.allocation),
                taken_allocation_ids=self._cache.taken_by(claim),
            )

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        """Free a claim."""
        async with errors_mapped(context):
            if not request.allocation_id:
                raise InvalidRequestError("allocation_id is required")
            changes = self._cache.release(request.allocation_id, self._now_unix_ns())
            self._commit(changes)
            if changes.durable:
                logger.info("claim released", extra={"allocation_id": request.allocation_id})
            return pb.ReleaseResponse()

    async def WatchNode(
        self, request: pb.WatchNodeRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodeResponse]:
        """Stream a snapshot, then every change. State changes are none: the node made them."""
        async with errors_mapped(context):
            node_name = wire.node_name_of(request.node_name)
            if self._cache.node(node_name) is None:
                # An empty snapshot would tell an agent to forget what only it still knows.
                raise NotSyncedError(
                    f"node {node_name} has not reported its cards yet; retrying is safe"
                )
            with self._watchers.subscribed(node_name) as subscription:
                held = [claim.allocation for claim in self._cache.claims(node_name)]
                async for message in node_stream(held, subscription):
                    yield message

    async def ReportNode(
        self, request: pb.ReportNodeRequest, context: Context
    ) -> pb.ReportNodeResponse:
        """Take a report. See `Cache.report`."""
        async with errors_mapped(context):
            report = wire.report_of(request)
            changes = self._cache.report(report, self._now_unix_ns())
            lost = [
                claim.allocation.allocation_id
                for claim in changes.claims
                if self._cache.get(claim.allocation.allocation_id) is None
            ]
            self._commit(changes)
            if lost:
                logger.warning(
                    "claims taken back from a report",
                    extra={"node": report.node.name, "allocation_ids": lost},
                )
            if changes.durable:
                logger.info(
                    "report changed the state",
                    extra={
                        "node": report.node.name,
                        "inventory": bool(changes.nodes),
                        "claims": len(changes.claims),
                        "removed": list(changes.removed),
                    },
                )
            return pb.ReportNodeResponse()

    async def ListAllocations(
        self, request: pb.ListAllocationsRequest, context: Context
    ) -> pb.ListAllocationsResponse:
        """List the claims with their states."""
        return pb.ListAllocationsResponse(
            claims=map(wire.claim_message, self._cache.claims(request.node_name))
        )

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Say in words what is and why."""
        async with errors_mapped(context):
            subject = request.WhichOneof("subject")
            if subject == "card_uuid":
                lines = explain.explain_card(self._cache, request.card_uuid)
            elif subject == "allocation_id":
                lines = explain.explain_allocation(self._cache, request.allocation_id)
            elif subject == "request":
                lines = explain.explain_request(
                    self._cache, wire.request_of(request.request), self._now_unix_ns()
                )
            else:
                raise InvalidRequestError("name a card, an allocation or a request")
            return pb.ExplainResponse(lines=lines)

    def _commit(self, changes: Changes) -> None:
        """Write, apply, publish. A failed write leaves memory as it was."""
        if changes.durable:
            self._store.save(changes)
            self._saved()
        events = events_of(self._cache, changes)
        self._cache.apply(changes)
        self._watchers.publish(events)
