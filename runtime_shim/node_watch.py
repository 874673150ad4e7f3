# SPDX-License-Identifier: Apache-2.0
"""What the cluster's scheduler cache says that this node holds, and how a create asks for it.

The cache tells this node of every change, so that nearly all creates ask nobody. What was told
counts as long as the cache is heard; later it is asked, and when it cannot be reached, a container
that ran here before starts from its stored answer.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import AnswerStore
from runtime_shim.config import Config
from runtime_shim.counters import Counters
from runtime_shim.errors import CacheUnreachableError, NotYetKnownError
from runtime_shim.identity import Identity, IdentityError

logger = logging.getLogger(__name__)


# Far more than what ends while one container is created.
_REMOVED = 1024


class Resolver(Protocol):
    """The part of the scheduler cache that knows pods."""

    async def resolve(self, request: pb.ResolveRequest, seconds: float) -> pb.Allocation:
        """Return a container's allocation; tries until `seconds` are over.

        Raises RefusedError or CacheUnreachableError.
        """


class NodeAnswers:
    """The allocations of this node as the cache told them. Lives on the event loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, pb.Allocation] = {}
        self._by_container: dict[tuple[str, str], str] = {}
        self._removed: OrderedDict[str, None] = OrderedDict()
        self._told = False
        self.snapshots = 0
        """How many there have been."""

    @property
    def live(self) -> bool:
        """Whether this is everything that the cache knows, as far as anybody can tell."""
        return self._told

    def replace(self, allocations: Iterable[pb.Allocation]) -> None:
        """Take a snapshot: what is not in it is gone."""
        self._by_id.clear()
        self._by_container.clear()
        self._removed.clear()
        for allocation in allocations:
            self.upsert(allocation)
        self._told = True
        self.snapshots += 1

    def upsert(self, allocation: pb.Allocation) -> None:
        """Take an allocation that is new or has changed."""
        self._drop(allocation.allocation_id)
        self._removed.pop(allocation.allocation_id, None)
        self._by_id[allocation.allocation_id] = allocation
        self._by_container[_container_key(allocation)] = allocation.allocation_id

    def remove(self, allocation_id: str) -> None:
        """Take the end of an allocation."""
        self._drop(allocation_id)
        self._removed[allocation_id] = None
        while len(self._removed) > _REMOVED:
            self._removed.popitem(last=False)

    def was_removed(self, allocation_id: str) -> bool:
        """Tell whether the end of an allocation was told since the last snapshot."""
        return allocation_id in self._removed

    def _drop(self, allocation_id: str) -> None:
        known = self._by_id.pop(allocation_id, None)
        if known is not None and self._by_container.get(_container_key(known)) == allocation_id:
            del self._by_container[_container_key(known)]

    def lost(self) -> None:
        """Note that the stream has ended: from now on there may be changes."""
        self._told = False

    def get(self, allocation_id: str) -> pb.Allocation | None:
        """Return what was told last of an allocation, heard since or not."""
        return self._by_id.get(allocation_id)

    def of(self, identity: Identity) -> pb.Allocation | None:
        """Return what was told last of a container."""
        key = (identity.pod_uid, identity.container_name)
        return self._by_id.get(self._by_container.get(key, ""))

    def all(self) -> list[pb.Allocation]:
        """Return everything that was told."""
        return list(self._by_id.values())


