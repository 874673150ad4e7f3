# SPDX-License-Identifier: Apache-2.0
"""The objects by which an API server asks us, and those by which it holds rules itself. Pure.

The chart's files are made of these, so that code and cluster cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from scheduler_cache.admission import expressions as cel
from scheduler_cache.admission.rules import OWN_ANNOTATIONS, Rules
from scheduler_cache.dialects.native import CONTAINER_UUIDS

API: Final = "admissionregistration.k8s.io/v1"
MUTATE_PATH: Final = "/mutate"
VALIDATE_PATH: Final = "/validate"
ENFORCE_LABEL: Final = "vgpu.dev/admission"
"""On a namespace: `enforce` lets no pod in while no webhook answers. For API servers before 1.28,
which cannot tell the pods that ask from the others."""

# A tenth of this is what an answer takes on a busy machine; the rest is for the network.
_TIMEOUT_SECONDS: Final = 5

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Where an API server finds the webhooks."""

    namespace: str
    service: str = "vgpu-admission"
    name: str = "vgpu-admission"
    """Of both webhook configurations."""
    port: int = 443
    ca_bundle: str = ""
    """Base64 of PEM. Empty: the replicas, or cert-manager, write it."""
    annotations: dict[str, str] = field(default_factory=dict)
    """Such as cert-manager's `cert-manager.io/inject-ca-from`."""
    match_conditions: bool = True
    """Whether the API server knows them (1.28 and later)."""


def webhook_configurations(rules: Rules, site: Site) -> list[Json]:
    """Return the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration."""
    return [
        _configuration("MutatingWebhookConfiguration", site, _mutating(rules, site)),
        _configuration("ValidatingWebhookConfiguration", site, _validating(rules, site)),
    ]


def policies(rules: Rules, prefix: str = "vgpu") -> list[Json]:
    """Return the ValidatingAdmissionPolicies and their bindings, for API servers from 1.30 on."""
    us, known = cel.by([rules.user]), cel.by([rules.user, *sorted(rules.join_users)])
    own = [name for name in OWN_ANNOTATIONS if name != CONTAINER_UUIDS]
    foreign, labels = rules.foreign_annotations, rules.foreign_labels
    mine = f"request.namespace == {cel.quoted(rules.namespace)}"
    asks, asked = cel.asks(rules), cel.asks(rules, "oldObject")
    decided = f"({cel.annotated(foreign)}) || ({cel.labelled(labels)})"
    redecided = f"({cel.changed(foreign)}) || ({cel.changed(labels, 'labels')})"
    return [
        *_policy(
            f"{prefix}-pods",
            [_rule(["CREATE"], ["pods"])],
            [("relevant", _any(cel.asks(rules), *_unasked(rules)))],
            [
                (f"{mine} || !({cel.own_path()})", "a hostPath volume belongs to vgpu"),
                (f"{us} || !({cel.annotated(own)})", "an annotation is written by vgpu alone"),
                (
                    f"{known} || !({cel.guarded(rules, decided)})",
                    "an annotation or a label is written by a scheduler alone",
                ),
                (
                    f"({asks}) || !(({cel.named()}) || ({cel.annotated([CONTAINER_UUIDS])}))",
                    "the pod asks for no card and names containers as vgpu does",
                ),
                (
                    f"!({asks}) || (({cel.named()}) && ({cel.named_as_asked(rules)}))",
                    "a container asks for a card and was not named by vgpu's webhook; see that its "
                    "MutatingWebhookConfiguration is installed",
                ),
                (
                    f"!({asks}) || (has(object.spec.runtimeClassName) && "
                    f"object.spec.runtimeClassName == {cel.quoted(rules.runtime_class)})",
                    f"a pod with a slice runs under the RuntimeClass {rules.runtime_class}",
                ),
                (
                    f"!({asks}) || !has(object.spec.nodeName) || object.spec.nodeName == ''",
                    "a pod with a slice has no nodeName before a scheduler has chosen its cards",
                ),
            ],
        ),
        *_policy(
            f"{prefix}-pod-updates",
            [
                _rule(
                    ["UPDATE"],
                    ["pods", "pods/status", "pods/resize", "pods/ephemeralcontainers"],
                )
            ],
            [("not-vgpu", f"!({us})")],
            [
                (
                    f"!({cel.changed(OWN_ANNOTATIONS)})",
                    "an annotation is written by vgpu alone",
                ),
                (
                    f"{known} || !({cel.guarded(rules, redecided)})",
                    "an annotation or a label is written by a scheduler alone",
                ),
                (
                    f"!(({asks}) || ({asked})) || !({cel.changed(rules.request_annotations)})",
                    "an annotation is a part of what the pod asked for; create the pod anew",
                ),
                (f"!({cel.looking_in_named()})", "an ephemeral container is named as by vgpu"),
            ],
        ),
        *_policy(
            f"{prefix}-bindings",
            [_rule(["CREATE"], ["pods/binding", "bindings"])],
            [("not-vgpu", f"!({us})")],
            [
                (f"!({cel.annotated(own)})", "an annotation is written by vgpu alone"),
                # A scheduler may repeat the pod's annotations; whether it changes one, the webhook
                # sees. In the scope of nodes it also sees whether a pod with that uid is ours.
                (
                    f"{known} || !({cel.guarded_binding(rules, decided, cel.without_uid())})",
                    "an annotation or a label is written by a scheduler alone",
                ),
                (
                    f"{known} || !(({_asking_anew(rules, cel.without_uid())}) || "
                    f"({cel.annotated([CONTAINER_UUIDS])}) || ({cel.asks_an_engine()}))",
                    "an annotation may change what the pod asked for; if a scheduler repeats the "
                    "pod's own, name its user in kubernetes.admission.join_users",
                ),
            ],
        ),
        *_policy(
            f"{prefix}-nodes",
            [_rule(["CREATE", "UPDATE"], ["nodes", "nodes/status"])],
            [("not-vgpu", f"!({us})")],
            [
                (f"!({cel.node_described()})", "vgpu alone writes what a node has"),
                (
                    f"!({cel.by_a_node()}) || !({cel.node_managed()})",
                    "people, not the node itself, write how it is used",
                ),
            ],
        ),
    ]


