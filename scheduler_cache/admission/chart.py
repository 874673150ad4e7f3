# SPDX-License-Identifier: Apache-2.0
"""The file from which the chart makes the objects of admission: `python -m` this prints it. Pure.

Helm knows the namespace and the dialects only when it renders, and has no expressions of its own to
make. So the file names them by words that nothing else has, and the chart replaces these.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from scheduler_cache.admission.manifests import Site, policies, webhook_configurations
from scheduler_cache.admission.rules import rules_of
from scheduler_cache.config_kubernetes import DIALECTS, AdmissionConfig, KubernetesConfig
from scheduler_cache.dialects.dialect import Dialect
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.registry import every_dialect

NAMESPACE: Final = "vgpu-chart-namespace"
JOIN_USER: Final = "vgpu-chart-join-user"
SCOPE: Final = "vgpu-chart-scope"
NO_NAME: Final = "//"
"""In the place of what a dialect that is left out would go by: no key begins so."""


def chart_file() -> dict[str, Any]:
    """Return the objects for API servers of each age, and what each dialect is recognised by."""
    # No key is used: a vocabulary is not signed.
    dialects = every_dialect(Keyring(Key("none", b"no allocation is ever signed with this")))
    settings = KubernetesConfig(
        namespace=NAMESPACE, admission=AdmissionConfig(dialects=DIALECTS, join_users=(JOIN_USER,))
    )
    rules, site = replace(rules_of(settings, dialects), scope=SCOPE), Site(namespace=NAMESPACE)
    return {
        "names": {each.name: sorted(_names(each)) for each in dialects},
        "webhooks": webhook_configurations(rules, site),
        # Before 1.28.
        "webhooksWithoutConditions": webhook_configurations(
            rules, replace(site, match_conditions=False)
        ),
        # From 1.30 on.
        "policies": policies(rules),
    }


def _names(dialect: Dialect) -> set[str]:
    vocabulary = dialect.vocabulary
    return {
        *vocabulary.resources,
        *vocabulary.annotations,
        *vocabulary.decision_annotations,
        *vocabulary.decision_labels,
    }


if __name__ == "__main__":
    print(json.dumps(chart_file(), indent=1))
