# SPDX-License-Identifier: Apache-2.0
"""Slices of MIG instances, through the agent and real runc."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.abi import ffi
from tests.fakes.gpu import Card, MigInstance, SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MIB = 1 << 20
CONTEXT_BYTES = 2 * MIB
SMALL = MigInstance(profile="1g.2gb", memory_bytes=2 * GIB, sm_count=16, gpu_instance=9)
LARGE = MigInstance(profile="3g.4gb", memory_bytes=4 * GIB, sm_count=60, gpu_instance=2)


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return one card with two instances."""
    cards = [Card(instances=(SMALL, LARGE), context_bytes=CONTEXT_BYTES)]
    return SimulatedGpu.create(scratch / "gpu", cards=cards, check_nodes=True)


@pytest.fixture
def two(node: Node, gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle) -> OciRuntime:
    """Return the runtime with `a` on the small instance and `b`, of 3 GiB, on the large one."""
    costs = {gpu.uuid(gpu.instance(number)): CONTEXT_BYTES for number in range(2)}
    wait_until(lambda: measured(node) == costs, "a context on each instance is measured")
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
    runtime.start_detached(make_bundle("b", slice_env("3Gi")), "b")
    return runtime


def measured(node: Node) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads((node.state_dir / "agent/contexts.json").read_text())["bytes"]
    except (FileNotFoundError, ValueError):
        return {}


def test_a_container_sees_its_instance_alone(two: OciRuntime, gpu: SimulatedGpu) -> None:
    for name, instance, size in (("a", 0, GIB), ("b", 1, 3 * GIB)):
        seen = probe_in(two, name)

        assert [each["uuid"] for each in seen["devices"]] == [gpu.uuid(gpu.instance(instance))]
        assert totals(seen) == {size}
        nodes = two.exec(name, "ls", "/dev/nvidia-caps").split()
        assert [f"nvidia-caps/{each}" for each in sorted(nodes)] == sorted(
            gpu.nodes(gpu.instance(instance))[1:]
        )


def test_the_limit_is_that_of_the_slice(two: OciRuntime) -> None:
    rest = GIB - CONTEXT_BYTES

    words = probe_in(two, "a", "--allocate", str(rest), "--allocate", "1")["words"]

    assert [word["code"] for word in words] == [0, OUT_OF_MEMORY]


def test_the_agent_counts_what_an_instance_is_used_for(
    two: OciRuntime, node: Node, gpu: SimulatedGpu
) -> None:
    two.exec_detached("b", PROBE, "--allocate", "1g", "--hold", "60")
    held = GIB + CONTEXT_BYTES
    wait_until(lambda: gpu.used_bytes(gpu.instance(1)) == held, "it is held")

    def used() -> dict[str, int]:
        rows = json.loads(node.vgpuctl("ps", "--json").stdout)
        return {row["container_id"]: row["used_bytes"] for row in rows}

    wait_until(lambda: used() == {"a": 0, "b": held}, "vgpuctl ps tells it")


def test_an_instance_gives_no_more_than_it_has(two: OciRuntime, make_bundle: MakeBundle) -> None:
    with pytest.raises(RuntimeFailedError, match="has 1.0Gi of 4.0Gi, "):
        two.start_detached(make_bundle("c", slice_env("3Gi")), "c")
    two.start_detached(make_bundle("d", slice_env("1Gi")), "d")


def limits_of(node: Node, container_id: str) -> Any:  # noqa: ANN401 - a cffi structure
    """Return what the limits file says of the container's one card."""
    text = (node.container_directory(container_id) / "limits").read_bytes()
    limits: Any = ffi.new("struct vgpu_limits *")
    ffi.buffer(limits)[:] = text[: ffi.sizeof("struct vgpu_limits")]
    return limits


def test_the_limits_file_names_an_instance(two: OciRuntime, node: Node, gpu: SimulatedGpu) -> None:
    constants: Any = ffi.dlopen(None)
    for name, instance in (("a", 0), ("b", 1)):
        device = limits_of(node, name).dev[0]

        assert bytes(device.uuid).hex() == gpu.uuid(gpu.instance(instance))[4:].replace("-", "")
        assert device.kind == constants.VGPU_KIND_MIG
        assert device.context_bytes == CONTEXT_BYTES


def test_slices_of_other_instances_are_no_neighbours(
    two: OciRuntime, node: Node, make_bundle: MakeBundle
) -> None:
    def alone(*names: str) -> list[int]:
        return [limits_of(node, name).dev[0].alone for name in names]

    wait_until(lambda: alone("a", "b") == [1, 1], "each is alone on its instance")

    two.start_detached(make_bundle("c", slice_env("1Gi")), "c")  # beside one of them

    wait_until(lambda: sorted(alone("a", "b", "c")) == [0, 0, 1], "two share an instance")
