# SPDX-License-Identifier: Apache-2.0
"""ranks.py COUNT SECONDS RANK: products and all-reduces over NCCL, one process a card.

A round is four bf16 products of 4096 and an all-reduce of 32 MiB. Prints what the run did, as
gemm.py does; how long the card was busy is CUPTI's word, a collective's wait for its peer included.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

SIZE = 4096
PRODUCTS = 4
ELEMENTS = 1 << 24
AHEAD = 4
PORT = "29517"
TRACED_SECONDS = 2.0


def main() -> None:
    """Run for so long."""
    count, seconds, rank = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, NCCL_NVLS_ENABLE="0")
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    data = torch.ones(ELEMENTS, device="cuda", dtype=torch.bfloat16)
    events = [torch.cuda.Event() for _ in range(AHEAD)]

    def rounds(most: int, until: float) -> int:
        """Run rounds; all ranks run as many, told by the first one."""
        done = 0
        while done < most and time.monotonic() < until:
            if done >= AHEAD:
                events[done % AHEAD].synchronize()
            for _ in range(PRODUCTS):
                torch.matmul(a, a, out=out)
            dist.all_reduce(data)
            events[done % AHEAD].record()
            done += 1
        torch.cuda.synchronize()
        return done

    rounds(20, time.monotonic() + 60)
    begun = time.monotonic()
    rounds(50, begun + 60)
    # As many on each rank, or one would wait for a collective that never comes.
    many = torch.tensor([50 * seconds / (time.monotonic() - begun)], device="cuda")
    dist.all_reduce(many, op=dist.ReduceOp.MIN)
    target = max(AHEAD, int(many.item()))
    begun = time.monotonic()
    done = rounds(target, begun + 600)
    wall = time.monotonic() - begun
    traced = max(AHEAD, int(target * TRACED_SECONDS / seconds))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        rounds(traced, time.monotonic() + 600)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem")
    )
    busy, end = 0.0, 0.0
    for start, stop in spans:  # products and collectives may overlap
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    share = busy / (end - spans[0][0]) if spans else 0.0
    print(
        json.dumps(
            {
                "launches": done,
                "wall_s": wall,
                "mean_ns": 0.0,
                "gap_ms": 0.0,
                "launch_stall_ms": 0.0,
                "bins": [share],
            }
        ),
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
