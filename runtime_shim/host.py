# SPDX-License-Identifier: Apache-2.0
"""What the host's GPU driver gives a container: by the host's CDI specs, else file by file."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import config
from runtime_shim.cdi import CdiCache, CdiCard, CdiSpec, cdi_edits
from runtime_shim.devices import CONTROL_NODES, DriverFiles, driver_edits
from runtime_shim.driver import DriverCache, granted_majors, mig_capability_minors
from runtime_shim.drm import nvidia_drm_numbers
from runtime_shim.inventory import CardFacts
from runtime_shim.rootfs import RootfsFacts
from runtime_shim.spec import ContainerEdits

# Drivers are loaded and replaced by people, so a second is soon enough; a look costs a quarter of a
# create.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class _Look:
    files: DriverFiles
    cdi_specs: Sequence[CdiSpec]
    majors: Collection[int]
    drm: Collection[tuple[int, int]]
    at: float


class Host:
    """The driver as it was found last. Blocking calls; any thread."""

    def __init__(self, where: config.Driver) -> None:
        self._root = where.root
        self._driver = DriverCache(where)
        self._cdi = CdiCache(where.cdi_dirs)
        self._last: _Look | None = None

    def driver_version(self) -> str:
        """Return the driver's version; empty when it cannot be told."""
        return self._look().files.version

    def majors(self) -> Collection[int]:
        """Return the majors of every device node that vgpu alone grants."""
        return self._look().majors

    def drm_numbers(self) -> Collection[tuple[int, int]]:
        """Return the numbers of the cards' nodes below /dev/dri."""
        return self._look().drm

    def edits(
        self, cards: Sequence[CardFacts], rootfs: RootfsFacts, capabilities: Collection[str]
    ) -> ContainerEdits:
        """Return what gives a container these cards. Raises RefusedError."""
        look = self._look()
        by_cdi = cdi_edits(look.cdi_specs, [_cdi_card(card) for card in cards], capabilities)
        if by_cdi is not None:
            return by_cdi
        return driver_edits(
            look.files,
            [card.minor for card in cards],
            rootfs,
            capabilities,
            mig_capabilities=self._mig_capabilities(cards),
        )

    def numbers_of(self, cards: Collection[CardFacts]) -> frozenset[tuple[int, int]]:
        """Return (major, minor) of every node that a container with these cards may have.

        None without a card: what controls cards is of no use, and so of no innocent use, alone.
        """
        if not cards:
            return frozenset()
        look = self._look()
        files = look.files
        nodes = [files.cards[card.minor] for card in cards if card.minor in files.cards]
        nodes += [files.controls[path] for path in CONTROL_NODES if path in files.controls]
        nodes += [
            files.mig_capabilities[number]
            for number in self._mig_capabilities(cards)
            if number in files.mig_capabilities
        ]
        by_cdi = cdi_edits(look.cdi_specs, [_cdi_card(card) for card in cards], ("graphics",))
        if by_cdi is not None:
            nodes += by_cdi.devices
        return frozenset((node.major, node.minor) for node in nodes)

    def _mig_capabilities(self, cards: Collection[CardFacts]) -> list[int]:
        return [
            number
            for card in cards
            if card.kind == pb.CARD_KIND_MIG
            for number in mig_capability_minors(
                self._root, card.minor, card.gpu_instance, card.compute_instance
            )
        ]

    def _look(self) -> _Look:
        now = time.monotonic()
        look = self._last
        if look is None or now - look.at > _LOOK_SECONDS:
            look = self._last = _Look(
                files=self._driver.files(),
                cdi_specs=self._cdi.specs(),
                majors=granted_majors(),
                drm=nvidia_drm_numbers(self._root),
                at=now,
            )
        return look


def _cdi_card(card: CardFacts) -> CdiCard:
    whole = card.kind == pb.CARD_KIND_GPU
    return CdiCard(uuid=card.uuid, minor=card.minor if whole else None)
