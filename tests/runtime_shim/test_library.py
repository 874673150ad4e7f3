# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime_shim.errors import RefusedError
from runtime_shim.library import DIGESTS, VerifiedCopies, digest_of, verify_library
from tests.testbed import BUILD
from tests.testbed.installation import record_digests

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


@contextmanager
def mounted(folder: Path, option: str) -> Iterator[None]:
    """Mount a small file system on a folder."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "1.0" / "libvgpu.so"
    path.parent.mkdir()
    shutil.copy(BUILD / "libvgpu.so", path)
    shutil.copy(BUILD / "vgpu-probe", path.parent)
    record_digests(path.parent)
    return path


def test_links_are_resolved_to_the_version(library: Path) -> None:
    current = library.parent.parent / "current"
    current.symlink_to("1.0")

    assert verify_library(current / "libvgpu.so").path == library


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _remove(path: Path) -> None:
    path.unlink()


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _text(path: Path) -> None:
    path.write_text("not a library\n" * 10)


def _patched(path: Path, offset: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)


def _other_class(path: Path) -> None:
    _patched(path, 4, b"\x01")


def _other_machine(path: Path) -> None:
    _patched(path, 18, b"\x16\x00")


def _program(path: Path) -> None:
    _patched(path, 16, b"\x02\x00")


def _everybody_writes(path: Path) -> None:
    path.chmod(0o666)


def _somebody_owns(path: Path) -> None:
    os.chown(path, 1000, 0)


def _nobody_reads(path: Path) -> None:
    path.chmod(0o600)


def _zeroed(path: Path) -> None:
    _patched(path, 64, bytes(4096 - 64))


def _one_bit(path: Path) -> None:
    _patched(path, 20000, bytes([path.read_bytes()[20000] ^ 1]))


def _other_library(path: Path) -> None:
    path.write_bytes(Path("/lib/x86_64-linux-gnu/libm.so.6").read_bytes())


def _other_library_recorded(path: Path) -> None:
    _other_library(path)
    record_digests(path.parent)


def _no_digests(path: Path) -> None:
    path.with_name(DIGESTS).unlink()


def _not_listed(path: Path) -> None:
    path.with_name(DIGESTS).write_text(f"{digest_of(path)}  other.so\n")


def _everybody_writes_digests(path: Path) -> None:
    path.with_name(DIGESTS).chmod(0o666)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_zeroed, "is not the file that was installed"),
        (_one_bit, "is not the file that was installed"),
        (_other_library, "is not the file that was installed"),
        (_other_library_recorded, "does not export cuGetProcAddress"),
        (_no_digests, "no digest was recorded"),
        (_not_listed, "does not list it"),
        (_everybody_writes_digests, "SHA256SUMS can be changed by others than root"),
        (_remove, "cannot be read"),
        (_loop, "cannot be read"),
        (_empty, "is empty"),
        (_make_folder, "cannot be read|not a regular file"),
        (_text, "is not a 64-bit ELF file"),
        (_other_class, "is not a 64-bit ELF file"),
        (_other_machine, "is not a shared library for"),
        (_program, "is not a shared library for"),
        (_cut, "is cut off"),
        (_everybody_writes, "can be changed by others than root"),
        (_somebody_owns, "can be changed by others than root"),
        (_nobody_reads, "cannot be read by every user"),
    ],
)
def test_what_a_container_could_not_load_is_refused(
    library: Path, spoil: object, reason: str
) -> None:
    verify_library(library)  # what was found before does not count afterwards
    assert callable(spoil)
    spoil(library)

    with pytest.raises(RefusedError, match=reason):
        verify_library(library)


def test_a_package_that_dpkg_has_only_unpacked_is_named(tmp_path: Path) -> None:
    (tmp_path / "packaged").mkdir()
    library = tmp_path / "current/libvgpu.so"

    with pytest.raises(RefusedError, match="cannot be read; .* dpkg --configure -a"):
        verify_library(library)
    # Configured once, it has lost the file for another reason.
    library.parent.mkdir()
    with pytest.raises(RefusedError, match="cannot be read; install the vgpu library again"):
        verify_library(library)


def test_containers_get_a_copy_of_what_was_verified(library: Path, tmp_path: Path) -> None:
    copies = VerifiedCopies(library, tmp_path / "state")
    content = library.read_bytes()

    copy = copies.library()
    _zeroed(library)

    assert copy.read_bytes() == content
    assert copy.parent.name == "1.0"
    assert copy.stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "state/library").stat().st_mode & 0o777 == 0o700
    with pytest.raises(RefusedError, match="is not the file that was installed"):
        copies.library()


def test_a_copy_is_made_once_and_again_if_it_was_changed(library: Path, tmp_path: Path) -> None:
    copies = VerifiedCopies(library, tmp_path / "state")
    copy = copies.library()
    inode = copy.stat().st_ino
    assert copies.library() == copy
    assert VerifiedCopies(library, tmp_path / "state").library() == copy
    assert copy.stat().st_ino == inode

    _one_bit(copy)

    assert copies.library().read_bytes() == library.read_bytes()


def test_a_copy_that_was_changed_while_no_agent_ran_is_made_again(
    library: Path, tmp_path: Path
) -> None:
    copy = VerifiedCopies(library, tmp_path / "state").library()
    _one_bit(copy)

    assert VerifiedCopies(library, tmp_path / "state").library() == copy
    assert copy.read_bytes() == library.read_bytes()


def test_two_builds_of_one_version_have_a_copy_each(library: Path, tmp_path: Path) -> None:
    copies = VerifiedCopies(library, tmp_path / "state")
    first = copies.library()
    content = first.read_bytes()
    with library.open("ab") as file:
        file.write(b"\0")
    record_digests(library.parent)

    second = copies.library()

    assert first.read_bytes() == content
    assert second.read_bytes() == library.read_bytes()
    assert second.parent.name == first.parent.name == "1.0"


def test_what_the_agent_runs_is_verified_too(library: Path, tmp_path: Path) -> None:
    copies = VerifiedCopies(library, tmp_path / "state")
    probe = library.with_name("vgpu-probe")

    assert copies.beside("vgpu-probe").read_bytes() == probe.read_bytes()
    shutil.copy("/bin/true", probe)
    with pytest.raises(RefusedError, match="vgpu-probe is not the file that was installed"):
        copies.beside("vgpu-probe")


@pytest.fixture
def current(library: Path) -> Path:
    """Return the library as an installation names it."""
    link = library.parent.parent / "lib/vgpu/current"
    shutil.copytree(library.parent, link.with_name("1.0"))
    link.symlink_to("1.0")
    return link / library.name


@needs_mounts
def test_copies_lie_beside_the_library_where_the_state_folder_is_noexec(
    current: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with mounted(state, "noexec"):
        copy = VerifiedCopies(current, state).library()

        assert list(state.iterdir()) == []
    assert copy.read_bytes() == current.read_bytes()
    folder = tmp_path / "lib/vgpu/copies"
    assert copy.parents[2] == folder
    assert folder.stat().st_mode & 0o777 == 0o700


@needs_mounts
@pytest.mark.parametrize(
    ("option", "reason"), [("noexec", "is mounted noexec"), ("ro", "is mounted read-only")]
)
def test_a_host_that_allows_copies_nowhere_is_refused(
    current: Path, tmp_path: Path, option: str, reason: str
) -> None:
    state = tmp_path / "state"
    versions = current.parent.parent
    with (
        mounted(state, "noexec"),
        mounted(versions / "copies", option),
        pytest.raises(RefusedError) as refused,
    ):
        VerifiedCopies(current, state).library()

    assert f"{state}/library is mounted noexec and {versions}/copies {reason}" in str(refused.value)
    assert "set paths.state_dir to a folder elsewhere" in refused.value.remedy


@needs_mounts
def test_no_folder_beside_a_library_that_lies_alone_is_used(library: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        mounted(state, "noexec"),
        pytest.raises(RefusedError, match="state/library is mounted noexec; mount"),
    ):
        VerifiedCopies(library, state).library()
