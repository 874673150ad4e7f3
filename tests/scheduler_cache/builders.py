# SPDX-License-Identifier: Apache-2.0
"""Short ways to say what a test is about."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from scheduler_cache.cache import Cache, Changes, Report, State
from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    CardUse,
    Claim,
    ClaimKey,
    ClaimState,
    ComputeMode,
    MemoryAmount,
    Node,
    Request,
    Slice,
)

GIB = 1 << 30
SECOND = 10**9
# Any moment will do; this one is 2023-11-14.
START = 1_700_000_000 * SECOND
NODE = "node-a"


def card(uuid: str, gib: int = 8, *, slots: int = 10, model: str = "NVIDIA H100") -> Card:
    return Card(uuid=uuid, memory_bytes=gib * GIB, slots=slots, model=model)


def amount(size: int | str) -> MemoryAmount:
    """Return GiB for a number, a part of the card for text such as `50%`."""
    if isinstance(size, int):
        return MemoryAmount(bytes=size * GIB)
    return MemoryAmount(percent=int(size.removesuffix("%")))


def request(
    *memory: int | str,
    cores: Iterable[int] = (),
    count: int = 0,
    policy: CardPolicy | None = None,
    mode: ComputeMode | None = None,
    uuids: Iterable[str] = (),
    models: Iterable[str] = (),
) -> Request:
    return Request(
        count=count or len(memory),
        memory=tuple(map(amount, memory)),
        cores_percent=tuple(cores),
        card_policy=policy,
        compute_mode=mode,
        uuids=tuple(uuids),
        models=tuple(models),
    )


def part(uuid: str, gib: int = 1, reserved: int = 0) -> Slice:
    return Slice(
        card_uuid=uuid,
        memory_bytes=gib * GIB,
        cores_percent=reserved or 100,
        reserved_percent=reserved,
        cores_max_percent=reserved or 100,
        compute_mode=ComputeMode.HARD if reserved else ComputeMode.BURST,
        weight=max(reserved, 1),
    )


def key(container_id: str) -> ClaimKey:
    return ClaimKey(runtime_root="/run/runc", container_id=container_id)


def allocation(name: str, *slices: Slice, exclusive: bool = False) -> Allocation:
    return Allocation(
        allocation_id=name, node_name=NODE, slices=slices, claim=key(name), exclusive=exclusive
    )


def use(*held: Slice, exclusive: bool = False) -> CardUse:
    """Return the use of one card by containers named c0, c1, …, with one slice each."""
    total = CardUse()
    for number, slice_ in enumerate(held):
        total = total.plus(allocation(f"c{number}", slice_, exclusive=exclusive), slice_.card_uuid)
    return total


def told(
    allocation: Allocation, state: ClaimState = ClaimState.RUNNING, since_unix_ns: int = START
) -> Claim:
    """Return a claim as a node's report tells it."""
    return Claim(allocation=allocation, state=state, since_unix_ns=since_unix_ns, request=None)


def report(
    cards: Iterable[Card], *claims: Claim, running: Iterable[str] = (), node: str = NODE
) -> Report:
    ordered = tuple(sorted(cards, key=lambda card: card.uuid))
    return Report(
        node=Node(name=node, cards=ordered, ready=True), running=frozenset(running), claims=claims
    )


def counter() -> Callable[[], str]:
    """Return a source of the ids a1, a2, …"""
    numbers = itertools.count(1)
    return lambda: f"a{next(numbers)}"


class Host:
    """A cache with a clock, whose transitions are applied at once."""

    def __init__(self, *cards: Card, state: State | None = None) -> None:
        self.now = START
        self.cards = cards
        self.cache = Cache(state or State(), new_id=counter())
        if cards:
            self.report()

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def report(self, *claims: Claim, running: Iterable[str] = ()) -> Changes:
        return self.apply(self.cache.report(report(self.cards, *claims, running=running), self.now))

    def allocate(self, container_id: str, asked: Request) -> Claim:
        claim, changes = self.cache.allocate(NODE, key(container_id), asked, self.now)
        self.apply(changes)
        return claim

    def stop(self, *claims: Claim) -> Changes:
        """Report that these containers stopped now."""
        return self.report(
            *(told(claim.allocation, ClaimState.STOPPED, self.now) for claim in claims)
        )

    def release(self, claim: Claim) -> Changes:
        return self.apply(self.cache.release(claim.allocation.allocation_id, self.now))

    def apply(self, changes: Changes) -> Changes:
        self.cache.apply(changes)
        return changes

    def ids(self) -> set[str]:
        return {claim.allocation.allocation_id for claim in self.cache.claims()}


def cards_of(claim: Claim) -> list[str]:
    return [slice_.card_uuid for slice_ in claim.allocation.slices]
