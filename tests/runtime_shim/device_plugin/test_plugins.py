# SPDX-License-Identifier: Apache-2.0
"""The node's resources and a kubelet that comes, goes and forgets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import DevicePlugin
from runtime_shim.device_plugin import plugins as plugins_module
from runtime_shim.device_plugin.plugins import DevicePlugins
from runtime_shim.device_plugin.resources import resources_of
from runtime_shim.kubelet import Devices, Kubelet, KubeletError
from tests.fakes.kubelet import FakeKubelet, running_kubelet
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.runtime_shim.device_plugin.test_listing import card
from tests.runtime_shim.test_agent import until

COUNT = "vgpu.dev/count"


class Node:
    """A node's device plugins, with cards that a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cards: list[pb.Card] = [card("a"), card("b")]

    @contextlib.asynccontextmanager
    async def running(self, settings: DevicePlugin | None = None) -> AsyncIterator[DevicePlugins]:
        plugins = DevicePlugins(
            resources_of(settings or DevicePlugin()), Kubelet(self.folder), lambda: self.cards
        )
        task = asyncio.create_task(plugins.run())
        try:
            yield plugins
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def node(scratch: Path) -> Node:
    return Node(scratch)


@pytest.fixture
async def kubelet(scratch: Path) -> AsyncIterator[FakeKubelet]:
    async with running_kubelet(scratch) as kubelet:
        yield kubelet


async def test_every_resource_is_registered(node: Node, kubelet: FakeKubelet) -> None:
    settings = DevicePlugin(dialects=("native", "volcano"), volcano_memory_factor=1024)

    async with node.running(settings) as plugins:
        await until(lambda: all(plugins.registered().values()))
        # The kubelet lists what a resource has once it is registered.
        await until(lambda: kubelet.healthy(COUNT) == 20)
        await until(lambda: kubelet.healthy("volcano.sh/vgpu-number") == 20)
        await until(lambda: kubelet.healthy("volcano.sh/vgpu-memory") == 160)
        await until(lambda: kubelet.healthy("volcano.sh/vgpu-cores") == 200)

        assert plugins.served() == list(plugins.registered())


