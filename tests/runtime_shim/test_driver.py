# SPDX-License-Identifier: Apache-2.0
"""Finding the driver on a host (a scratch tree with real device nodes) and giving a part of it."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from runtime_shim import config
from runtime_shim.devices import DriverFiles, driver_edits
from runtime_shim.driver import (
    DriverCache,
    character_majors,
    discover_driver,
    granted_majors,
    mig_capability_minors,
)
from runtime_shim.elf import MACHINES, SharedLibrary, read_shared_library
from runtime_shim.errors import RefusedError
from runtime_shim.rootfs import RootfsFacts
from runtime_shim.spec import DeviceNode

HERE = MACHINES[os.uname().machine]
VERSION = "580.159.03"
LIB = "usr/lib/x86_64-linux-gnu"

DEVICES = """Character devices:
  1 mem
195 nvidia-frontend
234 nvidia-uvm
511 nvidia-caps
240 gdrdrv

Block devices:
  8 sd
  9 nvidia-blk
"""

FACTS = RootfsFacts(
    loader="/lib64/ld-linux-x86-64.so.2",
    library_dir="/usr/lib64",
    preload=b"",
    preload_objection=None,
    read_only_filesystem=False,
)


def shared_library(soname: str, machine: int = HERE) -> bytes:
    """Return the smallest library whose headers say this."""
    strings = b"\0" + soname.encode() + b"\0"
    at_dynamic = 64 + 2 * 56
    at_strings = at_dynamic + 3 * 16
    base = 0x1000
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 4096, 4096, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, at_dynamic, base + at_dynamic, 0, 48, 48, 8)
    table = struct.pack("<qQqQqQ", 5, base + at_strings, 14 if soname else 21, 1, 0, 0)
    return ident + header + load + dynamic + table + strings


@pytest.fixture
def root(tmp_path: Path, needs_root: None) -> Path:
    """Return the tree of a host with two cards, MIG nodes and a driver of two versions."""
    for folder in ("dev/nvidia-caps", "proc/driver/nvidia", LIB, "usr/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(DEVICES)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Tue\nGCC version: 12.2.0\n"
    )
    for name, major, minor in (
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", 234, 0),
        ("nvidia-uvm-tools", 234, 1),
        ("nvidia-caps/nvidia-cap1", 511, 1),
        ("nvidia-caps/nvidia-cap30", 511, 30),
        ("null", 1, 3),
    ):
        os.mknod(tmp_path / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (tmp_path / "dev" / name).chmod(0o666)
    (tmp_path / "dev/nvidia9").touch()  # no device
    for stem, soname in (
        ("libcuda", "libcuda.so.1"),
        ("libnvidia-ml", "libnvidia-ml.so.1"),
        ("libnvidia-nvvm", "libnvidia-nvvm.so.4"),
        ("libnvidia-gpucomp", f"libnvidia-gpucomp.so.{VERSION}"),
        ("libGLX_nvidia", "libGLX_nvidia.so.0"),
        ("libcudart", "libcudart.so.12"),
    ):
        for version in (VERSION, "550.54.14"):
            (tmp_path / LIB / f"{stem}.so.{version}").write_bytes(shared_library(soname))
        if not (tmp_path / LIB / soname).exists():
            (tmp_path / LIB / soname).symlink_to(f"{stem}.so.{VERSION}")
    (tmp_path / "usr/bin/nvidia-smi").write_bytes(b"\x7fELF")
    (tmp_path / "usr/bin/nvidia-smi").chmod(0o755)
    return tmp_path


def paths(files: DriverFiles) -> dict[str, str]:
    return {library.name: os.path.basename(library.path) for library in files.libraries}


def test_the_driver_is_found_as_one_version(root: Path) -> None:
    files = discover_driver(config.Driver(root=root))

    assert files.version == VERSION
    assert paths(files) == {
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        "libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{VERSION}",
        f"libnvidia-gpucomp.so.{VERSION}": f"libnvidia-gpucomp.so.{VERSION}",
        "libGLX_nvidia.so.0": f"libGLX_nvidia.so.{VERSION}",
    }
    assert [program.name for program in files.programs] == ["nvidia-smi"]
    assert files.cards == {
        0: DeviceNode(path="/dev/nvidia0", major=195, minor=0),
        1: DeviceNode(path="/dev/nvidia1", major=195, minor=1),
    }
    assert sorted(files.mig_capabilities) == [1, 30]


def test_a_node_that_the_host_lacks_is_not_made_up(root: Path) -> None:
    """In a user namespace a runtime binds the host's node, and fails without one."""
    for name in ("nvidia-uvm-tools", "nvidia-modeset"):
        (root / "dev" / name).unlink()

    files = discover_driver(config.Driver(root=root))
    edits = driver_edits(files, [0], FACTS, ("compute", "graphics"))

    expected = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert [node.path for node in edits.devices] == expected


