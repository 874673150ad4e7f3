# SPDX-License-Identifier: Apache-2.0
"""Which pods have ended, as the leader says it to the replicas that follow. Pure.

Agents report the end of containers to the leader alone. So the leader states, at one moment: of
the pods that had ended at this version of the pods, only these still hold slices. Such a statement
stays true, so that it may be read late, twice, or after the leader has gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# A node with more of them is stated as a whole, so that no agent can fill the annotation.
_MOST_NAMED: Final = 100
# The API server takes 256 KiB of annotations on an object.
_MOST_CHARACTERS: Final = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Pods that have ended, up to a version."""

    version: int
    """A resourceVersion of the pods: later ends are not spoken of."""
    held: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """By node: uids of ended pods that still hold their slices. None: all that ended there do."""

    def covers(self, node_name: str, uid: str, ended_version: int) -> bool:
        """Return whether a pod that ended at a version (0: not known) holds nothing any more."""
        held = self.held.get(node_name, frozenset())
        return 0 < ended_version <= self.version and held is not None and uid not in held

    def text(self) -> str:
        """Return the statement as one line; empty: it is too long to be written."""
        held = {name: _named(uids) for name, uids in sorted(self.held.items())}
        text = json.dumps({"version": self.version, "held": held}, separators=(",", ":"))
        return text if len(text) <= _MOST_CHARACTERS else ""


def ends_of(text: str) -> Ends | None:
    """Return a statement that was read; None: it says nothing that can be used."""
    try:
        source = json.loads(text)
        return Ends(
            version=_number(source["version"]),
            held={
                str(name): None if uids is None else frozenset(map(str, uids))
                for name, uids in source["held"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _named(uids: Iterable[str] | None) -> list[str] | None:
    named = None if uids is None else sorted(uids)
    return None if named is None or len(named) > _MOST_NAMED else named


def _number(value: Any) -> int:  # noqa: ANN401 - JSON
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("no number")
    return value
