# SPDX-License-Identifier: Apache-2.0
"""The names by which the runtime looks containers up: who must have one, and who may not. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from scheduler_cache.admission.podspec import ContainerSource, containers_of, texts_of, uuid_values
from scheduler_cache.admission.request import Asked
from scheduler_cache.admission.review import DeniedError, Json
from scheduler_cache.dialects.native import CONTAINER_UUIDS
from scheduler_cache.pod import UUID_VARIABLE

# RFC 4122, lower case.
UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

_UUID = re.compile(UUID)


def check_named(source: Json, asked: Asked | None) -> None:
    """Refuse a pod whose names are not those that the webhook gives. Raises DeniedError.

    `asked` None: it has no slice, and so no names.
    """
    asking = {each.name for each in asked.containers} if asked else set()
    carried = {}
    for each in containers_of(source):
        values = uuid_values(each)
        if each.name not in asking:
            check_unnamed([each])
        elif len(values) != 1 or not _UUID.fullmatch(values[0]):
            raise DeniedError(
                f"container {each.name!a} asks for a card and has {len(values)} "
                f"{UUID_VARIABLE} of the right form instead of one: the webhook that gives it was "
                "not asked; see that vgpu's MutatingWebhookConfiguration is installed"
            )
        else:
            carried[each.name] = values[0]
    if len(set(carried.values())) < len(carried):
        raise DeniedError(f"spec: two containers have one {UUID_VARIABLE}; leave it out")
    listed = texts_of(source, "annotations").get(CONTAINER_UUIDS)
    if listed != (json.dumps(carried, separators=(",", ":")) if carried else None):
        raise DeniedError(
            f"{CONTAINER_UUIDS} is written by vgpu alone, and does not name the pod's containers; "
            "remove the annotation"
        )


def check_unnamed(containers: Iterable[ContainerSource]) -> None:
    """Refuse containers without a slice that carry a name. Raises DeniedError."""
    for each in containers:
        if uuid_values(each):
            raise DeniedError(
                f"container {each.name!a} has no slice and carries {UUID_VARIABLE}; remove the "
                "variable"
            )
