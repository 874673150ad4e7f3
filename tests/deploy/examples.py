# SPDX-License-Identifier: Apache-2.0
"""The examples of deploy/examples, as the API server would hold their pods."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from tests.testbed import REPOSITORY

EXAMPLES = REPOSITORY / "deploy/examples"


def example_pods(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the pods that a file makes, those of its templates included."""
    for source in yaml.safe_load_all(path.read_text()):
        if source["kind"] == "Pod":
            yield _stored(source)
        else:
            templates = (
                [task["template"] for task in source["spec"]["tasks"]]
                if source["kind"] == "Job" and "tasks" in source["spec"]
                else [source["spec"]["template"]]
            )
            for template in templates:
                metadata = {
                    "name": f"{source['metadata']['name']}-0",
                    **template.get("metadata", {}),
                }
                yield _stored({"kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def _stored(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with what the API server adds: namespace, uid, quantities as text."""
    item = copy.deepcopy(dict(source))
    item["metadata"].setdefault("namespace", "default")
    item["metadata"]["uid"] = f"uid-of-{item['metadata']['name']}"
    spec = item["spec"]
    for each in [*spec.get("initContainers", []), *spec["containers"]]:
        for amounts in each.get("resources", {}).values():
            amounts.update({name: str(amount) for name, amount in amounts.items()})
    return item
