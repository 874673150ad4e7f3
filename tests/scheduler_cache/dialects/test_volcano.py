# SPDX-License-Identifier: Apache-2.0
"""Volcano vGPU. Source of the examples: volcano pkg/scheduler/api/devices/nvidia/vgpu."""

from __future__ import annotations

import pytest

from scheduler_cache.dialects.dialect import DialectError
from scheduler_cache.dialects.fields import MIB
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.model import Allocation, Card, ComputeMode, MemoryAmount, Slice
from scheduler_cache.pod import KubeNode, Pod, kube_node_of
from tests.scheduler_cache.kube_objects import A, B, C, container_of, gpu, kube_node, parsed

VOLCANO = Volcano()
DONE = "18446744073709551615"


def asking(name: str = "main", **limits: object) -> dict[str, object]:
    return container_of(
        name, {f"volcano.sh/vgpu-{key.replace('_', '-')}": value for key, value in limits.items()}
    )


def decided(*containers: dict[str, object], ids: str, **annotations: str) -> Pod:
    return parsed(*containers, annotations={"volcano.sh/vgpu-ids-new": ids, **annotations})


def test_memory_and_cores_are_per_card() -> None:
    asked = VOLCANO.parse_request(parsed(asking(number="2", memory="8192", cores="30")))

    request = asked.containers["main"]
    assert (request.count, request.memory, request.cores_percent) == (
        2,
        (MemoryAmount(bytes=8192 * MIB),),
        (30,),
    )


def test_numbers_without_quotes_are_read() -> None:
    request = VOLCANO.parse_request(parsed(asking(number=1, memory=3000))).containers["main"]

    assert request.memory == (MemoryAmount(bytes=3000 * MIB),)


def test_memory_alone_asks_for_one_card() -> None:
    assert VOLCANO.parse_request(parsed(asking(memory="3000"))).containers["main"].count == 1


def test_cores_or_percentage_alone_ask_for_nothing() -> None:
    assert not VOLCANO.asks(parsed(asking(cores="30")))
    assert not VOLCANO.asks(parsed(asking(memory_percentage="30")))


def test_init_containers_ask_for_nothing() -> None:
    source = parsed(container_of("web", {}), inits=[asking("init", number="1")])

    assert not VOLCANO.asks(source)


def test_a_percentage_wins_over_memory() -> None:
    source = parsed(asking(number="1", memory="3000", memory_percentage="25"))

    assert VOLCANO.parse_request(source).containers["main"].memory == (MemoryAmount(percent=25),)


def test_101_percent_means_not_set() -> None:
    source = parsed(asking(number="1", memory="3000", memory_percentage="101"))

    assert VOLCANO.parse_request(source).containers["main"].memory == (
        MemoryAmount(bytes=3000 * MIB),
    )


def test_without_amounts_it_is_all_memory_and_no_reservation_of_cores() -> None:
    request = VOLCANO.parse_request(parsed(asking(number="1"))).containers["main"]

    assert request.memory == (MemoryAmount(percent=100),)
    assert request.cores_percent == ()
    assert not request.whole_cards


def test_the_factor_multiplies_memory_everywhere() -> None:
    volcano = Volcano(memory_factor=16)
    source = decided(asking(number="1", memory="512"), ids=f"{A},NVIDIA,512,0:")
    node = kube_node_of(
        kube_node(annotations={"volcano.sh/node-vgpu-register": f"{A},10,5097,NVIDIA-H,true,mig:"})
    )

    registration = volcano.parse_node(node)
    assert registration is not None
    assert registration.cards[0].memory_bytes == 5097 * 16 * MIB
    assert volcano.parse_request(source).containers["main"].memory[0].bytes == 8192 * MIB
    assert volcano.parse_allocation(source).containers["main"][0].memory.bytes == 8192 * MIB


def test_denied_types_are_not_looked_at_where_types_are_asked_for() -> None:
    both = {"nvidia.com/use-gputype": "A100,", "nvidia.com/nouse-gputype": "H100"}
    deny = {"nvidia.com/nouse-gputype": "H100"}

    def models(annotations: dict[str, str]) -> tuple[str, ...]:
        source = parsed(asking(number="1"), annotations=annotations)
        return VOLCANO.parse_request(source).containers["main"].models

    assert models(both) == ("A100",)
    assert models(deny) == ("!H100",)


