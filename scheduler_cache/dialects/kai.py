# SPDX-License-Identifier: Apache-2.0
"""KAI-Scheduler's GPU sharing. Pure.

Source: KAI-Scheduler pkg/{admission,binder,scheduler}, docs/gpu-sharing, v0.13 to v0.17. The
request stands in annotations, exactly one container gets the cards, and a card is named by a
group: a random UUID that a reservation pod ties to a card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_cache.dialects.dialect import (
    Decision,
    Dialect,
    DialectError,
    Named,
    PodRequest,
    StatedSlice,
    Vocabulary,
)
from scheduler_cache.dialects.fields import (
    FIX_DECISION,
    MIB,
    card_uuid,
    integer,
    memory,
    request_of,
)
from scheduler_cache.model import MAX_SLICES, Allocation, Card, MemoryAmount
from scheduler_cache.pod import Pod

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
GROUP = "runai-gpu-group"
RESERVED_CARD = "run.ai/reserve_for_gpu_index"
WHOLE_CARDS = "nvidia.com/gpu"

_FIX = "correct the annotations and create the pod again"
# As Go's ParseFloat reads it, without hexadecimal digits.
_FLOAT = re.compile(
    r"\+?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class Kai(Dialect):
    """KAI's dialect."""

    reservation_namespace: str = "kai-resource-reservation"
    """Only pods of this namespace can tie a group to a card."""

    name = "kai"
    joins = True
    limits_slots = False

    vocabulary = Vocabulary(
        annotations=(FRACTION, MEMORY, DEVICES, CONTAINER),
        asking_annotations=(FRACTION, MEMORY),
        decision_labels=(GROUP, f"{GROUP}/"),
    )

    def asks(self, pod: Pod) -> bool:
        """Return whether the pod asks for a part of a card; whole cards are NVIDIA's plugin's."""
        return FRACTION in pod.annotations or MEMORY in pod.annotations

    def parse_request(self, pod: Pod) -> PodRequest:
        """Return the request of the one container that gets the cards."""
        fraction, mebibytes = pod.annotations.get(FRACTION), pod.annotations.get(MEMORY)
        if fraction is not None and mebibytes is not None:
            raise DialectError(FRACTION, fraction, f"it excludes {MEMORY}", _FIX)
        name = self._container(pod)
        for each in pod.containers:
            if each.asked(WHOLE_CARDS) is not None:
                raise DialectError(
                    FRACTION if mebibytes is None else MEMORY,
                    fraction or mebibytes or "",
                    f"container {each.name!r} asks for whole cards ({WHOLE_CARDS})",
                    _FIX,
                )
        count = integer(DEVICES, pod.annotations.get(DEVICES, "1"), 1, MAX_SLICES, _FIX)
        amount = (
            MemoryAmount(fraction=_fraction(fraction or ""))
            if mebibytes is None
            else memory(MEMORY, integer(MEMORY, mebibytes, 1, 1 << 40, _FIX) * MIB, mebibytes)
        )
        request = request_of(
            "the pod's request", dict(pod.annotations), count=count, memory=(amount,), shared=True
        )
        return PodRequest(dialect=self.name, containers={name: request})

    def decided(self, pod: Pod) -> bool:
        """Return whether the pod carries a group, and is no reservation pod."""
        return bool(_groups(pod)) and pod.namespace != self.reservation_namespace

    def parse_allocation(self, pod: Pod) -> Decision:
        """Return one slice per group, each of the amount that was asked for.

        KAI's own library enforces hundredths of a card; we keep what its scheduler counts.
        """
        groups = _groups(pod)
        request = self.parse_request(pod)
        (name, asked), *_ = request.containers.items()
        if len(groups) != asked.count:
            raise DialectError(
                GROUP, ",".join(groups), f"{asked.count} cards were asked for", FIX_DECISION
            )
        return Decision(
            dialect=self.name,
            containers={
                name: tuple(
                    StatedSlice(card=group, named=Named.GROUP, memory=asked.memory[0])
                    for group in groups
                )
            },
        )

    def card_groups(self, pod: Pod) -> Mapping[str, str]:
        """Return the group of a reservation pod, and its card once it has found it."""
        group, card = pod.labels.get(GROUP), pod.annotations.get(RESERVED_CARD)
        if pod.namespace != self.reservation_namespace or not group or pod.terminal:
            return {}
        try:
            return {group: card_uuid(RESERVED_CARD, card) if card else ""}
        except DialectError:
            return {group: ""}  # who names it blocks every card that it may be

    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return nothing: KAI's groups are labels and pods of its binder."""
        return {}

    def _container(self, pod: Pod) -> str:
        first = pod.app_containers[0].name if pod.app_containers else ""
        name = pod.annotations.get(CONTAINER, first)
        names = [each.name for each in pod.containers]
        if name not in names:
            raise DialectError(CONTAINER, name, f"the pod's containers are {names}", _FIX)
        return name


def _groups(pod: Pod) -> list[str]:
    """Return the groups of a pod: one plain label, or one label per card and no plain one."""
    groups = {text for name, text in pod.labels.items() if name.startswith(f"{GROUP}/") and text}
    if plain := pod.labels.get(GROUP):
        groups.add(plain)
    return sorted(groups)


def _fraction(text: str) -> float:
    """Return a fraction, not rounded: KAI's scheduler counts it so."""
    if not _FLOAT.fullmatch(text) or not 0 < float(text) < 1:
        raise DialectError(FRACTION, text, "it must lie between 0 and 1", _FIX)
    return float(text)
