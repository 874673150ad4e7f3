# SPDX-License-Identifier: Apache-2.0
"""Devices by CDI: what the host's own CDI specs say that a container with these cards needs.

Only kind `nvidia.com/gpu`, and only files and hook programs that root alone can change.
Source: Container Device Interface specification 0.8, SPEC.md.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime_shim.errors import RuntimeShimError
from runtime_shim.spec import ContainerEdits, DeviceNode, Hook, Mount, items, merge_edits, section
from runtime_shim.strip import is_removed_variable

logger = logging.getLogger(__name__)

KIND = "nvidia.com/gpu"

# A generated spec of eight cards with MIG has some 100 KiB.
_MAX_BYTES = 4 * 2**20

# Never the container's environment; hook programs are static or use the host's libraries.
_HOOK_ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)

_CARD_NODE = re.compile(r"/dev/nvidia[0-9]+")
_GRAPHICS_NODE = re.compile(r"/dev/(dri/.*|nvidia-modeset)")


class CdiError(RuntimeShimError):
    """A CDI file cannot be used; the driver is looked for without it."""


@dataclass(frozen=True, kw_only=True)
class CdiSpec:
    """One CDI file of kind `nvidia.com/gpu`."""

    path: Path
    devices: Mapping[str, ContainerEdits]
    """By device name: an index, a UUID or `all`."""
    edits: ContainerEdits
    """For a container with any of the devices."""


@dataclass(frozen=True, kw_only=True)
class CdiCard:
    """A card that a container is to get."""

    uuid: str
    minor: int | None
    """N of /dev/nvidiaN; None for a MIG instance, whose GPU's node is not enough."""


class CdiCache:
    """The CDI specs of some folders; reads a file anew when it has changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: as CDI orders them, a later one overrides an earlier one."""
        self._folders = folders
        self._stamp: object = None
        self._specs: list[CdiSpec] = []

    def specs(self) -> list[CdiSpec]:
        """Return the specs, those that override first. A file that is not usable is logged once."""
        paths = [path for folder in reversed(self._folders) for path in _spec_paths(folder)]
        stamp = [(path, _identity(path)) for path in paths]
        if stamp != self._stamp:
            self._specs = [spec for path in paths if (spec := _load_or_log(path))]
            self._stamp = stamp
        return self._specs


def cdi_edits(
    specs: Sequence[CdiSpec], cards: Sequence[CdiCard], capabilities: Collection[str]
) -> ContainerEdits | None:
    """Return the edits of the first spec that knows every one of the cards; None if none does.

    A card is found by its UUID, or by its node where the spec names cards by index. Nodes for a
    display are left out unless the capabilities name graphics or display.
    """
    for spec in specs:
        found = [_device(spec, card) for card in cards]
        if found and all(edits is not None for edits in found):
            merged = merge_edits(spec.edits, *(edits for edits in found if edits is not None))
            return (
                _without_graphics(merged)
                if not {"graphics", "display"} & set(capabilities)
                else merged
            )
    return None


def load_cdi(path: Path) -> CdiSpec | None:
    """Return the spec in a file, None when it is of another kind. Raises CdiError."""
    _check_root_only(path, "CDI file")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CdiError(f"cannot read CDI file {path}: {error}") from error
    if len(raw) > _MAX_BYTES:
        raise CdiError(f"CDI file {path} is larger than {_MAX_BYTES >> 20} MiB")
    data = _parse(path, raw)
    if data.get("kind") != KIND:
        return None
    try:
        devices = {
            str(device["name"]): _edits(section(device, "containerEdits"))
            for device in items(data, "devices")
        }
        edits = _edits(section(data, "containerEdits"))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, RuntimeShimError) as error:
        raise CdiError(f"CDI file {path} is not usable: {error}") from error
    return CdiSpec(path=path, devices=devices, edits=edits)


def _device(spec: CdiSpec, card: CdiCard) -> ContainerEdits | None:
    if card.uuid in spec.devices:
        return spec.devices[card.uuid]
    if card.minor is None:
        return None
    for name, edits in spec.devices.items():
        nodes = [node.path for node in edits.devices if _CARD_NODE.fullmatch(node.path)]
        mig = any(node.path.startswith("/dev/nvidia-caps/") for node in edits.devices)
        if name != "all" and not mig and nodes == [f"/dev/nvidia{card.minor}"]:
            return edits
    return None


