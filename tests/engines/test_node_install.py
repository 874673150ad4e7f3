# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl node-install` and a containerd that runs: it has the handler, and has it no more."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.runtime_shim.test_node_install import Node
from tests.testbed import REPOSITORY
from tests.testbed.engines.cri import CriStub

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("needs_root")]

# Of a version that no other test's containers have mounted.
VERSION = "9.9.9"

_CONFIG = """version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/c.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{folder}/none"
"""

# In the place of systemd's unit.
_RESTART = """#!/bin/sh
set -e
if read -r pid <"{folder}/pid"; then
	kill "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
fi 2>/dev/null
setsid {containerd} --config "{folder}/config.toml" >>"{folder}/log" 2>&1 </dev/null &
echo $! >"{folder}/pid"
until {ctr} --address "{folder}/c.sock" version >/dev/null 2>&1; do sleep 0.1; done
echo >>"{folder}/restarts"
"""


@dataclass(frozen=True)
class Engine:
    """A containerd of the test's own, and the script that restarts it."""

    folder: Path
    restart: Path

    @property
    def restarts(self) -> int:
        return len((self.folder / "restarts").read_text().splitlines())

    def handlers(self) -> set[str]:
        """Return the handlers by which the kubelet may ask for a pod."""
        with grpc.insecure_channel(f"unix:{self.folder}/c.sock") as channel:
            answer = CriStub(channel).call("Status", verbose=True)
        return set(json.loads(answer.info["config"])["containerd"]["runtimes"])


@pytest.fixture
def engine(scratch: Path) -> Iterator[Engine]:
    programs = {name: shutil.which(name) for name in ("containerd", "ctr")}
    assert all(programs.values()), "containerd is not installed: run `make test-engines`"
    (scratch / "config.toml").write_text(_CONFIG.format(folder=scratch))
    restart = scratch / "restart"
    restart.write_text(_RESTART.format(folder=scratch, **programs))
    restart.chmod(0o755)
    try:
        subprocess.run([restart], check=True, timeout=90)
        yield Engine(scratch, restart)
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((scratch / "pid").read_text()), signal.SIGKILL)


def test_containerd_has_the_handler_after_one_restart_and_not_after_undo(
    engine: Engine, tmp_path: Path
) -> None:
    node = Node(tmp_path)
    node.image(VERSION, "of a test")
    before = (engine.folder / "config.toml").read_bytes()

    def vgpuctl(*words: str) -> str:
        config = tmp_path / "agent.toml"
        config.write_text(
            f'mode = "kubernetes"\n[paths]\nrun_dir = "{tmp_path}/run"\n'
            f'state_dir = "{tmp_path}/state"\n'
        )
        done = subprocess.run(
            [
                *(sys.executable, "-m", "runtime_shim.cli", "--config", config, "node-install"),
                *("--source", tmp_path / "image", "--prefix", node.prefix),
                *("--engine-file", engine.folder / "config.toml"),
                *("--restart-command", str(engine.restart), *words),
                *("--record", tmp_path / "record/configure.json"),
            ],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": "proto"},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    at_first = engine.handlers()

    vgpuctl()
    vgpuctl()

    assert engine.handlers() == at_first | {"vgpu"}
    assert engine.restarts == 2  # the test's own, and one

    vgpuctl("--undo", "--force")  # other tests' containers may live

    assert engine.handlers() == at_first
    assert (engine.folder / "config.toml").read_bytes() == before
    assert not node.prefix.exists()
