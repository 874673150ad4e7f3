# SPDX-License-Identifier: Apache-2.0
"""Finds the NVIDIA driver on the host: device nodes, libraries, programs, majors. Only reads."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from runtime_shim import config
from runtime_shim.devices import LIBRARIES, PROGRAMS, DriverFile, DriverFiles
from runtime_shim.elf import MACHINES, read_shared_library
from runtime_shim.spec import DeviceNode
from runtime_shim.strip import NVIDIA_MAJOR

# Where distributions and NVIDIA's installer put the driver's libraries, below the driver's root.
_USUAL_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib",
)
_USUAL_PROGRAM_FOLDERS = ("usr/bin", "usr/local/nvidia/bin", "usr/local/bin", "opt/bin")

_UVM_MODULE = "nvidia-uvm"
_NODE_FOLDERS = ("dev", "dev/nvidia-caps")
_CARD_NODE = re.compile(r"nvidia([0-9]+)")
_MIG_NODE = re.compile(r"nvidia-cap([0-9]+)")
_VERSION = re.compile(r"\b([0-9]{3,4}\.[0-9]+(?:\.[0-9]+)?)\b")
_LDCONFIG_LINE = re.compile(r"\s(?:libcuda|libnvidia-ml)\.so\.1 \([^)]*\) => (/\S+)")
_MAJOR = re.compile(r"^ *([0-9]+) (nvidia\S*|gdrdrv)$", re.MULTILINE)
_MIG_MINOR = re.compile(r"^DeviceFileMinor:\s*([0-9]+)", re.MULTILINE)


class DriverCache:
    """The driver as it was found last; looks anew when its folders or its version have changed."""

    def __init__(self, where: config.Driver) -> None:
        self._where = where
        self._stamp: object = None
        self._files = DriverFiles(version="")

    def files(self) -> DriverFiles:
        """Return what the driver consists of now. Blocks for a few stat calls, or a search."""
        root = self._where.root
        folders = [root / "etc/ld.so.cache", *self._where.library_dirs]
        folders += [root / folder for folder in _USUAL_FOLDERS]
        nodes = [name for folder in _NODE_FOLDERS for name in _node_names(root / folder)]
        stamp = (_kernel_version(root), nodes, [_mtime_ns(folder) for folder in folders])
        if stamp != self._stamp:
            self._files = discover_driver(self._where)
            self._stamp = stamp
        return self._files


def discover_driver(where: config.Driver) -> DriverFiles:
    """Search the host for its driver; what is missing is left out, never an error."""
    root = where.root
    folders = _library_folders(where)
    version = _kernel_version(root) or _version_of_files(folders)
    majors = character_majors(root / "proc/devices")
    nodes = {node.path: node for node in _nodes(root)}
    cards = _numbered(nodes, _CARD_NODE)
    mig_capabilities = _numbered(nodes, _MIG_NODE)
    numbered = {node.path for node in (*cards.values(), *mig_capabilities.values())}
    return DriverFiles(
        version=version,
        cards=cards,
        mig_capabilities=mig_capabilities,
        controls={path: node for path, node in nodes.items() if path not in numbered},
        libraries=list(_libraries(folders, version)),
        programs=list(_programs(root, folders)),
        kernel_module=bool(nodes or majors),
        unified_memory=_UVM_MODULE in majors,
    )


def granted_majors(proc_devices: Path = Path("/proc/devices")) -> frozenset[int]:
    """Return every character major whose nodes only vgpu grants: those of NVIDIA's modules.

    All but the first are dynamic, so another boot may give them other numbers.
    """
    majors = character_majors(proc_devices)
    return frozenset({NVIDIA_MAJOR, *majors.values()})


def character_majors(proc_devices: Path) -> dict[str, int]:
    """Return the character majors of NVIDIA's modules by name; empty if the file is unreadable."""
    text = _text(proc_devices).partition("Block devices:")[0]
    return {name: int(major) for major, name in _MAJOR.findall(text)}


