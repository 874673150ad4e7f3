# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as api
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import DevicePlugin
from runtime_shim.device_plugin.listing import (
    MOST_BYTES,
    CardSlots,
    is_slot,
    listing,
    slots_of,
)
from runtime_shim.device_plugin.resources import resources_of

GIB = 2**30
MIB = 2**20


def card(letter: str, memory_bytes: int = 80 * GIB, *, healthy: bool = True) -> pb.Card:
    return pb.Card(
        uuid=f"GPU-{letter * 8}-0000-0000-0000-000000000000",
        memory_bytes=memory_bytes,
        slots=10,
        healthy=healthy,
    )


def devices(message: bytes) -> dict[str, str]:
    """Return what a kubelet reads."""
    return {each.ID: each.health for each in api.ListAndWatchResponse.FromString(message).devices}


def counts(settings: DevicePlugin, *cards: pb.Card) -> dict[str, int]:
    return {
        resource.name: listing(slots_of(resource, cards)).offered
        for resource in resources_of(settings)
    }


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (DevicePlugin(), {"vgpu.dev/count": 20}),
        (DevicePlugin(dialects=("hami",)), {}),
        (DevicePlugin(dialects=("hami",), claim_bare_gpu=True), {"nvidia.com/gpu": 20}),
        (
            DevicePlugin(dialects=("volcano",), volcano_memory_factor=1024),
            {
                "volcano.sh/vgpu-number": 20,
                "volcano.sh/vgpu-memory": 160,
                "volcano.sh/vgpu-cores": 200,
            },
        ),
        (DevicePlugin(dialects=("koordinator", "kai")), {}),
        (
            DevicePlugin(dialects=("gpu_manager",)),
            {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 640},
        ),
        (
            DevicePlugin(dialects=("native", "alnair")),
            {"vgpu.dev/count": 20, "alnair/vgpu-memory": 160, "alnair/vgpu-compute": 200},
        ),
    ],
    ids=lambda each: "-".join(each.dialects) if isinstance(each, DevicePlugin) else "",
)
def test_each_dialect_advertises_its_resources_in_its_units(
    settings: DevicePlugin, wanted: dict[str, int]
) -> None:
    assert counts(settings, card("a"), card("b")) == wanted


def test_the_message_is_what_a_kubelet_reads() -> None:
    groups = (
        CardSlots(card_uuid="GPU-a", count=3, healthy=True),
        CardSlots(card_uuid="GPU-b", count=2, healthy=False),
    )

    read = devices(listing(groups).message)

    assert sorted(read.values()) == ["Healthy"] * 3 + ["Unhealthy"] * 2
    assert all(is_slot(name) and len(name) <= 63 for name in read)
    assert not any("GPU" in name for name in read)


def test_a_slot_keeps_its_name_whatever_becomes_of_other_cards() -> None:
    (count,) = resources_of(DevicePlugin())

    alone = devices(listing(slots_of(count, [card("b")])).message)
    among = devices(listing(slots_of(count, [card("c"), card("b"), card("a")])).message)

    assert len(among) == 30
    assert alone.keys() <= among.keys()


def test_the_slots_of_an_unhealthy_card_are_unhealthy_and_no_others() -> None:
    (count,) = resources_of(DevicePlugin())

    before = devices(listing(slots_of(count, [card("a"), card("b")])).message)
    after = devices(listing(slots_of(count, [card("a"), card("b", healthy=False)])).message)
    of_b = devices(listing(slots_of(count, [card("b")])).message)

    assert before.keys() == after.keys()
    assert {name for name, health in after.items() if health == "Unhealthy"} == of_b.keys()


def test_a_node_without_cards_offers_none() -> None:
    assert devices(listing(()).message) == {}


def test_memory_in_mib_of_a_large_node_stays_below_what_a_kubelet_reads() -> None:
    """User pain S29: one device per MiB of eight cards is 50 MB, and the node shows nothing."""
    memory = resources_of(DevicePlugin(dialects=("volcano",)))[1]
    cards = [card(letter, 192 * GIB) for letter in "abcdefgh"]

    told = listing(slots_of(memory, cards))

    assert len(told.message) <= MOST_BYTES < 4 * MIB
    assert told.left_out == 8 * 192 * 1024 - told.offered > 0
    read = devices(told.message)
    assert len(read) == told.offered > 100_000
    per_card = {name.partition("-")[0] for name in read}
    assert len(per_card) == 8


def test_two_large_cards_in_mib_fit_whole() -> None:
    memory = resources_of(DevicePlugin(dialects=("volcano",)))[1]

    told = listing(slots_of(memory, [card("a", 60 * GIB), card("b", 60 * GIB)]))

    assert (told.offered, told.left_out) == (2 * 60 * 1024, 0)


@pytest.mark.parametrize("name", ["GPU-aaaaaaaa-0000", "aaaaaaaa", "0", "aaaaaaaa-0::1", "MIG-x-1"])
def test_other_plugins_names_are_no_slots(name: str) -> None:
    assert not is_slot(name)
