# SPDX-License-Identifier: Apache-2.0
"""Device plugins at the real kubelet: what it has of them, NVIDIA's, and ours in HAMi's place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from runtime_shim.kubelet import Kubelet
from tests.e2e.namespace import until
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.testbed.kubernetes.cluster import Cluster

WHOLE_CARDS = "nvidia.com/gpu"


async def offered(cluster: Cluster, resource: str) -> int:
    """Return how many healthy devices of a resource the kubelet has, as it says itself."""
    devices = await Kubelet(cluster.kubelet.root).devices(30)
    return len(devices.get(resource, ()))


async def forgotten(cluster: Cluster, resource: str) -> None:
    """Wait until the kubelet has no healthy device of a resource."""

    async def gone() -> bool:
        return not await offered(cluster, resource)

    await until(gone, f"the kubelet has no {resource}")


async def allocatable(cluster: Cluster, resource: str, number: int) -> None:
    """Wait until schedulers know, too, how much of a resource the node has."""

    async def so() -> bool:
        if await offered(cluster, resource) != number:
            return False
        node = await asyncio.to_thread(cluster.node_object)
        return int(node["status"]["allocatable"].get(resource, "0")) == number

    await until(so, f"the node has {number} of {resource}")


@asynccontextmanager
async def nvidia_plugin(
    cluster: Cluster, cards: Sequence[str], *, nodes: bool = False
) -> AsyncIterator[NvidiaPlugin]:
    """Have NVIDIA's plugin give out these cards in the block. `nodes`: with their device nodes."""
    folder = cluster.folder / "node" / "driver" / "dev"
    places: dict[str, list[Path]] = {}
    if nodes:
        places = {
            card: [folder / f"nvidia{minor_of(cluster, card)}", folder / "nvidiactl"]
            for card in cards
        }
    plugin = NvidiaPlugin(cluster.kubelet.root / "device-plugins", cards, nodes=places)
    await plugin.start()
    try:
        await allocatable(cluster, WHOLE_CARDS, len(cards))
        yield plugin
    finally:
        await plugin.stop()
        await forgotten(cluster, WHOLE_CARDS)


@asynccontextmanager
async def bare_gpu_claimed(cluster: Cluster) -> AsyncIterator[None]:
    """Have the node agent advertise `nvidia.com/gpu` in the block, as in the place of HAMi's
    plugin.
    """
    file = cluster.node.directory / "agent.toml"
    before = file.read_text()
    table = "[device_plugin]\n"
    assert table in before
    await _restarted(cluster, before.replace(table, f"{table}claim_bare_gpu = true\n"))
    try:
        await allocatable(cluster, WHOLE_CARDS, await offered(cluster, "vgpu.dev/count"))
        yield
    finally:
        await _restarted(cluster, before)
        await forgotten(cluster, WHOLE_CARDS)


def minor_of(cluster: Cluster, card: str) -> int:
    """Return the number of a card's device node."""
    cards = cluster.gpu.description.cards
    minor = next(each.minor for index, each in enumerate(cards) if cluster.gpu.uuid(index) == card)
    assert minor is not None
    return minor


async def _restarted(cluster: Cluster, config: str) -> None:
    """Give the agent another configuration, and wait until the kubelet has its slots again."""
    await asyncio.to_thread(cluster.kill, "agent")
    await forgotten(cluster, "vgpu.dev/count")
    (cluster.node.directory / "agent.toml").write_text(config)
    await asyncio.to_thread(cluster.start, "agent")

    async def back() -> bool:
        return bool(await offered(cluster, "vgpu.dev/count"))

    await until(back, "the kubelet has the agent's slots again")