def test_uuid_lists_have_volcanos_own_prefix_and_are_both_applied() -> None:
    annotations = {
        "volcano.sh/vgpu-use-gpuuuid": f"{A}, {B}",
        "volcano.sh/vgpu-nouse-gpuuuid": C,
        "nvidia.com/use-gpuuuid": "GPU-hami",
    }

    request = VOLCANO.parse_request(parsed(asking(number="1"), annotations=annotations))

    assert request.containers["main"].uuids == (A, B, f"!{C}")


def test_one_container_with_two_cards() -> None:
    decision = VOLCANO.parse_allocation(
        decided(asking(number="2"), ids=f"{A},NVIDIA,8192,30:{B},NVIDIA,8192,30:")
    )

    parts = decision.containers["main"]
    assert [(part.card, part.memory.bytes, part.cores_percent) for part in parts] == [
        (A, 8192 * MIB, 30),
        (B, 8192 * MIB, 30),
    ]


def test_a_container_without_card_in_between_leaves_no_trace() -> None:
    """The plugin takes the compacted number for one of `spec.containers`."""
    ids = f"{A},NVIDIA,2000,0:{B},NVIDIA,2000,0:;{A},NVIDIA,3000,0:{C},NVIDIA,3000,0:"

    decision = VOLCANO.parse_allocation(
        decided(
            asking("first", number="2"),
            container_of("web", {}),
            asking("last", number="2"),
            ids=ids,
        )
    )

    assert {name: [part.card for part in parts] for name, parts in decision.containers.items()} == {
        "first": [A, B],
        "last": [A, C],
    }


@pytest.mark.parametrize(
    "ids", [f"{A},NVIDIA,2000,0:;", f" {A} , NVIDIA , 2000 , 0 : ", f"{A},NVIDIA,2000,0,x:"]
)
def test_blanks_trailing_separators_and_further_fields_are_no_matter(ids: str) -> None:
    decision = VOLCANO.parse_allocation(decided(asking(number="1"), ids=ids))

    assert [part.card for part in decision.containers["main"]] == [A]


def test_a_mig_place_counts_on_its_card_and_is_never_resolved_to_all_of_it() -> None:
    decision = VOLCANO.parse_allocation(
        decided(asking(number="1"), ids=f"{A}[group2-1],NVIDIA,10240,0:")
    )

    assert decision.containers["main"][0].card == A
    assert "MIG" in decision.doubt


def test_a_replicas_suffix_names_its_card() -> None:
    decision = VOLCANO.parse_allocation(decided(asking(number="1"), ids=f"{A}-3,NVIDIA,1024,0:"))

    assert decision.containers["main"][0].card == A


def test_times_are_seconds_and_the_plugins_done_is_none() -> None:
    def time(text: str) -> int:
        source = decided(
            asking(number="1"), ids=f"{A},NVIDIA,1,0:", **{"volcano.sh/vgpu-time": text}
        )
        return VOLCANO.parse_allocation(source).decided_unix_ns

    assert time("1732720000") == 1732720000 * 10**9
    assert time(DONE) == 0


