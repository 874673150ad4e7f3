# SPDX-License-Identifier: Apache-2.0
"""What one pod, or one card, may cost everybody else who waits for the extender's answer."""

from __future__ import annotations

import json

import pytest

from scheduler_cache.extender import vector_fit, victims
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, container, gpu

AMOUNTS = [{"memory": f"{gib}Gi"} for gib in range(1, 7)]


def fleet(nodes: int) -> Fleet:
    return Fleet(
        **{
            f"n{i}": tuple(gpu(f"GPU-{i:08}-0000-4000-8000-{card:012}", 80) for card in range(6))
            for i in range(nodes)
        }
    )


def test_many_different_amounts_are_tried_on_some_nodes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by one, thousands of nodes would take longer than a scheduler waits."""
    monkeypatch.setattr(vector_fit, "_MOST_TRIED", 2)
    source = waiting(
        "p1",
        container("a"),
        container("b"),
        annotations={"vgpu.dev/devices": json.dumps({"a": AMOUNTS, "b": AMOUNTS})},
    )

    found = fleet(3).filter(source)

    assert len(found.fitting) == 2
    assert len(found.failed) == 1


def test_a_card_of_many_slots_is_searched_for_victims_in_time() -> None:
    """Of 120 holders there are 280,000 sets of three."""
    full = Fleet(n1=gpu(A, 120, slots=120))
    for i in range(120):
        full.hold(waiting(f"low{i}", asking(1)), "n1")
    pod = waiting("p1", asking(3), priority=1)
    full.apply(pod)
    tried = 0
    takes = victims.Search._takes

    def counted(self: victims.Search, card_uuid: str, gone: frozenset[str]) -> bool:
        nonlocal tried
        tried += 1
        return takes(self, card_uuid, gone)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(victims.Search, "_takes", counted)
        relief = full.extender.relief("p1", "n1", frozenset())

    assert relief is not None
    assert len(relief.victims) == 3
    assert tried < 2000
