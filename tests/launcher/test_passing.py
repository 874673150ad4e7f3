# SPDX-License-Identifier: Apache-2.0
"""What is not ours reaches the low-level runtime as it came."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher
from tests.launcher.fake_agent import LOW_LEVEL, FakeAgent

GOLDEN = Path(__file__).parent / "golden"
MANAGED = ["VGPU_MEMORY=1Gi"]


def golden(name: str) -> list[str]:
    """Return command lines of real engines, without the runtime's own name."""
    lines = (GOLDEN / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("line", golden("others.txt"))
def test_a_command_that_creates_nothing_passes(launcher: Launcher, line: str) -> None:
    launcher.write_spec(MANAGED)
    words = line.format(bundle=launcher.bundle, id="c1").split()

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        done = launcher.run(*words, cwd=launcher.bundle)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert launcher.low_level.argv == [str(launcher.low_level.path), *words]
    assert agent.requests == []


@pytest.mark.parametrize("line", golden("creates.txt"))
def test_a_command_that_creates_is_asked_about(launcher: Launcher, line: str) -> None:
    launcher.write_spec(MANAGED)
    words = line.format(bundle=launcher.bundle, id="c1").split()

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        done = launcher.run(*words, cwd=launcher.bundle)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert launcher.low_level.argv == [str(launcher.low_level.path), *words]
    (request,) = agent.requests
    assert request.fields["id"] == "c1"
    assert request.fields["bundle"] == str(launcher.bundle)
    assert os.path.samestat(request.bundle, launcher.bundle.stat())


def test_the_process_stays_the_same(launcher: Launcher) -> None:
    process = subprocess.Popen([launcher.path, "state", "c1"], stdin=subprocess.DEVNULL)

    process.wait(timeout=30)

    assert launcher.low_level.ran  # there is no other process that could have been waited for
    assert process.returncode == 0


def test_the_environment_passes(launcher: Launcher) -> None:
    environment = {
        "PATH": "/nowhere",
        "LD_LIBRARY_PATH": "/opt/containerd/lib",
        "EMPTY": "",
        "Ü": "ß",
    }

    launcher.run("state", "c1", env=environment)

    want = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    assert launcher.low_level.environ == want


def test_descriptors_pass_and_none_is_added(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    read_end, write_end = os.pipe()
    name = os.readlink(f"/proc/self/fd/{read_end}")

    with FakeAgent(launcher.socket, LOW_LEVEL):
        launcher.run(
            "create", "--bundle", str(launcher.bundle), "c1", pass_fds=(read_end, write_end)
        )
    os.close(read_end)
    os.close(write_end)

    descriptors = launcher.low_level.descriptors
    assert sorted(descriptors) == [0, 1, 2, read_end, write_end]
    assert descriptors[read_end] == name


def test_closed_descriptors_stay_closed(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    script = 'exec "$0" create --bundle "$1" c1 <&- >&- 2>&-'

    with FakeAgent(launcher.socket, LOW_LEVEL):
        subprocess.run(["sh", "-c", script, launcher.path, launcher.bundle], check=True)

    assert launcher.low_level.descriptors == {}


def test_stdin_is_not_read(launcher: Launcher) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"resources")
    os.close(write_end)

    launcher.run("update", "--resources", "-", "c1", stdin=read_end)

    with os.fdopen(read_end, "rb") as rest:
        assert rest.read() == b"resources"


def test_a_container_without_marks_passes_untouched(launcher: Launcher) -> None:
    launcher.write_spec(["PATH=/bin"], linux={"resources": {"devices": [{"allow": False}]}})
    before = (launcher.bundle / "config.json").read_bytes()

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        done = launcher.create()

    assert done.returncode == 0
    assert launcher.low_level.ran
    assert agent.requests == []
    assert (launcher.bundle / "config.json").read_bytes() == before


def test_a_create_without_an_id_passes(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)

    launcher.run("create", "--bundle", str(launcher.bundle))

    assert launcher.low_level.ran  # which says what is missing


def test_a_create_without_a_spec_passes(launcher: Launcher) -> None:
    launcher.create()

    assert launcher.low_level.ran


def test_a_create_without_a_bundle_passes(launcher: Launcher) -> None:
    launcher.run("create", "--bundle", "/nowhere/bundle", "c1")

    assert launcher.low_level.ran


def test_only_the_bundle_given_counts(launcher: Launcher, scratch: Path) -> None:
    """A shim of containerd stands in the sandbox's bundle when it creates the containers."""
    launcher.write_spec(["PATH=/bin"])
    other = scratch / "sandbox"
    other.mkdir()
    (other / "config.json").write_text('{"process":{"env":["VGPU_MEMORY=1Gi"]}}')

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.run("create", "--bundle", str(launcher.bundle), "c1", cwd=other)
        launcher.run("create", "c2", cwd=other)

    assert [request.fields["id"] for request in agent.requests] == ["c2"]
    assert agent.requests[0].fields["bundle"] == str(other)
