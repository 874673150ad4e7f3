# SPDX-License-Identifier: Apache-2.0
"""HAMi 2.4 to 2.10. Source of the examples: HAMi pkg/device, docs/develop/protocol.md."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from scheduler_cache.dialects.dialect import DialectError
from scheduler_cache.dialects.fields import MIB
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.model import MemoryAmount, Request
from scheduler_cache.pod import KubeNode, Pod, kube_node_of
from tests.scheduler_cache.dialects.test_volcano import allocation
from tests.scheduler_cache.kube_objects import A, B, C, container_of, gpu, kube_node, parsed

HAMI = Hami()
REGISTER = "hami.io/node-nvidia-register"


def asking(name: str = "main", **limits: object) -> dict[str, object]:
    names = {"percentage": "gpumem-percentage"}
    return container_of(
        name, {f"nvidia.com/{names.get(key, key)}": value for key, value in limits.items()}
    )


def request(hami: Hami = HAMI, **limits: object) -> Request:
    return hami.parse_request(parsed(asking(**limits))).containers["main"]  # type: ignore[arg-type]


def decided(*containers: dict[str, object], devices: str, **options: object) -> Pod:
    annotations = {"hami.io/vgpu-devices-allocated": devices}
    annotations.update(options.pop("annotations", {}))  # type: ignore[call-overload]
    return parsed(*containers, annotations=annotations, **options)


def registered(text: str) -> object:
    registration = HAMI.parse_node(kube_node_of(kube_node(annotations={REGISTER: text})))
    assert registration is not None
    return registration.cards


def test_amounts_are_per_card() -> None:
    asked = request(gpu="2", gpumem="8192", gpucores="30")

    assert (asked.count, asked.memory, asked.cores_percent) == (
        2,
        (MemoryAmount(bytes=8192 * MIB),),
        (30,),
    )


def test_the_bare_resource_is_nvidias_unless_it_is_claimed() -> None:
    source = parsed(asking(gpu="1"))

    assert not HAMI.asks(source)
    assert Hami(claim_bare_gpu=True).asks(source)


def test_a_claimed_bare_resource_is_a_whole_card() -> None:
    assert request(Hami(claim_bare_gpu=True), gpu="1").whole_cards


def test_memory_without_count_asks_for_one_card() -> None:
    assert request(gpumem="1000").count == 1


def test_memory_wins_over_percentage_and_zero_means_not_set() -> None:
    assert request(gpu="1", gpumem="1000", percentage="50").memory[0].bytes == 1000 * MIB
    assert request(gpu="1", gpumem="1000", percentage="0").memory[0].bytes == 1000 * MIB
    assert request(gpu="1", gpumem="0", percentage="50").memory[0].percent == 50


def test_the_factor_and_the_default_of_the_chart_are_applied() -> None:
    assert request(Hami(memory_factor=4), gpumem="1000").memory[0].bytes == 4000 * MIB
    assert request(Hami(default_memory=500), gpucores="30").memory[0].bytes == 500 * MIB


def test_all_memory_without_cores_is_a_whole_card() -> None:
    assert request(gpu="1", percentage="100").whole_cards
    assert not request(gpu="1", percentage="100", gpucores="50").whole_cards
    assert request(gpu="1", percentage="100", gpucores="50").cores_percent == (50,)


def test_all_memory_without_cores_reserved_none_before_2_7() -> None:
    asked = request(Hami(full_card_cores=False), gpu="1", percentage="100")

    assert asked.cores_percent == ()
    assert not asked.whole_cards


def test_more_than_all_cores_are_all_cores() -> None:
    assert request(gpumem="1000", gpucores="150").cores_percent == (100,)


def test_no_cores_burst_without_reservation() -> None:
    assert request(gpumem="1000", gpucores="0").cores_percent == ()


def test_priority_zero_is_the_high_one() -> None:
    assert request(gpumem="1", priority="0").priority > request(gpumem="1", priority="1").priority
    assert request(gpumem="1").priority == request(gpumem="1", priority="1").priority


@pytest.mark.parametrize(
    "limits",
    [
        {"gpumem": "16Gi"},
        {"gpumem": "-1"},
        {"gpumem": "0.5"},
        {"gpumem": str(1 << 31)},
        {"percentage": "101"},
        {"gpu": "17", "gpumem": "1"},
        {"gpumem": "1", "priority": "2"},
    ],
)
def test_what_hami_drops_to_zero_or_wraps_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(DialectError, match="nvidia.com/"):
        request(**limits)  # type: ignore[arg-type]


def test_requests_are_the_fallback_of_limits() -> None:
    source = container_of("main", {})
    source["resources"]["requests"] = {"nvidia.com/gpumem": "77"}

    assert HAMI.parse_request(parsed(source)).containers["main"].memory[0].bytes == 77 * MIB


def test_types_and_uuids_are_allowed_and_denied() -> None:
    annotations = {
        "nvidia.com/use-gputype": "A100",
        "nvidia.com/nouse-gputype": "PCIe",
        "nvidia.com/use-gpuuuid": A,
        "nvidia.com/nouse-gpuuuid": B,
    }

    asked = HAMI.parse_request(parsed(asking(gpumem="1"), annotations=annotations))

    assert asked.containers["main"].models == ("A100", "!PCIe")
    assert asked.containers["main"].uuids == (A, f"!{B}")


def test_one_container_with_two_cards() -> None:
    decision = HAMI.parse_allocation(
        decided(asking(gpu="2", gpumem="1"), devices=f"{A},NVIDIA,8192,30:{B},NVIDIA,8192,30:;")
    )

    parts = decision.containers["main"]
    assert [(part.card, part.memory.bytes, part.cores_percent) for part in parts] == [
        (A, 8192 * MIB, 30),
        (B, 8192 * MIB, 30),
    ]


def test_init_containers_come_first_also_without_card() -> None:
    devices = f";{A},NVIDIA,4096,0:{B},NVIDIA,4096,0:;{A},NVIDIA,8192,30:{C},NVIDIA,8192,30:;"

    decision = HAMI.parse_allocation(
        decided(
            asking("one", gpu="2", gpumem="4096"),
            asking("two", gpu="2", gpumem="8192"),
            inits=[container_of("init", {})],
            devices=devices,
        )
    )

    assert {name: [part.card for part in parts] for name, parts in decision.containers.items()} == {
        "one": [A, B],
        "two": [A, C],
    }


def test_empties_of_both_kinds_in_one_value_keep_their_slots() -> None:
    """HAMi issue 991: up to 2.7 a container without card is `,,0,0:` or nothing."""
    decision = HAMI.parse_allocation(
        decided(
            container_of("a", {}),
            container_of("b", {}),
            asking("c", gpumem="1"),
            devices=f",,0,0:;;{A},NVIDIA,100,0:;",
        )
    )

    assert list(decision.containers) == ["c"]


def test_a_missing_tail_and_further_fields_are_no_matter() -> None:
    for devices in (
        f"{A},NVIDIA,100,0:",
        f"{A},NVIDIA,100,0,more,fields:;",
        f" {A},NVIDIA,100,0 : ; ",
    ):
        decision = HAMI.parse_allocation(decided(asking(gpumem="1"), devices=devices))

        assert decision.containers["main"][0].card == A


def test_more_containers_than_the_pod_has_is_an_error() -> None:
    with pytest.raises(DialectError, match="cards to 2 containers, and the pod has 1 that ask"):
        HAMI.parse_allocation(
            decided(asking(gpumem="1"), devices=f"{A},NVIDIA,1,0:;{B},NVIDIA,1,0:;")
        )


@pytest.mark.parametrize("devices", [f"{A},NVIDIA:;", f"{A},NVIDIA,100,x:;", "gpu0,NVIDIA,1,0:;"])
def test_a_wrong_decision_is_an_error(devices: str) -> None:
    with pytest.raises(DialectError, match="hami.io/vgpu-devices-allocated"):
        HAMI.parse_allocation(decided(asking(gpumem="1"), devices=devices))


def test_a_mig_place_is_doubted_until_the_plugin_names_the_instance() -> None:
    mig = {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": A,
        "profile": "2g.20gb",
        "placement": {"start": 2, "size": 2},
    }
    uuid = "MIG-5c3e3c1a-aaaa-5bbb-8ccc-1234567890ab"
    devices = f"{A},NVIDIA,20096,0:;"

    def decision(*entries: dict[str, object]) -> object:
        annotations = {"hami.io/vgpu-mig-allocations": json.dumps(entries)}
        return HAMI.parse_allocation(
            decided(asking(gpumem="20096"), devices=devices, annotations=annotations)
        )

    before, after = decision(mig), decision({**mig, "migUUID": uuid, "gpuInstanceID": 3})

    assert (before.doubt != "", before.containers["main"][0].card) == (True, A)  # type: ignore[attr-defined]
    assert (after.doubt, after.containers["main"][0].card) == ("", uuid)  # type: ignore[attr-defined]


def test_one_named_mig_instance_does_not_lift_the_doubt_about_another() -> None:
    entries = [
        {"containerIndex": 0, "deviceIndex": 0},
        {"containerIndex": 0, "deviceIndex": 1, "migUUID": "MIG-5c3e3c1a-aaaa-5bbb-8ccc-12345678"},
    ]

    decision = HAMI.parse_allocation(
        decided(
            asking(gpu="2", gpumem="20096"),
            devices=f"{A},NVIDIA,20096,0:{A},NVIDIA,20096,0:;",
            annotations={"hami.io/vgpu-mig-allocations": json.dumps(entries)},
        )
    )

    assert "MIG" in decision.doubt


def test_the_old_mig_form_is_doubted() -> None:
    decision = HAMI.parse_allocation(
        decided(asking(gpumem="1"), devices=f"{A}[0-1],NVIDIA,10240,0:;")
    )

    assert "MIG" in decision.doubt
    assert decision.containers["main"][0].card == A


def test_the_node_and_the_time_of_the_decision_are_read() -> None:
    decision = HAMI.parse_allocation(
        decided(
            asking(gpumem="1"),
            devices=f"{A},NVIDIA,1,0:;",
            annotations={"hami.io/vgpu-node": "node-7", "hami.io/vgpu-time": "1732720000"},
        )
    )

    assert decision.node_name == "node-7"
    assert decision.decided_unix_ns == 1732720000 * 10**9


def test_other_vendors_keys_are_not_ours() -> None:
    source = parsed(annotations={"hami.io/dcu-devices-allocated": "DCU-1,DCU,1,0:;"})

    assert not HAMI.decided(source)


@pytest.mark.parametrize(
    "text",
    [
        f"{A},10,81559,100,NVIDIA-NVIDIA A100-SXM4-80GB,0,true:",
        f"{A},10,81559,100,NVIDIA-NVIDIA A100-SXM4-80GB,0,true,0,hami-core:",
        json.dumps(
            [
                {
                    "id": A,
                    "count": 10,
                    "devmem": 81559,
                    "devcore": 100,
                    "type": "NVIDIA-NVIDIA A100-SXM4-80GB",
                    "mode": "hami-core",
                    "health": True,
                }
            ]
        ),
    ],
    ids=["2.4", "2.5-2.7", "2.8"],
)
def test_registrations_of_all_versions_are_read(text: str) -> None:
    assert registered(text) == (
        gpu(A, memory_bytes=81559 * MIB, model="NVIDIA-NVIDIA A100-SXM4-80GB"),
    )


def test_health_that_is_left_out_is_no_health() -> None:
    (card,) = registered(json.dumps([{"id": A, "count": 10, "devmem": 1}]))  # type: ignore[misc]

    assert not card.healthy  # type: ignore[has-type]


def test_an_oversold_card_is_registered_with_what_is_sold() -> None:
    (card,) = registered(f"{A},10,163118,200,NVIDIA-H,-1,true,0,hami-core:")  # type: ignore[misc]

    assert (card.memory_bytes, card.cores_percent, card.numa_node) == (163118 * MIB, 200, 0)  # type: ignore[has-type]


@pytest.mark.parametrize(
    "text", ["[{]", "{}", "[1]", f"{A},10,x,100,t,0,true:", f"{A},10:", '[{"id":7}]']
)
def test_a_wrong_registration_is_an_error_with_a_remedy(text: str) -> None:
    with pytest.raises(DialectError, match="restart the device plugin|JSON"):
        HAMI.parse_node(kube_node_of(kube_node(annotations={REGISTER: text})))


@pytest.mark.parametrize("hami", [HAMI, Hami(json_register=False)])
def test_what_is_registered_for_hami_is_read_back(hami: Hami) -> None:
    cards = (gpu(A, 80, numa_node=1), gpu(B, 80, healthy=False))

    node = kube_node_of(kube_node(annotations=hami.encode_registration(cards)))
    registration = hami.parse_node(node)

    assert registration is not None
    assert [
        (c.uuid, c.memory_bytes, c.slots, c.healthy, c.numa_node) for c in registration.cards
    ] == [(c.uuid, c.memory_bytes, c.slots, c.healthy, c.numa_node) for c in cards]


def test_what_is_written_for_hami_is_read_back() -> None:
    source = parsed(
        asking("one", gpumem="1"), asking("two", gpumem="1"), inits=[container_of("init", {})]
    )

    written = HAMI.encode_allocation(
        source, {"one": allocation(A, 4096, 0), "two": allocation(B, 8192, 30)}, {}
    )

    assert written["hami.io/vgpu-devices-allocated"] == f";{A},NVIDIA,4096,0:;{B},NVIDIA,8192,30:;"
    assert written["hami.io/vgpu-node"] == "node-a"


def test_the_handshake_is_completed_at_the_kubelets_admission() -> None:
    containers = (asking("a", gpumem="1"), container_of("web", {}), asking("b", gpumem="1"))
    key = "hami.io/vgpu-devices-to-allocate"
    # As HAMi's scheduler leaves them at the Binding.
    decided = {key: f"{A},NVIDIA,1,0:;;{B},NVIDIA,2,0:;", "hami.io/bind-phase": "allocating"}
    source = parsed(*containers, annotations=decided)

    done = HAMI.encode_completion(source, admitted=True)
    after = parsed(*containers, annotations={**decided, **done})

    assert HAMI.unfinished(source)
    assert done == {key: ";;;", "hami.io/bind-phase": "success"}
    assert not HAMI.unfinished(after)
    assert HAMI.encode_completion(after, admitted=True) == {}


def test_a_pod_that_the_kubelet_turned_away_ends_the_handshake_as_failed() -> None:
    source = parsed(asking(gpumem="1"), annotations={"hami.io/bind-phase": "allocating"})

    assert HAMI.encode_completion(source, admitted=False) == {"hami.io/bind-phase": "failed"}


@pytest.mark.parametrize(
    ("json_register", "asked", "answered"),
    [
        (False, "Requesting_2026-01-01 00:00:00", True),
        (False, "Deleted_2026-01-01 00:00:00", True),
        (False, "Reported 2026-01-01 00:00:00", False),
        (False, "", False),
        (True, "Requesting_2026-01-01 00:00:00", False),
    ],
)
def test_a_scheduler_that_asks_whether_the_plugin_lives_is_answered(
    json_register: bool, asked: str, answered: bool
) -> None:
    node = KubeNode(name="n", annotations={"hami.io/node-handshake": asked} if asked else {})
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    assert Hami(json_register=json_register).encode_liveness(node, now) == (
        {"hami.io/node-handshake": "Reported 2026-01-02 03:04:05"} if answered else {}
    )


@pytest.mark.parametrize(
    ("lock", "opened"),
    [
        ("2026-01-01T00:00:00Z", True),
        ("2026-01-01T00:00:00Z,default,name-p1", True),
        ("2026-01-01T00:00:00Z,default,another", False),
    ],
)
def test_the_lock_is_opened_by_its_own_pod_alone(lock: str, opened: bool) -> None:
    node = KubeNode(name="n", annotations={"hami.io/mutex.lock": lock})

    assert HAMI.encode_unlock(node, parsed()) == ({"hami.io/mutex.lock": None} if opened else {})
