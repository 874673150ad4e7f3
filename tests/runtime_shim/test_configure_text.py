# SPDX-License-Identifier: Apache-2.0
"""Single values of JSON and TOML texts change; every other byte stays."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.configure.editor import FaultError
from runtime_shim.configure.json_text import load_object, with_member, without_member
from runtime_shim.configure.toml_text import (
    load_toml,
    render,
    with_table,
    with_value,
    without_table,
    without_value,
)

KEYS = st.text(min_size=1, max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
LAYOUTS = st.sampled_from(
    [
        {},
        {"indent": 2},
        {"indent": 4},
        {"indent": "\t"},
        {"separators": (",", ":")},
        {"indent": 1, "ensure_ascii": False},
    ]
)


@given(
    table=st.dictionaries(KEYS, JSON_VALUES, max_size=5),
    layout=LAYOUTS,
    windows=st.booleans(),
    inner=st.dictionaries(KEYS.filter(lambda key: key != "vgpu"), JSON_VALUES, max_size=3),
)
def test_a_member_of_json_comes_and_goes(
    table: dict[str, Any], layout: dict[str, Any], windows: bool, inner: dict[str, Any]
) -> None:
    table = {**table, "runtimes": inner}
    text = json.dumps(table, **layout) + "\n"
    if windows:
        text = text.replace("\n", "\r\n")

    longer = with_member(text, ("runtimes", "vgpu"), {"path": "/usr/bin/x"})

    assert json.loads(longer) == {**table, "runtimes": {**inner, "vgpu": {"path": "/usr/bin/x"}}}
    assert json.loads(without_member(longer, ("runtimes", "vgpu"))) == table
    if inner:
        assert without_member(longer, ("runtimes", "vgpu")) == text
    if windows:
        assert longer.count("\n") == longer.count("\r\n")


@given(
    table=st.dictionaries(KEYS, JSON_VALUES, min_size=1, max_size=5),
    layout=LAYOUTS,
    data=st.data(),
)
def test_any_member_of_json_can_be_replaced_and_taken_out(
    table: dict[str, Any], layout: dict[str, Any], data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(table)))
    value = data.draw(JSON_VALUES)
    text = json.dumps(table, **layout)

    assert json.loads(with_member(text, (key,), value)) == {**table, key: value}
    left = json.loads(without_member(text, (key,)))

    assert left == {name: each for name, each in table.items() if name != key}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        (
            '{\n\t"x": [\n\t\t1\n\t]\n}\n',
            '{\n\t"x": [\n\t\t1\n\t],\n\t"a": {\n\t\t"b": 1\n\t}\n}\n',
        ),
        ('{\n "a": {}\n}', '{\n "a": {\n  "b": 1\n }\n}'),
    ],
)
def test_new_members_of_json_look_like_their_neighbours(text: str, want: str) -> None:
    assert with_member(text, ("a", "b"), 1) == want


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is not JSON"),
        ('{"a": 1,}', "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('\ufeff{"a": 1}', "is not JSON"),
        ('{"a": 1} // comment', "is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(text: str, word: str) -> None:
    with pytest.raises(FaultError, match=word):
        load_object(text)


TOML_SCALARS = (
    st.booleans()
    | st.integers(min_value=-(2**63), max_value=2**63 - 1)
    # TOML has no surrogates.
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
TOML_KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TOML_VALUES = st.recursive(
    TOML_SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TOML_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(value=TOML_VALUES)
def test_a_rendered_toml_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"a = {render(value)}")["a"] == value


@given(
    before=st.dictionaries(TOML_KEYS.filter(lambda key: key != "x"), TOML_SCALARS, max_size=4),
    table=st.dictionaries(TOML_KEYS, TOML_VALUES, min_size=1, max_size=4),
    path=st.lists(TOML_KEYS, min_size=2, max_size=4).filter(lambda path: path[0] != "x"),
)
def test_a_table_of_toml_comes_and_goes(
    before: dict[str, Any], table: dict[str, Any], path: list[str]
) -> None:
    text = "".join(f"{render(key)} = {render(value)}  # c\n" for key, value in before.items())
    text = f"{text}[x]\n" if path[0] not in before else "[x]\n"

    longer = with_table(text, path, table, "vgpuctl configure")

    assert longer.startswith(text)
    assert without_table(longer, path) == text


TYPICAL = """\
# kept by hand
version = 2
imports = ["/etc/containerd/conf.d/*.toml"] # all

[plugins."io.x"]
  # indented
  [plugins."io.x".containerd]
    default_runtime_name = "runc" # not #crun
    [plugins."io.x".containerd.runtimes.runc]
      runtime_type = '''io.containerd.
[no header]'''

# about debug
[debug]
  level = "info"
"""
CONTAINERD = ("plugins", "io.x", "containerd")


def test_a_value_of_toml_changes_in_its_line() -> None:
    changed = with_value(TYPICAL, (*CONTAINERD, "default_runtime_name"), "vgpu", "c")

    assert changed == TYPICAL.replace('"runc" # not', '"vgpu" # not')
    assert with_value(changed, (*CONTAINERD, "default_runtime_name"), "runc", "c") == TYPICAL


def test_a_new_value_of_toml_stands_in_its_table() -> None:
    changed = with_value(TYPICAL, (*CONTAINERD, "snapshotter"), "overlayfs", "c")

    line = '    snapshotter = "overlayfs"\n'
    assert changed == TYPICAL.replace("    default_runtime", f"{line}    default_runtime")
    assert without_value(changed, (*CONTAINERD, "snapshotter")) == TYPICAL


def test_a_value_of_a_table_that_is_only_implied_gets_its_header() -> None:
    text = "[a.b.c]\nx = 1\n"

    changed = with_value(text, ("a", "b", "y"), 2, "vgpuctl configure")

    assert changed == text + "\n# vgpuctl configure\n[a.b]\ny = 2\n"
    assert without_value(changed, ("a", "b", "y")) == text


def test_a_table_of_toml_goes_with_those_below_it_and_leaves_foreign_comments() -> None:
    text = "[a]\n\n# mine\n[b.c]\nx = 1\n[b.c.d]\ny = 1\n\n# of e\n[e]\n"

    assert without_table(text, ("b", "c")) == "[a]\n\n# mine\n\n# of e\n[e]\n"


@pytest.mark.parametrize(
    "text",
    [
        'plugins = { x = { runtimes = { runc = { type = "a" } } } }\n',
        "[plugins]\nx = { runtimes = {} }\n",
    ],
)
def test_a_form_that_lines_cannot_change_is_refused(text: str) -> None:
    with pytest.raises(FaultError, match="cannot be edited line by line"):
        with_table(text, ("plugins", "x", "runtimes", "vgpu"), {"type": "b"}, "c")


def test_a_line_in_a_text_that_looks_like_a_header_never_spoils_the_file() -> None:
    text = 'a = """\n[b]\nc = 1\n"""\n[b]\nd = 2\n'

    with pytest.raises(FaultError, match="cannot be edited line by line"):
        with_value(text, ("b", "c"), 3, "comment")


def test_windows_line_ends_stay() -> None:
    text = TYPICAL.replace("\n", "\r\n")

    changed = with_table(text, (*CONTAINERD, "runtimes", "vgpu"), {"a": 1}, "vgpuctl configure")
    changed = with_value(changed, (*CONTAINERD, "default_runtime_name"), "vgpu", "c")

    assert changed.count("\n") == changed.count("\r\n")
    assert load_toml(changed)["plugins"]["io.x"]["containerd"]["default_runtime_name"] == "vgpu"
