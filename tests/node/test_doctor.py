# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl doctor` on a real node with a simulated card: what it says when a part is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_shim.doctor.container import check_container
from tests.testbed import REPOSITORY
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import Bundle

Findings = dict[str, dict[str, str]]


def doctor(node: Node, *words: str) -> tuple[int, Findings]:
    """Return the exit status and the findings by check."""
    assert node.gpu is not None
    done = subprocess.run(
        [
            *(sys.executable, "-m", "runtime_shim.cli"),
            *("--config", str(node.directory / "agent.toml")),
            *("doctor", "--json", "--runtime", str(node.launcher), *words),
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "FAKE_GPU_DIR": str(node.gpu.directory),
            "FAKE_GPU_CHECK_NODES": "0",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {each["check"]: each for each in json.loads(done.stdout)}


def failed(findings: Findings) -> set[str]:
    """Return the checks that failed."""
    return {check for check, each in findings.items() if each["level"] == "fail"}


def test_a_whole_node_is_well(node: Node) -> None:
    status, findings = doctor(node)

    assert (status, failed(findings)) == (0, set()), findings
    for check in ("driver", "nvml", "launcher", "library", "agent", "cache", "container"):
        assert findings[check]["level"] == "ok", findings[check]
    assert "with a slice of 1 MiB" in findings["container"]["message"]
    assert "1 card" in findings["driver"]["message"]


def test_it_leaves_nothing_behind(node: Node) -> None:
    before = set(Path("/run").glob("vgpu-doctor-*"))

    doctor(node)

    wait_until(lambda: node.claim_states() == {}, "the claim of the doctor's container is freed")
    # Other tests may have a doctor of their own at work; what it has there goes, too.
    left = set(Path("/run").glob("vgpu-doctor-*")) - before
    wait_until(
        lambda: not any(each.exists() for each in left),
        f"the folder of the doctor's bundles goes: {left}",
        timeout_seconds=90,
    )


def test_where_pods_alone_get_slices_nobody_else_sees_a_gpu(node: Node) -> None:
    finding = check_container(node.launcher, "kubernetes")

    assert (finding.level, "no slice" in finding.message) == ("ok", True), finding
    assert "answered" in node.log("agent"), "the agent was asked"


def test_without_an_agent_it_names_agent_and_container(node: Node) -> None:
    conf = Path(f"{node.launcher}.conf")
    conf.write_text(conf.read_text() + "absent_seconds=0.2\n")
    node.stop_agent()

    status, findings = doctor(node)

    assert (status, failed(findings)) == (1, {"agent", "container"})
    assert "systemctl enable --now vgpu-node-agent" in findings["agent"]["remedy"]
    assert "did not answer" in findings["container"]["message"]


def test_without_a_cache_it_names_the_cache(node: Node) -> None:
    node.stop_cache()

    status, findings = doctor(node, "--no-container")

    assert (status, failed(findings)) == (1, {"cache"})
    assert "container" not in findings


def test_a_full_node_is_no_fault(node: Node, template: Path) -> None:
    bundle = Bundle.create(
        node.directory / "full",
        template,
        ["sleep", "600"],
        {"VGPU_MEMORY": str(8 * GIB)},
        mounts=node.gpu_mounts(),
    )
    runtime = node.runtime()
    runtime.start_detached(bundle, "full")
    try:
        status, findings = doctor(node)
    finally:
        runtime.delete("full")

    assert findings["container"]["level"] == "warn", findings["container"]
    assert (status, failed(findings)) == (0, set())
    assert "no slice is free" in findings["container"]["message"]


def test_a_cut_off_library_is_named(node: Node) -> None:
    os.truncate(node.library, node.library.stat().st_size - 64)

    status, findings = doctor(node, "--no-container")

    assert (status, findings["library"]["level"]) == (1, "fail")
    assert "cut off" in findings["library"]["message"]
    assert "is not the file that was installed" in findings["digests"]["message"]


def test_a_launcher_that_leads_elsewhere_is_named(node: Node) -> None:
    Path(f"{node.launcher}.conf").write_text(
        f"low_level_runtime=/bin/true\nagent_socket={node.agent_socket}\n"
    )

    status, findings = doctor(node, "--no-container")

    assert findings["low-level runtime"]["level"] == "warn"
    assert "neither runc nor crun" in findings["low-level runtime"]["message"]
    assert status == 0


@pytest.mark.parametrize("text", ["mode = 1\n", "[paths"])
def test_a_broken_configuration_is_one_line_among_others(node: Node, text: str) -> None:
    (node.directory / "agent.toml").write_text(text)

    status, findings = doctor(node, "--no-container")

    assert (status, findings["configuration"]["level"]) == (1, "fail")
    assert findings["launcher"]["level"] == "ok"