def _without_graphics(edits: ContainerEdits) -> ContainerEdits:
    kept = [node for node in edits.devices if not _GRAPHICS_NODE.fullmatch(node.path)]
    return replace(edits, devices=kept)


def _spec_paths(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if name.endswith((".json", ".yaml", ".yml"))]


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _load_or_log(path: Path) -> CdiSpec | None:
    try:
        return load_cdi(path)
    except CdiError as error:
        logger.warning("CDI file ignored", extra={"reason": str(error)})
        return None


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw) if path.suffix == ".json" else _parse_yaml(raw)
    except ImportError as error:
        raise CdiError(f"CDI file {path} is YAML, and python3-yaml is not installed") from error
    except Exception as error:  # PyYAML's own base class is not known without it
        raise CdiError(f"CDI file {path} is not {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(data, dict):
        raise CdiError(f"CDI file {path} is not an object")
    return data


def _parse_yaml(raw: bytes) -> object:
    yaml = importlib.import_module("yaml")
    return yaml.load(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _edits(raw: Mapping[str, Any]) -> ContainerEdits:
    pairs = (entry.partition("=") for entry in raw.get("env") or ())
    return ContainerEdits(
        env={name: value for name, _, value in pairs if not is_removed_variable(name)},
        devices=[_node(node) for node in items(raw, "deviceNodes")],
        mounts=[_mount(mount) for mount in items(raw, "mounts")],
        hooks=[_hook(hook) for hook in items(raw, "hooks")],
        additional_gids=[int(gid) for gid in raw.get("additionalGids") or ()],
    )


def _node(raw: Mapping[str, Any]) -> DeviceNode:
    """Return a device node; the host's own node supplies the numbers that the spec leaves out."""
    path = str(raw["path"])
    kind, major, minor = raw.get("type"), raw.get("major"), raw.get("minor")
    mode, uid, gid = raw.get("fileMode"), raw.get("uid"), raw.get("gid")
    if kind is None or major is None or mode is None:
        status = os.stat(raw.get("hostPath") or path)
        is_block = stat.S_ISBLK(status.st_mode)
        if not is_block and not stat.S_ISCHR(status.st_mode):
            raise ValueError(f"{path} is not a device")
        kind = kind or ("b" if is_block else "c")
        if major is None:
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        mode = stat.S_IMODE(status.st_mode) if mode is None else mode
        uid = status.st_uid if uid is None else uid
        gid = status.st_gid if gid is None else gid
    return DeviceNode(
        path=path,
        type=str(kind),
        major=int(major),
        minor=int(minor or 0),
        file_mode=int(mode),
        uid=int(uid or 0),
        gid=int(gid or 0),
        access=str(raw.get("permissions") or "rwm"),
    )


def _mount(raw: Mapping[str, Any]) -> Mount:
    options = [str(option) for option in raw.get("options") or ("ro", "nosuid", "nodev")]
    kind = str(raw.get("type") or "bind")
    if kind == "bind" and not {"bind", "rbind"} & set(options):
        options.append("bind")
    return Mount(
        destination=str(raw["containerPath"]),
        source=str(raw["hostPath"]),
        type=kind,
        options=options,
    )


def _hook(raw: Mapping[str, Any]) -> Hook:
    path = str(raw["path"])
    _check_root_only(Path(path), "hook program")
    return Hook(
        stage=str(raw["hookName"]),
        path=path,
        args=[str(arg) for arg in raw.get("args") or (path,)],
        env=[str(entry) for entry in raw.get("env") or _HOOK_ENV],
        timeout_seconds=raw.get("timeout"),
    )


def _check_root_only(path: Path, what: str) -> None:
    """Raise CdiError unless `path` is a regular file that root alone can change or replace."""
    if not path.is_absolute():
        raise CdiError(f"{what} {path} is not named by an absolute path")
    try:
        real = path.resolve(strict=True)
        statuses = [each.stat() for each in (real, *real.parents)]
    except OSError as error:
        raise CdiError(f"{what} {path} is not readable: {error}") from error
    if not stat.S_ISREG(statuses[0].st_mode):
        raise CdiError(f"{what} {path} is not a regular file")
    for status in statuses:
        others = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
        if status.st_uid != 0 or others or group:
            raise CdiError(f"{what} {path} can be changed by others than root")
