# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the parts of the Kubernetes mode; the only place that knows them all."""

from __future__ import annotations

import asyncio
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from aiohttp import web
from grpc_reflection.v1alpha import reflection
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import add_SchedulerCacheServicer_to_server

from scheduler_cache import cluster_extender
from scheduler_cache.admission.rules import rules_of
from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.cluster_admission import Admission
from scheduler_cache.cluster_ends import Relay
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.cluster_leader import Leader, epoch_floor
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.cluster_service import ClusterService, Who
from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import KubernetesConfig
from scheduler_cache.errors import ConfigError, ListenError, NotProvedError
from scheduler_cache.health import Health
from scheduler_cache.identity import LOCAL, Identity, of_certificate
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import Connection, InClusterConnection, KubeconfigConnection
from scheduler_cache.kube.informer import Timing
from scheduler_cache.kube.leader import Election, Terms
from scheduler_cache.kube.token_review import TokenReviewer
from scheduler_cache.listen import bound, checked_address
from scheduler_cache.model import CardPolicy
from scheduler_cache.rpc import until_signalled
from scheduler_cache.tls import TlsFiles, server_credentials
from scheduler_cache.watchers import Watchers

logger = logging.getLogger(__name__)

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["SchedulerCache"].full_name

_HANDOVER_SECONDS: Final = 5.0

