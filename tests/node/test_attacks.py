# SPDX-License-Identifier: Apache-2.0
"""Ways round a slice that were found by trying, each with what becomes of it under real runc."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vgpu.privileges import UNDOING

from tests.fakes.gpu import SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node
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


@pytest.mark.parametrize("name", [name for name in UNDOING if name != "SYS_ADMIN"])
def test_other_capabilities_that_undo_a_limit_are_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, name: str
) -> None:
    """`docker run --cap-add DAC_READ_SEARCH`, then `open_by_handle_at` of the limits file."""
    bundle = make_bundle("a", slice_env("2Gi"))
    capabilities = bundle.spec["process"]["capabilities"]
    capabilities["bounding"] = [*capabilities["bounding"], f"CAP_{name}"]
    bundle.write()

    with pytest.raises(RuntimeFailedError, match=f"it holds CAP_{name}, with which it can"):
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


@pytest.mark.parametrize("asks", [True, False], ids=["slice", "void"])
def test_a_wrapped_hook_of_the_nvidia_toolkit_does_not_run(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path, asks: bool
) -> None:
    """`ctr run --gpus 0` writes such a hook, which would run as root of the host."""
    program = scratch / "nvidia-container-cli"
    program.write_text('#!/bin/sh\necho "$1" >>"$0.ran"\n')
    program.chmod(0o755)
    own = scratch / "own-hook"
    shutil.copy(program, own)
    wrapped = {"path": "/usr/bin/env", "args": ["env", "A=1", str(program), "nvidia"]}
    bundle = make_bundle("a", slice_env("2Gi") if asks else {"NVIDIA_VISIBLE_DEVICES": "all"})
    stages = ("prestart", "createRuntime", "createContainer", "poststart")
    bundle.spec["hooks"] = {
        stage: [wrapped, {"path": str(own), "args": [str(own), stage]}] for stage in stages
    }
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert not Path(f"{program}.ran").exists()
    assert Path(f"{own}.ran").read_text().split() == list(stages)


@pytest.mark.parametrize("asks", [True, False], ids=["slice", "void"])
def test_a_hook_that_is_a_script_which_runs_the_toolkit_is_refused(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path, asks: bool
) -> None:
    script = scratch / "hook"
    script.write_text(f"#!/bin/sh\ntouch {scratch}/ran\nnvidia-container-cli configure\n")
    script.chmod(0o755)
    bundle = make_bundle("a", slice_env("2Gi") if asks else {"NVIDIA_VISIBLE_DEVICES": "all"})
    bundle.spec["hooks"] = {"createRuntime": [{"path": str(script)}]}
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="its createRuntime hook .* names nvidia-contai"):
        runtime.start_detached(bundle, "a")
    assert not (scratch / "ran").exists()
    assert node.claim_states() == {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mnt", "no mount namespace of its own"),
        ("pid", "joins the PID namespace '.*', which is the host's"),
    ],
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


def volume(source: Path, destination: str, *options: str) -> dict[str, Any]:
    """Return a volume as Docker writes it."""
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["rbind", "rprivate", *options],
    }


def test_a_volume_over_etc_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path
) -> None:
    """Another container removes ld.so.preload from the volume, and Linux the mount over it."""
    (scratch / "v").mkdir()
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["mounts"].append(volume(scratch / "v", "/etc"))
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="mount single files below /etc instead"):
        runtime.start_detached(bundle, "a")


def test_a_volume_that_a_link_puts_at_our_place_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path
) -> None:
    (scratch / "v").mkdir()
    bundle = make_bundle("a", slice_env("2Gi"))
    (bundle.directory / "rootfs/x").symlink_to("dev/vgpu")
    bundle.spec["mounts"].append(volume(scratch / "v", "/x"))
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="covers the place of the vgpu library"):
        runtime.start_detached(bundle, "a")


def test_nothing_but_ours_is_at_our_place(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")

    assert runtime.exec("a", "ls", "/dev/vgpu").split() == ["libvgpu.so", "limits", "usage"]
    mounts = [line.split() for line in runtime.exec("a", "cat", "/proc/mounts").splitlines()]
    ours = [(kind, options) for _, place, kind, options, *_ in mounts if place == "/dev/vgpu"]
    assert [(kind, options.split(",")[0]) for kind, options in ours] == [("tmpfs", "ro")]


@pytest.mark.parametrize("kind", ["maskedPaths", "devices"])
@pytest.mark.parametrize("place", ["/etc/ld.so.preload", "/dev/vgpu/libvgpu.so", "/x/vgpu"])
def test_nothing_is_put_over_what_holds_a_container(
    runtime: OciRuntime, make_bundle: MakeBundle, kind: str, place: str
) -> None:
    """`--security-opt mask=/etc/ld.so.preload`; a device of the spec, which crun binds there."""
    bundle = make_bundle("a", slice_env("2Gi"))
    (bundle.directory / "rootfs/x").symlink_to("dev")
    node = {"path": place, "type": "c", "major": 1, "minor": 3}
    bundle.spec["linux"][kind] = [place if kind == "maskedPaths" else node]
    bundle.write()

    with pytest.raises(RuntimeFailedError, match=f"{place}' covers what holds it to its slice"):
        runtime.start_detached(bundle, "a")


@pytest.mark.parametrize("default", ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG"])
def test_a_seccomp_profile_that_hides_our_file_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, default: str
) -> None:
    """`docker run --security-opt seccomp=x.json`: glibc asks by access(2) for ld.so.preload."""
    bundle = make_bundle("a", slice_env("2Gi"))
    rule = {"names": ["access"], "action": "SCMP_ACT_ERRNO", "errnoRet": 2}
    bundle.spec["linux"]["seccomp"] = {"defaultAction": default, "syscalls": [rule]}
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="seccomp profile does not always allow access"):
        runtime.start_detached(bundle, "a")


def test_a_seccomp_profile_that_lets_the_loader_work_is_kept(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    rule = {"names": ["mount", "ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
    bundle.spec["linux"]["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert totals(probe_in(runtime, "a")) == {2 * GIB}
    assert bundle.read()["linux"]["seccomp"] == bundle.spec["linux"]["seccomp"]


def patched_loader(folder: Path) -> None:
    """Make the loader below `folder` read another file than ld.so.preload."""
    (loader,) = folder.glob("ld-linux-*")
    text = loader.read_bytes().replace(b"/etc/ld.so.preload", b"/etc/ld.so.preloax")
    loader.unlink()  # the template's own file by a hard link
    loader.write_bytes(text)
    loader.chmod(0o755)


def test_a_patched_loader_in_a_volume_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path, template: Path
) -> None:
    shutil.copytree(template / "lib64", scratch / "v")
    patched_loader(scratch / "v")
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["mounts"].append(volume(scratch / "v", "/lib64"))
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="the mount at '/lib64' uses another loader"):
        runtime.start_detached(bundle, "a")


def test_a_musl_loader_beside_glibc_is_refused(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    (bundle.directory / "rootfs/lib/ld-musl-x86_64.so.1").write_bytes(b"\x7fELF")

    with pytest.raises(RuntimeFailedError, match="the image uses musl"):
        runtime.start_detached(bundle, "a")


def test_a_loader_in_a_volume_that_reads_our_file_is_fine(
    runtime: OciRuntime, make_bundle: MakeBundle, scratch: Path, template: Path
) -> None:
    shutil.copytree(template / "lib64", scratch / "v")
    bundle = make_bundle("a", slice_env("2Gi"))
    bundle.spec["mounts"].append(volume(scratch / "v", "/lib64", "ro"))
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert totals(probe_in(runtime, "a")) == {2 * GIB}


def _key_in_another_case(spec: dict[str, Any]) -> None:
    spec["Mounts"] = [
        *spec["mounts"],
        volume(Path("/dev/null"), "/etc/ld.so.preload"),
    ]


def _rule_in_another_case(spec: dict[str, Any]) -> None:
    rule = {"Allow": True, "type": "c", "Major": 195, "minor": 1, "access": "rwm"}
    spec["linux"]["resources"]["devices"].append(rule)


def _options_that_are_none(spec: dict[str, Any]) -> None:
    spec["mounts"].append({"destination": "/x", "source": "/tmp", "options": 7})


def _number_that_is_none(spec: dict[str, Any]) -> None:
    rule = {"allow": True, "type": "c", "major": [1], "access": "rwm"}
    spec["linux"]["resources"]["devices"].append(rule)


@pytest.mark.parametrize("asks", [True, False], ids=["slice", "void"])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_key_in_another_case, "'Mounts' is the key 'mounts' in another case"),
        (_rule_in_another_case, "' is the key '.*' in another case"),
        (_options_that_are_none, "options is not a list of strings"),
        (_number_that_is_none, "major of a device is not a whole number"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_runc_reads_otherwise_is_no_spec(
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    edit: Callable[[dict[str, Any]], None],
    message: str,
    asks: bool,
) -> None:
    bundle = make_bundle("a", slice_env("2Gi") if asks else {"NVIDIA_VISIBLE_DEVICES": "all"})
    edit(bundle.spec)
    bundle.write()

    with pytest.raises(RuntimeFailedError, match=message):
        runtime.start_detached(bundle, "a")
