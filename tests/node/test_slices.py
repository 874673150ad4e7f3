# SPDX-License-Identifier: Apache-2.0
"""What containers see and get: the promise itself, through real runc."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.gpu import SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MIB = 1 << 20


@pytest.fixture
def two(node: Node, runtime: OciRuntime, make_bundle: MakeBundle) -> OciRuntime:
    """Return the runtime with containers `a` (2 GiB) and `b` (5 GiB) running on one card."""
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")
    runtime.start_detached(make_bundle("b", slice_env("5Gi")), "b")
    return runtime


def test_each_container_sees_its_own_total_everywhere(two: OciRuntime) -> None:
    assert totals(probe_in(two, "a")) == {2 * GIB}
    assert totals(probe_in(two, "b")) == {5 * GIB}


def test_nvml_v2_agrees_with_the_rest(two: OciRuntime) -> None:
    nvml = probe_in(two, "a", "--allocate", "512m")["devices_after"][0]["nvml"]

    assert nvml["v2"]["total"] == 2 * GIB
    assert nvml["v2"]["used"] == nvml["used"] == 512 * MIB
    assert nvml["v2"]["free"] == nvml["free"] == 2 * GIB - 512 * MIB


def test_the_whole_slice_is_granted_and_one_byte_more_is_error_2(two: OciRuntime) -> None:
    words = probe_in(two, "a", "--allocate", str(2 * GIB), "--allocate", "1")["words"]

    assert [word["code"] for word in words] == [0, OUT_OF_MEMORY]
    words = probe_in(two, "a", "--allocate", str(2 * GIB + 1))["words"]
    assert [word["code"] for word in words] == [OUT_OF_MEMORY]


def test_free_gives_back(two: OciRuntime) -> None:
    fill = ["--allocate", str(5 * GIB)]

    words = probe_in(two, "b", *fill, "--free", *fill)["words"]

    assert [word["code"] for word in words] == [0, 0, 0]


def test_processes_of_one_container_share_its_limit(two: OciRuntime, node: Node) -> None:
    two.exec_detached("a", PROBE, "--allocate", "1g", "--hold", "60")
    wait_until(lambda: node.gpu is not None and node.gpu.used_bytes(0) >= GIB, "first process")

    seen = probe_in(two, "a", "--until-refused", "64m")

    assert seen["words"][0]["bytes"] == GIB
    assert seen["words"][0]["code"] == OUT_OF_MEMORY


def test_a_killed_process_gives_its_memory_back_to_its_container(
    two: OciRuntime, node: Node
) -> None:
    kill = "vgpu-probe --allocate 2g --hold 60 & sleep 1; kill -9 $!; wait; "
    seen = two.exec("a", "sh", "-c", kill + "exec vgpu-probe --allocate 2g")

    assert '"code": 0' in seen.split('"words"')[-1]


def test_a_third_container_is_refused_with_what_is_free(
    two: OciRuntime, node: Node, make_bundle: MakeBundle
) -> None:
    third = make_bundle("c", slice_env("4Gi", 10))

    with pytest.raises(RuntimeFailedError) as caught:
        two.start_detached(third, "c")

    assert caught.value.status == 1
    sentence = caught.value.stderr.strip()
    assert len(sentence.splitlines()) == 1
    assert sentence.startswith("vgpu: container 'c'")
    assert "1.0Gi" in sentence
    assert "c" not in node.claim_states()


def test_it_starts_after_the_second_is_gone(
    two: OciRuntime, node: Node, make_bundle: MakeBundle
) -> None:
    third = make_bundle("c", slice_env("4Gi", 10))
    two.delete("b")
    shutil.rmtree(node.directory.parent / "bundles" / "b")

    two.start_detached(third, "c")

    assert totals(probe_in(two, "c")) == {4 * GIB}
    assert set(node.claim_states()) == {"a", "c"}


def test_exec_sessions_keep_the_limit_without_any_environment(two: OciRuntime) -> None:
    seen = two.exec("a", "env", "-i", "/usr/bin/vgpu-probe")

    assert f'"total": {2 * GIB}' in seen


def test_unequal_amounts_on_two_cards(scratch_two_cards: Node, make_two: MakeBundle) -> None:
    runtime = scratch_two_cards.runtime()
    env = {"VGPU_COUNT": "2", "VGPU_MEMORY": "1Gi,3Gi", "VGPU_CORES": "10,20"}
    runtime.start_detached(make_two("pair", env), "pair")

    seen = probe_in(runtime, "pair")
    runtime.delete("pair")

    assert [device["mem_get_info"]["total"] for device in seen["devices"]] == [GIB, 3 * GIB]
    assert len({device["uuid"] for device in seen["devices"]}) == 2


def test_percent_and_whole_cards(scratch_two_cards: Node, make_two: MakeBundle) -> None:
    runtime = scratch_two_cards.runtime()
    runtime.start_detached(make_two("half", slice_env("50%")), "half")
    whole = make_two("whole", {"VGPU_MEMORY": "100%"})
    runtime.start_detached(whole, "whole")

    half_seen, whole_seen = probe_in(runtime, "half"), probe_in(runtime, "whole")
    preloads = [m for m in whole.read()["mounts"] if m["destination"] == "/etc/ld.so.preload"]
    for name in ("half", "whole"):
        runtime.delete(name)

    assert totals(half_seen) == {4 * GIB}
    assert whole_seen["devices"][0]["mem_get_info"]["total"] == 8 * GIB
    assert preloads == [], "a whole card asked for as such gets no library"
    assert half_seen["devices"][0]["uuid"] != whole_seen["devices"][0]["uuid"]


def test_a_noexec_state_folder_keeps_no_container_from_its_slice(
    scratch: Path, gpu: SimulatedGpu, template: Path
) -> None:
    """As on a host whose /var is mounted noexec, with an installation below a prefix."""
    node = Node(scratch / "node", gpu)
    current = node.directory / "prefix/lib/vgpu/current"
    shutil.copytree(node.library.parent, current.with_name("1.0"))
    current.symlink_to("1.0")
    config = node.directory / "agent.toml"
    config.write_text(config.read_text().replace(str(node.library.parent), str(current)))
    noexec = ["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(node.state_dir)]
    subprocess.run(noexec, check=True)
    mounts = node.gpu_mounts()
    bundle = Bundle.create(
        scratch / "bundles/a", template, ("sleep", "600"), slice_env("2Gi"), mounts=mounts
    )
    with node:  # its end unmounts what is below its folder
        runtime = node.runtime()
        runtime.start_detached(bundle, "a")
        try:
            assert totals(probe_in(runtime, "a")) == {2 * GIB}
            assert len(list(current.parent.glob("copies/*/1.0/libvgpu.so"))) == 1
        finally:
            runtime.delete("a")
