# SPDX-License-Identifier: Apache-2.0
"""Which whole cards of another plugin a report names, before a kubelet's sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.cards_in_use import CardsInUse
from runtime_shim.config import DevicePlugin, Policy
from runtime_shim.kubelet import Kubelet
from tests.fakes.kubelet import running_kubelet
from tests.runtime_shim.allocations import CARD, OTHER_CARD
from tests.runtime_shim.test_create_in_pod import PodNode


@pytest.fixture
def node(tmp_path: Path) -> PodNode:
    return PodNode(tmp_path / "node", Policy())


async def test_it_names_whole_cards_and_nothing_else(node: PodNode, tmp_path: Path) -> None:
    await node.inventory.refresh()
    changes: list[int] = []
    async with running_kubelet(tmp_path / "kubelet") as kubelet:
        watch = CardsInUse(
            DevicePlugin(kubelet_dir=kubelet.folder),
            Kubelet(kubelet.folder),
            {"nvidia.com/gpu-ours"},
            node.inventory,
            lambda: changes.append(1),
        )
        kubelet.pods = {
            ("team", "whole"): {
                "main": {"nvidia.com/gpu": [CARD]},
                "web": {"example.com/net": ["eth1"]},
            },
            ("team", "share"): {"main": {"nvidia.com/gpu": [f"{OTHER_CARD}::1"]}},
            ("team", "slice"): {"main": {"vgpu.dev/count": ["slot-1"]}},
            ("team", "stranger"): {"main": {"nvidia.com/gpu": ["GPU-of-another-host"]}},
        }

        assert not watch.known
        await watch.look()
        await watch.look()

        assert watch.known
        whole = pb.WholeCards(
            pod=pb.PodIdentity(namespace="team", name="whole", container_name="main"),
            card_uuids=[CARD],
        )
        assert watch.messages() == [whole]
        assert changes == [1]
    await watch.look()
    assert watch.messages() == [whole], "a kubelet that is away says nothing new"
