# SPDX-License-Identifier: Apache-2.0
"""What of the NVIDIA driver a container with a slice gets; pure. driver.py finds it on the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from runtime_shim.errors import RefusedError
from runtime_shim.rootfs import RootfsFacts
from runtime_shim.spec import ContainerEdits, DeviceNode, Mount

# Libraries by the driver capability that a container needs to get them, without `.so` and version.
# Source: NVIDIA driver README, "Installed Components".
LIBRARIES: Mapping[str, Sequence[str]] = {
    "utility": (
        "libnvidia-ml",
        "libnvidia-cfg",
    ),
    "compute": (
        "libcuda",
        "libcudadebugger",
        "libnvidia-allocator",
        "libnvidia-compiler",
        "libnvidia-gpucomp",
        "libnvidia-nvvm",
        "libnvidia-nvvm70",
        "libnvidia-opencl",
        "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3",
        "libnvidia-ptxjitcompiler",
        "libnvidia-sandboxutils",
        "libnvidia-tileiras",
    ),
    "video": (
        "libnvcuvid",
        "libnvidia-encode",
        "libnvidia-opticalflow",
        "libvdpau_nvidia",
    ),
    "graphics": (
        "libEGL_nvidia",
        "libGLESv1_CM_nvidia",
        "libGLESv2_nvidia",
        "libGLX_nvidia",
        "libnvidia-eglcore",
        "libnvidia-egl-gbm",
        "libnvidia-egl-wayland",
        "libnvidia-fbc",
        "libnvidia-glcore",
        "libnvidia-glsi",
        "libnvidia-glvkspirv",
        "libnvidia-rtcore",
        "libnvidia-tls",
        "libnvoptix",
    ),
    "ngx": ("libnvidia-ngx",),
}

PROGRAMS: Mapping[str, Sequence[str]] = {"utility": ("nvidia-smi", "nvidia-debugdump")}
_PROGRAM_FOLDER = "/usr/bin"

# Triton asks `ldconfig -p` where the driver is, which no mount changes; it believes this first.
_PLACE_VARIABLE = "TRITON_LIBCUDA_PATH"
_DRIVER = "libcuda.so.1"

# Names under which programs open a library beside its soname: some ask for the development link.
_ALIASES: Mapping[str, Sequence[str]] = {_DRIVER: ("libcuda.so",)}

_UVM_NODE = "/dev/nvidia-uvm"

# Nodes beside those of the cards, and the capability that needs them ("" = every one). Those that
# the host lacks are left out: in a user namespace a runtime binds the host's own node.
CONTROL_NODES = {
    "/dev/nvidiactl": "",
    _UVM_NODE: "compute",
    "/dev/nvidia-uvm-tools": "compute",
    "/dev/nvidia-modeset": "graphics",
}


@dataclass(frozen=True, kw_only=True)
class DriverFile:
    """A library or program of the driver."""

    name: str
    """The soname, or the program's name: what it is called in the container."""
    path: str
    """The file itself on the host, without links."""
    capability: str


@dataclass(frozen=True, kw_only=True)
class DriverFiles:
    """What the host's driver consists of, as far as containers may get it."""

    version: str
    """Empty when neither the kernel nor a file name tells it."""
    cards: Mapping[int, DeviceNode] = field(default_factory=dict)
    """Nodes of the cards by NVML's minor number."""
    controls: Mapping[str, DeviceNode] = field(default_factory=dict)
    """The other nodes by path, except those of MIG."""
    mig_capabilities: Mapping[int, DeviceNode] = field(default_factory=dict)
    """/dev/nvidia-caps/nvidia-capN by N."""
    libraries: Sequence[DriverFile] = ()
    programs: Sequence[DriverFile] = ()
    kernel_module: bool = True
    """False for a driver without a kernel part, which has no nodes to give (a simulated one)."""
    unified_memory: bool = False
    """The module nvidia-uvm is loaded, whose node every CUDA program opens."""


def driver_edits(
    files: DriverFiles,
    minors: Sequence[int],
    rootfs: RootfsFacts,
    capabilities: Collection[str],
    *,
    mig_capabilities: Sequence[int] = (),
) -> ContainerEdits:
    """Return the nodes of these cards, and the libraries and programs of these capabilities.

    Libraries go under their sonames into a folder that the container's loader searches anyway, so
    that no ldconfig has to run in it; who asks ldconfig is told by a variable. Raises RefusedError
    when a node or the folder is missing.
    """
    nodes: list[DeviceNode] = []
    if files.kernel_module and minors:
        nodes = [_card(files, minor) for minor in dict.fromkeys(minors)]
        nodes += [_mig_capability(files, minor) for minor in dict.fromkeys(mig_capabilities)]
        if "compute" in capabilities and files.unified_memory and _UVM_NODE not in files.controls:
            raise RefusedError(
                f"the host has no {_UVM_NODE}, without which no CUDA program starts",
                "make it on the host with nvidia-modprobe -u -c=0",
            )
        nodes += [
            files.controls[path]
            for path, needed_by in CONTROL_NODES.items()
            if path in files.controls and (not needed_by or needed_by in capabilities)
        ]
    mounts: list[Mount] = []
    if rootfs.library_dir:
        mounts += [
            Mount(destination=f"{rootfs.library_dir}/{name}", source=library.path)
            for library in files.libraries
            if library.capability in capabilities
            for name in (library.name, *_ALIASES.get(library.name, ()))
        ]
    mounts += [
        Mount(destination=f"{_PROGRAM_FOLDER}/{program.name}", source=program.path)
        for program in files.programs
        if program.capability in capabilities
    ]
    if mounts and rootfs.read_only_filesystem:
        raise RefusedError(
            "its rootfs lies on a read-only file system, where the driver cannot be mounted",
            "start it from a writable root (read-only flags of engines are fine)",
        )
    is_driver_there = f"{rootfs.library_dir}/{_DRIVER}" in (mount.destination for mount in mounts)
    env = {_PLACE_VARIABLE: rootfs.library_dir} if is_driver_there else {}
    return ContainerEdits(env=env, devices=nodes, mounts=mounts)


def _card(files: DriverFiles, minor: int) -> DeviceNode:
    if minor not in files.cards:
        raise RefusedError(
            f"the host has no /dev/nvidia{minor} for a card of its slice",
            "check the driver on the host with nvidia-smi",
        )
    return files.cards[minor]


def _mig_capability(files: DriverFiles, minor: int) -> DeviceNode:
    if minor not in files.mig_capabilities:
        raise RefusedError(
            f"the host has no /dev/nvidia-caps/nvidia-cap{minor} for a MIG instance of its slice",
            "check the driver on the host with nvidia-smi -L",
        )
    return files.mig_capabilities[minor]
