# SPDX-License-Identifier: Apache-2.0
"""Pure edits of an OCI runtime spec (`config.json`); no I/O: bundle.py reads and writes the file.

A spec stays the JSON object that it was: what this module does not know is kept as it is. No
function changes its argument; unchanged parts are shared between argument and result.
Source: OCI runtime-spec 1.2, config.md and config-linux.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_shim.errors import RefusedError

Spec = dict[str, Any]
Item = dict[str, Any]

# What we read or edit, by level. Source: OCI runtime-spec 1.2, specs-go/config.go.
_SPEC_KEYS = frozenset({"annotations", "hooks", "linux", "mounts", "process", "root"})
_PROCESS_KEYS = frozenset({"capabilities", "env", "user"})
_CAPABILITY_KEYS = frozenset({"ambient", "bounding", "effective", "inheritable", "permitted"})
_USER_KEYS = frozenset({"additionalGids"})
_ROOT_KEYS = frozenset({"path"})
_MOUNT_KEYS = frozenset({"destination", "options", "source", "type"})
_LINUX_KEYS = frozenset({"cgroupsPath", "devices", "namespaces", "resources", "uidMappings"})
_MAPPING_KEYS = frozenset({"containerID", "hostID", "size"})
_CLOSING_KEYS = frozenset({"maskedPaths", "seccomp"})
_SECCOMP_KEYS = frozenset({"defaultAction", "defaultErrnoRet", "syscalls"})
_SYSCALL_KEYS = frozenset({"action", "args", "names"})
_RESOURCE_KEYS = frozenset({"devices"})
_NODE_KEYS = frozenset({"fileMode", "gid", "major", "minor", "path", "type", "uid"})
_RULE_KEYS = frozenset({"access", "allow", "major", "minor", "type"})
_NAMESPACE_KEYS = frozenset({"path", "type"})
_HOOK_KEYS = frozenset({"args", "env", "path", "timeout"})
_STAGES = frozenset(
    {
        "createContainer",
        "createRuntime",
        "poststart",
        "poststop",
        "prestart",
        "startContainer",
    }
)

_NUMBER_TYPES = (int, type(None))
_TEXT_TYPES = (str, type(None))
_FLAG_TYPES = (bool, type(None))


class SpecError(RefusedError):
    """config.json is JSON, but not a runtime spec; the low-level runtime would refuse it too."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"config.json is not an OCI runtime spec: {what}",
            "the engine or tool that made the bundle has to write a valid one",
        )


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One entry of `mounts`; the default is a read-only bind of a file or folder of the host."""

    destination: str
    source: str
    type: str = "bind"
    options: Sequence[str] = ("bind", "ro", "nosuid", "nodev", "rprivate")


@dataclass(frozen=True, kw_only=True)
class DeviceNode:
    """One entry of `linux.devices`, together with the cgroup rule that lets it be used."""

    path: str
    major: int
    minor: int
    type: str = "c"
    file_mode: int = 0o666
    uid: int = 0
    gid: int = 0
    access: str = "rwm"


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One entry of `hooks`, a program of the host.

    `env` is never left out: without it runtimes hand that program the container's own environment,
    LD_PRELOAD included (CVE-2025-23266).
    """

    stage: str
    path: str
    args: Sequence[str]
    env: Sequence[str]
    timeout_seconds: int | None = None


