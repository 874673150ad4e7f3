# SPDX-License-Identifier: Apache-2.0
"""Alnair 0.5. Source of the examples: alnair-device-plugin/pkg."""

from __future__ import annotations

import pytest

from scheduler_cache.dialects.alnair import Alnair
from scheduler_cache.dialects.dialect import DialectError
from scheduler_cache.model import MemoryAmount, Request
from scheduler_cache.pod import kube_node_of
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.dialects.test_volcano import allocation
from tests.scheduler_cache.kube_objects import A, B, container_of, kube_node, parsed

ALNAIR = Alnair()
CHUNKS = "ai.centaurus.io/alnair-gpu-id"
CARDS = "ai.centaurus.io/physical-gpu-uuids"


def asking(name: str = "main", **limits: str) -> dict[str, object]:
    return container_of(name, {f"alnair/vgpu-{key}": text for key, text in limits.items()})


def request(**limits: str) -> Request:
    return ALNAIR.parse_request(parsed(asking(**limits))).containers["main"]


def test_memory_is_in_gibibytes_and_compute_in_percent() -> None:
    asked = request(memory="3", compute="40")

    assert (asked.count, asked.memory, asked.cores_percent) == (
        1,
        (MemoryAmount(bytes=3 * GIB),),
        (40,),
    )


def test_memory_alone_gets_all_cores_and_more_than_all_are_all() -> None:
    assert request(memory="3").cores_percent == (100,)
    assert request(memory="3", compute="250").cores_percent == (100,)


@pytest.mark.parametrize("limits", [{"compute": "40"}, {"memory": "x"}, {"memory": "1.5"}])
def test_a_wrong_request_is_refused(limits: dict[str, str]) -> None:
    with pytest.raises(DialectError, match="alnair/vgpu-memory"):
        request(**limits)


def test_chunks_are_counted_per_card() -> None:
    decision = ALNAIR.parse_allocation(
        parsed(
            asking(memory="3", compute="40"),
            container_of("web", {}),
            annotations={
                CHUNKS: f"{A}_0,{A}_1,{A}_2",
                "ai.centaurus.io/alnair-id": "x7k2p",
                "ai.centaurus.io/scheduler-timestamp": "1732720000123456789",
            },
        )
    )

    (part,) = decision.containers["main"]
    assert (part.card, part.memory.bytes, part.cores_percent) == (A, 3 * GIB, 40)
    assert decision.decided_unix_ns == 1732720000123456789


def test_chunks_of_two_cards_are_two_slices() -> None:
    """The plugin mixes cards when none has room; the trust rules then refuse the second."""
    decision = ALNAIR.parse_allocation(
        parsed(asking(memory="3"), annotations={CHUNKS: f"{A}_0,{A}_1,{B}_7"})
    )

    assert [(part.card, part.memory.bytes) for part in decision.containers["main"]] == [
        (A, 2 * GIB),
        (B, GIB),
    ]


def test_chunks_of_a_pod_with_two_such_containers_are_not_guessed() -> None:
    with pytest.raises(DialectError, match="2 ask for a card"):
        ALNAIR.parse_allocation(
            parsed(asking("a", memory="1"), asking("b", memory="1"), annotations={CHUNKS: f"{A}_0"})
        )


@pytest.mark.parametrize("key", ["vitual", "virtual"])
def test_both_spellings_of_the_chunk_counts_are_read(key: str) -> None:
    registration = ALNAIR.parse_node(
        kube_node_of(
            kube_node(
                annotations={
                    "ai.centaurus.io/physical-gpu-count": "2",
                    CARDS: f"{A},{B}",
                    f"ai.centaurus.io/{key}-gpu-count": "80,40",
                }
            )
        )
    )

    assert registration is not None
    assert [(card.uuid, card.memory_bytes) for card in registration.cards] == [
        (A, 80 * GIB),
        (B, 40 * GIB),
    ]


def test_a_registration_without_chunk_counts_is_an_error() -> None:
    with pytest.raises(DialectError, match="names 1 cards"):
        ALNAIR.parse_node(kube_node_of(kube_node(annotations={CARDS: A})))


def test_what_is_written_for_alnair_is_read_back() -> None:
    written = ALNAIR.encode_allocation(
        parsed(asking(memory="2")), {"main": allocation(A, 2048, 40)}, {}
    )

    decision = ALNAIR.parse_allocation(parsed(asking(memory="2"), annotations=written))
    assert written == {CHUNKS: f"{A}_0,{A}_1"}
    assert decision.containers["main"][0].memory.bytes == 2 * GIB
