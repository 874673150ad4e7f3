# SPDX-License-Identifier: Apache-2.0
"""The slots of a resource, and the message that lists them to the kubelet; pure.

A slot is named after its card's digest and a number: the same in every run of the agent and however
many other cards come and go, and a name from which nobody can take that its holder has that card.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
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
    would hold up creates for seconds. Where not all have room, each card keeps its share.
    """
    groups = list(cards)
    wanted = sum(group.count for group in groups)
    room = most_bytes // _most_bytes_each(groups)
    message = bytearray()
    offered = 0
    for group in groups:
        count = group.count if wanted <= room else group.count * room // wanted
        offered += count
        _append(message, group, count)
    return Listing(message=bytes(message), offered=offered, left_out=wanted - offered)


def _most_bytes_each(groups: Iterable[CardSlots]) -> int:
    longest = max((group.count for group in groups), default=0)
    name = len("00000000-") + len(str(longest))
    return 4 + name + len(_UNHEALTHY)


def _append(message: bytearray, group: CardSlots, count: int) -> None:
    digest = hashlib.blake2b(group.card_uuid.encode(), digest_size=4).hexdigest().encode()
    health = _HEALTHY if group.healthy else _UNHEALTHY
    first, after = 0, 10
    while first < count:
        # Names of as many digits have the same lengths, which below 128 are one byte on the wire.
        name = len(digest) + 1 + len(str(first))
        head = _DEVICES + bytes((2 + name + len(health),)) + _ID + bytes((name,)) + digest
        numbers = range(first, min(after, count))
        message += b"".join([b"%s-%d%s" % (head, number, health) for number in numbers])
        first, after = after, after * 10
