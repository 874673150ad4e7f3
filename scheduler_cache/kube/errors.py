# SPDX-License-Identifier: Apache-2.0
"""What the API server, or the way to it, may answer instead of what was asked for."""

from __future__ import annotations

import grpc

from scheduler_cache.errors import SchedulerCacheError


class KubeError(SchedulerCacheError):
    """Base of all errors of talking to the API server."""

    status = grpc.StatusCode.UNAVAILABLE


class KubeConfigError(KubeError):
    """The kubeconfig, the service account or its exec plugin cannot be used."""


class UnreachableError(KubeError):
    """No answer: the connection failed, broke, or nothing came in time."""


class ApiError(KubeError):
    """The API server refused. `code` is the HTTP status, `reason` the word of its Status object."""

    def __init__(
        self, what: str, code: int, reason: str, message: str, retry_after: float = 0.0
    ) -> None:
        super().__init__(f"{what}: {code} {reason or 'no reason'}: {message}")
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after


class MissingError(ApiError):
    """404: no such object, or no such kind of object in this cluster."""


class ConflictError(ApiError):
    """409: somebody else changed the object, or made it first."""


class GoneError(ApiError):
    """410: the resource version is older than what the API server remembers; list anew."""


_CLASSES: dict[int, type[ApiError]] = {404: MissingError, 409: ConflictError, 410: GoneError}


def api_error(
    what: str, code: int, reason: str, message: str, retry_after: float = 0.0
) -> ApiError:
    """Return the error of the class that the status stands for."""
    return _CLASSES.get(code, ApiError)(what, code, reason, message, retry_after)
