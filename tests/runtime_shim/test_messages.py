# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.messages import (
    LINE_BYTES,
    ContainerName,
    name_by_id,
    one_line,
    refusal_line,
)

ENGINE_WORDS = (
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "no such process",
    "container not running",
)


def test_a_refusal_names_container_place_reason_and_remedy() -> None:
    line = refusal_line(ContainerName(name="web", place="shop/web-0"), "no room", "ask for less")

    assert line == "vgpu: container 'web' (shop/web-0): no room; ask for less"


def test_without_a_name_the_id_says_which_container() -> None:
    line = refusal_line(name_by_id("0123456789abcdef"), "no room", "ask for less")

    assert line == "vgpu: container '0123456789abcdef' (0123456789ab): no room; ask for less"


@given(st.text(max_size=300), st.sampled_from(ENGINE_WORDS), st.text(max_size=300))
def test_no_line_has_words_that_engines_read_otherwise(before: str, words: str, after: str) -> None:
    line = one_line(before + words.title() + after)

    assert not any(each in line.lower() for each in ENGINE_WORDS)
    assert "\n" not in line
    assert line.isprintable() or not line


def test_a_long_text_is_cut_between_characters() -> None:
    line = one_line("ü" * LINE_BYTES)

    assert len(line.encode()) <= LINE_BYTES
    assert set(line) == {"ü"}
