# SPDX-License-Identifier: Apache-2.0
"""Every file, test, link, make word and command that a document names is there."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runtime_shim.agent import main as agent
from runtime_shim.cli import main as vgpuctl
from scheduler_cache.cli import main as cache
from tests.testbed import REPOSITORY

DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")],
    key=lambda path: (len(path.parts), path),
)
every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY))
)

_FOLDERS = "bench|deploy|docs|hook_c|packaging|proto|runtime_shim|scheduler_cache|scripts|tests"
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
# A path of the repository, with what a shell would expand, and perhaps a test's name behind it.
_PATH = re.compile(rf"(?<![\w/.-])(?:\./)?((?:{_FOLDERS})/[\w./*{{}},-]*[\w/*}}])(::\w+)?")
_NEXT_TEST = re.compile(r"`(::test_\w+)`")
_TEST = re.compile(r"`(test_\w+)`(?!\.)")
_MAKE = re.compile(r"(?:`|^[#$] (?:.*&& )?)make ([a-z][a-z0-9-]*)", re.MULTILINE)
_COMMAND = re.compile(
    r"(?:`|^[#$] (?:.*(?:&&|--) )?)(vgpuctl|vgpu-node-agent|vgpu-scheduler-cache) ([a-z][a-z-]+)",
    re.MULTILINE,
)
_PROGRAMS = {"vgpuctl": vgpuctl, "vgpu-node-agent": agent, "vgpu-scheduler-cache": cache}


def test_there_are_documents() -> None:
    names = {path.name for path in DOCUMENTS}

    assert {"README.md", "CHANGELOG.md", "security.md", "kubernetes.md"} <= names


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    wrong = []
    for target in _LINK.findall(_prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            wrong.append(target)

    assert wrong == []


@every_document
def test_every_path_is_there(document: Path) -> None:
    wrong = [
        path
        for path, _ in _PATH.findall(document.read_text())
        if not any(_found(each) for each in _expanded(path))
    ]

    assert wrong == []


@every_document
def test_every_test_is_where_it_is_said_to_be(document: Path) -> None:
    wrong = []
    file: Path | None = None
    # In order: `::test_x` alone is of the file that was named last.
    named = re.compile(f"{_PATH.pattern}|{_NEXT_TEST.pattern}|{_TEST.pattern}")
    for path, test, following, bare in named.findall(document.read_text()):
        if path.endswith((".py", ".c")):
            file = REPOSITORY / path
        if test or following:
            name = (test or following).removeprefix("::")
            if file is None or not file.exists() or name not in _functions(file):
                wrong.append(f"{path}{test}{following}")
        if bare and not bare.endswith("_") and bare not in _all_tests():
            wrong.append(bare)

    assert wrong == []


@every_document
def test_every_make_word_is_a_target(document: Path) -> None:
    words = set(_MAKE.findall(document.read_text()))

    assert words - _make_targets() == set()


@every_document
def test_every_command_is_one_of_the_program(document: Path) -> None:
    wrong = [
        f"{program} {word}"
        for program, word in _COMMAND.findall(document.read_text())
        if word not in _subcommands(program)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`tests/test_contract.py::test_x`", [("tests/test_contract.py", "::test_x")]),
        (
            "see docs/e2e.md, and deploy/{etc,helm}/x",
            [("docs/e2e.md", ""), ("deploy/{etc,helm}/x", "")],
        ),
        ("/usr/share/docs/x and kubernetes.io/tests/y", []),
    ],
)
def test_paths_are_found_in_prose(text: str, found: list[tuple[str, str]]) -> None:
    assert _PATH.findall(text) == found


def _prose(document: Path) -> str:
    return _FENCE.sub("", document.read_text())


@functools.cache
def _anchors(document: Path) -> set[str]:
    """Return what links may name: headings as the forges write them."""
    headings = _HEADING.findall(_prose(document)) if document.is_file() else []
    plain = [re.sub(r"[^\w\- ]", "", each.lower()) for each in headings]
    return {each.replace(" ", "-") for each in plain}


def _expanded(path: str) -> Iterator[str]:
    """Yield what a shell makes of one pair of braces."""
    found = re.search(r"\{([^{}]*)\}", path)
    if found is None:
        yield path
        return
    for each in found[1].split(","):
        yield from _expanded(path[: found.start()] + each + path[found.end() :])


def _found(path: str) -> bool:
    name = path.rstrip("/.")
    if "*" in name:
        return any(True for _ in REPOSITORY.glob(name))
    # A module may be named as one imports it: without its end.
    places = [name, f"{name}.py", f"{name}.c", f"{name}.md"]
    return any((REPOSITORY / place).exists() for place in places)


@functools.cache
def _functions(file: Path) -> frozenset[str]:
    if file.suffix == ".c":
        return frozenset(re.findall(r"^static void (test_\w+)", file.read_text(), re.MULTILINE))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, kinds))


@functools.cache
def _all_tests() -> frozenset[str]:
    files = [each for end in ("py", "c") for each in REPOSITORY.glob(f"tests/**/*.{end}")]
    return frozenset(
        name
        for file in files
        for name in (*_functions(file), file.stem)
        if name.startswith("test_")
    )


@functools.cache
def _make_targets() -> set[str]:
    database = subprocess.run(
        ["make", "--print-data-base", "--question", "--no-builtin-rules", "clean"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    ).stdout
    return set(re.findall(r"^([a-z][a-z0-9-]*):", database, re.MULTILINE))


def _subcommands(program: str) -> set[str]:
    group = _PROGRAMS[program]
    assert isinstance(group, click.Group)
    return set(group.commands)
