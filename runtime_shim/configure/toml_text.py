# SPDX-License-Identifier: Apache-2.0
"""Changes single tables and keys of a TOML text and leaves every other byte as it is. No I/O.

Each edit is read back and compared with what was meant; where a file is written in a form in which
lines cannot be changed one by one (inline tables, dotted keys), it is refused, never spoilt.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime_shim.configure.editor import FaultError

_HEADER = re.compile(r"\s*\[(?!\[).*\]\s*(?:#.*)?")
_ANY_HEADER = re.compile(r"\s*\[\[?[^\[\]].*\]\s*(?:#.*)?")
# Not splitlines(), which also splits at characters that TOML allows in a text.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
Path = Sequence[str]


def load_toml(text: str) -> dict[str, Any]:
    """Return the tables of `text`. Raises FaultError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FaultError(f"is not TOML: {error}") from error
    except RecursionError as error:
        raise FaultError("is nested too deeply") from error


def table_at(tables: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the table at `path`; an empty one where there is none. Raises FaultError."""
    for index, key in enumerate(path):
        found = tables.get(key, {})
        if not isinstance(found, dict):
            raise FaultError(f"has {render_path(path[: index + 1])}, which is not a table")
        tables = found
    return tables


def with_table(text: str, path: Path, table: Mapping[str, Any], comment: str) -> str:
    """Return `text` with a new table at its end, in which nothing is at `path` yet."""
    meant = copy.deepcopy(load_toml(text))
    _made(meant, path[:-1])[path[-1]] = dict(table)
    return _checked(_appended(text, render_table(path, table), comment), meant)


def without_table(text: str, path: Path) -> str:
    """Return `text` without the table at `path`, the tables below it and the comment before it."""
    meant = copy.deepcopy(load_toml(text))
    del _made(meant, path[:-1])[path[-1]]
    _prune(meant, path[:-1])
    lines = _LINE.findall(text)
    for begin, end, found in reversed(list(_sections(lines))):
        if found[: len(path)] == tuple(path):
            del lines[_with_comment(lines, begin) : end]
    return _checked("".join(lines), meant, pruned=path[:-1])


def with_value(text: str, path: Path, value: object, comment: str) -> str:
    """Return `text` with `value` under `path`: in its table, or in a new one at the end."""
    meant = copy.deepcopy(load_toml(text))
    _made(meant, path[:-1])[path[-1]] = value
    line = f"{_key(path[-1])} = {render(value)}"
    lines = _LINE.findall(text)
    for begin, end, found in _sections(lines):
        if found != tuple(path[:-1]):
            continue
        at = _line_of_key(lines, begin + 1, end, path[-1])
        if at is not None:
            lines[at] = _with_new_value(lines[at], line)
        else:
            indent = _indent(lines[begin + 1]) if begin + 1 < end else _indent(lines[begin])
            lines.insert(begin + 1, indent + line + _newline(text))
        return _checked("".join(lines), meant)
    block = [f"[{render_path(path[:-1])}]", line]
    return _checked(_appended(text, block, comment), meant)


def without_value(text: str, path: Path) -> str:
    """Return `text` without the key at `path`; its table goes when it was made for it."""
    meant = copy.deepcopy(load_toml(text))
    del _made(meant, path[:-1])[path[-1]]
    _prune(meant, path[:-1])
    lines = _LINE.findall(text)
    for begin, end, found in _sections(lines):
        if found != tuple(path[:-1]):
            continue
        at = _line_of_key(lines, begin + 1, end, path[-1])
        if at is None:
            break
        del lines[at]
        if not "".join(lines[begin + 1 : end - 1]).strip():
            del lines[_with_comment(lines, begin) : end - 1]
        break
    return _checked("".join(lines), meant, pruned=path[:-1])


def render_table(path: Path, table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table: its values, then the tables in it."""
    values = [(key, value) for key, value in table.items() if not isinstance(value, dict)]
    lines = [f"[{render_path(path)}]", *(f"{_key(key)} = {render(value)}" for key, value in values)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += render_table([*path, key], value)
    return lines


def render_path(path: Path) -> str:
    """Return a dotted key."""
    return ".".join(_key(key) for key in path)


def render(value: object) -> str:
    """Return a value in one line. Strings, numbers, booleans and lists of them are JSON's here."""
    if isinstance(value, list):
        return "[" + ", ".join(render(each) for each in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {render(each)}" for key, each in value.items())
        return "{ " + inner + " }" if inner else "{}"
    # TOML forbids the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else render(key)


def _sections(lines: Sequence[str]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield (first line, line after the last, path) of each `[table]`.

    A line of an array or of a text over several lines may look like a header. It makes an edit
    wrong, which is seen when it is read back.
    """
    heads = [index for index, line in enumerate(lines) if _ANY_HEADER.fullmatch(line.rstrip())]
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=False):
        if not _HEADER.fullmatch(lines[begin].rstrip()):
            continue
        try:
            table = tomllib.loads(lines[begin])
        except tomllib.TOMLDecodeError:
            continue
        path = []
        while table:
            ((key, table),) = table.items()
            path.append(key)
        # Comments and blank lines above the next header belong to that.
        while end < len(lines) and end > begin + 1 and not _content(lines[end - 1]):
            end -= 1
        yield begin, end, tuple(path)


def _content(line: str) -> str:
    stripped = line.strip()
    return "" if stripped.startswith("#") else stripped


def _line_of_key(lines: Sequence[str], begin: int, end: int, key: str) -> int | None:
    for index in range(begin, end):
        try:
            if set(tomllib.loads(lines[index])) == {key}:
                return index
        except tomllib.TOMLDecodeError:
            continue
    return None


def _with_new_value(line: str, new: str) -> str:
    """Return `line` with another value; what stands before it and a comment behind it stay."""
    ending = line[len(line.rstrip("\r\n")) :]
    body = line.rstrip("\r\n")
    for at in (each.start() for each in re.finditer(r"\s*#", body)):
        try:
            tomllib.loads(body[:at])
        except tomllib.TOMLDecodeError:  # the mark is inside of a string
            continue
        return _indent(line) + new + body[at:] + ending
    return _indent(line) + new + ending


def _with_comment(lines: Sequence[str], begin: int) -> int:
    """Return where our own comment before line `begin` starts, with the blank line before it."""
    if begin and lines[begin - 1].startswith("#") and "vgpuctl configure" in lines[begin - 1]:
        begin -= 1
        if begin and not lines[begin - 1].strip():
            begin -= 1
    return begin


def _appended(text: str, block: Sequence[str], comment: str) -> str:
    newline = _newline(text)
    if text and not text.endswith("\n"):
        text += newline
    gap = newline if text else ""
    return text + gap + newline.join([f"# {comment}", *block]) + newline


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _made(tables: dict[str, Any], path: Path) -> dict[str, Any]:
    table_at(tables, path)
    for key in path:
        tables = tables.setdefault(key, {})
    return tables


def _prune(tables: dict[str, Any], path: Path) -> None:
    """Take away the tables on `path` that hold nothing."""
    for length in range(len(path), 0, -1):
        parent = _made(tables, path[: length - 1])
        if parent.get(path[length - 1]) == {}:
            del parent[path[length - 1]]


def _checked(text: str, meant: dict[str, Any], pruned: Path = ()) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = None
    if found is not None and pruned:
        _prune(found, pruned)
    if found != meant:
        raise FaultError("is written in a form that cannot be edited line by line")
    return text
