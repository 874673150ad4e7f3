# SPDX-License-Identifier: Apache-2.0
"""The state in memory and its transitions. Pure: the clock and the ids are passed in, no I/O.

A transition has two steps. `allocate`, `release` and `report` only read and return the `Changes`
that they want; the caller writes these to disk and then calls `apply`. A write that fails thus
leaves memory and disk as they were. Not thread-safe: one event loop owns the cache, and nothing may
run between a transition and its `apply`.

Σ slices ≤ card holds at every instant for what the cache itself gave out. Only a container that a
node reports as running is added without asking for room, because it uses the card already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler_cache.errors import NotFoundError, NotSyncedError
from scheduler_cache.fit import (
    Room,
    Rooms,
    admits,
    answers,
    place,
    policy_of,
    with_allocation,
    without_allocation,
)
from scheduler_cache.isolation import Isolation
from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    CardUse,
    Claim,
    ClaimKey,
    ClaimState,
    Node,
    Request,
    Slice,
    WholeCards,
)
from scheduler_cache.refusal import refusal
from scheduler_cache.taking import needed_of

NOT_REPORTED = "not reported"

# A report that was made before a release may arrive after it; a later one that still names the
# claim is believed. Longer than any RPC's deadline.
_RELEASE_MEMORY_NS = 30 * 10**9
_RELEASES_REMEMBERED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What a transition changes. Applying them twice is applying them once."""

    nodes: tuple[Node, ...] = ()
    """Nodes with their whole new inventory."""
    claims: tuple[Claim, ...] = ()
    """New claims, and known ones that changed."""
    removed: tuple[str, ...] = ()
    """Allocation ids that are gone; some may never have been known here."""
    reported: str = ""
    """The node whose report this is. True of this process only, so not written to disk."""

    @property
    def durable(self) -> bool:
        """Whether there is something to write to disk."""
        return bool(self.nodes or self.claims or self.removed)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything that outlives the process."""

    nodes: tuple[Node, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a node says of itself."""

    node: Node
    running: frozenset[str]
    """Allocation ids of containers with a live process."""
    claims: tuple[Claim, ...]
    """Every claim that the node knows, with `request` None."""
    isolation: tuple[Isolation, ...] = ()
    """Kubernetes: what became of the latest start of each container that was to have a slice."""
    served_resources: frozenset[str] = frozenset()
    """Kubernetes: what the kubelet takes from the agent's own device plugin."""
    whole_cards: tuple[WholeCards, ...] | None = ()
    """Kubernetes: what other device plugins gave to containers. None: the agent does not know, and
    what the Node says stands."""


