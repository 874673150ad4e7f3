# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from runtime_shim.answers import (
    STOPPED,
    AnswerStore,
    decode_answer,
    encode_answer,
    read_answers,
)
from tests.runtime_shim.allocations import allocation, answer, part


@pytest.fixture
def store(tmp_path: Path) -> AnswerStore:
    store = AnswerStore(tmp_path / "answers")
    store.load()
    return store


def reloaded(store: AnswerStore) -> AnswerStore:
    again = AnswerStore(store.folder)
    again.load()
    return again


def test_answers_come_back_as_they_were(store: AnswerStore) -> None:
    first, second = answer(allocation(part(), container_id="a")), answer(state=STOPPED)
    store.put(first)
    store.put(second)
    store.sync()

    again = reloaded(store)

    assert {each.allocation_id: each for each in again.all()} == {
        first.allocation_id: first,
        second.allocation_id: second,
    }
    assert again.find(("", "a")) == [first]
    assert read_answers(store.folder) == sorted(again.all(), key=lambda each: each.allocation_id)


def test_a_new_answer_replaces_the_old_one(store: AnswerStore) -> None:
    first = answer()
    store.put(first)
    stopped = first.in_state(STOPPED, 5)

    store.put(stopped)

    assert reloaded(store).all() == [stopped]
    assert stopped.since_unix_ns == 5
    assert stopped.in_state(STOPPED, 6) is stopped


def test_a_removed_answer_stays_away(store: AnswerStore) -> None:
    first = answer()
    store.put(first)

    store.remove(first.allocation_id)
    store.remove(first.allocation_id)
    store.sync()

    assert store.get(first.allocation_id) is None
    assert reloaded(store).all() == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{\x80", "codec"),
        (b"[]", "not an answer of version 1"),
        (b'{"version": 2}', "not an answer of version 1"),
        (b'{"version": 1}', "a field is missing or wrong"),
        (b'{"version": 1, "allocation": {"slices": 3}}', "a field is missing or wrong"),
    ],
)
def test_a_corrupt_file_is_set_aside(
    store: AnswerStore, content: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = answer()
    store.put(good)
    (store.folder / "bad.json").write_bytes(content)

    with caplog.at_level(logging.WARNING):
        again = reloaded(store)

    assert again.all() == [good]
    assert (store.folder / "bad.corrupt").read_bytes() == content
    assert reason in caplog.records[-1].__dict__["reason"]
    assert reloaded(store).all() == [good]


@pytest.mark.parametrize(
    ("field", "value"),
    [("since_unix_ns", "1"), ("bundle", 1), ("init_seen", 1), ("state", "ASLEEP")],
)
def test_a_field_of_a_wrong_type_is_no_answer(field: str, value: object) -> None:
    table = json.loads(encode_answer(answer()))
    table[field] = value

    with pytest.raises(ValueError, match=rf"{field}|a field is missing or wrong"):
        decode_answer(json.dumps(table).encode())


def test_the_file_of_another_allocation_is_set_aside(store: AnswerStore) -> None:
    (store.folder / "x.json").write_bytes(encode_answer(answer()))

    assert reloaded(store).all() == []
    assert (store.folder / "x.corrupt").exists()


def test_a_write_that_was_cut_short_changes_nothing(store: AnswerStore) -> None:
    first = answer()
    store.put(first)
    (store.folder / f"{first.allocation_id}.tmp").write_bytes(b"{")

    assert reloaded(store).all() == [first]
    assert not list(store.folder.glob("*.tmp"))


def test_a_write_that_was_cut_just_before_its_end_is_completed(store: AnswerStore) -> None:
    first = answer()
    (store.folder / f"{first.allocation_id}.tmp").write_bytes(encode_answer(first))

    assert reloaded(store).all() == [first]


def test_what_a_newer_version_wrote_besides_is_passed_over() -> None:
    first = answer()
    table = json.loads(encode_answer(first))
    table["allocation"]["new_field"] = 1
    table["new_field"] = 1

    assert decode_answer(json.dumps(table).encode()) == first
