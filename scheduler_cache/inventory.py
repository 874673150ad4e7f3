# SPDX-License-Identifier: Apache-2.0
"""The cards of a node, who owns each, and whether we may place on it. Pure.

A card has one owner: the dialect whose scheduler decides about it. What others placed there is
counted all the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from scheduler_cache.dialects.dialect import Dialect, Registration, matches, tried
from scheduler_cache.dialects.native import INVENTORY, cordoned
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.model import UNLIMITED_SLOTS, Card, PodContainer, WholeCards
from scheduler_cache.pod import KubeNode

# What the leader writes of a node, beside its inventory.
NODE_LABEL = "vgpu.dev/node"
ROOM = "vgpu.dev/room-since"
"""An annotation: when the node last had more room than before, while pods waited for some."""
SERVED = "vgpu.dev/served-resources"
"""An annotation: which of the node's resources the agent's own device plugin serves, by commas."""
WHOLE_CARDS = "vgpu.dev/whole-cards"
"""An annotation: which whole cards other device plugins gave to containers, as the agent reports.
JSON: `NAMESPACE/POD/CONTAINER` → UUIDs."""
# What people write of it.
DIALECT_LABEL = "vgpu.dev/dialect"
MODE_LABEL = "vgpu.dev/mode"
REPLACE = "replace"
JOIN = "join"
NOT_REPORTED = "its agent has not reported to this cache yet"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnedCard:
    """A card with its owner."""

    card: Card
    """With the memory and cores that its owner sells."""
    owner: str
    """The dialect that decides about it; empty: two claim it."""
    joined: bool = False
    """Its owner's own scheduler decides."""
    refusal: str = ""
    """Why nothing new is placed on it by us; empty: it may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All cards of a node, in the order of their UUIDs, and what is wrong with them."""

    cards: Mapping[str, OwnedCard]
    problems: tuple[str, ...] = ()


def registrations_of(node: KubeNode, dialects: Dialects) -> tuple[list[Registration], list[str]]:
    """Return what was registered on a Node, and what cannot be read."""
    found, problems = [], []
    for dialect in dialects:
        registration, problem = tried(partial(dialect.parse_node, node))
        if problem:
            problems.append(f"the registration of {dialect.name} cannot be read: {problem}")
        if registration is not None:
            found.append(registration)
    return found, problems


def served_resources(node: KubeNode, reported: frozenset[str] | None) -> frozenset[str]:
    """Return the resources of a node that are ours, and so nobody's registration.

    `reported`: what the agent told this process; None: nothing yet. Then it is what the leader
    wrote of an earlier report: a new leader must not take our own plugin for another system's.
    """
    if reported is not None:
        return reported
    text = node.annotations.get(SERVED, "")
    return frozenset(part for item in text.split(",") if (part := item.strip()))


def without_agent(node: KubeNode) -> bool:
    """Return whether a Node carries nothing that the leader writes of what an agent reports."""
    return (
        NODE_LABEL not in node.labels
        and INVENTORY not in node.annotations
        and SERVED not in node.annotations
        and WHOLE_CARDS not in node.annotations
    )


def whole_cards_text(reported: Sequence[WholeCards]) -> str | None:
    """Return what the leader writes of them on the Node; None: nothing."""
    listed = {
        f"{each.pod.namespace}/{each.pod.name}/{each.pod.container_name}": sorted(each.card_uuids)
        for each in reported
    }
    return json.dumps(listed, separators=(",", ":"), sort_keys=True) if listed else None


