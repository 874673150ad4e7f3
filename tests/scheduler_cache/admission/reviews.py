# SPDX-License-Identifier: Apache-2.0
"""Short ways to write what an API server asks, and to do what it does with an answer."""

from __future__ import annotations

import copy
import itertools
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scheduler_cache.admission.mutation import mutated
from scheduler_cache.admission.review import Review, Verdict
from scheduler_cache.admission.rules import Rules
from scheduler_cache.admission.validation import validated
from scheduler_cache.config_kubernetes import DIALECTS
from scheduler_cache.dialects.registry import every_dialect
from tests.scheduler_cache.kube_objects import KEYRING

US = "system:serviceaccount:vgpu-system:vgpu-scheduler-cache"
JOINED = "system:serviceaccount:volcano-system:volcano-scheduler"
ALICE = "alice"

RULES = Rules(
    dialects=every_dialect(KEYRING),
    ours=frozenset(DIALECTS),
    scope="cluster",
    user=US,
    join_users=frozenset({JOINED}),
)


def new_pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:  # noqa: ANN401  a spec's
    """Return a pod as it comes to the webhooks: with the API's defaults, without a uid."""
    annotations = spec.pop("annotations", None)
    labels = spec.pop("labels", None)
    metadata: dict[str, Any] = {"generateName": "job-", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "containers": list(containers),
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            **spec,
        },
    }


def review(new: Mapping[str, Any], **fields: Any) -> Review:  # noqa: ANN401  those of Review
    """Return the question whether `new` may be created, unless `fields` say otherwise."""
    given = {
        "uid": str(uuid.uuid4()),
        "operation": "CREATE",
        "resource": "pods",
        "namespace": "default",
        "user": ALICE,
        **fields,
    }
    return Review(new=new, **given)


def body(new: Mapping[str, Any], **request: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an AdmissionReview in JSON, as API servers send it."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": ALICE, "groups": ["system:authenticated"]},
            "object": new,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            **request,
        },
    }


def uuids() -> Callable[[], str]:
    """Return a source of UUIDs that can be foretold."""
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"


def mutate(new: Mapping[str, Any], rules: Rules = RULES, **fields: Any) -> Verdict:  # noqa: ANN401
    return mutated(review(new, **fields), rules, lambda: str(uuid.uuid4()))


def patched(source: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    """Return the object with a verdict's patch, as RFC 6902 says."""
    found = copy.deepcopy(dict(source))
    for op in json.loads(json.dumps(verdict.patch)):
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]
        )
        place: Any = found
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            index = int(last)
            assert 0 <= index < len(place) + (op["op"] == "add"), op
            if op["op"] == "add":
                place.insert(index, op["value"])
            else:
                del place[index]
        elif op["op"] == "add":
            place[last] = op["value"]
        else:
            del place[last]
    return found


def admitted(new: Mapping[str, Any], rules: Rules = RULES, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the pod as it is stored after both webhooks."""
    verdict = mutate(new, rules, **fields)
    assert not verdict.denial, verdict.denial
    found = patched(new, verdict)
    final = validated(review(found, **fields), rules)
    assert not final.denial, final.denial
    return found


def denial(new: Mapping[str, Any], rules: Rules = RULES, **fields: Any) -> str:  # noqa: ANN401
    """Return why one of the two webhooks denies a new object; empty: none does."""
    verdict = mutate(new, rules, **fields)
    if verdict.denial:
        return verdict.denial
    return validated(review(patched(new, verdict), **fields), rules).denial


def update(
    old: Mapping[str, Any],
    change: Callable[[dict[str, Any]], object],
    rules: Rules = RULES,
    **fields: Any,  # noqa: ANN401
) -> str:
    """Return why a change of a stored object is denied; empty: it is not."""
    new = copy.deepcopy(dict(old))
    change(new)
    return validated(review(new, old=old, operation="UPDATE", **fields), rules).denial


def ruled(**changes: Any) -> Rules:  # noqa: ANN401  the fields of Rules
    return replace(RULES, **changes)
