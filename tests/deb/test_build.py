# SPDX-License-Identifier: Apache-2.0
"""The built packages: the same bytes from the same sources, and nothing that lintian minds."""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from runtime_shim.cli import main
from tests.testbed import REPOSITORY

pytestmark = [pytest.mark.deb, pytest.mark.timeout(900)]


def copy_of_sources(target: Path) -> Path:
    """Copy what git does not ignore, as it stands, with times; the environment is linked."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = REPOSITORY / name
        if name and (source.is_file() or source.is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    (target / ".venv").symlink_to(REPOSITORY / ".venv")
    return target


def build(tree: Path, **environment: str) -> dict[str, bytes]:
    """Build the packages in a copy; return name → content."""
    done = subprocess.run(
        ["make", "-s", "deb"],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        umask=0o077 if environment else 0o022,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: path.read_bytes() for path in (tree / "build/deb").glob("*.deb")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_sources(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def built(tree: Path) -> dict[str, bytes]:
    return build(tree)


def test_the_same_sources_give_the_same_bytes(
    tree: Path, built: dict[str, bytes], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "a-folder-whose-name-has-another-length"
    subprocess.run(["cp", "-a", str(tree), str(elsewhere)], check=True)
    shutil.rmtree(elsewhere / "build")

    again = build(elsewhere, TZ="Pacific/Auckland", LC_ALL="C.UTF-8")

    assert [name for name in sorted(built) if built[name] != again[name]] == []
    assert sorted(built) == sorted(again)


def test_both_architectures_have_programs_of_their_own(
    tree: Path, built: dict[str, bytes], tmp_path: Path
) -> None:
    machines: dict[str, dict[str, int]] = {}
    for path in tree.glob("build/deb/vgpu-runtime_*.deb"):
        architecture = path.stem.rpartition("_")[2]
        target = tmp_path / architecture
        subprocess.run(["dpkg", "-x", str(path), str(target)], check=True)
        installed = target / "usr/lib/vgpu/packaged"
        subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=installed, check=True)
        files = [each for each in installed.iterdir() if each.name != "SHA256SUMS"]
        programs = [target / "usr/bin/vgpu-container-runtime", *files]
        machines[architecture] = {
            each.name: int.from_bytes(each.read_bytes()[18:20], "little") for each in programs
        }

    # Source: System V ABI, e_machine of x86-64 and AArch64.
    assert set(machines["amd64"].values()) == {62}
    assert set(machines["arm64"].values()) == {183}
    assert machines["amd64"].keys() == machines["arm64"].keys()
    assert machines["amd64"].keys() >= {"vgpu-container-runtime", "libvgpu.so", "vgpu-probe"}


def test_no_file_is_in_both_packages(tree: Path, built: dict[str, bytes]) -> None:
    files: dict[str, set[str]] = {}
    for name in built:
        words = ["dpkg", "-c", str(tree / "build/deb" / name)]
        listed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        paths = (line.split(maxsplit=5)[5] for line in listed.splitlines())
        files.setdefault(name.partition("_")[0], set()).update(
            path for path in paths if not path.endswith("/")
        )

    assert files["vgpu-runtime"] & files["vgpu-scheduler-cache"] == set()


def test_the_bundled_binding_comes_with_its_licence(
    tree: Path, built: dict[str, bytes], tmp_path: Path
) -> None:
    package = next(tree.glob("build/deb/vgpu-runtime_*_amd64.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(tmp_path)], check=True)

    binding = (tmp_path / "usr/share/vgpu-runtime/pynvml.py").read_text()
    licence = (tmp_path / "usr/share/doc/vgpu-runtime/copyright").read_text()

    assert "NVIDIA Corporation" in binding
    assert "Files: pynvml.py\nCopyright: 2011-2025 NVIDIA Corporation\n" in licence
    assert "Redistributions in binary form must reproduce" in licence


def test_a_manual_page_has_every_command(
    tree: Path, built: dict[str, bytes], tmp_path: Path
) -> None:
    package = next(tree.glob("build/deb/vgpu-runtime_*_amd64.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(tmp_path)], check=True)
    page = gzip.decompress((tmp_path / "usr/share/man/man8/vgpuctl.8.gz").read_bytes()).decode()

    plain = page.replace(r"\-", "-")  # a hyphen that roff may not break a line at
    missing = [name for name in main.commands if f".SS {name}" not in plain]

    assert missing == []
    assert len(list((tmp_path / "usr/share/man/man8").iterdir())) == 3
