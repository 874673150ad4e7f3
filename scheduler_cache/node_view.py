# SPDX-License-Identifier: Apache-2.0
"""What one node holds, derived from what is known of it. Pure: the same inputs give the same view.

Nothing here depends on the order in which the inputs came, so that two replicas, and a replica
before and after a restart, agree.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_cache.dialects.dialect import Decision, Named, StatedSlice
from scheduler_cache.dialects.native import NATIVE
from scheduler_cache.fit import Room
from scheduler_cache.footprint import NOTHING, Amount, Amounts, footprint
from scheduler_cache.inventory import Inventory
from scheduler_cache.model import (
    Allocation,
    Card,
    CardPolicy,
    CardUse,
    Claim,
    PodContainer,
    Request,
    Slice,
    WholeCards,
)
from scheduler_cache.pod import ContainerKind, Pod
from scheduler_cache.record import AllocationState, Record
from scheduler_cache.trust import card_of, excess, slice_of
from scheduler_cache.units import human_bytes


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know, to be shown as an Event."""

    reason: str
    """CamelCase, as in Kubernetes."""
    message: str
    pod: PodContainer | None = None
    """The pod concerned (no container); None: the node itself."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What somebody holds of the node's cards."""

    holder: str
    amounts: Amounts
    exclusive: frozenset[str] = frozenset()
    """The cards that it holds alone."""
    pod_uid: str = ""
    """The pod whose end frees it; empty: no pod's does."""


@dataclass(kw_only=True, slots=True)
class NodeView:
    """Everything that follows from a node's inputs."""

    name: str
    inventory: Inventory
    uses: dict[str, CardUse] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    """What the node's agent may give out, and what runs there, by allocation id."""
    answers: dict[tuple[str, str], Allocation | str] = field(default_factory=dict)
    """By pod uid and container name: the allocation, or why it is not resolved."""
    waiting: dict[tuple[str, str], str] = field(default_factory=dict)
    """Containers that will be resolved once what is in their way has ended."""
    states: dict[str, AllocationState] = field(default_factory=dict)
    """By pod uid."""
    evict: dict[str, PodContainer] = field(default_factory=dict)
    """Pods that lost a card to a later leader's decision, by uid."""
    holds: dict[str, list[Hold]] = field(default_factory=dict)
    """Who holds something of a card."""
    orphans: frozenset[str] = frozenset()
    """Uids of the pods of containers that run and belong to no pod that holds them."""
    notices: dict[Notice, None] = field(default_factory=dict)
    refusal: str = ""
    """Why nothing new is placed on the whole node."""

    def room(self, card_uuid: str) -> Room:
        """Return a card and what is held of it."""
        return Room(self.inventory.cards[card_uuid].card, self.uses.get(card_uuid, CardUse()))

    def rooms(self) -> list[Room]:
        """Return all cards with what is held of each, in the order of their UUIDs."""
        return [self.room(uuid) for uuid in self.inventory.cards]

    def refused(self, card_uuid: str) -> str:
        """Return why nothing new is placed on a card; empty: it may be, as far as there is room."""
        return self.refusal or self.inventory.cards[card_uuid].refusal


@dataclass(kw_only=True, slots=True)
class _Given:
    """A pod's slices on this node."""

    record: Record
    slices: dict[str, tuple[Slice, ...]]
    amounts: Amounts
    alone: frozenset[str]
    """The containers that hold their cards alone."""
    epoch: int
    joined: bool
    """Another system's scheduler decided."""
    doubt: str = ""
    running: bool = False
    init_over: bool = False
    order: tuple[bool, int, bool, int, int, str] = (False, 0, False, 0, 0, "")

    @property
    def names(self) -> Iterable[str]:
        return self.slices

    @property
    def hold(self) -> Hold:
        pod = self.record.pod
        over = _inits(pod) if self.init_over else frozenset()
        exclusive = {part.card_uuid for name in self.alone - over for part in self.slices[name]}
        return Hold(f"pod {pod}", self.amounts, frozenset(exclusive), pod.uid)


@dataclass(frozen=True, slots=True)
class _Anywhere:
    """What a pod may hold of a card that is not known: counted on every card."""

    hold: Hold
    names: tuple[str, ...]
    """The containers that may hold it."""
    notice: Notice
    doubt: str


