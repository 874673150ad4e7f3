# SPDX-License-Identifier: Apache-2.0
"""Measures the scheduler cache on Kubernetes: `python3 -m bench.cache PART [options]`.

Each part is a module of bench/scheduler_cache and prints the table that docs/benchmarks/cache.md
shows; `PART --help` lists what can be changed. `--quick` runs a part small, to see that it works;
its numbers are no result. `all` runs every part.
"""

from __future__ import annotations

import importlib
import sys

# How each part is made small.
QUICK = {
    "resolve": ("--nodes", "100", "--pods", "1000", "--seconds", "2"),
    "watch": ("--agents", "50", "--containers", "5", "--bindings", "20"),
    "sync": ("--nodes", "100", "--pods", "1000", "--starts", "1"),
    "fit": ("--nodes", "200", "--allocations", "4000", "--rounds", "10"),
    "schedule": ("--nodes", "100", "--pods", "200", "--rounds", "1"),
    "soak": ("--pods", "300", "--every", "100", "--living", "20"),
}


def main() -> None:
    """Run one part, or all."""
    asked, *options = sys.argv[1:] or [""]
    if asked not in (*QUICK, "all"):
        sys.exit(f"usage: python3 -m bench.cache {{{','.join(QUICK)},all}} [--quick] [options]")
    quick = "--quick" in options
    given = [each for each in options if each != "--quick"]
    for part in QUICK if asked == "all" else (asked,):
        module = importlib.import_module(f"bench.scheduler_cache.{part}")
        module.main([*(QUICK[part] if quick else ()), *given])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
