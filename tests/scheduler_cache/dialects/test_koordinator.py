# SPDX-License-Identifier: Apache-2.0
"""Koordinator 1.8. Source of the examples: apis/extension/device_share.go, its user manual."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler_cache.dialects.dialect import DialectError, Named
from scheduler_cache.dialects.koordinator import Koordinator
from scheduler_cache.model import MemoryAmount, Request
from scheduler_cache.pod import Pod
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.dialects.test_volcano import allocation
from tests.scheduler_cache.kube_objects import A, B, D, container_of, gpu, parsed

KOORDINATOR = Koordinator()
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def request(*containers: dict[str, object]) -> Request:
    return next(iter(KOORDINATOR.parse_request(parsed(*containers)).containers.values()))


def shared(name: str = "main", **limits: str) -> dict[str, object]:
    """Return a container; `shared` is `gpu.shared`, `gpu_core` is `gpu-core`, and so on."""
    return container_of(
        name,
        {
            f"koordinator.sh/{'gpu.shared' if key == 'shared' else key.replace('_', '-')}": value
            for key, value in limits.items()
        },
    )


def entry(minor: int, uuid: str = "", core: str = "50", memory: str = "40Gi") -> dict[str, object]:
    source: dict[str, object] = {
        "minor": minor,
        "resources": {
            "koordinator.sh/gpu-core": core,
            "koordinator.sh/gpu-memory": memory,
            "koordinator.sh/gpu-memory-ratio": "50",
        },
    }
    return {**source, "id": uuid} if uuid else source


def decided(*containers: dict[str, object], entries: list[dict[str, object]]) -> Pod:
    return parsed(*containers, annotations={ALLOCATED: json.dumps({"gpu": entries})})


def test_totals_are_divided_over_the_cards() -> None:
    asked = request(shared(shared="2", gpu_core="100", gpu_memory="80Gi"))

    assert (asked.count, asked.memory, asked.cores_percent) == (
        2,
        (MemoryAmount(bytes=40 * GIB),),
        (50,),
    )


def test_a_ratio_is_a_total_as_well() -> None:
    asked = request(shared(shared="2", gpu_core="100", gpu_memory_ratio="100"))

    assert (asked.count, asked.memory, asked.cores_percent) == (
        2,
        (MemoryAmount(percent=50),),
        (50,),
    )


def test_gpu_percent_is_core_and_ratio_before_the_webhook_has_replaced_it() -> None:
    assert request(shared(gpu="50")).memory == (MemoryAmount(percent=50),)
    assert request(shared(gpu="50")).cores_percent == (50,)
    assert request(shared(gpu="200")).count == 2
    assert request(shared(gpu="200")).whole_cards


def test_the_count_is_worked_out_where_it_is_missing() -> None:
    assert request(shared(gpu_memory_ratio="30")).count == 1
    assert request(shared(gpu_memory_ratio="300")).count == 3
    assert request(shared(gpu_memory="8Gi")).count == 1


def test_memory_alone_bursts_without_reservation() -> None:
    assert request(shared(gpu_memory="8Gi")).cores_percent == ()


def test_the_containers_of_a_pod_are_one_request_and_one_account() -> None:
    """Two containers with `gpu.shared: 1` become a request of two cards."""
    asked = KOORDINATOR.parse_request(
        parsed(
            shared("a", shared="1", gpu_memory="10Gi"),
            container_of("web", {}),
            shared("b", shared="1", gpu_memory="30Gi"),
        )
    )

    assert asked.pod_level
    assert set(asked.containers) == {"a", "b"}
    assert {each.count for each in asked.containers.values()} == {2}
    assert {each.memory for each in asked.containers.values()} == {(MemoryAmount(bytes=20 * GIB),)}


def test_init_containers_count_by_the_rule_of_kubernetes() -> None:
    asked = KOORDINATOR.parse_request(
        parsed(shared("main", gpu_memory="10Gi"), inits=[shared("init", gpu_memory="30Gi")])
    )

    assert asked.containers["main"].memory == (MemoryAmount(bytes=30 * GIB),)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"gpu_core": "50"}, "is required"),
        ({"gpu_memory": "1Gi", "gpu_memory_ratio": "50"}, "exclude each other"),
        ({"gpu": "50", "gpu_core": "50"}, "stands alone"),
        ({"gpu_memory_ratio": "150"}, "multiple of 100"),
        ({"shared": "2", "gpu_memory_ratio": "75"}, "divisible by the 2 cards"),
        ({"shared": "2", "gpu_memory_ratio": "202"}, "at most 200"),
        ({"shared": "17", "gpu_memory": "17Gi"}, "at most 16"),
        ({"gpu_memory": "half"}, "not a quantity"),
        ({"shared": "1"}, "is required"),
    ],
)
def test_illegal_combinations_are_refused(limits: dict[str, str], words: str) -> None:
    with pytest.raises(DialectError, match=words):
        request(shared(**limits))


def test_requests_that_differ_from_limits_are_refused() -> None:
    source = shared(gpu_memory="8Gi")
    source["resources"]["requests"] = {"koordinator.sh/gpu-memory": "4Gi"}  # type: ignore[index]

    with pytest.raises(DialectError, match="let request and limit agree"):
        request(source)


def test_all_cards_of_a_decision_count_not_only_the_first() -> None:
    decision = KOORDINATOR.parse_allocation(
        decided(
            shared(shared="2", gpu_core="100", gpu_memory_ratio="100"),
            entries=[entry(0, A), entry(3, D)],
        )
    )

    assert decision.pod_level
    assert [(p.card, p.memory.bytes, p.cores_percent) for p in decision.containers["main"]] == [
        (A, 40 * GIB, 50),
        (D, 40 * GIB, 50),
    ]


def test_every_container_that_asks_holds_the_pods_cards() -> None:
    decision = KOORDINATOR.parse_allocation(
        decided(
            shared("a", shared="1", gpu_memory="40Gi"),
            container_of("web", {}),
            shared("b", shared="1", gpu_memory="40Gi"),
            entries=[entry(0, A), entry(1, B)],
        )
    )

    assert decision.containers.keys() == {"a", "b"}
    assert decision.containers["a"] == decision.containers["b"]


def test_a_card_without_uuid_is_known_by_its_minor() -> None:
    (part,) = KOORDINATOR.parse_allocation(
        decided(shared(gpu_memory="40Gi"), entries=[entry(3)])
    ).containers["main"]

    assert (part.card, part.named) == ("3", Named.MINOR)


def test_go_leaves_out_minor_zero() -> None:
    source = entry(0)
    del source["minor"]

    (part,) = KOORDINATOR.parse_allocation(
        decided(shared(gpu_memory="40Gi"), entries=[source])
    ).containers["main"]

    assert (part.card, part.named) == ("0", Named.MINOR)


@pytest.mark.parametrize("spelling", ["HAMi-core", "hami-core", ""])
def test_the_isolation_label_decides_nothing(spelling: str) -> None:
    """Koordlet compares it exactly, and its manual spells it otherwise: pods run without limits."""
    source = parsed(
        shared(gpu_memory="40Gi"),
        annotations={ALLOCATED: json.dumps({"gpu": [entry(0, A)]})},
        labels={"koordinator.sh/gpu-isolation-provider": spelling, "hami.io/vgpu-node": "n"},
    )

    assert KOORDINATOR.parse_allocation(source).containers["main"][0].memory.bytes == 40 * GIB


def test_devices_of_other_kinds_are_no_decision() -> None:
    source = parsed(annotations={ALLOCATED: '{"rdma":[{"minor":0,"resources":{}}]}'})

    assert not KOORDINATOR.decided(source)


@pytest.mark.parametrize(
    "text",
    [
        '{"gpu"',
        '{"gpu":{}}',
        '{"gpu":[1]}',
        '{"gpu":[{"minor":-1,"resources":{}}]}',
        '{"gpu":[{}]}',
    ],
)
def test_a_wrong_decision_is_an_error(text: str) -> None:
    with pytest.raises(DialectError, match="koordinator.sh"):
        KOORDINATOR.parse_allocation(
            parsed(shared(gpu_memory="1Gi"), annotations={ALLOCATED: text})
        )


DEVICE = {
    "kind": "Device",
    "metadata": {
        "name": "node-a",
        "labels": {
            "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
            "node.koordinator.sh/gpu-vendor": "nvidia",
        },
    },
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "id": A,
                "minor": 0,
                "health": True,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory-ratio": "100",
                    "koordinator.sh/gpu-memory": 85198045184,
                },
                "topology": {"socketID": 0, "nodeID": 1, "pcieID": "0000:07"},
            },
            {"type": "gpu", "id": B, "minor": 1, "health": False, "resources": {}},
            {"type": "rdma", "id": "0000:1f:00.0", "minor": 0, "health": True},
        ]
    },
}


def test_a_device_object_is_read() -> None:
    registration = KOORDINATOR.parse_device(DEVICE)

    assert registration is not None
    first, second = registration.cards
    assert (first.uuid, first.minor, first.memory_bytes) == (A, 0, 85198045184)
    assert (first.healthy, first.numa_node, first.model) == (True, 1, "A100-SXM4-80GB")
    assert (second.uuid, second.healthy) == (B, False)


def test_what_is_written_for_koordinator_is_read_back() -> None:
    source = parsed(shared(gpu_memory="8Gi", gpu_core="30"))
    cards = {A: replace(gpu(A, 80), minor=2)}

    written = KOORDINATOR.encode_allocation(source, {"main": allocation(A, 8192, 30)}, cards)
    (part,) = KOORDINATOR.parse_allocation(
        parsed(shared(gpu_memory="8Gi", gpu_core="30"), annotations=written)
    ).containers["main"]

    assert (part.card, part.memory.bytes, part.cores_percent) == (A, 8 * GIB, 30)
    assert written["scheduling.koordinator.sh/gpu-minors"] == "2"


def test_nothing_is_written_where_a_minor_is_not_known() -> None:
    source = parsed(shared(gpu_memory="8Gi"))

    assert KOORDINATOR.encode_allocation(source, {"main": allocation(A, 1, 0)}, {A: gpu(A)}) == {}
