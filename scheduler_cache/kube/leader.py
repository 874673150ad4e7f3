# SPDX-License-Identifier: Apache-2.0
"""Which of the replicas may write: whoever holds a Lease, by the rules of client-go.

Only the local clock that counts from boot, sleep included, decides. Another's Lease has run out
when it was not seen to change for its duration; our own counts until `renew_seconds` after the
*start* of the last renewal that succeeded, which is earlier than anybody else may take it. A clock
that jumps changes nothing; a process that was paused finds at its next look that it leads no
longer.

`epoch` is the Lease's number of transitions. It grows with every new holder, also when somebody
deleted the Lease: it never falls below what was already used.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler_cache.errors import NotLeaderError
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import ConflictError, KubeError, MissingError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """How long a Lease holds. The defaults are client-go's."""

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    """When a renewal has not succeeded for so long, the holder stops writing by itself."""
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError("retry < renew < lease is what keeps two from leading at once")


class Election:
    """One candidate. `run` until cancelled; `resign` when stopping."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        terms: Terms | None = None,
        epoch_floor: Callable[[], int] = lambda: 0,
        said: Callable[[], Mapping[str, str]] = dict,
        heard: Callable[[Mapping[str, str]], None] = lambda annotations: None,
        monotonic: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`said`: annotations to be written on the Lease with each renewal, beside those that it
        has. `heard` is given the annotations of a Lease that is not ours, at each look at it.
        """
        self._client = client
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self.identity = identity
        self._terms = terms or Terms()
        self._epoch_floor = epoch_floor
        self._said = said
        self._heard = heard
        self._monotonic = monotonic
        self._now = now
        self._sleep = sleep
        self._held_until = float("-inf")
        self._epoch = 0
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = float("-inf")
        self._holder = ""
        self.transitions = 0

    @property
    def leading(self) -> bool:
        """Whether this process may write at this moment."""
        return self._monotonic() < self._held_until

    @property
    def epoch(self) -> int:
        """The number under which this process leads, or led last."""
        return self._epoch

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last seen; empty: nobody."""
        return self._holder

    def check(self) -> int:
        """Return the epoch, or raise NotLeaderError. To be called right before each write."""
        if not self.leading:
            who = self._holder if self._holder != self.identity else ""
            raise NotLeaderError(
                f"this replica does not lead; {who or 'nobody'} does; retrying is safe"
            )
        return self._epoch

    async def run(self, started: Callable[[int], Awaitable[None]]) -> None:
        """Campaign for ever; `started` is awaited, under a held Lease, at the start of each reign.

        It is cancelled when the reign ends before it does, and need not return while it lasts. What
        it raises ends the campaign: to lead without doing the leader's work would be worse.
        """
        while True:
            await self._campaign()
            logger.info("leading", extra={"lease": self._name, "epoch": self._epoch})
            self.transitions += 1
            reign = asyncio.ensure_future(started(self._epoch))
            renewing = asyncio.ensure_future(self._reign())
            try:
                done, _ = await asyncio.wait((reign, renewing), return_when=asyncio.FIRST_COMPLETED)
                if reign in done:
                    reign.result()
                await renewing
            finally:
                self._held_until = float("-inf")
                for task in (reign, renewing):
                    task.cancel()
                await asyncio.gather(reign, renewing, return_exceptions=True)
            logger.warning("no longer leading", extra={"lease": self._name, "epoch": self._epoch})

    async def resign(self) -> None:
        """Let another take over at once. For after `run` was cancelled and the last write is done.

        A Lease that is no longer ours, and a server that does not answer, are left alone.
        """
        self._held_until = float("-inf")
        with suppress(KubeError, TimeoutError):
            async with asyncio.timeout(self._terms.retry_seconds):
                lease = await self._client.get(f"{self._leases}/{self._name}")
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"].update(
                        holderIdentity="", leaseDurationSeconds=1, renewTime=self._stamp()
                    )
                    await self._client.replace(f"{self._leases}/{self._name}", lease)

    async def _campaign(self) -> None:
        """Return once the Lease is ours."""
        while True:
            with suppress(KubeError, TimeoutError):
                if await self._try(self._terms.renew_seconds):
                    return
            await self._sleep(self._terms.retry_seconds * random.uniform(0.8, 1.2))

    async def _reign(self) -> None:
        """Renew, and return once that has failed for too long or another holds the Lease.

        A Lease that was deleted and made anew has a new epoch, and with it begins another reign:
        another may have held one in between.
        """
        epoch = self._epoch
        while self.leading and self._epoch == epoch:
            await self._sleep(self._terms.retry_seconds)
            left = self._held_until - self._monotonic()
            if left <= 0:
                return
            try:
                if not await self._try(left):
                    return
            except (KubeError, TimeoutError) as error:
                logger.warning("the Lease could not be renewed", extra={"reason": str(error)})

    async def _try(self, seconds: float) -> bool:
        """Take or renew the Lease; return whether it is ours. Raises KubeError, TimeoutError."""
        async with asyncio.timeout(seconds):
            started = self._monotonic()
            try:
                lease = await self._client.get(f"{self._leases}/{self._name}")
            except MissingError:
                return await self._create(started)
            spec = lease.setdefault("spec", {})
            self._holder = spec.get("holderIdentity") or ""
            # Any write counts as a sign of life, whatever the holder's clock wrote into it.
            seen = (self._holder, lease["metadata"]["resourceVersion"])
            if seen != self._observed:
                self._observed, self._observed_at = seen, started
            ours = self._holder == self.identity
            annotations = lease["metadata"].get("annotations") or {}
            if ours:
                lease["metadata"]["annotations"] = {**annotations, **self._said()}
            else:
                self._heard(annotations)
            duration = float(spec.get("leaseDurationSeconds") or self._terms.lease_seconds)
            if not ours and self._holder and started < self._observed_at + duration:
                return False
            epoch = self._epoch if ours else self._next(spec)
            if not ours:
                spec["leaseTransitions"] = epoch
                spec["acquireTime"] = self._stamp()
            spec.update(self._terms_spec())
            # The resourceVersion in it lets this fail when somebody else was faster.
            try:
                await self._client.replace(f"{self._leases}/{self._name}", lease)
            except ConflictError:
                return False
            return self._won(epoch, started)

    async def _create(self, started: float) -> bool:
        epoch = self._next({})
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": {
                **self._terms_spec(),
                "acquireTime": self._stamp(),
                "leaseTransitions": epoch,
            },
        }
        try:
            await self._client.create(self._leases, body)
        except ConflictError:
            return False
        return self._won(epoch, started)

    def _won(self, epoch: int, started: float) -> bool:
        self._holder, self._epoch = self.identity, epoch
        self._held_until = started + self._terms.renew_seconds
        return True

    def _next(self, spec: dict[str, Any]) -> int:
        return max(int(spec.get("leaseTransitions") or 0), self._epoch, self._epoch_floor()) + 1

    def _terms_spec(self) -> dict[str, object]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._terms.lease_seconds)),
            "renewTime": self._stamp(),
        }

    def _stamp(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
