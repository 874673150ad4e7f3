# SPDX-License-Identifier: Apache-2.0
"""torch_busy.py KIND: keeps the card busy with PyTorch; speaks as busy.c.

KIND: `gemm`, bf16 products of 4096 as fast as they can be launched; `training`, steps of a
transformer; `decode`, tokens of a language model for a batch of 4, each one waited for.

How long the card was busy is what CUPTI says of every kernel, through PyTorch's profiler, a trace a
run. A line "SECONDS untraced" asks for a run without: what a trace costs can so be told.
"""

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.gpu import spans
from bench.gpu.training import SIZES, WARM_UP_STEPS, repeat, stepper

Step = Callable[[], None]
PRODUCT_SIZE = 4096
PRODUCTS_AHEAD = 4
WARM_UP_SECONDS = 0.5
# Two layers of the width of a model of 70 billion parameters, as one of 40 cards would have them.
WIDTH, HEADS, INNER, WORDS, LAYERS = 8192, 64, 28672, 32000, 2
BATCH, CONTEXT = 4, 8192


def products(torch: Any) -> Step:  # noqa: ANN401  a module without types
    """Multiply; a few products are always in the queue."""
    a = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    events = [torch.cuda.Event() for _ in range(PRODUCTS_AHEAD)]
    done = 0

    def step() -> None:
        nonlocal done
        event = events[done % PRODUCTS_AHEAD]
        if done >= PRODUCTS_AHEAD:
            event.synchronize()
        torch.matmul(a, a, out=out)
        event.record()
        done += 1

    return step


def training(torch: Any) -> Step:  # noqa: ANN401
    """Train; each step is waited for, as its loss is looked at."""
    train = stepper(torch, *SIZES["large"])
    repeat(train, WARM_UP_STEPS)

    def step() -> None:
        train()

    return step


def decode(torch: Any) -> Step:  # noqa: ANN401
    """Make a token for each of a batch: products that read all weights, attention, a look at it."""
    nn, functional = torch.nn, torch.nn.functional

    def weight(*shape: int) -> Any:  # noqa: ANN401
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[0] ** -0.5

    def layer() -> tuple[Any, ...]:
        kept = (2, BATCH, HEADS, CONTEXT, WIDTH // HEADS)
        shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH))
        return (*(weight(*shape) for shape in shapes), weight(*kept))

    layers = [layer() for _ in range(LAYERS)]
    embedding, head = weight(WORDS, WIDTH), weight(WIDTH, WORDS)
    norm = nn.LayerNorm(WIDTH, device="cuda", dtype=torch.bfloat16)
    words = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def step() -> None:
        nonlocal words
        with torch.no_grad():
            x = embedding[words]
            for to_heads, from_heads, up, down, (keys, values) in layers:
                query = (norm(x) @ to_heads).view(BATCH, 3, HEADS, 1, -1)[:, 0]
                seen = functional.scaled_dot_product_attention(query, keys, values)
                x = x + seen.reshape(BATCH, WIDTH) @ from_heads
                x = x + functional.silu(norm(x) @ up) @ down
            words = (norm(x) @ head).argmax(-1)
        words.tolist()  # to the host: it waits

    return step


KINDS = {"gemm": products, "training": training, "decode": decode}


def run(torch: Any, step: Step, seconds: float, *, traced: bool) -> dict[str, Any]:  # noqa: ANN401
    """Step for so many seconds, and return what the card did."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with contextlib.ExitStack() as stack:
        trace: Any = None
        if traced:
            trace = stack.enter_context(torch.profiler.profile(activities=activities))
        # A trace begins with the first kernel, and that can take CUPTI most of a second.
        asked = time.monotonic()
        step()
        torch.cuda.synchronize()
        begun = last = time.monotonic()
        launches, stall, first = 0, 0.0, begun - asked
        while last - begun < seconds:
            step()
            launches += 1
            now = time.monotonic()
            stall = max(stall, now - last)
            last = now
        torch.cuda.synchronize()
        wall = time.monotonic() - begun
    seen = spans.of_trace(torch, trace) if traced else []
    return {
        "launches": launches,
        "wall_s": wall,
        "launch_stall_ms": stall * 1e3,
        "first_ms": first * 1e3,
        **spans.summary(seen, seconds),
    }


def main() -> None:
    """Run as often as asked."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    step = KINDS[sys.argv[1]](torch)
    for traced in (False, True):  # the first trace of a process starts CUPTI
        run(torch, step, WARM_UP_SECONDS, traced=traced)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, *words = line.split()
        found = run(torch, step, float(seconds), traced="untraced" not in words)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
