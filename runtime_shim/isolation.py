# SPDX-License-Identifier: Apache-2.0
"""What became of the latest start of each pod's container that was to have a slice; pure.

It is told with every report, so that `kubectl describe` shows why a container does not start, or
what weakens its isolation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.messages import one_line

# A pod that was deleted is of interest to nobody for longer, and no report may grow for ever.
_KEPT_SECONDS: Final = 600.0
_MOST: Final = 1024
_REASON_CHARACTERS: Final = 400

_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    message: pb.ContainerIsolation
    at: float


class Isolation:
    """The latest start of each container. Lives on the event loop."""

    def __init__(self, changed: Callable[[], None], clock: Callable[[], float]) -> None:
        """`changed` is called when there is news; `clock` gives seconds."""
        self._changed = changed
        self._clock = clock
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()

    def enforced(self, allocation: pb.Allocation, weaknesses: Iterable[str] = ()) -> None:
        """Note that a container starts with what holds it, and what makes that weaker."""
        self._note(
            pb.ContainerIsolation(
                pod=allocation.pod,
                allocation_id=allocation.allocation_id,
                state=pb.ISOLATION_STATE_ENFORCED,
                reason=_reason("; ".join(weaknesses)),
            )
        )

    def refused(self, pod: pb.PodIdentity, allocation_id: str, reason: str) -> None:
        """Note that a container does not start."""
        self._note(
            pb.ContainerIsolation(
                pod=pod,
                allocation_id=allocation_id,
                state=pb.ISOLATION_STATE_REFUSED,
                reason=_reason(reason),
            )
        )

    def messages(self, running: Iterable[pb.Allocation]) -> list[pb.ContainerIsolation]:
        """Return everything that is worth a report; `running` containers started, whoever saw it.

        They alone are kept however old they are.
        """
        alive = {_key(allocation.pod): allocation for allocation in running}
        too_old = self._clock() - _KEPT_SECONDS
        for key, entry in list(self._entries.items()):
            if key not in alive and entry.at < too_old:
                del self._entries[key]
        for key, allocation in alive.items():
            if key not in self._entries:  # an earlier agent started it
                self._entries[key] = _Entry(
                    message=pb.ContainerIsolation(
                        pod=allocation.pod,
                        allocation_id=allocation.allocation_id,
                        state=pb.ISOLATION_STATE_ENFORCED,
                    ),
                    at=self._clock(),
                )
        return [entry.message for entry in self._entries.values()]

    def _note(self, message: pb.ContainerIsolation) -> None:
        key = _key(message.pod)
        known = self._entries.pop(key, None)
        self._entries[key] = _Entry(message=message, at=self._clock())
        while len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        if known is None or known.message != message:
            self._changed()


def _key(pod: pb.PodIdentity) -> _Key:
    return pod.uid, pod.container_name


def _reason(text: str) -> str:
    return one_line(text)[:_REASON_CHARACTERS]
