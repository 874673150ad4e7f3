# SPDX-License-Identifier: Apache-2.0
"""The objects of a rendered chart, for those who look at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from tests.testbed import REPOSITORY

MANIFESTS = REPOSITORY / "deploy/manifests"
CHART = REPOSITORY / "deploy/helm/vgpu"

Item = Mapping[str, Any]


def items_of(text: str) -> list[Item]:
    """Return the objects of a YAML stream."""
    return [each for each in yaml.safe_load_all(text) if each]


def read_items(name: str) -> list[Item]:
    """Return the objects of a committed file."""
    return items_of((MANIFESTS / name).read_text())


def one(items: Iterable[Item], kind: str, name: str) -> Item:
    """Return the object of a name."""
    found = [each for each in items if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def text_of(items: Iterable[Item], name: str, key: str) -> str:
    """Return a text of a ConfigMap."""
    return str(one(items, "ConfigMap", name)["data"][key])


def pod_specs(items: Iterable[Item]) -> Iterator[tuple[str, Item]]:
    """Yield the pod templates: the name of what makes them, and their spec."""
    for each in items:
        template = each.get("spec", {}).get("template")
        if template:
            yield each["metadata"]["name"], template["spec"]


def containers_of(spec: Item) -> list[Item]:
    """Return all containers of a pod, ordinary ones last."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def read_text(path: Path) -> str:
    """Return a file of the chart."""
    return (CHART / path).read_text()
