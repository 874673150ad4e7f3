# SPDX-License-Identifier: Apache-2.0
"""What a limit promises of a workload, in points of GPU-busy time. Pure.

Source: the targets of docs/benchmarks/libvgpu-compute.md.
"""

from dataclasses import dataclass

LIMITS = (10, 25, 50, 75, 90)
SHORT_NS = 50e3
LONG_NS = 5e6
RMS_POINTS = 3.0
STALL_MS = 100.0
TOGETHER_POINTS = 2.0
IDLE_POINTS = 2.0
THROUGHPUT_POINTS = 3.0
SATURATED = 97.0
"""Bare, a workload that leaves the card less than 3 % idle: its limit is all that slows it."""
WHOLE_SHARE = 0.995
BURST_SHARE = 0.98
TAKE_BACK_MS = 10.0
RANKS_LIMIT = 40
RANKS_SHARE = 0.38


@dataclass(frozen=True, kw_only=True)
class Nature:
    """What a workload launches."""

    kernel_ns: float
    """One kernel; where they differ, about the longest."""
    launch_ns: float
    """All that one launch starts: nothing takes it back."""
    waits: bool = False
    """Whether each launch is waited for."""
    steady: bool = True
    """Whether it does the same all the time, so that the figure may be asked for in points."""
    fixed_work: bool = True
    """Whether a kernel is the same work in the same time, whatever the card's clocks."""


def expected(limit: float, bare: float) -> float:
    """What a workload gets that has the card for itself."""
    return min(limit, bare)


def run_points(nature: Nature, seconds: float) -> float:
    """How far a run from the first kernel on may be off."""
    if nature.waits and nature.kernel_ns < SHORT_NS:
        return 5.0
    return max(2.0, 100 * nature.launch_ns / 1e9 / seconds)


def steady_points(nature: Nature) -> float | None:
    """How far a run without its first second may be off, where that is asked for."""
    if nature.waits or not nature.steady or nature.kernel_ns > LONG_NS:
        return None
    return 1.0 if nature.kernel_ns >= 100e3 else 2.0


def rms_points(nature: Nature) -> float | None:
    """How much bins of 100 ms may differ, where that is asked for."""
    return RMS_POINTS if nature.kernel_ns <= LONG_NS else None


def stall_ms(nature: Nature, share: float) -> float:
    """How long a container with so many percent may see no kernel of its own run."""
    if nature.launch_ns <= LONG_NS:
        return STALL_MS
    return nature.launch_ns / 1e6 / (share / 100)


def in_turns(limit: float, bare: float) -> float:
    """What a workload gets of a card that is shared out whole: its idle time lies in its turns."""
    return limit * bare / 100