def view_of(
    name: str,
    inventory: Inventory,
    records: Iterable[Record],
    claims: Sequence[Claim],
    running: frozenset[str],
    contested: Callable[[str, Pod], bool],
    absent: frozenset[str] = frozenset(),
    whole_cards: Sequence[WholeCards] = (),
) -> NodeView:
    """Return the view of a node.

    `records`: the pods that are or were sent there. `claims` and `running`: its agent's last
    report. `contested`: whether another pod has the better right to an allocation id. `absent`:
    dialects in which nobody decides about this node, whatever a pod says. `whole_cards`: what other
    device plugins gave out there.
    """
    view = NodeView(name=name, inventory=inventory)
    for problem in inventory.problems:
        view.notices[Notice("InventoryRefused", problem)] = None
    ordered = sorted(records, key=lambda each: each.pod.uid)
    groups: dict[str, str] = {}
    for record in ordered:
        groups.update({name: uuid for name, uuid in record.groups.items() if uuid})
    told = {each.allocation.allocation_id: each.allocation for each in claims}
    given: list[_Given] = []
    held_ids: set[str] = set()
    by_plugin: list[tuple[Record, Decision]] = []
    for record in ordered:
        alive = frozenset(name for name, each in record.ids.items() if each in running)
        state = _state(record, bool(alive))
        view.states[record.pod.uid] = state
        if state in (AllocationState.PENDING, AllocationState.RELEASED):
            continue
        # Until its Binding is seen, what our leader chose counts before what the pod carries.
        is_reserved = record.assumed is not None and not record.pod.node_name
        if record.deciders and absent.issuperset(record.deciders) and not is_reserved:
            _ignore(view, record)
            continue
        if not is_reserved and record.decision is not None and record.decision.by_plugin:
            by_plugin.append((record, record.decision))
            continue
        one = _given(view, record, groups, alive)
        if one is None:
            continue
        if isinstance(one, _Given):
            given.append(one)
        else:
            view.notices[one.notice] = None
            _hold(view, one.hold)
        ids = {record.ids[name] for name in one.names if name in record.ids}
        # What somebody wrote and we do not believe may be less than what runs: that counts, too.
        held_ids |= ids - told.keys() if one.doubt else ids
    unknown = running - held_ids
    orphans = _hold_orphans(view, told, unknown)
    view.orphans = frozenset(
        pod.uid for each in unknown if each in told and (pod := told[each].pod) is not None
    )
    believed = {
        (each.record.pod.uid, name) for each in given if not each.doubt for name in each.names
    }
    in_use = _in_use(inventory, ordered, whole_cards, believed)
    for record, decision in by_plugin:
        _left_to_plugin(view, record, decision, in_use)
    others = [
        _whole_hold(view, f"pod {namespace}/{name}", cards, uid)
        for (namespace, name), (uid, cards) in in_use.items()
    ]
    _settle(view, given, orphans, others, contested)
    return view


_InUse = Mapping[tuple[str, str], tuple[str, frozenset[str]]]
"""Uid (empty: not known) and whole cards of another plugin, by namespace and name of a pod."""


def _in_use(
    inventory: Inventory,
    records: Iterable[Record],
    whole_cards: Sequence[WholeCards],
    believed: Container[tuple[str, str]],
) -> _InUse:
    """Return the whole cards that pods have of another plugin and that no dialect accounts for.

    A pod that ties a group to a card holds nothing itself, and a container of a decision that is
    believed has what was decided, whatever card its plugin names to the kubelet. `believed`: uids
    and names of these. Asking alone accounts for nothing: anybody may name any resource.
    """
    known = {(each.pod.namespace, each.pod.name): each for each in records if not each.gone}
    found: dict[tuple[str, str], tuple[str, frozenset[str]]] = {}
    for each in whole_cards:
        key = each.pod.namespace, each.pod.name
        record = known.get(key)
        if record is not None and (
            record.pod.terminal
            or any(record.groups.values())
            or (record.pod.uid, each.pod.container_name) in believed
        ):
            continue
        _, cards = found.get(key, ("", frozenset()))
        cards |= each.card_uuids & inventory.cards.keys()
        if cards:
            found[key] = (record.pod.uid if record else "", cards)
    return found


