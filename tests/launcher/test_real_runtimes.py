# SPDX-License-Identifier: Apache-2.0
"""Behind the launcher, runc and crun are what they are without it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher
from tests.testbed.node import cgroup_words
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import build_rootfs

COMMANDS = [
    ["--version"],
    ["features"],
    ["--help"],
    ["create", "--help"],
    [],
    ["state", "nobody"],
    ["--root", "/nowhere/create", "kill", "create", "9"],
    ["create"],
    ["nonsense", "create"],
    ["exec", "nobody", "git", "create"],
    ["--log-format", "json", "start", "nobody"],
]


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest) -> Path:
    """Return a real runtime."""
    found = shutil.which(request.param, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    assert found is not None, f"{request.param} is not installed: run `make setup`"
    return Path(found)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_same_words_have_the_same_effect(
    launcher: Launcher, runtime: Path, words: list[str]
) -> None:
    launcher.configure(low_level_runtime=runtime)
    plain = subprocess.run(
        [runtime, *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=30
    )

    done = launcher.run(*words)

    assert done.returncode == plain.returncode
    assert done.stdout == plain.stdout
    assert _without_times(done.stderr) == _without_times(plain.stderr)


def _without_times(log: bytes) -> bytes:
    return re.sub(rb"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)", b"TIME", log)


def test_a_container_lives_and_ends(
    launcher: Launcher, runtime: Path, scratch: Path, needs_root: None
) -> None:
    launcher.configure(low_level_runtime=runtime)
    options, prefix = cgroup_words(runtime.name)
    engine = OciRuntime(launcher.path, scratch / "root", options=options, prefix=prefix)
    rootfs = build_rootfs(scratch / "rootfs", loader="none")
    bundle = Bundle.create(scratch / "b", rootfs, ["/bin/sleep", "100"], {})
    log = scratch / "log.json"

    try:
        engine.start_detached(bundle, "c1", log=log)
        assert engine.state("c1")["status"] == "running"
        assert engine.exec("c1", "/bin/echo", "create") == "create\n"
        engine.command("kill", "c1", "KILL")
    finally:
        engine.delete("c1")

    with pytest.raises(RuntimeFailedError, match="c1"):
        engine.state("c1")


def test_an_error_of_the_runtime_stays_its_own(
    launcher: Launcher, scratch: Path, needs_root: None
) -> None:
    launcher.configure(low_level_runtime=shutil.which("runc", path="/usr/sbin:/usr/bin"))
    engine = OciRuntime(launcher.path, scratch / "root")
    rootfs = build_rootfs(scratch / "rootfs", loader="none")
    bundle = Bundle.create(scratch / "b", rootfs, ["/nowhere"], {})
    log = scratch / "log.json"

    with pytest.raises(RuntimeFailedError, match="/nowhere"):
        engine.start_detached(bundle, "c1", log=log)

    assert "/nowhere" in json.loads(log.read_text().splitlines()[-1])["msg"]
    engine.delete("c1")
