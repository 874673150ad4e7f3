# SPDX-License-Identifier: Apache-2.0
"""What `configure` has changed on this host, so that `--undo` can take it back."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime_shim.configure.editor import EditError, Traces
from runtime_shim.configure.text_file import read_text, remove_file, write_text

DEFAULT_RECORD = Path("/var/lib/vgpu/configure.json")
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Change:
    """One file that was changed."""

    engine: str
    path: str
    text_before: str | None
    """None: there was no file, or what was there is no longer what an undo may put back."""
    created: bool
    folders: tuple[str, ...]
    """Those that were made for it."""
    digest_after: str
    """Of the text that we wrote; a file with another one was edited by somebody since."""
    before: Traces
    """What it said under our names; enough to undo a file that was edited since."""

    @property
    def key(self) -> tuple[str, str]:
        """An engine may have several files: of two containerds, say."""
        return self.engine, self.path


def digest(text: str) -> str:
    """Return what tells two texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()


class Record:
    """The changes of this host, in one file that is replaced with each of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def changes(self) -> list[Change]:
        """Return them, the oldest first. Raises EditError for a file that cannot be understood."""
        try:
            text = read_text(self._path)
            table: dict[str, Any] = (
                json.loads(text) if text else {"version": FORMAT_VERSION, "changes": []}
            )
            if table["version"] != FORMAT_VERSION:
                raise ValueError(f"it is of version {table['version']}")
            return [
                Change(
                    **{
                        **each,
                        "folders": tuple(each["folders"]),
                        "before": Traces(**each["before"]),
                    }
                )
                for each in table["changes"]
            ]
        except (ValueError, KeyError, TypeError, EditError) as error:
            raise EditError(f"the record {self._path} cannot be understood: {error}") from error

    def find(self, engine: str, path: Path) -> Change | None:
        """Return the change of one file."""
        return next((each for each in self.changes() if each.key == (engine, str(path))), None)

    def keep(self, change: Change) -> None:
        """Remember a change, in the place of an older one of the same file."""
        self._write([*self._others(change), change])

    def forget(self, change: Change) -> None:
        """Remember it no longer."""
        self._write(self._others(change))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else configure in the meantime; where nobody may write, nobody can."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            yield
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _others(self, change: Change) -> list[Change]:
        return [each for each in self.changes() if each.key != change.key]

    def _write(self, changes: list[Change]) -> None:
        if not changes:
            remove_file(self._path, [])
            return
        table = {"version": FORMAT_VERSION, "changes": [asdict(each) for each in changes]}
        write_text(self._path, json.dumps(table, indent=1, default=str) + "\n")
