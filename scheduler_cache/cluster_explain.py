# SPDX-License-Identifier: Apache-2.0
"""Says in whole sentences what cards, nodes and pods hold, and why a pod waits. Pure."""

from __future__ import annotations

from collections.abc import Callable

from scheduler_cache.cluster import Cluster
from scheduler_cache.errors import NotFoundError, SchedulerCacheError, WrongNodeError
from scheduler_cache.model import Allocation, Slice, slices_of
from scheduler_cache.node_view import NodeView, held_words
from scheduler_cache.placing import place_pod
from scheduler_cache.record import AllocationState, Record
from scheduler_cache.units import human_bytes

# A cluster has thousands of nodes; the first tell the story, and the reasons repeat.
_NODES_NAMED = 20

_STATE_WORDS = {
    AllocationState.PENDING: "is not bound to a node yet",
    AllocationState.ASSUMED: "is about to be bound to node {node}",
    AllocationState.BOUND: "is bound to node {node}, which reports no process of it yet",
    AllocationState.RUNNING: "runs on node {node}",
    AllocationState.ORPHAN: "is gone from the API server, and node {node} has not reported its end",
    AllocationState.RELEASED: "has ended and holds nothing",
}


class ClusterExplainer:
    """Explains what `sees` lets the caller look at."""

    def __init__(self, cluster: Cluster, sees: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._sees = sees

    def card(self, card_uuid: str) -> list[str]:
        """Return what is held of a card and by whom, or raise NotFoundError."""
        views = [view for view in self._views() if card_uuid in view.inventory.cards]
        if not views:
            raise NotFoundError(f"no card {card_uuid} is known here")
        lines = []
        for view in views:
            room = view.room(card_uuid)
            lines.append(
                f"{card_uuid} ({room.card.model or 'unknown model'}) of node {view.name}: "
                f"{human_bytes(room.use.memory_bytes)} of {human_bytes(room.card.memory_bytes)} "
                f"memory, {room.use.reserved_percent}% of cores and "
                f"{room.card.slot_words(room.use.slices)} are held."
            )
            if not room.card.healthy:
                lines.append(f"It is unhealthy: {room.card.health_reason or 'no reason given'}.")
            if view.refused(card_uuid):
                lines.append(f"Nothing new is placed on it: {view.refused(card_uuid)}.")
            lines += [
                f"{_capital(held_words(hold, card_uuid))}."
                for hold in view.holds.get(card_uuid, ())
                if card_uuid in hold.amounts
            ]
        return lines

    def allocation(self, allocation_id: str) -> list[str]:
        """Return who owns an allocation and what it is, or raise NotFoundError."""
        for view in self._views():
            found = view.allocations.get(allocation_id.lower())
            if found is not None:
                state = view.states.get(found.pod.uid) if found.pod else AllocationState.ORPHAN
                return [
                    f"Allocation {found.allocation_id} belongs to {found.holder}, which "
                    f"{_words(state or AllocationState.ORPHAN, view.name)}.",
                    *_parts(found),
                ]
        raise NotFoundError(f"no allocation {allocation_id} is known here")

    def node(self, node_name: str) -> list[str]:
        """Return what a node's cards hold and what is wrong with it, or raise NotFoundError."""
        view = self._cluster.view(node_name)
        if not self._sees(node_name):
            raise WrongNodeError(f"node {node_name} is not yours to look at")
        if view is None:
            raise NotFoundError(f"no node {node_name} is known here")
        lines = [] if view.inventory.cards else [f"Node {node_name} has no card that is known."]
        if view.refusal:
            lines.append(f"Nothing new is placed on node {node_name}: {view.refusal}.")
        for card_uuid in view.inventory.cards:
            lines += self.card(card_uuid)
        return lines + [f"{notice.reason}: {notice.message}." for notice in view.notices]

    def pod(self, uid: str, namespace: str, name: str) -> list[str]:
        """Return what a pod holds, or why it waits, or raise NotFoundError."""
        if uid:
            record = self._cluster.record(uid)
        else:
            record = self._cluster.pod_named(namespace or "default", name)
        if record is None or not self._sees(record.node_name):
            raise NotFoundError(f"no pod {uid or f'{namespace}/{name}'} is known here")
        state = self._cluster.state(record.pod.uid) or AllocationState.PENDING
        lines = [f"Pod {record.pod} {_words(state, record.node_name)}."]
        if record.request_error:
            lines.append(f"Its request cannot be read: {record.request_error}.")
        elif record.request is None:
            lines.append("It asks for no card.")
        if record.decision_error:
            lines.append(f"What was decided about it cannot be read: {record.decision_error}.")
        view = self._cluster.view(record.node_name) if record.node_name else None
        if view is not None:
            lines += self._held(record, view)
        elif record.request is not None and state is AllocationState.PENDING:
            lines += self._why_it_waits(record)
        return lines

    def _held(self, record: Record, view: NodeView) -> list[str]:
        lines = []
        for container, allocation_id in record.ids.items():
            answer = view.answers.get((record.pod.uid, container))
            waits = view.waiting.get((record.pod.uid, container))
            if isinstance(answer, Allocation):
                lines.append(f"Container {container} has allocation {allocation_id}.")
                lines += _parts(answer)
            elif answer is not None:
                lines.append(f"Container {container} gets no slice: {answer}.")
            elif waits is not None:
                lines.append(f"Container {container} waits: {waits}.")
        return lines

    def _why_it_waits(self, record: Record) -> list[str]:
        """Return, for each node with cards, whether the pod would fit now and why not."""
        assert record.request is not None
        fits, reasons = [], []
        for view in self._views():
            if not view.inventory.cards:
                continue
            try:
                place_pod(record.pod, record.request, view)
            except SchedulerCacheError as error:
                reasons.append(f"It does not fit on node {view.name} now: {error}.")
            else:
                fits.append(view.name)
        if not fits and not reasons:
            return ["No node has a card that is known here."]
        lines = reasons[:_NODES_NAMED]
        if len(reasons) > _NODES_NAMED:
            lines.append(f"Nor does it fit on {len(reasons) - _NODES_NAMED} more nodes.")
        if fits:
            more = f" and {len(fits) - _NODES_NAMED} more" if len(fits) > _NODES_NAMED else ""
            lines.append(
                f"It would fit now on {', '.join(fits[:_NODES_NAMED])}{more}: the scheduler has "
                "not decided yet, or other rules keep it away."
            )
        return lines

    def _views(self) -> list[NodeView]:
        return [
            view
            for name in self._cluster.node_names
            if self._sees(name) and (view := self._cluster.view(name)) is not None
        ]


def _words(state: AllocationState, node_name: str) -> str:
    return _STATE_WORDS[state].format(node=node_name)


def _parts(allocation: Allocation) -> list[str]:
    cards = dict.fromkeys(part.card_uuid for part in allocation.slices)
    return [
        f"It holds {' and '.join(map(_part, slices_of(allocation, card)))} of {card}."
        for card in cards
    ] or ["It sees no card."]


def _part(part: Slice) -> str:
    cores = f"{part.reserved_percent}% of cores" if part.reserved_percent else "idle cores"
    return f"{human_bytes(part.memory_bytes)} and {cores}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
