# SPDX-License-Identifier: Apache-2.0
"""Asks the API server whose a token is, and on which node its pod runs."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from scheduler_cache.errors import NotProvedError
from scheduler_cache.identity import Identity
from scheduler_cache.kube.client import KubeClient

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
# The kubelet puts the node's name into the token of every pod, since 1.30 (KEP-4193).
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_ACCOUNT: Final = "system:serviceaccount:"

# A token that was withdrawn is believed for so long.
_REMEMBERED_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 10.0
_REMEMBERED: Final = 10_000


class TokenReviewer:
    """Remembers answers for a minute, under a hash of the token."""

    def __init__(
        self,
        client: KubeClient,
        audience: str,
        accounts: Collection[str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`accounts`: NAMESPACE/NAME of the service accounts that agents run under."""
        self._client = client
        self._audience = audience
        self._users = {f"{_ACCOUNT}{account.replace('/', ':')}" for account in accounts}
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, tuple[float, Identity | str]] = OrderedDict()

    async def identity(self, token: str) -> Identity:
        """Return whom a token proves. Raises NotProvedError, KubeError when nobody can say."""
        digest = hashlib.sha256(token.encode()).digest()
        now = self._monotonic()
        until, answer = self._known.get(digest, (float("-inf"), ""))
        if now >= until:
            answer = await self._ask(token)
            kept = _REMEMBERED_SECONDS if isinstance(answer, Identity) else _REFUSED_SECONDS
            self._known[digest] = (now + kept, answer)
            self._known.move_to_end(digest)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        if isinstance(answer, Identity):
            return answer
        raise NotProvedError(answer)

    async def _ask(self, token: str) -> Identity | str:
        review = await self._client.create(
            _PATH,
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [self._audience]},
            },
        )
        status = review.get("status", {})
        if not status.get("authenticated") or self._audience not in status.get("audiences", ()):
            why = status.get("error") or f"it is not a valid token for audience {self._audience}"
            return f"the API server does not accept the token: {why}"
        user = status.get("user", {})
        name = user.get("username", "")
        if name not in self._users:
            return f"{name} is not a service account that node agents run under"
        nodes = user.get("extra", {}).get(_NODE_NAME, ())
        if len(nodes) != 1:
            return (
                f"the token of {name} names no node: it must be a projected token of a pod, and "
                "the API server 1.30 or later; use certificates otherwise"
            )
        return Identity(f"node {nodes[0]}", nodes[0])