def whole_cards(node: KubeNode, reported: Sequence[WholeCards] | None) -> tuple[WholeCards, ...]:
    """Return the whole cards that other device plugins gave out on a node.

    `reported`: what the agent told this process; None: nothing yet, as on every replica that does
    not lead. Then it is what the leader wrote.
    """
    if reported is not None:
        return tuple(reported)
    try:
        listed = json.loads(node.annotations.get(WHOLE_CARDS, "{}"))
        return tuple(
            WholeCards(
                pod=PodContainer(uid="", namespace=namespace, name=name, container_name=container),
                card_uuids=frozenset(map(str, uuids)),
            )
            for key, uuids in listed.items()
            for namespace, name, container in [key.split("/")]
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()  # the leader alone writes it, and soon does so again


def at_work(dialect: Dialect, node: KubeNode, served: Collection[str]) -> bool:
    """Return whether people or a plugin's capacity say that a dialect's system uses the node.

    The kubelet keeps the capacity of a plugin that has gone, as 0, while its pods may still run.
    """
    return node.labels.get(DIALECT_LABEL) == dialect.name or any(
        matches(name, dialect.vocabulary.resources) for name in node.allocatable.keys() - served
    )


def inventory_of(
    node: KubeNode,
    reported: Sequence[Card] | None,
    registrations: Sequence[Registration],
    unreadable: Sequence[str],
    elsewhere: Mapping[str, str],
    dialects: Dialects,
) -> Inventory:
    """Return the node's cards.

    `reported`: what the agent told this process, None: nothing yet. `elsewhere`: cards that another
    node claims as well, with its name; nobody gets them.
    """
    problems = list(unreadable)
    ours = next((each.cards for each in registrations if each.dialect == dialects.native.name), ())
    physical = {card.uuid: card for card in (ours if reported is None else reported)}
    foreign = [each for each in registrations if each.dialect != dialects.native.name]
    for each in foreign:
        for card in each.cards:
            if card.uuid in physical:
                continue
            if reported is not None or ours:
                problems.append(
                    f"{each.dialect} registered {card.uuid}, which the node does not have"
                )
            else:
                physical[card.uuid] = card
    label = node.labels.get(DIALECT_LABEL, "")
    if label and label not in dialects:
        problems.append(f"label {DIALECT_LABEL} is {label!r}, which is no dialect")
    closed = cordoned(node) | _cordoned_elsewhere(node)
    cards = {}
    for uuid in sorted(physical):
        card = physical[uuid]
        sellers = {
            each.dialect: sold for each in foreign for sold in each.cards if sold.uuid == uuid
        }
        sellers.update((each.dialect, card) for each in foreign if each.every_card)
        owner, refusal = _owner(label, sellers, dialects)
        joined = bool(owner) and owner != dialects.native.name and _joined(node, owner, dialects)
        for sold in sellers.values():
            if not sold.healthy and card.healthy:
                card = replace(
                    card,
                    healthy=False,
                    health_reason=sold.health_reason or "registered as unhealthy",
                )
        if owner in sellers:
            sold = sellers[owner]
            card = replace(
                card,
                memory_bytes=max(card.memory_bytes, sold.memory_bytes),
                cores_percent=max(card.cores_percent, sold.cores_percent),
                model=card.model or sold.model,
                minor=card.minor if card.minor >= 0 else sold.minor,
                slots=sold.slots if joined else card.slots,
            )
        if joined and not dialects.get(owner).limits_slots:
            card = replace(card, slots=UNLIMITED_SLOTS)
        if uuid in elsewhere:
            refusal = f"node {elsewhere[uuid]} claims it, too"
            problems.append(f"{uuid}: {refusal}; nobody gets it")
            owner = ""
        elif unreadable and not refusal:
            refusal = unreadable[0]
        elif joined:
            refusal = f"{owner} decides about it"
        elif owner and owner != dialects.native.name and not _replaced(node):
            refusal = f"{owner} registered it and cannot be joined; label {MODE_LABEL}={REPLACE}"
        if not refusal and uuid in closed:
            refusal = "cordoned"
        if not refusal and reported is None:
            refusal = NOT_REPORTED
        cards[uuid] = OwnedCard(card=card, owner=owner, joined=joined, refusal=refusal)
        if not owner and uuid not in elsewhere:
            problems.append(f"{uuid}: {refusal}")
    return Inventory(cards=cards, problems=tuple(dict.fromkeys(problems)))


def _owner(label: str, sellers: Mapping[str, Card], dialects: Dialects) -> tuple[str, str]:
    if label in dialects:
        return label, ""
    if label:
        return "", f"label {DIALECT_LABEL} names no dialect"
    if not sellers:
        return dialects.native.name, ""
    if len(sellers) == 1:
        return next(iter(sellers)), ""
    names = " and ".join(sorted(sellers))
    return "", f"{names} both sell it; label the node {DIALECT_LABEL} with its one owner"


def _replaced(node: KubeNode) -> bool:
    return node.labels.get(MODE_LABEL) == REPLACE


def _joined(node: KubeNode, owner: str, dialects: Dialects) -> bool:
    """Return whether the owner's scheduler decides: unless told otherwise, one that can, does."""
    return dialects.get(owner).joins and not _replaced(node)


def _cordoned_elsewhere(node: KubeNode) -> frozenset[str]:
    text = node.annotations.get("hami.io/device-cordon", "")
    return frozenset(part for item in text.split(",") if (part := item.strip()))
