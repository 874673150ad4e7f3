# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl node-install`: files, engine and restart of a node, once, twice, interrupted, undone.

Each command runs in a PID namespace of its own: it looks for containers of the whole host, and
other tests may run some at the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime_shim.host_namespace import IMAGE_ROOT
from tests.runtime_shim.test_configure_editors import CONTAINERD_2
from tests.testbed import REPOSITORY

LAUNCHER = "bin/vgpu-container-runtime"
LIBRARY = "lib/vgpu/{}/libvgpu.so"

# A container as the kernel shows it: a mount namespace with the files of a slice. Runs what follows
# while it lives.
_CONTAINER = r"""
set -e
folder=$1 library=$2; shift 2
ready=$folder/ready
mkfifo "$ready"
unshare --mount --propagation private sh -c '
	mkdir -p "$1/containers/a1" && touch "$1/containers/a1/limits"
	mount -t tmpfs tmpfs /dev && mkdir /dev/vgpu && touch /dev/vgpu/libvgpu.so /dev/vgpu/limits
	mount --bind "$2" /dev/vgpu/libvgpu.so
	mount --bind "$1/containers/a1/limits" /dev/vgpu/limits
	echo >"$1/ready"
	exec sleep 600' sh "$folder" "$library" &
read -r _ <"$ready"
rm "$ready"
"$@"
"""

# An agent as its lock and the kernel show it, while what follows runs.
_AGENT = r"""
mkdir -p "$1/var/agent"
"$2" -c "import time; time.sleep(600)" vgpu-node-agent "$3" &
printf '%s\n1.0.0\n' $! >"$1/var/agent/lock"
shift 3; "$@"; exit $?
"""


