# SPDX-License-Identifier: Apache-2.0
"""What admission goes by: names, settings, and who we are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from scheduler_cache.admission.podspec import Json, chooses_nodes
from scheduler_cache.config_kubernetes import KubernetesConfig
from scheduler_cache.dialects.dialect import Dialect, Vocabulary, matches
from scheduler_cache.dialects.native import (
    ALLOCATION,
    CONTAINER_UUIDS,
    CORDON,
    INVENTORY,
    ISOLATION,
    NATIVE,
)
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.inventory import (
    DIALECT_LABEL,
    MODE_LABEL,
    NODE_LABEL,
    ROOM,
    SERVED,
    WHOLE_CARDS,
)

NODES_GROUP: Final = "system:nodes"

NODE_ANNOTATIONS: Final = (INVENTORY, ROOM, SERVED, WHOLE_CARDS)
"""On a node; only the replicas write them, from what the node's agent reports."""
NODE_LABELS: Final = (NODE_LABEL,)
PEOPLE_ANNOTATIONS: Final = (CORDON,)
"""On a node; people write them, and never the node itself."""
PEOPLE_LABELS: Final = (DIALECT_LABEL, MODE_LABEL)

OWN_ANNOTATIONS: Final = (ALLOCATION, CONTAINER_UUIDS, ISOLATION)
"""On a pod; only the replicas write them, and the webhook the second one."""


CLUSTER: Final = "cluster"
"""The scope in which other systems' pods are ours wherever they run."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The settings of admission. `dialects` are all that there are, whoever's pods are ours."""

    dialects: Dialects
    ours: frozenset[str]
    """The names of the dialects whose pods are ours."""
    scope: str
    """`cluster`, or `nodes`: of other systems' pods those alone that choose their nodes by the
    label `vgpu.dev/dialect`."""
    user: str
    """Under which user name the replicas write."""
    join_users: frozenset[str] = frozenset()
    """Who else writes decisions of their own dialect."""
    namespace: str = "vgpu-system"
    """Where our own pods are, which mount what nobody else may."""
    runtime_class: str = "vgpu"
    scheduler_name: str = ""
    priority_class: str = ""
    deny_privileged: bool = True

    def ours_of(self, source: Json) -> frozenset[str]:
        """Return the names of the dialects in which this pod would be ours."""
        if self.scope == CLUSTER or chooses_nodes(source):
            return self.ours
        return self.ours & {NATIVE}

    @property
    def spoken(self) -> tuple[Dialect, ...]:
        """The dialects whose pods are ours."""
        return tuple(each for each in self.dialects if each.name in self.ours)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """By which containers ask."""
        return tuple(name for each in self.spoken for name in each.vocabulary.resources)

    @cached_property
    def foreign_resources(self) -> tuple[str, ...]:
        """By which containers ask in another system's dialect."""
        return tuple(name for each in self._foreign for name in each.resources)

    @cached_property
    def asking_annotations(self) -> tuple[str, ...]:
        """By which pods ask without any resource."""
        return tuple(name for each in self.spoken for name in each.vocabulary.asking_annotations)

    @cached_property
    def foreign_asking_annotations(self) -> tuple[str, ...]:
        """By which pods ask so in another system's dialect."""
        return tuple(name for each in self._foreign for name in each.asking_annotations)

    @cached_property
    def request_annotations(self) -> tuple[str, ...]:
        """Which belong to what a pod asks for."""
        return tuple(
            dict.fromkeys(name for each in self.spoken for name in each.vocabulary.annotations)
        )

    @cached_property
    def foreign_request_annotations(self) -> tuple[str, ...]:
        """Which belong to it in other systems' dialects alone."""
        own = self.dialects.native.vocabulary.annotations if NATIVE in self.ours else ()
        return tuple(each for each in self.request_annotations if each not in own)

    @cached_property
    def foreign_annotations(self) -> tuple[str, ...]:
        """By which other systems' schedulers decide, on a pod."""
        return tuple(name for each in self._foreign for name in each.decision_annotations)

    @cached_property
    def foreign_labels(self) -> tuple[str, ...]:
        """By which they do so, too."""
        return tuple(name for each in self._foreign for name in each.decision_labels)

    @property
    def _foreign(self) -> Iterator[Vocabulary]:
        return (each.vocabulary for each in self.spoken if each is not self.dialects.native)

    def resource(self, name: str) -> bool:
        """Return whether a container asks by a resource."""
        return matches(name, self.resources)

    def asking(self, annotation: str) -> bool:
        """Return whether an annotation is a part of what a pod asks for."""
        return matches(annotation, self.request_annotations)

    def own(self, annotation: str) -> bool:
        """Return whether only we write an annotation of a pod."""
        return annotation in OWN_ANNOTATIONS

    def foreign(self, key: str, *, label: bool = False) -> bool:
        """Return whether another system's scheduler writes an annotation, or a label, of a pod."""
        return matches(key, self.foreign_labels if label else self.foreign_annotations)


def rules_of(kubernetes: KubernetesConfig, dialects: Dialects) -> Rules:
    """Return the rules that a configuration gives."""
    admission = kubernetes.admission
    return Rules(
        dialects=dialects,
        ours=frozenset(admission.dialects),
        scope=admission.dialect_scope,
        user=kubernetes.user,
        join_users=frozenset(admission.join_users),
        namespace=kubernetes.namespace,
        runtime_class=admission.runtime_class,
        scheduler_name=admission.scheduler_name,
        priority_class=admission.priority_class,
        deny_privileged=admission.privileged == "deny",
    )
