# SPDX-License-Identifier: Apache-2.0
"""`make install`: staged files work, and a second time changes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime_shim import __version__
from runtime_shim.library import verify_library
from tests.testbed import REPOSITORY


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a DESTDIR with everything installed under /usr."""
    destdir = tmp_path_factory.mktemp("stage")
    install(destdir)
    return destdir


def install(destdir: Path) -> None:
    subprocess.run(
        ["scripts/install", str(destdir), "/usr", __version__],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHON": sys.executable},
    )


def contents(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return path → (inode, mtime, link target): what a changed file would differ in."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_ino,
            path.lstat().st_mtime_ns,
            os.readlink(path) if path.is_symlink() else "",
        )
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_a_second_install_changes_nothing(staged: Path) -> None:
    before = contents(staged)

    install(staged)

    assert contents(staged) == before


def test_an_operators_configuration_is_kept(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "etc/vgpu/agent.toml").write_text('mode = "local"\n# mine\n')

    install(tmp_path)

    assert "# mine" in (tmp_path / "etc/vgpu/agent.toml").read_text()


def test_the_library_lies_under_its_version_behind_one_link(staged: Path) -> None:
    folder = staged / "usr/lib/vgpu"

    assert os.readlink(folder / "current") == __version__
    assert (folder / "current/libvgpu.so").samefile(folder / __version__ / "libvgpu.so")


def test_digests_of_what_holds_containers_to_their_slices_are_recorded(staged: Path) -> None:
    folder = staged / "usr/lib/vgpu/current"
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {
        "libvgpu.so: OK",
        "libvgpu-arbiter.so: OK",
        "vgpu-probe: OK",
        "../../../bin/vgpu-container-runtime: OK",
    }
    assert verify_library(folder / "libvgpu.so").path.parent.name == __version__


def test_the_staged_launcher_needs_no_configuration(staged: Path) -> None:
    launcher = staged / "usr/bin/vgpu-container-runtime"
    done = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(("runc", "crun"))
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["vgpuctl", "vgpu-node-agent", "vgpu-scheduler-cache"])
def test_staged_commands_find_their_packages(staged: Path, tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    text = (staged / "usr/bin" / name).read_text()
    script.write_text(text.replace('"/usr/share', f'"{staged}/usr/share'))

    # -S: not even the checkout's .pth file helps; only third-party packages are added back.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run(
        [sys.executable, "-S", str(script), "--help"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": site},
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_units_name_the_installed_paths(staged: Path) -> None:
    units = list((staged / "usr/lib/systemd/system").iterdir())

    assert len(units) == 3
    for unit in units:
        assert "@PREFIX@" not in unit.read_text()
