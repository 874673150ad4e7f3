# SPDX-License-Identifier: Apache-2.0
"""Other schedulers' decisions in the cluster's state: joined, replaced, or only counted."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduler_cache import cluster_wire
from scheduler_cache.cluster import Cluster
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import NoRoomError, NoSliceError, NotBelievedError, NotYetError
from scheduler_cache.extender.verbs import Extender
from scheduler_cache.inventory import WHOLE_CARDS, whole_cards_text
from scheduler_cache.model import WholeCards
from tests.scheduler_cache.builders import GIB, NODE
from tests.scheduler_cache.dialects.test_koordinator import DEVICE
from tests.scheduler_cache.kube_objects import (
    KEYRING,
    A,
    B,
    World,
    container,
    container_of,
    gpu,
    identity,
    kube_node,
    node_report,
    pod,
)

HAMI_REGISTER = "hami.io/node-nvidia-register"
VOLCANO_REGISTER = "volcano.sh/node-vgpu-register"
OTHERS = every_dialect(KEYRING).foreign


def hami_cards(*uuids: str, mebibytes: int = 81920, health: bool = True) -> dict[str, str]:
    return {
        HAMI_REGISTER: json.dumps(
            [
                {"id": uuid, "count": 10, "devmem": mebibytes, "devcore": 100, "health": health}
                for uuid in uuids
            ]
        )
    }


def volcano_cards(*uuids: str) -> dict[str, str]:
    return {
        VOLCANO_REGISTER: "".join(f"{uuid},10,81920,NVIDIA-H100,true,hami-core:" for uuid in uuids)
    }


def world(
    annotations: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    uuids: tuple[str, ...] = (A, B),
    left_out: tuple[str, ...] = (),
) -> World:
    """Return a world of one node whose agent has reported the cards."""
    result = World(
        *(gpu(uuid, 80, minor=i) for i, uuid in enumerate(uuids)),
        others=OTHERS,
        left_out=left_out,
    )
    result.cluster.apply_node(
        kube_node(annotations=annotations, labels=labels, allocatable=allocatable), result.now
    )
    return result


def hami_pod(
    uid: str = "p1",
    devices: str = f"{A},NVIDIA,8192,30:;",
    *,
    limits: Mapping[str, str] | None = None,
    node: str = NODE,
    said: str = NODE,
) -> dict[str, Any]:
    limits = limits or {"nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "30"}
    return pod(
        uid,
        container_of("main", limits),
        node=node,
        annotations={"hami.io/vgpu-devices-allocated": devices, "hami.io/vgpu-node": said},
    )


def test_a_joined_schedulers_decision_is_resolved() -> None:
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod())

    allocation = joined.resolve()
    assert allocation.source_dialect == "hami"
    assert [(s.card_uuid, s.memory_bytes, s.cores_percent) for s in allocation.slices] == [
        (A, 8 * GIB, 30)
    ]
    assert joined.used() == (8, 30, 1)


def whole_then_parts(uid: str = "p1", **options: Any) -> dict[str, Any]:  # noqa: ANN401  pod()'s
    """Return a pod whose init container has all of a card, and the others parts of it."""
    part = {"nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "30"}
    whole = {"nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100"}
    devices = f"{A},NVIDIA,81920,100:;" + 2 * f"{A},NVIDIA,8192,30:;"
    return pod(
        uid,
        container_of("one", part),
        container_of("two", part),
        inits=[container_of("first", whole)],
        node=NODE,
        annotations={"hami.io/vgpu-devices-allocated": devices, "hami.io/vgpu-node": NODE},
        **options,
    )


def test_an_init_containers_whole_card_is_not_overbooked_by_its_own_pod() -> None:
    joined = world(hami_cards(A, B))

    joined.apply(whole_then_parts())

    assert joined.resolve("p1", "first").whole_cards
    assert joined.resolve("p1", "two").slices[0].memory_bytes == 8 * GIB
    assert joined.used() == (80, 100, 2)


def test_a_whole_card_is_overbooked_by_another_pods_slice() -> None:
    joined = world(hami_cards(A, B))

    joined.apply(whole_then_parts())
    joined.apply(hami_pod("p2"))

    assert joined.resolve("p1", "first")
    with pytest.raises(NotBelievedError, match="is overbooked"):
        joined.resolve("p2")

    joined.apply(whole_then_parts(init_done=["first"]))

    assert joined.resolve("p2")
    assert not joined.resolve("p2").exclusive


def with_sidecar(mebibytes: int, uid: str = "p1") -> dict[str, Any]:
    """Return a pod with a sidecar and an app, each with so much of one card."""
    limits = {"nvidia.com/gpumem": str(mebibytes), "nvidia.com/gpucores": "10"}
    return pod(
        uid,
        container_of("main", limits),
        inits=[container_of("proxy", limits, sidecar=True)],
        node=NODE,
        annotations={
            "hami.io/vgpu-devices-allocated": 2 * f"{A},NVIDIA,{mebibytes},10:;",
            "hami.io/vgpu-node": NODE,
        },
    )


def test_a_sidecar_that_hami_does_not_count_is_named_where_it_overbooks_a_card() -> None:
    """HAMi takes the larger of sidecar and app, and both run at a time."""
    fits, alone, beside = (world(hami_cards(A, B)) for _ in range(3))

    fits.apply(with_sidecar(40960))
    assert fits.resolve("p1", "proxy")
    assert fits.resolve("p1", "main")

    alone.apply(with_sidecar(40961))
    with pytest.raises(NotBelievedError, match=r"overbooked, by it alone; .*sidecars .*\(proxy of"):
        alone.resolve("p1", "main")

    beside.apply(with_sidecar(40960))
    beside.apply(hami_pod("p2"))
    with pytest.raises(NotBelievedError, match="comes first; hami's scheduler does not count"):
        beside.resolve("p2")


def test_where_another_scheduler_decides_we_place_nothing() -> None:
    joined = world(hami_cards(A, B))
    joined.apply(pod("p1"))

    with pytest.raises(NoRoomError, match="hami decides about it"):
        joined.cluster.reserve("p1", NODE, 1, joined.now)


def test_the_annotations_of_a_pod_whose_bind_failed_are_no_allocation() -> None:
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod(node=""))

    assert joined.used() == (0, 0, 0)
    with pytest.raises(NotYetError, match="not bound"):
        joined.resolve()


def test_a_decision_for_another_node_blocks_and_is_not_resolved() -> None:
    """HAMi issue 1106: the annotation names a node, and the pod is elsewhere."""
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod(said="node-b"))

    assert joined.used() == (8, 30, 1)
    with pytest.raises(NotBelievedError, match="names node node-b"):
        joined.resolve()


def test_a_card_that_the_node_does_not_have_blocks_every_card() -> None:
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod(devices="GPU-99999999-0000-4000-8000-000000000099,NVIDIA,8192,30:;"))

    assert joined.used(A) == joined.used(B) == (8, 30, 1)
    with pytest.raises(NotBelievedError, match="does not have"):
        joined.resolve()


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (f"{A},NVIDIA,8193,30:;", "8590983168 bytes where 8589934592"),
        (f"{A},NVIDIA,8192,31:;", "reserves 31% of cores where 30%"),
        (f"{A},NVIDIA,8192,0:;", "no limit of cores"),
        (f"{A},NVIDIA,8192,30:{B},NVIDIA,8192,30:;", "2 slices where 1"),
    ],
)
def test_more_than_the_pod_asked_for_is_never_given(devices: str, words: str) -> None:
    """HAMi issue 3076: who may write the annotation chooses the card and the amount."""
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod(devices=devices))

    with pytest.raises(NotBelievedError, match=words):
        joined.resolve()
    assert joined.used()[0] >= 8


def test_a_decision_of_thousands_of_slices_is_not_counted_one_by_one() -> None:
    """Whatever happens on its node would cost every replica a tenth of a second."""
    joined = world(hami_cards(A, B))

    joined.apply(hami_pod(devices=f"{A},NVIDIA,8192,30:" * 17 + ";"))

    assert joined.used(A) == joined.used(B) == (8, 30, 1)
    with pytest.raises(NotBelievedError, match="17 slices, more than 16"):
        joined.resolve()


def test_a_decision_about_a_container_that_asks_for_nothing_is_not_believed() -> None:
    joined = world(hami_cards(A, B))
    source = hami_pod(devices=f"{A},NVIDIA,8192,30:;{B},NVIDIA,8192,30:;")
    source["spec"]["containers"].append(container_of("web", {}))

    joined.apply(source)

    with pytest.raises(NotBelievedError, match="asks for no card"):
        joined.resolve("p1", "web")


def test_two_pods_alike_get_each_their_own_cards() -> None:
    """The device plugins of HAMi and Volcano guess by count and time, and may swap them."""
    joined = world(volcano_cards(A, B))
    for uid, uuid, memory in (("p1", A, 1024), ("p2", B, 2048)):
        joined.apply(
            pod(
                uid,
                container_of(
                    "main", {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": str(memory)}
                ),
                node=NODE,
                annotations={"volcano.sh/vgpu-ids-new": f"{uuid},NVIDIA,{memory},0:"},
            )
        )

    assert [joined.resolve(uid).slices[0].card_uuid for uid in ("p1", "p2")] == [A, B]
    assert joined.resolve("p2").slices[0].memory_bytes == 2 * GIB


def test_the_second_container_of_a_pod_on_one_card_counts() -> None:
    """Volcano forgets it when it rebuilds its cache."""
    joined = world(volcano_cards(A, B))
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"}

    joined.apply(
        pod(
            "p1",
            container_of("a", limits),
            container_of("b", limits),
            node=NODE,
            annotations={"volcano.sh/vgpu-ids-new": f"{A},NVIDIA,1024,0:;{A},NVIDIA,1024,0:"},
        )
    )

    assert joined.used() == (2, 0, 2)


def test_a_volcano_mig_place_counts_and_is_not_resolved_to_the_whole_card() -> None:
    joined = world(volcano_cards(A, B))

    joined.apply(
        pod(
            "p1",
            container_of(
                "main", {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "10240"}
            ),
            node=NODE,
            annotations={"volcano.sh/vgpu-ids-new": f"{A}[group2-1],NVIDIA,10240,0:"},
        )
    )

    assert joined.used() == (10, 0, 1)
    with pytest.raises(NotBelievedError, match="MIG"):
        joined.resolve()


def koordinator_pod(entries: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    limits = {"koordinator.sh/gpu.shared": "1", "koordinator.sh/gpu-memory": "8Gi"}
    return pod(
        "p1",
        *(container_of(name, limits) for name in names),
        container_of("web", {}),
        node=NODE,
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": entries})},
    )


def koordinator_entry(minor: int, uuid: str = "") -> dict[str, Any]:
    source: dict[str, Any] = {"minor": minor, "resources": {"koordinator.sh/gpu-memory": "8Gi"}}
    return {**source, "id": uuid} if uuid else source


def test_the_containers_of_a_koordinator_pod_share_one_account_that_counts_once() -> None:
    joined = world({})
    joined.cluster.apply_device(DEVICE, joined.now)

    joined.apply(koordinator_pod([koordinator_entry(0, A), koordinator_entry(1, B)], "a", "b"))

    first, second = joined.resolve("p1", "a"), joined.resolve("p1", "b")
    assert first.account_id == second.account_id == "p1"
    assert first.slices == second.slices
    assert [part.card_uuid for part in first.slices] == [A, B]
    assert (joined.used(A), joined.used(B)) == ((8, 0, 1), (8, 0, 1))


def test_a_koordinator_card_without_uuid_is_found_by_its_minor() -> None:
    joined = world({})
    joined.cluster.apply_device(DEVICE, joined.now)

    joined.apply(koordinator_pod([koordinator_entry(1)], "main"))

    assert joined.resolve().slices[0].card_uuid == B


def test_a_device_object_that_cannot_be_read_closes_its_node() -> None:
    joined = world({})
    broken = {**DEVICE, "spec": {"devices": [{"type": "gpu", "id": "0"}]}}

    deltas = joined.cluster.apply_device(broken, joined.now)
    joined.apply(pod("p1"))

    assert "Device object" in deltas.notices[0][1].message
    with pytest.raises(NoRoomError, match="cannot be read"):
        joined.cluster.reserve("p1", NODE, 1, joined.now)


def reservation_pod(uuid: str, version: int | None = None) -> dict[str, Any]:
    return pod(
        "r1",
        container_of("reservation", {"nvidia.com/gpu": "1"}),
        node=NODE,
        namespace="kai-resource-reservation",
        labels={"runai-gpu-group": "6f0c"},
        annotations={"run.ai/reserve_for_gpu_index": uuid} if uuid else {},
        version=version,
    )


def test_a_kai_group_is_resolved_once_its_reservation_pod_names_the_card() -> None:
    joined = world({}, labels={"vgpu.dev/dialect": "kai"})
    joined.apply(
        pod(
            "p1",
            container_of("main", {}),
            node=NODE,
            labels={"runai-gpu-group": "6f0c"},
            annotations={"gpu-fraction": "0.5"},
        )
    )
    before = (joined.used(A), joined.used(B))

    joined.apply(reservation_pod(""))
    with pytest.raises(NotBelievedError, match="group 6f0c"):
        joined.resolve()
    joined.apply(reservation_pod(B))

    assert before == ((39, 0, 1), (39, 0, 1))
    assert joined.resolve().slices[0].card_uuid == B
    assert (joined.used(A), joined.used(B)) == ((0, 0, 0), (39, 0, 1))


def kai_pod(uid: str, fraction: str) -> dict[str, Any]:
    return pod(
        uid,
        container_of("main", {}),
        node=NODE,
        labels={"runai-gpu-group": "6f0c"},
        annotations={"gpu-fraction": fraction},
    )


def test_a_group_without_a_card_blocks_no_card_of_another_group() -> None:
    """The binder took the reservation away while it bound the pod."""
    joined = world({}, labels={"vgpu.dev/dialect": "kai"})
    joined.apply(reservation_pod(A))
    lost = kai_pod("p1", "0.5")
    lost["metadata"]["labels"]["runai-gpu-group"] = "9e1d"

    told = joined.apply(lost)

    assert [notice.reason for _, notice in told.notices] == ["AllocationUnreadable"]
    assert "on every card that it may be" in told.notices[0][1].message
    assert (joined.used(A), joined.used(B)) == ((0, 0, 0), (39, 0, 1))
    joined.cluster.delete_pod("p1", joined.now)
    joined.report()
    assert joined.used(B) == (0, 0, 0)


@pytest.mark.parametrize(("fraction", "pods"), [("0.05", 12), ("0.05", 20), ("0.166", 6)])
def test_what_kai_puts_on_one_card_runs(fraction: str, pods: int) -> None:
    """KAI limits the memory of a card alone, and does not round what a pod asks for."""
    joined = world({}, labels={"vgpu.dev/dialect": "kai"})
    joined.apply(reservation_pod(A))

    for number in range(pods):
        joined.apply(kai_pod(f"p{number}", fraction))

    assert {joined.resolve(f"p{number}").slices[0].card_uuid for number in range(pods)} == {A}
    assert joined.used()[2] == pods


def test_more_than_kai_puts_on_one_card_does_not_run() -> None:
    joined = world({}, labels={"vgpu.dev/dialect": "kai"})
    joined.apply(reservation_pod(A))

    for number in range(7):
        joined.apply(kai_pod(f"p{number}", "0.166"))

    with pytest.raises(NotBelievedError, match="is overbooked"):
        joined.resolve("p6")


def test_what_koordinator_puts_on_one_card_runs() -> None:
    joined = world({})
    joined.cluster.apply_device(DEVICE, joined.now)
    limits = {"koordinator.sh/gpu-core": "5", "koordinator.sh/gpu-memory-ratio": "5"}
    decided = {"minor": 0, "id": A, "resources": limits}

    for number in range(20):
        annotation = json.dumps({"gpu": [decided]})
        joined.apply(
            pod(
                f"p{number}",
                container_of("main", limits),
                node=NODE,
                annotations={"scheduling.koordinator.sh/device-allocated": annotation},
            )
        )

    assert all(joined.resolve(f"p{number}") for number in range(20))
    assert joined.used()[1:] == (100, 20)


def decided_by_koordinator(uid: str, uuid: str, limits: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod for which Koordinator decided about one card."""
    amounts = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    amounts |= {key: text for key, text in limits.items() if key in amounts}
    decided = {"minor": (A, B).index(uuid), "id": uuid, "resources": amounts}
    return pod(
        uid,
        container_of("main", limits),
        node=NODE,
        annotations={"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [decided]})},
    )


WHOLE_CARD = {"nvidia.com/gpu": "1"}
PART = {"koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory-ratio": "60"}


def both_healthy() -> dict[str, Any]:
    device = copy.deepcopy(DEVICE)
    for each in device["spec"]["devices"]:  # type: ignore[index]
        each["health"] = True
    return device


def test_the_whole_card_that_another_plugin_gave_out_is_held() -> None:
    """Koordinator decided about A, and NVIDIA's plugin, which hears nothing of it, gave B."""
    joined = world({})
    joined.cluster.apply_device(both_healthy(), joined.now)
    decided = joined.apply(decided_by_koordinator("p1", A, WHOLE_CARD))
    assert [notice.reason for _, notice in decided.notices] == []
    assert (joined.used(A)[1:], joined.used(B)[1:]) == ((100, 1), (0, 0))

    told = joined.report(whole={"p1": B})

    assert [notice.reason for _, notice in told.notices] == ["OtherCardInUse"]
    assert told.notices[0][1].pod == identity("p1", "")
    assert f"koordinator decided about {A}" in told.notices[0][1].message
    assert (joined.used(A)[1:], joined.used(B)[1:]) == ((0, 0), (100, 1))
    joined.apply(decided_by_koordinator("p2", B, PART))
    with pytest.raises(NotYetError, match=f"{B} is still used"):
        joined.resolve("p2")
    joined.apply(decided_by_koordinator("p3", A, PART))
    assert joined.resolve("p3").slices[0].card_uuid == A

    joined.report()
    joined.cluster.delete_pod("p1", joined.now)
    joined.report()
    assert joined.resolve("p2").slices[0].card_uuid == B


def test_nobody_is_told_of_a_whole_card_that_is_the_one_decided() -> None:
    joined = world({})
    joined.cluster.apply_device(both_healthy(), joined.now)
    joined.apply(decided_by_koordinator("p1", A, WHOLE_CARD))

    told = joined.report(whole={"p1": A})

    assert told.notices == []
    assert (joined.used(A)[1:], joined.used(B)[1:]) == ((100, 1), (0, 0))
    with pytest.raises(NoSliceError):
        joined.resolve("p1")


@pytest.mark.parametrize("asked", ["0", "1"])
def test_more_whole_cards_than_a_pod_asks_for_are_not_believed(asked: str) -> None:
    """As of a decision about parts of cards: what it states is held, and people hear of it."""
    joined = world({})
    joined.cluster.apply_device(both_healthy(), joined.now)
    item = decided_by_koordinator("p1", A, {"nvidia.com/gpu": asked})
    if asked == "1":
        key = "scheduling.koordinator.sh/device-allocated"
        annotations = item["metadata"]["annotations"]
        (first,) = json.loads(annotations[key])["gpu"]
        annotations[key] = json.dumps({"gpu": [first, {**first, "minor": 1, "id": B}]})

    told = joined.apply(item)

    assert [notice.reason for _, notice in told.notices] == ["AllocationRefused"]
    assert told.notices[0][1].pod == identity("p1", "")
    assert f"whole cards where {asked} were asked for" in told.notices[0][1].message
    held = (100, 1), (100, 1) if asked == "1" else (0, 0)
    assert (joined.used(A)[1:], joined.used(B)[1:]) == held


def test_a_whole_card_of_another_plugin_is_not_given_away_by_us() -> None:
    native = World(gpu(A), gpu(B))
    native.report(whole={"unknown": A})
    native.bind(pod("p1", container(memory="1Gi")))
    assert native.resolve().slices[0].card_uuid == B

    # A container that had its slice before starts again.
    native.report(whole={"unknown": A, "other": B})
    assert native.resolve().slices[0].card_uuid == B


def test_a_pod_that_has_what_a_dialect_says_holds_no_whole_card_beside() -> None:
    """HAMi's own plugin names any device to the kubelet; KAI's reservation pod uses nothing."""
    hami = world(hami_cards(A, B))
    hami.apply(hami_pod())
    hami.report(whole={"p1": B})
    assert (hami.used(A), hami.used(B)) == ((8, 30, 1), (0, 0, 0))

    kai = world({}, labels={"vgpu.dev/dialect": "kai"})
    kai.apply(reservation_pod(A))
    kai.apply(kai_pod("p1", "0.5"))
    reserved = kai.cluster.record("r1")
    assert reserved is not None
    report = replace(
        node_report(*kai.cards),
        whole_cards=(
            WholeCards(
                pod=reserved.owner("reservation"),
                card_uuids=frozenset({A}),
            ),
        ),
    )
    kai.cluster.apply_report(report, kai.now)
    assert kai.resolve().slices[0].card_uuid == A


ASKED_BESIDE = (
    {"nvidia.com/gpucores": "0"},
    {"nvidia.com/gpumem": "0"},
    {"nvidia.com/gpumem-percentage": "0"},
    {"nvidia.com/gpumem": "1"},
    {"volcano.sh/vgpu-number": "1"},
    {"alnair/vgpu-memory": "1"},
    {"koordinator.sh/gpu-core": "1", "koordinator.sh/gpu-memory": "1"},
    {"tencent.com/vcuda-core": "1", "tencent.com/vcuda-memory": "1"},
    {"vgpu.dev/memory": "1Gi"},
)


@pytest.mark.parametrize("beside", ASKED_BESIDE, ids=" ".join)
@pytest.mark.parametrize("left_out", [True, False], ids=["left out", "ours"])
def test_who_asks_and_was_given_nothing_has_what_the_kubelet_gave_it(
    beside: dict[str, str], left_out: bool
) -> None:
    """Else the card that NVIDIA's plugin gave out whole would be sold once more."""
    names = tuple(each.name for each in OTHERS) if left_out else ()
    shared = world({}, allocatable={"nvidia.com/gpu": "2"}, left_out=names)
    shared.apply(pod("p1", container_of("main", {**WHOLE_CARD, **beside}), node=NODE))

    shared.report(whole={"p1": A})

    assert shared.used(A) == (80, 100, 1)
    shared.bind(pod("p2", container(memory="1Gi")))
    assert shared.resolve("p2").slices[0].card_uuid == B


def test_a_decision_that_is_not_believed_does_not_hide_what_the_kubelet_gave() -> None:
    joined = world(hami_cards(A, B))
    joined.apply(hami_pod(said="another"))
    joined.report(whole={"p1": B})
    assert joined.used(B) == (80, 100, 1)

    ignored = world({}, left_out=LEFT_OUT)
    ignored.apply(hami_pod())
    ignored.report(whole={"p1": B})
    assert (ignored.used(A), ignored.used(B)) == ((0, 0, 0), (80, 100, 1))


def test_a_replica_that_does_not_lead_reads_whole_cards_from_the_node() -> None:
    """Agents report to the leader alone; it writes them on the Node."""
    report = replace(
        node_report(),
        whole_cards=(
            WholeCards(pod=replace(identity("p1"), uid=""), card_uuids=frozenset({B, A})),
        ),
    )
    text = whole_cards_text(report.whole_cards or ())
    assert text is not None
    follower = World(others=OTHERS)
    follower.cluster.apply_node(
        kube_node(annotations={**hami_cards(A, B), WHOLE_CARDS: text}), follower.now
    )
    follower.apply(hami_pod("p2"))

    with pytest.raises(NotYetError, match=f"{A} is still used"):
        follower.resolve("p2")

    for broken in ("{", "[]", '{"a/b":["x"]}', '{"a/b/c":1}', "[" * 100_000):
        node = kube_node(annotations={**hami_cards(A, B), WHOLE_CARDS: broken})
        follower.cluster.apply_node(node, follower.now)
        assert follower.resolve("p2")


def test_an_ended_pod_uses_no_whole_card_whatever_the_kubelet_still_lists() -> None:
    native = World(gpu(A))
    native.apply(pod("p1", container_of("main", WHOLE_CARD), node=NODE))
    native.report(whole={"p1": A})
    assert native.used()[2] == 1

    native.apply(pod("p1", container_of("main", WHOLE_CARD), node=NODE, phase="Succeeded"))

    assert native.used()[2] == 0


@pytest.mark.parametrize(("slots", "run"), [(3, 3), (10, 10), (12, 12)])
def test_a_joined_card_takes_as_many_slices_as_its_owner_sells(slots: int, run: int) -> None:
    """Our own `policy.slots_per_card` is 10."""
    cards = {
        HAMI_REGISTER: hami_cards(A, B)[HAMI_REGISTER].replace('"count": 10', f'"count": {slots}')
    }
    joined = world(cards)
    limits = {"nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "1"}
    for number in range(13):
        joined.apply(hami_pod(f"p{number:02}", f"{A},NVIDIA,1024,1:;", limits=limits))

    resolved = 0
    for number in range(13):
        with contextlib.suppress(NotBelievedError):
            joined.resolve(f"p{number:02}")
            resolved += 1

    assert resolved == run
    replaced = kube_node(
        annotations=cards, labels={"vgpu.dev/dialect": "hami", "vgpu.dev/mode": "replace"}
    )
    joined.cluster.apply_node(replaced, joined.now)
    view = joined.cluster.view(NODE)
    assert view is not None
    assert view.room(A).card.slots == 10


def test_an_annotation_that_a_tenant_takes_away_does_not_free_what_runs() -> None:
    """KAI's request stands in annotations, which can be changed while the container runs."""
    joined = world({}, labels={"vgpu.dev/dialect": "kai"})
    joined.apply(reservation_pod(A))
    source = pod(
        "p1",
        container_of("main", {}),
        node=NODE,
        labels={"runai-gpu-group": "6f0c"},
        annotations={"gpu-fraction": "0.5"},
    )
    joined.apply(source)
    joined.report(joined.resolve())

    joined.apply(pod("p1", container_of("main", {}), node=NODE))

    assert joined.used() == (39, 0, 1)


def test_a_card_that_two_schedulers_sell_is_nobodys_until_a_label_says_whose() -> None:
    both = {**hami_cards(A, B), **volcano_cards(B)}
    joined = world(both)
    joined.apply(hami_pod("p1"))
    joined.apply(hami_pod("p2", f"{B},NVIDIA,8192,30:;"))

    assert joined.resolve("p1").slices[0].card_uuid == A
    with pytest.raises(NotBelievedError, match="owner is more than one"):
        joined.resolve("p2")
    assert joined.used(B) == (8, 30, 1)

    joined.cluster.apply_node(
        kube_node(annotations=both, labels={"vgpu.dev/dialect": "hami"}), joined.now
    )
    assert joined.resolve("p2").slices[0].card_uuid == B


def test_use_is_summed_over_all_dialects_and_only_the_owners_is_resolved() -> None:
    joined = world(hami_cards(A, B))
    joined.apply(hami_pod("p1"))
    deltas = joined.apply(
        pod(
            "p2",
            container_of("main", {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"}),
            node=NODE,
            annotations={"volcano.sh/vgpu-ids-new": f"{A},NVIDIA,1024,0:"},
        )
    )

    assert joined.used() == (9, 30, 2)
    assert "volcano decided about" in deltas.notices[0][1].message
    with pytest.raises(NotBelievedError, match="whose owner is hami"):
        joined.resolve("p2")


def test_what_hami_placed_counts_on_a_node_of_ours() -> None:
    ours = world({})
    ours.apply(hami_pod(devices=f"{A},NVIDIA,81920,0:;", limits={"nvidia.com/gpumem": "81920"}))
    ours.apply(pod("p2", container(memory="1Gi")))

    reservation, _ = ours.cluster.reserve("p2", NODE, 1, ours.now)

    assert reservation.allocations["main"].slices[0].card_uuid == B
    with pytest.raises(NotBelievedError, match="whose owner is native"):
        ours.resolve()


LEFT_OUT = ("hami", "kai", "koordinator", "volcano")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(hami_pod(), id="a card of the node"),
        pytest.param(hami_pod(devices="GPU-nowhere,NVIDIA,8192,30:;"), id="no card of the node"),
        pytest.param(hami_pod(devices="}"), id="unreadable"),
        pytest.param(
            {
                **pod(
                    "p1", container_of("main", {}), node=NODE, annotations={"gpu-fraction": ".9"}
                ),
            },
            id="kai",
        ),
    ],
)
def test_what_anybody_may_write_for_a_system_that_is_not_there_holds_nothing(
    source: dict[str, Any],
) -> None:
    source = copy.deepcopy(source)
    source["metadata"].setdefault("labels", {})["runai-gpu-group"] = "invented"
    ours, guarded = world({}), world({}, left_out=LEFT_OUT)

    ours.apply(source)
    deltas = guarded.apply(source)

    assert ours.used() != (0, 0, 0)
    assert guarded.used(A) == guarded.used(B) == (0, 0, 0)
    (notice,) = [notice for _, notice in deltas.notices]
    assert notice.reason == "AllocationIgnored"
    assert "whose pods are not ours and who sells nothing on node" in notice.message
    with pytest.raises(NotBelievedError, match="carries a decision of"):
        guarded.resolve()


def test_our_reservation_counts_whatever_else_anybody_wrote_on_the_pod() -> None:
    guarded = world({}, left_out=LEFT_OUT)
    limits = {"vgpu.dev/memory": "60Gi", "vgpu.dev/cores": "60"}
    guarded.apply(
        pod(
            "p1",
            container_of("main", limits),
            annotations={"hami.io/vgpu-devices-allocated": f"{A},NVIDIA,1,1:;"},
        )
    )

    reservation, _ = guarded.cluster.reserve("p1", NODE, 1, guarded.now)

    (part,) = reservation.allocations["main"].slices
    assert guarded.used(part.card_uuid) == (60, 60, 1)
    guarded.cluster.confirm("p1", guarded.now)
    assert guarded.resolve().slices == (part,)


def test_a_system_that_is_left_out_is_counted_where_it_is_at_work() -> None:
    at_work = [
        world(hami_cards(A, B), left_out=LEFT_OUT),
        world({}, {"vgpu.dev/dialect": "hami"}, left_out=LEFT_OUT),
        # What a plugin that has gone leaves behind, while its pods may still run.
        world({}, allocatable={"nvidia.com/gpumem": "0"}, left_out=LEFT_OUT),
        # A registration that cannot be read may be anybody's.
        world({VOLCANO_REGISTER: "}"}, left_out=LEFT_OUT),
    ]
    for each in at_work:
        each.apply(hami_pod())
        assert each.used() == (8, 30, 1)

    # Our own plugin's capacity says nothing about another system.
    own = world({}, allocatable={"nvidia.com/gpumem": "10"}, left_out=LEFT_OUT)
    own.report(served=["nvidia.com/gpumem"])
    own.apply(hami_pod())
    assert own.used() == (0, 0, 0)


def test_a_group_of_kai_is_counted_where_a_reservation_pod_of_kai_holds_its_card() -> None:
    guarded = world({}, left_out=LEFT_OUT)
    source = pod(
        "p1",
        container_of("main", {}),
        node=NODE,
        labels={"runai-gpu-group": "6f0c"},
        annotations={"gpu-fraction": "0.5"},
    )
    guarded.apply(source)
    before = guarded.used(A)

    guarded.apply(reservation_pod(A))

    assert before == (0, 0, 0)
    assert guarded.used(A) == (39, 0, 1)


def test_in_replace_mode_a_hami_pod_is_placed_by_us_and_hamis_keys_are_written_too() -> None:
    ours = world(hami_cards(A, B), labels={"vgpu.dev/mode": "replace", "vgpu.dev/dialect": "hami"})
    source = pod(
        "p1", container_of("main", {"nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "30"})
    )

    bound = ours.bind(source)

    annotations = bound["metadata"]["annotations"]
    assert annotations["hami.io/vgpu-devices-allocated"] == f"{A},NVIDIA,8192,30:;"
    allocation = ours.resolve()
    assert (allocation.slices[0].memory_bytes, allocation.source_dialect) == (8 * GIB, "native")


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8192"}, {}),
        ({"nvidia.com/gpumem": "8192"}, {}),
        ({"koordinator.sh/gpu-memory": "8Gi"}, {}),
        ({}, {"gpu-memory": "8192"}),
        ({"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "32"}, {}),
        ({"alnair/vgpu-memory": "8"}, {}),
        ({"vgpu.dev/memory": "8Gi"}, {}),
    ],
    ids=["volcano", "hami", "koordinator", "kai", "gpu_manager", "alnair", "native"],
)
def test_every_dialect_works_in_replace_mode(
    limits: dict[str, str], annotations: dict[str, str]
) -> None:
    ours = world({})

    bound = ours.bind(pod("p1", container_of("main", limits), annotations=annotations))
    allocation = ours.resolve()

    assert [(part.card_uuid, part.memory_bytes) for part in allocation.slices] == [(A, 8 * GIB)]
    assert ours.used()[0] == 8
    assert "vgpu.dev/allocation" in bound["metadata"]["annotations"]


def test_two_dialects_in_one_request_are_refused() -> None:
    ours = world({})
    ours.apply(
        pod("p1", container_of("main", {"nvidia.com/gpumem": "1", "alnair/vgpu-memory": "1"}))
    )

    record = ours.cluster.record("p1")

    assert record is not None
    assert "dialects hami and alnair; ask in one" in record.request_error


def test_labels_of_another_system_decide_nothing() -> None:
    """Koordinator labels its pods `hami.io/vgpu-node` without any device of HAMi."""
    joined = world({})
    joined.cluster.apply_device(DEVICE, joined.now)
    source = koordinator_pod([koordinator_entry(0, A)], "main")
    source["metadata"]["labels"] = {"hami.io/vgpu-node": NODE}

    joined.apply(source)

    assert joined.resolve().source_dialect == "koordinator"


def test_a_plugin_that_cannot_be_joined_must_be_replaced_by_a_label() -> None:
    capacity = {"tencent.com/vcuda-core": "200"}
    closed = world({}, allocatable=capacity)
    opened = world({}, allocatable=capacity, labels={"vgpu.dev/mode": "replace"})
    for each in (closed, opened):
        each.apply(pod("p1"))

    with pytest.raises(NoRoomError, match="gpu_manager registered it and cannot be joined"):
        closed.cluster.reserve("p1", NODE, 1, closed.now)
    opened.cluster.reserve("p1", NODE, 1, opened.now)


def test_what_our_own_plugin_serves_is_no_registration_of_gpu_manager() -> None:
    """A node without any label, whose agent advertises the resources of every dialect."""
    capacity = {"tencent.com/vcuda-core": "200", "vgpu.dev/count": "20"}
    ours = world({}, allocatable=capacity)
    ours.apply(pod("p1"))
    with pytest.raises(NoRoomError, match="gpu_manager registered it"):
        ours.cluster.reserve("p1", NODE, 1, ours.now)

    ours.report(served=("vgpu.dev/count", "tencent.com/vcuda-core"))

    ours.cluster.reserve("p1", NODE, 1, ours.now)
    # Its own plugin has come back: the kubelet no longer takes the resource from us.
    ours.report(served=("vgpu.dev/count",))
    ours.apply(pod("p2"))
    with pytest.raises(NoRoomError, match="gpu_manager registered it"):
        ours.cluster.reserve("p2", NODE, 1, ours.now)


def test_a_new_leader_takes_our_own_plugin_for_nobody_elses() -> None:
    """Before the agent reports to it, it goes by what the last leader wrote."""
    resources = ("tencent.com/vcuda-core", "vgpu.dev/count")
    capacity = {"tencent.com/vcuda-core": "200", "vgpu.dev/count": "20"}
    ours = world({}, allocatable=capacity)
    written = {
        **ours.dialects.native.encode_inventory(ours.cards),
        "vgpu.dev/served-resources": ",".join(resources),
    }

    for _ in ours.cluster.forget_reports(ours.now):
        pass
    ours.cluster.apply_node(kube_node(annotations=written, allocatable=capacity), ours.now)

    view = ours.cluster.view(NODE)
    assert view is not None
    assert {each.owner for each in view.inventory.cards.values()} == {"native"}


def test_a_joined_system_beside_our_plugin_of_all_resources_is_the_cards_one_owner() -> None:
    joined = world(hami_cards(A, B), allocatable={"tencent.com/vcuda-core": "200"})
    joined.report(served=("tencent.com/vcuda-core",))

    joined.apply(hami_pod())

    assert joined.resolve().source_dialect == "hami"


def test_what_gpu_manager_placed_counts_on_the_card_of_its_minor() -> None:
    ours = world({}, labels={"vgpu.dev/mode": "replace"})

    ours.apply(
        pod(
            "p1",
            container_of("main", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}),
            node=NODE,
            annotations={"tencent.com/predicate-gpu-idx-0": "1"},
        )
    )

    assert (ours.used(A), ours.used(B)) == ((0, 0, 0), (2, 30, 1))


def test_a_card_that_its_plugin_calls_unhealthy_takes_nothing() -> None:
    annotations = hami_cards(A, health=False) | {}
    ours = world(
        annotations, labels={"vgpu.dev/mode": "replace", "vgpu.dev/dialect": "hami"}, uuids=(A,)
    )
    ours.apply(pod("p1"))

    with pytest.raises(NoRoomError, match="unhealthy"):
        ours.cluster.reserve("p1", NODE, 1, ours.now)


def test_a_card_that_is_registered_and_that_the_agent_does_not_find_is_not_sold() -> None:
    """The plugin's annotation outlives a driver that no longer answers."""
    replaced = world(hami_cards(A, B), labels={"vgpu.dev/mode": "replace"}, uuids=())
    replaced.cluster.apply_report(node_report(), replaced.now)
    replaced.apply(hami_pod(node="", devices=""))

    with pytest.raises(NoRoomError, match="has no card"):
        replaced.cluster.reserve("p1", NODE, 1, replaced.now)
    view = replaced.cluster.view(NODE)
    assert view is not None
    assert [each for each in (A, B) if f"registered {each}" in str(view.inventory.problems)] == [
        A,
        B,
    ]


def test_a_registration_that_cannot_be_read_closes_its_node() -> None:
    ours = world({HAMI_REGISTER: "[{"})
    ours.apply(pod("p1"))

    with pytest.raises(NoRoomError, match="registration of hami cannot be read"):
        ours.cluster.reserve("p1", NODE, 1, ours.now)


def test_an_oversold_card_has_what_its_owner_sells() -> None:
    joined = world(hami_cards(A, mebibytes=2 * 81920), uuids=(A,))
    for uid in ("p1", "p2"):
        joined.apply(hami_pod(uid, f"{A},NVIDIA,81920,0:;", limits={"nvidia.com/gpumem": "81920"}))

    assert joined.resolve("p1").slices[0].memory_bytes == 80 * GIB
    assert joined.resolve("p2").slices[0].memory_bytes == 80 * GIB


def test_who_joins_an_overbooked_card_last_is_not_started_and_nobody_is_evicted() -> None:
    joined = world(hami_cards(A), uuids=(A,))
    for uid, seconds in (("early", "1000"), ("late", "2000")):
        source = hami_pod(uid, f"{A},NVIDIA,81920,0:;", limits={"nvidia.com/gpumem": "81920"})
        source["metadata"]["annotations"]["hami.io/vgpu-time"] = seconds
        joined.apply(source)

    assert joined.resolve("early").slices[0].card_uuid == A
    with pytest.raises(NotBelievedError, match="comes first"):
        joined.resolve("late")
    view = joined.cluster.view(NODE)
    assert view is not None
    assert view.evict == {}


def test_a_forged_time_does_not_stop_what_runs() -> None:
    joined = world(hami_cards(A), uuids=(A,))
    first = hami_pod("first", f"{A},NVIDIA,81920,0:;", limits={"nvidia.com/gpumem": "81920"})
    first["metadata"]["annotations"]["hami.io/vgpu-time"] = "1732720000"
    joined.apply(first)
    joined.report(joined.resolve("first"))

    joined.apply(hami_pod("thief", f"{A},NVIDIA,81920,0:;", limits={"nvidia.com/gpumem": "81920"}))

    assert joined.resolve("first").slices[0].card_uuid == A
    with pytest.raises(NotBelievedError):
        joined.resolve("thief")


@pytest.mark.parametrize(
    ("annotations", "what"),
    [
        ({VOLCANO_REGISTER: f"{A},10,{1 << 40},NVIDIA-H100,true,hami-core:"}, "memory"),
        (
            {HAMI_REGISTER: json.dumps([{"id": A, "count": 1 << 40, "devmem": 1, "health": True}])},
            "slots",
        ),
        (
            {HAMI_REGISTER: json.dumps([{"id": A, "devcore": 1 << 40, "devmem": 1}])},
            "cores",
        ),
        (hami_cards(*(f"GPU-{i:08}-0000-4000-8000-000000000000" for i in range(129))), "more"),
    ],
)
def test_cards_of_absurd_size_or_number_close_their_node_and_harm_no_replica(
    annotations: dict[str, str], what: str
) -> None:
    """No column of the extender and no field of the wire holds such numbers, and its rows are
    those of the node with the most cards.
    """
    dialects = every_dialect(KEYRING, volcano=Volcano(memory_factor=10))
    cluster = Cluster(dialects)
    extender = Extender(cluster, dialects)

    extender.follow(cluster.apply_node(kube_node(annotations=annotations), 1))

    view = cluster.view(NODE)
    assert view is not None
    assert cluster_wire.node_message(view, ready=True).name == NODE
    (notice,) = view.notices
    assert what in notice.message
    assert not view.inventory.cards
