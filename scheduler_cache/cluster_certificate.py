# SPDX-License-Identifier: Apache-2.0
"""Keeps the webhooks' certificate: in a Secret that all replicas share, believed by API servers.

Whichever replica comes first makes it; the Secret's resourceVersion settles who that is. A new one
is announced before it is used: every replica first sees that both webhook configurations name its
authority, lets the API servers hear of it, and only then serves under it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from scheduler_cache.admission.certificate import (
    Held,
    UnusableSecretError,
    believes,
    held_of,
    made,
    service_names,
)
from scheduler_cache.config_kubernetes import KubernetesConfig
from scheduler_cache.https import Pem
from scheduler_cache.kube.client import Backoff, KubeClient
from scheduler_cache.kube.errors import ConflictError, KubeError, MissingError

logger = logging.getLogger(__name__)

_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
# Two replicas that write at once: one of them looks again, at once.
_TRIES: Final = 5


def _now() -> datetime:
    return datetime.now(UTC)


class CertificateKeeper:
    """One replica's part. `run` keeps; `source` says what to serve under."""

    def __init__(
        self, client: KubeClient, kubernetes: KubernetesConfig, now: Callable[[], datetime] = _now
    ) -> None:
        admission = kubernetes.admission
        self._client = client
        self._now = now
        self._names = service_names(admission.service, kubernetes.namespace)
        self._secrets = f"/api/v1/namespaces/{kubernetes.namespace}/secrets"
        self._secret = admission.secret
        self._webhooks = admission.webhooks
        self._life = timedelta(days=admission.certificate_days)
        self._check_seconds = admission.check_seconds
        self._settle_seconds = admission.settle_seconds
        self._client_ca = Path(admission.client_ca) if admission.client_ca else None
        self._served: Held | None = None
        self.ready = asyncio.Event()
        """Set once there is a certificate to serve under."""

    def source(self) -> Pem:
        """Return what to serve under, once `ready`."""
        served = self._served
        if served is None:
            raise OSError("there is no certificate yet")
        client_ca = self._client_ca.read_bytes() if self._client_ca is not None else b""
        return Pem(served.certificate, served.key, client_ca)

    async def run(self) -> None:
        """Keep the certificate until cancelled; whatever fails is tried again."""
        backoff = Backoff(longest_seconds=self._check_seconds)
        while True:
            try:
                await self.keep()
            except KubeError as error:
                logger.warning(
                    "the webhooks' certificate cannot be kept", extra={"reason": str(error)}
                )
                await asyncio.sleep(backoff.pause())
            else:
                backoff.reset()
                await asyncio.sleep(self._check_seconds)

    async def keep(self) -> None:
        """Do once what is due. Raises KubeError."""
        held = await self._present()
        await self._announce(held)
        if held == self._served:
            return
        if self._served is not None:
            # The old one is good for a third of its life yet.
            await asyncio.sleep(self._settle_seconds)
        self._served = held
        self.ready.set()
        logger.info(
            "the webhooks' certificate is new", extra={"not_after": held.not_after.isoformat()}
        )

    async def _present(self) -> Held:
        """Return what the Secret holds, made anew where that is due."""
        for _ in range(_TRIES):
            try:
                return await self._looked_up()
            except ConflictError:
                continue
        return await self._looked_up()

    async def _looked_up(self) -> Held:
        path = f"{self._secrets}/{self._secret}"
        try:
            secret = await self._client.get(path)
        except MissingError:
            held = made(self._names, self._now(), self._life)
            await self._client.create(self._secrets, self._object(held, {}))
            logger.info("made the first certificate", extra={"secret": self._secret})
            return held
        present, reason = self._judged(secret)
        if present is not None and not reason:
            return present
        # Who believes what is served now goes on doing so, also when the Secret was spoilt.
        new = made(self._names, self._now(), self._life, present or self._served)
        await self._client.replace(path, self._object(new, secret))
        logger.info("made a new certificate", extra={"secret": self._secret, "reason": reason})
        return new

    def _judged(self, secret: dict[str, Any]) -> tuple[Held | None, str]:
        try:
            held = held_of(secret.get("data") or {})
        except UnusableSecretError as error:
            return None, str(error)
        return held, held.due(self._names, self._now())

    def _object(self, held: Held, before: dict[str, Any]) -> dict[str, Any]:
        """Return the Secret; what else stands in its metadata stays."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**before.get("metadata", {}), "name": self._secret},
            "type": before.get("type", "kubernetes.io/tls"),
            "data": held.data(),
        }

    async def _announce(self, held: Held) -> None:
        """Write the authorities into both configurations, where they are not yet."""
        for kind in _KINDS:
            await self._write(f"{_REGISTRATION}/{kind}/{self._webhooks}", held)

    async def _write(self, path: str, held: Held) -> None:
        try:
            configuration = await self._client.get(path)
        except MissingError:
            logger.warning("there is no such webhook configuration", extra={"path": path})
            return
        webhooks = configuration.get("webhooks") or []
        if all(_believed(each, held) for each in webhooks):
            return
        bundle = base64.b64encode(held.authorities).decode()
        patch = {
            # Another version may have other webhooks; ConflictError then, and the next look.
            "metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]},
            "webhooks": [
                {**each, "clientConfig": {**each["clientConfig"], "caBundle": bundle}}
                for each in webhooks
            ],
        }
        await self._client.patch(path, patch)
        logger.info("told the API servers who signs the certificate", extra={"path": path})


def _believed(webhook: dict[str, Any], held: Held) -> bool:
    try:
        bundle = base64.b64decode(webhook["clientConfig"].get("caBundle") or "", validate=True)
    except ValueError:
        return False
    return believes(bundle, held)