def _left_to_plugin(view: NodeView, record: Record, decision: Decision, in_use: _InUse) -> None:
    """Count a pod whose whole cards another plugin hands out: what it has, else what was decided.

    It is resolved by nobody here: the kubelet vouches for it on its node.
    """
    pod = record.pod
    cards = view.inventory.cards
    stated = {part for parts in decision.containers.values() for part in parts}
    decided = frozenset(card.uuid for part in stated if (card := card_of(part, cards, {})))
    if decision.doubt:
        _refuse(view, record, decision.doubt)
    _, has = in_use.get((pod.namespace, pod.name), ("", frozenset()))
    if not has:
        _hold(view, _whole_hold(view, f"pod {pod}", decided, pod.uid))
    elif has != decided:
        message = (
            f"{decision.dialect} decided about {_listed(decided)}, and another system's device "
            f"plugin gave pod {pod} {_listed(has)}: what it runs on is held, the rest is free"
        )
        view.notices[Notice("OtherCardInUse", message, _pod(record))] = None


def _whole_hold(view: NodeView, holder: str, uuids: frozenset[str], pod_uid: str) -> Hold:
    cards = view.inventory.cards
    amounts = {
        uuid: Amount(cards[uuid].card.memory_bytes, cards[uuid].card.cores_percent, 1)
        for uuid in sorted(uuids)
    }
    return Hold(holder, amounts, uuids, pod_uid)


def _listed(uuids: Iterable[str]) -> str:
    return " and ".join(sorted(uuids)) or "no card of this node"


def _state(record: Record, runs: bool) -> AllocationState:
    if record.finished:
        return AllocationState.RELEASED
    if record.gone:
        return AllocationState.ORPHAN
    if runs:
        return AllocationState.RUNNING
    if record.pod.node_name:
        return AllocationState.BOUND
    if record.assumed is not None:
        return AllocationState.BOUND if record.assumed.confirmed else AllocationState.ASSUMED
    return AllocationState.PENDING


def _ignore(view: NodeView, record: Record) -> None:
    """Let a pod hold nothing by a decision that anybody may have written."""
    pod = record.pod
    systems = " and ".join(record.deciders)
    why = (
        f"it carries a decision of {systems}, whose pods are not ours and who sells nothing on "
        f"node {view.name}"
    )
    for name in record.ids:
        view.answers[pod.uid, name] = why
    message = f"pod {pod} holds nothing: {why}"
    view.notices[Notice("AllocationIgnored", message, _pod(record))] = None


def _given(
    view: NodeView, record: Record, groups: Mapping[str, str], alive: frozenset[str]
) -> _Given | _Anywhere | None:
    """Return what a pod holds; None: nothing was decided about it.

    `alive`: its containers that its node reports running.
    """
    pod = record.pod
    init_over = _init_over(pod, alive)
    assumed = record.assumed if not pod.node_name else None
    decision = assumed.decision if assumed else record.decision
    cards = view.inventory.cards
    if decision is None:
        if not record.decision_error:
            return None
        return _anywhere(view, record, record.decision_error, init_over)
    slices: dict[str, tuple[Slice, ...]] = {}
    stated = {name: parts for name, parts in decision.containers.items() if parts}
    known = {each.name: each for each in pod.containers}
    doubts = [decision.doubt] if decision.doubt else []
    if decision.node_name and decision.node_name != record.node_name:
        doubts.append(f"it names node {decision.node_name}, and the pod is on {record.node_name}")
    for name, parts in stated.items():
        found = [card_of(each, cards, groups) for each in parts]
        missing = [each for each, card in zip(parts, found, strict=True) if card is None]
        if missing:
            why = _unknown(missing, view.name)
            return _anywhere(view, record, why, init_over, _taken(missing, stated, groups))
        slices[name] = tuple(
            slice_of(each, card) for each, card in zip(parts, found, strict=True) if card
        )
        if name not in known:
            doubts.append(f"it names container {name!r}, which the pod does not have")
    owned = {uuid: each.card for uuid, each in cards.items()}
    doubts += _beyond(record, slices, owned, decision.pod_level)
    for uuid in sorted({part.card_uuid for parts in slices.values() for part in parts}):
        owner = cards[uuid]
        if decision.dialect == NATIVE:
            if not owner.owner:
                doubts.append(f"{uuid} has no single owner: {owner.refusal}")
        elif owner.owner != decision.dialect or not owner.joined:
            whose = owner.owner or "more than one"
            doubts.append(f"{decision.dialect} decided about {uuid}, whose owner is {whose}")
    listed = [
        (each.kind, _amounts(slices[each.name])) for each in pod.containers if each.name in slices
    ]
    stray = [(ContainerKind.APP, _amounts(slices[name])) for name in slices if name not in known]
    if decision.pod_level and slices:
        # One account for all: what one container holds, the others hold with it.
        amounts: Amounts = _amounts(next(iter(slices.values())))
    else:
        amounts = footprint(listed + stray, init_over)
    return _Given(
        record=record,
        slices=slices,
        amounts=amounts,
        alone=frozenset(name for name in slices if _exclusive(record, decision.exclusive, name)),
        epoch=decision.epoch,
        joined=decision.dialect != NATIVE,
        doubt=doubts[0] if doubts else "",
        running=bool(alive),
        init_over=init_over,
        order=(
            record.ending,
            -decision.epoch,
            not alive,
            decision.decided_unix_ns,
            pod.created_unix_ns,
            pod.uid,
        ),
    )


