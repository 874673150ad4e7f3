# SPDX-License-Identifier: Apache-2.0
"""Reads the values of annotations and limits: numbers in a range, JSON, lists. Pure.

Every reader raises DialectError with the field's name, its value, the range, and a remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from scheduler_cache.dialects.dialect import DialectError, StatedSlice
from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.model import MAX_BYTES, MemoryAmount, Request
from scheduler_cache.pod import Pod
from scheduler_cache.quantity import whole_number

MIB = 1 << 20
_MOST_NAMES = 256

_FIX_REQUEST = "correct the pod's spec and create it again"
FIX_DECISION = "delete the pod, so that it is scheduled anew"

_INTEGER = re.compile(r"\s*([0-9]{1,19})\s*", re.ASCII)
_TIME = re.compile(r"[0-9]{1,20}", re.ASCII)
# What may follow a card's UUID: a replica or chunk number, as device plugins write them.
_REPLICA = re.compile(r"(?:::[0-9]+|_[0-9]+)$", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,120}", re.ASCII)
_DASHED_REPLICA = re.compile(r"((?:GPU|MIG)(?:-[0-9a-f]+){5})-[0-9]+", re.ASCII)
_MIG_PLACE = re.compile(r"(.*)\[[^\[\]]*\]$", re.ASCII | re.DOTALL)


def integer(field: str, value: object, low: int, high: int, remedy: str = _FIX_REQUEST) -> int:
    """Return a decimal number, given as text or as an int, that lies in `low..high`."""
    match = _INTEGER.fullmatch(value) if isinstance(value, str) else None
    number = int(match[1]) if match else value
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise DialectError(field, value, f"it must be a whole number in {low}..{high}", remedy)
    return number


def quantity(field: str, value: object, low: int, high: int = MAX_BYTES) -> int:
    """Return a Kubernetes quantity that is a whole number in `low..high`."""
    try:
        number = whole_number(value, field)
    except InvalidRequestError as error:
        raise DialectError(field, value, str(error), _FIX_REQUEST) from error
    if not low <= number <= high:
        raise DialectError(field, value, f"it must lie in {low}..{high}", _FIX_REQUEST)
    return number


def memory(field: str, bytes_: int, value: object) -> MemoryAmount:
    """Return an amount of bytes, which must be 1 or more and fit the wire."""
    if not 1 <= bytes_ <= MAX_BYTES:
        raise DialectError(field, value, "it is no amount of memory", _FIX_REQUEST)
    return MemoryAmount(bytes=bytes_)


def json_object(field: str, text: str, remedy: str = _FIX_REQUEST) -> dict[str, Any]:
    """Return the JSON object that `text` is."""
    value = json_value(field, text, remedy)
    if not isinstance(value, dict):
        raise DialectError(field, text, "it must be a JSON object", remedy)
    return value


def json_array(field: str, text: str, remedy: str = _FIX_REQUEST) -> list[Any]:
    """Return the JSON array that `text` is."""
    value = json_value(field, text, remedy)
    if not isinstance(value, list):
        raise DialectError(field, text, "it must be a JSON array", remedy)
    return value


def json_value(field: str, text: str, remedy: str) -> Any:  # noqa: ANN401  whatever JSON holds
    """Return what `text` is in JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DialectError(field, text, "it is not JSON", remedy) from error


def items(text: str, separator: str = ",") -> list[str]:
    """Return the items of a list without blanks; a trailing separator and empty items are no
    item.
    """
    return [item for part in text.split(separator) if (item := part.strip())]


def names_in(pod: Pod, annotation: str) -> list[str]:
    """Return the cards or models that a pod's annotation lists; every container keeps a copy."""
    text = pod.annotations.get(annotation, "")
    found = items(text)
    if len(found) > _MOST_NAMES:
        rule = f"it lists {len(found)} names, more than {_MOST_NAMES}"
        raise DialectError(annotation, text, rule, "list fewer")
    return found


def card_uuid(field: str, text: str, remedy: str = FIX_DECISION) -> str:
    """Return the UUID of the card that `text` names, without a replica's or a MIG place's suffix.

    `GPU-…::3`, `GPU-…_3`, `GPU-…-3` (a sixth dash) and `GPU-…[group2-1]` name `GPU-…`.
    """
    name = text.strip()
    if place := _MIG_PLACE.fullmatch(name):
        name = place[1]
    name = _REPLICA.sub("", name)
    if dashed := _DASHED_REPLICA.fullmatch(name):
        name = dashed[1]
    if not _UUID.fullmatch(name):
        raise DialectError(field, text, "a card is named GPU-… or MIG-…", remedy)
    return name


def request_of(field: str, value: object, **amounts: Any) -> Request:  # noqa: ANN401  its fields
    """Return a Request; a rule of the model that it breaks becomes an error of `field`."""
    try:
        return Request(**amounts)
    except InvalidRequestError as error:
        raise DialectError(field, value, str(error), _FIX_REQUEST) from error


def text_of(source: Mapping[str, Any], field: str, key: str, remedy: str = FIX_DECISION) -> str:
    """Return the text under `key`, which must be there."""
    value = source.get(key)
    if not isinstance(value, str) or not value:
        raise DialectError(f"{field}: {key}", value, "it must be a text that is not empty", remedy)
    return value


def mig_place(text: str) -> bool:
    """Return whether a card is named with a place in its MIG layout, as in `GPU-…[group2-1]`."""
    return bool(_MIG_PLACE.fullmatch(text.strip()))


def seconds_ns(text: str | None) -> int:
    """Return a time that somebody wrote in seconds or ns as ns of the Unix epoch; 0: none.

    Told apart by size. MaxUint64, with which a plugin says that it is done, is none.
    """
    match = _TIME.fullmatch(text) if text else None
    if match is None:
        return 0
    number = int(match[0])
    if number >= (1 << 63) - 1:
        return 0
    return number if number >= 10**14 else number * 10**9


def containers_of(text: str) -> list[list[list[str]]]:
    """Return the fields of each device of each container of a decision.

    `;` ends a container, `:` a device, `,` a field. What follows the last `;` is one more container
    only when it holds something.
    """
    entries = text.split(";")
    if not entries[-1].strip():
        entries.pop()
    return [
        [
            [part.strip() for part in device.split(",")]
            for device in entry.split(":")
            if device.strip()
        ]
        for entry in entries
    ]


def stated(field: str, fields: list[str], unit_bytes: int) -> StatedSlice | None:
    """Return what `uuid,type,memory,cores` says; None for the empty entry `,,0,0` of HAMi ≤ 2.7."""
    if not fields[0]:
        return None
    text = ",".join(fields)
    if len(fields) < 4:
        raise DialectError(
            field, text, "a device has 4 fields: uuid,type,memory,cores", FIX_DECISION
        )
    units = integer(f"{field}: memory", fields[2], 1, 1 << 40, FIX_DECISION)
    cores = integer(f"{field}: cores", fields[3], 0, 100, FIX_DECISION)
    return StatedSlice(
        card=card_uuid(field, fields[0]),
        memory=memory(field, units * unit_bytes, text),
        cores_percent=cores or None,
    )