def _unasked(rules: Rules) -> list[str]:
    """Return when a new pod is ours to judge although it asks for nothing."""
    decided = (
        f"({cel.annotated(rules.foreign_annotations)}) || ({cel.labelled(rules.foreign_labels)})"
    )
    return [
        cel.named(),
        cel.annotated(OWN_ANNOTATIONS),
        cel.guarded(rules, decided),
        cel.own_path(),
    ]


def _asking_anew(rules: Rules, suspect: str) -> str:
    """Whether a Binding may change what its pod asked for; `suspect` as in `guarded_binding`."""
    foreign = rules.foreign_request_annotations
    own = [name for name in rules.request_annotations if name not in foreign]
    theirs = cel.guarded_binding(rules, cel.annotated(foreign), suspect)
    return f"({cel.annotated(own)}) || ({theirs})"


def _mutating(rules: Rules, site: Site) -> list[Json]:
    pods = [_rule(["CREATE"], ["pods"])]
    relevant = [("relevant", _any(cel.asks(rules), cel.named()))]
    return [
        {**each, "reinvocationPolicy": "IfNeeded"}
        for each in _webhooks("pods", pods, relevant, MUTATE_PATH, site)
    ]


def _validating(rules: Rules, site: Site) -> list[Json]:
    others = ("not-vgpu", f"!({cel.by([rules.user])})")
    update = _any(
        cel.relevant_update(rules),
        cel.looking_in(),
        f"has(request.subResource) && request.subResource == 'resize' && ({cel.asks(rules)})",
    )
    # In the scope of nodes, a scheduler that is named binds its own pods without us.
    stranger = f"!({cel.by([rules.user, *sorted(rules.join_users)])})"
    decided = (
        f"({cel.annotated(rules.foreign_annotations)}) || ({cel.labelled(rules.foreign_labels)})"
    )
    binding = _any(
        cel.annotated(OWN_ANNOTATIONS),
        cel.guarded_binding(rules, decided, stranger),
        _asking_anew(rules, stranger),
        cel.asks_an_engine(),
    )
    node = _any(cel.node_described(), cel.node_managed())
    updates, nodes = ["pods", "pods/ephemeralcontainers"], ["nodes"]
    if site.match_conditions:
        # Without conditions, every sign of life of every kubelet would be asked about.
        updates, nodes = [*updates, "pods/status", "pods/resize"], [*nodes, "nodes/status"]
    return [
        *_webhooks(
            "pods",
            [_rule(["CREATE"], ["pods"])],
            [("relevant", _any(cel.asks(rules), *_unasked(rules)))],
            VALIDATE_PATH,
            site,
        ),
        *_webhooks(
            "updates",
            [_rule(["UPDATE"], updates)],
            [others, ("relevant", update)],
            VALIDATE_PATH,
            site,
        ),
        *_webhooks(
            "bindings",
            [_rule(["CREATE"], ["pods/binding", "bindings"])],
            [others, ("relevant", binding)],
            VALIDATE_PATH,
            site,
        ),
        *_webhooks(
            "nodes",
            [_rule(["CREATE", "UPDATE"], nodes)],
            [others, ("relevant", node)],
            VALIDATE_PATH,
            site,
        ),
    ]


