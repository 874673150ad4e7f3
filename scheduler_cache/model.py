# SPDX-License-Identifier: Apache-2.0
"""What the scheduler cache speaks of: cards, requests, slices, allocations, claims. No I/O.

Everything is immutable and keyed by card UUID. Memory is in bytes; `percent` is 1..100 of one
card's GPU time, or of its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from scheduler_cache.errors import InvalidRequestError

# The limits file describes no more cards than this (VGPU_MAX_DEVICES of vgpu_abi.h).
MAX_SLICES = 16

# All of a node: 16 GPUs in 7 MIG instances each are 112. The extender has a row for each, on every
# node alike.
MAX_CARDS = 128

# Of one node, stopped ones included: far above what a kubelet or an engine runs.
MAX_CLAIMS = 4096

# The largest integer of SQLite, and more memory than any card has.
MAX_BYTES = (1 << 63) - 1

_MAX_INT32 = (1 << 31) - 1
_MAX_UINT32 = (1 << 32) - 1
_MIB = 1 << 20

UNLIMITED_SLOTS = _MAX_UINT32
"""Of a card whose owner does not limit how many slices it takes (KAI, Koordinator)."""


class ComputeMode(Enum):
    """What a slice may do with GPU time that nobody else uses."""

    HARD = "hard"
    BURST = "burst"


class CardPolicy(Enum):
    """Which of the sufficient cards a request gets."""

    BINPACK = "binpack"
    SPREAD = "spread"
    EXCLUSIVE = "exclusive"


class CardKind(Enum):
    """A physical GPU or a MIG instance."""

    GPU = "gpu"
    MIG = "mig"


class ClaimState(Enum):
    """The life of a claim. RUNNING and STOPPED hold their slices; RELEASED is never stored."""

    RUNNING = "running"
    STOPPED = "stopped"
    RELEASED = "released"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One physical GPU or MIG instance, as its node reported it."""

    uuid: str
    kind: CardKind = CardKind.GPU
    model: str = ""
    memory_bytes: int
    slots: int
    """Most slices that the card takes; 0 takes none."""
    healthy: bool = True
    health_reason: str = ""
    parent_uuid: str = ""
    numa_node: int = 0
    minor: int = -1
    """The number of `/dev/nvidiaN`; -1: not known."""
    cores_percent: int = 100
    """What its owner sells of its GPU time; more than 100 where the owner oversells."""

    def __post_init__(self) -> None:
        # What neither the wire nor a column of numbers holds must not get as far as these.
        for what, number, most in (
            ("memory", self.memory_bytes, MAX_BYTES),
            ("slots", self.slots, _MAX_UINT32),
            ("cores", self.cores_percent, _MAX_INT32),
            ("NUMA node", self.numa_node, _MAX_UINT32),
        ):
            if not 0 <= number <= most:
                raise InvalidRequestError(
                    f"card {self.uuid}: {what} of {number} is not within 0..{most}"
                )

    def slot_words(self, taken: int) -> str:
        """Return how many slots are taken, in words."""
        if self.slots == UNLIMITED_SLOTS:
            return f"{taken} slots without a limit"
        return f"{taken} of {self.slots} slots"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A host and its inventory, as it reported them last."""

    name: str
    cards: tuple[Card, ...] = ()
    """In the order of their UUIDs."""
    ready: bool = False
    boot_id: str = ""
    agent_version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryAmount:
    """Memory asked of one card: a number of bytes, or a part of the card."""

    bytes: int = 0
    percent: int = 0
    fraction: float = 0.0
    """A part of the whole hundreds of MiB of a card, rounded down to MiB: so KAI counts."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.bytes, self.percent, self.fraction))) != 1:
            raise InvalidRequestError("memory is required: bytes or a percentage, not 0")
        if self.bytes and not 1 <= self.bytes <= MAX_BYTES:
            raise InvalidRequestError(f"memory of {self.bytes} bytes is out of range")
        if self.percent and not 1 <= self.percent <= 100:
            raise InvalidRequestError(f"memory of {self.percent}% is not within 1%..100%")
        if self.fraction and not 0 < self.fraction < 1:
            raise InvalidRequestError(f"memory of {self.fraction:g} of a card is not within 0..1")

    def of(self, card: Card) -> int:
        """Return the bytes that this is on `card`, rounded down; 0 is what a tiny card gives."""
        return self.of_bytes(card.memory_bytes)

    def of_bytes(self, card_bytes: int) -> int:
        """Return the bytes that this is of a card with so much memory."""
        if self.fraction:
            return int(self.fraction * (card_bytes // (100 * _MIB) * 100)) * _MIB
        return self.bytes or card_bytes * self.percent // 100


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of one card. `cores_percent` None: burst without a reservation."""

    memory: MemoryAmount
    cores_percent: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a container asks for; valid by construction.

    `memory` and `cores_percent` hold one amount for every card or exactly `count` amounts;
    `cores_percent` may be empty.
    """

    count: int = 1
    memory: tuple[MemoryAmount, ...]
    cores_percent: tuple[int, ...] = ()
    compute_mode: ComputeMode | None = None
    """None: hard with cores, burst without."""
    uuids: tuple[str, ...] = ()
    """Full UUIDs; a leading `!` denies. Empty: any card."""
    models: tuple[str, ...] = ()
    """Parts of the model name, without regard to case; a leading `!` denies."""
    card_policy: CardPolicy | None = None
    """None: the cache's default."""
    shared: bool = False
    """Memory of 100% is an amount like any other and goes with any cores, as in other dialects."""
    cores_max_percent: int = 0
    """Ceiling in burst mode; 0: none."""
    priority: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_SLICES:
            raise InvalidRequestError(f"count {self.count} is not within 1..{MAX_SLICES} cards")
        if not self.memory:
            raise InvalidRequestError("memory is required")
        if len(self.memory) not in (1, self.count):
            raise InvalidRequestError(
                f"{len(self.memory)} memory amounts for {self.count} cards: "
                "give one for all or one for each"
            )
        if len(self.cores_percent) not in (0, 1, self.count):
            raise InvalidRequestError(
                f"{len(self.cores_percent)} cores amounts for {self.count} cards: "
                "give one for all or one for each"
            )
        for cores in self.cores_percent:
            if not 1 <= cores <= 100:
                raise InvalidRequestError(f"cores of {cores}% are not within 1%..100%")
        if (
            self.compute_mode is ComputeMode.HARD
            and not self.cores_percent
            and not self.whole_cards
        ):
            raise InvalidRequestError("compute mode hard needs cores")
        for name, entries in (("UUIDs", self.uuids), ("models", self.models)):
            if not all(entry.removeprefix("!") for entry in entries):
                raise InvalidRequestError(f"the list of {name} has an empty entry")
        if self.cores_max_percent and not 1 <= self.cores_max_percent <= 100:
            raise InvalidRequestError(
                f"a ceiling of {self.cores_max_percent}% of cores is not within 1%..100%"
            )
        whole = [amount.percent == 100 and not self.shared for amount in self.memory]
        if any(whole) and not all(whole):
            raise InvalidRequestError(
                "memory of 100% asks for whole cards and cannot stand beside smaller amounts"
            )
        if self.whole_cards and any(cores != 100 for cores in self.cores_percent):
            raise InvalidRequestError("a whole card (memory 100%) has 100% of cores, not less")

    @property
    def whole_cards(self) -> bool:
        """Whether it asks for whole cards as such (memory 100%)."""
        return self.memory[0].percent == 100 and not self.shared

    @property
    def demands(self) -> tuple[Demand, ...]:
        """One demand a card, in the order in which the container will see its cards."""
        memory = self.memory * (self.count if len(self.memory) == 1 else 1)
        cores: tuple[int | None, ...] = self.cores_percent or (None,)
        if len(cores) == 1:
            cores *= self.count
        return tuple(map(Demand, memory, cores))


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """What one card gives one container."""

    card_uuid: str
    memory_bytes: int
    virtual_memory_bytes: int = 0
    cores_percent: int
    reserved_percent: int
    """What fit adds up per card: `cores_percent`, or 0 when no cores were asked for."""
    cores_max_percent: int
    compute_mode: ComputeMode
    priority: int = 0
    weight: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimKey:
    """A container of a host without Kubernetes: the OCI runtime's root and the container's id."""

    runtime_root: str
    container_id: str

    def __str__(self) -> str:
        return self.container_id[:12]


# The key of an allocation that a pod's container owns.
NO_CLAIM = ClaimKey(runtime_root="", container_id="")


@dataclass(frozen=True, kw_only=True, slots=True)
class PodContainer:
    """A container of a pod. It is known by the pod's uid and its own name; empty: the whole pod."""

    uid: str
    namespace: str
    name: str
    container_name: str

    def __str__(self) -> str:
        pod = f"pod {self.namespace}/{self.name}"
        return f"{self.container_name} of {pod}" if self.container_name else pod


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeCards:
    """Cards that another device plugin gave to a container, by the kubelet's word."""

    pod: PodContainer
    """Without a uid, which the kubelet does not say."""
    card_uuids: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """All slices of one container, in the order in which it sees the cards."""

    allocation_id: str
    node_name: str
    slices: tuple[Slice, ...]
    claim: ClaimKey = NO_CLAIM
    """The owner on a host without Kubernetes."""
    pod: PodContainer | None = None
    """The owner in Kubernetes."""
    epoch: int = 0
    account_id: str = ""
    source_dialect: str = "local"
    whole_cards: bool = False
    """The container gets its cards whole and no library."""
    exclusive: bool = False
    """Nobody else may hold a slice of these cards."""

    @property
    def holder(self) -> str:
        """Who holds the slices, in words."""
        return f"container {self.pod or self.claim}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """An allocation on a host without Kubernetes, with its life."""

    allocation: Allocation
    state: ClaimState
    since_unix_ns: int
    request: Request | None
    """None: taken back from a node's report, because the cache had lost it."""
    taken_allocation_ids: tuple[str, ...] = ()
    """The stopped claims that lost their slices to this one."""


@dataclass(frozen=True, slots=True)
class CardUse:
    """What is held of a card. Adding and removing allocations returns a new value."""

    memory_bytes: int = 0
    reserved_percent: int = 0
    slices: int = 0
    """Most at any one time: init containers have ended before the others start."""
    exclusive_holders: tuple[str, ...] = ()
    holders: int = 0
    """Pods, or containers without a pod, that hold something of it."""

    def plus(self, allocation: Allocation, card_uuid: str) -> CardUse:
        """Return the use with `allocation`'s slices of the card added."""
        return self._with(allocation, card_uuid, 1)

    def minus(self, allocation: Allocation, card_uuid: str) -> CardUse:
        """Return the use without `allocation`'s slices of the card, which must be in it."""
        return self._with(allocation, card_uuid, -1)

    def _with(self, allocation: Allocation, card_uuid: str, sign: int) -> CardUse:
        memory_bytes, reserved_percent, slices = (
            self.memory_bytes,
            self.reserved_percent,
            self.slices,
        )
        for part in slices_of(allocation, card_uuid):
            memory_bytes += sign * part.memory_bytes
            reserved_percent += sign * part.reserved_percent
            slices += sign
        holders = self.exclusive_holders
        if allocation.exclusive:
            if sign > 0:
                holders = (*holders, allocation.holder)
            else:
                place = holders.index(allocation.holder)
                holders = holders[:place] + holders[place + 1 :]
        return CardUse(memory_bytes, reserved_percent, slices, holders, self.holders + sign)


def slices_of(allocation: Allocation, card_uuid: str) -> Iterator[Slice]:
    """Yield the slices that `allocation` holds of one card."""
    return (part for part in allocation.slices if part.card_uuid == card_uuid)
