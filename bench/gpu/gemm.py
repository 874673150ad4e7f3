# SPDX-License-Identifier: Apache-2.0
"""gemm.py: bf16 matrix products of 4096 in PyTorch, as fast as they can be launched.

Speaks as busy.c. How long the card was busy is what CUPTI says of every kernel, through PyTorch's
profiler. A run is traced as a whole, its first 0.2 s are left out.
"""

import importlib
import itertools
import json
import sys
import time
from typing import Any

SIZE = 4096
AHEAD = 4
BIN_SECONDS = 0.1


def run(torch: Any, seconds: float) -> dict[str, Any]:  # noqa: ANN401
    """Multiply for so many seconds and return what the card did."""
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    events = [torch.cuda.Event() for _ in range(AHEAD)]
    launches = 0
    stall = 0.0
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        begun = last = time.monotonic()
        while last - begun < seconds:
            if launches >= AHEAD:
                events[launches % AHEAD].synchronize()
            torch.matmul(a, b, out=out)
            events[launches % AHEAD].record()
            launches += 1
            now = time.monotonic()
            stall = max(stall, now - last)
            last = now
        torch.cuda.synchronize()
        wall = time.monotonic() - begun
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem")
    )
    bins = [0.0] * round(seconds / BIN_SECONDS)
    width_us = BIN_SECONDS * 1e6
    for start, end in spans:
        begin, until = start - spans[0][0], end - spans[0][0]
        for number in range(int(begin // width_us), min(int(until // width_us) + 1, len(bins))):
            overlap = min(until, (number + 1) * width_us) - max(begin, number * width_us)
            bins[number] += overlap / width_us
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(spans)]
    return {
        "launches": launches,
        "wall_s": wall,
        "stamps": len(spans),
        "mean_ns": 1e3 * sum(end - start for start, end in spans) / max(1, len(spans)),
        "gap_ms": max(gaps, default=0.0) / 1e3,
        "launch_stall_ms": stall * 1e3,
        "bins": bins,
    }


def main() -> None:
    """Run as often as asked."""
    torch: Any = importlib.import_module("torch")
    torch.cuda.init()
    run(torch, 0.3)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(torch, float(line))), flush=True)


if __name__ == "__main__":
    main()