def _webhooks(
    name: str, rules: list[Json], conditions: list[tuple[str, str]], path: str, site: Site
) -> list[Json]:
    """Return one webhook that fails closed, or, without match conditions, two.

    The second is for namespaces that did not ask for it: pods that ask for nothing must be able to
    start while no replica answers. What slips through gets no card: the runtime does not know it.
    """
    base: Json = {
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "namespace": site.namespace,
                "name": site.service,
                "path": path,
                "port": site.port,
            },
            **({"caBundle": site.ca_bundle} if site.ca_bundle else {}),
        },
        "matchPolicy": "Equivalent",
        "rules": rules,
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT_SECONDS,
    }
    if site.match_conditions:
        return [
            {
                "name": f"{name}.vgpu.dev",
                "failurePolicy": "Fail",
                "matchConditions": _conditions(conditions),
                **base,
            }
        ]
    ours = _selected("kubernetes.io/metadata.name", "NotIn", site.namespace)
    if name == "nodes":
        return [{"name": f"{name}.vgpu.dev", "failurePolicy": "Ignore", **base}]
    return [
        {
            "name": f"{part}-{name}.vgpu.dev",
            "failurePolicy": policy,
            "namespaceSelector": {
                "matchExpressions": [ours, _selected(ENFORCE_LABEL, operator, "enforce")]
            },
            **base,
        }
        for part, policy, operator in (("enforced", "Fail", "In"), ("other", "Ignore", "NotIn"))
    ]


def _configuration(kind: str, site: Site, webhooks: list[Json]) -> Json:
    metadata: Json = {"name": site.name}
    if site.annotations:
        metadata["annotations"] = dict(site.annotations)
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "webhooks": webhooks}


def _policy(
    name: str,
    rules: list[Json],
    conditions: list[tuple[str, str]],
    validations: list[tuple[str, str]],
) -> list[Json]:
    """Return a policy and its binding to the whole cluster."""
    return [
        {
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": rules},
                "matchConditions": _conditions(conditions),
                "validations": [
                    {"expression": expression, "message": message, "reason": "Forbidden"}
                    for expression, message in validations
                ],
            },
        },
        {
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def _rule(operations: list[str], resources: list[str]) -> Json:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
    }


def _conditions(conditions: list[tuple[str, str]]) -> list[Json]:
    return [{"name": name, "expression": expression} for name, expression in conditions]


def _selected(key: str, operator: str, value: str) -> Json:
    return {"key": key, "operator": operator, "values": [value]}


def _any(*expressions: str) -> str:
    return " || ".join(f"({each})" for each in expressions)
