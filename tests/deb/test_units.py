# SPDX-License-Identifier: Apache-2.0
"""The units, read against what the services do, and the words with which a fresh clone builds."""

import configparser
import os
import subprocess
from pathlib import Path

import pytest

from tests.testbed import REPOSITORY

UNITS = REPOSITORY / "deploy/systemd"
# Source: systemd.exec(5). Each gives a mount namespace or a device policy of its own.
_NAMESPACES = ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "Device", "Bind")


def section(unit: str, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / unit).read_text())
    return dict(parser[name])


def test_no_option_takes_from_the_agent_what_it_needs() -> None:
    options = section("vgpu-node-agent.service", "Service")

    # systemd answers ENOSYS to every openat2(2) for it, and then no container is created.
    # Source: systemd, src/shared/seccomp-util.c, seccomp_restrict_sxid.
    assert "RestrictSUIDSGID" not in options
    assert [name for name in options if name.startswith(_NAMESPACES)] == []
    # nvidia-modprobe runs below the agent when a card is used for the first time.
    assert "@module" not in options["SystemCallFilter"]
    # cffi and the driver make code.
    assert "MemoryDenyWriteExecute" not in options


@pytest.mark.parametrize("unit", ["vgpu-node-agent.service", "vgpu-scheduler-cache.service"])
def test_a_service_is_never_given_up(unit: str) -> None:
    assert section(unit, "Unit")["StartLimitIntervalSec"] == "0"
    assert section(unit, "Service")["Restart"] == "always"


def test_make_deb_sets_up_a_fresh_clone_first(tmp_path: Path) -> None:
    words = ["make", "-n", "deb", f"BUILD={tmp_path}/build", f"VENV={tmp_path}/venv"]
    plan = subprocess.run(
        words,
        cwd=REPOSITORY,
        env={name: value for name, value in os.environ.items() if name != "MAKEFLAGS"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert 0 <= plan.find("scripts/setup base") < plan.find(f"{tmp_path}/venv/bin/python")


def test_what_the_earlier_agent_removes_during_an_upgrade_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged/libvgpu.so").write_text("new")
    script = (REPOSITORY / "packaging/deb/debian/vgpu-runtime.postinst").read_text()
    # The agent restarts where debhelper's part is; until then it may remove what no link names.
    for word, instead in (
        ("/usr/lib/vgpu", str(tmp_path)),
        ("#VERSION#", "2.0"),
        ("#DEBHELPER#", f"rm -r {tmp_path}/2.0"),
    ):
        assert word in script
        script = script.replace(word, instead)

    subprocess.run(["sh", "-c", script, "postinst", "configure", "1.0"], check=True)

    assert (tmp_path / "current/libvgpu.so").read_text() == "new"
