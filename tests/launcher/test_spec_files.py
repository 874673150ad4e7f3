# SPDX-License-Identifier: Apache-2.0
"""Odd forms of config.json."""

import os
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, refusal
from tests.launcher.fake_agent import LOW_LEVEL, FakeAgent

MANAGED = '{"process":{"env":["VGPU_MEMORY=1Gi"]}}'


def test_a_symbolic_link_is_followed(launcher: Launcher, scratch: Path) -> None:
    (scratch / "elsewhere.json").write_text(MANAGED)
    (launcher.bundle / "config.json").symlink_to("../elsewhere.json")

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.create()

    assert len(agent.requests) == 1


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_no_regular_file_is_refused(launcher: Launcher, kind: str) -> None:
    path = launcher.bundle / "config.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")

    text = refusal(launcher.create())

    assert "its config.json is not a regular file; write" in text
    assert not launcher.low_level.ran


@pytest.mark.parametrize("target", ["config.json", "missing"], ids=["loop", "dangling"])
def test_a_link_to_nothing_passes(launcher: Launcher, target: str) -> None:
    (launcher.bundle / "config.json").symlink_to(target)

    launcher.create()

    assert launcher.low_level.ran


def test_an_empty_file_passes(launcher: Launcher) -> None:
    (launcher.bundle / "config.json").touch()

    launcher.create()

    assert launcher.low_level.ran


@pytest.mark.parametrize("size", [4095, 4096, 4097, 10 << 20])
def test_a_mark_at_the_very_end_is_found(launcher: Launcher, size: int) -> None:
    mark = '"VGPU_MEMORY='
    (launcher.bundle / "config.json").write_text(" " * (size - len(mark)) + mark)

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.create()

    assert len(agent.requests) == 1


@pytest.mark.parametrize("option", ["-f", "--config"])
def test_another_file_that_asks_for_a_gpu_is_refused(
    launcher: Launcher, scratch: Path, option: str
) -> None:
    launcher.write_spec()
    (scratch / "other.json").write_text(MANAGED)

    text = refusal(
        launcher.run("run", option, "other.json", "-b", str(launcher.bundle), "c1", cwd=scratch)
    )

    assert "it asks for a GPU in a file given by --config; name the file config.json" in text


def test_another_file_without_marks_passes(launcher: Launcher, scratch: Path) -> None:
    (launcher.bundle / "config.json").write_text(MANAGED)
    (scratch / "other.json").write_text("{}")

    launcher.run("run", "-f", "other.json", "-b", str(launcher.bundle), "c1", cwd=scratch)

    assert launcher.low_level.ran
