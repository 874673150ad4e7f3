# SPDX-License-Identifier: Apache-2.0
"""The objects for the API server; tests/e2e/test_admission.py holds them to a real one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from scheduler_cache.admission.expressions import one_of
from scheduler_cache.admission.manifests import Site, policies, webhook_configurations
from scheduler_cache.admission.validation import JUDGED
from tests.scheduler_cache.admission.reviews import JOINED, RULES, US, ruled

SITE = Site(namespace="vgpu-system")


def webhooks(site: Site = SITE) -> list[dict[str, Any]]:
    """Return the webhooks of both configurations."""
    return [each for item in webhook_configurations(RULES, site) for each in item["webhooks"]]


def asked(items: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return the (operation, resource, subresource) that rules are for."""
    found = set()
    for item in items:
        for rule in item.get("rules") or item["spec"]["matchConstraints"]["resourceRules"]:
            for operation in rule["operations"]:
                for name in rule["resources"]:
                    resource, _, subresource = name.partition("/")
                    found.add((operation, resource, subresource))
    return found


def of_kind(items: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in items if each["kind"] == kind]


def test_everything_that_is_judged_is_asked_about() -> None:
    validating = webhook_configurations(RULES, SITE)[1]["webhooks"]
    held = of_kind(policies(RULES), "ValidatingAdmissionPolicy")

    # Nobody creates a node's status; the rule for nodes names both operations for both.
    assert asked(validating) == {*JUDGED, ("CREATE", "nodes", "status")}
    assert asked(held) == asked(validating)


def test_pods_that_ask_for_nothing_never_wait_for_us() -> None:
    for each in webhooks():
        assert each["failurePolicy"] == "Fail"
        assert each["matchConditions"], f"{each['name']} is called for everything"
    for each in of_kind(policies(RULES), "ValidatingAdmissionPolicy"):
        assert each["spec"]["matchConditions"]


def test_without_conditions_only_namespaces_that_say_so_wait_for_us() -> None:
    found = webhooks(replace(SITE, match_conditions=False))

    for each in found:
        assert "matchConditions" not in each
        selected = each.get("namespaceSelector", {}).get("matchExpressions", [])
        strict = {"key": "vgpu.dev/admission", "operator": "In", "values": ["enforce"]} in selected
        assert (each["failurePolicy"] == "Fail") is strict
        if each["name"] != "nodes.vgpu.dev":
            ours = {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["vgpu-system"],
            }
            assert ours in selected, "our own pods could not start"
    assert not {name for _, name, sub in asked(found) if sub == "status"}, "asked for heartbeats"


def test_webhooks_are_asked_anew_only_where_they_change_something() -> None:
    mutating, validating = webhook_configurations(RULES, SITE)

    assert {each["reinvocationPolicy"] for each in mutating["webhooks"]} == {"IfNeeded"}
    assert not any("reinvocationPolicy" in each for each in validating["webhooks"])
    for each in (*mutating["webhooks"], *validating["webhooks"]):
        assert each["sideEffects"] == "None", "a dry run would be refused"
        assert each["admissionReviewVersions"] == ["v1"]


def test_the_authority_is_left_to_who_makes_it() -> None:
    with_authority = webhooks(replace(SITE, ca_bundle="QUJD"))

    assert {each["clientConfig"]["caBundle"] for each in with_authority} == {"QUJD"}
    assert not any("caBundle" in each["clientConfig"] for each in webhooks())


def test_annotations_are_for_who_injects_the_authority() -> None:
    inject = {"cert-manager.io/inject-ca-from": "vgpu-system/vgpu-admission"}

    for item in webhook_configurations(RULES, replace(SITE, annotations=inject)):
        assert item["metadata"] == {"name": "vgpu-admission", "annotations": inject}


def test_every_policy_is_bound_and_denies() -> None:
    items = policies(RULES)
    names = {each["metadata"]["name"] for each in of_kind(items, "ValidatingAdmissionPolicy")}
    bindings = of_kind(items, "ValidatingAdmissionPolicyBinding")

    assert {each["spec"]["policyName"] for each in bindings} == names
    assert all(each["spec"]["validationActions"] == ["Deny"] for each in bindings)


def test_who_may_write_stands_in_the_rules() -> None:
    text = json.dumps(policies(RULES))

    assert US in text
    assert JOINED in text


def test_a_dialect_that_is_not_ours_is_not_named() -> None:
    rules = ruled(ours=frozenset({"native"}))

    text = json.dumps([*policies(rules), *webhook_configurations(rules, SITE)])

    assert "volcano" not in text.replace(JOINED, "")
    assert "vgpu.dev/" in text


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        ((), "false"),
        (("a/b",), 'k in ["a/b"]'),
        (("a/b", "c/"), 'k in ["a/b"] || k.startsWith("c/")'),
        (("c/d-",), 'k.startsWith("c/d-")'),
    ],
)
def test_names_become_expressions(names: tuple[str, ...], expression: str) -> None:
    assert one_of("k", names) == expression


def test_names_with_quotes_stay_within_them() -> None:
    assert one_of("k", ('a"b',)) == r'k in ["a\"b"]'
