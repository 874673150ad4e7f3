# SPDX-License-Identifier: Apache-2.0
"""No text of a user is ever a format: a container named `{` must not end in a ValueError."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import REPOSITORY

SOURCES = sorted(
    path
    for folder in ("scheduler_cache", "runtime_shim")
    for path in (REPOSITORY / folder).rglob("*.py")
)
# The place of the format among the arguments of each method of a logger.
_MESSAGE = {
    **dict.fromkeys(("debug", "info", "warning", "error", "critical", "exception"), 0),
    "log": 1,
}


def test_there_are_sources() -> None:
    assert len(SOURCES) > 100


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_format_is_a_constant(source: Path) -> None:
    assert list(variable_formats(source.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        'where = f"{{}} of {name}"\nwhere.format(1)',
        '(f"%s of {name}" % 1)',
        "logger.info(str(error))",
        'logger.warning(f"{error}")',
        'f"{name}".format_map({})',
    ],
)
def test_a_format_that_is_none_is_found(line: str) -> None:
    assert list(variable_formats(line))


def variable_formats(text: str) -> Iterator[str]:
    """Yield where something else than a constant is taken as a format."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            if isinstance(node.left, ast.JoinedStr):
                yield f"{node.lineno}: a formatted text before %"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = node.func.value
            if node.func.attr in ("format", "format_map") and not _constant(receiver):
                yield f"{node.lineno}: {ast.unparse(node.func)}"
            logs = isinstance(receiver, ast.Name) and receiver.id in ("logger", "logging")
            place = _MESSAGE.get(node.func.attr, len(node.args))
            if logs and place < len(node.args) and not _constant(node.args[place]):
                yield f"{node.lineno}: {ast.unparse(node.func)}"


def _constant(node: ast.expr) -> bool:
    """Return whether a text was written down as it is, or stands under a constant's name."""
    if isinstance(node, ast.IfExp):
        return _constant(node.body) and _constant(node.orelse)
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Constant)