def _init_over(pod: Pod, alive: frozenset[str]) -> bool:
    """Return whether the last ordinary init container has ended, so that none holds anything.

    The API server may say so of a sandbox that is no more, while the kubelet runs them again.
    """
    return pod.init_finished and not any(
        each.kind is ContainerKind.INIT and each.name in alive for each in pod.containers
    )


def _inits(pod: Pod) -> frozenset[str]:
    return frozenset(each.name for each in pod.containers if each.kind is ContainerKind.INIT)


def _exclusive(record: Record, named: frozenset[str], container_name: str) -> bool:
    request = record.request.containers.get(container_name) if record.request else None
    return container_name in named or (request is not None and alone(request))


def alone(request: Request) -> bool:
    """Return whether a request wants its cards for itself."""
    return request.whole_cards or request.card_policy is CardPolicy.EXCLUSIVE


def _beyond(
    record: Record,
    slices: Mapping[str, tuple[Slice, ...]],
    cards: Mapping[str, Card],
    pod_level: bool,
) -> list[str]:
    if record.request_error:
        return [f"the request cannot be read: {record.request_error}"]
    asked = record.request.containers if record.request else {}
    found = []
    for name, parts in slices.items():
        if name not in asked:
            found.append(f"container {name!r} asks for no card")
        elif more := excess(asked[name], parts, cards):
            found.append(f"container {name!r}: {more}")
    if pod_level and len(set(slices.values())) > 1:
        found.append("its containers share one account and yet hold different slices")
    return found


def _amounts(slices: Iterable[Slice]) -> dict[str, Amount]:
    amounts: dict[str, Amount] = {}
    for part in slices:
        one = Amount(part.memory_bytes, part.reserved_percent, 1)
        amounts[part.card_uuid] = amounts.get(part.card_uuid, NOTHING).plus(one)
    return amounts


def _unknown(parts: Sequence[StatedSlice], node_name: str) -> str:
    names = ", ".join(f"{each.named.value} {each.card}" for each in parts[:4])
    return f"its allocation names {names}, which node {node_name} does not have"


def _taken(
    missing: Sequence[StatedSlice],
    stated: Mapping[str, tuple[StatedSlice, ...]],
    groups: Mapping[str, str],
) -> frozenset[str]:
    """Return the cards that groups of other pods have: another group can have none of them."""
    if any(each.named is not Named.GROUP for each in missing):
        return frozenset()
    own = {each.card for parts in stated.values() for each in parts}
    return frozenset(uuid for group, uuid in groups.items() if group not in own)


def _pod(record: Record) -> PodContainer:
    return record.owner("")


def _anywhere(
    view: NodeView,
    record: Record,
    why: str,
    init_over: bool,
    besides: frozenset[str] = frozenset(),
) -> _Anywhere:
    """Return what a pod asked for, on every card, since it may be on any of them but `besides`."""
    pod = record.pod
    where = "every card that it may be" if besides else "every card"
    message = f"{why}; until pod {pod} ends, what it may hold is kept free on {where}"
    amounts: dict[str, Amount] = {}
    sole: frozenset[str] = frozenset()
    if record.request is not None:
        for uuid, owned in view.inventory.cards.items():
            if uuid in besides:
                continue
            parts = []
            for each in pod.containers:
                request = record.request.containers.get(each.name)
                if request is not None:
                    parts.append((each.kind, {uuid: _largest(request, owned.card)}))
            if record.request.pod_level:
                # One account for all, whichever of them is an init container.
                parts = [(ContainerKind.APP, held) for _, held in parts[:1]]
            amounts.update(footprint(parts, init_over))
        over = _inits(pod) if init_over and not record.request.pod_level else frozenset()
        if any(alone(each) for name, each in record.request.containers.items() if name not in over):
            sole = frozenset(amounts)
    elif record.request_error:
        amounts = {
            uuid: Amount(owned.card.memory_bytes, owned.card.cores_percent, 1)
            for uuid, owned in view.inventory.cards.items()
        }
    else:
        message = f"{why}; pod {pod} asks for no card and gets none"
    for each in pod.containers:
        view.answers[pod.uid, each.name] = why
    return _Anywhere(
        Hold(f"pod {pod}, on a card that is not known", amounts, sole, pod.uid),
        tuple(record.request.containers)
        if record.request
        else tuple(record.ids)
        if amounts
        else (),
        Notice("AllocationUnreadable", message, _pod(record)),
        why,
    )


