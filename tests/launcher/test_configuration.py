# SPDX-License-Identifier: Apache-2.0
"""No state of the configuration stops a command that creates nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, refusal
from tests.launcher.fake_agent import GPU, LOW_LEVEL, FakeAgent

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


def runc_version() -> bytes:
    runc = shutil.which("runc", path=SEARCH)
    assert runc is not None, "runc is not installed: run `make setup`"
    return subprocess.run([runc, "--version"], capture_output=True, check=True).stdout


def test_without_a_file_the_first_runc_is_found(launcher: Launcher) -> None:
    if Path("/etc/vgpu/runtime.conf").exists():
        pytest.skip("this host has /etc/vgpu/runtime.conf, which comes first")
    launcher.conf.unlink()

    assert launcher.run("--version").stdout == runc_version()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"low_level_runtime=/nowhere/runc\n",
        b"low_level_runtime=/etc/passwd\n",
        b"low_level_runtime=/\n",
        b"low_level_runtime=runc\n",
        b"low_level_runtime\n",
        b"\xff\xfe\x00garbage\n",
        b"#" * 20000,
    ],
    ids=["empty", "missing", "data", "directory", "relative", "no value", "binary", "too big"],
)
def test_a_broken_file_leads_to_the_search(launcher: Launcher, content: bytes) -> None:
    launcher.conf.write_bytes(content)

    done = launcher.run("--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, runc_version(), b"")


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_no_regular_file_leads_to_the_search(launcher: Launcher, kind: str) -> None:
    launcher.conf.unlink()
    if kind == "fifo":
        os.mkfifo(launcher.conf)
    else:
        launcher.conf.mkdir()

    assert launcher.run("--version").stdout == runc_version()


@pytest.mark.parametrize(
    ("runtime", "why"),
    [
        ("/nowhere/runc", "it, or the interpreter it names, is not there"),
        ("/etc/passwd", "it is not executable"),
        ("runc", "not an absolute path"),
    ],
)
def test_a_create_does_not_fall_back(launcher: Launcher, runtime: str, why: str) -> None:
    """Repaired later, the configured runtime would know nothing of the container."""
    launcher.configure(low_level_runtime=runtime)
    launcher.write_spec()

    text = refusal(launcher.create())

    assert f"low_level_runtime = {runtime} cannot be run: {why}; correct it in" in text
    assert text.endswith(str(launcher.conf))


def test_a_gpu_runtime_that_cannot_be_run_is_refused(launcher: Launcher) -> None:
    launcher.configure(gpu_runtime="/nowhere/nvidia-container-runtime")
    launcher.write_spec(["VGPU_MEMORY=1Gi"])

    with FakeAgent(launcher.socket, GPU):
        text = refusal(launcher.create())

    assert "gpu_runtime = /nowhere/nvidia-container-runtime cannot be run" in text


def test_the_launcher_as_its_own_runtime_is_refused(launcher: Launcher, scratch: Path) -> None:
    link = scratch / "runc"
    link.symlink_to(launcher.path)
    launcher.configure(low_level_runtime=link)
    launcher.write_spec()

    assert "it leads back to vgpu-container-runtime" in refusal(launcher.create())
    assert launcher.run("--version").stdout == runc_version()


def test_a_file_with_carriage_returns_is_read(launcher: Launcher) -> None:
    text = launcher.conf.read_text()
    launcher.conf.write_bytes(text.replace("\n", "\r\n").encode())
    launcher.write_spec(["VGPU_MEMORY=1Gi"])

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.create()

    assert len(agent.requests) == 1
    assert launcher.low_level.ran
