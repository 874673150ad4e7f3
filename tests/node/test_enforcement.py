# SPDX-License-Identifier: Apache-2.0
"""A tenant that forges its usage file or sheds the library is seen, and by policy ended."""

import json
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runtime_shim.abi import SLOT_BYTES, SLOT_OFFSET
from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

MIB = 1 << 20
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
# NVML lists only processes whose contexts hold something.
CONTEXT_BYTES = 2 * MIB
STEP_BYTES = 64 * MIB
FULL_BYTES = (GIB - CONTEXT_BYTES) // STEP_BYTES * STEP_BYTES + CONTEXT_BYTES
"""What a process can hold of 1 GiB in such steps."""
LINE = 128
ERASE = (
    f"dd if=/dev/zero of=/dev/vgpu/usage bs={LINE} seek={SLOT_OFFSET // LINE}"
    f" count={8 * SLOT_BYTES // LINE} conv=notrunc 2>/dev/null"
)
LOADER = "lib64/ld-linux-x86-64.so.2"


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return one card of 8 GiB."""
    cards = [Card(memory_bytes=8 * GIB, context_bytes=CONTEXT_BYTES)]
    return SimulatedGpu.create(scratch / "gpu", cards=cards, check_nodes=True)


@pytest.fixture
def rule() -> str:
    """Return what the policy does; a test may ask for another."""
    return "event"


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu, rule: str) -> Iterator[Node]:
    """Yield a running node that waits a second, not 30."""
    lines = ["[policy]", "over_limit_seconds = 1", f'over_limit = "{rule}"', f'unhooked = "{rule}"']
    with Node(scratch / "node", gpu, agent_lines=lines) as running:
        wait_until((running.state_dir / "agent/contexts.json").exists, "the card is measured")
        yield running


def _holds(gpu: SimulatedGpu, used_bytes: int) -> bool:
    return gpu.used_bytes() >= used_bytes


def hold_twice(node: Node, gpu: SimulatedGpu, runtime: OciRuntime) -> None:
    """Make container `a` hold its limit twice: the second process does not see the first one.

    The agent would make up for the erased account within three seconds; it is kept from looking.
    """
    before = gpu.used_bytes()
    with node.agent_paused():
        for full in (before + FULL_BYTES, before + 2 * FULL_BYTES):
            runtime.exec_detached("a", PROBE, "--until-refused", "64m", "--hold", "60")
            wait_until(partial(_holds, gpu, full), "it is full")
            runtime.exec("a", "sh", "-c", ERASE)


def used_of(node: Node, container_id: str) -> int:
    rows = json.loads(node.vgpuctl("ps", "--json").stdout)
    return sum(row["used_bytes"] for row in rows if row["container_id"] == container_id)


def test_an_account_that_was_erased_is_an_event_and_is_shown(
    node: Node, gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
    hold_twice(node, gpu, runtime)

    wait_until(lambda: "container above its limit" in node.log("agent"), "an event")

    allocation_id = node.container_directory("a").name
    (line,) = [each for each in node.log("agent").splitlines() if "above its limit" in each]
    assert f"allocation_id='{allocation_id}'" in line
    assert f"limit_bytes={GIB} held_bytes={2 * FULL_BYTES}" in line
    wait_until(lambda: used_of(node, "a") == 2 * FULL_BYTES, "vgpuctl ps shows what is held")
    assert gpu.used_bytes() == 2 * FULL_BYTES, "nobody was ended"

    runtime.exec("a", "sh", "-c", ERASE)

    assert gets_nothing(runtime), "what NVML sees counts, not the account"


def gets_nothing(runtime: OciRuntime) -> bool:
    """Return whether a new process is refused: its context, or cuInit while the file is damaged."""
    try:
        device = probe_in(runtime, "a", "--allocate", "1m")["devices"][0]
    except RuntimeFailedError:
        return True
    return bool(device["mem_get_info"]["code"] == OUT_OF_MEMORY)


@pytest.mark.parametrize("rule", ["kill"])
def test_kill_ends_who_is_above_and_nobody_else(
    node: Node, gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    for name in ("a", "b"):
        runtime.start_detached(make_bundle(name, slice_env("1Gi")), name)
    runtime.exec_detached("b", PROBE, "--until-refused", "64m", "--hold", "60")
    wait_until(lambda: gpu.used_bytes() == FULL_BYTES, "the neighbour is full")
    hold_twice(node, gpu, runtime)

    wait_until(lambda: gpu.used_bytes() == FULL_BYTES, "the container's processes are gone")

    assert runtime.state("a")["status"] == "running", "its first process holds nothing"
    assert used_of(node, "b") == FULL_BYTES
    assert node.log("agent").count("ended") == 2


def private_loader(rootfs: Path) -> str:
    """Put a loader into a container that does not know of ld.so.preload."""
    target = rootfs / "usr/bin/private-loader"
    text = (rootfs / LOADER).read_bytes()
    target.write_bytes(text.replace(b"/etc/ld.so.preload", b"/etc/ld.so.preloaX"))
    target.chmod(target.stat().st_mode | stat.S_IXUSR)
    return "/usr/bin/private-loader"


@pytest.mark.parametrize("rule", ["event", "kill"])
def test_a_process_without_the_library_is_unhooked(
    node: Node, gpu: SimulatedGpu, runtime: OciRuntime, make_bundle: MakeBundle, rule: str
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    runtime.start_detached(bundle, "a")
    loader = private_loader(bundle.directory / "rootfs")
    runtime.exec_detached("a", PROBE, "--allocate", "1g", "--hold", "60")
    runtime.exec_detached("a", loader, PROBE, "--allocate", "512m", "--hold", "60")
    wait_until(lambda: gpu.used_bytes() == GIB + GIB // 2 + 2 * CONTEXT_BYTES, "both hold memory")

    wait_until(lambda: "unhooked" in node.log("agent"), "an event")

    if rule == "kill":
        wait_until(lambda: gpu.used_bytes() == GIB + CONTEXT_BYTES, "it is ended")
    hooked = [each for each in gpu.processes() if each.memory_bytes[0] == GIB + CONTEXT_BYTES]
    assert len(hooked) == 1, "the process with the library lives"
    assert f"host_pid={hooked[0].pid}" not in node.log("agent")
    wait_until(lambda: used_of(node, "a") >= gpu.used_bytes(), "vgpuctl ps shows all of it")
