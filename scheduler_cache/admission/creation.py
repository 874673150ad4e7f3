# SPDX-License-Identifier: Apache-2.0
"""What a new pod that asks for cards must be like. Pure."""

from __future__ import annotations

from typing import Final

from scheduler_cache.admission.podspec import containers_of, spec_of, text_of, texts_of
from scheduler_cache.admission.reach import cdi_annotations, check_privileges, check_reach
from scheduler_cache.admission.review import DeniedError, Json
from scheduler_cache.admission.rules import Rules

# What these mean, ours does as well.
_REPLACED_CLASSES: Final = ("", "nvidia")


def check_new(source: Json, rules: Rules) -> None:
    """Refuse what cannot run with a slice, or reaches past it. Raises DeniedError."""
    spec = spec_of(source)
    if node_name := text_of(spec, "nodeName", "/spec"):
        raise DeniedError(
            f"spec.nodeName is {node_name!a}: no scheduler would choose the cards; use a "
            "nodeSelector or node affinity"
        )
    runtime_class = text_of(spec, "runtimeClassName", "/spec")
    if runtime_class not in (*_REPLACED_CLASSES, rules.runtime_class):
        raise DeniedError(
            f"spec.runtimeClassName is {runtime_class!a}: a pod with a slice runs under "
            f"{rules.runtime_class}; leave the field out"
        )
    for name in cdi_annotations(texts_of(source, "annotations")):
        raise DeniedError(
            f"{name!a} asks an engine for devices beside the pod's slice; remove the annotation"
        )
    check_reach(source, rules)
    check_privileges(containers_of(source), rules)
