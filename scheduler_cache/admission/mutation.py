# SPDX-License-Identifier: Apache-2.0
"""What becomes of a new pod that asks for cards: names for its containers, and our runtime. Pure.

Doing it again replaces the names and changes nothing else, so that the API server may ask once
more after another webhook's change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from scheduler_cache.admission.creation import check_new
from scheduler_cache.admission.podspec import (
    ContainerSource,
    containers_of,
    spec_of,
    text_of,
    texts_of,
)
from scheduler_cache.admission.request import Asked, asked_of
from scheduler_cache.admission.review import ALLOWED, DeniedError, Json, Review, Verdict
from scheduler_cache.admission.rules import Rules
from scheduler_cache.dialects.native import CONTAINER_UUIDS
from scheduler_cache.pod import UUID_VARIABLE

_DEFAULT_SCHEDULERS = ("", "default-scheduler")


def mutated(review: Review, rules: Rules, new_uuid: Callable[[], str]) -> Verdict:
    """Return the patch of a new pod, or why it is denied. Other objects stay as they are."""
    if (review.operation, review.resource, review.subresource) != ("CREATE", "pods", ""):
        return ALLOWED
    try:
        return _mutated(review, rules, new_uuid)
    except DeniedError as error:
        return Verdict(denial=str(error))


def _mutated(review: Review, rules: Rules, new_uuid: Callable[[], str]) -> Verdict:
    source = review.new
    asked = asked_of(source, review.namespace, rules)
    if asked is None:
        patch = [op for each in containers_of(source) for op in _without_uuid(each)]
        warning = f"{UUID_VARIABLE} is for containers with a slice: removed"
        return Verdict(patch=tuple(patch), warnings=(warning,) if patch else ())
    check_new(source, rules)
    patch = [*_named(source, asked, new_uuid), *_runtime(source, rules)]
    patch += [*_scheduler(source, rules), *_priority(source, rules)]
    return Verdict(patch=tuple(patch), warnings=asked.warnings)


def _named(source: Json, asked: Asked, new_uuid: Callable[[], str]) -> Iterator[Json]:
    """Give every container that asks a fresh UUID, and leave none to the others."""
    asking = {each.name for each in asked.containers}
    uuids: dict[str, str] = {}
    for each in containers_of(source):
        yield from _without_uuid(each)
        if each.name not in asking:
            continue
        uuids[each.name] = new_uuid()
        variable = {"name": UUID_VARIABLE, "value": uuids[each.name]}
        if each.source.get("env") is None:
            yield _add(f"{each.path}/env", [variable])
        else:
            yield _add(f"{each.path}/env/0", variable)
    text = json.dumps(uuids, separators=(",", ":"))
    if texts_of(source, "annotations"):
        yield _add(f"/metadata/annotations/{_escaped(CONTAINER_UUIDS)}", text)
    elif source.get("metadata") is None:
        raise DeniedError("the pod has no metadata; correct it")
    else:
        yield _add("/metadata/annotations", {CONTAINER_UUIDS: text})


def _without_uuid(container: ContainerSource) -> Iterator[Json]:
    """Remove the variable, each time that it stands there, from the end on."""
    for index, each in reversed(list(enumerate(container.env))):
        if each.get("name") == UUID_VARIABLE:
            yield {"op": "remove", "path": f"{container.path}/env/{index}"}


def _runtime(source: Json, rules: Rules) -> Iterator[Json]:
    if text_of(spec_of(source), "runtimeClassName", "/spec") != rules.runtime_class:
        yield _add("/spec/runtimeClassName", rules.runtime_class)


def _scheduler(source: Json, rules: Rules) -> Iterator[Json]:
    name = text_of(spec_of(source), "schedulerName", "/spec")
    if rules.scheduler_name not in ("", name) and name in _DEFAULT_SCHEDULERS:
        yield _add("/spec/schedulerName", rules.scheduler_name)


def _priority(source: Json, rules: Rules) -> Iterator[Json]:
    """Set the class where there is none.

    The API server has put the number of its default class there before it asks us, computes it
    anew afterwards, and refuses a number that is not the class's.
    """
    spec = spec_of(source)
    if not rules.priority_class or text_of(spec, "priorityClassName", "/spec"):
        return
    yield _add("/spec/priorityClassName", rules.priority_class)
    for key in ("priority", "preemptionPolicy"):
        if key in spec:
            yield {"op": "remove", "path": f"/spec/{key}"}


def _add(path: str, value: Any) -> Json:  # noqa: ANN401  any JSON
    return {"op": "add", "path": path, "value": value}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
