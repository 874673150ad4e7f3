# SPDX-License-Identifier: Apache-2.0
"""Whether an object may be stored as it now is, after all that changed it. Pure.

Of an update only what changes is judged: a pod that was there before us must be able to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from scheduler_cache.admission.creation import check_new
from scheduler_cache.admission.podspec import (
    containers_of,
    ephemeral_containers_of,
    metadata_of,
    resources_of,
    spec_of,
    text_of,
    texts_of,
    uuid_values,
)
from scheduler_cache.admission.reach import cdi_annotations, check_host_paths, check_privileges
from scheduler_cache.admission.request import asked_of, pod_seen
from scheduler_cache.admission.review import ALLOWED, DeniedError, Json, Review, Verdict
from scheduler_cache.admission.rules import (
    NODE_ANNOTATIONS,
    NODE_LABELS,
    NODES_GROUP,
    PEOPLE_ANNOTATIONS,
    PEOPLE_LABELS,
    Rules,
)
from scheduler_cache.admission.uuids import check_named, check_unnamed
from scheduler_cache.dialects.native import CONTAINER_UUIDS
from scheduler_cache.pod import UUID_VARIABLE

_ALONE: Final = "is written by vgpu alone"
_ANEW: Final = "delete the pod and create it anew"


_BINDINGS: Final = frozenset({("CREATE", "pods", "binding"), ("CREATE", "bindings", "")})


def needs_pod(review: Review, rules: Rules) -> bool:
    """Return whether the pod must be read before its Binding can be judged.

    Some schedulers repeat all of the pod's annotations on its Binding (Volcano does).
    """
    if _asked_about(review) not in _BINDINGS or review.user == rules.user:
        return False
    metadata = review.new.get("metadata")
    return isinstance(metadata, dict) and any(
        rules.own(name)
        or rules.asking(name)
        or rules.foreign(name, label=key == "labels")
        or cdi_annotations([name])
        for key in ("annotations", "labels")
        for name in metadata.get(key) or ()
    )


def validated(review: Review, rules: Rules, pod: Json | None = None) -> Verdict:
    """Return whether the object may be stored. What is none of our business may.

    `pod`: of a Binding, its pod as the API server has it; None: it was not read.
    """
    asked = _asked_about(review)
    try:
        if asked in _BINDINGS:
            _bound(review, rules, pod or {})
        elif check := _CHECKS.get(asked):
            check(review, rules)
    except DeniedError as error:
        return Verdict(denial=str(error))
    return ALLOWED


def _created(review: Review, rules: Rules) -> None:
    source = review.new
    if review.namespace != rules.namespace:
        check_host_paths(source)
    guarded = _guarded(source, rules)
    for name in texts_of(source, "annotations"):
        # Whether these are the pod's, `check_named` says.
        if name != CONTAINER_UUIDS:
            _check_writer(review, rules, name, guarded)
    for name in texts_of(source, "labels"):
        _check_writer(review, rules, name, guarded, label=True)
    asked = asked_of(source, review.namespace, rules)
    check_named(source, asked)
    if asked is None:
        return
    check_new(source, rules)
    if text_of(spec_of(source), "runtimeClassName", "/spec") != rules.runtime_class:
        raise DeniedError(
            f"spec.runtimeClassName: a pod with a slice runs under {rules.runtime_class}, and "
            "something has changed that; let no other webhook set it"
        )


def _updated(review: Review, rules: Rules) -> None:
    old, new = review.old, review.new
    changed = set(_changed(texts_of(old, "annotations"), texts_of(new, "annotations")))
    guarded = _guarded(old, rules) or _guarded(new, rules)
    for name in sorted(changed):
        _check_writer(review, rules, name, guarded)
    for name in sorted(_changed(texts_of(old, "labels"), texts_of(new, "labels"))):
        _check_writer(review, rules, name, guarded, label=True)
    known = {each.name for each in ephemeral_containers_of(old)}
    added = [each for each in ephemeral_containers_of(new) if each.name not in known]
    check_unnamed(added)
    if _names(old) != _names(new):
        raise DeniedError(f"{UUID_VARIABLE} {_ALONE}; {_ANEW}")
    if not (_asks(old, review, rules) or _asks(new, review, rules)):
        return
    for name in sorted(changed):
        if rules.asking(name):
            raise DeniedError(f"{name} is a part of what the pod asked for; {_ANEW}")
        if cdi_annotations([name]):
            raise DeniedError(f"{name!a} asks an engine for devices beside the pod's slice")
    if _amounts(old, rules) != _amounts(new, rules):
        raise DeniedError(f"spec.containers.resources: a slice is not resized; {_ANEW}")
    check_privileges(added, rules)


def _bound(review: Review, rules: Rules, pod: Json) -> None:
    """Judge a Binding, whose annotations and labels become the pod's.

    It may repeat what the pod carries already. Only the uid makes sure that the API server binds
    the pod that was read, and no later one of its name.
    """
    uid = metadata_of(review.new).get("uid")
    same = bool(uid) and uid == metadata_of(pod).get("uid")
    # A pod that is not known for certain may be ours: the scope of nodes cannot say that it is not.
    guarded = not same or _guarded(pod, rules)
    carried = texts_of(pod, "annotations") if same else {}
    for name, text in texts_of(review.new, "annotations").items():
        if carried.get(name) == text:
            continue
        _check_writer(review, rules, name, guarded)
        asks = rules.asking(name) and (guarded or name not in rules.foreign_request_annotations)
        if asks or cdi_annotations([name]):
            raise DeniedError(
                f"{name!a} on a Binding would change what the pod asked for; a Binding that "
                "repeats what its pod carries names the pod's uid"
            )
    carried = texts_of(pod, "labels") if same else {}
    for name, text in texts_of(review.new, "labels").items():
        if carried.get(name) != text:
            _check_writer(review, rules, name, guarded, label=True)


def _node(review: Review, rules: Rules) -> None:
    if review.user == rules.user:
        return
    for key, ours, people in (
        ("annotations", NODE_ANNOTATIONS, PEOPLE_ANNOTATIONS),
        ("labels", NODE_LABELS, PEOPLE_LABELS),
    ):
        for name in sorted(_changed(texts_of(review.old, key), texts_of(review.new, key))):
            if name in ours:
                raise DeniedError(f"{name} of a node {_ALONE}, from what its agent reports")
            if name in people and NODES_GROUP in review.groups:
                raise DeniedError(f"{name} of a node is written by people, not by the node itself")


def _guarded(source: Json, rules: Rules) -> bool:
    """Return whether other systems' decisions about a pod are written by their schedulers alone."""
    return rules.ours_of(source) == rules.ours


