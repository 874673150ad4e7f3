# SPDX-License-Identifier: Apache-2.0
"""When the card ran a kernel, and what that is in bins. Pure, but for the reading of a trace."""

import itertools
from collections.abc import Sequence
from typing import Any

Span = tuple[int, int]
"""Begin and end of a kernel, ns."""
BIN_NS = 100_000_000


def of_trace(torch: Any, trace: Any) -> list[Span]:  # noqa: ANN401  modules without types
    """Return the kernels that CUPTI saw during a trace of PyTorch's profiler, in order.

    The profiler's own list of events takes half a minute for half a million of them.
    """
    cuda = torch.autograd.DeviceType.CUDA
    return sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in trace.profiler.kineto_results.events()
        if event.device_type() == cuda
        and event.duration_ns() > 0
        and not event.name().startswith(("Mem", "ProfilerStep"))
    )


def merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans that do not overlap: streams run side by side, and the card is busy once."""
    apart: list[Span] = []
    for begin, end in sorted(spans):
        if apart and begin <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((begin, end))
    return apart


def bins(spans: Sequence[Span], seconds: float) -> list[float]:
    """Return the busy share of each 100 ms from the first kernel on."""
    apart = merged(spans)
    busy_ns = [0] * round(seconds * 1e9 / BIN_NS)
    for begin, end in apart:
        begin, end = begin - apart[0][0], end - apart[0][0]
        for number in range(begin // BIN_NS, min(end // BIN_NS + 1, len(busy_ns))):
            from_, until = number * BIN_NS, (number + 1) * BIN_NS
            busy_ns[number] += min(end, until) - max(begin, from_)
    return [busy / BIN_NS for busy in busy_ns]


def summary(spans: Sequence[Span], seconds: float) -> dict[str, Any]:
    """Return what busy.c says of its stamps."""
    apart = merged(spans)
    gaps = (after[0] - before[1] for before, after in itertools.pairwise(apart))
    return {
        "stamps": len(spans),
        "mean_ns": sum(end - begin for begin, end in spans) / max(1, len(spans)),
        "gap_ms": max(gaps, default=0) / 1e6,
        "bins": bins(spans, seconds),
    }
