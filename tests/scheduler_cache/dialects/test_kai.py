# SPDX-License-Identifier: Apache-2.0
"""KAI 0.13 to 0.17. Source of the examples: docs/gpu-sharing, pkg/binder."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_cache.dialects.dialect import DialectError, Named
from scheduler_cache.dialects.fields import MIB
from scheduler_cache.dialects.kai import Kai
from scheduler_cache.model import MemoryAmount
from scheduler_cache.pod import Pod, pod_of
from tests.scheduler_cache.kube_objects import A, container_of, parsed, pod

KAI = Kai()


def asking(labels: dict[str, str] | None = None, **annotations: str) -> Pod:
    return parsed(
        container_of("main", {}),
        container_of("web", {}),
        inits=[container_of("init", {})],
        labels=labels or {},
        annotations={key.replace("_", "-"): text for key, text in annotations.items()},
    )


def test_a_fraction_is_memory_of_the_first_container_without_cores() -> None:
    asked = KAI.parse_request(asking(gpu_fraction="0.5"))

    assert list(asked.containers) == ["main"]
    assert asked.containers["main"].memory == (MemoryAmount(fraction=0.5),)
    assert asked.containers["main"].cores_percent == ()


def test_each_of_several_cards_gives_the_same() -> None:
    asked = KAI.parse_request(asking(gpu_memory="4096", gpu_fraction_num_devices="2"))

    assert asked.containers["main"].count == 2
    assert asked.containers["main"].memory == (MemoryAmount(bytes=4096 * MIB),)


@pytest.mark.parametrize("name", ["web", "init"])
def test_another_container_may_be_named(name: str) -> None:
    asked = KAI.parse_request(asking(gpu_fraction="0.5", gpu_fraction_container_name=name))

    assert list(asked.containers) == [name]


@given(
    st.lists(st.integers(1, 999), min_size=1, max_size=60),
    st.integers(100, 200_000),
    st.sampled_from((100, 1000)),
)
def test_what_kai_puts_on_a_card_fits_there(
    parts: list[int], card_mebibytes: int, whole: int
) -> None:
    """KAI takes pods as long as what it counts fits into the card's whole hundreds of MiB."""
    kais = card_mebibytes - card_mebibytes % 100
    taken, ours = 0, 0
    for part in parts:
        text = str(part % whole / whole or 1 / whole)
        counted = int(float(text) * kais)
        if taken + counted > kais:
            continue
        taken += counted
        request = KAI.parse_request(asking(gpu_fraction=text)).containers["main"]
        ours += request.memory[0].of_bytes(card_mebibytes * MIB)

    assert ours == taken * MIB


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"gpu_fraction": "0"}, "between 0 and 1"),
        ({"gpu_fraction": "1"}, "between 0 and 1"),
        ({"gpu_fraction": "half"}, "between 0 and 1"),
        ({"gpu_fraction": "nan"}, "between 0 and 1"),
        ({"gpu_fraction": "1e0"}, "between 0 and 1"),
        ({"gpu_fraction": "5e-1x"}, "between 0 and 1"),
        ({"gpu_fraction": "1e-999"}, "between 0 and 1"),
        ({"gpu_fraction": "0.5", "gpu_memory": "10"}, "excludes"),
        ({"gpu_memory": "0"}, "1.."),
        ({"gpu_memory": "4Gi"}, "whole number"),
        ({"gpu_fraction": "0.5", "gpu_fraction_num_devices": "0"}, "1..16"),
        ({"gpu_fraction": "0.5", "gpu_fraction_container_name": "nobody"}, "containers are"),
    ],
)
def test_a_wrong_request_is_refused(annotations: dict[str, str], words: str) -> None:
    with pytest.raises(DialectError, match=words):
        KAI.parse_request(asking(**annotations))  # type: ignore[arg-type]


def test_whole_cards_exclude_fractions_and_are_not_ours_alone() -> None:
    whole = container_of("main", {"nvidia.com/gpu": "1"})

    assert not KAI.asks(parsed(whole))
    with pytest.raises(DialectError, match="asks for whole cards"):
        KAI.parse_request(parsed(whole, annotations={"gpu-fraction": "0.5"}))


def test_one_card_has_one_plain_label() -> None:
    decision = KAI.parse_allocation(
        asking({"runai-gpu-group": "6f0c", "kai.scheduler/queue": "team-a"}, gpu_fraction="0.5")
    )

    (part,) = decision.containers["main"]
    assert (part.card, part.named, part.memory.fraction) == ("6f0c", Named.GROUP, 0.5)


def test_several_cards_have_a_label_each_and_no_plain_one() -> None:
    """KAI itself reads only the plain label, and forgets such pods after its restart."""
    decision = KAI.parse_allocation(
        asking(
            {"runai-gpu-group/6f0c": "6f0c", "runai-gpu-group/91aa": "91aa"},
            gpu_fraction="0.5",
            gpu_fraction_num_devices="2",
        )
    )

    assert [part.card for part in decision.containers["main"]] == ["6f0c", "91aa"]


def test_memory_is_what_was_asked_not_its_rounded_portion() -> None:
    """4096 MiB of 15360 are 0.27, and 0.27 of 15360 are 4147."""
    decision = KAI.parse_allocation(asking({"runai-gpu-group": "6f0c"}, gpu_memory="4096"))

    assert decision.containers["main"][0].memory.bytes == 4096 * MIB


def test_another_number_of_groups_than_asked_is_an_error() -> None:
    with pytest.raises(DialectError, match="2 cards were asked for"):
        KAI.parse_allocation(
            asking({"runai-gpu-group": "x"}, gpu_fraction="0.5", gpu_fraction_num_devices="2")
        )


def reservation(namespace: str = "kai-resource-reservation", **options: object) -> Pod:
    return pod_of(
        pod(
            "r1",
            container_of("reservation", {"nvidia.com/gpu": "1"}),
            node="node-a",
            namespace=namespace,
            labels={"runai-gpu-group": "6f0c"},
            annotations={"run.ai/reserve_for_gpu_index": A},
            **options,  # type: ignore[arg-type]
        )
    )


def test_a_reservation_pod_ties_a_group_to_a_card_and_holds_nothing_itself() -> None:
    assert KAI.card_groups(reservation()) == {"6f0c": A}
    assert not KAI.decided(reservation())


def test_a_reservation_pod_that_has_not_found_its_card_ties_its_group_to_none_yet() -> None:
    before = reservation()
    for found in ({}, {"run.ai/reserve_for_gpu_index": "no card"}):
        assert KAI.card_groups(replace(before, annotations=found)) == {"6f0c": ""}


def test_only_the_binders_namespace_can_tie_a_group() -> None:
    assert KAI.card_groups(reservation("default")) == {}


def test_an_ended_reservation_ties_nothing() -> None:
    assert KAI.card_groups(reservation(phase="Failed")) == {}
