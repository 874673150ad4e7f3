# SPDX-License-Identifier: Apache-2.0
"""What the agent counts about itself: plain numbers, so that counting costs a create nothing.

Every key is known beforehand: no tenant can make a series. One writer each; whoever reads may see a
number a moment late.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

VERDICTS: Final = ("low-level", "gpu", "refuse", "late")
"""`late`: the launcher went away, or its time was over."""

REFUSALS: Final = (
    "bundle",
    "identity",
    "kubelet",
    "request",
    "policy",
    "library",
    "rootfs",
    "cache",
    "no_room",
    "cache_unreachable",
    "cache_failed",
    "files",
    "failure",
)
"""At which step a create was refused; `failure` is a fault of the agent's own."""

EVENTS: Final = ("over_limit", "unhooked", "foreign", "damaged_usage", "ended")
"""`ended`: a process was killed by policy."""

LATENCY_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032),
    *(0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
)
"""Upper bounds of the classes of a verdict's latency."""


@dataclass
class Counters:
    """Everything that only grows, since this agent started."""

    verdicts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    refusals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVENTS, 0))
    stored_answers: int = 0
    """Containers that started from a stored answer while the cache was away."""
    resolved_by_identity: int = 0
    """Containers without a UUID that were known by their pod and name."""
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_SECONDS) + 1))
    """Verdicts by class; the last one is above all bounds."""
    latency_sum_seconds: float = 0.0

    def verdict(self, kind: str, seconds: float) -> None:
        """Count a verdict that took so long."""
        self.verdicts[kind] += 1
        self.latency_counts[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self.latency_sum_seconds += seconds
