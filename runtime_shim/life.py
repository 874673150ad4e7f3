# SPDX-License-Identifier: Apache-2.0
"""The life of a claim, as a pure function of what was seen; docs: DESIGN, the life of a container.

running   from create until the container's init is gone and its own cgroup is empty, or the create
          has failed; not knowing is no reason to end it
stopped   the engine still knows the container: a restart gets the same cards
released  the engine's directory of the container is gone
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from vgpu.v1 import scheduler_cache_pb2 as pb

RUNNING = pb.CLAIM_STATE_RUNNING
STOPPED = pb.CLAIM_STATE_STOPPED
RELEASED = pb.CLAIM_STATE_RELEASED

NO_PROCESS_SECONDS = 30.0
"""A verdict without a process this long was for a create that failed, where nobody saw its end."""


class Process(Enum):
    """What is known of a container's processes."""

    ALIVE = auto()
    """The launcher, the container's init, or anything in its own cgroup."""
    GONE = auto()
    """There was an init, and it has ended."""
    FAILED = auto()
    """The create is over, and the runtime has no such container."""
    NEVER = auto()
    """The runtime has no such container, and whether the create is over nobody knows."""
    UNKNOWN = auto()
    """No init was seen since the verdict, and the runtime's files cannot be looked at."""


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One look at a container."""

    process: Process
    engine_knows: bool
    """The engine's directory exists, or whether it does cannot be told."""
    seconds_since_verdict: float
    """Infinite when the verdict was given in an earlier boot."""


def next_state(state: pb.ClaimState, sighting: Sighting) -> pb.ClaimState:
    """Return the state that follows; RELEASED is the last one.

    A live process outranks everything, so that no slice is freed under it.
    """
    if state == RELEASED:
        return RELEASED
    if sighting.process is Process.ALIVE:
        return RUNNING
    if not sighting.engine_knows:
        return RELEASED
    if state == STOPPED or sighting.process in (Process.GONE, Process.FAILED):
        return STOPPED
    if sighting.process is Process.UNKNOWN:
        return RUNNING
    return RUNNING if sighting.seconds_since_verdict < NO_PROCESS_SECONDS else STOPPED
