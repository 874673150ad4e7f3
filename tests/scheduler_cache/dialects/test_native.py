# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from scheduler_cache.dialects.dialect import DialectError
from scheduler_cache.dialects.native import ALLOCATION, Native
from scheduler_cache.model import CardPolicy, ComputeMode, MemoryAmount
from scheduler_cache.pod import kube_node_of
from tests.scheduler_cache.builders import GIB
from tests.scheduler_cache.kube_objects import (
    KEYRING,
    A,
    B,
    World,
    container,
    gpu,
    kube_node,
    parsed,
    pod,
)

NATIVE = Native(KEYRING)


def test_a_container_asks_by_its_limits() -> None:
    asked = NATIVE.parse_request(
        parsed(container(count="2", memory="8Gi", cores="30"), container("web"))
    )

    assert set(asked.containers) == {"main"}
    request = asked.containers["main"]
    assert (request.count, request.memory, request.cores_percent) == (
        2,
        (MemoryAmount(bytes=8 * GIB),),
        (30,),
    )


def test_init_containers_and_sidecars_ask_as_well() -> None:
    asked = NATIVE.parse_request(
        parsed(
            container(memory="1Gi"),
            inits=[
                container("first", memory_percent="50"),
                container("side", memory="1Gi", sidecar=True),
            ],
        )
    )

    assert list(asked.containers) == ["first", "side", "main"]


def test_cards_of_one_container_may_get_different_amounts() -> None:
    devices = {"main": [{"memory": "8Gi", "cores": 30}, {"memory": "25%", "cores": 10}]}

    request = NATIVE.parse_request(
        parsed(container(count="2"), annotations={"vgpu.dev/devices": json.dumps(devices)})
    ).containers["main"]

    assert request.memory == (MemoryAmount(bytes=8 * GIB), MemoryAmount(percent=25))
    assert request.cores_percent == (30, 10)


def test_annotations_give_policy_mode_models_and_uuids() -> None:
    request = NATIVE.parse_request(
        parsed(
            container(memory="8Gi", cores="30"),
            annotations={
                "vgpu.dev/card-policy": "spread",
                "vgpu.dev/compute-mode": "burst",
                "vgpu.dev/use-model": "H100, !MIG",
                "vgpu.dev/use-uuid": f"{A},",
            },
        )
    ).containers["main"]

    assert request.card_policy is CardPolicy.SPREAD
    assert request.compute_mode is ComputeMode.BURST
    assert request.models == ("H100", "!MIG")
    assert request.uuids == (A,)


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        ({"count": "1"}, {}, "memory is required"),
        ({"memory": "8Gi", "memory_percent": "50"}, {}, "not both"),
        ({"memory": "8"}, {}, "add the unit"),
        ({"memory": "0"}, {}, "must lie in 1.."),
        ({"memory": "-1Gi"}, {}, "not a quantity"),
        ({"memory": ""}, {}, "not a quantity"),
        ({"memory": "1.5"}, {}, "not a whole number"),
        ({"memory": "9Ei"}, {}, "ask for less"),
        ({"memory": "8Gi", "cores": "101"}, {}, "1..100"),
        ({"memory": "8Gi", "cores": "0"}, {}, "1..100"),
        ({"memory": "8Gi", "count": "17"}, {}, "1..16"),
        ({"memory_percent": "0"}, {}, "1..100"),
        ({"memory": "8Gi"}, {"card-policy": "best"}, "binpack, spread, exclusive"),
        ({"memory": "8Gi"}, {"compute-mode": ""}, "hard, burst"),
        ({"memory": "8Gi"}, {"compute-mode": "hard"}, "hard needs cores"),
        ({"memory": "8Gi"}, {"devices": "[]"}, "JSON object"),
        ({"memory": "8Gi"}, {"devices": '{"main":null}'}, "leave the container out"),
        ({}, {"devices": '{"main":null}'}, "must list 1..16 cards"),
        ({"memory": "8Gi"}, {"devices": '{"other":[]}'}, "no container of this name"),
        ({"memory": "8Gi"}, {"devices": '{"main":[{"memory":"8Gi"}]}'}, "remove one of the two"),
        ({"count": "1"}, {"devices": '{"main":[{"memory":"1Gi"},{"memory":"1Gi"}]}'}, "lists 2"),
        ({}, {"devices": '{"main":[{"memory":"1Gi","core":5}]}'}, "correct the list"),
        ({}, {"devices": '{"main":[{"memory":"1Gi","cores":5},{"memory":"1Gi"}]}'}, "for some"),
    ],
)
def test_a_wrong_request_is_refused_with_its_field_and_a_remedy(
    limits: dict[str, str], annotations: dict[str, str], words: str
) -> None:
    source = parsed(
        container(**limits),  # type: ignore[arg-type]
        annotations={f"vgpu.dev/{key}": text for key, text in annotations.items()},
    )

    with pytest.raises(DialectError, match=r"^.* is '.*': .*; ") as caught:
        NATIVE.parse_request(source)

    assert words in str(caught.value)


def test_what_is_written_is_read_back() -> None:
    world = World(gpu(A), gpu(B))
    source = pod("p1", container(count="2", memory="2Gi", cores="30"), container("b", memory="1Gi"))
    bound = world.bind(source, epoch=7)

    from scheduler_cache.pod import pod_of

    decision = NATIVE.parse_allocation(pod_of(bound))

    assert (decision.node_name, decision.epoch, decision.doubt) == ("node-a", 7, "")
    assert {name: len(parts) for name, parts in decision.containers.items()} == {"main": 2, "b": 1}
    assert {part.card for part in decision.containers["main"]} == {A, B}


def test_the_annotation_has_the_form_of_the_contract() -> None:
    world = World(gpu(A))

    bound = world.bind(pod("p1", container(memory="2Gi", cores="30")), epoch=7)

    written = json.loads(bound["metadata"]["annotations"][ALLOCATION])
    assert written.keys() == {"version", "node", "epoch", "containers", "key", "mac"}
    assert written["containers"]["main"] == [
        {
            "card": A,
            "memory_bytes": 2 * GIB,
            "cores_percent": 30,
            "reserved_percent": 30,
            "cores_max_percent": 30,
            "compute_mode": "hard",
            "priority": 0,
            "weight": 30,
        }
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version"),
        ({"node": ""}, "node"),
        ({"epoch": -1}, "epoch"),
        ({"containers": []}, "containers"),
        ({"containers": {"main": [{}]}}, "compute_mode"),
        ({"exclusive": "main"}, "exclusive"),
    ],
)
def test_a_wrong_allocation_is_an_error_that_names_the_field(
    change: dict[str, object], words: str
) -> None:
    source = {"version": 1, "node": "n", "epoch": 1, "containers": {}, "key": "k", "mac": "m"}

    with pytest.raises(DialectError, match=words):
        NATIVE.parse_allocation(parsed(annotations={ALLOCATION: json.dumps({**source, **change})}))


def test_an_inventory_is_read_back() -> None:
    cards = (
        gpu(A, numa_node=1, minor=3),
        gpu(B, healthy=False, health_reason="Xid 79: fell off the bus", parent_uuid=A),
    )
    node = kube_node_of(kube_node(annotations=NATIVE.encode_inventory(cards)))

    registration = NATIVE.parse_node(node)

    assert registration is not None
    assert registration.cards == cards
