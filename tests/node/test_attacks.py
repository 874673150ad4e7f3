# SPDX-License-Identifier: Apache-2.0
"""Ways round a slice that were found by trying, each with what becomes of it under real runc."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import SimulatedGpu
from tests.node.conftest import MakeBundle, slice_env
from tests.testbed.node import Node
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError

# The second card's number: no slice of these tests is on it.
FOREIGN_CARD = os.makedev(195, 1)


def opened(runtime: OciRuntime, container_id: str) -> str:
    """Return what opening a node of a foreign card says inside; no such card exists here."""
    rootfs = Path(runtime.state(container_id)["bundle"]) / "rootfs"
    os.mknod(rootfs / "tmp/card", 0o666 | 0o020000, FOREIGN_CARD)
    script = "dd if=/tmp/card of=/dev/null count=1 2>&1; true"
    return runtime.exec(container_id, "sh", "-c", script)


@pytest.mark.parametrize("asks", [True, False], ids=["slice", "void"])
@pytest.mark.parametrize(
    "rule",
    [
        {"type": "a", "access": "m"},
        {"type": "a", "major": 1, "minor": 3, "access": "rwm"},
        {"type": "a", "major": 1, "minor": 3, "access": "m"},
        {"major": 1, "minor": 3, "access": "m"},
    ],
    ids=lambda rule: ",".join(f"{key}={value}" for key, value in rule.items()),
)
def test_a_device_rule_of_type_a_opens_no_card(
    runtime: OciRuntime, make_bundle: MakeBundle, rule: dict[str, Any], asks: bool
) -> None:
    """`docker run --device-cgroup-rule 'a 1:3 m'`: runc takes it for all access to all devices."""
    bundle = make_bundle("a", slice_env("2Gi") if asks else {})
    bundle.spec["linux"]["resources"]["devices"].append({"allow": True, **rule})
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert "Operation not permitted" in opened(runtime, "a")


@pytest.mark.parametrize("kind", ["bounding", "ambient"])
def test_sys_admin_with_a_slice_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, kind: str
) -> None:
    """`docker run --cap-add SYS_ADMIN`, then `umount /etc/ld.so.preload`."""
    bundle = make_bundle("a", slice_env("2Gi"))
    capabilities = bundle.spec["process"]["capabilities"]
    capabilities[kind] = [*capabilities.get(kind, ()), "CAP_SYS_ADMIN"]
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="CAP_SYS_ADMIN.*without --cap-add SYS_ADMIN"):
        runtime.start_detached(bundle, "a")


def test_a_node_that_allows_sys_admin_says_so_each_time(
    scratch: Path, gpu: SimulatedGpu, template: Path
) -> None:
    with Node(scratch / "n", gpu, agent_lines=["[policy]", 'sys_admin = "allow"']) as node:
        runtime = node.runtime()
        env = slice_env("2Gi")
        bundle = Bundle.create(scratch / "b", template, ("sleep", "600"), env)
        bundle.spec["process"]["capabilities"]["bounding"] = ["CAP_SYS_ADMIN"]
        bundle.write()
        try:
            runtime.start_detached(bundle, "a")
        finally:
            runtime.delete("a")
        assert "weak isolation: CAP_SYS_ADMIN" in node.log("agent")


@pytest.mark.parametrize(
    ("place", "options", "asks"),
    [
        ("/", ["rbind"], True),
        ("/", ["rbind", "ro"], False),
        ("{run}", ["rbind", "ro"], True),
        ("{run}/containers", ["rbind"], False),
        ("link", ["rbind"], True),
    ],
)
def test_a_mount_that_leads_to_the_limits_is_refused(
    node: Node,
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    scratch: Path,
    place: str,
    options: list[str],
    asks: bool,
) -> None:
    """`docker run -v /run/vgpu:/x`, `-v /:/host`: root inside writes every container's limits."""
    (scratch / "link").symlink_to(node.run_dir)
    shown = place.format(run=node.run_dir)
    bundle = make_bundle("a", slice_env("2Gi") if asks else {"NVIDIA_VISIBLE_DEVICES": "all"})
    bundle.spec["mounts"].append(
        {
            "destination": "/x",
            "type": "bind",
            "source": str(scratch / "link") if shown == "link" else shown,
            "options": options,
        }
    )
    bundle.write()

    with pytest.raises(RuntimeFailedError, match=r"it mounts '.*' at '/x', which leads to"):
        runtime.start_detached(bundle, "a")
    assert bundle.read() == bundle.spec
    assert node.claim_states() == {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [("mnt", "no mount namespace of its own"), ("pid", "joins the host's PID namespace")],
)
def test_a_namespace_of_the_host_by_its_path_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, kind: str, message: str
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    name = {"mnt": "mount"}.get(kind, kind)
    for namespace in bundle.spec["linux"]["namespaces"]:
        if namespace["type"] == name:
            namespace["path"] = f"/proc/{os.getpid()}/ns/{kind}"
    bundle.write()

    with pytest.raises(RuntimeFailedError, match=message):
        runtime.start_detached(bundle, "a")
