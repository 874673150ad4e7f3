# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl status`: versions, and the sentence that refuses a removal."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_shim import __version__
from runtime_shim.dependants import Dependant
from runtime_shim.status import in_use, library_version, lines, running_version


@pytest.fixture
def agent_pid() -> Iterator[int]:
    """Yield a process whose words name the agent."""
    words = [sys.executable, "-c", "print(flush=True); input()", "/usr/bin/vgpu-node-agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


def test_a_lock_names_version_and_process(tmp_path: Path, agent_pid: int) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"{agent_pid}\n0.0.9\n")

    assert running_version(lock, "vgpu-node-agent") == "0.0.9"
    assert running_version(lock, "vgpu-scheduler-cache") is None


def test_a_version_before_this_one_does_not_say(tmp_path: Path, agent_pid: int) -> None:
    (tmp_path / "lock").write_text(f"{agent_pid}\n")

    assert running_version(tmp_path / "lock", "vgpu-node-agent") == ""


@pytest.mark.parametrize("text", ["", "nobody", f"{1 << 22}\n0.1.0\n"])
def test_who_is_gone_does_not_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)

    assert running_version(tmp_path / "lock", "vgpu-node-agent") is None
    assert running_version(tmp_path / "absent", "vgpu-node-agent") is None


def test_a_library_is_of_the_version_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "0.1.0").mkdir()
    (tmp_path / "0.1.0/libvgpu.so").touch()
    (tmp_path / "current").symlink_to("0.1.0")

    assert library_version(tmp_path / "current/libvgpu.so") == "0.1.0"
    assert library_version(tmp_path / "other/libvgpu.so") == ""


def test_a_person_learns_what_a_restart_would_change() -> None:
    containers = [
        Dependant(container_id="new", allocation_id="a", library_version="0.2.0"),
        Dependant(container_id="old", allocation_id="b", library_version="0.1.0"),
        Dependant(container_id="plain"),
    ]
    facts = {
        "installed": "0.2.0",
        "library": "0.2.0",
        "agent": "0.1.0",
        "scheduler_cache": None,
    }

    assert lines(facts, containers) == [
        "installed             0.2.0",
        "library               0.2.0",
        "vgpu-node-agent       0.1.0; `systemctl restart vgpu-node-agent` makes it 0.2.0, "
        "no container notices",
        "vgpu-scheduler-cache  not running",
        "container new  library 0.2.0",
        "container old  library 0.1.0; a restart of the container makes it 0.2.0",
        "container plain  no library",
    ]


def test_the_refusal_names_containers_and_the_remedy() -> None:
    one = in_use([Dependant(container_id="a" * 64)])
    many = in_use([Dependant(container_id=f"c{number}") for number in range(7)])

    assert one == (
        "1 container runs on vgpu-container-runtime (aaaaaaaaaaaa); stop and remove them first: "
        "without it their engine cannot end them"
    )
    assert many.startswith("7 containers run on vgpu-container-runtime (c0, c1, c2, c3, c4 and 2")


def test_it_works_where_the_agents_configuration_is_broken(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("mode = ")

    done = subprocess.run(
        [sys.executable, "-m", "runtime_shim.cli", "status"],
        capture_output=True,
        text=True,
        env={**os.environ, "VGPU_CONFIG": str(tmp_path / "agent.toml")},
    )

    assert done.returncode == 0, done.stderr
    assert f"installed             {__version__}" in done.stdout
    assert "agent.toml is not TOML" in done.stderr
