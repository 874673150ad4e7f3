# SPDX-License-Identifier: Apache-2.0
"""Why nodes do not take a pod: one sentence for all nodes of which the same is true. Pure.

kube-scheduler counts equal sentences and shows each once, so that they name numbers of cards and
no card. What each card of one node holds is told by `vgpuctl explain`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler_cache.extender.card_table import Cards
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.vector_fit import needs
from scheduler_cache.fit import ObstacleKind, policy_of
from scheduler_cache.model import CardPolicy, Demand, Request
from scheduler_cache.refusal import wanted

NOT_KNOWN = "this node is not known to the scheduler cache"

# In the order in which `fit.obstacle` looks, after what is not offered at all.
_REASONS = (
    (ObstacleKind.DENIED, "not allowed by the request's models or UUIDs"),
    (ObstacleKind.UNHEALTHY, "unhealthy"),
    (ObstacleKind.OVERBOOKED, "overbooked"),
    (ObstacleKind.HELD, "held exclusively"),
    (ObstacleKind.IN_USE, "in use by others"),
    (ObstacleKind.SLOTS, "without a free slot"),
    (ObstacleKind.MEMORY, "with less memory free"),
    (ObstacleKind.CORES, "with fewer cores free"),
)
_NOT_OFFERED = len(_REASONS)
_FITS = _NOT_OFFERED + 1
_NO_CARD = _FITS + 1
# Ten counts in one 64-bit key; a node has 16 cards at most, and MIG instances.
_COUNT_BITS = 6
_MOST_COUNTED = (1 << _COUNT_BITS) - 1

Codes = NDArray[np.int8]


def sentences(
    cards: Cards, shape: Shape, default: CardPolicy
) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return different sentences, and for each node the index of its own.

    They speak of the pod's largest demand; nodes that take it lack room for its other containers.
    """
    request, demand = shape.hardest()
    codes = _codes(cards, request, demand, default)
    key = np.zeros(len(cards), np.int64)
    for code in range(_FITS + 1):
        key <<= _COUNT_BITS
        key += np.minimum((codes == code).sum(axis=0, dtype=np.int16), _MOST_COUNTED)
    _, first, same = np.unique(key, return_index=True, return_inverse=True)
    closed = np.where(codes == _NOT_OFFERED, cards.refusal, 0).max(axis=0, initial=0)
    if closed.any():
        _, first, same = np.unique(
            same * np.int64(len(cards.refusals)) + closed, return_index=True, return_inverse=True
        )
    words = [
        _sentence(request, demand, codes[:, i], cards.refusals[int(closed[i])])
        for i in first.tolist()
    ]
    return words, same


def _codes(cards: Cards, request: Request, demand: Demand, default: CardPolicy) -> Codes:
    """Return why each card does not take the demand, as `fit.obstacle` would say."""
    need = needs(cards, demand)
    exclusive = policy_of(request, default) is CardPolicy.EXCLUSIVE
    tests = (
        ~cards.allowed(request) if request.uuids or request.models else None,
        ~cards.healthy,
        cards.overbooked,
        cards.held,
        cards.used if exclusive else None,
        cards.free_slots < 1,
        (cards.free_memory < need) | (need == 0),
        cards.free_cores < (demand.cores_percent or 0),
    )
    codes = np.full(cards.valid.shape, _FITS, np.int8)
    for code in range(len(tests) - 1, -1, -1):
        test = tests[code]
        if test is not None:
            codes[test] = code
    codes[cards.refusal > 0] = _NOT_OFFERED
    codes[~cards.valid] = _NO_CARD
    return codes


def _sentence(request: Request, demand: Demand, codes: Codes, refusal: str) -> str:
    """Return why a node does not take a container, such as `none of 8 cards fits 8.0Gi: …`."""
    number = int((codes != _NO_CARD).sum())
    if not number:
        return "this node has no card"
    fitting = int((codes == _FITS).sum())
    parts = [
        f"{count} {words}"
        for code, (_, words) in enumerate(_REASONS)
        if (count := int((codes == code).sum()))
    ]
    if closed := int((codes == _NOT_OFFERED).sum()):
        parts.append(f"{closed} not offered ({refusal})")
    what = wanted(request, demand)
    if request.count > 1:
        what = f"{request.count} times {what}"
    some = f"{fitting} of {number} cards fit" if fitting else f"none of {number} cards fits"
    if parts:
        return f"{some} {what}: {', '.join(parts)}"
    return f"{some} {what}, and then its other containers find no room"
