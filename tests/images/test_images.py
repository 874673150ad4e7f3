# SPDX-License-Identifier: Apache-2.0
"""The container images, built by a private dockerd and run (`make test-images`).

A privileged pod cannot run on every machine that tests, so that the node's image gets by name the
capabilities that it needs of those that `privileged` gives. Its host is the private dockerd:
process 1 of this machine may be out of reach, and an installation looks for containers of the whole
host, of which other tests may run some at the same time.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_shim import __version__
from runtime_shim.dependants import mounted_libraries
from tests.testbed import REPOSITORY
from tests.testbed.docker import Docker
from tests.testbed.node import wait_until

pytestmark = [
    pytest.mark.images,
    pytest.mark.usefixtures("needs_root"),
    pytest.mark.timeout(1200),  # the first test makes the images and their base
]

CACHE = f"docker.io/vgpu/scheduler-cache:{__version__}"
NODE = f"docker.io/vgpu/node:{__version__}"
# Of `privileged`: what entering a mount namespace and installing below it takes.
ON_HOST = (
    *("--pid=host", "--network=none", "--read-only", "--security-opt=seccomp=unconfined"),
    *("--security-opt=apparmor=unconfined", "--cap-add=SYS_ADMIN", "--cap-add=SYS_PTRACE"),
)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """Yield a dockerd that has both images."""
    # Its socket's path must fit in 107 bytes.
    with Docker(tmp_path_factory.mktemp("d"), {}, own_processes=True) as docker:
        subprocess.run(
            ["scripts/images"],
            cwd=REPOSITORY,
            env={**os.environ, "BASE": "", "DOCKER_HOST": docker.host, "DOCKER_BUILDKIT": "0"},
            check=True,
            timeout=900,  # the base is made of some 90 packages of Debian
        )
        yield docker


def test_the_cache_runs_without_rights_and_prints_its_configuration(docker: Docker) -> None:
    shown = docker.command(
        *("run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"),
        *("--security-opt=no-new-privileges", CACHE, "check-config", "--in-cluster"),
    )

    assert "in_cluster = true" in shown


def test_the_cache_has_what_the_kubernetes_mode_imports(docker: Docker) -> None:
    # In no cluster: it gets as far as looking for its service account.
    ended = docker.finish(
        *("run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"),
        *(CACHE, "serve", "--in-cluster"),
    )

    assert ended.status == 1
    assert "/etc/vgpu/keys/current: there is no key" in ended.stderr


def test_an_operator_finds_vgpuctl_in_the_cache(docker: Docker) -> None:
    shown = docker.command(
        *(
            "run",
            "--rm",
            "--network=none",
            "--read-only",
            "--entrypoint=vgpuctl",
            CACHE,
            "--version",
        )
    )

    assert __version__ in shown


# A container of this machine with a slice, as the kernel shows it, until its stdin ends.
_CONTAINER = """
mkdir -p "$1/containers/a1" && touch "$1/containers/a1/limits"
mount -t tmpfs tmpfs /dev && mkdir /dev/vgpu && touch /dev/vgpu/limits
mount --bind "$1/containers/a1/limits" /dev/vgpu/limits
echo ready
read -r _
"""


@pytest.fixture
def container_elsewhere(scratch: Path) -> Iterator[None]:
    """Let a container of another test live meanwhile."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _CONTAINER, "sh"]
    with subprocess.Popen(
        [*words, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as container:
        assert container.stdout is not None
        assert container.stdout.readline() == "ready\n"
        assert "a1" in mounted_libraries()
        yield
        container.communicate()


@pytest.mark.usefixtures("container_elsewhere")
def test_the_node_image_installs_on_the_host_and_takes_it_back(
    docker: Docker, tmp_path: Path
) -> None:
    prefix = tmp_path / "vgpu"
    config = tmp_path / "agent.toml"
    config.write_text(
        f'mode = "kubernetes"\n[paths]\nrun_dir = "{tmp_path}/run"\n'
        f'state_dir = "{tmp_path}/state"\n'
    )
    install = (
        *("run", "--rm", *ON_HOST, f"--volume={config}:/etc/vgpu/agent.toml:ro"),
        *("--env=VGPU_CONFIG=/proc/self/fd/100/etc/vgpu/agent.toml", NODE, "vgpuctl"),
        *("node-install", "--prefix", str(prefix), "--engine=none"),
        *("--record", f"{tmp_path}/record/configure.json"),
    )

    first = docker.command(*install)
    second = docker.command(*install)

    assert first == f"{prefix}: installed\n"
    assert second == f"{prefix}: has this version already\n"
    assert (prefix / "lib/vgpu/current").readlink() == Path(__version__)
    help_text = subprocess.run(
        [prefix / "bin/vgpu-container-runtime", "--version"], capture_output=True, text=True
    )
    assert "runc" in help_text.stdout  # the launcher runs on this host, and found its runtime

    assert docker.command(*install, "--undo") == f"{prefix}: removed\n"
    assert not prefix.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["agent.toml"]


def test_the_nodes_vgpuctl_looks_at_the_host(docker: Docker, tmp_path: Path) -> None:
    state = tmp_path / "state"
    config = tmp_path / "agent.toml"
    config.write_text(f'[paths]\nstate_dir = "{state}"\nrun_dir = "{tmp_path}/run"\n')

    shown = docker.command(
        *("run", "--rm", *ON_HOST, NODE, "vgpuctl"),
        *("--config", str(config), "ps"),  # the host's path: the image has no such file
    )

    assert shown == "no container holds a slice\n"


def test_the_agent_of_the_image_serves_on_the_host(docker: Docker, scratch: Path) -> None:
    """From installation to the first launcher: what Python loads late is loaded in there, too."""
    config = scratch / "agent.toml"
    config.write_text(
        f'mode = "kubernetes"\n[paths]\nrun_dir = "{scratch}/run"\nstate_dir = "{scratch}/state"\n'
        f'socket = "{scratch}/run/a.sock"\nlibrary = "{scratch}/v/lib/vgpu/current/libvgpu.so"\n'
        f'[cache]\naddress = "unix:{scratch}/none"\n[metrics]\nlisten = "127.0.0.1:0"\n'
        f'[device_plugin]\nkubelet_dir = "{scratch}/kubelet"\n'
    )
    host = (*ON_HOST, f"--env=VGPU_CONFIG={config}", NODE)
    install = ("vgpuctl", "node-install", "--prefix", f"{scratch}/v", "--engine=none")
    docker.command("run", "--rm", *host, *install, "--record", f"{scratch}/record/configure.json")

    docker.command("run", "--detach", "--name=agent", *host, "vgpu-node-agent", "run")
    try:
        wait_until(
            lambda: "serving" in docker.finish("logs", "agent").stderr,
            "the agent of the image serves",
            timeout_seconds=60,
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as launcher:
            launcher.connect(f"{scratch}/run/a.sock")  # the host's own path
    finally:
        shown = docker.finish("logs", "agent")
        docker.command("stop", "--time=20", "agent")
    ended = docker.command("inspect", "--format={{.State.ExitCode}}", "agent").strip()

    assert "Traceback" not in shown.stderr
    assert "cannot open shared object" not in shown.stderr
    assert ended == "0", shown.stderr
