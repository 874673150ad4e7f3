# SPDX-License-Identifier: Apache-2.0
"""Nothing that an image or its user can write widens a slice."""

import json
import os
import random
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node, card_nodes_in_dev, wait_until
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import build_rootfs

HOSTILE_ENV = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_IMEX_CHANNELS": "0",
    "NVIDIA_GDS": "enabled",
    "NVIDIA_MOFED": "enabled",
    "NVIDIA_GDRCOPY": "enabled",
    "NVIDIA_NVSWITCH": "enabled",
    "NVIDIA_MIG_CONFIG_DEVICES": "all",
    "NVIDIA_MIG_MONITOR_DEVICES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT": "80g",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "80g",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/mine",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "CUDA_DISABLE_CONTROL": "true",
    "CUDA_OVERSUBSCRIBE": "true",
    "GPU_CORE_UTILIZATION_POLICY": "disable",
}


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """Return process.env as a mapping; every name must be there once."""
    pairs = [variable.partition("=")[::2] for variable in spec["process"]["env"]]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_hostile_environment_is_removed(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", {**HOSTILE_ENV, **slice_env("2Gi"), "MINE": "kept"})
    bundle.spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=GPU-other")
    bundle.write()

    runtime.start_detached(bundle, "a")

    env = environment(bundle.read())
    assert node.gpu is not None
    assert env["NVIDIA_VISIBLE_DEVICES"] == node.gpu.uuid()
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert env["MINE"] == "kept"
    assert not (set(HOSTILE_ENV) - {"NVIDIA_VISIBLE_DEVICES"}) & set(env)
    assert not [name for name in env if name.startswith("VGPU_")]
    assert totals(probe_in(runtime, "a")) == {2 * GIB}


def test_no_request_means_no_card(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("a", {"NVIDIA_VISIBLE_DEVICES": "all"})

    runtime.start_detached(bundle, "a")

    assert environment(bundle.read())["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "nvidia" not in runtime.exec("a", "ls", "/dev")
    assert bundle.read()["mounts"] == bundle.spec["mounts"]


def test_an_unmarked_container_is_not_touched(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    bundle = make_bundle("a", {"HELLO": "world"})
    before = (bundle.directory / "config.json").read_bytes()

    runtime.start_detached(bundle, "a")

    assert (bundle.directory / "config.json").read_bytes() == before


def _device_list_mount(spec: dict[str, Any]) -> None:
    spec["mounts"].append(
        {
            "destination": "/var/run/nvidia-container-devices/all",
            "type": "bind",
            "source": "/dev/null",
            "options": ["rbind", "ro"],
        }
    )


def _cdi_annotation(spec: dict[str, Any]) -> None:
    spec["annotations"] = {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}


def _device_node(spec: dict[str, Any]) -> None:
    spec["linux"]["devices"] = [
        {"path": f"/dev/{name}", "type": "c", "major": 195, "minor": minor, "fileMode": 438}
        for name, minor in (("nvidia0", 0), ("nvidia7", 7), ("innocent", 6))
    ]
    spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rwm"}
        for minor in (0, 6, 7)
    ]


def _wildcard_rule(spec: dict[str, Any]) -> None:
    spec["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "access": "rwm"}
    )


WIDENINGS: list[Callable[[dict[str, Any]], None]] = [
    _device_list_mount,
    _cdi_annotation,
    _device_node,
    _wildcard_rule,
]


def granted_minors(spec: dict[str, Any]) -> set[int | None]:
    """Return the minors of NVIDIA cards that the device rules allow, None for a wildcard."""
    allowed: set[int | None] = set()
    for rule in spec["linux"]["resources"]["devices"]:
        if rule.get("major") == 195:
            change = {rule.get("minor")}
            allowed = allowed | change if rule["allow"] else allowed - change
    return allowed - {254, 255}  # nvidia-modeset and nvidiactl are no cards


@pytest.mark.parametrize("widen", WIDENINGS, ids=lambda widen: widen.__name__.strip("_"))
@pytest.mark.parametrize("asks", [True, False], ids=["slice", "void"])
def test_gpu_marks_in_the_spec_are_removed(
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    widen: Callable[[dict[str, Any]], None],
    asks: bool,
) -> None:
    bundle = make_bundle("a", slice_env("2Gi") if asks else {})
    widen(bundle.spec)
    bundle.write()

    runtime.start_detached(bundle, "a")

    spec = bundle.read()
    assert not [m for m in spec["mounts"] if "nvidia-container-devices" in m["destination"]]
    assert not [key for key in spec.get("annotations", {}) if key.startswith("cdi.k8s.io/")]
    assert granted_minors(spec) == ({0} if asks else set())
    nodes = {
        (device["path"], device["minor"])
        for device in spec["linux"].get("devices", [])
        if device["major"] == 195 and device["minor"] < 254
    }
    assert nodes == ({("/dev/nvidia0", 0)} if asks else set())


def test_ld_preload_of_the_image_does_not_displace_the_library(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    env = {**slice_env("2Gi"), "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}
    runtime.start_detached(make_bundle("a", env), "a")

    seen = runtime.exec("a", "env", f"LD_PRELOAD={env['LD_PRELOAD']}", "/usr/bin/vgpu-probe")

    assert totals(json.loads(seen)) == {2 * GIB}


def test_a_mount_of_the_user_over_our_folder_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["mounts"].append(
        {"destination": "/dev/vgpu/limits", "type": "bind", "source": "/tmp", "options": ["rbind"]}
    )
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="/dev/vgpu"):
        runtime.start_detached(bundle, "a")


def test_a_privileged_container_with_a_slice_is_refused_before_runc(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    """`docker run --privileged` cannot start on every test machine; refusing needs no start."""
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    bundle.spec["process"]["capabilities"]["bounding"] = ["CAP_SYS_ADMIN", "CAP_MKNOD"]
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="privileged"):
        runtime.start_detached(bundle, "a")


def test_a_cri_container_is_refused_on_a_host_without_kubernetes(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["annotations"] = {
        "io.kubernetes.cri.sandbox-id": "f" * 64,
        "io.kubernetes.cri.container-type": "container",
    }
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="[Kk]ubernetes"):
        runtime.start_detached(bundle, "a")


GARBAGE = {
    "random": "dd if=/dev/urandom of=/dev/vgpu/usage bs=4096 count=300 conv=notrunc",
    "zeros": "dd if=/dev/zero of=/dev/vgpu/usage bs=4096 count=300 conv=notrunc",
    "truncated": ": > /dev/vgpu/usage",
    "grown": "dd if=/dev/zero of=/dev/vgpu/usage bs=1 count=1 seek=1073741823",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_in_the_usage_file_hurts_only_its_owner(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, kind: str
) -> None:
    random.seed(0)
    runtime.start_detached(make_bundle("bad", slice_env("2Gi")), "bad")
    runtime.start_detached(make_bundle("good", slice_env("5Gi")), "good")
    usage = node.container_directory("bad") / "usage" / "usage"
    size_bytes = usage.stat().st_size

    runtime.command("exec", "bad", "sh", "-c", f"{GARBAGE[kind]} 2>/dev/null; true")

    if kind != "zeros":
        wait_until(lambda: "usage file" in node.log("agent"), "the agent logs the damage")
    time.sleep(1.5)  # one pass of the agent, which must survive it
    assert node.agent_runs()
    assert usage.stat().st_size <= max(size_bytes, 2 << 20), "its tmpfs bounds it"
    good = probe_in(runtime, "good", "--until-refused", "64m")
    assert totals(good) == {5 * GIB}
    assert good["words"][0]["bytes"] == 5 * GIB
    granted = granted_after_damage(runtime)
    assert granted <= 2 * GIB


def granted_after_damage(runtime: OciRuntime) -> int:
    """Return how much the container with the damaged file still gets; 0 when it fails closed."""
    try:
        seen = probe_in(runtime, "bad", "--until-refused", "64m")
    except RuntimeFailedError:
        return 0
    return int(seen["words"][0]["bytes"]) if seen.get("words") else 0


def test_the_limits_file_is_read_only_inside(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")

    for target in ("/dev/vgpu/limits", "/dev/vgpu/libvgpu.so", "/etc/ld.so.preload"):
        with pytest.raises(RuntimeFailedError, match="[Rr]ead-only"):
            runtime.exec("a", "sh", "-c", f"echo x > {target}")


def bundle_of(make_bundle: MakeBundle, **changes: Any) -> Bundle:  # noqa: ANN401  JSON
    """Return a bundle that asks for 2 GiB, with top-level changes to `process` and `root`."""
    bundle = make_bundle("a", slice_env("2Gi"))
    for key, value in changes.items():
        bundle.spec[key].update(value)
    bundle.write()
    return bundle


def test_a_read_only_rootfs_works(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    runtime.start_detached(bundle_of(make_bundle, root={"readonly": True}), "a")

    assert totals(probe_in(runtime, "a")) == {2 * GIB}


def test_user_1000_works(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    user = {"user": {"uid": 1000, "gid": 1000}}
    runtime.start_detached(bundle_of(make_bundle, process=user), "a")

    seen = probe_in(runtime, "a", "--until-refused", "64m")

    assert totals(seen) == {2 * GIB}
    assert seen["words"][0]["bytes"] == 2 * GIB


@pytest.fixture
def host_nodes(node: Node) -> Iterator[None]:
    """Put the simulated cards' nodes where a driver has them."""
    with card_nodes_in_dev(node):
        yield


@pytest.fixture
def unified_memory(node: Node) -> None:
    """Load nvidia-uvm on a host whose driver's helper has made one of its two nodes."""
    tree = node.directory / "driver"
    (tree / "proc").mkdir(exist_ok=True)
    (tree / "proc/devices").write_text("Character devices:\n234 nvidia-uvm\n")
    os.mknod(tree / "dev/nvidia-uvm", stat.S_IFCHR, os.makedev(234, 0))
    time.sleep(1.1)  # the agent looks for the driver anew after a second


def test_a_user_namespace_works(
    unified_memory: None,
    host_nodes: None,
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    scratch: Path,
) -> None:
    image = build_rootfs(scratch / "image")
    subprocess.run(["chown", "-R", "100000:100000", str(image)], check=True)
    bundle = make_bundle("a", slice_env("2Gi"), rootfs=image)
    bundle.spec["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        bundle.spec["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    bundle.write()
    for folder in [bundle.directory, *list(bundle.directory.parents)[:2]]:
        folder.chmod(0o755)  # the mapped root walks to its rootfs as a stranger

    runtime.start_detached(bundle, "a")

    seen = probe_in(runtime, "a", "--until-refused", "64m")
    assert totals(seen) == {2 * GIB}
    assert seen["words"][0]["bytes"] == 2 * GIB
    nodes = [word for word in runtime.exec("a", "ls", "/dev").split() if "nvidia" in word]
    assert sorted(nodes) == ["nvidia-uvm", "nvidia0", "nvidiactl"]