def mig_capability_minors(
    root: Path, minor: int, gpu_instance: int, compute_instance: int
) -> list[int]:
    """Return the numbers of the two nvidia-cap nodes that open a MIG instance of card `minor`.

    Source: NVIDIA MIG user guide, "Device nodes and capabilities".
    """
    instance = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
    texts = (_text(instance / "access"), _text(instance / f"ci{compute_instance}/access"))
    return [int(match[1]) for text in texts if (match := _MIG_MINOR.search(text))]


def _nodes(root: Path) -> Iterable[DeviceNode]:
    for folder in _NODE_FOLDERS:
        for name in _node_names(root / folder):
            status = os.lstat(root / folder / name)
            if stat.S_ISCHR(status.st_mode):
                yield DeviceNode(
                    path=f"/{folder}/{name}",
                    major=os.major(status.st_rdev),
                    minor=os.minor(status.st_rdev),
                    file_mode=stat.S_IMODE(status.st_mode),
                    uid=status.st_uid,
                    gid=status.st_gid,
                )


def _node_names(folder: Path) -> list[str]:
    return [name for name in _names(folder) if name.startswith("nvidia")]


def _numbered(nodes: Mapping[str, DeviceNode], pattern: re.Pattern[str]) -> dict[int, DeviceNode]:
    matches = ((pattern.fullmatch(path.rpartition("/")[2]), node) for path, node in nodes.items())
    return {int(match[1]): node for match, node in matches if match}


def _library_folders(where: config.Driver) -> list[Path]:
    """Return the folders that may hold the driver, best first; those configured come alone."""
    if where.library_dirs:
        return list(where.library_dirs)
    folders = [Path(path).parent for path in _ldconfig()] if where.root == Path("/") else []
    return list(dict.fromkeys(folders + [where.root / folder for folder in _USUAL_FOLDERS]))


def _ldconfig() -> list[str]:
    try:
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], env={}, capture_output=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return _LDCONFIG_LINE.findall(os.fsdecode(listing.stdout))


def _libraries(folders: Sequence[Path], version: str) -> Iterable[DriverFile]:
    names = [(folder, _names(folder)) for folder in folders]
    for capability, stems in LIBRARIES.items():
        for stem in stems:
            found = (
                _library(folder, name, capability)
                for folder, there in names
                for name in _file_names(there, stem, version)
            )
            if library := next((each for each in found if each), None):
                yield library


def _file_names(there: Iterable[str], stem: str, version: str) -> list[str]:
    """Return the names of a library's files: of the driver's own version, then by short names.

    Folders may hold leftovers of another version, and a mixture does not work.
    """
    pattern = re.compile(rf"{re.escape(stem)}\.so\.[0-9.]+")
    found = [name for name in there if pattern.fullmatch(name)]
    return sorted(found, key=lambda name: (name != f"{stem}.so.{version}", len(name), name))


def _library(folder: Path, name: str, capability: str) -> DriverFile | None:
    path = folder / name
    headers = read_shared_library(path)
    if headers is None or headers.machine != MACHINES.get(os.uname().machine):
        return None
    return DriverFile(
        name=headers.soname or name, path=os.path.realpath(path), capability=capability
    )


def _programs(root: Path, folders: Sequence[Path]) -> Iterable[DriverFile]:
    places = [folder.parent / "bin" for folder in folders]
    places += [root / folder for folder in _USUAL_PROGRAM_FOLDERS]
    for capability, names in PROGRAMS.items():
        for name in names:
            found = (place / name for place in places)
            if path := next((each for each in found if os.access(each, os.X_OK)), None):
                yield DriverFile(name=name, path=os.path.realpath(path), capability=capability)


def _kernel_version(root: Path) -> str:
    match = _VERSION.search(_text(root / "proc/driver/nvidia/version"))
    return match[1] if match else ""


def _version_of_files(folders: Sequence[Path]) -> str:
    for folder in folders:
        for stem in ("libcuda", "libnvidia-ml"):
            name = os.path.basename(os.path.realpath(folder / f"{stem}.so.1"))
            if match := _VERSION.search(name.removeprefix(f"{stem}.so.")):
                return match[1]
    return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
