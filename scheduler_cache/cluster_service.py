# SPDX-License-Identifier: Apache-2.0
"""`vgpu.v1.SchedulerCache` of the Kubernetes mode: answers from memory, for whoever has a proof.

Reading is every synced replica's work; only the leader takes reports, since it alone acts on them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheServicer

from scheduler_cache import cluster_wire, wire
from scheduler_cache.cache import Report
from scheduler_cache.cluster import Cluster
from scheduler_cache.cluster_explain import ClusterExplainer
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.errors import (
    InvalidRequestError,
    NotFoundError,
    NotSyncedError,
    NotYetError,
    SchedulerCacheError,
    TooOftenError,
    WrongNodeError,
)
from scheduler_cache.identity import Identity
from scheduler_cache.model import Allocation
from scheduler_cache.pace import Pace
from scheduler_cache.rpc import Context, errors_mapped, node_stream
from scheduler_cache.watchers import Watchers

Who = Callable[[Context], Awaitable[Identity]]

# The answer must be there before the caller gives up.
_MARGIN_SECONDS: Final = 0.05
# Calls of one node that wait at a time: more than it creates containers, and soon looked through.
_MOST_WAITING: Final = 512
# For a call without a deadline. Source: docs/contract.md §5, the agent's whole lookup.
_LONGEST_SECONDS: Final = 8.0


class ClusterService(SchedulerCacheServicer):
    """One object for each listener: `who` says how its callers prove themselves."""

    def __init__(
        self,
        cluster: Cluster,
        feed: Feed,
        watchers: Watchers,
        metrics: Metrics,
        *,
        who: Who,
        check_leading: Callable[[], int],
        reported: Callable[[Report], None] = lambda report: None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`check_leading` raises NotLeaderError; `reported` hears of every report taken."""
        self._cluster = cluster
        self._feed = feed
        self._watchers = watchers
        self._metrics = metrics
        self._who = who
        self._check_leading = check_leading
        self._reported = reported
        self._now_ns = now_ns
        self._reports = Pace()
        self._questions = Pace()

    async def Resolve(self, request: pb.ResolveRequest, context: Context) -> pb.ResolveResponse:
        """Return the allocation of a container that the caller's node is about to start."""
        async with self._call("Resolve", context):
            node_name = (await self._who(context)).node_named(request.node_name)
            if not request.container_uuid and not request.HasField("pod"):
                raise InvalidRequestError("container_uuid or pod is required")
            self._feed.check_synced()
            allocation = await self._resolve(request, node_name, context)
            return pb.ResolveResponse(allocation=wire.allocation_message(allocation))

    async def WatchNode(
        self, request: pb.WatchNodeRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodeResponse]:
        """Stream what the node holds: everything first, then every change."""
        async with self._call("WatchNode", context):
            node_name = (await self._who(context)).node_named(request.node_name)
            self._feed.check_synced()
            if self._cluster.view(node_name) is None:
                # An empty snapshot would tell an agent to forget what only it still knows.
                raise NotSyncedError(f"node {node_name} is not known here yet; retrying is safe")
            with self._watchers.subscribed(node_name) as subscription, self._metrics.stream():
                held = self._cluster.snapshot(node_name)
                async for message in node_stream(held, subscription):
                    yield message

    async def ReportNode(
        self, request: pb.ReportNodeRequest, context: Context
    ) -> pb.ReportNodeResponse:
        """Take what a node says of itself. The leader's alone."""
        async with self._call("ReportNode", context):
            node_name = (await self._who(context)).own_node(request.node_name)
            self._feed.check_synced()
            self._check_leading()
            if not request.node_name:
                request.node_name = node_name
            async with self._reports.turn(f"node {node_name}"):
                report = wire.report_of(request)
                self._feed.publish(self._cluster.apply_report(report, self._now_ns()))
                self._reported(report)
            return pb.ReportNodeResponse()

    async def ListAllocations(
        self, request: pb.ListAllocationsRequest, context: Context
    ) -> pb.ListAllocationsResponse:
        """List what one node holds, or all."""
        async with self._call("ListAllocations", context):
            identity = await self._who(context)
            async with self._turn(identity):
                return pb.ListAllocationsResponse(
                    claims=[
                        claim
                        for name in self._visible(request.node_name, identity)
                        if (view := self._cluster.view(name)) is not None
                        for claim in cluster_wire.claim_messages(view)
                    ]
                )

    async def ListNodes(
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        """List one node's cards, or all."""
        async with self._call("ListNodes", context):
            identity = await self._who(context)
            async with self._turn(identity):
                nodes = []
                for name in self._visible(request.node_name, identity):
                    view, report = self._cluster.view(name), self._cluster.reported(name)
                    if view is not None and (view.inventory.cards or request.node_name):
                        ready = report is not None and report.node.ready
                        nodes.append(cluster_wire.node_message(view, ready=ready))
                return pb.ListNodesResponse(nodes=nodes)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Say in words what is and why."""
        async with self._call("Explain", context):
            identity = await self._who(context)
            self._feed.check_synced()
            explainer = ClusterExplainer(self._cluster, identity.sees)
            subject = request.WhichOneof("subject")
            async with self._turn(identity):
                if subject == "card_uuid":
                    lines = explainer.card(request.card_uuid)
                elif subject == "allocation_id":
                    lines = explainer.allocation(request.allocation_id)
                elif subject == "pod":
                    lines = explainer.pod(request.pod.uid, request.pod.namespace, request.pod.name)
                elif subject == "node_name":
                    lines = explainer.node(request.node_name)
                else:
                    raise InvalidRequestError("name a card, an allocation, a pod or a node")
                return pb.ExplainResponse(lines=lines)

    async def _resolve(
        self, request: pb.ResolveRequest, node_name: str, context: Context
    ) -> Allocation:
        """Return the allocation; wait while only time is missing, until just before the deadline.

        No event can come between a look and the wait for the next: nothing is awaited there.
        """
        identity = wire.pod_of(request.pod) if request.HasField("pod") else None
        left = context.time_remaining()
        seconds = _LONGEST_SECONDS if left is None else min(left, _LONGEST_SECONDS)
        deadline = time.monotonic() + seconds - _MARGIN_SECONDS
        try:
            return self._cluster.resolve(request.container_uuid, node_name, identity)
        except NotYetError:
            pass
        uid = identity.uid if identity else ""
        if self._feed.waiting.at(node_name) >= _MOST_WAITING:
            raise TooOftenError(f"{_MOST_WAITING} calls of node {node_name} wait already; retry")
        with self._feed.waiting.on(uid, node_name) as changed:
            while True:
                changed.clear()
                try:
                    return self._cluster.resolve(request.container_uuid, node_name, identity)
                except NotYetError:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise
                try:
                    async with asyncio.timeout(left):
                        await changed.wait()
                except TimeoutError:
                    continue

    @asynccontextmanager
    async def _turn(self, identity: Identity) -> AsyncIterator[None]:
        """Answer what takes long; a node gets a small part of our time. Raises TooOftenError."""
        if identity.reads_all:
            yield
        else:
            async with self._questions.turn(identity.name):
                yield

    def _visible(self, node_name: str, identity: Identity) -> list[str]:
        """Return the nodes that were asked for and may be seen, or raise."""
        self._feed.check_synced()
        if not node_name:
            return self._cluster.node_names if identity.reads_all else [identity.node]
        if not identity.sees(node_name):
            raise WrongNodeError(f"{identity.name} may not look at node {node_name}")
        if self._cluster.view(node_name) is None:
            raise NotFoundError(f"no node {node_name} is known here")
        return [node_name]

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[None]:
        """Count and time a call; end it with the status and the sentence of our own errors."""
        started = time.perf_counter()
        status = grpc.StatusCode.OK
        try:
            async with errors_mapped(context):
                try:
                    yield
                except SchedulerCacheError as error:
                    status = error.status
                    raise
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            status = grpc.StatusCode.CANCELLED
            raise
        except Exception:
            status = grpc.StatusCode.UNKNOWN
            raise
        finally:
            self._metrics.called(method, status, time.perf_counter() - started)
