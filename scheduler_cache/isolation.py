# SPDX-License-Identifier: Apache-2.0
"""Whether containers are held to their slices, as their node says, on the pod itself. Pure.

The annotation `vgpu.dev/isolation` is a JSON object by container name:
`{"main":{"state":"enforced"},"init":{"reason":"…","state":"refused"}}`. A container that was
started under a weaker isolation than usual is `enforced` with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from scheduler_cache.model import PodContainer

# The text goes into an annotation that every watcher of the pod reads.
_REASON_CHARACTERS: Final = 400


class IsolationState(Enum):
    """What became of a container's latest start."""

    ENFORCED = "enforced"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """What a node says of one container."""

    pod: PodContainer
    state: IsolationState
    reason: str = ""
    """Refused: why. Enforced: what weakens it; empty: nothing."""


def annotated(known: str, told: Iterable[Isolation]) -> str:
    """Return the annotation after what was told of a pod's containers; `known` is the present one.

    What it says of other containers stays. An unreadable one is written anew.
    """
    try:
        entries = json.loads(known or "{}")
    except (ValueError, RecursionError):
        entries = {}
    if not isinstance(entries, dict):
        entries = {}
    for each in told:
        entry = {"state": each.state.value}
        if each.reason:
            entry["reason"] = each.reason[:_REASON_CHARACTERS]
        entries[each.pod.container_name] = entry
    return json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def worth_telling(known: str, told: Iterable[Isolation]) -> list[Isolation]:
    """Return those of which the present annotation does not say the same and a person should know:
    refused, or weaker than usual.
    """
    return [
        each
        for each in told
        if (each.state is IsolationState.REFUSED or each.reason)
        and annotated(known, [each]) != annotated(known, [])
    ]


def by_pod(told: Iterable[Isolation]) -> Mapping[str, list[Isolation]]:
    """Return what was told by pod uid."""
    found: dict[str, list[Isolation]] = {}
    for each in told:
        found.setdefault(each.pod.uid, []).append(each)
    return found
