# SPDX-License-Identifier: Apache-2.0
"""What we write in place of another system's node side, for its scheduler to go on (join). Pure.

Only on nodes that people have labelled `vgpu.dev/mode=join` beside `vgpu.dev/dialect`: without
that, the system's own plugin may still run there, and two would write the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scheduler_cache.dialects.dialect import Dialect
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.inventory import DIALECT_LABEL, JOIN, MODE_LABEL
from scheduler_cache.model import Card
from scheduler_cache.pod import KubeNode

Patch = dict[str, str | None]
"""Annotations to write; None deletes one."""


def joined_dialect(node: KubeNode, dialects: Dialects) -> Dialect | None:
    """Return the dialect whose plugin we stand for on a node; None: none."""
    name = node.labels.get(DIALECT_LABEL, "")
    if node.labels.get(MODE_LABEL) != JOIN or name not in dialects:
        return None
    found = dialects.get(name)
    return found if found.joins else None


def registration_patch(node: KubeNode, cards: Sequence[Card], dialects: Dialects) -> Patch:
    """Return what is missing of the cards' registration, and what is left of one of ours.

    A registration that says something else than we would say is its own plugin's, and stays. The
    cards are in the order of their device nodes, by which the plugins number them.
    """
    joined = joined_dialect(node, dialects)
    cards = sorted(cards, key=lambda card: (card.minor < 0, card.minor, card.uuid))
    patch: Patch = {}
    for dialect in dialects.foreign:
        for key, text in dialect.encode_registration(cards).items():
            present = node.annotations.get(key)
            if dialect is joined and present != text:
                patch[key] = text
            elif dialect is not joined and present == text:
                patch[key] = None
    return patch


def liveness_patch(node: KubeNode, dialects: Dialects, now: datetime) -> Patch:
    """Return the answer to a scheduler that asks whether the node's plugin lives."""
    joined = joined_dialect(node, dialects)
    return dict(joined.encode_liveness(node, now)) if joined else {}
