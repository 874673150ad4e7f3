# SPDX-License-Identifier: Apache-2.0
"""The JSON of k8s.io/kube-scheduler/extender/v1, as it comes and as it must not."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.extender import messages
from scheduler_cache.extender.messages import Victims
from scheduler_cache.pod import pod_of
from tests.scheduler_cache.extender.clusters import Fleet, asking, waiting
from tests.scheduler_cache.kube_objects import A, gpu

EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "200"))

POD = waiting("p", asking(2), priority=7)
FILTER = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]}
PREEMPTION = {
    "Pod": POD,
    "NodeNameToVictims": None,
    "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v1"}], "NumPDBViolations": 1}},
}
BINDING = {"PodName": "name-p", "PodNamespace": "default", "PodUID": "p", "Node": "n1"}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def test_names_come_and_go_as_names() -> None:
    asked = messages.nodes_asked(encoded(FILTER))

    result = json.loads(messages.filter_result(asked, ["n2"], {"n1": "full"}, {}))

    assert asked.names == ["n1", "n2"]
    assert result == {
        "NodeNames": ["n2"],
        "FailedNodes": {"n1": "full"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_no_node_that_fits_is_an_empty_list_and_not_an_absent_one() -> None:
    asked = messages.nodes_asked(encoded(FILTER))

    assert json.loads(messages.filter_result(asked, [], {}, {}))["NodeNames"] == []


def test_whole_nodes_come_and_go_as_whole_nodes() -> None:
    nodes = [{"metadata": {"name": name}, "status": {"kept": name}} for name in ("n1", "n2")]
    asked = messages.nodes_asked(encoded({"Pod": POD, "Nodes": {"items": nodes}}))

    result = json.loads(messages.filter_result(asked, ["n2"], {"n1": "full"}, {}))

    assert asked.names == ["n1", "n2"]
    assert result["Nodes"]["items"] == [nodes[1]]
    assert "NodeNames" not in result


def test_scores_are_a_list_of_hosts() -> None:
    assert json.loads(messages.host_priorities(["n1"], [7])) == [{"Host": "n1", "Score": 7}]


def test_victims_come_as_uids_or_as_pods_and_go_as_uids() -> None:
    by_uid = messages.preemption_asked(encoded(PREEMPTION))
    victim = {"metadata": {"uid": "v1", "name": "v"}}
    by_pod = messages.preemption_asked(
        encoded(
            {
                "Pod": POD,
                "NodeNameToVictims": {"n1": {"Pods": [victim], "NumPDBViolations": 1}},
            }
        )
    )

    assert by_uid == by_pod
    assert by_uid.victims == {"n1": Victims(uids=("v1",), pdb_violations=1)}
    assert json.loads(messages.preemption_result(by_uid.victims)) == {
        "NodeNameToMetaVictims": PREEMPTION["NodeNameToMetaVictims"]
    }


def test_a_binding_names_pod_and_node() -> None:
    asked = messages.binding_asked(encoded(BINDING))

    assert (asked.namespace, asked.name, asked.uid, asked.node_name) == (
        "default",
        "name-p",
        "p",
        "n1",
    )
    assert json.loads(messages.binding_result()) == {"Error": ""}


def without(source: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name != key}


def with_pod(**fields: object) -> dict[str, Any]:
    return {**FILTER, "Pod": {**POD, **fields}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (encoded(without(FILTER, "Pod")), "Pod"),
        (encoded({**FILTER, "Pod": None}), "Pod"),
        (encoded(with_pod(metadata={"name": "p"})), "no name or no uid"),
        (encoded(with_pod(metadata={"uid": "p"})), "no name or no uid"),
        (encoded(with_pod(spec={"priority": 1 << 31})), "no 32-bit number"),
        (encoded(with_pod(spec={"priority": "7"})), "priority"),
        (encoded(with_pod(spec={"containers": {}})), "containers"),
        (encoded({"Pod": POD}), "NodeNames and Nodes are both missing"),
        (encoded({**FILTER, "NodeNames": ["n1", ""]}), "empty name"),
        (encoded({**FILTER, "NodeNames": ["n1", None]}), "NodeNames"),
        (encoded({**FILTER, "NodeNames": "n1"}), "NodeNames"),
        (encoded({"Pod": POD, "Nodes": {"items": [{"metadata": {}}]}}), "Nodes"),
        (encoded({"Pod": POD, "Nodes": {}}), "items"),
    ],
)
def test_bad_arguments_of_filter_are_refused_with_what_is_wrong(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        messages.nodes_asked(body)


@pytest.mark.parametrize(
    "victims",
    [
        {"n1": {"Pods": [{"UID": ""}]}},
        {"n1": {"Pods": [{}]}},
        {"": {"Pods": []}},
        {"n1": {"Pods": [], "NumPDBViolations": -1}},
        {"n1": {"Pods": [], "NumPDBViolations": 1 << 40}},
        {"n1": {"Pods": [], "NumPDBViolations": 1.5}},
        {"n1": None},
    ],
)
def test_bad_victims_are_refused(victims: object) -> None:
    with pytest.raises(InvalidRequestError, match="ExtenderPreemptionArgs"):
        messages.preemption_asked(encoded({"Pod": POD, "NodeNameToMetaVictims": victims}))


@pytest.mark.parametrize("key", BINDING)
@pytest.mark.parametrize("value", ["", None, 7, [], "absent"])
def test_a_binding_that_lacks_something_is_refused(key: str, value: object) -> None:
    body = without(BINDING, key) if value == "absent" else {**BINDING, key: value}

    with pytest.raises(InvalidRequestError, match="ExtenderBindingArgs"):
        messages.binding_asked(encoded(body))


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["", "0", "-1", "9" * 400, "1e999", "NaN", "\x00", "é\u202e"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def paths(value: object, before: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the ways to everything inside a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found: list[tuple[object, ...]] = [before] if before else []
    for key, each in inner:
        found += paths(each, (*before, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, source: dict[str, Any]) -> dict[str, Any]:
    """Return `source` with one to three values replaced or left out."""
    result = copy.deepcopy(source)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(paths(result)))
        at: Any = result
        for key in way:
            at = at[key]
        if draw(st.booleans()) and isinstance(at, dict):
            del at[last]
        else:
            at[last] = draw(ODD)
        if not paths(result):
            break
    return result


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=mutated(FILTER))
def test_a_mutated_question_is_refused_or_answered_for_every_node_that_it_names(
    source: dict[str, Any],
) -> None:
    world = Fleet(n1=gpu(A, 8))
    try:
        asked = messages.nodes_asked(encoded(source))
    except InvalidRequestError:
        return

    result = world.extender.filter(asked.pod, list(asked.names))
    scores = world.extender.prioritize(asked.pod, list(asked.names))

    assert set(asked.names) == {*result.fitting, *result.failed, *result.unresolvable}
    assert all(0 <= score <= 10 for score in scores)
    # What fits is what a bind would place: nothing is let through that cannot be read.
    asks = world.dialects.read(pod_of(asked.pod))
    assert not (asks.request_error and result.fitting)
    if asks.request is not None:
        assert set(result.fitting) <= {"n1"}
        assert all(
            demand.memory.bytes > 0 or 0 < demand.memory.percent <= 100
            for each in asks.request.containers.values()
            for demand in each.demands
        )
    json.loads(messages.filter_result(asked, result.fitting, result.failed, result.unresolvable))


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=mutated(PREEMPTION))
def test_a_mutated_preemption_is_refused_or_answered(source: dict[str, Any]) -> None:
    world = Fleet(n1=gpu(A, 8))
    try:
        asked = messages.preemption_asked(encoded(source))
    except InvalidRequestError:
        return

    found = world.extender.preempt(asked.pod, asked.victims)

    assert found.keys() <= asked.victims.keys()
    assert all(set(asked.victims[name].uids) <= set(each.uids) for name, each in found.items())
    json.loads(messages.preemption_result(found))


@settings(max_examples=EXAMPLES, deadline=None)
@given(source=mutated(BINDING))
def test_a_mutated_binding_is_refused_or_names_four_texts(source: dict[str, Any]) -> None:
    try:
        asked = messages.binding_asked(encoded(source))
    except InvalidRequestError:
        return

    assert all([asked.namespace, asked.name, asked.uid, asked.node_name])


@settings(max_examples=EXAMPLES, deadline=None)
@given(body=st.binary(max_size=60))
def test_bytes_of_any_kind_are_refused(body: bytes) -> None:
    for read in (messages.nodes_asked, messages.preemption_asked, messages.binding_asked):
        with pytest.raises(InvalidRequestError):
            read(body)