@dataclass(frozen=True, kw_only=True)
class ContainerEdits:
    """What a container gets beyond what its engine wrote. The word is CDI's."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    devices: Sequence[DeviceNode] = ()
    hooks: Sequence[Hook] = ()
    additional_gids: Sequence[int] = ()


def merge_edits(*several: ContainerEdits) -> ContainerEdits:
    """Return all edits as one, in order; of one variable the last value counts."""
    return ContainerEdits(
        env={name: value for edits in several for name, value in edits.env.items()},
        mounts=[mount for edits in several for mount in edits.mounts],
        devices=[device for edits in several for device in edits.devices],
        hooks=[hook for edits in several for hook in edits.hooks],
        additional_gids=[gid for edits in several for gid in edits.additional_gids],
    )


def check_keys(spec: Spec) -> None:
    """Raise SpecError for a key that we read and that is written in another case.

    Go takes "Mounts" for "mounts", and of the two the later one; we and crun do not. Whoever writes
    such a key would have us look at one thing and runc start another.
    """
    process, linux, hooks = (section(spec, name) for name in ("process", "linux", "hooks"))
    resources = section(linux, "resources")
    _check_case(_SPEC_KEYS, spec)
    _check_case(_PROCESS_KEYS, process)
    _check_case(_CAPABILITY_KEYS, section(process, "capabilities"))
    _check_case(_USER_KEYS, section(process, "user"))
    _check_case(_ROOT_KEYS, section(spec, "root"))
    _check_case(_MOUNT_KEYS, *items(spec, "mounts"))
    _check_case(_LINUX_KEYS | _CLOSING_KEYS, linux)
    _check_case(_MAPPING_KEYS, *items(linux, "uidMappings"))
    seccomp = section(linux, "seccomp")
    _check_case(_SECCOMP_KEYS, seccomp)
    _check_case(_SYSCALL_KEYS, *items(seccomp, "syscalls"))
    _check_case(_RESOURCE_KEYS, resources)
    _check_case(_NODE_KEYS, *items(linux, "devices"))
    _check_case(_RULE_KEYS, *items(resources, "devices"))
    _check_case(_NAMESPACE_KEYS, *items(linux, "namespaces"))
    _check_case(_STAGES, hooks)
    for stage in hooks:
        _check_case(_HOOK_KEYS, *items(hooks, stage))


def environment(spec: Spec) -> dict[str, str]:
    """Return `process.env` as a mapping.

    Of a variable that is set twice the last value counts, as in runc and crun. Entries without `=`
    have no value and are left out.
    """
    pairs = (entry.partition("=") for entry in env_entries(spec))
    return {name: value for name, equals, value in pairs if equals}


def annotations_of(spec: Spec) -> dict[str, str]:
    """Return `annotations`; what is not a string is left out."""
    return {
        name: value for name, value in section(spec, "annotations").items() if type(value) is str
    }


def apply_edits(spec: Spec, edits: ContainerEdits) -> Spec:
    """Return a copy of `spec` with `edits` applied; applying them twice changes nothing.

    An edit replaces the variable of the same name, the mount at the same destination and the device
    of the same path. New entries come last: of two mounts at one place the later is on top, and of
    two cgroup rules the later wins.
    """
    patched = dict(spec)
    if edits.env or edits.additional_gids:
        patched["process"] = _edited_process(spec, edits)
    if edits.mounts:
        taken = {normal_path(mount.destination) for mount in edits.mounts}
        kept = [mount for mount in mounts(spec) if destination(mount) not in taken]
        patched["mounts"] = kept + [mount_item(mount) for mount in edits.mounts]
    if edits.devices:
        patched["linux"] = _edited_linux(spec, edits.devices)
    if edits.hooks:
        patched["hooks"] = _edited_hooks(spec, edits.hooks)
    return patched


def section(parent: Mapping[str, Any], name: str) -> Item:
    """Return the object `parent[name]`; absent and null are empty. Raises SpecError."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{name} is not an object")
    return value


def items(parent: Mapping[str, Any], name: str) -> list[Item]:
    """Return the list of objects `parent[name]`; absent and null are empty. Raises SpecError."""
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SpecError(f"{name} is not a list of objects")
    return value


def texts(parent: Mapping[str, Any], name: str) -> list[str]:
    """Return the list of strings `parent[name]`; absent and null are empty. Raises SpecError."""
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SpecError(f"{name} is not a list of strings")
    return value


def env_entries(spec: Spec) -> list[str]:
    """Return `process.env` as it is written. Raises SpecError."""
    return texts(section(spec, "process"), "env")


def mounts(spec: Spec) -> list[Item]:
    """Return `mounts` in the order in which the runtime makes them. Raises SpecError."""
    return items(spec, "mounts")


def devices(spec: Spec) -> list[Item]:
    """Return `linux.devices`. Raises SpecError."""
    return _device_items(section(spec, "linux"))


def device_path(node: Mapping[str, Any]) -> str:
    """Return where a device goes, as it is written."""
    return _text(node, "path")


def device_rules(spec: Spec) -> list[Item]:
    """Return `linux.resources.devices`, the cgroup rules; the last that matches wins."""
    return _device_items(section(section(spec, "linux"), "resources"))


def destination(mount: Mapping[str, Any]) -> str:
    """Return where a mount goes, absolute and without `..`; symbolic links are not looked at."""
    return normal_path(_text(mount, "destination"))


def source(mount: Mapping[str, Any]) -> str:
    """Return what a mount shows: a normal path if it is a bind, else the word in the spec."""
    text = _text(mount, "source")
    return normal_path(text) if is_bind(mount) and text.startswith("/") else text


def mount_type(mount: Mapping[str, Any]) -> str:
    """Return the file system that a mount is of; empty where it says none. Raises SpecError."""
    return _text(mount, "type")


