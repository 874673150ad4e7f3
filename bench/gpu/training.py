# SPDX-License-Identifier: Apache-2.0
"""training.py: a small transformer; each line on stdin is a number of steps to train and time."""

import importlib
import json
import sys
import time
from typing import Any

LAYERS, WIDTH, BATCH, LENGTH, WORDS = 6, 512, 16, 256, 32000
WARM_UP_STEPS = 20


def main() -> None:
    """Train as often as asked; print each step's milliseconds."""
    torch: Any = importlib.import_module("torch")
    nn = torch.nn
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, WORDS)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    words = torch.randint(WORDS, (BATCH, LENGTH), device="cuda")

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
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main()
