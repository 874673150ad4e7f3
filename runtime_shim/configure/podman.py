# SPDX-License-Identifier: Apache-2.0
"""Podman's drop-in file. No I/O.

Source: containers.conf(5), "ENGINE TABLE": `runtime`, `runtimes`; "Configuration files".
"""

from __future__ import annotations

from typing import Any

from runtime_shim.configure.editor import RUNTIME_NAME, FaultError, Traces
from runtime_shim.configure.toml_text import load_toml, table_at, with_value, without_value

_ENGINE = ("engine",)
_RUNTIME = ("engine", "runtimes", RUNTIME_NAME)
_DEFAULT = ("engine", "runtime")
_COMMENT = "vgpuctl configure podman; `vgpuctl configure podman --undo` takes it back"


class PodmanEditor:
    """Edits a file of containers.conf.d, which podman and buildah merge key by key."""

    def configured(self, text: str, path: str, make_default: bool) -> str:
        """Return `text` with our runtime."""
        traces = self.traces(text)
        # Before the runtimes, since a table above its own tables reads better.
        if make_default and traces.default != RUNTIME_NAME:
            text = with_value(text, _DEFAULT, RUNTIME_NAME, _COMMENT)
        if traces.runtime != [path]:
            text = with_value(text, _RUNTIME, [path], _COMMENT)
        return text

    def undone(self, text: str, before: Traces) -> str:
        """Return `text` with our runtime and the default as they were."""
        now = self.traces(text)
        if now.runtime is not None and now.runtime != before.runtime:
            text = _restored(text, _RUNTIME, before.runtime)
        if now.default == RUNTIME_NAME != before.default:
            text = _restored(text, _DEFAULT, before.default)
        return text

    def traces(self, text: str) -> Traces:
        """Return what the file says of us."""
        tables = load_toml(text)
        default = table_at(tables, _ENGINE).get("runtime")
        if not isinstance(default, str | None):
            raise FaultError("has engine.runtime, which is not a string")
        return Traces(
            runtime=table_at(tables, _RUNTIME[:-1]).get(RUNTIME_NAME),
            default=default,
        )

    def is_empty(self, text: str) -> bool:
        """Tell whether the file says nothing."""
        return not load_toml(text)


def _restored(text: str, path: tuple[str, ...], value: Any) -> str:  # noqa: ANN401 - TOML's
    if value is None:
        return without_value(text, path)
    return with_value(text, path, value, _COMMENT)
