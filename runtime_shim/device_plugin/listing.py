# SPDX-License-Identifier: Apache-2.0
"""The slots of a resource, and the message that lists them to the kubelet; pure.

A slot is named after its card's digest and a number: the same in every run of the agent and however
many other cards come and go, and a name from which nobody can take that its holder has that card.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.device_plugin.resources import Resource

_SLOT = re.compile(r"[0-9a-f]{8}-[0-9]+")

# The kubelet reads no message above 4 MiB. Source: grpc-go, defaultClientMaxReceiveMessageSize.
MOST_BYTES: Final = 4 * 2**20 - 4096

# Fields of v1beta1.ListAndWatchResponse and v1beta1.Device.
_DEVICES = b"\x0a"
_ID = b"\x0a"
_HEALTHY = b"\x12\x07Healthy"
_UNHEALTHY = b"\x12\x09Unhealthy"


@dataclass(frozen=True, kw_only=True)
class CardSlots:
    """The slots of one card."""

    card_uuid: str
    count: int
    healthy: bool


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What the kubelet is told of a resource."""

    message: bytes
    """A v1beta1.ListAndWatchResponse."""
    offered: int
    left_out: int
    """Slots for which the message has no room."""


def slots_of(resource: Resource, cards: Iterable[pb.Card]) -> tuple[CardSlots, ...]:
    """Return the slots of all cards, in the order of the cards' UUIDs."""
    return tuple(
        CardSlots(card_uuid=card.uuid, count=resource.count(card), healthy=card.healthy)
        for card in sorted(cards, key=lambda each: each.uuid)
    )


def is_slot(name: str) -> bool:
    """Tell whether a device's name may be one that this module has given."""
    return _SLOT.fullmatch(name) is not None


def listing(cards: Iterable[CardSlots], most_bytes: int = MOST_BYTES) -> Listing:
    """Return the message for these slots.

    Written byte by byte: memory in small units is a hundred thousand slots, and as many objects
    would hold up creates for seconds. Of what has no room each card keeps its share.
    """
    groups = list(cards)
    wanted = sum(group.count for group in groups)
    message = _encode(groups)
    offered = wanted
    while len(message) > most_bytes:
        offered = offered * most_bytes // (len(message) + 1)
        message = _encode(
            [
                CardSlots(
                    card_uuid=group.card_uuid,
                    count=group.count * offered // wanted,
                    healthy=group.healthy,
                )
                for group in groups
            ]
        )
    if offered < wanted:
        offered = sum(group.count * offered // wanted for group in groups)
    return Listing(message=message, offered=offered, left_out=wanted - offered)


def _encode(groups: Iterable[CardSlots]) -> bytes:
    return b"".join(device for group in groups for device in _devices(group))


def _devices(group: CardSlots) -> Iterator[bytes]:
    digest = hashlib.blake2b(group.card_uuid.encode(), digest_size=4).hexdigest().encode()
    health = _HEALTHY if group.healthy else _UNHEALTHY
    for number in range(group.count):
        name = b"%s-%d" % (digest, number)
        # Lengths below 128 are one byte on the wire.
        device = _ID + bytes((len(name),)) + name + health
        yield _DEVICES + bytes((len(device),)) + device
