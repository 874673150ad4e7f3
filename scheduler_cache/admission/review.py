# SPDX-License-Identifier: Apache-2.0
"""The API server's question and our answer: AdmissionReview v1. Pure.

Source: the API reference, admission.k8s.io/v1; "Dynamic Admission Control", Request and Response.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import msgspec

from scheduler_cache.errors import SchedulerCacheError

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

# The API server cuts a warning at 256 characters, and drops what is beyond 4096 in all.
_WARNING_LENGTH: Final = 256
_WARNINGS_LENGTH: Final = 4096

Json = Mapping[str, Any]


class UnreadableReviewError(SchedulerCacheError):
    """The body is no AdmissionReview that an API server would send."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class DeniedError(SchedulerCacheError):
    """What the API server was asked to store breaks a rule. The message goes to who asked."""

    status = grpc.StatusCode.PERMISSION_DENIED


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """What somebody wants to do with one object."""

    uid: str
    """Of this question, not of the object."""
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    resource: str
    """Plural, such as `pods`."""
    subresource: str = ""
    namespace: str = ""
    """Empty: the object is in none."""
    user: str = ""
    groups: tuple[str, ...] = ()
    new: Json = field(default_factory=dict)
    """Empty on DELETE."""
    old: Json = field(default_factory=dict)
    """Empty on CREATE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Our answer. `patch` is a JSON patch; empty: the object stays as it is."""

    denial: str = ""
    """Why not; empty: it is allowed."""
    patch: tuple[Json, ...] = ()
    warnings: tuple[str, ...] = ()


ALLOWED: Final = Verdict()


def review_of(body: bytes) -> Review:
    """Return the question in a request's body. Raises UnreadableReviewError."""
    try:
        source = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableReviewError(f"the body is not JSON: {error}") from error
    if _text(source, "apiVersion") != API_VERSION or _text(source, "kind") != KIND:
        raise UnreadableReviewError(f"the body is not an {KIND} of {API_VERSION}")
    request = _mapping(source, "request")
    resource = _mapping(request, "resource")
    user = _mapping(request, "userInfo")
    groups = user.get("groups") or []
    if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
        raise UnreadableReviewError("request.userInfo.groups is not a list of texts")
    return Review(
        uid=_text(request, "uid", required=True),
        operation=_text(request, "operation", required=True),
        resource=_text(resource, "resource", required=True),
        subresource=_text(request, "subResource"),
        namespace=_text(request, "namespace"),
        user=_text(user, "username"),
        groups=tuple(groups),
        new=_mapping(request, "object"),
        old=_mapping(request, "oldObject"),
    )


def answer_of(review: Review, verdict: Verdict) -> bytes:
    """Return the body of our answer."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": not verdict.denial}
    if verdict.denial:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": verdict.denial}
    elif verdict.patch:
        patch = json.dumps(verdict.patch, separators=(",", ":")).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if warnings := list(_fitting(verdict.warnings)):
        response["warnings"] = warnings
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response}).encode()


def _fitting(warnings: tuple[str, ...]) -> list[str]:
    kept, room = [], _WARNINGS_LENGTH
    for each in warnings:
        text = each if len(each) <= _WARNING_LENGTH else f"{each[: _WARNING_LENGTH - 3]}..."
        room -= len(text.encode())
        if room < 0:
            break
        kept.append(text)
    return kept


def _mapping(source: object, key: str) -> Json:
    """Return the object under `key`; absent and null are an empty one."""
    value = source.get(key) if isinstance(source, dict) else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnreadableReviewError(f"{key} is not a JSON object")
    return value


def _text(source: object, key: str, *, required: bool = False) -> str:
    value = source.get(key) if isinstance(source, dict) else None
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise UnreadableReviewError(f"{key} is not a text")
    return value