async def test_a_kubelet_that_refuses_is_not_asked_without_a_pause(
    node: Node, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of each try wakes the one who watches the folder."""
    monkeypatch.setattr(plugins_module, "_RETRY_SECONDS", 3600.0)
    kubelet.refuses.add(COUNT)
    asked = 0
    register = Kubelet.register

    async def counted(self: Kubelet, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal asked
        asked += 1
        await register(self, *arguments)

    monkeypatch.setattr(Kubelet, "register", counted)
    async with node.running():
        await until(lambda: asked > 0)
        await asyncio.sleep(1.0)

    assert asked == 1


async def test_what_cannot_be_removed_or_understood_ends_nothing(
    node: Node, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kubelet.plugins / "vgpu-odd.sock").mkdir()
    broken = True
    devices = Kubelet.devices

    async def odd(self: Kubelet, seconds: float) -> Devices:
        nonlocal broken
        if broken:
            broken = False
            raise ValueError("an answer that nobody has thought of")
        return await devices(self, seconds)

    monkeypatch.setattr(Kubelet, "devices", odd)
    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)


async def test_nobody_else_may_open_a_plugin_s_socket(node: Node, kubelet: FakeKubelet) -> None:
    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)

        assert kubelet.endpoints[COUNT].socket.stat().st_mode & 0o777 == 0o600


async def test_allocate_answers_every_container_and_decides_nothing(
    node: Node, kubelet: FakeKubelet
) -> None:
    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)
        names = list(kubelet.endpoints[COUNT].devices)

        answers = await kubelet.allocate(COUNT, names[:2], names[2:3], ["not a slot"])

        assert [each.SerializeToString() for each in answers] == [b"", b"", b""]


async def test_what_becomes_of_cards_is_told_at_once_and_only_then(
    node: Node, kubelet: FakeKubelet
) -> None:
    async with node.running() as plugins:
        await until(lambda: kubelet.healthy(COUNT) == 20)
        endpoint = kubelet.endpoints[COUNT]
        names = set(endpoint.devices)

        plugins.look()
        node.cards = [card("a"), card("b", healthy=False)]
        plugins.look()
        await until(lambda: kubelet.healthy(COUNT) == 10)
        assert set(endpoint.devices) == names
        assert endpoint.listings == 2

        node.cards = [card("a"), card("b")]
        plugins.look()
        await until(lambda: kubelet.healthy(COUNT) == 20)
        assert endpoint.listings == 3
        assert kubelet.registrations == [COUNT]


async def test_a_driver_that_comes_late_is_no_failure(node: Node, kubelet: FakeKubelet) -> None:
    node.cards = []

    async with node.running() as plugins:
        await until(lambda: COUNT in kubelet.endpoints and kubelet.endpoints[COUNT].listings == 1)
        assert kubelet.healthy(COUNT) == 0

        node.cards = [card("a")]
        plugins.look()
        await until(lambda: kubelet.healthy(COUNT) == 10)


async def test_a_kubelet_that_starts_after_the_agent_is_found(node: Node) -> None:
    async with node.running():
        await asyncio.sleep(0)

        async with running_kubelet(node.folder) as kubelet:
            await until(lambda: kubelet.healthy(COUNT) == 20)


async def test_a_kubelet_that_starts_anew_is_registered_with_again(
    node: Node, kubelet: FakeKubelet
) -> None:
    async with node.running():
        for times in range(1, 4):
            await until(lambda: kubelet.healthy(COUNT) == 20)
            names = set(kubelet.endpoints[COUNT].devices)
            assert len(kubelet.registrations) == times

            await kubelet.restart()

        await until(lambda: kubelet.healthy(COUNT) == 20)
        assert set(kubelet.endpoints[COUNT].devices) == names


async def test_a_kubelet_that_refuses_is_asked_again(node: Node, kubelet: FakeKubelet) -> None:
    kubelet.refuses.add(COUNT)

    async with node.running():
        await until(lambda: len(kubelet.registrations) >= 2)
        kubelet.refuses.clear()

        await until(lambda: kubelet.healthy(COUNT) == 20)


async def test_a_socket_that_somebody_removed_is_made_again(
    node: Node, kubelet: FakeKubelet
) -> None:
    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)
        kubelet.endpoints[COUNT].socket.unlink()

        await until(lambda: len(kubelet.registrations) == 2 and kubelet.healthy(COUNT) == 20)


async def test_a_kubelet_that_dropped_the_plugin_is_told_again(
    node: Node, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime_shim.device_plugin.plugins._PATIENCE_SECONDS", 0.5)

    async with node.running() as plugins:
        await until(lambda: plugins.registered() == {COUNT: True})
        await kubelet.drop(COUNT)

        await until(lambda: kubelet.healthy(COUNT) == 20)


async def test_slots_are_the_same_after_the_agent_has_restarted(
    node: Node, kubelet: FakeKubelet
) -> None:
    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)
        names = set(kubelet.endpoints[COUNT].devices)
    await until(lambda: kubelet.healthy(COUNT) == 0)

    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)

        assert set(kubelet.endpoints[COUNT].devices) == names


async def test_what_a_killed_agent_left_is_removed(node: Node, kubelet: FakeKubelet) -> None:
    stale = kubelet.plugins / "vgpu-vgpu.dev_count.7.sock"
    stale.touch()

    async with node.running():
        await until(lambda: kubelet.healthy(COUNT) == 20)

        assert not stale.exists()
    assert list(kubelet.plugins.glob("vgpu-*")) == []


async def test_a_resource_of_another_plugin_is_not_taken(
    node: Node,
    kubelet: FakeKubelet,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """User pain D8: two plugins of one resource, and pods get whole cards."""
    rival = NvidiaPlugin(kubelet.plugins, ["GPU-0", "GPU-1"])
    await rival.start()
    await until(lambda: kubelet.healthy("nvidia.com/gpu") == 2)
    settings = DevicePlugin(dialects=("native", "hami"), claim_bare_gpu=True)

    async with node.running(settings) as plugins:
        await until(lambda: kubelet.healthy(COUNT) == 20)
        await until(lambda: "resource not registered" in caplog.messages)
        assert kubelet.healthy("nvidia.com/gpu") == 2
        assert plugins.served() == [COUNT]
        assert kubelet.registrations.count("nvidia.com/gpu") == 1
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "another device plugin serves nvidia.com/gpu" in record.__dict__["reason"]

        # Nobody can be asked, and registering fails: the other plugin has not gone by that.
        async def away(self: Kubelet, seconds: float) -> Devices:
            raise KubeletError("the kubelet is away")

        kubelet.refuses.add("nvidia.com/gpu")
        with monkeypatch.context() as patched:
            patched.setattr(Kubelet, "devices", away)
            refused = caplog.messages.count("resource not registered") + 1
            await until(lambda: caplog.messages.count("resource not registered") >= refused)
            assert plugins.served() == [COUNT]
        kubelet.refuses.clear()
        await until(
            lambda: "another device plugin" in caplog.records[-1].__dict__.get("reason", "")
        )

        await rival.stop()
        await until(lambda: kubelet.healthy("nvidia.com/gpu") == 20)
        await until(lambda: plugins.served() == [COUNT, "nvidia.com/gpu"])


async def test_a_hundred_thousand_slots_arrive(node: Node, kubelet: FakeKubelet) -> None:
    settings = DevicePlugin(dialects=("volcano",))

    async with node.running(settings):
        await until(lambda: kubelet.healthy("volcano.sh/vgpu-memory") > 100_000)


async def test_a_node_without_dialects_registers_nothing(node: Node, kubelet: FakeKubelet) -> None:
    async with node.running(DevicePlugin(dialects=("kai",))) as plugins:
        assert plugins.registered() == {}
        await asyncio.sleep(0)

    assert kubelet.registrations == []
