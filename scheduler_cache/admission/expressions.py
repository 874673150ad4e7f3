# SPDX-License-Identifier: Apache-2.0
"""What the API server itself can tell, in its expression language (CEL). Pure.

By these it calls the webhooks for the few objects that matter, so that nobody else's pod waits for
us or fails with us, and by these it holds the most important rules when no webhook answers. None of
them can fail to be evaluated: that would be a denial.
Source: "Common Expression Language in Kubernetes"; the API reference, admissionregistration.k8s.io.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from scheduler_cache.admission.reach import OWN_PATHS
from scheduler_cache.admission.rules import (
    CLUSTER,
    NODE_ANNOTATIONS,
    NODE_LABELS,
    NODES_GROUP,
    OWN_ANNOTATIONS,
    PEOPLE_ANNOTATIONS,
    PEOPLE_LABELS,
    Rules,
)
from scheduler_cache.admission.uuids import UUID
from scheduler_cache.inventory import DIALECT_LABEL
from scheduler_cache.pod import UUID_VARIABLE

CDI = r"^([^/]+[.])?cdi[.]k8s[.]io/"

_NAMED = f"has(c.env) && c.env.exists(e, e.name == '{UUID_VARIABLE}')"


def asks(rules: Rules, of: str = "object") -> str:
    """Whether the pod asks for cards in a dialect of ours; `of`: `object` or `oldObject`."""
    if rules.scope == CLUSTER:
        return _asks_by(rules.resources, rules.asking_annotations, of)
    foreign, annotations = rules.foreign_resources, rules.foreign_asking_annotations
    own = _asks_by(
        [name for name in rules.resources if name not in foreign],
        [name for name in rules.asking_annotations if name not in annotations],
        of,
    )
    return f"{own} || {guarded(rules, _asks_by(foreign, annotations, of), of)}"


def guarded(rules: Rules, condition: str, of: str = "object") -> str:
    """Whether a condition holds about a pod that would be ours in another system's dialect."""
    if rules.scope == CLUSTER:
        return condition
    return f"(({_everywhere(rules)} || {chooses_nodes(of)}) && ({condition}))"


def guarded_binding(rules: Rules, condition: str, suspect: str) -> str:
    """Whether a condition holds about a Binding whose pod may be ours in another system's dialect.

    No expression sees the pod. `suspect`: when the pod is taken for ours although others are not.
    """
    if rules.scope == CLUSTER:
        return condition
    return f"(({_everywhere(rules)} || {suspect}) && ({condition}))"


def without_uid() -> str:
    """Whether a Binding names no pod for certain."""
    return "!has(object.metadata.uid) || object.metadata.uid == ''"


def chooses_nodes(of: str = "object") -> str:
    """Whether the pod can only land on nodes that carry the label; as `podspec.chooses_nodes`."""
    label = quoted(DIALECT_LABEL)
    affinity = f"{of}.spec.affinity"
    required = f"{affinity}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    return (
        f"(has({of}.spec.nodeSelector) && {of}.spec.nodeSelector.exists(k, k == {label})) || "
        f"(has({affinity}) && has({affinity}.nodeAffinity) && has({required}) && "
        f"size({required}.nodeSelectorTerms) > 0 && "
        f"{required}.nodeSelectorTerms.all(t, has(t.matchExpressions) && "
        f"t.matchExpressions.exists(e, e.key == {label} && e.operator in "
        f"{_list(('In', 'Exists'))})))"
    )


def _everywhere(rules: Rules) -> str:
    # The chart puts its own value in the place of the first of them.
    return f"{quoted(rules.scope)} == {quoted(CLUSTER)}"


def _asks_by(resources: Iterable[str], annotations: Iterable[str], of: str) -> str:
    return (
        f"{_containers(of)}.exists(c, {_names_one(resources)}) || "
        f"{_has_key('annotations', one_of('k', annotations), of)}"
    )


def asks_container(rules: Rules) -> str:
    """Whether the container `c` asks by resources."""
    return _names_one(rules.resources)


def _names_one(resources: Iterable[str]) -> str:
    resource = one_of("r", resources)
    return (
        "has(c.resources) && ("
        f"(has(c.resources.limits) && c.resources.limits.exists(r, {resource})) || "
        f"(has(c.resources.requests) && c.resources.requests.exists(r, {resource})))"
    )


def named() -> str:
    """Whether a container of the pod carries a name, rightly or not."""
    return f"{_containers()}.exists(c, {_NAMED})"


