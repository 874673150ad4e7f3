# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from runtime_shim.errors import RefusedError
from runtime_shim.library import check_library
from tests.testbed import BUILD


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "1.0" / "libvgpu.so"
    path.parent.mkdir()
    shutil.copy(BUILD / "libvgpu.so", path)
    return path


def test_links_are_resolved_to_the_version(library: Path) -> None:
    current = library.parent.parent / "current"
    current.symlink_to("1.0")

    assert check_library(current / "libvgpu.so") == library


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


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
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
    check_library(library)  # what was found before does not count afterwards
    assert callable(spoil)
    spoil(library)

    with pytest.raises(RefusedError, match=reason):
        check_library(library)
