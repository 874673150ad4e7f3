# SPDX-License-Identifier: Apache-2.0
"""Takes out of a spec every way to a GPU that the answer does not grant; pure, no I/O.

What is granted is added afterwards (`spec.apply_edits`), so that a container holds exactly that,
whatever its image, its user, its engine or an earlier run of ours had written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime_shim.errors import RefusedError
from runtime_shim.hooks import is_nvidia_hook, refuse_hidden_nvidia
from runtime_shim.request import REQUEST_VARIABLES, RESERVED_VARIABLES
from runtime_shim.spec import (
    Item,
    Mount,
    Spec,
    annotations_of,
    destination,
    device_rules,
    devices,
    env_entries,
    host_path,
    is_bind,
    items,
    mount_item,
    mounts,
    normal_path,
    section,
    source,
    within,
)

# Source: docs/contract.md §1, "Removed".
_VARIABLES = frozenset(
    {
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
        "NVIDIA_GDRCOPY",
        "NVIDIA_NVSWITCH",
        "CUDA_DISABLE_CONTROL",
        "CUDA_OVERSUBSCRIBE",
        "GPU_CORE_UTILIZATION_POLICY",
        "VGPU_LOG",
        *REQUEST_VARIABLES,
        *RESERVED_VARIABLES,
    }
)
_VARIABLE_PREFIXES = ("NVIDIA_MIG_", "CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_")
UUID_VARIABLE = "VGPU_CONTAINER_UUID"

# runc and crun set such a property of the container's scope: DeviceAllow, DevicePolicy.
_SYSTEMD_DEVICES = "org.systemd.property.Device"

# NVIDIA's runtime reads device names from the destinations of mounts below this folder.
DEVICE_LISTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")

# Files of the driver by their names; the agent adds those that are granted, from the host's driver.
_DRIVER_FILE = re.compile(
    r"lib(cuda|cudadebugger|nvcuvid|nvoptix|vdpau_nvidia|nvidia-[\w-]+|\w+_nvidia)\.so[.\d]*"
    r"|nvidia-(smi|debugdump|cuda-mps-control|cuda-mps-server)"
)

DENIABLE = frozenset(
    {
        "audit",
        "cdi",
        "device_lists",
        "device_mounts",
        "device_nodes",
        "device_rules",
        "driver_files",
        "hooks",
    }
)
"""Kinds of hostile input that a node may refuse instead of taking them out. Variables are none of
them: every CUDA image sets NVIDIA_VISIBLE_DEVICES."""

VGPU_FOLDER = "/dev/vgpu"
VGPU_MOUNT = Mount(
    destination=VGPU_FOLDER,
    source="vgpu",
    type="tmpfs",
    options=("nosuid", "nodev", "noexec", "ro", "mode=755", "size=64k"),
)
"""Comes before the files there, so that nothing else can be below that path."""
_VGPU_ITEM = mount_item(VGPU_MOUNT)

PRELOAD_FILE = "/etc/ld.so.preload"
OWN_FOLDERS = ("/run/vgpu", "/usr/lib/vgpu")
"""Where the host keeps what the agent mounts at these two places."""

NVIDIA_MAJOR = 195
"""Of /dev/nvidiaN, nvidiactl and nvidia-modeset. Source: Linux, admin-guide/devices.txt."""


def strip_gpu(
    spec: Spec,
    *,
    library: str | None,
    majors: Collection[int] = (NVIDIA_MAJOR,),
    own_folders: Collection[str] = OWN_FOLDERS,
    keep: Collection[tuple[int, int]] = (),
    drm: Collection[tuple[int, int]] = (),
    deny: Collection[str] = (),
) -> tuple[Spec, list[str]]:
    """Return a copy of `spec` without ways to a GPU, and a sentence for each thing taken out.

    `library` is the path in the container of the library that must come before the image's own
    preloads; None: the container gets none, and its loader variables stay as they are. `majors` are
    all device majors of the NVIDIA driver (`devices.granted_majors`). `keep` names nodes, as
    (major, minor), that are granted to this container already; `drm` the cards' nodes of the
    kernel's DRM, whose major other makers' cards share. What lies in `own_folders` on the
    host is an earlier edit of ours; any other mount at or below /dev/vgpu raises RefusedError, and
    so does anything of a kind in `deny`, which are some of DENIABLE, and a hook that may run the
    NVIDIA toolkit among other things.
    Stripping twice changes nothing and says nothing.
    """
    removed = _Removals(deny)
    majors = {NVIDIA_MAJOR, *majors}
    changed = {
        "process": _strip_process(spec, library, removed),
        "annotations": _strip_annotations(spec, removed),
        "mounts": _strip_mounts(spec, own_folders, removed),
        "hooks": _strip_hooks(spec, removed),
        "linux": _strip_linux(spec, _Numbers(majors, frozenset(drm), keep), removed),
    }
    stripped = {**spec, **{name: new for name, new in changed.items() if new is not None}}
    refuse_hidden_nvidia(stripped)
    return stripped, removed.sentences


class _Removals:
    """What is taken out, in sentences; what may not even be there is refused."""

    def __init__(self, deny: Collection[str]) -> None:
        self.sentences: list[str] = []
        self._deny = deny

    def add(self, kind: str, sentence: str) -> None:
        """Note a removal; raise RefusedError where the node's policy refuses its kind."""
        if kind in self._deny:
            raise RefusedError(
                sentence,
                f"take it out, or take {kind!r} out of policy.deny of the node agent",
            )
        self.sentences.append(sentence)


