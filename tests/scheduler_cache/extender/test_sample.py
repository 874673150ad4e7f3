# SPDX-License-Identifier: Apache-2.0
"""The scheduler's configuration that people copy agrees with the code and with the chart."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from scheduler_cache.cluster_extender import PREFIX, VERBS
from scheduler_cache.config_kubernetes import ExtenderConfig
from scheduler_cache.dialects.registry import every_dialect
from tests.scheduler_cache.kube_objects import KEYRING
from tests.testbed import REPOSITORY

SAMPLE = REPOSITORY / "deploy" / "scheduler" / "kube-scheduler.yaml"
VALUES = REPOSITORY / "deploy" / "helm" / "vgpu" / "values.yaml"


def extenders() -> list[dict[str, Any]]:
    config: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    found: list[dict[str, Any]] = config["extenders"]
    return found


def counted() -> set[str]:
    return {each["name"] for each in extenders()[1]["managedResources"]}


def test_every_verb_leads_to_a_handler() -> None:
    asked, silent = extenders()

    assert {asked[f"{verb}Verb"] for verb in VERBS} == set(VERBS)
    assert asked["urlPrefix"].endswith(PREFIX)
    assert not any(key.endswith("Verb") for key in silent)
    assert silent["urlPrefix"] == asked["urlPrefix"]


def test_the_scheduler_of_the_sample_is_the_one_that_we_bind_for() -> None:
    config = yaml.safe_load(SAMPLE.read_text())

    names = {each["schedulerName"] for each in config["profiles"]}
    assert names == set(ExtenderConfig().scheduler_names)


def test_the_chart_names_the_same_resources() -> None:
    values = yaml.safe_load(VALUES.read_text())

    assert counted() == set(values["scheduler"]["countedByCache"])


def test_cores_of_every_dialect_are_counted_by_the_cache_alone() -> None:
    cores = {name for each in every_dialect(KEYRING) for name in each.vocabulary.cores}

    # Alnair's and gpu-manager's nodes have numbers of their cores: their plugins advertise them.
    assert cores - counted() <= {"tencent.com/vcuda-core", "alnair/vgpu-compute"}
    assert all(each["ignoredByScheduler"] for each in extenders()[1]["managedResources"])