@dataclass
class Node:
    """A folder in the place of a host's, and an image to install from."""

    folder: Path

    @property
    def prefix(self) -> Path:
        return self.folder / "opt/vgpu"

    @property
    def engine_file(self) -> Path:
        return self.folder / "containerd/config.toml"

    @property
    def restarts(self) -> int:
        log = self.folder / "restarts"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def image(self, version: str, content: str) -> None:
        """Let the image hold a version."""
        source = self.folder / "image"
        for name in (LAUNCHER, LIBRARY.format(version), f"lib/vgpu/{version}/vgpu-probe"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(f"{Path(name).name} {content}")
        link = source / "lib/vgpu/current"
        link.unlink(missing_ok=True)
        link.symlink_to(version)

    def run(
        self, *words: str, restart: str = "", beside: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        self.folder.joinpath("agent.toml").write_text(
            f'mode = "kubernetes"\n[paths]\nrun_dir = "{self.folder}/run/vgpu"\n'
            f'state_dir = "{self.folder}/var/agent"\n'
        )
        command = [
            *(sys.executable, "-m", "runtime_shim.cli", "--config", f"{self.folder}/agent.toml"),
            *("node-install", "--source", f"{self.folder}/image", "--prefix", str(self.prefix)),
            *("--engine-file", str(self.engine_file)),
            *("--record", f"{self.folder}/var/configure.json"),
            *("--restart-command", restart or f"sh -c 'echo >>{self.folder}/restarts'"),
        ]
        return subprocess.run(
            [
                "unshare",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                *beside,
                *command,
                *words,
            ],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": "proto"},
            capture_output=True,
            text=True,
            timeout=90,
        )

    def agent(self, word: str) -> tuple[str, ...]:
        """Return what lets an agent run beside, with a word of its command line."""
        return ("sh", "-c", _AGENT, "sh", str(self.folder), sys.executable, word)

    def done(self, *words: str, **options: str) -> str:
        result = self.run(*words, **options)  # type: ignore[arg-type]
        assert result.returncode == 0, result.stderr
        return result.stdout

    def library(self, version: str = "current") -> str:
        return (self.prefix / LIBRARY.format(version)).read_text()

    def tree(self) -> dict[str, tuple[int, bytes | str]]:
        """Return path → (inode, content) of everything but the image and the test's own files."""
        return {
            str(path.relative_to(self.folder)): (
                path.lstat().st_ino,
                os.readlink(path) if path.is_symlink() else path.read_bytes(),
            )
            for path in sorted(self.folder.rglob("*"))
            if (path.is_file() or path.is_symlink())
            and path.relative_to(self.folder).parts[0] not in ("image", "restarts", "agent.toml")
        }


@pytest.fixture
def node(needs_root: None, tmp_path: Path) -> Node:
    """Return a node with containerd's file and an image of version 1.0.0."""
    node = Node(tmp_path)
    node.engine_file.parent.mkdir()
    node.engine_file.write_text(CONTAINERD_2)
    node.image("1.0.0", "of 1.0.0")
    return node


def test_it_installs_configures_and_restarts_once(node: Node) -> None:
    node.done()
    before = node.tree()

    node.done()

    launcher = node.prefix / LAUNCHER
    assert launcher.stat().st_mode & 0o777 == 0o755
    assert f'BinaryName = "{launcher}"' in node.engine_file.read_text()
    assert node.library() == "libvgpu.so of 1.0.0"
    assert node.tree() == before
    assert node.restarts == 1


def test_an_upgrade_leaves_the_old_version_to_its_containers(node: Node) -> None:
    node.done()
    node.image("1.1.0", "of 1.1.0")

    node.done()

    assert node.library() == "libvgpu.so of 1.1.0"
    assert node.library("1.0.0") == "libvgpu.so of 1.0.0"
    assert node.restarts == 1  # the launcher's path is the same


def test_another_build_of_a_version_is_set_beside_the_mapped_one(node: Node) -> None:
    node.done()
    mapped = (node.prefix / LIBRARY.format("1.0.0")).stat().st_ino
    node.image("1.0.0", "built anew")

    node.done()

    assert node.library() == "libvgpu.so built anew"
    aside = [each for each in (node.prefix / "lib/vgpu").glob("1.0.0.*")]
    assert [(each / "libvgpu.so").stat().st_ino for each in aside] == [mapped]


def test_the_launchers_configuration_lies_beside_it_and_goes_with_it(node: Node) -> None:
    conf = node.folder / "image/runtime.conf"
    conf.write_text("low_level_runtime=/usr/bin/crun\n")
    beside = node.prefix / f"{LAUNCHER}.conf"

    node.done("--launcher-conf", str(conf))
    assert beside.read_text() == conf.read_text()
    node.done()

    assert not beside.exists()


def test_a_restart_that_failed_is_made_up_for(node: Node) -> None:
    failed = node.run(restart="sh -c 'echo no such unit >&2; exit 5'")
    assert failed.returncode == 1
    assert "ended with 5: no such unit" in failed.stderr

    node.done()  # the file has the runtime already

    assert node.restarts == 1
    node.done()
    assert node.restarts == 1


def test_a_run_that_is_killed_is_made_up_for(node: Node) -> None:
    # The first process of a PID namespace cannot be killed from inside.
    child = ("sh", "-c", '"$@"; exit $?', "sh")
    killed = node.run(restart="sh -c 'kill -KILL $PPID'", beside=child)
    assert killed.returncode != 0
    assert str(node.prefix / LAUNCHER) in node.engine_file.read_text()

    node.done()

    assert node.restarts == 1


def test_an_engine_of_somebody_else_is_left_alone(node: Node) -> None:
    before = node.engine_file.read_bytes()

    node.done("--engine", "none")

    assert node.engine_file.read_bytes() == before
    assert node.library() == "libvgpu.so of 1.0.0"
    assert node.restarts == 0


def test_undo_leaves_nothing(node: Node) -> None:
    before = node.tree()
    node.done()
    (node.folder / "var/agent/answers").mkdir()

    node.done("--undo")

    assert {path: each[1] for path, each in node.tree().items()} == {
        path: each[1] for path, each in before.items()
    }
    assert not node.prefix.exists()
    assert not (node.folder / "run/vgpu").exists()
    assert not (node.folder / "var").exists()
    assert node.restarts == 2
    node.done("--undo")
    assert node.restarts == 2


def test_undo_is_refused_while_a_container_needs_the_runtime(node: Node) -> None:
    node.done()
    library = node.prefix / LIBRARY.format("1.0.0")
    container = ("sh", "-c", _CONTAINER, "sh", str(node.folder), str(library))

    refused = node.run("--undo", beside=container)

    assert refused.returncode == 1
    assert "1 container runs on vgpu-container-runtime (a1)" in refused.stderr
    assert node.library() == "libvgpu.so of 1.0.0"
    assert node.restarts == 1


def test_a_library_that_was_set_aside_stays_while_it_is_mounted(node: Node) -> None:
    node.done()
    library = node.prefix / LIBRARY.format("1.0.0")
    node.image("1.0.0", "built anew")
    # Mounted, then set aside, then everything is removed all the same.
    upgraded = ("sh", "-c", _CONTAINER, "sh", str(node.folder), str(library), "sh", "-c")
    script = '"$@" && exec "$@" --undo --force'

    forced = node.run(beside=(*upgraded, script, "sh"))

    assert forced.returncode == 0, forced.stderr
    kept = [each.name for each in (node.prefix / "lib/vgpu").iterdir()]
    assert len(kept) == 1
    assert kept[0].startswith("1.0.0.")
    assert f"but {kept[0]}, which containers have mounted" in forced.stdout


def test_a_prefix_that_cannot_be_written_is_named(node: Node) -> None:
    (node.folder / "opt").write_text("a file")

    refused = node.run()

    assert refused.returncode == 1
    assert f"cannot install below {node.prefix}" in refused.stderr
    assert "choose a prefix that is writable" in refused.stderr
    assert node.restarts == 0


def test_a_prefix_where_no_program_runs_is_named(node: Node) -> None:
    node.prefix.mkdir(parents=True)
    script = 'mount -t tmpfs -o noexec tmpfs "$1"; shift; exec "$@"'

    refused = node.run(beside=("unshare", "--mount", "sh", "-ec", script, "sh", str(node.prefix)))

    assert refused.returncode == 1
    assert f"cannot install below {node.prefix}: it is mounted noexec" in refused.stderr
    assert "choose a prefix that is writable and not mounted noexec" in refused.stderr
    assert node.engine_file.read_text() == CONTAINERD_2


def test_undo_takes_the_agents_copies_beside_the_versions_too(node: Node) -> None:
    node.done()
    copies = node.prefix / "lib/vgpu/copies"
    (copies / "0123/1.0.0").mkdir(parents=True)
    (copies / "0123/1.0.0/libvgpu.so").touch()

    node.done("--undo")

    assert not node.prefix.exists()


@pytest.mark.parametrize("words", [(), ("--undo", "--force")])
def test_a_node_of_the_debian_package_is_left_to_it(node: Node, words: tuple[str, ...]) -> None:
    before = node.tree()

    refused = node.run(*words, beside=node.agent("/usr/bin/vgpu-node-agent"))

    assert refused.returncode == 1
    assert "a vgpu-node-agent of another installation runs on this node" in refused.stderr
    assert node.engine_file.read_text() == CONTAINERD_2
    assert not node.prefix.exists()
    assert {name for name in node.tree() if name not in before} == {
        "run/vgpu/node-install.lock",
        "var/agent/lock",
    }


def test_our_own_agent_is_in_nobodys_way(node: Node) -> None:
    done = node.run(beside=node.agent(f"{IMAGE_ROOT}/usr/bin/python3"))

    assert done.returncode == 0, done.stderr


def test_force_alone_is_wrong_usage(node: Node) -> None:
    assert node.run("--force").returncode == 2