@dataclass(frozen=True)
class _Numbers:
    """Which device numbers are a GPU's."""

    majors: Collection[int]
    drm: Collection[tuple[int, int]]
    keep: Collection[tuple[int, int]]

    def foreign(self, major: object, minor: object) -> bool:
        """Tell whether a device is a GPU's that was not granted."""
        if (major, minor) in self.keep:
            return False
        return major in self.majors or (major, minor) in self.drm

    def opens(self, major: object, minor: object) -> bool:
        """Tell whether a rule for these numbers, of which any may be a wildcard, opens a GPU."""
        if _is_any(major):
            return True
        if _is_any(minor):
            return major in self.majors or any(major == of_drm for of_drm, _ in self.drm)
        return self.foreign(major, minor)


def gpu_devices(
    spec: Spec,
    *,
    majors: Collection[int],
    keep: Collection[tuple[int, int]],
    drm: Collection[tuple[int, int]],
) -> list[str]:
    """Return a sentence for each device of a GPU that the spec opens, except those in `keep`.

    Names of cards, which another runtime may turn into devices, are not looked at.
    """
    found = _Removals(())
    _strip_linux(spec, _Numbers({NVIDIA_MAJOR, *majors}, frozenset(drm), keep), found)
    for mount in mounts(spec):
        place, shown = destination(mount), source(mount)
        objection = _mount_objection(place, host_path(mount))
        if objection is not None and objection[0] == "device_mounts":
            found.add("device_mounts", f"mount of {shown!r} at {place!r} {objection[1]}")
    return found.sentences


def names_cards(name: str) -> bool:
    """Tell whether NVIDIA's runtime may read names of cards from the variable `name`.

    Its `swarm-resource` lets variables of Docker Swarm, such as `DOCKER_RESOURCE_GPU`, go before
    its own; it does not ask who has set them.
    """
    swarm = name.startswith("DOCKER_RESOURCE_") and "GPU" in name.upper()
    return swarm or name == "NVIDIA_VISIBLE_DEVICES"


def is_removed_variable(name: str) -> bool:
    """Tell whether no container keeps the variable `name` from its image or its user.

    Other names that begin with `VGPU_` stay: the kubelet makes such of the names of Services, and
    our own programs have options of that form.
    """
    return name in _VARIABLES or names_cards(name) or name.startswith(_VARIABLE_PREFIXES)


def is_cdi_annotation(name: str) -> bool:
    """Tell whether an annotation asks for CDI devices, in CDI's own name or in a maker's.

    Which names NVIDIA's runtime obeys is a matter of its configuration; its GPU operator sets
    `nvidia.cdi.k8s.io/`.
    """
    domain, slash, _ = name.partition("/")
    return bool(slash) and f".{domain}".endswith(".cdi.k8s.io")


def allows_all_devices(spec: Spec) -> bool:
    """Tell whether the cgroup rules end up allowing every character device."""
    allowed = False
    for rule in device_rules(spec):
        if rule.get("allow"):
            allowed = allowed or _opens_everything(rule)
        elif _denies_all(rule):
            allowed = False
    return allowed


