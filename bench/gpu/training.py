# SPDX-License-Identifier: Apache-2.0
"""training.py: two transformers. A line "NAME STEPS" on stdin trains one for so many steps.

The small one is bound by what the processor does for each launch, the large one by the card.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

LAYERS, WORDS = 6, 32000
# name → width, batch, length
SIZES = {"small": (512, 16, 256), "large": (1024, 32, 512)}
WARM_UP_STEPS = 15


def stepper(torch: Any, width: int, batch: int, length: int) -> Callable[[], float]:  # noqa: ANN401
    """Return a function that trains one step and gives its milliseconds."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, width), nn.TransformerEncoder(layer, LAYERS), nn.Linear(width, WORDS)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(WORDS, (batch, length), device="cuda")

    def step() -> float:
        begun = time.perf_counter_ns()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - begun) / 1e6

    for _ in range(WARM_UP_STEPS):
        step()
    return step


def main() -> None:
    """Train as often as asked; print each step's milliseconds."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    steppers = {name: stepper(torch, *size) for name, size in SIZES.items()}
    print("ready", flush=True)
    for line in sys.stdin:
        name, steps = line.split()
        print(json.dumps([steppers[name]() for _ in range(int(steps))]), flush=True)


if __name__ == "__main__":
    main()
