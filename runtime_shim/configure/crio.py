# SPDX-License-Identifier: Apache-2.0
"""CRI-O's drop-in file. No I/O.

Source: crio.conf(5), "CRIO.RUNTIME.RUNTIMES TABLE"; crio.conf.d(5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime_shim.configure.editor import RUNTIME_NAME, Traces
from runtime_shim.configure.toml_text import (
    load_toml,
    table_at,
    with_table,
    with_value,
    without_table,
    without_value,
)

_BASE = ("crio", "runtime")
_RUNTIME = (*_BASE, "runtimes", RUNTIME_NAME)
_DEFAULT = "default_runtime"
_PATH = "runtime_path"
_COMMENT = "vgpuctl configure crio; `vgpuctl configure crio --undo` takes it back"

# What a handler shares with the one that the node uses. `runtime_config_path` and the like belong
# to other types of runtimes.
_INHERITED = (
    "runtime_root",
    "monitor_path",
    "monitor_cgroup",
    "monitor_env",
    "monitor_exec_cgroup",
    "allowed_annotations",
    "default_annotations",
    "privileged_without_host_devices",
    "disallowed_annotations",
)


class CrioHandler:
    """Finds the handler of the default runtime in the files that CRI-O reads."""

    def __init__(self) -> None:
        self._name = ""
        self._handlers: dict[str, Any] = {}

    def read(self, text: str) -> None:
        """Take in the next file, in CRI-O's order."""
        runtime = table_at(load_toml(text), _BASE)
        self._name = str(runtime.get(_DEFAULT) or self._name)
        self._handlers |= table_at(runtime, ("runtimes",))

    def default(self) -> dict[str, Any]:
        """Return the handler; an empty one when the files leave it to CRI-O."""
        for name in (self._name, "runc", "crun"):
            handler = self._handlers.get(name)
            if name == RUNTIME_NAME or not isinstance(handler, dict):
                continue
            if handler.get("runtime_type", "oci") in ("", "oci"):
                return handler
        return {}


@dataclass(frozen=True, kw_only=True)
class CrioEditor:
    """Edits a file of crio.conf.d, which CRI-O merges key by key."""

    handler: dict[str, Any] = field(default_factory=dict)
    """The default runtime's."""

    def configured(self, text: str, path: str, make_default: bool) -> str:
        """Return `text` with our handler."""
        current = table_at(load_toml(text), _RUNTIME)
        if current.get(_PATH) != path:
            if current:
                text = without_table(text, _RUNTIME)
            inherited = {key: self.handler[key] for key in _INHERITED if self.handler.get(key)}
            handler = {_PATH: path, "runtime_type": "oci", **inherited}
            text = with_table(text, _RUNTIME, handler, _COMMENT)
        if make_default and table_at(load_toml(text), _BASE).get(_DEFAULT) != RUNTIME_NAME:
            text = with_value(text, (*_BASE, _DEFAULT), RUNTIME_NAME, _COMMENT)
        return text

    def undone(self, text: str, before: Traces) -> str:
        """Return `text` with our handler and the default as they were."""
        if table_at(load_toml(text), _RUNTIME) and self.traces(text).runtime != before.runtime:
            text = without_table(text, _RUNTIME)
            if before.runtime is not None:
                text = with_table(text, _RUNTIME, before.runtime, "as before vgpuctl configure")
        if before.default != RUNTIME_NAME == table_at(load_toml(text), _BASE).get(_DEFAULT):
            if before.default is None:
                return without_value(text, (*_BASE, _DEFAULT))
            return with_value(text, (*_BASE, _DEFAULT), before.default, _COMMENT)
        return text

    def traces(self, text: str) -> Traces:
        """Return what the file says of us."""
        runtime = table_at(load_toml(text), _BASE)
        return Traces(
            runtime=table_at(runtime, ("runtimes",)).get(RUNTIME_NAME),
            default=runtime.get(_DEFAULT),
        )

    def is_empty(self, text: str) -> bool:
        """Tell whether the file says nothing."""
        return not load_toml(text)