def _strip_process(spec: Spec, library: str | None, removed: _Removals) -> Item | None:
    before = env_entries(spec)
    after = _strip_loader(_strip_env(before, removed), library, removed)
    return None if after == before else {**section(spec, "process"), "env": after}


def _strip_env(entries: list[str], removed: _Removals) -> list[str]:
    kept = []
    last_uuid = max(
        (index for index, entry in enumerate(entries) if _name(entry) == UUID_VARIABLE), default=-1
    )
    for index, entry in enumerate(entries):
        name = _name(entry)
        if is_removed_variable(name):
            removed.add("variables", f"variable {entry[:200]!r} is set by vgpu alone")
        elif name == UUID_VARIABLE and index != last_uuid:
            removed.add("variables", f"variable {entry[:200]!r} is set again later")
        else:
            kept.append(entry)
    return kept


def _strip_loader(entries: list[str], library: str | None, removed: _Removals) -> list[str]:
    """Make sure that no loader variable comes between a process and `library`.

    LD_PRELOAD is searched before ld.so.preload, so an image's `LD_PRELOAD=libcuda.so.1` would offer
    the driver's symbols before ours; with our library in front the order is ours first and its own
    preloads (jemalloc, tcmalloc, …) go on working. LD_AUDIT may rebind any symbol and rename any
    library, ours included, and goes. LD_LIBRARY_PATH stays: our library is named by an absolute
    path, and hooks are by symbol, whichever libcuda it leads to. GLIBC_TUNABLES stays: none of them
    turns preloading off, and static TLS of preloads is laid out before `optional_static_tls`
    counts. What a process sets for its children is beyond any edit; enforcement sees it.
    """
    if library is None:
        return entries
    kept = []
    for entry in entries:
        name, _, value = entry.partition("=")
        if name == "LD_AUDIT":
            removed.add("audit", f"variable {entry[:200]!r} could hide the vgpu library")
            continue
        if name == "LD_PRELOAD" and value and re.split("[ :]", value)[0] != library:
            removed.add("preload", f"variable {entry[:200]!r} now starts with the vgpu library")
            entry = f"{name}={library}:{value}"
        kept.append(entry)
    return kept


def _strip_annotations(spec: Spec, removed: _Removals) -> Item | None:
    names = sorted(annotations_of(spec))
    cdi = [name for name in names if is_cdi_annotation(name)]
    rules = [name for name in names if name.startswith(_SYSTEMD_DEVICES)]
    for name in cdi:
        removed.add("cdi", f"annotation {name!r} asks for devices")
    for name in rules:
        removed.add("device_rules", f"annotation {name!r} has systemd write the device rules anew")
    gone = {*cdi, *rules}
    before = section(spec, "annotations")
    return {name: before[name] for name in before if name not in gone} if gone else None


def _strip_mounts(
    spec: Spec, own_folders: Collection[str], removed: _Removals
) -> list[Item] | None:
    before = mounts(spec)
    kept = []
    for mount in before:
        if mount == _VGPU_ITEM:
            removed.add("own", f"mount at {VGPU_FOLDER!r} is an earlier one of vgpu's own")
            continue
        place, shown, bound = destination(mount), source(mount), is_bind(mount)
        ours = bound and any(within(shown, folder) for folder in own_folders)
        if within(place, VGPU_FOLDER) and (place == VGPU_FOLDER or not ours):
            raise RefusedError(
                f"a mount of {shown!r} at {place!r} covers the place of the vgpu library",
                "mount it elsewhere: /dev/vgpu belongs to vgpu",
            )
        if ours and (place == PRELOAD_FILE or within(place, VGPU_FOLDER)):
            removed.add("own", f"mount at {place!r} is an earlier one of vgpu's own")
        elif objection := _mount_objection(place, host_path(mount)):
            kind, why = objection
            removed.add(kind, f"mount of {shown!r} at {place!r} {why}")
        else:
            kept.append(mount)
    return None if len(kept) == len(before) else kept


def _mount_objection(place: str, bound: str | None) -> tuple[str, str] | None:
    """Say of what kind a mount at `place` is and why it may not stay; None: it may.

    `bound` is the host's path that it shows, if any.
    """
    if place.startswith(DEVICE_LISTS):
        return "device_lists", "asks for devices"
    if place.startswith("/dev/nvidia"):
        return "device_mounts", "gives a GPU device"
    if bound is None:
        return None
    if bound.startswith("/dev/nvidia"):
        return "device_mounts", "gives a GPU device"
    if bound == "/dev":
        return "device_mounts", "gives every device of the host"
    if _DRIVER_FILE.fullmatch(place.rpartition("/")[2]):
        return "driver_files", "brings a file of a GPU driver"
    return None


