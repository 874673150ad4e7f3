# SPDX-License-Identifier: Apache-2.0
"""Whatever an API server could be made to send: no crash, and nothing let in that means nothing.

What is let in means the same to whoever reads it later: the codecs of the informer find the request
that admission found, and the cluster takes the pod.
"""

from __future__ import annotations

import copy
import json
import os
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler_cache.admission.mutation import mutated
from scheduler_cache.admission.request import asked_of
from scheduler_cache.admission.review import Review, UnreadableReviewError, answer_of, review_of
from scheduler_cache.admission.uuids import UUID
from scheduler_cache.admission.validation import validated
from scheduler_cache.kube.objects import Decoder
from scheduler_cache.kube.objects import Pod as KubePod
from scheduler_cache.pod import UUID_VARIABLE, pod_of
from tests.scheduler_cache.admission.reviews import RULES, body, new_pod, patched, uuids
from tests.scheduler_cache.admission.test_mutation import DIALECTS
from tests.scheduler_cache.kube_objects import World

# A night of it: VGPU_TEST_EXAMPLES=100000.
EXAMPLES = int(os.environ.get("VGPU_TEST_EXAMPLES", "100"))
quietly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

RESOURCES = [
    name for each in RULES.spoken for name in each.vocabulary.resources if not name.endswith("/")
]
RESOURCES += [f"vgpu.dev/{name}" for name in ("count", "memory", "memory-percent", "cores", "x")]
RESOURCES += ["nvidia.com/gpu", "nvidia.com/priority", "cpu", "memory"]