def _largest(request: Request, card: Card) -> Amount:
    return Amount(
        max(demand.memory.of(card) for demand in request.demands),
        100 if request.whole_cards else max(each.cores_percent or 0 for each in request.demands),
        1,
    )


def _hold(view: NodeView, hold: Hold) -> None:
    view.uses = added(view.uses, hold)
    for uuid in hold.amounts:
        view.holds.setdefault(uuid, []).append(hold)


def _hold_orphans(
    view: NodeView, told: Mapping[str, Allocation], unknown: frozenset[str]
) -> list[Hold]:
    """Count what runs on the node and belongs to no pod that holds it."""
    holds = []
    for allocation_id in sorted(unknown):
        allocation = told.get(allocation_id)
        if allocation is None:
            view.refusal = (
                f"container {allocation_id} runs on node {view.name}, and nobody knows what it "
                "holds"
            )
            view.notices[Notice("UnknownContainer", view.refusal)] = None
            continue
        view.allocations[allocation_id] = allocation
        message = (
            f"{allocation.holder} runs and no pod explains what it has: it holds until it ends"
        )
        view.notices[Notice("Orphan", message)] = None
        alone_on = frozenset(part.card_uuid for part in allocation.slices if allocation.exclusive)
        hold = Hold(allocation.holder, _amounts(allocation.slices), alone_on)
        _hold(view, hold)
        holds.append(hold)
    return holds


def _settle(
    view: NodeView,
    given: list[_Given],
    orphans: list[Hold],
    others: list[Hold],
    contested: Callable[[str, Pod], bool],
) -> None:
    """Decide who is resolved. What is resolved, with what runs already, never exceeds a card.

    Only what is believed can be resolved, the later leader's before an earlier one's. Who does not
    fit has lost: it still counts, since it may run, and is never resolved. Who wins waits for
    orphans, for losers that run, and for losers that are ours: another replica may have let them
    start, and they are evicted. Where another scheduler decided, it waits for the whole cards of
    other plugins (`others`), too. Nobody loses to a pod that is ending: it holds on here until this
    replica hears of its end, which the leader that gave its room away has heard.
    """
    winners: list[_Given] = []
    losers: list[tuple[_Given, str]] = []
    admitted: dict[str, CardUse] = {}
    for each in sorted((each for each in given if not each.doubt), key=lambda each: each.order):
        after = added(admitted, each.hold)
        full = _overbooked(view, after, each)
        if full:
            losers.append((each, full))
        else:
            winners.append(each)
            admitted = after
    used = admitted
    for hold in (*orphans, *(loser.hold for loser, _ in losers if loser.running or loser.epoch)):
        used = added(used, hold)
    beside = used
    for hold in others:
        _hold(view, hold)
        beside = added(beside, hold)
    for each in sorted(given, key=lambda each: each.order):
        _hold(view, each.hold)
    for each in winners:
        blocked = "" if each.running else _overbooked(view, beside if each.joined else used, each)
        _answer(view, each, contested, blocked)
    for loser, full in losers:
        _refuse_loser(view, loser, full, winners, given)
    for each in given:
        if each.doubt:
            record = each.record
            for name in {*record.ids, *each.slices}:
                view.answers[record.pod.uid, name] = each.doubt
            _refuse(view, record, each.doubt)


def _refuse(view: NodeView, record: Record, doubt: str) -> None:
    message = f"the allocation of pod {record.pod} is not believed: {doubt}"
    view.notices[Notice("AllocationRefused", message, _pod(record))] = None


