# SPDX-License-Identifier: Apache-2.0
"""containerd's config.toml, of configuration versions 1, 2 and 3. No I/O.

Source: containerd, docs/cri/config.md and docs/man/containerd-config.toml.5.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime_shim.configure.editor import RUNTIME_NAME, FaultError, Traces
from runtime_shim.configure.toml_text import (
    load_toml,
    table_at,
    with_table,
    with_value,
    without_table,
    without_value,
)

# The table of the CRI plugin's runtimes, by the version of the configuration.
PLUGINS = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_RUNC = "io.containerd.runc.v2"
_BINARY = "BinaryName"
_DEFAULT = "default_runtime_name"
_KEPT = "vgpuctl configure containerd: containerd's own, which the table below would hide"
_COMMENT = "vgpuctl configure containerd; `vgpuctl configure containerd --undo` takes it back"


@dataclass(frozen=True, kw_only=True)
class Effective:
    """What containerd makes of its files, imports and defaults included."""

    default: str = "runc"
    runtimes: Mapping[str, Any] = field(default_factory=dict)
    imports: Sequence[str] = ()
    disabled: bool = False
    """The CRI plugin is switched off."""
    version: int = 0
    """Of the configuration; 0 when the text names none."""


def effective_config(text: str) -> Effective:
    """Return what matters here of a configuration, above all of `containerd config dump`'s."""
    tables = load_toml(text)
    version = tables.get("version", 0)
    if not isinstance(version, int):
        raise FaultError("has a version that is not a number")
    disabled = tables.get("disabled_plugins", [])
    cri: Mapping[str, Any] = {}
    for plugin in reversed(PLUGINS.values()):
        cri = cri or table_at(tables, ("plugins", plugin, "containerd"))
    return Effective(
        default=str(cri.get(_DEFAULT) or "runc"),
        runtimes=table_at(cri, ("runtimes",)),
        imports=[str(each) for each in tables.get("imports", [])],
        disabled=any(name in disabled for name in PLUGINS.values()),
        version=version,
    )


def defines_cri(text: str) -> bool:
    """Tell whether a file has the CRI plugin's table, which replaces another file's before 2.1."""
    plugins = table_at(load_toml(text), ("plugins",))
    return any(name in plugins for name in PLUGINS.values())


@dataclass(frozen=True, kw_only=True)
class ContainerdEditor:
    """Edits config.toml, or a file that it imports."""

    effective: Effective = field(default_factory=Effective)
    new_file_version: int = 2
    """The version of a file that we begin."""
    merges: bool = False
    """A table of handlers adds to containerd's own; before 2.1 it replaces them, runc above all."""

    def configured(self, text: str, path: str, make_default: bool) -> str:
        """Return `text` with our handler, which has the options of the default one."""
        if not text.strip():
            text = f"version = {self.new_file_version}\n"
        base = _base(text)
        runtime = (*base, "runtimes", RUNTIME_NAME)
        current = table_at(load_toml(text), runtime)
        if table_at(current, ("options",)).get(_BINARY) != path:
            if current:
                text = without_table(text, runtime)
            if not self.merges and not table_at(load_toml(text), runtime[:-1]):
                for name, handler in self.effective.runtimes.items():
                    if name != RUNTIME_NAME:
                        text = with_table(text, (*runtime[:-1], name), _stated(handler), _KEPT)
            text = with_table(text, runtime, self._handler(path), _COMMENT)
        if make_default and table_at(load_toml(text), base).get(_DEFAULT) != RUNTIME_NAME:
            text = with_value(text, (*base, _DEFAULT), RUNTIME_NAME, _COMMENT)
        return text

    def undone(self, text: str, before: Traces) -> str:
        """Return `text` with our handler and the default as they were."""
        base = _base(text)
        runtime = (*base, "runtimes", RUNTIME_NAME)
        if table_at(load_toml(text), runtime) and self.traces(text).runtime != before.runtime:
            text = without_table(text, runtime)
            if before.runtime is not None:
                text = with_table(text, runtime, before.runtime, "as before vgpuctl configure")
        # Another default is somebody's later choice.
        if before.default != RUNTIME_NAME == table_at(load_toml(text), base).get(_DEFAULT):
            if before.default is None:
                return without_value(text, (*base, _DEFAULT))
            return with_value(text, (*base, _DEFAULT), before.default, _COMMENT)
        return text

    def traces(self, text: str) -> Traces:
        """Return what the file says of us."""
        table = table_at(load_toml(text), _base(text))
        runtime = table_at(table, ("runtimes",)).get(RUNTIME_NAME)
        return Traces(runtime=runtime, default=table.get(_DEFAULT))

    def is_empty(self, text: str) -> bool:
        """Tell whether the file says nothing but its version."""
        return set(load_toml(text)) <= {"version"}

    def _handler(self, path: str) -> dict[str, Any]:
        """Return a handler that differs from the node's own in its program alone.

        SystemdCgroup above all: a handler with the other cgroup driver breaks the kubelet's books.
        """
        runtimes = self.effective.runtimes
        for name in (self.effective.default, "runc", "crun"):
            model = runtimes.get(name)
            # Kata and gVisor have shims of their own, which never call a runtime's program.
            if name != RUNTIME_NAME and model and model.get("runtime_type") == _RUNC:
                break
        else:
            model = {}
        inherited = _stated(model)
        options = {**inherited.pop("options", {}), _BINARY: path}
        return {"runtime_type": _RUNC, **inherited, "options": options}


def _stated(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without what says nothing: a dump spells out every empty default."""
    inner = {key: _stated(each) if isinstance(each, dict) else each for key, each in table.items()}
    return {key: value for key, value in inner.items() if value}


def _base(text: str) -> tuple[str, ...]:
    """Return the path of the table with `runtimes` and `default_runtime_name`."""
    tables = load_toml(text)
    plugins = table_at(tables, ("plugins",))
    version = tables.get("version")
    if version is None:  # an imported file may leave it out
        found = [number for number, name in PLUGINS.items() if name in plugins]
        version = found[-1] if found else 1
    if version not in PLUGINS:
        known = ", ".join(map(str, PLUGINS))
        raise FaultError(f"is of version {version!r}; known are {known}")
    return ("plugins", PLUGINS[version], "containerd")