AMOUNTS = st.one_of(
    st.sampled_from(
        [
            *("1", "2", "30", "50", "100", "200", "1000", "1Gi", "8Gi", "512Mi", "4096", "1e3"),
            *("0", "00", "-1", "1.5", "0.5", "0Gi", "1n", "101", "150", "9223372036854775808"),
            *("", " 1", "1 ", "\u0663", "1_000", "0x10", "1Gb", "\u221e", "NaN", "1e99"),
        ]
    ),
    st.integers(-1, 1 << 70),
    st.text(max_size=4),
)
GOOD: list[dict[str, str]] = [
    {},
    {},
    {"vgpu.dev/memory": "1Gi"},
    {"vgpu.dev/count": "2", "vgpu.dev/memory-percent": "50", "vgpu.dev/cores": "30"},
    *(limits for limits, _ in DIALECTS.values()),
    {"koordinator.sh/gpu": "50"},
    {"nvidia.com/gpucores": "50"},
    {"tencent.com/vcuda-core": "200"},
]
ANNOTATIONS = [
    *RULES.request_annotations,
    "vgpu.dev/container-uuids",
    "vgpu.dev/other",
    "cdi.k8s.io/x",
    *("vgpu.dev/allocation", "volcano.sh/vgpu-ids-new", "hami.io/vgpu-devices-allocated"),
]
TEXTS = st.one_of(
    st.sampled_from(
        [
            *("0.5", "1", "0", "100", "4096", "spread", "hard", "burst", "main", "H100", "!H100"),
            *("GPU-1", "1e5", ".5", "{}", "[]", "null", "[" * 99),
            *('{"main":null}', '{"main":[{"memory":"1Gi"}]}', '{"main":[{"memory":0}]}'),
            *('{"side":[]}', '{"main":[{"memory":"50%","cores":5}]}'),
        ]
    ),
    st.text(max_size=6),
)
ENV = st.lists(
    st.sampled_from(
        [
            {"name": UUID_VARIABLE, "value": "11111111-2222-4333-8444-555555555555"},
            {"name": UUID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "A", "value": "1"},
        ]
    ),
    max_size=3,
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Return a container that asks well in some dialect, with or without a flaw, or asks badly."""
    limits = dict(draw(st.sampled_from(GOOD)))
    limits |= draw(
        st.one_of(st.just({}), st.dictionaries(st.sampled_from(RESOURCES), AMOUNTS, max_size=2))
    )
    found: dict[str, Any] = {"name": name, "resources": {"limits": limits}}
    if draw(st.booleans()):
        found["resources"]["requests"] = dict(limits)
    if draw(st.booleans()):
        found["env"] = copy.deepcopy(draw(ENV))
    return found


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sampled_from([["main"], ["main", "other"], ["main", "main"]]))
    source = new_pod(*(draw(containers(name)) for name in names))
    if draw(st.booleans()):
        side = draw(containers("side"))
        if draw(st.booleans()):
            side["restartPolicy"] = "Always"
        source["spec"]["initContainers"] = [side, draw(containers("first"))]
    if draw(st.integers(0, 3)) == 0:
        source["metadata"]["annotations"] = draw(
            st.dictionaries(st.sampled_from(ANNOTATIONS), TEXTS, max_size=2)
        )
    spec = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "runtimeClassName": st.sampled_from(["", "nvidia", "vgpu", "kata"]),
                "schedulerName": st.sampled_from(["", "volcano"]),
                "hostPID": st.booleans(),
            },
        )
    )
    source["spec"].update(spec)
    return source


def places(source: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401
    """Return the path of every value."""
    found = [path] if path else []
    if isinstance(source, dict):
        for key, value in source.items():
            found += places(value, (*path, key))
    elif isinstance(source, list):
        for index, value in enumerate(source):
            found += places(value, (*path, index))
    return found


@st.composite
def mutated_json(draw: st.DrawFn, sources: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Return an object of which up to three values were removed or replaced by whatever."""
    source = copy.deepcopy(draw(sources))
    for _ in range(draw(st.integers(0, 3))):
        *path, last = draw(st.sampled_from(places(source) or [("x",)]))
        place: Any = source
        for part in path:
            place = place[part]
        if draw(st.booleans()) and not isinstance(place, list):
            place.pop(last, None)
        else:
            place[last] = draw(JSON)
        if not places(source):
            break
    return source


def review_json(new: dict[str, Any]) -> dict[str, Any]:
    return body(new)


def judged(source: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod as it is stored; None: it was denied."""
    try:
        review = review_of(json.dumps(body(source)).encode())
    except UnreadableReviewError:
        return None
    verdict = mutated(review, RULES, uuids())
    assert answer_of(review, verdict)
    if verdict.denial:
        return None
    stored = patched(review.new, verdict)
    if validated(Review(**{**fields(review), "new": stored}), RULES).denial:
        return None
    return stored


def fields(review: Review) -> dict[str, Any]:
    return {name: getattr(review, name) for name in Review.__slots__}


def seen_later(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the informer decodes it, once the API server has given it a uid."""
    source = copy.deepcopy(stored)
    source["metadata"].update(uid="p1", name="p", resourceVersion="7")
    decoded: Any = Decoder(KubePod).object(json.dumps(source).encode())
    return dict(decoded)


def check_let_in(stored: dict[str, Any]) -> None:
    """What was let in means something, and one thing."""
    if not isinstance(stored.get("metadata"), dict):
        return  # an API server gives every pod a name
    source = seen_later(stored)
    pod = pod_of(source)
    reading = RULES.dialects.read(pod)
    named = {each.name: each.uuid for each in pod.containers if each.uuid}

    assert not reading.request_error, reading.request_error
    assert reading.decision is None
    asking = dict(reading.request.containers) if reading.request else {}
    assert named.keys() == asking.keys()
    assert len(set(named.values())) == len(named)
    assert all(re.fullmatch(UUID, each) for each in named.values())
    for request in asking.values():
        assert 1 <= request.count <= 16
        assert all(each.bytes > 0 or 1 <= each.percent <= 100 for each in request.memory)
        assert all(1 <= each <= 100 for each in request.cores_percent)
    if asking:
        assert source["spec"]["runtimeClassName"] == "vgpu"
        found = asked_of(stored, "default", RULES)
        assert found is not None
        assert found.request == reading.request, "admission and informer read two requests"
    # Whoever names one of our resources asks, by whichever dialect.
    for each in pod.containers:
        for resource in (*each.limits, *each.requests):
            if RULES.resource(resource):
                assert each.name in asking, f"{resource} of {each.name} is passed over"

    world = World(others=RULES.dialects.foreign)
    world.apply(source)
    record = world.cluster.record("p1")
    assert record is not None
    assert record.request == reading.request


@quietly
@given(source=pods())
@example(source=new_pod({"name": "main", "resources": {"limits": {"nvidia.com/gpucores": "0"}}}))
@example(
    source=new_pod(
        {"name": "main", "resources": {"limits": {"vgpu.dev/memory": "1Gi"}}},
        annotations={"vgpu.dev/devices": '{"main": null}'},
    )
)
@example(
    source=new_pod(
        {"name": "main", "resources": {"limits": {"koordinator.sh/gpu": "50"}}},
        initContainers=[{"name": "i", "resources": {"limits": {"koordinator.sh/gpu": "100"}}}],
    )
)
def test_a_pod_that_is_let_in_means_one_thing(source: dict[str, Any]) -> None:
    stored = judged(source)

    if stored is not None:
        check_let_in(stored)


@quietly
@given(source=mutated_json(pods()))
def test_a_pod_of_any_shape_is_denied_or_means_one_thing(source: dict[str, Any]) -> None:
    stored = judged(source)

    if stored is not None:
        check_let_in(stored)


@quietly
@given(source=mutated_json(pods()), change=st.data())
def test_any_update_is_judged(source: dict[str, Any], change: st.DataObject) -> None:
    new = change.draw(mutated_json(st.just(source)))
    resource, subresource, operation = change.draw(
        st.sampled_from(
            [
                ("pods", "", "UPDATE"),
                ("pods", "status", "UPDATE"),
                ("pods", "binding", "CREATE"),
                ("nodes", "", "UPDATE"),
                ("nodes", "status", "UPDATE"),
            ]
        )
    )
    asked = Review(
        uid="1",
        operation=operation,
        resource=resource,
        subresource=subresource,
        namespace="default",
        user="alice",
        new=new,
        old=source,
    )

    verdict = validated(asked, RULES)

    assert answer_of(asked, verdict)
    if new == source and operation == "UPDATE" and verdict.denial:
        assert re.search("is not (a|an|true) |has no name|are named", verdict.denial), (
            "nothing changed and nothing has a wrong type"
        )


@quietly
@given(source=mutated_json(pods().map(review_json)))
def test_a_review_of_any_shape_is_answered_or_unreadable(source: dict[str, Any]) -> None:
    try:
        review = review_of(json.dumps(source).encode())
    except UnreadableReviewError:
        return
    for verdict in (mutated(review, RULES, uuids()), validated(review, RULES)):
        answer = json.loads(answer_of(review, verdict))
        assert answer["response"]["uid"] == review.uid
        assert answer["response"]["allowed"] is not bool(verdict.denial)


@quietly
@given(data=st.one_of(st.binary(max_size=64), JSON.map(lambda each: json.dumps(each).encode())))
@example(data=b"[" * 100_000)
@example(data=b'{"a":' * 100_000)
@example(data=b"\xff\xfe")
@example(data=b"NaN")
@example(data=b"")
def test_any_body_that_is_no_review_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableReviewError):
        review_of(data)
