# SPDX-License-Identifier: Apache-2.0
"""Changes single members of a JSON text and leaves every other byte as it is. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime_shim.configure.editor import FaultError

_BLANKS = " \t\r\n"
_INDENT = "  "


def load_object(text: str) -> dict[str, Any]:
    """Return the object that `text` is; an empty text is an empty one. Raises FaultError."""
    try:
        table = _loads(text) if text.strip(_BLANKS) else {}
    except ValueError as error:
        raise FaultError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise FaultError("is nested too deeply") from error
    if not isinstance(table, dict):
        raise FaultError("is not a JSON object")
    return table


def with_member(text: str, path: Sequence[str], value: object) -> str:
    """Return `text` with `value` under `path`; objects on the way are made where they are missing.

    Every object on the way must be one (`load_object` shows it).
    """
    if not text.strip(_BLANKS):
        text = "{}\n"
    start = _skip(text, 0)
    unit = _unit(text, start)
    for depth, key in enumerate(path):
        members, end = _members(text, start)
        found = next((each for each in members if each.key == key), None)
        if found is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _inserted(text, start, end, members, key, value, unit)
        if depth == len(path) - 1:
            rendered = _rendered(value, _indent_of(text, found.start), unit, text)
            return text[: found.value] + rendered + text[found.end :]
        start = found.value
    raise AssertionError("the path is empty")


def without_member(text: str, path: Sequence[str]) -> str:
    """Return `text` without the member at `path`, which must be there."""
    start = _skip(text, 0)
    for depth, key in enumerate(path):
        members, end = _members(text, start)
        index = next(i for i, each in enumerate(members) if each.key == key)
        if depth < len(path) - 1:
            start = members[index].value
        elif index > 0:
            return text[: members[index - 1].end] + text[members[index].end :]
        elif len(members) > 1:
            return text[: members[0].start] + text[members[1].start :]
        else:
            return text[: start + 1] + text[end:]
    raise AssertionError("the path is empty")


@dataclass(frozen=True, kw_only=True)
class _Member:
    key: str
    start: int
    """Where the key's quotation mark stands."""
    value: int
    end: int


_DECODER = json.JSONDecoder()


def _members(text: str, start: int) -> tuple[list[_Member], int]:
    """Return the members of the object at `start`, and where its closing brace stands."""
    members: list[_Member] = []
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, key_end = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, key_end) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key=key, start=at, value=value, end=end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members, at


def _inserted(
    text: str,
    start: int,
    end: int,
    members: Sequence[_Member],
    key: str,
    value: object,
    unit: str,
) -> str:
    name = json.dumps(key, ensure_ascii=False) + ": "
    if members and "\n" not in text[start : members[0].start]:  # all on one line
        last = members[-1].end
        return text[:last] + ", " + name + json.dumps(value, ensure_ascii=False) + text[last:]
    if members:
        indent = _indent_of(text, members[0].start)
        line = _newline(text) + indent + name + _rendered(value, indent, unit, text)
        last = members[-1].end
        return text[:last] + "," + line + text[last:]
    outer = _indent_of(text, start)
    indent = outer + unit
    line = _newline(text) + indent + name + _rendered(value, indent, unit, text)
    return text[: start + 1] + line + _newline(text) + outer + text[end:]


def _rendered(value: object, indent: str, unit: str, text: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (_newline(text) + indent).join(lines)


def _unit(text: str, start: int) -> str:
    """Return what the file indents by: what stands before the first member, two blanks else."""
    members, _ = _members(text, start)
    return (_indent_of(text, members[0].start) if members else "") or _INDENT


def _indent_of(text: str, at: int) -> str:
    """Return the blanks that the line of `at` begins with."""
    begin = text.rfind("\n", 0, at) + 1
    line = text[begin:at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _loads(text: str) -> Any:  # noqa: ANN401 - any value of JSON
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _no_constant(word: str) -> Any:  # noqa: ANN401 - as the decoder wants it
    raise ValueError(f"it has {word}, which is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"it has the key {twice!r} twice")
    return table
