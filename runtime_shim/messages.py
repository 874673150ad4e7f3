# SPDX-License-Identifier: Apache-2.0
"""The one line that a person reads when a container is refused; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Engines map these words to other meanings (docker: exit codes 126 and 127; CRI-O: not found), so a
# line of ours never carries them, also not inside a foreign text. Source: docs/contract.md §5.
_ENGINE_WORDS = {
    "no such file or directory": "missing file",
    "executable file not found": "missing program",
    "permission denied": "access refused",
    "no such process": "process is gone",
    "container not running": "container is down",
}
_ENGINE_PATTERN = re.compile("|".join(map(re.escape, _ENGINE_WORDS)), re.IGNORECASE)

LINE_BYTES = 4096
"""The longest line; far more than a sentence, far less than the launcher's packet."""


@dataclass(frozen=True, kw_only=True)
class ContainerName:
    """What a person calls a container."""

    name: str
    """The engine's or Kubernetes' name for it; its id when it has no other."""
    place: str
    """`NAMESPACE/POD`, or the first 12 characters of its id."""


def name_by_id(container_id: str) -> ContainerName:
    """Return the name of a container of which nothing but its id is known."""
    return ContainerName(name=container_id[:64], place=container_id[:12])


def refusal_line(container: ContainerName, reason: str, remedy: str) -> str:
    """Return `vgpu: container 'NAME' (PLACE): REASON; REMEDY`, one line without engine words."""
    return one_line(f"vgpu: container '{container.name}' ({container.place}): {reason}; {remedy}")


def one_line(text: str) -> str:
    """Return `text` as one printable line of at most LINE_BYTES that no engine misreads."""
    text = "".join(c if c.isprintable() else " " for c in text)
    text = _ENGINE_PATTERN.sub(
        lambda match: _ENGINE_WORDS[match[0].lower()], " ".join(text.split())
    )
    return text.encode(errors="replace")[:LINE_BYTES].decode(errors="ignore")
