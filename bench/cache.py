# SPDX-License-Identifier: Apache-2.0
"""Measures the scheduler cache on Kubernetes: `python3 -m bench.cache PART [options]`.

Each part is a module of bench/scheduler_cache and prints the table that docs/benchmarks/cache.md
shows; `PART --help` lists what can be changed.
"""

from __future__ import annotations

import importlib
import sys

PARTS = ("resolve", "watch", "sync", "fit")


def main() -> None:
    """Run one part."""
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python3 -m bench.cache {{{','.join(PARTS)}}} [options]")
    part = importlib.import_module(f"bench.scheduler_cache.{sys.argv[1]}")
    part.main(sys.argv[2:])


if __name__ == "__main__":
    main()
