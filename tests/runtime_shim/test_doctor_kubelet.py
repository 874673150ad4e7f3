# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of a kubelet's answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime_shim.config import Config, DevicePlugin
from runtime_shim.device_plugin.plugins import DevicePlugins
from runtime_shim.device_plugin.resources import resources_of
from runtime_shim.doctor.finding import Finding
from runtime_shim.doctor.kubelet import check_kubelet
from runtime_shim.kubelet import Kubelet
from tests.fakes.kubelet import running_kubelet
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.runtime_shim.device_plugin.test_listing import card
from tests.runtime_shim.test_agent import until


async def examined(folder: Path, **settings: object) -> Finding:
    config = Config(
        mode="kubernetes",
        device_plugin=DevicePlugin(kubelet_dir=folder, **settings),  # type: ignore[arg-type]
    )
    return await asyncio.to_thread(check_kubelet, config)


async def test_slots_are_counted(scratch: Path) -> None:
    plugins = DevicePlugins(resources_of(DevicePlugin()), Kubelet(scratch), lambda: [card("a")])
    async with running_kubelet(scratch) as kubelet:
        serving = asyncio.create_task(plugins.run())
        await until(lambda: kubelet.healthy("vgpu.dev/count") == 10)

        finding = await examined(scratch)

        serving.cancel()
        await asyncio.wait({serving})
    assert (finding.level, finding.message) == ("ok", "has 10 of vgpu.dev/count")


async def test_no_slot_is_a_warning(scratch: Path) -> None:
    async with running_kubelet(scratch):
        finding = await examined(scratch)

    assert finding.level == "warn"
    assert "no healthy slot of vgpu.dev/count" in finding.message


async def test_another_plugin_of_our_resource_is_a_failure(scratch: Path) -> None:
    async with running_kubelet(scratch) as kubelet:
        plugin = NvidiaPlugin(kubelet.plugins, ["GPU-0"])
        await plugin.start()
        await until(lambda: kubelet.healthy("nvidia.com/gpu") == 1)

        finding = await examined(scratch, dialects=("hami",), claim_bare_gpu=True)

        await plugin.stop()
    assert finding.level == "fail"
    assert "another plugin serves nvidia.com/gpu: 'GPU-0'" in finding.message


@pytest.mark.parametrize("dialects", [("native",), ("kai",)])
async def test_a_kubelet_that_is_away_is_a_failure(
    scratch: Path, dialects: tuple[str, ...]
) -> None:
    finding = await examined(scratch, dialects=dialects)

    assert finding.level == "fail"
    assert "there is no" in finding.message


async def test_a_node_that_advertises_nothing_is_well(scratch: Path) -> None:
    async with running_kubelet(scratch):
        finding = await examined(scratch, dialects=("kai",))

    assert finding.level == "ok"
