# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json. No I/O.

Source: Docker's reference, dockerd, "Daemon configuration file": `runtimes`, `default-runtime`.
"""

from __future__ import annotations

from typing import Any

from runtime_shim.configure.editor import RUNTIME_NAME, FaultError, Traces
from runtime_shim.configure.json_text import load_object, with_member, without_member

_RUNTIMES = "runtimes"
_DEFAULT = "default-runtime"


class DockerEditor:
    """Edits daemon.json; `path` alone, since dockerd makes a shell script of runtime arguments."""

    def configured(self, text: str, path: str, make_default: bool) -> str:
        """Return `text` with our runtime in `runtimes`."""
        table = _checked(text)
        entry = {"path": path}
        if table.get(_RUNTIMES, {}).get(RUNTIME_NAME) != entry:
            text = with_member(text, (_RUNTIMES, RUNTIME_NAME), entry)
        if make_default and table.get(_DEFAULT) != RUNTIME_NAME:
            text = with_member(text, (_DEFAULT,), RUNTIME_NAME)
        return text

    def undone(self, text: str, before: Traces) -> str:
        """Return `text` with `runtimes` and `default-runtime` as they were."""
        table = _checked(text)
        runtimes = table.get(_RUNTIMES, {})
        if before.runtime is not None:
            text = with_member(text, (_RUNTIMES, RUNTIME_NAME), before.runtime)
        elif set(runtimes) == {RUNTIME_NAME}:
            text = without_member(text, (_RUNTIMES,))
        elif RUNTIME_NAME in runtimes:
            text = without_member(text, (_RUNTIMES, RUNTIME_NAME))
        # Another default is somebody's later choice.
        if table.get(_DEFAULT) == RUNTIME_NAME and before.default != RUNTIME_NAME:
            if before.default is None:
                return without_member(text, (_DEFAULT,))
            return with_member(text, (_DEFAULT,), before.default)
        return text

    def traces(self, text: str) -> Traces:
        """Return what daemon.json says of us."""
        table = _checked(text)
        return Traces(
            runtime=table.get(_RUNTIMES, {}).get(RUNTIME_NAME), default=table.get(_DEFAULT)
        )

    def is_empty(self, text: str) -> bool:
        """Tell whether it is `{}`."""
        return not load_object(text)


def _checked(text: str) -> dict[str, Any]:
    table = load_object(text)
    if not isinstance(table.get(_RUNTIMES, {}), dict):
        raise FaultError(f"has {_RUNTIMES!r}, which is not an object")
    if not isinstance(table.get(_DEFAULT, ""), str):
        raise FaultError(f"has {_DEFAULT!r}, which is not a string")
    return table
