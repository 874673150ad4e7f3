# SPDX-License-Identifier: Apache-2.0
"""gpu-manager 1.1.5 and GPUSharing. Source of the examples: gpu-admission, gpu-manager."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_cache.dialects.dialect import DialectError, Named
from scheduler_cache.dialects.gpu_manager import GpuManager
from scheduler_cache.model import ComputeMode, MemoryAmount, Request
from scheduler_cache.pod import Pod, kube_node_of
from tests.scheduler_cache.dialects.test_volcano import allocation
from tests.scheduler_cache.kube_objects import A, B, container_of, gpu, kube_node, parsed

GPU_MANAGER = GpuManager()


def asking(name: str = "main", core: str = "", memory: str = "") -> dict[str, object]:
    limits = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}
    return container_of(name, {key: text for key, text in limits.items() if text})


def request(core: str = "", memory: str = "", **annotations: str) -> Request:
    source = parsed(
        asking(core=core, memory=memory),
        annotations={f"tencent.com/{key.replace('_', '-')}": v for key, v in annotations.items()},
    )
    return GPU_MANAGER.parse_request(source).containers["main"]


def test_memory_is_in_blocks_of_256_mebibytes_and_cores_are_hard() -> None:
    asked = request("30", "8")

    assert asked.memory == (MemoryAmount(bytes=2 << 30),)
    assert (asked.cores_percent, asked.compute_mode) == ((30,), ComputeMode.HARD)


def test_a_core_limit_makes_cores_elastic_up_to_it() -> None:
    asked = request("30", "8", vcuda_core_limit="70")

    assert (asked.cores_percent, asked.compute_mode) == ((30,), ComputeMode.BURST)
    assert asked.cores_max_percent == 70


def test_a_core_limit_below_the_cores_is_no_less_than_them() -> None:
    assert request("30", "8", vcuda_core_limit="10").cores_max_percent == 30


def test_hundreds_of_cores_are_whole_cards_whatever_the_memory() -> None:
    asked = request("200", "8", vcuda_core_limit="50")

    assert asked.whole_cards
    assert asked.count == 2


@pytest.mark.parametrize(
    ("core", "memory", "words"),
    [
        ("150", "8", "multiple of 100"),
        ("30", "", "1.."),
        ("", "8", "1.."),
        ("30", "x", "not a quantity"),
        ("1700", "", "1..1600"),
    ],
)
def test_a_wrong_request_is_refused(core: str, memory: str, words: str) -> None:
    with pytest.raises(DialectError, match=words):
        request(core, memory)


@pytest.mark.parametrize("limit", ["0", "101", "", "x"])
def test_a_wrong_core_limit_is_refused(limit: str) -> None:
    with pytest.raises(DialectError, match="vcuda-core-limit"):
        request("30", "8", vcuda_core_limit=limit)


def test_requests_and_init_containers_do_not_count() -> None:
    source = container_of("main", {})
    source["resources"]["requests"] = {"tencent.com/vcuda-core": "30"}

    assert not GPU_MANAGER.asks(parsed(source, inits=[asking("init", "30", "8")]))


def decided(*containers: dict[str, object], **annotations: str) -> Pod:
    return parsed(
        *containers,
        inits=[container_of("init", {})],
        annotations={f"tencent.com/{key.replace('_', '-')}": v for key, v in annotations.items()},
    )


def test_the_index_counts_app_containers_also_those_without_card() -> None:
    decision = GPU_MANAGER.parse_allocation(
        decided(
            container_of("web", {}),
            asking("shared", "30", "8"),
            asking("whole", "200"),
            predicate_gpu_idx_1="1",
            predicate_gpu_idx_2="2,3",
            predicate_node="node-7",
            predicate_time="1732720000123456789",
            gpu_assigned="false",
        )
    )

    assert decision.node_name == "node-7"
    assert decision.decided_unix_ns == 1732720000123456789
    assert {
        name: [(part.card, part.named, part.cores_percent) for part in parts]
        for name, parts in decision.containers.items()
    } == {
        "shared": [("1", Named.MINOR, 30)],
        "whole": [("2", Named.MINOR, 100), ("3", Named.MINOR, 100)],
    }


def test_the_ceiling_reaches_the_slice() -> None:
    (part,) = GPU_MANAGER.parse_allocation(
        decided(asking("main", "30", "8"), predicate_gpu_idx_0="0", vcuda_core_limit="70")
    ).containers["main"]

    assert (part.cores_percent, part.cores_max_percent, part.compute_mode) == (
        30,
        70,
        ComputeMode.BURST,
    )


@pytest.mark.parametrize(
    "annotations",
    [
        {"predicate_gpu_idx_0": "0,1"},
        {"predicate_gpu_idx_0": "x"},
        {"predicate_gpu_idx_0": ""},
        {"predicate_gpu_idx_1": "0"},
        {"predicate_gpu_idx_x": "0"},
    ],
)
def test_a_wrong_decision_is_an_error(annotations: dict[str, str]) -> None:
    with pytest.raises(DialectError, match="predicate-gpu-idx"):
        GPU_MANAGER.parse_allocation(decided(asking("main", "30", "8"), **annotations))


def test_capacity_alone_says_that_it_sells_every_card() -> None:
    registration = GPU_MANAGER.parse_node(
        kube_node_of(kube_node(allocatable={"tencent.com/vcuda-core": "800"}))
    )

    assert registration is not None
    assert registration.every_card
    assert GPU_MANAGER.parse_node(kube_node_of(kube_node())) is None


def test_what_is_written_for_gpu_manager_is_read_back() -> None:
    containers = (container_of("web", {}), asking("main", "30", "8"))
    cards = {A: replace(gpu(A), minor=5)}

    written = GPU_MANAGER.encode_allocation(
        parsed(*containers), {"main": allocation(A, 2048, 30)}, cards
    )

    assert written == {
        "tencent.com/predicate-node": "node-a",
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-gpu-idx-1": "5",
    }
    decision = GPU_MANAGER.parse_allocation(parsed(*containers, annotations=written))
    assert decision.containers["main"][0].card == "5"


def test_nothing_is_written_where_a_minor_is_not_known() -> None:
    source = parsed(asking("main", "30", "8"))

    assert GPU_MANAGER.encode_allocation(source, {"main": allocation(B, 1, 0)}, {B: gpu(B)}) == {}