def named_as_asked(rules: Rules) -> str:
    """Whether every container that asks by resources carries one name of the right form."""
    return (
        f"{_containers()}.all(c, !({asks_container(rules)}) || (has(c.env) && "
        f"c.env.exists_one(e, e.name == '{UUID_VARIABLE}') && "
        f"c.env.exists(e, e.name == '{UUID_VARIABLE}' && has(e.value) && "
        f"e.value.matches('^{UUID}$'))))"
    )


def own_path() -> str:
    """Whether the pod mounts a folder of ours."""
    return (
        "has(object.spec.volumes) && object.spec.volumes.exists(v, has(v.hostPath) && "
        f"v.hostPath.path.matches({quoted(OWN_PATHS)}))"
    )


def annotated(names: Iterable[str]) -> str:
    """Whether a new object carries one of these annotations."""
    return _has_key("annotations", one_of("k", names))


def labelled(names: Iterable[str]) -> str:
    """Whether a new object carries one of these labels."""
    return _has_key("labels", one_of("k", names))


def asks_an_engine() -> str:
    """Whether an object's annotations ask an engine for devices."""
    return _has_key("annotations", _ASKS_AN_ENGINE)


def changed(names: Iterable[str], key: str = "annotations") -> str:
    """Whether one of these annotations, or labels, is not as it was; of a new object, is there."""
    return _changed(one_of("k", names), key)


def relevant_update(rules: Rules) -> str:
    """Whether an update of a pod touches what is ours to judge."""
    theirs = (*rules.foreign_annotations, *rules.foreign_request_annotations)
    own = [
        name
        for name in (*OWN_ANNOTATIONS, *rules.request_annotations)
        if name not in rules.foreign_request_annotations
    ]
    return " || ".join(
        f"({each})"
        for each in (
            changed(own),
            guarded(rules, f"({changed(theirs)}) || ({changed(rules.foreign_labels, 'labels')})"),
            _changed(_ASKS_AN_ENGINE, "annotations"),
        )
    )


def looking_in() -> str:
    """Whether the pod has containers by which people look into it."""
    return (
        "has(object.spec.ephemeralContainers) && "
        "size(object.spec.ephemeralContainers) > "
        "(has(oldObject.spec.ephemeralContainers) ? size(oldObject.spec.ephemeralContainers) : 0)"
    )


def looking_in_named() -> str:
    """Whether such a container carries a name."""
    return (
        "has(object.spec.ephemeralContainers) && "
        f"object.spec.ephemeralContainers.exists(c, {_NAMED})"
    )


def node_described() -> str:
    """Whether what only we write of a node has changed."""
    return f"({changed(NODE_ANNOTATIONS)}) || ({changed(NODE_LABELS, 'labels')})"


def node_managed() -> str:
    """Whether what people write of a node has changed."""
    return f"({changed(PEOPLE_ANNOTATIONS)}) || ({changed(PEOPLE_LABELS, 'labels')})"


def by_a_node() -> str:
    """Whether a kubelet asks."""
    return (
        f"has(request.userInfo.groups) && request.userInfo.groups.exists(g, g == '{NODES_GROUP}')"
    )


def by(users: Iterable[str]) -> str:
    """Whether one of these users asks."""
    return f"request.userInfo.username in {_list(users)}"


def one_of(variable: str, names: Iterable[str]) -> str:
    """Whether a variable is one of the names of a vocabulary; see Vocabulary for open ends."""
    names = tuple(names)
    open_ends = [name for name in names if name.endswith(("/", "-"))]
    whole = [name for name in names if name not in open_ends]
    parts = [f"{variable} in {_list(whole)}"] if whole else []
    parts += [f"{variable}.startsWith({quoted(name)})" for name in open_ends]
    return " || ".join(parts) or "false"


def quoted(text: str) -> str:
    """Return a text as a literal."""
    return json.dumps(text)


_ASKS_AN_ENGINE = f"k.matches({quoted(CDI)})"


def _containers(of: str = "object") -> str:
    return (
        f"({of}.spec.containers + (has({of}.spec.initContainers) ? {of}.spec.initContainers : []))"
    )


def _keys(of: str, key: str) -> str:
    """Return annotations or labels; of an object that there is not, none."""
    there = (
        f"has({of}.metadata.{key})"
        if of == "object"
        else (f"{of} != null && has({of}.metadata.{key})")
    )
    return f"({there} ? {of}.metadata.{key} : {{}})"


def _has_key(key: str, condition: str, of: str = "object") -> str:
    return f"{_keys(of, key)}.exists(k, {condition})"


def _changed(condition: str, key: str) -> str:
    new, old = _keys("object", key), _keys("oldObject", key)
    return (
        f"{new}.exists(k, ({condition}) && !(k in {old} && {old}[k] == {new}[k])) || "
        f"{old}.exists(k, ({condition}) && !(k in {new}))"
    )


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(quoted(each) for each in texts)}]"
