# SPDX-License-Identifier: Apache-2.0
"""A container that takes file leases on what it shares with the agent harms nobody else."""

import os
import signal
from pathlib import Path
from typing import Any

from runtime_shim.abi import LIMITS_BYTES, ffi
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.leases import build_lease
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime
from tests.testbed.rootfs import copy_rootfs

# A lease is held for 20 s after the kernel has asked for it, and then taken again.
SECONDS = 15


def heartbeat_ns(node: Node, container_id: str) -> int:
    content = (node.container_directory(container_id) / "limits").read_bytes()
    limits: Any = ffi.new("struct vgpu_limits *")
    ffi.memmove(limits, content, LIMITS_BYTES)
    return int(limits.heartbeat_ns)


def test_leases_hold_up_neither_the_agent_nor_a_neighbour(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path, template: Path
) -> None:
    rootfs = scratch / "rootfs"
    rootfs.mkdir()
    copy_rootfs(template, rootfs)
    build_lease(rootfs / "bin/lease")
    runtime.start_detached(make_bundle("bad", slice_env("1Gi"), rootfs=rootfs), "bad")
    runtime.start_detached(make_bundle("good", slice_env("2Gi")), "good")
    bad = node.container_directory("bad")
    node.stop_agent(signal.SIGKILL)
    for kind, name in (("r", "limits"), ("w", "usage"), ("w", "libvgpu.so")):
        runtime.exec_detached("bad", "/bin/lease", kind, f"/dev/vgpu/{name}")
    wait_until(lambda: leases() >= 3, "the leases are taken")
    before_ns = heartbeat_ns(node, "good")

    node.start_agent()

    wait_until(
        lambda: heartbeat_ns(node, "good") > before_ns,
        "the neighbour is measured",
        timeout_seconds=SECONDS,
    )
    runtime.start_detached(make_bundle("new", slice_env("3Gi")), "new")
    assert totals(probe_in(runtime, "new")) == {3 * GIB}
    said = [line for line in node.log("agent").splitlines() if "has a lease on the file" in line]
    assert any(f"allocation_id='{bad.name}'" in line for line in said)
    assert not any(
        node.container_directory(name).name in line for name in ("good", "new") for line in said
    )
    wait_until(
        lambda: "are the agent's again" in node.log("agent"),
        "its files are the agent's in the end",
        timeout_seconds=120,
    )


def leases() -> int:
    """Return how many leases our own containers' processes hold."""
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(
        "LEASE" in line and os.path.basename(program_of(line.split()[4])) == "lease"
        for line in lines
    )


def program_of(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
