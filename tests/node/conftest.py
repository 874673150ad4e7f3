# SPDX-License-Identifier: Apache-2.0
"""A whole node with simulated cards: cache, agent, launcher, real runc."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed.node import GIB, Node, probe
from tests.testbed.oci import Bundle, OciRuntime
from tests.testbed.rootfs import PROBE

MakeBundle = Callable[..., Bundle]


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return one simulated card of 8 GiB whose contexts cost nothing, so that sums are exact."""
    return SimulatedGpu.create(
        scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)], context_bytes=0, check_nodes=True
    )


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu) -> Iterator[Node]:
    """Yield a running node in front of runc."""
    with Node(scratch / "node", gpu) as running:
        yield running


@pytest.fixture
def runtime(node: Node) -> Iterator[OciRuntime]:
    """Yield our runtime; containers that a test leaves behind are deleted."""
    runtime = node.runtime()
    yield runtime
    if runtime.root.is_dir():
        for container in runtime.root.iterdir():
            runtime.delete(container.name)


@pytest.fixture
def make_bundle(node: Node, scratch: Path, template: Path) -> MakeBundle:
    """Return a function that makes a bundle in which the simulated driver finds its cards."""

    def make(
        name: str,
        env: Mapping[str, str],
        args: Sequence[str] = ("sleep", "600"),
        rootfs: Path = template,
    ) -> Bundle:
        mounts = node.gpu_mounts()
        return Bundle.create(scratch / "bundles" / name, rootfs, args, env, mounts=mounts)

    return make


@pytest.fixture
def scratch_two_cards(scratch: Path) -> Iterator[Node]:
    """Yield a running node with two cards of 8 GiB."""
    cards = [Card(memory_bytes=8 * GIB), Card(memory_bytes=8 * GIB)]
    gpu = SimulatedGpu.create(scratch / "gpu2", cards=cards, context_bytes=0, check_nodes=True)
    with Node(scratch / "node2", gpu) as running:
        yield running


@pytest.fixture
def make_two(scratch_two_cards: Node, scratch: Path, template: Path) -> MakeBundle:
    """Return a function that makes a bundle for the node with two cards."""

    def make(name: str, env: Mapping[str, str], args: Sequence[str] = ("sleep", "600")) -> Bundle:
        mounts = scratch_two_cards.gpu_mounts()
        return Bundle.create(scratch / "bundles2" / name, template, args, env, mounts=mounts)

    return make


def slice_env(memory: str, cores: int | None = 25) -> dict[str, str]:
    """Return the environment of a container that asks for a slice."""
    env = {"VGPU_MEMORY": memory}
    return env if cores is None else {**env, "VGPU_CORES": str(cores)}


def probe_in(runtime: OciRuntime, container_id: str, *words: str) -> dict[str, Any]:
    """Return what vgpu-probe prints inside a running container."""
    return probe(runtime.exec(container_id, PROBE, *words))


def totals(seen: dict[str, Any]) -> set[int]:
    """Return every total that the probe saw of its first card; one number when all agree."""
    device = seen["devices"][0]
    return {
        device["mem_get_info"]["total"],
        device["total_memory"]["bytes"],
        device["nvml"]["total"],
    }
