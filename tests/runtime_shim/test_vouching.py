# SPDX-License-Identifier: Apache-2.0
"""What of a spec the kubelet's word must cover, and whether it does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.inventory import CardFacts
from runtime_shim.spec import Spec
from runtime_shim.vouching import asked_cards, cards_by_name, contradiction, whole_cards
from tests.runtime_shim.allocations import CARD, OTHER_CARD
from tests.runtime_shim.specs import bind, plain_spec
from tests.runtime_shim.test_inventory import card

LISTS = "/var/run/nvidia-container-devices"
MIG = "MIG-3a1c9a0e-5b1f-5f0a-8f5e-4f6b8f3a2b11"
PATTERNS = ("nvidia.com/gpu", "nvidia.com/mig-*")


def cards() -> list[CardFacts]:
    return [
        dataclasses.replace(card(CARD), index="0"),
        dataclasses.replace(card(OTHER_CARD), index="1"),
        dataclasses.replace(
            card(MIG), index="2:0", kind=pb.CARD_KIND_MIG, parent_uuid="GPU-parent", gpu_instance=1
        ),
    ]


def by_name(**keywords: Any) -> dict[str, CardFacts]:  # noqa: ANN401
    return cards_by_name(cards(), **{"indices_moved": False, **keywords})


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (plain_spec(f"NVIDIA_VISIBLE_DEVICES={CARD},{OTHER_CARD}"), {CARD, OTHER_CARD}),
        (plain_spec("NVIDIA_VISIBLE_DEVICES=0, 1"), {"0", "1"}),
        (plain_spec("NVIDIA_VISIBLE_DEVICES=void"), set()),
        (plain_spec(f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={CARD}"), {CARD}),
        (plain_spec(f"NVIDIA_VISIBLE_DEVICES=k8s.device-plugin.nvidia.com/gpu={CARD}"), {CARD}),
        (
            plain_spec(
                f"NVIDIA_VISIBLE_DEVICES={LISTS}", mounts=[bind("/dev/null", f"{LISTS}/{MIG}")]
            ),
            {MIG},
        ),
        (
            plain_spec(
                f"NVIDIA_VISIBLE_DEVICES={LISTS}",
                mounts=[bind("/dev/null", f"{LISTS}/cdi/nvidia.com/gpu/0")],
            ),
            {"0"},
        ),
        (plain_spec(annotations={"cdi.k8s.io/p_0": f"nvidia.com/gpu={CARD}"}), {CARD}),
        (plain_spec(annotations={"nvidia.cdi.k8s.io/p": "nvidia.com/gpu=1"}), {"1"}),
        # NVIDIA's swarm-resource: a variable of the container goes before the plugin's.
        (
            plain_spec(f"NVIDIA_VISIBLE_DEVICES={CARD}", f"DOCKER_RESOURCE_GPU={OTHER_CARD}"),
            {CARD, OTHER_CARD},
        ),
        # Runtimes differ in which one counts, so both must be covered.
        (
            plain_spec(f"NVIDIA_VISIBLE_DEVICES={CARD}", f"NVIDIA_VISIBLE_DEVICES={OTHER_CARD}"),
            {CARD, OTHER_CARD},
        ),
    ],
)
def test_every_way_to_name_a_card_is_seen(spec: Spec, names: set[str]) -> None:
    asked = asked_cards(spec)

    assert asked.names == names
    assert not asked.objection


@pytest.mark.parametrize(
    ("spec", "objection"),
    [
        (plain_spec("NVIDIA_VISIBLE_DEVICES=all"), "names every card"),
        (plain_spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"), "names every card"),
        (plain_spec(annotations={"cdi.k8s.io/p": "nvidia.com/gpu=all"}), "names every card"),
        (plain_spec(annotations={"cdi.k8s.io/p": "management.nvidia.com/gpu=all"}), "is no card"),
        (plain_spec(annotations={"cdi.k8s.io/p": "vendor.example/nic=0"}), "is no card"),
        (plain_spec(mounts=[bind("/dev/null", f"{LISTS}/all")]), "names every card"),
        (plain_spec(mounts=[bind("/dev/null", f"{LISTS}/imex/0")]), "is none of cards"),
        (plain_spec(f"NVIDIA_VISIBLE_DEVICES={LISTS},all"), "names every card"),
        (plain_spec("DOCKER_RESOURCE_GPU=all"), "names every card"),
        (plain_spec("CUDA_VERSION=9.0"), "an old CUDA image gets every card"),
        (plain_spec("NVIDIA_IMEX_CHANNELS=0"), "opens more than cards"),
        (plain_spec("NVIDIA_MIG_CONFIG_DEVICES=all"), "opens more than cards"),
    ],
)
def test_nobody_vouches_for_more_than_cards(spec: Spec, objection: str) -> None:
    assert objection in asked_cards(spec).objection


def test_only_resources_of_whole_cards_vouch() -> None:
    """A number of any other resource of that vendor is no index of a card."""
    devices = {
        "nvidia.com/gpu": frozenset({f"{CARD}::3", OTHER_CARD}),
        "nvidia.com/mig-1g.10gb": frozenset({MIG}),
        "nvidia.com/gpucores": frozenset({"7"}),
        "nvidia.com/imex-channel": frozenset({"0"}),
        "rdma/hca": frozenset({"1"}),
    }

    assert whole_cards(devices, PATTERNS, ()) == {CARD, OTHER_CARD, MIG}
    assert whole_cards(devices, PATTERNS, ("nvidia.com/gpu",)) == {MIG}


@pytest.mark.parametrize(
    ("env", "given", "why"),
    [
        (CARD, {CARD}, ""),
        ("0", {CARD}, ""),
        (CARD, {"0"}, ""),
        (f"{CARD},1", {"0", OTHER_CARD}, ""),
        (MIG, {"2:0"}, ""),
        ("void", {CARD}, ""),
        (CARD, set(), "no whole card"),
        (CARD, {OTHER_CARD}, "other cards than the kubelet gave"),
        (f"{CARD},{OTHER_CARD}", {CARD}, "other cards than the kubelet gave"),
        (CARD, {CARD, OTHER_CARD}, "other cards than the kubelet gave"),
        ("7", {"7"}, "no card of this host"),
        ("7", {CARD}, "no card of this host"),
        ("GPU-parent", {CARD}, "no card of this host"),
        (f"{LISTS},{OTHER_CARD}", {CARD}, "other cards than the kubelet gave"),
        (f"{LISTS}/{CARD}", {CARD}, "no card of this host"),
    ],
)
def test_names_and_the_kubelet_s_cards_must_be_the_same(
    env: str, given: set[str], why: str
) -> None:
    asked = asked_cards(plain_spec(f"NVIDIA_VISIBLE_DEVICES={env}"))

    found = contradiction(asked, given, by_name())

    assert why in found
    assert bool(found) == bool(why)


def test_an_index_vouches_for_nothing_once_cards_have_moved() -> None:
    by_index = asked_cards(plain_spec("NVIDIA_VISIBLE_DEVICES=0"))
    by_uuid = asked_cards(plain_spec(f"NVIDIA_VISIBLE_DEVICES={CARD}"))
    moved = by_name(indices_moved=True)

    assert contradiction(by_index, {"0"}, by_name()) == ""
    assert "no card of this host" in contradiction(by_index, {"0"}, moved)
    assert contradiction(by_uuid, {CARD}, moved) == ""


def test_while_a_card_is_lost_only_uuids_vouch() -> None:
    first, *others = cards()
    names = cards_by_name(
        [dataclasses.replace(first, lost=True, health_reason="lost"), *others], indices_moved=False
    )
    by_index = asked_cards(plain_spec("NVIDIA_VISIBLE_DEVICES=1"))
    by_uuid = asked_cards(plain_spec(f"NVIDIA_VISIBLE_DEVICES={OTHER_CARD}"))

    assert "no card of this host" in contradiction(by_index, {"1"}, names)
    assert contradiction(by_uuid, {OTHER_CARD}, names) == ""