@pytest.mark.parametrize(
    "ids",
    [
        f"{A},NVIDIA,1024:",
        f"{A},NVIDIA,x,0:",
        f"{A},NVIDIA,0,0:",
        f"{A},NVIDIA,1024,101:",
        "0,NVIDIA,1024,0:",
        f"{A},NVIDIA,1024,0:;{B},NVIDIA,1024,0:",
    ],
)
def test_a_wrong_decision_is_an_error(ids: str) -> None:
    with pytest.raises(DialectError, match="delete the pod"):
        VOLCANO.parse_allocation(decided(asking(number="1"), ids=ids))


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (f"{A},10,81559,NVIDIA-NVIDIA A100-SXM4-80GB,true,hami-core:", "6 fields"),
        (f"{A},10,81559,NVIDIA-NVIDIA A100-SXM4-80GB,true:", "5 fields, plugin <= 1.9.4"),
    ],
)
def test_registrations_of_old_and_new_plugins_are_read(text: str, mode: str) -> None:
    text += text.replace(A, B).replace("true", "false")

    registration = VOLCANO.parse_node(
        kube_node_of(kube_node(annotations={"volcano.sh/node-vgpu-register": text}))
    )

    assert registration is not None
    assert registration.cards == (
        Card(uuid=A, memory_bytes=81559 * MIB, slots=10, model="NVIDIA-NVIDIA A100-SXM4-80GB"),
        Card(
            uuid=B,
            memory_bytes=81559 * MIB,
            slots=10,
            model="NVIDIA-NVIDIA A100-SXM4-80GB",
            healthy=False,
        ),
    )


def test_what_is_registered_for_volcano_is_read_back() -> None:
    cards = (gpu(A, 80), gpu(B, 80, healthy=False))

    node = kube_node_of(kube_node(annotations=VOLCANO.encode_registration(cards)))
    registration = VOLCANO.parse_node(node)

    assert registration is not None
    assert [(c.uuid, c.memory_bytes, c.slots, c.healthy) for c in registration.cards] == [
        (c.uuid, c.memory_bytes, c.slots, c.healthy) for c in cards
    ]


def test_what_is_written_for_volcano_is_read_back() -> None:
    source = parsed(asking("first", number="1"), container_of("web", {}), asking("b", number="1"))
    allocations = {"first": allocation(A, 8192, 30), "b": allocation(B, 100, 0)}

    written = VOLCANO.encode_allocation(source, allocations, {})

    assert written["volcano.sh/vgpu-ids-new"] == f"{A},NVIDIA,8192,30:;{B},NVIDIA,100,0:"
    assert written["volcano.sh/vgpu-time"] == DONE
    decision = VOLCANO.parse_allocation(
        decided(
            asking("first", number="1"),
            container_of("web", {}),
            asking("b", number="1"),
            ids=written["volcano.sh/vgpu-ids-new"],
        )
    )
    assert {name: parts[0].card for name, parts in decision.containers.items()} == {
        "first": A,
        "b": B,
    }


def test_the_handshake_is_completed_at_the_kubelets_admission() -> None:
    containers = (asking("a", number="1"), container_of("web", {}), asking("b", number="1"))
    # As Volcano's scheduler leaves them at the Binding.
    decided = {
        "volcano.sh/devices-to-allocate": f"{A},NVIDIA,1024,0:;{B},NVIDIA,2048,0:",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/vgpu-time": "1767225600",
    }
    source = parsed(*containers, annotations=decided)

    done = VOLCANO.encode_completion(source, admitted=True)
    after = parsed(*containers, annotations={**decided, **done})

    assert VOLCANO.unfinished(source)
    assert done == {
        "volcano.sh/devices-to-allocate": ";",
        "volcano.sh/bind-phase": "success",
        "volcano.sh/vgpu-time": DONE,
    }
    assert not VOLCANO.unfinished(after)
    assert VOLCANO.encode_completion(after, admitted=True) == {}
    assert VOLCANO.encode_completion(source, admitted=False) == {"volcano.sh/bind-phase": "failed"}


def test_the_lock_is_opened() -> None:
    locked = KubeNode(name="n", annotations={"hamivgpu": "2026-01-01T00:00:00Z"})

    assert VOLCANO.encode_unlock(locked, parsed()) == {"hamivgpu": None}
    assert VOLCANO.encode_unlock(KubeNode(name="n"), parsed()) == {}


def allocation(uuid: str, mebibytes: int, reserved: int) -> Allocation:
    part = Slice(
        card_uuid=uuid,
        memory_bytes=mebibytes * MIB,
        cores_percent=reserved or 100,
        reserved_percent=reserved,
        cores_max_percent=100,
        compute_mode=ComputeMode.BURST,
    )
    return Allocation(allocation_id="a", node_name="node-a", slices=(part,))