def test_without_the_node_of_unified_memory_no_cuda_program_is_started(root: Path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    files = discover_driver(config.Driver(root=root))

    with pytest.raises(RefusedError, match="no /dev/nvidia-uvm, .*nvidia-modprobe -u -c=0"):
        driver_edits(files, [0], FACTS, ("compute",))
    assert driver_edits(files, [0], FACTS, ("utility",)).devices


def test_a_configured_folder_is_the_only_one(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "libcuda.so.1").write_bytes(shared_library("libcuda.so.1"))

    files = discover_driver(config.Driver(root=root, library_dirs=(folder,)))

    assert paths(files) == {"libcuda.so.1": "libcuda.so.1"}


def test_a_library_of_another_machine_is_not_taken(root: Path) -> None:
    (root / LIB / f"libcuda.so.{VERSION}").write_bytes(shared_library("libcuda.so.1", 3))

    assert paths(discover_driver(config.Driver(root=root)))["libcuda.so.1"] != (
        f"libcuda.so.{VERSION}"
    )


def test_a_host_without_a_driver_has_nothing_to_give(tmp_path: Path) -> None:
    files = discover_driver(config.Driver(root=tmp_path))

    assert (files.version, files.kernel_module) == ("", False)
    assert not any((files.cards, files.controls, files.libraries, files.programs))


def test_a_new_driver_is_noticed(root: Path) -> None:
    cache = DriverCache(config.Driver(root=root))
    before = cache.files()

    assert cache.files() is before
    (root / LIB / "libnvidia-opencl.so.1").write_bytes(shared_library("libnvidia-opencl.so.1"))
    os.mknod(root / "dev/nvidia2", stat.S_IFCHR | 0o666, os.makedev(195, 2))

    assert "libnvidia-opencl.so.1" in paths(cache.files())
    assert sorted(cache.files().cards) == [0, 1, 2]


def test_majors_are_those_of_the_nvidia_modules(root: Path) -> None:
    assert granted_majors(root / "proc/devices") == {195, 234, 511, 240}
    assert granted_majors(root / "absent") == {195}
    assert "sd" not in character_majors(root / "proc/devices")


def test_mig_nodes_of_an_instance_are_found_in_proc(tmp_path: Path) -> None:
    instance = tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi3"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 30\nDeviceFileMode: 292\n")
    (instance / "ci0/access").write_text("DeviceFileMinor: 31\nDeviceFileMode: 292\n")

    assert mig_capability_minors(tmp_path, 0, 3, 0) == [30, 31]
    assert mig_capability_minors(tmp_path, 1, 3, 0) == []


def test_a_container_gets_its_cards_and_the_parts_of_its_capabilities(root: Path) -> None:
    files = discover_driver(config.Driver(root=root))

    edits = driver_edits(files, [1, 1], FACTS, ("compute", "utility"))

    assert [node.path for node in edits.devices] == [
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert [mount.destination for mount in edits.mounts] == [
        "/usr/lib64/libnvidia-ml.so.1",
        "/usr/lib64/libcuda.so.1",
        "/usr/lib64/libcuda.so",
        f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}",
        "/usr/lib64/libnvidia-nvvm.so.4",
        "/usr/bin/nvidia-smi",
    ]
    assert all("ro" in mount.options for mount in edits.mounts)
    assert edits.env == {"TRITON_LIBCUDA_PATH": "/usr/lib64"}
    assert driver_edits(files, [1], FACTS, ("utility",)).env == {}


def test_graphics_is_given_when_it_is_allowed(root: Path) -> None:
    edits = driver_edits(discover_driver(config.Driver(root=root)), [0], FACTS, ("graphics",))

    assert [node.path for node in edits.devices] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-modeset",
    ]
    assert [mount.destination for mount in edits.mounts] == ["/usr/lib64/libGLX_nvidia.so.0"]


def test_a_mig_instance_gets_its_two_capability_nodes(root: Path) -> None:
    files = discover_driver(config.Driver(root=root))

    edits = driver_edits(files, [0], FACTS, ("utility",), mig_capabilities=[30])

    assert "/dev/nvidia-caps/nvidia-cap30" in [node.path for node in edits.devices]


@pytest.mark.parametrize(
    ("minors", "mig_capabilities", "message"),
    [
        ([7], [], "the host has no /dev/nvidia7 for a card of its slice"),
        ([0], [99], "no /dev/nvidia-caps/nvidia-cap99"),
    ],
)
def test_a_missing_node_is_refused(
    root: Path, minors: list[int], mig_capabilities: list[int], message: str
) -> None:
    files = discover_driver(config.Driver(root=root))

    with pytest.raises(RefusedError, match=message):
        driver_edits(files, minors, FACTS, ("utility",), mig_capabilities=mig_capabilities)


def test_a_driver_without_a_kernel_part_has_no_nodes_to_give() -> None:
    files = DriverFiles(version="", kernel_module=False)

    assert driver_edits(files, [0], FACTS, ("compute",)).devices == []


def test_a_read_only_file_system_cannot_take_the_driver(root: Path) -> None:
    files = discover_driver(config.Driver(root=root))

    with pytest.raises(RefusedError, match="lies on a read-only file system"):
        driver_edits(files, [0], replace(FACTS, read_only_filesystem=True), ("compute",))


def test_a_root_without_a_library_folder_gets_no_library(root: Path) -> None:
    files = discover_driver(config.Driver(root=root))

    edits = driver_edits(files, [0], replace(FACTS, library_dir=""), ("compute",))

    assert edits.mounts == []
    assert len(edits.devices) == 4


def test_real_libraries_are_read() -> None:
    with open("/proc/self/maps") as maps:
        libc = next(line.split()[-1] for line in maps if "/libc.so.6" in line)

    assert read_shared_library(Path(libc)) == SharedLibrary(machine=HERE, soname="libc.so.6")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF\x02\x01",
        b"\x7fELF\x01\x01" + b"\0" * 90,
        b"INPUT(-lcuda)",
        shared_library("x.so")[:130],
        shared_library("x.so")[:190],
    ],
)
def test_what_is_no_library_of_this_kind_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)

    assert read_shared_library(tmp_path / "x") is None


def test_a_library_may_have_no_soname(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(shared_library(""))

    assert read_shared_library(tmp_path / "x") == SharedLibrary(machine=HERE, soname="")
    assert read_shared_library(tmp_path) is None