class Cache:
    """Who holds which slice of which card."""

    def __init__(
        self,
        state: State,
        *,
        default_policy: CardPolicy = CardPolicy.BINPACK,
        stopped_grace_ns: int = 10 * 10**9,
        new_id: Callable[[], str],
    ) -> None:
        self._default_policy = default_policy
        self._stopped_grace_ns = stopped_grace_ns
        self._new_id = new_id
        self._nodes: dict[str, Node] = {}
        self._cards: dict[str, Card] = {}
        self._claims: dict[str, Claim] = {}
        self._ids_of_key: dict[ClaimKey, list[str]] = {}
        self._ids_on_card: dict[str, dict[str, None]] = {}
        self._use: dict[str, CardUse] = {}
        self._synced: set[str] = set()
        self._releases: OrderedDict[str, int] = OrderedDict()
        self.apply(Changes(nodes=state.nodes, claims=state.claims))

    # Reading

    @property
    def state(self) -> State:
        """Everything that outlives the process, in an order that does not depend on history."""
        return State(
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)),
            claims=tuple(self._claims[key] for key in sorted(self._claims)),
        )

    def node(self, name: str) -> Node | None:
        """Return a node as it reported itself last, in this process or an earlier one."""
        return self._nodes.get(name)

    def get(self, allocation_id: str) -> Claim | None:
        """Return a claim, or None when it is not known."""
        return self._claims.get(allocation_id)

    def claim(self, allocation_id: str) -> Claim:
        """Return a claim, or raise NotFoundError."""
        claim = self._claims.get(allocation_id)
        if claim is None:
            raise NotFoundError(f"no allocation {allocation_id} is known here")
        return claim

    def claims(self, node_name: str = "") -> tuple[Claim, ...]:
        """Return the claims of one node, or of all, in the order of their ids."""
        return tuple(
            self._claims[key]
            for key in sorted(self._claims)
            if node_name in ("", self._claims[key].allocation.node_name)
        )

    def taken_by(self, claim: Claim) -> tuple[str, ...]:
        """Return the allocation ids that lost their slices to `claim` and are still gone."""
        return tuple(key for key in claim.taken_allocation_ids if key not in self._claims)

    def claims_on(self, card_uuid: str) -> tuple[Claim, ...]:
        """Return the claims that hold a slice of a card, in the order of their ids."""
        return tuple(self._claims[key] for key in sorted(self._ids_on_card.get(card_uuid, ())))

    def knows_card(self, card_uuid: str) -> bool:
        """Return whether a card is in some node's inventory."""
        return card_uuid in self._cards

    def room(self, card_uuid: str) -> Room:
        """Return a card and what is held of it, or raise NotFoundError."""
        card = self._cards.get(card_uuid)
        if card is None:
            raise NotFoundError(f"no card {card_uuid} is known here")
        return Room(card, self._use.get(card_uuid, CardUse()))

    def rooms(self, node_name: str) -> list[Room]:
        """Return the node's cards with what is held of each."""
        node = self._nodes.get(node_name)
        return [self.room(card.uuid) for card in node.cards] if node else []

    # Transitions

    def allocate(
        self,
        node_name: str,
        key: ClaimKey,
        request: Request,
        now_unix_ns: int,
        *,
        spare_stopped: bool = False,
    ) -> tuple[Claim, Changes]:
        """Return the claim that answers the request, and what that changes.

        The same request under the same key gives the same claim, RUNNING again if it was stopped.
        Another request is a new claim that replaces the old one in the same step. A request that
        fits nowhere else takes stopped claims: no more than it needs, none newer than it must, none
        within the grace time of its stop, and none at all with `spare_stopped`. Raises NoRoomError,
        which changes nothing: an old claim under the key stays, and frees its slices when its node
        says that the container is gone.
        """
        if node_name not in self._nodes:
            raise NotSyncedError(
                f"node {node_name} has not reported its cards yet; retrying is safe"
            )
        old = self._claim_of(key)
        if old is not None and self._is_repeat(old, request):
            revived = replace(old, request=request)
            if old.state is not ClaimState.RUNNING:
                revived = replace(revived, state=ClaimState.RUNNING, since_unix_ns=now_unix_ns)
            return revived, Changes(claims=() if revived == old else (revived,))

        gone = [old] if old is not None else []
        slices = self._place(request, self._rooms_without(node_name, gone))
        taken: list[Claim] = []
        if slices is None:
            if spare_stopped:
                raise self._refused(node_name, request, gone)
            taken, slices = self._take_stopped(node_name, request, gone, now_unix_ns)
        claim = Claim(
            allocation=Allocation(
                allocation_id=self._new_id(),
                node_name=node_name,
                slices=slices,
                claim=key,
                whole_cards=request.whole_cards,
                exclusive=policy_of(request, self._default_policy) is CardPolicy.EXCLUSIVE,
            ),
            state=ClaimState.RUNNING,
            since_unix_ns=now_unix_ns,
            request=request,
            taken_allocation_ids=tuple(lost.allocation.allocation_id for lost in taken),
        )
        removed = tuple(lost.allocation.allocation_id for lost in (*gone, *taken))
        return claim, Changes(claims=(claim,), removed=removed)

    def release(self, allocation_id: str, now_unix_ns: int) -> Changes:
        """Free a claim. A claim that is not known needs no change."""
        self._remember_release(allocation_id, now_unix_ns)
        return Changes(removed=(allocation_id,) if allocation_id in self._claims else ())

    def report(self, report: Report, now_unix_ns: int) -> Changes:
        """Take a node's report, which replaces its last one.

        Claims that it does not list stay: they may be younger than the report. A card that is gone
        stays, unhealthy, as long as a claim holds a slice of it. A running container that the cache
        does not know is taken back even where that overbooks a card; a stopped one only where it
        fits, else the node is told that it is gone. A stop or a release that is older than what the
        cache knows is ignored.
        """
        changed: dict[str, Claim] = {}
        removed: dict[str, None] = {}
        stopped: list[Claim] = []
        listed: set[str] = set()
        for told in report.claims:
            allocation_id = told.allocation.allocation_id
            listed.add(allocation_id)
            state = ClaimState.RUNNING if allocation_id in report.running else told.state
            # A clock that was set back must not make a stop look as if it lay in the future.
            since_unix_ns = min(told.since_unix_ns, now_unix_ns)
            known = self._claims.get(allocation_id)
            if known is not None:
                changed_claim = self._told(
                    known, report.node.name, state, since_unix_ns, now_unix_ns
                )
                if changed_claim is None:
                    removed[allocation_id] = None
                    self._remember_release(allocation_id, now_unix_ns)
                elif changed_claim != known:
                    changed[allocation_id] = changed_claim
                continue
            if state is ClaimState.RELEASED:
                continue
            if self._recently_released(allocation_id, now_unix_ns):
                removed[allocation_id] = None
                continue
            back = replace(
                told,
                allocation=replace(told.allocation, node_name=report.node.name),
                state=state,
                since_unix_ns=since_unix_ns,
            )
            if state is ClaimState.RUNNING:
                changed[allocation_id] = back
            else:
                stopped.append(back)
        for allocation_id in report.running - listed:
            known = self._claims.get(allocation_id)
            if known is not None and known.state is not ClaimState.RUNNING:
                changed[allocation_id] = replace(
                    known, state=ClaimState.RUNNING, since_unix_ns=now_unix_ns
                )
        for claim in self._moved(report.node, changed, removed):
            changed[claim.allocation.allocation_id] = claim
        nodes = self._inventory(report.node, changed.values(), removed)
        if stopped:
            for claim in self._readmitted(report.node.name, nodes, changed, removed, stopped):
                changed[claim.allocation.allocation_id] = claim
            for claim in stopped:
                if claim.allocation.allocation_id not in changed:
                    removed[claim.allocation.allocation_id] = None
        return Changes(
            nodes=nodes,
            claims=tuple(changed.values()),
            removed=tuple(removed),
            reported=report.node.name,
        )

    def apply(self, changes: Changes) -> None:
        """Make `changes` true. Removals come first, so that no instant holds too much."""
        if changes.reported:
            self._synced.add(changes.reported)
        for allocation_id in changes.removed:
            self._forget(allocation_id)
        for node in changes.nodes:
            for card in self._nodes[node.name].cards if node.name in self._nodes else ():
                self._cards.pop(card.uuid, None)
            self._nodes[node.name] = node
        for node in changes.nodes:
            self._cards.update((card.uuid, card) for card in node.cards)
        for claim in changes.claims:
            self._forget(claim.allocation.allocation_id)
            self._remember(claim)

    # Allocating

    def _claim_of(self, key: ClaimKey) -> Claim | None:
        """Return the claim under a key; one that the cache gave out before one taken back."""
        claims = [self._claims[allocation_id] for allocation_id in self._ids_of_key.get(key, ())]
        claims.sort(
            key=lambda claim: (
                claim.request is not None,
                claim.since_unix_ns,
                claim.allocation.allocation_id,
            )
        )
        return claims[-1] if claims else None

    def _is_repeat(self, old: Claim, request: Request) -> bool:
        if old.request is not None:
            return old.request == request
        return answers(old.allocation, request, self._cards, self._default_policy)

    def _rooms_without(self, node_name: str, claims: Iterable[Claim]) -> Rooms:
        """Return the node's rooms as they would be without `claims`."""
        rooms = {room.card.uuid: room for room in self.rooms(node_name)}
        for claim in claims:
            rooms = without_allocation(rooms, claim.allocation)
        return rooms

    def _place(self, request: Request, rooms: Rooms) -> tuple[Slice, ...] | None:
        return place(request, tuple(rooms.values()), self._default_policy)

    def _take_stopped(
        self, node_name: str, request: Request, gone: list[Claim], now_unix_ns: int
    ) -> tuple[list[Claim], tuple[Slice, ...]]:
        """Return the stopped claims to take, and the slices that this gives; or raise."""
        stopped = [
            claim
            for claim in self._claims.values()
            if claim.state is ClaimState.STOPPED
            and claim.allocation.node_name == node_name
            and claim not in gone
        ]
        stopped.sort(key=lambda claim: (claim.since_unix_ns, claim.allocation.allocation_id))

        def rooms_without(claims: Sequence[Claim]) -> Rooms:
            return self._rooms_without(node_name, [*gone, *claims])

        if not stopped or self._place(request, rooms_without(stopped)) is None:
            raise self._refused(node_name, request, gone)
        if node_name not in self._synced:
            # A container that was stopped may have been started while this cache was down.
            raise NotSyncedError(
                f"node {node_name} has not reported since this cache started, and only stopped "
                "containers hold the room; retrying is safe"
            )
        old_enough = [
            claim
            for claim in stopped
            if now_unix_ns - claim.since_unix_ns >= self._stopped_grace_ns
        ]
        if self._place(request, rooms_without(old_enough)) is None:
            grace_seconds = self._stopped_grace_ns // 10**9
            raise self._refused(
                node_name,
                request,
                gone,
                remedy=f"a stopped container keeps its slice for {grace_seconds} s: try again then",
            )
        allocations = [claim.allocation for claim in old_enough]
        needed = needed_of(request, rooms_without([]), allocations, self._default_policy)
        taken = [old_enough[i] for i in needed]
        slices = self._place(request, rooms_without(taken))
        assert slices is not None
        return taken, slices

    def _refused(
        self, node_name: str, request: Request, gone: list[Claim], remedy: str = ""
    ) -> Exception:
        rooms = self._rooms_without(node_name, gone)
        return refusal(request, tuple(rooms.values()), self._default_policy, remedy=remedy)

    # Reports

    def _told(
        self, known: Claim, node_name: str, state: ClaimState, since_unix_ns: int, now_unix_ns: int
    ) -> Claim | None:
        """Return a known claim as the report makes it, or None when it is released."""
        if known.allocation.node_name != node_name:
            known = replace(known, allocation=replace(known.allocation, node_name=node_name))
        # A time in the future is from before the clock was set back, and older than any report.
        known_ns = known.since_unix_ns if known.since_unix_ns <= now_unix_ns else 0
        if state is ClaimState.RUNNING:
            # Whatever the clocks say: holding a slice too long is safe, taking it too early is not.
            if known.state is not state:
                known = replace(known, state=state, since_unix_ns=max(since_unix_ns, known_ns))
            return known
        if since_unix_ns < known_ns:
            return known
        if state is ClaimState.RELEASED:
            return None
        return replace(known, state=state, since_unix_ns=since_unix_ns)

    def _moved(
        self, node: Node, changed: dict[str, Claim], removed: dict[str, None]
    ) -> list[Claim]:
        """Return the other claims on the node's cards that stand under another node's name."""
        ids = {key for card in node.cards for key in self._ids_on_card.get(card.uuid, ())}
        claims = [self._claims[key] for key in sorted(ids - changed.keys() - removed.keys())]
        return [
            replace(claim, allocation=replace(claim.allocation, node_name=node.name))
            for claim in claims
            if claim.allocation.node_name != node.name
        ]

    def _inventory(
        self, reported: Node, changed: Iterable[Claim], removed: Iterable[str]
    ) -> tuple[Node, ...]:
        """Return the nodes whose inventory changes.

        A card belongs to the node that reported it last: a host that was renamed keeps its claims.
        """
        gone = set(removed)
        held = {
            uuid
            for uuid, ids in self._ids_on_card.items()
            if any(allocation_id not in gone for allocation_id in ids)
        }
        held.update(part.card_uuid for claim in changed for part in claim.allocation.slices)
        cards = {card.uuid: card for card in reported.cards}
        before = self._nodes.get(reported.name)
        for card in before.cards if before else ():
            if card.uuid not in cards and card.uuid in held:
                cards[card.uuid] = replace(card, healthy=False, health_reason=NOT_REPORTED)
        after = replace(reported, cards=tuple(cards[uuid] for uuid in sorted(cards)))
        nodes = [after] if after != before else []
        for other in self._nodes.values():
            kept = tuple(card for card in other.cards if card.uuid not in cards)
            if other.name != reported.name and kept != other.cards:
                nodes.append(replace(other, cards=kept))
        return tuple(nodes)

    def _readmitted(
        self,
        node_name: str,
        nodes: tuple[Node, ...],
        changed: dict[str, Claim],
        removed: dict[str, None],
        stopped: list[Claim],
    ) -> list[Claim]:
        """Return those stopped claims, newest stop first, that fit beside everything else."""
        node = next((node for node in nodes if node.name == node_name), self._nodes.get(node_name))
        rooms = {
            card.uuid: Room(card, self._use.get(card.uuid, CardUse()))
            for card in (node.cards if node else ())
        }
        for allocation_id in {*changed, *removed} & self._claims.keys():
            rooms = without_allocation(rooms, self._claims[allocation_id].allocation)
        for claim in changed.values():
            rooms = with_allocation(rooms, claim.allocation)
        back = []
        for claim in sorted(stopped, key=lambda claim: claim.since_unix_ns, reverse=True):
            if admits(rooms, claim.allocation):
                back.append(claim)
                rooms = with_allocation(rooms, claim.allocation)
        return back

    def _remember_release(self, allocation_id: str, now_unix_ns: int) -> None:
        self._releases[allocation_id] = now_unix_ns
        self._releases.move_to_end(allocation_id)
        if len(self._releases) > _RELEASES_REMEMBERED:
            self._releases.popitem(last=False)

    def _recently_released(self, allocation_id: str, now_unix_ns: int) -> bool:
        released_unix_ns = self._releases.get(allocation_id)
        return (
            released_unix_ns is not None
            and 0 <= now_unix_ns - released_unix_ns < _RELEASE_MEMORY_NS
        )

    # Indices

    def _remember(self, claim: Claim) -> None:
        allocation = claim.allocation
        self._claims[allocation.allocation_id] = claim
        self._ids_of_key.setdefault(allocation.claim, []).append(allocation.allocation_id)
        for uuid in {part.card_uuid for part in allocation.slices}:
            self._ids_on_card.setdefault(uuid, {})[allocation.allocation_id] = None
            self._use[uuid] = self._use.get(uuid, CardUse()).plus(allocation, uuid)

    def _forget(self, allocation_id: str) -> None:
        claim = self._claims.pop(allocation_id, None)
        if claim is None:
            return
        allocation = claim.allocation
        ids = self._ids_of_key[allocation.claim]
        ids.remove(allocation_id)
        if not ids:
            del self._ids_of_key[allocation.claim]
        for uuid in {part.card_uuid for part in allocation.slices}:
            del self._ids_on_card[uuid][allocation_id]
            if self._ids_on_card[uuid]:
                self._use[uuid] = self._use[uuid].minus(allocation, uuid)
            else:
                del self._ids_on_card[uuid], self._use[uuid]
