# SPDX-License-Identifier: Apache-2.0
"""training.py: two transformers. A line "NAME STEPS" on stdin trains one for so many steps.

The small one is bound by what the processor does for each launch, the large one by the card.
Between two lines a process holds its weights and no more, so that many fit on a card and take
turns.
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
AGAIN_STEPS = 2  # after a pause: what was given back is taken again


def stepper(torch: Any, width: int, batch: int, length: int) -> Callable[[], float]:  # noqa: ANN401
    """Return a function that trains one step, for now cold, and gives its milliseconds."""
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

    return step


def repeat(step: Callable[[], float], steps: int) -> list[float]:
    """Take some steps; their milliseconds."""
    return [step() for _ in range(steps)]


def main() -> None:
    """Train as often as asked; print each step's milliseconds."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    steppers = {name: stepper(torch, *size) for name, size in SIZES.items()}
    repeat(steppers["small"], WARM_UP_STEPS)  # all processes at once; of the large one not all fit
    untimed = {"small": AGAIN_STEPS, "large": WARM_UP_STEPS}
    torch.cuda.empty_cache()
    print("ready", flush=True)
    for line in sys.stdin:
        name, steps = line.split()
        repeat(steppers[name], untimed[name])
        untimed[name] = AGAIN_STEPS
        print(json.dumps(repeat(steppers[name], int(steps))), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
