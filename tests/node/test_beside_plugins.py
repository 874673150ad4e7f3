# SPDX-License-Identifier: Apache-2.0
"""Whole cards of NVIDIA's plugin through our runtime: real runc, a kubelet's two real sockets, and
a stand-in for nvidia-container-runtime that writes down what it was started with.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.fakes.kubelet import FakeKubelet, running_kubelet
from tests.fakes.nvidia_plugin import NvidiaPlugin
from tests.fakes.scheduler_cache import ScriptedCache, Streams, serving
from tests.node.clusters import ClusterNode, Pods, remove_all
from tests.node.conftest import probe_in
from tests.runtime_shim.pods import MAIN
from tests.runtime_shim.specs import bind
from tests.runtime_shim.test_agent import until
from tests.testbed import BUILD
from tests.testbed.node import GIB
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError

WHOLE = replace(MAIN, pod="whole")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@dataclass
class Site:
    """A node with two cards, of which NVIDIA's plugin gives one to the pod `whole`."""

    node: ClusterNode
    gpu: SimulatedGpu
    runtime: OciRuntime
    pods: Pods
    kubelet: FakeKubelet
    seen: Path
    """What the GPU runtime was given: a digest of each config.json."""

    def give_gpu_runtime(self) -> None:
        """Set the launcher's gpu_runtime."""
        program = self.node.directory / "nvidia-container-runtime"
        program.write_text(
            "#!/bin/sh\n"
            'bundle=\nprevious=\nfor word; do [ "$previous" = --bundle ] && bundle=$word;'
            " previous=$word; done\n"
            f'sha256sum <"$bundle/config.json" | cut -d" " -f1 >>{self.seen}\n'
            f'exec {self.node.low_level} "$@"\n'
        )
        program.chmod(0o755)
        with Path(f"{self.node.launcher}.conf").open("a") as conf:
            conf.write(f"gpu_runtime={program}\n")

    async def bundle(self, **env: str) -> Bundle:
        return await asyncio.to_thread(self.pods.bundle, "whole", WHOLE, env)

    async def start(self, bundle: Bundle) -> None:
        await asyncio.to_thread(self.runtime.start_detached, bundle, "whole")

    async def cards(self) -> int:
        """Return how many cards a program in the container sees."""
        found = await asyncio.to_thread(probe_in, self.runtime, "whole")
        return len(found["devices"])


def digest(bundle: Bundle) -> str:
    return hashlib.sha256((bundle.directory / "config.json").read_bytes()).hexdigest()


@pytest.fixture
async def site(scratch: Path, template: Path) -> AsyncIterator[Site]:
    gpu = SimulatedGpu.create(
        scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)] * 2, context_bytes=0, check_nodes=True
    )
    cache = ScriptedCache()
    socket = scratch / "cache.sock"
    async with serving(cache, socket), running_kubelet(scratch / "kubelet") as kubelet:
        Streams(cache).snapshot()
        node = ClusterNode(
            scratch / "node", gpu, [f'address = "unix:{socket}"'], kubelet_dir=scratch / "kubelet"
        )
        runtime = node.runtime()
        plugin = NvidiaPlugin(kubelet.plugins, [gpu.uuid(0), gpu.uuid(1)])
        await plugin.start()
        try:
            await asyncio.to_thread(node.start_agent)
            await until(lambda: kubelet.healthy("vgpu.dev/count") == 20)
            await until(lambda: kubelet.healthy("nvidia.com/gpu") == 2)
            await kubelet.admit(WHOLE.namespace, WHOLE.pod, {"main": {"nvidia.com/gpu": 1}})
            pods = Pods(node, scratch / "bundles", template)
            yield Site(node, gpu, runtime, pods, kubelet, scratch / "seen")
        finally:
            await plugin.stop()
            await asyncio.to_thread(remove_all, runtime)
            await asyncio.to_thread(node.__exit__, None, None, None)


async def test_the_gpu_runtime_gets_a_whole_card_s_bundle_to_the_byte(site: Site) -> None:
    site.give_gpu_runtime()
    bundle = await site.bundle(**{VISIBLE: site.gpu.uuid(0)})
    before = digest(bundle)

    await site.start(bundle)

    assert digest(bundle) == before
    assert site.seen.read_text().split() == [before]
    assert "the kubelet vouches for its cards" in site.node.log("agent")


async def test_without_a_gpu_runtime_the_engine_is_told_what_is_missing(site: Site) -> None:
    bundle = await site.bundle(**{VISIBLE: site.gpu.uuid(0)})

    with pytest.raises(RuntimeFailedError) as failed:
        await site.start(bundle)

    assert "set gpu_runtime in" in failed.value.stderr


def give_nodes(bundle: Bundle, *minors: int) -> None:
    """Add the nodes of cards and the driver's libraries, as an engine does by CDI."""
    linux = bundle.spec["linux"]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        place = f"/usr/lib/{os.uname().machine}-linux-gnu/{name}"
        bundle.spec["mounts"].append(bind(str(BUILD / "fake" / name), place, "ro"))
    for minor in (*minors, 255):
        path = "/dev/nvidiactl" if minor == 255 else f"/dev/nvidia{minor}"
        numbers = {"type": "c", "major": 195, "minor": minor}
        linux.setdefault("devices", []).append({"path": path, "fileMode": 0o666, **numbers})
        linux["resources"]["devices"].append({"allow": True, "access": "rwm", **numbers})
    bundle.write()


async def test_a_whole_card_whose_nodes_are_there_is_seen_whole(site: Site) -> None:
    bundle = await site.bundle(**{VISIBLE: site.gpu.uuid(0)})
    give_nodes(bundle, 0)
    before = digest(bundle)

    await site.start(bundle)

    assert digest(bundle) == before
    assert await site.cards() == 1


async def test_the_other_card_s_node_hides_both(site: Site) -> None:
    bundle = await site.bundle(**{VISIBLE: site.gpu.uuid(0)})
    give_nodes(bundle, 0, 1)

    await site.start(bundle)

    written = bundle.read()
    assert written["linux"]["devices"] == []
    assert f"{VISIBLE}=void" in written["process"]["env"]
    nodes = await asyncio.to_thread(site.runtime.exec, "whole", "ls", "/dev")
    assert "null" in nodes.split()
    assert "nvidia" not in nodes
