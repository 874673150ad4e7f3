# SPDX-License-Identifier: Apache-2.0
"""Keeps this node's resources registered with the kubelet, whatever becomes of the kubelet.

A kubelet that starts removes every plugin's socket and forgets every plugin. It may be away for
hours, be replaced in the middle of a registration, or drop a plugin without a word. So nothing is
believed but what is seen: its socket is the one we registered at, ours is still there, and it holds
the stream of our slots open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.device_plugin.listing import CardSlots, Listing, is_slot, listing, slots_of
from runtime_shim.device_plugin.resources import Resource
from runtime_shim.device_plugin.server import PluginServer
from runtime_shim.inotify import watching
from runtime_shim.kubelet import Devices, Kubelet, KubeletError
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 5.0
# From the kubelet's "yes" to its stream; a kubelet that starts has other things to do.
_PATIENCE_SECONDS: Final = 20.0

_SOCKETS = "vgpu-"

_SocketIdentity = tuple[int, int, int]


class RivalError(KubeletError):
    """Another device plugin serves a resource that this node is to serve."""


@dataclass
class _Plugin:
    """One resource on its way to the kubelet."""

    resource: Resource
    slots: tuple[CardSlots, ...] | None = None
    listing: Listing = field(default_factory=lambda: listing(()))
    server: PluginServer | None = None
    registered_at: _SocketIdentity | None = None
    """The kubelet's socket that took it; None: no kubelet has."""
    registered_since: float = 0.0
    has_rival: bool = False
    """Another plugin served it when the kubelet was asked last. What only fails for a moment is no
    such thing: pods that run on the node would lose their cards to nobody."""
    trouble: str = ""

    def is_registered(self, kubelet: _SocketIdentity) -> bool:
        """Tell whether this kubelet knows the plugin, as far as can be seen."""
        if self.server is None or self.registered_at != kubelet or not self.server.socket.exists():
            return False
        waited = time.monotonic() - self.registered_since
        return self.server.heard or waited < _PATIENCE_SECONDS


class DevicePlugins:
    """All resources of this node. Lives on the event loop."""

    def __init__(
        self,
        resources: Sequence[Resource],
        kubelet: Kubelet,
        cards: Callable[[], Sequence[pb.Card]],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when there is news of `served`."""
        self._changed = changed
        self._plugins = [_Plugin(resource) for resource in resources]
        self._kubelet = kubelet
        self._cards = cards
        self._wake = asyncio.Event()
        self._generation = 0

    def look(self) -> None:
        """Tell the kubelet at once what has become of the cards."""
        self._wake.set()

    def registered(self) -> dict[str, bool]:
        """Return by resource whether the kubelet listens to it."""
        return {
            each.resource.name: each.server is not None and each.server.heard
            for each in self._plugins
        }

    def served(self) -> list[str]:
        """Return the resources of this node that are ours, so far as no other plugin was seen."""
        return [each.resource.name for each in self._plugins if not each.has_rival]

    async def run(self) -> None:
        """Serve until cancelled."""
        if not self._plugins:
            return
        folder = self._kubelet.plugins
        await in_thread(partial(_remove_old_sockets, folder))
        try:
            with watching(folder, self._wake.set) as renew:
                while True:
                    self._wake.clear()
                    renew()
                    if not await self._offer():
                        # Not woken meanwhile: with each try a socket of ours comes and goes.
                        await asyncio.sleep(_RETRY_SECONDS)
                        continue
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._wake.wait()
        finally:
            for plugin in self._plugins:
                if plugin.server is not None:
                    await plugin.server.stop()

    async def _offer(self) -> bool:
        """Tell the kubelet what it does not know; return whether that has worked."""
        try:
            await self._list()
            return await self._register()
        except Exception:  # an odd kubelet must not end the agent
            logger.exception("offering resources to the kubelet failed")
            return False

    async def _list(self) -> None:
        """Name the slots of cards that have changed; in a thread, since there may be many."""
        cards = self._cards()
        for plugin in self._plugins:
            slots = slots_of(plugin.resource, cards)
            if slots == plugin.slots:
                continue
            plugin.slots = slots
            plugin.listing = await in_thread(partial(listing, slots))
            if plugin.server is not None:
                plugin.server.offer(plugin.listing.message)
            extra = {"resource": plugin.resource.name, "slots": plugin.listing.offered}
            if plugin.listing.left_out:
                logger.error(
                    "more slots than the kubelet can be told; use a coarser unit",
                    extra={**extra, "left_out": plugin.listing.left_out},
                )
            else:
                logger.info("slots of this node", extra=extra)

    async def _register(self) -> bool:
        """Register what the kubelet does not know, if there is one; return whether that worked."""
        kubelet = _identity(self._kubelet.registration)
        if kubelet is None:
            return True
        missing = [each for each in self._plugins if not each.is_registered(kubelet)]
        if not missing:
            return True
        devices = await self._devices()
        served = self.served()
        for plugin in missing:
            try:
                _check_rival(plugin.resource.name, devices)
                await self._register_one(plugin, kubelet)
            except (KubeletError, OSError) as error:
                if str(error) != plugin.trouble:
                    logger.error(
                        "resource not registered",
                        extra={"resource": plugin.resource.name, "reason": str(error)},
                    )
                plugin.trouble = str(error)
                # A kubelet that is away has not said that the other one has gone.
                plugin.has_rival = plugin.has_rival or isinstance(error, RivalError)
            else:
                plugin.trouble, plugin.has_rival = "", False
        if self.served() != served:
            self._changed()
        return not any(plugin.trouble for plugin in missing)

    async def _register_one(self, plugin: _Plugin, kubelet: _SocketIdentity) -> None:
        if plugin.server is not None:
            server, plugin.server = plugin.server, None
            await server.stop()
        plugin.registered_at = None
        self._generation += 1
        name = plugin.resource.name.replace("/", "_")
        endpoint = f"{_SOCKETS}{name}.{self._generation}.sock"
        server = PluginServer(plugin.resource.name, self._kubelet.plugins / endpoint)
        server.offer(plugin.listing.message)
        plugin.server = server
        await server.start()
        await self._kubelet.register(plugin.resource.name, endpoint, _CALL_SECONDS)
        # The socket that was seen before: another kubelet since then shows at the next look.
        plugin.registered_at = kubelet
        plugin.registered_since = time.monotonic()
        logger.info("resource registered", extra={"resource": plugin.resource.name})

    async def _devices(self) -> Devices:
        try:
            return await self._kubelet.devices(_CALL_SECONDS)
        except KubeletError as error:  # an old kubelet, or one that has just begun
            logger.debug("devices of other plugins not known", extra={"reason": str(error)})
            return {}


def _check_rival(resource_name: str, devices: Devices) -> None:
    """Raise RivalError where another plugin serves the resource: two would sell cards twice."""
    others = sorted(name for name in devices.get(resource_name, ()) if not is_slot(name))
    if others:
        raise RivalError(
            f"another device plugin serves {resource_name} ({others[0]!r} is one of its devices);"
            " remove it from this node, or this resource from device_plugin.dialects"
        )


def _identity(socket: Path) -> _SocketIdentity | None:
    """Return what tells one kubelet's socket from that of the next."""
    try:
        status = os.stat(socket)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _remove_old_sockets(folder: Path) -> None:
    """Remove what an earlier agent left that was killed."""
    for socket in folder.glob(f"{_SOCKETS}*.sock"):
        try:
            socket.unlink(missing_ok=True)
        except OSError as error:  # none of ours: each has a name that was never used
            logger.warning("not removed", extra={"path": str(socket), "reason": str(error)})
