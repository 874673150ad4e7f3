# SPDX-License-Identifier: Apache-2.0
"""Memory that nobody asked for: contexts are part of the slice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime

MIB = 1 << 20
CONTEXT_BYTES = 256 * MIB
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return a card whose contexts are dear."""
    cards = [Card(memory_bytes=8 * GIB, context_bytes=CONTEXT_BYTES)]
    return SimulatedGpu.create(scratch / "gpu", cards=cards, check_nodes=True)


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu) -> Iterator[Node]:
    """Yield a running node that has measured its card."""
    with Node(scratch / "node", gpu) as running:
        wait_until((running.state_dir / "agent/contexts.json").exists, "the card is measured")
        yield running


def test_the_context_is_charged_to_the_slice(
    node: Node, gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")
    runtime.exec_detached("a", "vgpu-probe", "--until-refused", "64m", "--hold", "60")
    wait_until(lambda: gpu.used_bytes() >= GIB, "the first process holds memory")

    assert gpu.used_bytes() == 2 * GIB
    second = probe_in(runtime, "a")["devices"][0]
    assert second["mem_get_info"]["code"] == OUT_OF_MEMORY, "there is no room for its context"
    assert gpu.used_bytes() == 2 * GIB


def test_free_is_what_is_left_beside_the_context(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")

    info = probe_in(runtime, "a")["devices"][0]["mem_get_info"]

    assert info["free"] == 2 * GIB - CONTEXT_BYTES


def test_a_slice_smaller_than_a_context_refuses_the_context_and_reports_sanely(
    gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("100Mi")), "a")

    device = probe_in(runtime, "a")["devices"][0]

    assert device["total_memory"]["bytes"] == device["nvml"]["total"] == 100 * MIB
    assert device["mem_get_info"]["code"] == OUT_OF_MEMORY
    assert gpu.used_bytes() == 0
