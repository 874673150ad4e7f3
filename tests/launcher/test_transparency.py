# SPDX-License-Identifier: Apache-2.0
"""Every command of runc and crun behind the launcher, on a container that is named like one."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.launcher.conftest import LAUNCHERS, Launcher
from tests.launcher.fake_agent import LOW_LEVEL, FakeAgent
from tests.testbed.node import cgroup_words
from tests.testbed.oci import Bundle, OciRuntime
from tests.testbed.rootfs import build_rootfs

# runc 1.0 to 1.3 and crun 1.8 to 1.28, `create`, `run` and `restore` apart.
OTHER_COMMANDS = [
    *("checkpoint", "delete", "events", "exec", "features", "help", "init", "kill", "list"),
    *("mounts", "pause", "ps", "resume", "spec", "start", "state", "update"),
]
NAMES = ["create", "run", "restore"]
NAME = "create"  # of the container


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", OTHER_COMMANDS)
def test_what_is_named_like_a_create_is_none(launcher: Launcher, command: str, name: str) -> None:
    launcher.write_spec(["VGPU_MEMORY=1Gi"])
    lines = [
        [command, name],
        [command, "--", name],
        ["--root", name, command, name, name],
        [f"--root={name}", "--log", name, "--debug", command, "--flag", name, "--bundle", "."],
    ]

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        for words in lines:
            done = launcher.run(*words, cwd=launcher.bundle)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
            assert launcher.low_level.argv[1:] == words

    assert agent.requests == []


@pytest.mark.parametrize("name", [*NAMES, "state", "-x", "exec"])
@pytest.mark.parametrize("command", NAMES)
def test_a_create_of_what_is_named_like_a_command_is_asked_about(
    launcher: Launcher, command: str, name: str
) -> None:
    launcher.write_spec(["VGPU_MEMORY=1Gi"])
    words = ["--log", "state", command, "--pid-file", "kill", "--", name]

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.run(*words, cwd=launcher.bundle)

    assert launcher.low_level.argv[1:] == words
    assert [(r.fields["command"], r.fields["id"]) for r in agent.requests] == [(command, name)]


class Pair:
    """The same runtime with and without the launcher, on one root."""

    def __init__(self, directory: Path, kind: str) -> None:
        found = shutil.which(kind, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
        assert found is not None, f"{kind} is not installed: run `make setup`"
        (directory / "launcher").mkdir()
        self.launcher = Launcher(directory / "launcher", LAUNCHERS["release"])
        self.launcher.configure(low_level_runtime=found)
        options, prefix = cgroup_words(kind)
        self.ours, self.plain = (
            OciRuntime(binary, directory / "root", options=options, prefix=prefix)
            for binary in (self.launcher.path, Path(found))
        )
        self._rootfs = build_rootfs(directory / "rootfs", loader="none")
        self._bundles = directory

    def bundle(self, name: str, args: Sequence[str]) -> Bundle:
        """Return a bundle without a mark of a GPU."""
        return Bundle.create(self._bundles / f"bundle-{name}", self._rootfs, args, {})


@pytest.fixture(params=["runc", "crun"])
def pair(request: pytest.FixtureRequest, scratch: Path, needs_root: None) -> Iterator[Pair]:
    """Yield a real runtime with a container that runs, named `create`."""
    pair = Pair(scratch, request.param)
    pair.ours.start_detached(pair.bundle(NAME, ["/bin/sleep", "600"]), NAME)
    yield pair
    pair.plain.delete(NAME)


def run(runtime: OciRuntime, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Return exit code, stdout and stderr, without what differs from call to call."""
    done = subprocess.run(runtime.words(*words), input=stdin, capture_output=True, timeout=60)
    stdout, stderr = (re.sub(rb"\d+", b"N", out) for out in (done.stdout, done.stderr))
    return done.returncode, stdout, stderr


SAME = [
    ["state", NAME],
    ["list"],
    ["list", "--quiet"],
    ["ps", "--format", "json", NAME],
    ["features"],
    ["events", "--stats", NAME],
    ["exec", NAME, "/bin/sh", "-c", "echo out; echo err >&2; exit 7"],
    ["exec", "--cwd", "/tmp", "--env", "A=run", NAME, "/bin/sh", "-c", "pwd; echo $A"],
    ["exec", NAME, "/bin/sh", "-c", "kill -9 $$"],
    ["exec", NAME, "/nowhere"],
    ["exec", "run", "/bin/true"],
    ["checkpoint", "--image-path", "/nowhere/restore", "run"],
    ["restore", "--image-path", "/nowhere/restore", "--bundle", "/nowhere", "run"],
    ["pause", "run"],
    ["resume", "run"],
    ["start", NAME],
    ["kill", NAME, "NOSUCH"],
    ["delete", NAME],
    ["update", "--memory", "none", NAME],
    ["create", "--bundle", "/nowhere", "run"],
    ["nonsense", NAME],
    ["--version"],
]


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_a_command_has_the_same_effect(pair: Pair, words: list[str]) -> None:
    assert run(pair.ours, *words) == run(pair.plain, *words)


def test_stdin_reaches_exec_sessions_and_resources(pair: Pair) -> None:
    code, stdout, _ = run(pair.ours, "exec", NAME, "/bin/cat", stdin=b"create\0\xff\n")

    assert (code, stdout) == (0, b"create\0\xff\n")
    update = ["update", "--resources", "-", NAME]
    assert run(pair.ours, *update, stdin=b"{}") == run(pair.plain, *update, stdin=b"{}")


def test_a_descriptor_is_handed_on_into_the_container(pair: Pair) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"handed\n")
    os.close(write_end)
    bundle = pair.bundle("run", ["/bin/sh", "-c", "cat <&3; exit 9"])
    words = ["run", "--preserve-fds", "1", "--bundle", str(bundle.directory), "run"]
    # The first that is preserved is 3, whatever its number is here.
    script = f'exec "$@" 3<&{read_end} {read_end}<&-' if read_end != 3 else 'exec "$@"'

    done = subprocess.run(
        ["bash", "-c", script, "bash", *pair.ours.words(*words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        pass_fds=[read_end],
    )
    os.close(read_end)

    assert (done.returncode, done.stdout) == (9, b"handed\n"), done.stderr
