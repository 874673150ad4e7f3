# SPDX-License-Identifier: Apache-2.0
"""Chooses which stopped containers lose their slices to a request that fits nowhere else. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_cache.fit import Rooms, place, with_allocation, without_allocation
from scheduler_cache.model import Allocation, CardPolicy, Request


def needed_of(
    request: Request,
    rooms: Rooms,
    candidates: Sequence[Allocation],
    default: CardPolicy = CardPolicy.BINPACK,
) -> list[int]:
    """Return the indices of the candidates to take, in order; without all of them it must fit.

    `candidates` are in `rooms`, the one to take first in front. No candidate is taken that comes
    later than it must, and none without which the request would fit as well.
    """

    def fits(rooms: Rooms) -> bool:
        return place(request, tuple(rooms.values()), default) is not None

    def without(number: int) -> Rooms:
        left = rooms
        for allocation in candidates[:number]:
            left = without_allocation(left, allocation)
        return left

    # The shortest run from the front that is enough. Freeing more never makes a request unfit.
    few, many = 0, len(candidates)
    while few < many:
        middle = (few + many) // 2
        if fits(without(middle)):
            many = middle
        else:
            few = middle + 1
    left = without(many)
    needed = []
    for i in reversed(range(many)):
        spared = with_allocation(left, candidates[i])
        if fits(spared):
            left = spared
        else:
            needed.append(i)
    return needed[::-1]