def _check_writer(
    review: Review, rules: Rules, name: str, guarded: bool, *, label: bool = False
) -> None:
    """Refuse a decision by somebody who does not decide. Raises DeniedError.

    `guarded`: whether that is looked at for other systems, too.
    """
    kind = "label" if label else "annotation"
    if name == CONTAINER_UUIDS and not label:
        raise DeniedError(f"{name} {_ALONE} when a pod is created; leave the annotation as it is")
    if review.user == rules.user:
        return
    if rules.own(name) and not label:
        raise DeniedError(f"{name} {_ALONE}; leave the annotation as it is")
    if guarded and rules.foreign(name, label=label) and review.user not in rules.join_users:
        raise DeniedError(
            f"{ascii(name)[1:-1]} is written by a scheduler; leave the {kind} as it is, or name "
            "the scheduler's user in kubernetes.admission.join_users"
        )


def _asked_about(review: Review) -> tuple[str, str, str]:
    return review.operation, review.resource, review.subresource


def _changed(old: Json, new: Json) -> Iterator[str]:
    return (name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _asks(source: Json, review: Review, rules: Rules) -> bool:
    pod = pod_seen(source, review.namespace)
    ours = rules.ours_of(source)
    return any(each.asks(pod) for each in rules.spoken if each.name in ours)


def _names(source: Json) -> dict[str, list[str]]:
    return {each.name: uuid_values(each) for each in containers_of(source)}


def _amounts(source: Json, rules: Rules) -> dict[str, Json]:
    return {
        each.name: {name: text for name, text in resources_of(each).items() if rules.resource(name)}
        for each in containers_of(source)
    }


_CHECKS: Final[dict[tuple[str, str, str], Callable[[Review, Rules], None]]] = {
    ("CREATE", "pods", ""): _created,
    ("UPDATE", "pods", ""): _updated,
    ("UPDATE", "pods", "status"): _updated,
    ("UPDATE", "pods", "resize"): _updated,
    ("UPDATE", "pods", "ephemeralcontainers"): _updated,
    ("CREATE", "nodes", ""): _node,
    ("UPDATE", "nodes", ""): _node,
    ("UPDATE", "nodes", "status"): _node,
}

JUDGED: Final = frozenset(_CHECKS) | _BINDINGS
"""(operation, resource, subresource) of everything that is judged here."""
