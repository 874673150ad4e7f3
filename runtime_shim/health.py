# SPDX-License-Identifier: Apache-2.0
"""Which cards are held back for errors of their own, and when they are trusted again.

A card on which the hardware failed gets no new container. After a quiet minute the agent makes a
context on it, each minute anew, and the first one that succeeds ends it: whether somebody reset the
card, reloaded the driver, or the error passed. Nothing of it is kept: an agent that starts believes
a card until it errs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from runtime_shim.inventory import CardFacts, Inventory, Xid
from runtime_shim.probe import ProbeError
from runtime_shim.xids import OF_A_PROGRAM, OF_THE_CARD

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 60.0


class Prober(Protocol):
    """Makes contexts on cards."""

    def context(self, card_uuid: str) -> AbstractAsyncContextManager[int]:
        """Hold a context meanwhile. Raises ProbeError."""


@dataclass
class _Ailment:
    reason: str
    tried_at: float
    """When it was seen last, or a context was tried last."""


class Health:
    """The cards that are held back. Lives on the event loop."""

    def __init__(
        self,
        inventory: Inventory,
        prober: Prober,
        changed: Callable[[], None],
        clock: Callable[[], float],
        quiet_seconds: float = _QUIET_SECONDS,
    ) -> None:
        """`changed` is called when cards are held back, or no more; `clock` gives seconds."""
        self._inventory = inventory
        self._prober = prober
        self._changed = changed
        self._clock = clock
        self._quiet_seconds = quiet_seconds
        self._ailing: dict[str, _Ailment] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # one odd card must not end the agent
                logger.exception("looking at the health of cards failed")
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Take what the driver has reported, and try the cards that have been quiet."""
        for xid in await self._inventory.xids():
            self._take(xid)
        self._judge()  # to try a card may take half a minute
        for uuid, ailment in list(self._ailing.items()):
            if self._clock() - ailment.tried_at >= self._quiet_seconds:
                await self._try(uuid, ailment)
        self._judge()

    def _judge(self) -> None:
        if self._inventory.judge({uuid: each.reason for uuid, each in self._ailing.items()}):
            self._changed()

    def _take(self, xid: Xid) -> None:
        cards = [card for card in self._inventory.cards if _is_hit(card, xid)]
        extra = {"xid": xid.number, "card": xid.gpu_uuid}
        if xid.number not in OF_THE_CARD:
            what = OF_A_PROGRAM.get(xid.number, "not known to vgpu")
            logger.warning("error of a program on a card", extra={**extra, "reason": what})
            return
        reason = f"Xid {xid.number}: {OF_THE_CARD[xid.number]}"
        logger.error(
            "card held back" if cards else "error of a card that is not known",
            extra={**extra, "reason": reason},
        )
        for card in cards:
            self._ailing[card.uuid] = _Ailment(reason, self._clock())

    async def _try(self, uuid: str, ailment: _Ailment) -> None:
        ailment.tried_at = self._clock()
        if not any(card.uuid == uuid for card in self._inventory.cards):
            del self._ailing[uuid]
            return
        try:
            async with self._prober.context(uuid):
                pass
        except ProbeError as error:
            logger.info("card still held back", extra={"card": uuid, "reason": str(error)})
            ailment.tried_at = self._clock()
        else:
            del self._ailing[uuid]
            logger.warning("card works again", extra={"card": uuid, "reason": ailment.reason})


def _is_hit(card: CardFacts, xid: Xid) -> bool:
    """Tell whether an error is a card's: a GPU's is that of every MIG instance on it."""
    if not xid.gpu_uuid or xid.gpu_uuid not in (card.uuid, card.parent_uuid):
        return False
    return xid.gpu_instance in (-1, card.gpu_instance) or card.gpu_instance == -1
