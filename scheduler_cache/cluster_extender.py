# SPDX-License-Identifier: Apache-2.0
"""The extender of kube-scheduler over HTTP: JSON in, the pure part's answer out; the leader binds.

Every replica that is synced filters, scores and preempts; the leader alone binds. Whoever cannot
answer says so with 503, and kube-scheduler tries the pod again: nothing ever fits by accident.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from scheduler_cache import https
from scheduler_cache.cluster import Cluster
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.cluster_leader import Leader
from scheduler_cache.cluster_metrics import Metrics
from scheduler_cache.cluster_preemption import Preemption
from scheduler_cache.cluster_wakeup import Wakeup
from scheduler_cache.config import Config
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.errors import (
    InvalidRequestError,
    NotLeaderError,
    NotSyncedError,
    NotYetError,
    SchedulerCacheError,
)
from scheduler_cache.extender import messages
from scheduler_cache.extender.messages import BindingAsked, Victims
from scheduler_cache.extender.verbs import Extender
from scheduler_cache.https import Answer, Handler
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import KubeError
from scheduler_cache.model import CardPolicy
from scheduler_cache.record import Record

logger = logging.getLogger(__name__)

PREFIX: Final = "/extender"
"""What `urlPrefix` ends with in the scheduler's configuration."""

VERBS: Final = ("filter", "prioritize", "preempt", "bind")

# 5,000 whole Node objects, for callers that keep no cache of them.
_BODY_BYTES: Final = 128 << 20


class ExtenderService:
    """The four verbs, each a handler of a POST."""

    def __init__(
        self,
        extender: Extender,
        feed: Feed,
        leader: Leader,
        metrics: Metrics,
        wakeup: Wakeup,
        preemption: Preemption,
        *,
        bind_wait_seconds: float = 2.0,
    ) -> None:
        """`bind_wait_seconds`: how long a bind waits for the news of its pod."""
        self._extender = extender
        self._feed = feed
        self._leader = leader
        self._metrics = metrics
        self._wakeup = wakeup
        self._preemption = preemption
        self._bind_wait_seconds = bind_wait_seconds
        feed.followers += (extender.follow, wakeup.follow)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By path."""
        verbs = (self._filter, self._prioritize, self._preempt, self._bind)
        return {
            f"{PREFIX}/{name}": self._answering(name, verb)
            for name, verb in zip(VERBS, verbs, strict=True)
        }

    def _answering(
        self, name: str, verb: Callable[[bytes], Awaitable[tuple[str, bytes]]]
    ) -> Handler:
        """Return a handler that times and counts a verb, and gives its errors their status."""

        async def answer(body: bytes) -> Answer:
            started = time.perf_counter()
            outcome = "failed"
            try:
                self._feed.check_synced()
                outcome, result = await verb(body)
                return Answer(result)
            except InvalidRequestError as error:
                outcome = "invalid"
                return Answer(f"{error}\n".encode(), 400)
            except (NotSyncedError, NotLeaderError) as error:
                outcome = "unavailable"
                return Answer(f"{error}\n".encode(), 503)
            finally:
                self._metrics.extended(name, outcome, time.perf_counter() - started)

        return answer

    async def _filter(self, body: bytes) -> tuple[str, bytes]:
        asked = messages.nodes_asked(body)
        result = self._extender.filter(asked.pod, asked.names)
        if result.unheard:
            # Agents report to the leader alone: a follower cannot say that nothing fits.
            self._leader.check()
        if not result.fitting:
            uid = asked.pod["metadata"]["uid"]
            self._wakeup.turned_away(uid)
            self._preemption.consider(uid, list(result.failed))
        return "fits" if result.fitting else "fits_nowhere", messages.filter_result(
            asked, result.fitting, result.failed, result.unresolvable
        )

    async def _prioritize(self, body: bytes) -> tuple[str, bytes]:
        asked = messages.nodes_asked(body)
        scores = self._extender.prioritize(asked.pod, asked.names)
        return "scored", messages.host_priorities(asked.names, scores)

    async def _preempt(self, body: bytes) -> tuple[str, bytes]:
        asked = messages.preemption_asked(body)
        found: dict[str, Victims] = {}
        for name, victims in asked.victims.items():
            found |= self._extender.preempt(asked.pod, {name: victims})
            await asyncio.sleep(0)  # a node may take some ms, and others want answers
        return "helps" if found else "helps_nowhere", messages.preemption_result(found)

    async def _bind(self, body: bytes) -> tuple[str, bytes]:
        asked = messages.binding_asked(body)
        self._leader.check()
        try:
            record = await self._known(asked)
            if record.request is None and not record.request_error:
                await self._leader.bind_without_cards(record.pod, asked.node_name)
            else:
                await self._leader.bind(asked.uid, asked.node_name)
        except NotLeaderError:
            raise
        except (SchedulerCacheError, KubeError) as error:
            extra = {"pod": f"{asked.namespace}/{asked.name}", "node": asked.node_name}
            logger.info("not bound", extra={**extra, "reason": str(error)})
            return "refused", messages.binding_result(str(error))
        return "bound", messages.binding_result()

    async def _known(self, asked: BindingAsked) -> Record:
        """Return the pod to bind; wait for news of one that kube-scheduler heard of first."""
        deadline = time.monotonic() + self._bind_wait_seconds
        with self._feed.waiting.on(asked.uid, asked.node_name) as changed:
            while True:
                changed.clear()
                try:
                    return self._extender.check_binding(asked)
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
async def serving(
    config: Config,
    client: KubeClient,
    cluster: Cluster,
    dialects: Dialects,
    feed: Feed,
    leader: Leader,
    metrics: Metrics,
) -> AsyncIterator[list[str]]:
    """Serve the verbs inside the block, where they are configured; yield the addresses with true
    ports. Raises ListenError.
    """
    kubernetes, options = config.kubernetes, config.kubernetes.extender
    if not options.listen:
        yield []
        return
    extender = Extender(
        cluster,
        dialects,
        default_policy=CardPolicy(config.card_policy),
        scheduler_names=options.scheduler_names,
    )
    service = ExtenderService(
        extender,
        feed,
        leader,
        metrics,
        Wakeup(client, cluster, leader),
        Preemption(client, cluster, extender, leader, enabled=options.preempt_slices),
        bind_wait_seconds=options.bind_wait_seconds,
    )
    source = None
    if not options.plain:
        source = https.pem_files(
            Path(options.certificate or kubernetes.certificate),
            Path(options.key or kubernetes.key),
            Path(options.client_ca or kubernetes.client_ca),
        )
    async with https.serving(
        service.handlers,
        options.listen,
        source,
        client_names=() if options.plain else options.client_names,
        body_bytes=_BODY_BYTES,
        drain_seconds=config.drain_seconds,
    ) as addresses:
        yield addresses
