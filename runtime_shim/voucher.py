# SPDX-License-Identifier: Apache-2.0
"""Asks the kubelet whether another plugin gave a container the whole cards that its spec opens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from runtime_shim.config import DevicePlugin
from runtime_shim.errors import RefusedError
from runtime_shim.host import Host
from runtime_shim.identity import Identity
from runtime_shim.inventory import CardFacts, Inventory
from runtime_shim.kubelet import ContainerKey, Devices, KubeletError
from runtime_shim.spec import Spec
from runtime_shim.strip import gpu_devices
from runtime_shim.vouching import (
    Asked,
    asked_cards,
    cards_by_name,
    contradiction,
    whole_cards,
)

logger = logging.getLogger(__name__)

_CALL_SECONDS: Final = 2.0
# The kubelet admits a pod before it starts containers, so one that is not listed yet soon is.
_LONGEST_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 0.1


class PodDevices(Protocol):
    """The part of the kubelet that knows what plugins gave to containers."""

    async def devices_of_containers(self, seconds: float) -> Mapping[ContainerKey, list[Devices]]:
        """Return what each container has, and others of its name. Raises KubeletError."""

    async def recorded_devices(self, pod_uid: str, container_name: str) -> Devices:
        """Return what a container that is not among those was given. Raises KubeletError."""


class Voucher:
    """Lives on the event loop. Creates that wait at the same time share one question; no answer is
    older than the create, since a pod's name may have passed to another one meanwhile.
    """

    def __init__(
        self,
        settings: DevicePlugin,
        kubelet: PodDevices,
        own_resources: Collection[str],
        inventory: Inventory,
        host: Host,
    ) -> None:
        """`own_resources`: what this node advertises itself, whose devices are no cards."""
        self._settings = settings
        self._kubelet = kubelet
        self._own = own_resources
        self._inventory = inventory
        self._host = host
        self._turn = asyncio.Lock()
        self._answer: Mapping[ContainerKey, list[Devices]] | KubeletError = {}
        self._asked_at = float("-inf")

    def needs_gpu_runtime(self, spec: Spec) -> bool:
        """Tell whether a spec only names its cards, so that another runtime must bring them."""
        asked = asked_cards(spec)
        return bool(asked.names or asked.objection) and not self._devices(spec, ())

    async def vouches(self, identity: Identity, spec: Spec, seconds: float) -> bool:
        """Tell whether the kubelet gave this container exactly the cards that its spec opens.

        Raises RefusedError when it names cards and the kubelet does not answer: to hide them would
        be to start it broken.
        """
        asked = asked_cards(spec)
        if asked.objection or not identity.namespace or not identity.pod:
            return False
        if not asked.names and not self._devices(spec, ()):
            return False  # nearly every container: nothing to vouch for
        key = ContainerKey(
            namespace=identity.namespace, pod=identity.pod, container=identity.container_name
        )
        seconds = min(seconds, _LONGEST_SECONDS)
        return await self._ask(key, identity.pod_uid, asked, spec, seconds)

    async def _ask(
        self, key: ContainerKey, pod_uid: str, asked: Asked, spec: Spec, seconds: float
    ) -> bool:
        deadline = time.monotonic() + seconds
        pause = _PAUSE_SECONDS
        while True:
            failure = None
            try:
                listed = await self._list(time.monotonic())
            except KubeletError as error:
                failure = error
            else:
                several = listed.get(key, [])
                if len(several) == 1:
                    return _noted(key, self._objection(several[0], asked, spec))
                if several:  # whose cards are whose is not known until the earlier one is gone
                    failure = KubeletError("it lists two pods of this name")
                elif any((each.namespace, each.pod) == (key.namespace, key.pod) for each in listed):
                    try:  # an ordinary init container, which PodResources leaves out
                        devices = await self._kubelet.recorded_devices(pod_uid, key.container)
                    except KubeletError as error:
                        failure = error
                    else:
                        return _noted(key, self._objection(devices, asked, spec))
            left = deadline - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
            pause *= 2
        if failure is not None:
            raise RefusedError(
                f"the node agent cannot ask the kubelet whose its GPUs are ({failure})",
                "see that the kubelet runs; this container is then started again",
            )
        return _noted(key, "the kubelet does not list its pod")

    async def _list(self, not_before: float) -> Mapping[ContainerKey, list[Devices]]:
        """Return the answer to a question that was asked at `not_before` or later.

        A failure is shared like an answer: whoever waited for it need not wait for another one.
        """
        async with self._turn:
            if self._asked_at < not_before:
                asked_at = time.monotonic()
                try:
                    self._answer = await self._kubelet.devices_of_containers(_CALL_SECONDS)
                except KubeletError as error:
                    self._answer = error
                self._asked_at = asked_at
            if isinstance(self._answer, KubeletError):
                raise KubeletError(str(self._answer))
            return self._answer

    def _objection(self, devices: Devices, asked: Asked, spec: Spec) -> str:
        """Return why these devices do not cover what the spec opens; empty when they do."""
        given = whole_cards(devices, self._settings.whole_card_resources, self._own)
        by_name = cards_by_name(self._inventory.cards, indices_moved=self._inventory.indices_moved)
        objection = contradiction(asked, given, by_name)
        if objection:
            return objection
        others = self._devices(spec, [by_name[name] for name in given])
        return others[0] if others else ""

    def _devices(self, spec: Spec, given: Collection[CardFacts]) -> list[str]:
        """Return a sentence for each way to a GPU in the spec that is not one of `given`."""
        return gpu_devices(
            spec,
            majors=self._host.majors(),
            keep=self._host.numbers_of(given),
            drm=self._host.drm_numbers(),
        )


def _noted(key: ContainerKey, objection: str) -> bool:
    if objection:
        logger.info(
            "nobody vouches for a container that names GPUs",
            extra={
                "container": f"{key.namespace}/{key.pod}/{key.container}",
                "reason": objection,
            },
        )
    return not objection
