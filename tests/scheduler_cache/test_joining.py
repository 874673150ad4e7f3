# SPDX-License-Identifier: Apache-2.0
"""What we register of a node's cards in the place of another system's plugin."""

from __future__ import annotations

import json

import pytest

from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.joining import registration_patch
from scheduler_cache.pod import kube_node_of
from tests.scheduler_cache.kube_objects import KEYRING, A, B, C, gpu, kube_node

HAMI = "hami.io/node-nvidia-register"
VOLCANO = "volcano.sh/node-vgpu-register"
DIALECTS = every_dialect(KEYRING)
# As the cache has them: in the order of their UUIDs.
CARDS = (gpu(A, 80, minor=2), gpu(B, 80), gpu(C, 80, minor=0))


def joined(dialect: str, annotations: dict[str, str] | None = None) -> dict[str, str | None]:
    labels = {"vgpu.dev/dialect": dialect, "vgpu.dev/mode": "join"}
    node = kube_node_of(kube_node(labels=labels, annotations=annotations or {}))
    return registration_patch(node, CARDS, DIALECTS)


def test_hami_s_index_is_the_place_among_the_device_nodes() -> None:
    listed = json.loads(joined("hami")[HAMI] or "")

    assert {each["id"]: each["index"] for each in listed} == {C: 0, A: 1, B: 2}


def test_volcano_s_cards_are_listed_by_device_node() -> None:
    text = joined("volcano")[VOLCANO] or ""

    assert [each.split(",")[0] for each in text.split(":")[:-1]] == [C, A, B]


@pytest.mark.parametrize("dialect", ["hami", "volcano"])
def test_what_is_registered_is_not_written_again(dialect: str) -> None:
    first = {key: text for key, text in joined(dialect).items() if text is not None}

    assert first
    assert joined(dialect, first) == {}


def test_what_we_registered_for_one_system_is_taken_back_when_another_is_joined() -> None:
    first = {key: text for key, text in joined("hami").items() if text is not None}

    patch = joined("volcano", first)

    assert patch[HAMI] is None
    assert patch[VOLCANO]


def test_what_another_plugin_registered_stays() -> None:
    assert joined("volcano", {HAMI: "[]"}).keys() == {VOLCANO}
