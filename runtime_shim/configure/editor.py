# SPDX-License-Identifier: Apache-2.0
"""What every engine's editor does with the text of a configuration file. No I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runtime_shim.errors import RuntimeShimError

RUNTIME_NAME = "vgpu"
"""The runtime's name in every engine, and the handler of the RuntimeClass."""


class EditError(RuntimeShimError):
    """An engine that is not configured, or a change that is not taken back."""


class FaultError(EditError):
    """What is wrong with a file: half a sentence, which `about` completes."""


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Say of which file a FaultError speaks."""
    try:
        yield
    except FaultError as error:
        raise EditError(f"{path} {error}; it is left as it was") from error


@dataclass(frozen=True, kw_only=True)
class Traces:
    """What a file says about our name, and what it said before us."""

    runtime: Any = None
    """The value under our name, as the file's language has it; None when there is none."""
    default: str | None = None
    """The engine's default runtime; None when the file does not name one."""


class Editor(Protocol):
    """Edits one kind of configuration file; every method raises FaultError for a broken one."""

    def configured(self, text: str, path: str, make_default: bool) -> str:
        """Return `text` with the runtime at `path`; the same text when it says so already."""

    def undone(self, text: str, before: Traces) -> str:
        """Return `text` with the two values that it had before us, and all else as it is."""

    def traces(self, text: str) -> Traces:
        """Return what `text` says now."""

    def is_empty(self, text: str) -> bool:
        """Tell whether `text` configures nothing, so that nobody misses the file."""
