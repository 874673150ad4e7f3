# SPDX-License-Identifier: Apache-2.0
"""What a pod holds of each card over its life. Pure.

Init containers run one after the other, sidecars from their start on beside everything else, the
others together at the end. Source: KEP-753, "Resources calculation".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_cache.pod import ContainerKind


class Amount(NamedTuple):
    """What is held of one card."""

    memory_bytes: int = 0
    reserved_percent: int = 0
    slices: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(*map(sum, zip(self, other, strict=True)))

    def at_least(self, other: Amount) -> Amount:
        """Return the larger of each number."""
        return Amount(*map(max, self, other))


NOTHING = Amount()

Amounts = Mapping[str, Amount]
"""By card UUID."""


def footprint(parts: Iterable[tuple[ContainerKind, Amounts]], init_finished: bool) -> Amounts:
    """Return the most that the containers hold of each card at any time from now on.

    `parts` come in the order of the spec, init containers and sidecars first. Once the last
    ordinary init container has finished, only the others count.
    """
    sidecars: dict[str, Amount] = {}
    most: dict[str, Amount] = {}
    apps: dict[str, Amount] = {}
    for kind, amounts in parts:
        if kind is ContainerKind.SIDECAR:
            _add(sidecars, amounts)
        elif kind is ContainerKind.APP:
            _add(apps, amounts)
        elif not init_finished:
            # Sidecars that are declared before it run beside it.
            for card, amount in amounts.items():
                together = amount.plus(sidecars.get(card, NOTHING))
                most[card] = most.get(card, NOTHING).at_least(together)
    _add(apps, sidecars)
    for card, amount in apps.items():
        most[card] = most.get(card, NOTHING).at_least(amount)
    return most


def _add(total: dict[str, Amount], amounts: Amounts) -> None:
    for card, amount in amounts.items():
        total[card] = total.get(card, NOTHING).plus(amount)