_OPTIONS: Final = (
    # Without it a second server would share a TCP port in silence.
    ("grpc.so_reuseport", 0),
    # A node that vanished without a word is noticed, and its stream ended.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


@dataclass(frozen=True, kw_only=True)
class Running:
    """The parts that serve, for what is built upon them."""

    cluster: Cluster
    feed: Feed
    leader: Leader
    election: Election
    metrics: Metrics
    addresses: tuple[str, ...]
    """Of the TLS listeners, with their true ports; certificates first."""
    metrics_port: int
    extender_addresses: tuple[str, ...]
    admission: Admission


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then hand over and let the calls under way end."""
    await until_signalled(running(config), config.drain_seconds)


@asynccontextmanager
async def running(config: Config, *, timing: Timing | None = None) -> AsyncIterator[Running]:
    """Serve inside the block. Raises ConfigError, ListenError or KubeError at the start."""
    kubernetes = config.kubernetes
    keyring = kubernetes.keyring()
    dialects = kubernetes.dialects.every(keyring)
    metrics = Metrics()
    health = Health(started=False)
    watchers = Watchers(config.watch_queue_length)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(_connection(kubernetes)))
        cluster = Cluster(
            dialects,
            default_policy=CardPolicy(config.card_policy),
            eviction_seconds=kubernetes.eviction_seconds,
            left_out={each.name for each in dialects} - kubernetes.admission.guarded,
        )
        leaders: list[Leader] = []

        def chores(deltas: Deltas) -> None:
            for each in leaders:
                each.upkeep.changed(deltas)

        feed = Feed(client, cluster, watchers, chores=chores, timing=timing)
        relay = Relay(cluster, feed, lambda: leaders[0].check())
        election = Election(
            client,
            kubernetes.namespace,
            kubernetes.lease_name,
            # A process that was restarted is another holder, with another epoch.
            f"{kubernetes.replica}_{uuid.uuid4()}",
            terms=Terms(
                lease_seconds=kubernetes.lease_seconds,
                renew_seconds=kubernetes.renew_seconds,
                retry_seconds=kubernetes.retry_seconds,
            ),
            epoch_floor=lambda: epoch_floor(cluster),
            said=relay.said,
            heard=relay.heard,
        )
        leader = Leader(
            client,
            cluster,
            feed,
            election,
            metrics,
            dialects,
            namespace=kubernetes.namespace,
            pod_name=kubernetes.own_pod,
            undecided_seconds=kubernetes.dialects.undecided_seconds,
        )
        leaders.append(leader)
        metrics.watch(cluster, feed, lambda: election.leading)

        def service(who: Who) -> ClusterService:
            return ClusterService(
                cluster,
                feed,
                watchers,
                metrics,
                who=who,
                check_leading=leader.check,
                reported=leader.upkeep.reported,
            )

        servers, addresses = await _listen(stack, config, client, health, service)
        extended = await stack.enter_async_context(
            cluster_extender.serving(config, client, cluster, dialects, feed, leader, metrics)
        )
        port = await _serve_http(stack, kubernetes, metrics, feed)
        admission = Admission(client, kubernetes, rules_of(kubernetes, dialects), metrics.registry)
        admitting = asyncio.create_task(admission.run(config.drain_seconds), name="admission")
        following = asyncio.create_task(feed.run(), name="feed")
        campaigning = asyncio.create_task(_campaign(feed, health, election, leader))
        logger.info(
            "serving",
            extra={"listen": addresses, "extender": extended, "replica": election.identity},
        )
        failed = asyncio.create_task(_first_failure(following, campaigning, admitting))
        try:
            yield Running(
                cluster=cluster,
                feed=feed,
                leader=leader,
                election=election,
                metrics=metrics,
                addresses=tuple(addresses),
                metrics_port=port,
                extender_addresses=tuple(extended),
                admission=admission,
            )
        finally:
            failed.cancel()
            stopping = asyncio.get_running_loop().time()
            health.stop()
            was_leading = election.leading
            await leader.drain(config.drain_seconds)
            await _ended(campaigning)
            if was_leading:
                # An API server that hangs must not hold up the end.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HANDOVER_SECONDS):
                        await election.resign()
                        await leader.unmark()
            watchers.close("this replica of the scheduler cache is shutting down; retry")
            await asyncio.gather(*(server.stop(config.drain_seconds) for server in servers))
            await _ended(following)
            if kubernetes.admission.listen:
                # API servers come here until they have heard that this replica goes.
                elapsed = asyncio.get_running_loop().time() - stopping
                await asyncio.sleep(max(0.0, config.drain_seconds - elapsed))
            await _ended(admitting)


async def _campaign(feed: Feed, health: Health, election: Election, leader: Leader) -> None:
    """Once everything is known, say so and stand for election."""
    await feed.wait_synced()
    health.start()
    await election.run(leader.reign)


async def _first_failure(*tasks: asyncio.Task[None]) -> None:
    """End the process when a part of it has: half a cache is worse than a restart."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            logger.critical("a part failed; stopping", exc_info=task.exception())
            signal.raise_signal(signal.SIGTERM)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task


async def _listen(
    stack: AsyncExitStack,
    config: Config,
    client: KubeClient,
    health: Health,
    service: Callable[[Who], ClusterService],
) -> tuple[list[grpc.aio.Server], list[str]]:
    """Serve on all listeners; each kind of proof has its own server."""
    kubernetes = config.kubernetes
    files = TlsFiles(
        certificate=Path(kubernetes.certificate),
        key=Path(kubernetes.key),
        client_ca=Path(kubernetes.client_ca),
    )
    operators = frozenset(kubernetes.operators)

    async def by_certificate(context: Any) -> Identity:  # noqa: ANN401 - gRPC's context
        return of_certificate(context.auth_context(), operators)

    async def by_root(context: object) -> Identity:
        return LOCAL

    servers, addresses = [], []
    plain = grpc.aio.server(options=_OPTIONS)
    _add(plain, service(by_root), health)
    stack.enter_context(bound(plain, [checked_address(each) for each in config.listen]))
    servers.append(plain)
    for listen, who, asked in (
        (kubernetes.listen, by_certificate, True),
        (kubernetes.token_listen, _by_token(client, kubernetes), False),
    ):
        if not listen:
            continue
        server = grpc.aio.server(options=_OPTIONS)
        _add(server, service(who), health)
        credentials = server_credentials(files, require_client=asked)
        for address in listen:
            try:
                port = server.add_secure_port(address, credentials)
            except RuntimeError as error:
                raise ListenError(
                    f"{address}: cannot be bound: is another process using it?"
                ) from error
            addresses.append(f"{address.rpartition(':')[0]}:{port}")
        servers.append(server)
    for server in servers:
        await server.start()
    return servers, addresses


def _add(server: grpc.aio.Server, service: ClusterService, health: Health) -> None:
    add_SchedulerCacheServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health.add_to(server)
    reflection.enable_server_reflection((_SERVICE, reflection.SERVICE_NAME), server)


def _by_token(client: KubeClient, kubernetes: KubernetesConfig) -> Who:
    reviewer = TokenReviewer(client, kubernetes.token_audience, kubernetes.token_accounts)

    async def who(context: Any) -> Identity:  # noqa: ANN401 - gRPC's context
        for name, value in context.invocation_metadata() or ():
            if name == "authorization" and isinstance(value, str):
                kind, _, token = value.partition(" ")
                if kind.lower() == "bearer" and token:
                    return await reviewer.identity(token)
        raise NotProvedError("no token: send `authorization: Bearer TOKEN`, or use a certificate")

    return who


async def _serve_http(
    stack: AsyncExitStack, kubernetes: KubernetesConfig, metrics: Metrics, feed: Feed
) -> int:
    """Serve /metrics, /healthz and /readyz; return the port, 0 for none."""
    if not kubernetes.metrics_listen:
        return 0

    async def show(request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        return web.Response(
            text="ok\n" if feed.synced else "not synced\n", status=200 if feed.synced else 503
        )

    app = web.Application()
    app.add_routes(
        [web.get("/metrics", show), web.get("/healthz", alive), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, _, port = kubernetes.metrics_listen.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    except (OSError, ValueError) as error:
        raise ListenError(f"{kubernetes.metrics_listen}: {error}") from error
    number: int = runner.addresses[0][1]
    return number


def _connection(kubernetes: KubernetesConfig) -> Connection:
    if kubernetes.in_cluster:
        return InClusterConnection()
    if kubernetes.kubeconfig:
        return KubeconfigConnection(Path(kubernetes.kubeconfig), kubernetes.context or None)
    raise ConfigError(
        "the Kubernetes mode needs --in-cluster or --kubeconfig; use --embedded to serve this host "
        "alone"
    )
