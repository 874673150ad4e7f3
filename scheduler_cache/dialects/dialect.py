# SPDX-License-Identifier: Apache-2.0
"""What every dialect gives: a pod's request, a node's cards, what was decided, and what we write.
Pure.

A dialect is one system's resources and annotations. Its module is the only place that knows them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

import grpc

from scheduler_cache.errors import InvalidRequestError, SchedulerCacheError
from scheduler_cache.model import MAX_CARDS, Allocation, Card, ComputeMode, MemoryAmount, Request
from scheduler_cache.pod import KubeNode, Pod

_Value = TypeVar("_Value")


class DialectError(SchedulerCacheError):
    """A request, a registration or a decision that breaks its dialect's rules.

    The message names the field, its value, what it may be, and what to do.
    """

    status = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field_name: str, value: object, rule: str, remedy: str) -> None:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        # An annotation may have 256 KiB; an Event takes 1 KiB. Control characters are escaped.
        shown = ascii(text if len(text) <= 120 else text[:117] + "...")[1:-1]
        super().__init__(f"{field_name} is '{shown}': {rule}; {remedy}")
        self.field_name = field_name
        self.value = value


class Named(Enum):
    """How a decision names a card."""

    UUID = "UUID"
    MINOR = "minor"
    GROUP = "group"


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedSlice:
    """What a decision says that one card gives one container."""

    card: str
    named: Named = Named.UUID
    memory: MemoryAmount
    cores_percent: int | None = None
    """None: burst without a reservation."""
    reserved_percent: int | None = None
    """None: `cores_percent`, or 0 where there is none."""
    cores_max_percent: int = 0
    """0: `cores_percent` in hard mode, else 100."""
    compute_mode: ComputeMode | None = None
    """None: hard with cores, burst without."""
    priority: int = 0
    weight: int = 0
    """0: what is reserved, at least 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodRequest:
    """What the containers of a pod ask for, by name; a container that asks for nothing is not in
    it.
    """

    dialect: str
    containers: Mapping[str, Request]
    pod_level: bool = False
    """The containers named share one request, and will share one account (Koordinator)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Which cards somebody gave to the containers of a pod."""

    dialect: str
    node_name: str = ""
    """Empty: the dialect does not say."""
    epoch: int = 0
    decided_unix_ns: int = 0
    containers: Mapping[str, tuple[StatedSlice, ...]]
    pod_level: bool = False
    """Every container holds the same slices, once for all of them."""
    exclusive: frozenset[str] = frozenset()
    """Containers that hold their cards alone."""
    uncounted: tuple[str, ...] = ()
    """Sidecars with cards that its scheduler does not count beside the containers after them."""
    by_plugin: bool = False
    """Another system's device plugin hands out these whole cards. It hears nothing of the decision
    and may hand out others: then those count."""
    doubt: str = ""
    """Why it is not believed although it can be read, such as a wrong MAC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """The cards of a node as one dialect's node side registered them."""

    dialect: str
    cards: tuple[Card, ...]
    """Memory and cores as that dialect sells them, more than the card has where it oversells."""
    every_card: bool = False
    """It sells every card of the node and names none (gpu-manager)."""

    resource: str = ""
    """What the node must have of another plugin than ours, for this to be one; empty: nothing."""

    def __post_init__(self) -> None:
        if len(self.cards) > MAX_CARDS:
            raise InvalidRequestError(f"{len(self.cards)} cards are more than {MAX_CARDS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """The names that a dialect is recognised by, without a look at their values.

    A name that ends in `/` or `-`, as no key does, stands for all that begin with it.
    """

    resources: tuple[str, ...] = ()
    """In a container's limits: who names one means a card."""
    cores: tuple[str, ...] = ()
    """Those of `resources` of which 0 means that nothing is limited; of the others it is a
    mistake."""
    shared_resources: tuple[str, ...] = ()
    """What belongs to the dialect only beside one of `resources`, and alone to another system."""
    annotations: tuple[str, ...] = ()
    """What a pod's author writes; they belong to the request, so that they never change."""
    asking_annotations: tuple[str, ...] = ()
    """Those of `annotations` that ask without any resource."""
    decision_annotations: tuple[str, ...] = ()
    """What the scheduler or its node side writes."""
    decision_labels: tuple[str, ...] = ()


def matches(name: str, names: Iterable[str]) -> bool:
    """Return whether `name` is among the names of a vocabulary."""
    return any(
        name.startswith(each) if each.endswith(("/", "-")) else name == each for each in names
    )


class Dialect(ABC):
    """One system's codec. Holds its settings only; every method is pure.

    Each method raises DialectError or InvalidRequestError and nothing else, whatever it is given.
    """

    name: str
    joins: bool = False
    """Whether its own scheduler may go on deciding (join mode)."""
    limits_slots: bool = True
    """Whether its scheduler limits how many slices a card takes."""
    woken_by_nodes: bool = False
    """Whether its scheduler may have missed the cards of a node until that Node changes."""
    lock: str = ""
    """The node annotation that its scheduler locks a node by; empty: it locks none."""

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Return the dialect's names."""

    @abstractmethod
    def asks(self, pod: Pod) -> bool:
        """Return whether the pod asks for cards in this dialect."""

    @abstractmethod
    def parse_request(self, pod: Pod) -> PodRequest:
        """Return what the pod asks for."""

    @abstractmethod
    def decided(self, pod: Pod) -> bool:
        """Return whether the pod carries a decision of this dialect."""

    @abstractmethod
    def parse_allocation(self, pod: Pod) -> Decision:
        """Return the decision that the pod carries."""

    def parse_node(self, node: KubeNode) -> Registration | None:
        """Return the cards that the dialect's node side registered; None: it registered nothing."""
        return None

    def parse_device(self, source: Mapping[str, Any]) -> Registration | None:
        """Return the cards of a custom object that describes a node's devices (Koordinator)."""
        return None

    def card_groups(self, pod: Pod) -> Mapping[str, str]:
        """Return the group names that this pod ties to a card's UUID (KAI's reservation pods).

        An empty UUID: the group's card is not known yet.
        """
        return {}

    @abstractmethod
    def encode_allocation(
        self, pod: Pod, allocations: Mapping[str, Allocation], cards: Mapping[str, Card]
    ) -> dict[str, str]:
        """Return the annotations to write with our own decision (replace mode).

        `allocations` by container name, `cards` by UUID. They keep the dialect's other tools
        working; what counts is the native allocation that is written beside them.
        """

    def encode_registration(self, cards: Sequence[Card]) -> dict[str, str]:
        """Return the node annotations by which the dialect's scheduler knows the cards (join
        mode).
        """
        return {}

    def encode_unlock(self, node: KubeNode, pod: Pod) -> dict[str, str | None]:
        """Return the node patch that opens the dialect's lock where `pod` holds it (join mode)."""
        return {}

    def unfinished(self, pod: Pod) -> bool:
        """Return whether the plugin's half of the handshake is still to be done (join mode)."""
        return False

    def encode_completion(self, pod: Pod, *, admitted: bool) -> dict[str, str]:
        """Return the annotations that do the plugin's half of the handshake (join mode).

        `admitted`: the kubelet has taken the pod in, which is when it asks a plugin for all of the
        pod's devices; else it has turned it away. Empty where the handshake is done.
        """
        return {}

    def encode_liveness(self, node: KubeNode, now: datetime) -> dict[str, str]:
        """Return the node annotations by which a plugin that is asked for says that it lives (join
        mode).
        """
        return {}


def tried(read: Callable[[], _Value | None]) -> tuple[_Value | None, str]:
    """Return what was read, or why nothing was.

    Whatever goes wrong, it is that pod's: a fault of ours, too, must neither end the replicas, all
    of which read the same pod, nor let what the pod holds vanish.
    """
    try:
        return read(), ""
    except (DialectError, InvalidRequestError) as error:
        return None, str(error)
    except Exception as error:
        return None, f"reading it failed ({type(error).__name__}: {str(error)[:200]}); report it"
