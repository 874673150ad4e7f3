# SPDX-License-Identifier: Apache-2.0
"""What a pod's annotation says of its containers, and what of that is worth an Event."""

from __future__ import annotations

import json

import pytest

from scheduler_cache.isolation import Isolation, IsolationState, annotated, by_pod, worth_telling
from tests.scheduler_cache.kube_objects import identity


def told(name: str, state: str = "enforced", reason: str = "") -> Isolation:
    return Isolation(pod=identity("p1", name), state=IsolationState(state), reason=reason)


def test_the_annotation_names_every_container_with_its_state() -> None:
    text = annotated("", [told("main"), told("init", "refused", "musl; use glibc")])

    assert json.loads(text) == {
        "main": {"state": "enforced"},
        "init": {"state": "refused", "reason": "musl; use glibc"},
    }


def test_what_it_said_of_other_containers_stays_and_the_same_again_changes_nothing() -> None:
    text = annotated("", [told("main"), told("init", "refused", "x")])

    assert annotated(text, [told("main")]) == text
    assert json.loads(annotated(text, [told("init")])) == {
        "main": {"state": "enforced"},
        "init": {"state": "enforced"},
    }


@pytest.mark.parametrize("known", ["", "{", "[]", "null", "7", "[" * 100_000])
def test_an_unreadable_annotation_is_written_anew(known: str) -> None:
    assert annotated(known, [told("main")]) == '{"main":{"state":"enforced"}}'


def test_a_reason_is_kept_short() -> None:
    reason = json.loads(annotated("", [told("main", "refused", "x" * 9000)]))["main"]["reason"]

    assert len(reason) == 400


def test_a_person_hears_of_what_is_refused_or_weak_and_only_once() -> None:
    news = [told("a"), told("b", "refused", "why"), told("c", "enforced", "weak: LD_PRELOAD")]

    assert [each.pod.container_name for each in worth_telling("", news)] == ["b", "c"]
    assert worth_telling(annotated("", news), news) == []


def test_what_is_told_is_grouped_by_pod() -> None:
    other = Isolation(pod=identity("p2"), state=IsolationState.ENFORCED)

    assert by_pod([told("a"), other, told("b")]) == {"p1": [told("a"), told("b")], "p2": [other]}
