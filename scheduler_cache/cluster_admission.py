# SPDX-License-Identifier: Apache-2.0
"""Serves the webhooks. Every replica does: an answer depends on the question alone.

The one exception: of a Binding that carries annotations of ours, the pod is read from the API
server, since it may repeat what the pod carries. An answer changes nothing, here or elsewhere, so
that a dry run needs nothing of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Histogram

from scheduler_cache.admission.manifests import MUTATE_PATH, VALIDATE_PATH
from scheduler_cache.admission.mutation import mutated
from scheduler_cache.admission.review import (
    Review,
    UnreadableReviewError,
    Verdict,
    answer_of,
    review_of,
)
from scheduler_cache.admission.rules import Rules
from scheduler_cache.admission.validation import needs_pod, validated
from scheduler_cache.cluster_certificate import CertificateKeeper
from scheduler_cache.config_kubernetes import KubernetesConfig
from scheduler_cache.https import Answer, Handler, PemSource, pem_files, serving
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import KubeError, UnreachableError

logger = logging.getLogger(__name__)

# Less than the API server waits for the answer, so that it hears the reason.
_READ_SECONDS: Final = 3.0

_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1)


class AdmissionMetrics:
    """What Prometheus reads of the webhooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reviews = Counter(
            "vgpu_admission_reviews",
            "Reviews by webhook and outcome: allowed, patched, denied, unreadable.",
            ("webhook", "outcome"),
            registry=registry,
        )
        self.seconds = Histogram(
            "vgpu_admission_seconds",
            "Time from a review's body to the body of its answer.",
            ("webhook",),
            buckets=_SECONDS,
            registry=registry,
        )


class Admission:
    """The webhooks of one replica; none where nothing is listened on. `run` serves them until it is
    cancelled.
    """

    def __init__(
        self,
        client: KubeClient,
        kubernetes: KubernetesConfig,
        rules: Rules,
        registry: CollectorRegistry,
    ) -> None:
        self._client = client
        self._kubernetes = kubernetes
        self._rules = rules
        self._metrics = AdmissionMetrics(registry)
        self._handlers = {
            MUTATE_PATH: self._handler("mutate", self._mutated),
            VALIDATE_PATH: self._handler("validate", self._validated),
        }
        self.addresses: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        """Where it listens, with true ports, once it does."""

    async def run(self, drain_seconds: float = 2.0) -> None:
        """Serve. An address that cannot be listened on ends it; an API server is waited for."""
        admission = self._kubernetes.admission
        if not admission.listen:
            self.addresses.set_result(())
            await asyncio.Event().wait()
        files = self._files()
        if files is not None:
            await self._serve(files, drain_seconds)
        keeper = CertificateKeeper(self._client, self._kubernetes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.run())
            await keeper.ready.wait()
            await self._serve(keeper.source, drain_seconds)

    async def _serve(self, source: PemSource, drain_seconds: float) -> NoReturn:
        admission = self._kubernetes.admission
        async with serving(
            self._handlers,
            admission.listen,
            source,
            client_names=admission.client_names,
            drain_seconds=drain_seconds,
        ) as addresses:
            self.addresses.set_result(addresses)
            logger.info("serving the webhooks", extra={"listen": addresses})
            await asyncio.Event().wait()
        raise AssertionError("served until cancelled")

    def _files(self) -> PemSource | None:
        admission = self._kubernetes.admission
        if not admission.certificate:
            return None
        client_ca = Path(admission.client_ca) if admission.client_ca else None
        return pem_files(Path(admission.certificate), Path(admission.key), client_ca)

    async def _mutated(self, review: Review) -> Verdict:
        return mutated(review, self._rules, lambda: str(uuid.uuid4()))

    async def _validated(self, review: Review) -> Verdict:
        if not needs_pod(review, self._rules):
            return validated(review, self._rules)
        try:
            pod = await self._pod_of(review)
        except KubeError as error:
            return Verdict(denial=f"the pod of the Binding was not read: {error}; bind it again")
        return validated(review, self._rules, pod)

    async def _pod_of(self, review: Review) -> dict[str, Any]:
        """Return the pod that a Binding is for. Never the informer's, which may be behind."""
        metadata = review.new.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        path = f"/api/v1/namespaces/{quote(review.namespace, '')}/pods/{quote(str(name), '')}"
        try:
            async with asyncio.timeout(_READ_SECONDS):
                return await self._client.get(path)
        except TimeoutError:
            raise UnreachableError(f"no answer within {_READ_SECONDS:g} s") from None

    def _handler(self, webhook: str, judge: Callable[[Review], Awaitable[Verdict]]) -> Handler:
        reviews, seconds = self._metrics.reviews, self._metrics.seconds.labels(webhook)

        async def answer(body: bytes) -> Answer:
            start = time.perf_counter()
            try:
                review = review_of(body)
            except UnreadableReviewError as error:
                reviews.labels(webhook, "unreadable").inc()
                return Answer(f"{error}\n".encode(), 400)
            verdict = await judge(review)
            answered = answer_of(review, verdict)
            reviews.labels(webhook, _outcome(verdict)).inc()
            seconds.observe(time.perf_counter() - start)
            return Answer(answered)

        return answer


def _outcome(verdict: Verdict) -> str:
    if verdict.denial:
        return "denied"
    return "patched" if verdict.patch else "allowed"