def is_bind(mount: Mapping[str, Any]) -> bool:
    """Tell whether a mount shows a part of the host's file system."""
    if mount_type(mount) == "bind":
        return True
    options = texts(mount, "options")
    return "bind" in options or "rbind" in options


def host_path(mount: Mapping[str, Any]) -> str | None:
    """Return the host's path that a mount shows; None for one that shows none by its name.

    A devtmpfs is the host's own /dev: the kernel has only one.
    """
    if is_bind(mount):
        return source(mount)
    return "/dev" if mount_type(mount) == "devtmpfs" else None


def normal_path(path: str) -> str:
    """Return `path` absolute, without `.`, `..` and double slashes.

    Runtimes read a relative destination from the container's root.
    """
    return posixpath.normpath("/" + path.lstrip("/"))


def within(path: str, folder: str) -> bool:
    """Tell whether the normal `path` is `folder` or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SpecError(f"{name} is not a string")
    if not value.isprintable():
        _check_path(value, name)
    return value


def _check_path(text: str, name: str) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SpecError(f"{name} is not a path: {text[:64]!r}") from error
    if "\0" in text:
        raise SpecError(f"{name} is not a path: {text[:64]!r}")


def _check_case(known: frozenset[str], *objects: Item) -> None:
    for item in objects:
        for key in item.keys() - known:
            # Not lower(): Go's decoder folds the long s and the Kelvin sign, too.
            folded = key.casefold()
            for name in known:
                if folded == name.casefold():
                    raise SpecError(f"{key[:64]!r} is the key {name!r} in another case")


def _device_items(parent: Mapping[str, Any]) -> list[Item]:
    """Return the list `parent["devices"]`, the kind and numbers of each of the right type."""
    found = items(parent, "devices")
    for item in found:
        for name in ("major", "minor"):
            if type(item.get(name)) not in _NUMBER_TYPES:
                raise SpecError(f"{name} of a device is not a whole number")
        for name in ("type", "access"):
            if type(item.get(name)) not in _TEXT_TYPES:
                raise SpecError(f"{name} of a device is not a string")
        if type(item.get("allow")) not in _FLAG_TYPES:
            raise SpecError("allow of a device rule is not true or false")
    return found


def _edited_process(spec: Spec, edits: ContainerEdits) -> Item:
    process = dict(section(spec, "process"))
    if edits.env:
        kept = [entry for entry in env_entries(spec) if entry.partition("=")[0] not in edits.env]
        process["env"] = kept + [f"{name}={value}" for name, value in edits.env.items()]
    if edits.additional_gids:
        user = dict(section(process, "user"))
        gids = user.get("additionalGids") or []
        if not isinstance(gids, list):
            raise SpecError("additionalGids is not a list")
        new = [gid for gid in dict.fromkeys(edits.additional_gids) if gid not in gids]
        process["user"] = {**user, "additionalGids": [*gids, *new]}
    return process


def _edited_linux(spec: Spec, nodes: Sequence[DeviceNode]) -> Item:
    linux = dict(section(spec, "linux"))
    taken = {normal_path(node.path) for node in nodes}
    linux["devices"] = [
        device for device in devices(spec) if normal_path(_text(device, "path")) not in taken
    ] + [_device_item(node) for node in nodes]
    granted: list[Item] = []
    for node in nodes:
        rule = _rule_item(node)
        if rule not in granted:
            granted.append(rule)
    kept = [rule for rule in device_rules(spec) if rule not in granted]
    linux["resources"] = {**section(linux, "resources"), "devices": kept + granted}
    return linux


def _edited_hooks(spec: Spec, hooks: Sequence[Hook]) -> Item:
    edited = dict(section(spec, "hooks"))
    for hook in hooks:
        item: Item = {"path": hook.path, "args": list(hook.args), "env": list(hook.env)}
        if hook.timeout_seconds is not None:
            item["timeout"] = hook.timeout_seconds
        edited[hook.stage] = [old for old in items(edited, hook.stage) if old != item] + [item]
    return edited


def mount_item(mount: Mount) -> Item:
    """Return `mount` as an entry of `mounts`."""
    return {
        "destination": mount.destination,
        "type": mount.type,
        "source": mount.source,
        "options": list(mount.options),
    }


def _device_item(node: DeviceNode) -> Item:
    return {
        "path": node.path,
        "type": node.type,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.file_mode,
        "uid": node.uid,
        "gid": node.gid,
    }


def _rule_item(node: DeviceNode) -> Item:
    return {
        "allow": True,
        "type": node.type,
        "major": node.major,
        "minor": node.minor,
        "access": node.access,
    }