def _strip_hooks(spec: Spec, removed: _Removals) -> Item | None:
    before = section(spec, "hooks")
    after = dict(before)
    for stage in before:
        hooks = items(before, stage)
        kept = [hook for hook in hooks if not is_nvidia_hook(hook)]
        if len(kept) < len(hooks):
            removed.add("hooks", f"{stage} hook of the NVIDIA toolkit would add devices")
            after[stage] = kept
    return None if after == before else after


def _strip_linux(spec: Spec, numbers: _Numbers, removed: _Removals) -> Item | None:
    linux = section(spec, "linux")
    nodes, rules = devices(spec), device_rules(spec)
    kept_nodes = [node for node in nodes if not _is_foreign_node(node, numbers)]
    kept_rules = [rule for rule in rules if not _opens_gpu(rule, numbers)]
    for node in _dropped(nodes, kept_nodes):
        removed.add("device_nodes", f"device {node.get('path')!r} is a GPU's")
    for rule in _dropped(rules, kept_rules):
        removed.add("device_rules", f"device rule {_words(rule)!r} opens GPUs")
    if not any(_denies_all(rule) for rule in kept_rules):
        # runc denies what no rule allows; crun sets no filter at all when there is no rule.
        kept_rules = [{"allow": False, "access": "rwm"}, *kept_rules]
    if kept_nodes == nodes and kept_rules == rules:
        return None
    resources = {**section(linux, "resources"), "devices": kept_rules}
    after = {**linux, "resources": resources}
    if kept_nodes != nodes:
        after["devices"] = kept_nodes
    return after


def _dropped(before: Iterable[Item], after: Iterable[Item]) -> list[Item]:
    kept = {id(item) for item in after}
    return [item for item in before if id(item) not in kept]


def _is_foreign_node(node: Item, numbers: _Numbers) -> bool:
    major, minor = node.get("major"), node.get("minor")
    if node.get("type") == "b" or (major, minor) in numbers.keep:
        return False
    path = node.get("path")
    named = isinstance(path, str) and normal_path(path).startswith("/dev/nvidia")
    return named or numbers.foreign(major, minor)


def _opens_gpu(rule: Item, numbers: _Numbers) -> bool:
    """Tell whether a rule lets a GPU be read or written.

    Rules for character devices that only allow mknod stay, `c *:* m` of Docker and containerd among
    them: a node that may be made but not opened gives nothing.
    """
    if not rule.get("allow") or rule.get("type") == "b":
        return False
    if _opens_everything(rule):
        return True
    return not _only_makes_nodes(rule) and numbers.opens(rule.get("major"), rule.get("minor"))


def _opens_everything(rule: Item) -> bool:
    """Tell whether an allowing rule opens every character device.

    runc takes type `a`, which is also the default, for "all devices, all access", whatever numbers
    and access stand beside it. Source: runc, libcontainer/cgroups/devices, Emulator.Apply.
    """
    kind = rule.get("type")
    return kind != "b" and (kind != "c" or (_is_wildcard(rule) and not _only_makes_nodes(rule)))


def _denies_all(rule: Item) -> bool:
    every_kind = rule.get("type") in (None, "", "a", "c")
    every_access = _access(rule) >= {"r", "w", "m"}
    return not rule.get("allow") and every_kind and every_access and _is_wildcard(rule)


def _is_wildcard(rule: Mapping[str, Any]) -> bool:
    return _is_any(rule.get("major")) and _is_any(rule.get("minor"))


def _is_any(number: object) -> bool:
    return number is None or not isinstance(number, int) or number < 0


def _only_makes_nodes(rule: Item) -> bool:
    return _access(rule) == {"m"}


def _access(rule: Mapping[str, Any]) -> set[str]:
    access = rule.get("access")
    return set(access) if isinstance(access, str) and access else {"r", "w", "m"}


def _words(rule: Item) -> str:
    numbers = ("*" if _is_any(rule.get(name)) else str(rule[name]) for name in ("major", "minor"))
    return f"{rule.get('type') or 'a'} {':'.join(numbers)} {rule.get('access') or 'rwm'}"


def _name(entry: str) -> str:
    return entry.partition("=")[0]