def _refuse_loser(
    view: NodeView,
    loser: _Given,
    full: str,
    winners: Sequence[_Given],
    given: Sequence[_Given],
) -> None:
    record = loser.record
    first = any(full in each.amounts for each in winners)
    why = (
        f"{full} is overbooked, {'and another allocation comes first' if first else 'by it alone'}"
    )
    for each in given:
        decision = each.record.decision
        if full in each.amounts and decision is not None and decision.uncounted:
            names = ", ".join(decision.uncounted)
            why += (
                f"; {decision.dialect}'s scheduler does not count sidecars with cards ({names} of "
                f"pod {each.record.pod}) beside the other containers; give that pod less, or its "
                "sidecars no card"
            )
            break
    for name in record.ids:
        view.answers[record.pod.uid, name] = why
    if record.ending:
        return
    message = f"{why}; pod {record.pod} is not started"
    view.notices[Notice("AllocationLost", message, _pod(record))] = None
    # Two leaders, or a Binding that came after its reservation had lapsed: one of the pods must go.
    ours = any(each.epoch >= loser.epoch for each in winners if full in each.amounts)
    if loser.epoch and ours:
        view.evict[record.pod.uid] = _pod(record)


def _answer(
    view: NodeView, each: _Given, contested: Callable[[str, Pod], bool], blocked: str
) -> None:
    record = each.record
    pod = record.pod
    state = view.states[pod.uid]
    inits = _inits(pod)
    for name, slices in each.slices.items():
        allocation_id = record.ids[name]
        request = record.request.containers[name] if record.request else None
        pod_level = record.request is not None and record.request.pod_level
        decision = (
            record.decision if pod.node_name or not record.assumed else record.assumed.decision
        )
        allocation = Allocation(
            allocation_id=allocation_id,
            node_name=view.name,
            slices=slices,
            pod=record.owner(name),
            epoch=each.epoch,
            account_id=pod.uid if pod_level else "",
            source_dialect=decision.dialect if decision else "",
            whole_cards=request is not None and request.whole_cards,
            exclusive=name in each.alone,
        )
        if contested(allocation_id, pod):
            why = f"its UUID {allocation_id} belongs to an older pod"
            view.answers[pod.uid, name] = why
            message = f"container {name} of pod {pod}: {why}"
            view.notices[Notice("AllocationRefused", message, _pod(record))] = None
            continue
        if each.init_over and name in inits:
            # Its slice is free for others. A second run of the init containers is seen in the
            # pod's status, and then counts again before it starts.
            view.waiting[pod.uid, name] = "the init containers of its pod have finished"
            continue
        if blocked:
            view.waiting[pod.uid, name] = f"{blocked} is still used by a container that must end"
            continue
        if state is AllocationState.ASSUMED:
            continue
        view.allocations[allocation_id] = allocation
        if not record.gone and not pod.terminal:
            view.answers[pod.uid, name] = allocation


def _overbooked(view: NodeView, uses: Mapping[str, CardUse], each: _Given) -> str:
    """Return a card of `each` that holds too much under `uses`, or an empty text."""
    return next(
        (
            uuid
            for uuid in sorted(each.amounts)
            if Room(view.inventory.cards[uuid].card, uses[uuid]).overbooked
        ),
        "",
    )


def added(uses: Mapping[str, CardUse], hold: Hold) -> dict[str, CardUse]:
    """Return `uses` with `hold` in them."""
    after = dict(uses)
    for uuid in hold.amounts:
        after[uuid] = held_with(after.get(uuid, CardUse()), hold, uuid)
    return after


def held_with(use: CardUse, hold: Hold, card_uuid: str) -> CardUse:
    """Return the use of a card with what `hold` has of it."""
    amount = hold.amounts[card_uuid]
    return CardUse(
        use.memory_bytes + amount.memory_bytes,
        use.reserved_percent + amount.reserved_percent,
        use.slices + amount.slices,
        (*use.exclusive_holders, hold.holder)
        if card_uuid in hold.exclusive
        else use.exclusive_holders,
        use.holders + 1,
    )


def held_words(hold: Hold, card_uuid: str) -> str:
    """Return what somebody holds of a card, in words."""
    amount = hold.amounts[card_uuid]
    cores = f"{amount.reserved_percent}% of cores" if amount.reserved_percent else "idle cores"
    sole = ", exclusively" if card_uuid in hold.exclusive else ""
    return f"{hold.holder} holds {human_bytes(amount.memory_bytes)} and {cores}{sole}"
