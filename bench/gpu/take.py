# SPDX-License-Identifier: Apache-2.0
"""In a container: what every allocating family does below, at and above the limit.

take.py driver LIMIT_BYTES MOST_BYTES
take.py CUDART LIMIT_BYTES MOST_BYTES
"""

import sys
from typing import Any

from bench.gpu.families import MIB, Api, Crossing, Driver, Family, Runtime
from bench.gpu.talk import end, say

CYCLES = 30
CYCLE_BYTES = 64 * MIB


def fill(family: Family, most_bytes: int) -> tuple[list[Any], int]:
    """Take pieces until one is refused or `most_bytes` are held; those, and the last code."""
    held: list[Any] = []
    while len(held) * family.piece_bytes < most_bytes:
        code, handle = family.take(family.piece_bytes)
        if code != 0:
            return held, code
        held.append(handle)
    return held, 0


def cycles(family: Family) -> tuple[int, int]:
    """How many of some takes and frees in turn succeeded, and the last code that was not 0."""
    done, last = 0, 0
    for _ in range(CYCLES):
        code, handle = family.take(min(CYCLE_BYTES, family.most_bytes))
        code = code or family.give(handle)
        done += code == 0
        last = code or last
    return done, last


def try_family(api: Api, family: Family, limit_bytes: int, most_bytes: int) -> dict[str, Any]:
    """Return one row."""
    api.settle()
    before, free_before = say("before"), api.memory()[0]
    over = None
    if family.most_bytes > limit_bytes:
        over, handle = family.take(limit_bytes + 64 * MIB)
        if over == 0:
            family.give(handle)
    api.settle()
    held, refused = fill(family, most_bytes)
    full, free_full = say("full"), api.memory()[0]
    freed = 0
    for handle in held:
        freed = freed or family.give(handle)
    api.settle()
    after, free_after = say("after"), api.memory()[0]
    done, last = cycles(family)
    api.settle()
    return {
        "family": family.name,
        "over": over,
        "granted_bytes": len(held) * family.piece_bytes,
        "refused": refused,
        "before": before,
        "full": full,
        "after": after,
        "free": [free_before, free_full, free_after],
        "freed": freed,
        "cycles": done,
        "cycle_code": last,
        "seen_by_nvml": family.seen_by_nvml,
    }


def cross(api: Api, crossing: Crossing) -> dict[str, Any]:
    """Free memory of one family by another's call, several times."""
    api.settle()
    before = api.memory()[0]
    codes = set()
    for _ in range(CYCLES):
        code, handle = crossing.take(CYCLE_BYTES)
        freed = 0 if code else crossing.give(handle)
        codes.add(code or freed)
        if freed:
            crossing.own_give(handle)
    unsettled = say("crossed")  # the driver may still keep what nobody has waited for
    api.settle()
    return {
        "pair": crossing.name,
        "unsettled": unsettled,
        "codes": sorted(codes),
        "lost_bytes": before - api.memory()[0],
    }


def main() -> None:
    """Try everything."""
    which, limit_bytes, most_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    api: Api = Driver() if which == "driver" else Runtime(which)
    rows = []
    for family in api.families():
        try:
            rows.append(try_family(api, family, limit_bytes, most_bytes))
        except (RuntimeError, AttributeError) as error:
            rows.append({"family": family.name, "error": str(error)})
    end(
        {
            "version": api.version if isinstance(api, Runtime) else None,
            "families": rows,
            "crossings": [cross(api, crossing) for crossing in api.crossings()],
        }
    )


if __name__ == "__main__":
    main()
