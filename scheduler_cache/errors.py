# SPDX-License-Identifier: Apache-2.0
"""The errors of the scheduler cache; each class carries the gRPC status that it leaves with."""

from __future__ import annotations

import grpc


class SchedulerCacheError(Exception):
    """Base of all errors raised by `scheduler_cache`. The message is one sentence for a person."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL


class InvalidRequestError(SchedulerCacheError):
    """A request or a report breaks a rule whatever the state of the host."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class NoRoomError(SchedulerCacheError):
    """The request fits on no card, now or ever; nothing was changed.

    `never` is true when it would not fit on this node's cards even if they were all idle: waiting
    does not help then.
    """

    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, reason: str, *, never: bool) -> None:
        super().__init__(reason)
        self.never = never


class NotFoundError(SchedulerCacheError):
    """Nothing is known under the name that was asked for."""

    status = grpc.StatusCode.NOT_FOUND


class NotSyncedError(SchedulerCacheError):
    """The cache cannot answer before the node has reported; retrying is safe."""

    status = grpc.StatusCode.UNAVAILABLE


class WrongNodeError(SchedulerCacheError):
    """The caller asks for what belongs to another node."""

    status = grpc.StatusCode.PERMISSION_DENIED


class StoreError(SchedulerCacheError):
    """The state on disk cannot be read or written; nothing was changed.

    To ask again at once does not help.
    """

    status = grpc.StatusCode.INTERNAL


class StoreBusyError(StoreError):
    """Somebody else holds the database for a moment; retrying is safe."""

    status = grpc.StatusCode.UNAVAILABLE


class ConfigError(SchedulerCacheError):
    """The configuration cannot be used."""


class ListenError(SchedulerCacheError):
    """A listening address cannot be used."""


class NotYetError(SchedulerCacheError):
    """The pod is not known, not bound, or waits for room yet; the next event may change that.

    Resolve holds the call until its deadline and asks again on every change of the cluster.
    """

    status = grpc.StatusCode.DEADLINE_EXCEEDED


class NoSliceError(SchedulerCacheError):
    """The pod is known, and this container of it has no slice; final as long as the pod lives."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class NotBelievedError(SchedulerCacheError):
    """What was decided about the container is not believed, or contradicts the caller's proof."""

    status = grpc.StatusCode.PERMISSION_DENIED


class NotProvedError(SchedulerCacheError):
    """The caller's certificate or token proves nobody that may ask."""

    status = grpc.StatusCode.PERMISSION_DENIED


class TooOftenError(SchedulerCacheError):
    """The caller does not wait for its answers; retrying is safe, a moment later."""

    status = grpc.StatusCode.UNAVAILABLE


class NotLeaderError(SchedulerCacheError):
    """Another replica leads, or nobody does yet; retrying is safe."""

    status = grpc.StatusCode.UNAVAILABLE
