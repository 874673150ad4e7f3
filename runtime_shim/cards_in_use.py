# SPDX-License-Identifier: Apache-2.0
"""Which whole cards another device plugin gave to containers, as the kubelet says.

A scheduler may have decided about other cards: no plugin hears of its decision. What the kubelet
gave out is what runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import DevicePlugin
from runtime_shim.inventory import Inventory
from runtime_shim.kubelet import ContainerKey, Devices, KubeletError
from runtime_shim.vouching import cards_by_name, whole_cards

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
_CALL_SECONDS: Final = 2.0


class PodDevices(Protocol):
    """The part of the kubelet that knows what plugins gave to containers."""

    async def devices_of_containers(self, seconds: float) -> Mapping[ContainerKey, list[Devices]]:
        """Return what each container has, and others of its name. Raises KubeletError."""


class CardsInUse:
    """Lives on the event loop. While the kubelet does not answer, what it said last stays true."""

    def __init__(
        self,
        settings: DevicePlugin,
        kubelet: PodDevices,
        own_resources: Collection[str],
        inventory: Inventory,
        changed: Callable[[], None],
    ) -> None:
        """`own_resources`: what this node advertises itself. `changed` is called at a change."""
        self._settings = settings
        self._kubelet = kubelet
        self._own = own_resources
        self._inventory = inventory
        self._changed = changed
        self._found: dict[ContainerKey, frozenset[str]] = {}
        self.known = False
        """Whether the kubelet has ever answered this agent."""

    async def watch(self) -> None:
        """Ask the kubelet every few seconds; it has no stream of changes."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Ask the kubelet once."""
        try:
            listed = await self._kubelet.devices_of_containers(_CALL_SECONDS)
        except KubeletError as error:
            logger.debug("cards in use not known", extra={"reason": str(error)})
            return
        by_name = cards_by_name(self._inventory.cards, indices_moved=self._inventory.indices_moved)
        found = {}
        for key, several in listed.items():
            names = frozenset().union(*map(self._whole, several))
            if cards := frozenset(by_name[name].uuid for name in names if name in by_name):
                found[key] = cards
        if found != self._found or not self.known:
            self._found, self.known = found, True
            self._changed()

    def messages(self) -> list[pb.WholeCards]:
        """Return what a report says of it."""
        return [
            pb.WholeCards(
                pod=pb.PodIdentity(
                    namespace=key.namespace, name=key.pod, container_name=key.container
                ),
                card_uuids=sorted(cards),
            )
            for key, cards in sorted(
                self._found.items(),
                key=lambda each: (each[0].namespace, each[0].pod, each[0].container),
            )
        ]

    def _whole(self, devices: Devices) -> frozenset[str]:
        # A replica `NAME::N` is a share of its card.
        without_replicas = {
            resource: frozenset(name for name in names if "::" not in name)
            for resource, names in devices.items()
        }
        return whole_cards(without_replicas, self._settings.whole_card_resources, self._own)
