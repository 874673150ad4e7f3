# SPDX-License-Identifier: Apache-2.0
"""Lets the replicas that follow know which pods have ended: an annotation of the leader's Lease.

The leader renews its Lease anyway, and every other replica reads it anyway, so that this costs no
request. Nobody but the holder of the Lease can write it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from scheduler_cache.cluster import Cluster
from scheduler_cache.cluster_feed import Feed
from scheduler_cache.ends import ends_of
from scheduler_cache.errors import NotLeaderError

ENDS: Final = "vgpu.dev/ends"
"""An annotation of the Lease."""


class Relay:
    """Says and hears, each replica one of the two at a time."""

    def __init__(
        self,
        cluster: Cluster,
        feed: Feed,
        check: Callable[[], int],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`check` raises NotLeaderError unless this replica leads and knows what was written."""
        self._cluster = cluster
        self._feed = feed
        self._check = check
        self._now_ns = now_ns
        self._forgetting: asyncio.Task[None] | None = None

    def said(self) -> Mapping[str, str]:
        """Return what a leader writes on its Lease now; empty: what stands there stays."""
        try:
            self._check()
        except NotLeaderError:
            return {}
        # While the pods are listed anew, what is known is of no one moment.
        version = self._feed.pods.version
        text = self._cluster.ends(version).text() if version else ""
        return {ENDS: text} if text else {}

    def heard(self, annotations: Mapping[str, str]) -> None:
        """Take in what another's Lease says."""
        ends = ends_of(annotations.get(ENDS, ""))
        if ends is not None and self._feed.synced:
            self._feed.publish(self._cluster.apply_ends(ends, self._now_ns()))
        # What agents told while this replica led, they tell another by now.
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self._feed.forget_reports())
