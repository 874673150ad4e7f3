# SPDX-License-Identifier: Apache-2.0
"""ranks.py COUNT RANK PORT SECONDS: what several cards do together over NCCL, a process a card.

Two workloads, one after the other: `all-reduce`, a round of which is four bf16 products of 4096 and
an all-reduce of 32 MiB; and `tensor parallel`, the feed-forward part of a transformer in the manner
of Megatron: the first layer split by columns, the second by rows, forward and backward, an
all-reduce in each. Prints a line of JSON each, as torch_busy.py does; what CUPTI says of a
collective includes the wait for the other ranks.

Every wait ends: a collective after COLLECTIVE_SECONDS, the process itself after LIFE_SECONDS.
"""

import contextlib
import datetime
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.gpu import spans

SIZE = 4096
PRODUCTS = 4
ELEMENTS = 1 << 24
WIDTH, INNER, TOKENS = 4096, 16384, 2048
AHEAD = 4
WARM_UP_ROUNDS = 20
TRIAL_ROUNDS = 30
TRACED_SECONDS = 2.0
COLLECTIVE_SECONDS = 45
LIFE_SECONDS = 110

Round = Callable[[], None]


def all_reduce(torch: Any, dist: Any, count: int) -> Round:  # noqa: ANN401  modules without types
    """Return a round of products and an all-reduce of data that nobody uses."""
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    data = torch.ones(ELEMENTS, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        for _ in range(PRODUCTS):
            torch.matmul(a, a, out=out)
        data.div_(count)  # or the sums would grow without end
        dist.all_reduce(data)

    return step


def tensor_parallel(torch: Any, dist: Any, count: int) -> Round:  # noqa: ANN401
    """Return a training step of two linear layers of which each rank has a part.

    Forward, the parts of the result are summed; backward, those of the input's gradient.
    """
    functional = torch.nn.functional
    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    columns, rows = (
        (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * WIDTH**-0.5).requires_grad_()
        for shape in ((WIDTH, INNER // count), (INNER // count, WIDTH))
    )
    ones = torch.ones(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        x.grad = columns.grad = rows.grad = None
        part = functional.gelu(x @ columns) @ rows
        whole = part.detach().clone()
        dist.all_reduce(whole)
        part.backward(ones)
        dist.all_reduce(x.grad)

    return step


def measure(
    torch: Any,  # noqa: ANN401
    dist: Any,  # noqa: ANN401
    step: Round,
    seconds: float,
) -> dict[str, Any]:
    """Run rounds for about so long, as many on each rank: a collective needs all of them."""
    events = [torch.cuda.Event() for _ in range(AHEAD)]

    def rounds(count: int) -> float:
        begun = time.monotonic()
        for number in range(count):
            if number >= AHEAD:
                events[number % AHEAD].synchronize()
            step()
            events[number % AHEAD].record()
        torch.cuda.synchronize()
        return time.monotonic() - begun

    rounds(WARM_UP_ROUNDS)
    each = torch.tensor([TRIAL_ROUNDS / rounds(TRIAL_ROUNDS)], device="cuda")
    dist.all_reduce(each, op=dist.ReduceOp.MIN)
    rate = float(each.item())
    count = max(AHEAD, int(rate * seconds))
    wall = rounds(count)
    traced = max(AHEAD, int(rate * TRACED_SECONDS))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        traced_wall = rounds(traced)
    seen = spans.of_trace(torch, trace)
    apart = spans.merged(seen)
    busy_ns = sum(end - begin for begin, end in apart)
    return {
        "launches": count,
        "wall_s": wall,
        "trace_cost": 1 - (traced / traced_wall) / (count / wall),
        "launch_stall_ms": 0.0,
        "first_ms": 0.0,
        **spans.summary(seen, 0),
        "bins": [busy_ns / max(1, apart[-1][1] - apart[0][0]) if apart else 0.0],
    }


WORKLOADS = {"all-reduce": all_reduce, "tensor parallel": tensor_parallel}


def main() -> None:
    """Measure each workload."""
    count, rank, port, seconds = *map(int, sys.argv[1:4]), float(sys.argv[4])
    signal.alarm(LIFE_SECONDS)  # whatever hangs, also inside the driver: the default action ends it
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
    )
    # The first trace of a process starts CUPTI: some launches take a second.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    for name, make in WORKLOADS.items():
        found = measure(torch, dist, make(torch, dist, count), seconds)
        print(json.dumps({"workload": name, **found}), flush=True)
    with contextlib.suppress(RuntimeError):  # all is said; what a peer's end does is of no matter
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