class PodLookup:
    """Finds the allocation of a pod's container, and proves that it is its own."""

    def __init__(
        self,
        config: Config,
        node_name: str,
        answers: NodeAnswers,
        cache: Resolver,
        store: AnswerStore,
        counters: Counters,
    ) -> None:
        self._config = config
        self._node_name = node_name
        self._answers = answers
        self._cache = cache
        self._store = store
        self._counters = counters
        self._unconfirmed: dict[str, pb.Allocation] = {}

    def known(self, identity: Identity) -> bool:
        """Tell whether a container holds something, without asking anybody."""
        if self._answers.live:
            return self._answers.of(identity) is not None
        return self._answers.of(identity) is not None or self._stored(identity, "") is not None

    async def find(
        self, identity: Identity, container_uuid: str, container_id: str, seconds: float
    ) -> pb.Allocation:
        """Return the allocation of a container.

        `container_uuid`: what admission gave it; empty: it is known by its pod and name.
        Raises RefusedError or CacheUnreachableError.
        """
        told = self._told(identity, container_uuid)
        allocation = told or await self._ask(identity, container_uuid, container_id, seconds)
        self._check(allocation, identity, container_uuid)
        if not container_uuid:
            self._counters.resolved_by_identity += 1
            logger.warning(
                "container resolved by identity: it has no VGPU_CONTAINER_UUID",
                extra={
                    "allocation_id": allocation.allocation_id,
                    "pod_uid": identity.pod_uid,
                    "container": identity.container_name,
                },
            )
        return allocation

    @property
    def snapshots(self) -> int:
        """How many snapshots the cache has sent."""
        return self._answers.snapshots

    def is_gone(self, allocation_id: str, snapshots: int) -> bool:
        """Tell whether the cache has taken an allocation back: it said so, or its snapshot lacks it
        that is later than so many.
        """
        answers = self._answers
        lacking = answers.live and answers.get(allocation_id) is None
        return answers.was_removed(allocation_id) or (answers.snapshots > snapshots and lacking)

    def latest(self, allocation: pb.Allocation) -> pb.Allocation:
        """Return an allocation as the cache tells it now, which may be after it was asked for."""
        told = self._answers.get(allocation.allocation_id) if self._answers.live else None
        return told or allocation

    def confirm(self) -> None:
        """Compare what started without the cache to what it says now that it is back."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for allocation_id, given in unconfirmed.items():
            said = self._answers.get(allocation_id)
            extra = {"allocation_id": allocation_id, "pod_uid": given.pod.uid}
            if said is not None and list(said.slices) == list(given.slices):
                logger.info("start from a stored answer confirmed", extra=extra)
            else:
                logger.error(
                    "container started from a stored answer that the cache does not confirm",
                    extra={**extra, "reason": "changed" if said is not None else "unknown there"},
                )

    def _told(self, identity: Identity, container_uuid: str) -> pb.Allocation | None:
        if not self._answers.live:
            return None
        if container_uuid:
            return self._answers.get(container_uuid)
        return self._answers.of(identity)

    async def _ask(
        self, identity: Identity, container_uuid: str, container_id: str, seconds: float
    ) -> pb.Allocation:
        stored = None if self._answers.live else self._stored(identity, container_uuid)
        cache = self._config.cache
        if stored is not None:
            seconds = min(seconds, cache.try_seconds)
        request = pb.ResolveRequest(
            container_uuid=container_uuid,
            node_name=self._node_name,
            pod=pb.PodIdentity(
                uid=identity.pod_uid,
                namespace=identity.namespace,
                name=identity.pod,
                container_name=identity.container_name,
            ),
            engine_container_id=container_id,
        )
        try:
            return await self._cache.resolve(request, seconds)
        except NotYetKnownError:
            # It may have come by the stream while it was asked for.
            if (told := self._told(identity, container_uuid)) is not None:
                return told
            raise
        except CacheUnreachableError as error:
            if stored is None:
                raise
            self._counters.stored_answers += 1
            self._unconfirmed[stored.allocation_id] = stored
            logger.warning(
                "cache unreachable, container starts from its stored answer",
                extra={"allocation_id": stored.allocation_id, "reason": str(error)},
            )
            return stored

    def _stored(self, identity: Identity, container_uuid: str) -> pb.Allocation | None:
        """Return the answer of a container that ran here before."""
        for answer in self._store.all():
            allocation = answer.allocation
            same = _container_key(allocation) == (identity.pod_uid, identity.container_name)
            if same and container_uuid in ("", allocation.allocation_id):
                return allocation
        return None

    def _check(self, allocation: pb.Allocation, identity: Identity, container_uuid: str) -> None:
        """Raise IdentityError unless an allocation is this very container's, on this very node."""
        owner = allocation.pod
        if container_uuid and allocation.allocation_id != container_uuid:
            raise IdentityError(
                f"the scheduler cache answered for another container than {container_uuid}",
                "install the same version of vgpu's node agent and scheduler cache",
            )
        if (owner.uid, owner.container_name) != (identity.pod_uid, identity.container_name):
            logger.warning(
                "container with the UUID of another one refused",
                extra={
                    "allocation_id": allocation.allocation_id,
                    "pod_uid": identity.pod_uid,
                    "container": identity.container_name,
                    "owner_pod_uid": owner.uid,
                    "owner_container": owner.container_name,
                },
            )
            raise IdentityError(  # whose it is, is not for its tenant to know
                "its VGPU_CONTAINER_UUID belongs to another container",
                "no container can use another one's; remove the variable from the pod",
            )
        names = ((owner.namespace, identity.namespace), (owner.name, identity.pod))
        if any(said and seen and said != seen for said, seen in names):
            raise IdentityError(
                f"its allocation is for {owner.namespace}/{owner.name}, and it is {identity}",
                "see who made this container",
            )
        if allocation.node_name != self._node_name:
            raise IdentityError(
                f"its allocation is for node {allocation.node_name}, and this is {self._node_name}",
                "see that the pod is bound to this node",
            )


def _container_key(allocation: pb.Allocation) -> tuple[str, str]:
    return allocation.pod.uid, allocation.pod.container_name
