# SPDX-License-Identifier: Apache-2.0
"""A program of an image in the host's mount namespace: real namespaces, this machine's Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.host_namespace import IMAGE_ROOT, HostNamespaceError, invocation, run
from tests.testbed import REPOSITORY

# A root of its own, with a folder that the host has not; then it becomes what the test asks for.
_POD = r"""
set -e
root=$1 host=$2 search=$3; shift 3
mount --rbind / "$root"
mkdir -p "$root$root/volume"
mount -t tmpfs tmpfs "$root$root/volume"
cp "$root$root/look.py" "$root$root/volume/look.py"
cd "$root"
pivot_root . mnt
umount -l /mnt
export PYTHONPATH=$search:$root/volume LD_PRELOAD=
exec "$@"
"""

_LOOK = r"""
import json, os, sys
from pathlib import Path
import cffi
from runtime_shim import __version__, host_namespace
volume = Path(sys.argv[1])
os.symlink("made-by-the-program", volume.parent / "seen-by-the-host")
print(json.dumps({
    "namespace": os.readlink("/proc/self/ns/mnt"),
    "volume_by_its_path": (volume / "look.py").exists(),
    "volume_below_the_image": (host_namespace.IMAGE_ROOT / str(volume)[1:] / "look.py").exists(),
    "module": host_namespace.__file__,
    "library": cffi.__file__,
    "words": sys.argv[2:],
    "cwd": os.getcwd(),
    "command": Path("/proc/self/cmdline").read_bytes().decode().split("\0"),
    "loader_variables": sorted(name for name in os.environ if name.startswith("LD_")),
}))
"""

_START = """
import sys
from runtime_shim import host_namespace
host_namespace.PROGRAMS = {"vgpu-node-agent": "look"}
host_namespace.run("vgpu-node-agent", sys.argv[2:], host_pid=int(sys.argv[1]))
"""


@pytest.fixture
def seen(needs_root: None, tmp_path: Path) -> dict[str, Any]:
    """Return what a program saw that a "pod" has run in our own mount namespace."""
    (tmp_path / "look.py").write_text(_LOOK)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", _POD, "sh"),
            *(str(tmp_path), str(os.getpid()), f"{REPOSITORY}:{REPOSITORY}/proto"),
            *(sys.executable, "-c", _START, str(os.getpid()), f"{tmp_path}/volume", "--a", "b c"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "folder": tmp_path}


def test_it_sees_the_hosts_files_and_the_image_below_one_path(seen: dict[str, Any]) -> None:
    assert seen["namespace"] == os.readlink("/proc/self/ns/mnt")
    assert not seen["volume_by_its_path"]
    assert seen["volume_below_the_image"]
    assert os.readlink(seen["folder"] / "seen-by-the-host") == "made-by-the-program"


def test_it_runs_on_the_images_python_and_packages(seen: dict[str, Any]) -> None:
    assert Path(seen["module"]).is_relative_to(IMAGE_ROOT)
    assert Path(seen["library"]).is_relative_to(IMAGE_ROOT)
    assert seen["words"] == ["--a", "b c"]
    assert seen["cwd"] == "/"
    assert seen["loader_variables"] == []


def test_its_command_line_has_the_programs_name(seen: dict[str, Any]) -> None:
    # By which `vgpuctl status` knows that an agent runs.
    assert "vgpu-node-agent" in seen["command"]


def test_a_pod_without_the_hosts_processes_is_refused() -> None:
    with pytest.raises(HostNamespaceError, match="needs hostPID: true"):
        run("vgpuctl", [], host_pid=os.getpid())


def test_nothing_of_the_image_is_named_by_a_link_or_a_bare_path() -> None:
    call = invocation("vgpuctl", ["ps"])

    assert (
        call.loader == f"{IMAGE_ROOT}{os.path.realpath(call.loader.removeprefix(str(IMAGE_ROOT)))}"
    )
    folders = call.environment["PYTHONPATH"].split(":")
    assert folders
    assert all(Path(each).is_relative_to(IMAGE_ROOT) for each in folders)
    assert call.words[-3:] == ("-m", "runtime_shim.cli", "ps")
