# SPDX-License-Identifier: Apache-2.0
"""All dialects, and which of them a pod speaks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from scheduler_cache.dialects.alnair import Alnair
from scheduler_cache.dialects.dialect import (
    Decision,
    Dialect,
    PodRequest,
    Registration,
    tried,
)
from scheduler_cache.dialects.gpu_manager import GpuManager
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.kai import Kai
from scheduler_cache.dialects.keyring import Keyring
from scheduler_cache.dialects.koordinator import Koordinator
from scheduler_cache.dialects.native import Native
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.model import MAX_SLICES, Allocation, Card, Request
from scheduler_cache.pod import Pod


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a pod says, whoever wrote it. An error is a sentence; its value is then None."""

    request: PodRequest | None = None
    request_error: str = ""
    decision: Decision | None = None
    decision_error: str = ""
    deciders: tuple[str, ...] = ()
    """The dialects in which something was decided, whether it can be read or not."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Group names that this pod ties to a card's UUID."""
    unfinished: str = ""
    """The dialect whose scheduler waits for a plugin to do its half; empty: none."""


# Ten times what anybody runs. A pod of thousands, which the API server takes, would hold up every
# replica that reads it, each time that it changes.
_MOST_CONTAINERS = 128


class Dialects:
    """The dialects that this cache understands; `native` is always among them."""

    def __init__(self, native: Native, others: Iterable[Dialect] = ()) -> None:
        self.native = native
        self._by_name: dict[str, Dialect] = {each.name: each for each in (native, *others)}
        self.foreign = tuple(each for each in self._by_name.values() if each is not native)
        """All but our own."""
        # Most dialects have neither, and every pod of the cluster is read.
        self._grouping = _overriding(self.foreign, Dialect.card_groups)
        self._shaking = _overriding(self.foreign, Dialect.unfinished)

    def __iter__(self) -> Iterator[Dialect]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def grouping(self) -> frozenset[str]:
        """The dialects in which a pod of the system's own ties a group's name to a card."""
        return frozenset(each.name for each in self._grouping)

    def get(self, name: str) -> Dialect:
        """Return the dialect of a name that is known here."""
        return self._by_name[name]

    def read(self, pod: Pod) -> Reading:
        """Return everything that the pod says; never raises."""
        request, request_error = tried(lambda: self._request(pod))
        spoken = request.dialect if request else ""
        deciders, decision_error = tried(lambda: self._deciders(pod))
        decision = None
        if deciders:
            decision, decision_error = tried(partial(self._decision, pod, deciders, spoken))
        groups: dict[str, str] = {}
        for each in self._grouping:
            found, error = tried(partial(each.card_groups, pod))
            groups.update(found or {})
            decision_error = decision_error or error
        return Reading(
            request=request,
            request_error=request_error,
            decision=decision,
            decision_error=decision_error,
            deciders=tuple(each.name for each in deciders or ()),
            groups=groups,
            # Whatever else is wrong with the pod: a lock that its scheduler holds must not stay.
            unfinished=next((each.name for each in self._shaking if each.unfinished(pod)), ""),
        )

    def parse_request(self, pod: Pod) -> PodRequest | None:
        """Return what the pod asks for, None when it asks for no card, or raise."""
        return self._request(pod)

    def parse_device(self, source: Mapping[str, Any]) -> Registration | None:
        """Return the cards of a Device object, by whichever dialect has such objects, or raise."""
        found = (each.parse_device(source) for each in self.foreign)
        return next((each for each in found if each is not None), None)

    def annotations(
        self,
        pod: Pod,
        spoken: str,
        allocations: Mapping[str, Allocation],
        cards: Mapping[str, Card],
    ) -> dict[str, str]:
        """Return what to write with the Binding: our signed allocation, and the dialect's own
        keys.
        """
        written = {}
        if spoken != self.native.name and spoken in self:
            written = self.get(spoken).encode_allocation(pod, allocations, cards)
        return {**written, **self.native.encode_allocation(pod, allocations, cards)}

    def _request(self, pod: Pod) -> PodRequest | None:
        asking = [each for each in self._by_name.values() if each.asks(pod)]
        if not asking:
            return None
        if len(asking) > 1:
            names = " and ".join(each.name for each in asking)
            raise InvalidRequestError(
                f"pod {pod} asks for cards in the dialects {names}; ask in one of them"
            )
        if len(pod.containers) > _MOST_CONTAINERS:
            raise InvalidRequestError(
                f"pod {pod} asks for cards and has {len(pod.containers)} containers, more than "
                f"{_MOST_CONTAINERS}; give cards to a pod with fewer"
            )
        request = asking[0].parse_request(pod)
        if len(request.containers) > 1:
            # Who asks alike shares one object: it is kept as long as the pod is known.
            alike: dict[Request, Request] = {}
            shared = {
                name: alike.setdefault(each, each) for name, each in request.containers.items()
            }
            request = replace(request, containers=shared)
        return request if request.containers else None

    def _deciders(self, pod: Pod) -> list[Dialect]:
        """Return whose decisions the pod carries.

        A decision's own key says whose it is, never a label: other systems set each other's labels.
        """
        return [each for each in self._by_name.values() if each.decided(pod)]

    def _decision(self, pod: Pod, decided: list[Dialect], spoken: str) -> Decision:
        """Return the decision that counts: ours before any other's."""
        if self.native not in decided and len(decided) > 1:
            decided = [each for each in decided if each.name == spoken] or decided
            if len(decided) > 1:
                names = " and ".join(each.name for each in decided)
                raise InvalidRequestError(
                    f"pod {pod} carries decisions of {names}; delete it, so that one decides"
                )
        decision = decided[0].parse_allocation(pod)
        most = max(map(len, decision.containers.values()), default=0)
        if most > MAX_SLICES:
            raise InvalidRequestError(
                f"the decision of {decision.dialect} about pod {pod} gives one container {most} "
                f"slices, more than {MAX_SLICES}; delete the pod, so that it is scheduled anew"
            )
        return decision


def every_dialect(
    keyring: Keyring,
    *,
    hami: Hami | None = None,
    volcano: Volcano | None = None,
    kai: Kai | None = None,
) -> Dialects:
    """Return all dialects that are known here, with the values of the installations to join."""
    return Dialects(
        Native(keyring),
        (
            volcano or Volcano(),
            hami or Hami(),
            Koordinator(),
            kai or Kai(),
            GpuManager(),
            Alnair(),
        ),
    )


def _overriding(dialects: Iterable[Dialect], method: Callable[..., object]) -> tuple[Dialect, ...]:
    """Return the dialects whose class has a method of its own."""
    name = method.__name__
    return tuple(each for each in dialects if getattr(type(each), name) is not method)
