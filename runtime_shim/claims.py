# SPDX-License-Identifier: Apache-2.0
"""The claims of this node, observed: which containers run, which are stopped, which are gone.

No engine tells the agent anything after `create`, so it looks by itself: at start-up, each second,
when a process ends, and for a create that would otherwise take a stopped container's slice or find
no room, so that `docker rm` frees a slice at once. Lives on the event loop; what may block runs in
a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import Answer, AnswerStore, decode_answer, encode_answer
from runtime_shim.errors import RefusedError, RuntimeShimError
from runtime_shim.life import (
    NO_PROCESS_SECONDS,
    RELEASED,
    RUNNING,
    Process,
    Sighting,
    next_state,
)
from runtime_shim.node_watch import NodeAnswers
from runtime_shim.processes import (
    Init,
    InitFacts,
    Record,
    alive,
    boot_id,
    boottime_ns,
    cgroup_populated,
    find_init,
    hold_init,
    holders,
    runtime_record,
)
from runtime_shim.region import Regions, check_allocation
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

PASS_SECONDS = 1.0


class Releaser(Protocol):
    """The part of the scheduler cache that frees claims."""

    async def release(self, allocation_id: str) -> None:
        """Free a claim; RuntimeShimError when that is not certain."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """An allocation that holds slices of this node, for a display."""

    allocation: pb.Allocation
    container_id: str
    """Empty when its container was never created here."""
    running: bool
    awaited: bool = False
    """Its container has not started yet."""


@dataclass
class _Tracked:
    """A claim under observation. The descriptors are closed by `Claims._retire` alone."""

    answer: Answer
    launcher: int | None = None
    """A pidfd; the low-level runtime runs under the same PID. None: an earlier agent had it."""
    init: Init | None = None

    def pidfds(self) -> list[int]:
        return [
            fd for fd in (self.launcher, self.init.pidfd if self.init else None) if fd is not None
        ]


@dataclass
class _Creation:
    """Creates of one key, which wait for each other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass
class _Orphan:
    """A claim of this node that the cache knows and the answer store does not."""

    allocation: pb.Allocation
    first_seen: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[str, str]:
        return self.allocation.claim.runtime_root, self.allocation.claim.container_id


class Claims:
    """All claims of the node."""

    def __init__(
        self,
        store: AnswerStore,
        regions: Regions,
        cache: Releaser,
        changed: Callable[[], None],
        pods: NodeAnswers | None = None,
        *,
        card_bytes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`card_bytes`: the whole memory of each card of this node. `pods`: Kubernetes mode. Who
        holds what is then the cluster's to say: a container that ended keeps its answer for as long
        as the cache does, and nothing is released from here.
        """
        self._pods = pods
        self._store = store
        self._regions = regions
        self._cache = cache
        self._changed = changed
        self._card_bytes = card_bytes
        self._boot_id = boot_id()
        self._tracked: dict[str, _Tracked] = {}
        self._orphans: dict[str, _Orphan] = {}
        self._creating: dict[tuple[str, str], _Creation] = {}
        self._promised: dict[str, pb.Allocation] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._retired: list[int] = []
        self._wake = asyncio.Event()
        self._ended: set[int] = set()
        self._freed: list[str] = []
        self._unkept: set[str] = set()
        self._pass_lock = asyncio.Lock()
        self._next_pass: asyncio.Task[None] | None = None

    # What others ask

    def reports(self) -> list[pb.Claim]:
        """Return every claim with its state, as the cache wants them reported.

        In Kubernetes mode those that run or are just being created: what ended is no claim there.
        """
        claims = {
            tracked.answer.allocation_id: pb.Claim(
                allocation=tracked.answer.allocation,
                state=tracked.answer.state,
                since_unix_ns=tracked.answer.since_unix_ns,
            )
            for tracked in self._tracked.values()
            if self._pods is None or tracked.answer.state == RUNNING
        }
        for allocation_id, allocation in self._promised.items():
            claim = pb.Claim(allocation=allocation, state=RUNNING, since_unix_ns=time.time_ns())
            claims.setdefault(allocation_id, claim)
        return list(claims.values())

    def running(self) -> list[tuple[Answer, Init | None]]:
        """Return the running containers, each with its init as far as it is known."""
        return [
            (tracked.answer, tracked.init)
            for tracked in self._tracked.values()
            if tracked.answer.state == RUNNING
        ]

    def held(self) -> list[Held]:
        """Return every allocation that holds slices, of running containers and of others."""
        tracked = [
            Held(
                allocation=each.answer.allocation,
                container_id=each.answer.container_id,
                running=each.answer.state == RUNNING,
            )
            for each in self._tracked.values()
            if each.answer.state != RELEASED
        ]
        return (
            tracked
            + [
                Held(
                    allocation=each.allocation,
                    container_id=each.allocation.claim.container_id,
                    running=False,
                )
                for each in self._orphans.values()
            ]
            + [
                Held(allocation=each, container_id="", running=False, awaited=True)
                for each in (self._pods.all() if self._pods is not None else ())
                if each.slices and each.allocation_id not in self._tracked
            ]
        )

    def has_live_init(self, key: tuple[str, str]) -> bool:
        """Tell whether a container of this key runs at this moment."""
        return any(
            tracked.init is not None and alive([tracked.init.pidfd])
            for tracked in self._of_key(key)
        )

    def other_that_runs(self, allocation_id: str, container_id: str) -> str:
        """Return the id of another container that has this allocation now; empty without one."""
        tracked = self._tracked.get(allocation_id)
        if tracked is None:
            return ""
        own = tracked.answer.container_id == container_id
        # A create under way runs under its launcher's pid; of the same container it is ours.
        fds = tracked.pidfds() if not own else [tracked.init.pidfd] if tracked.init else []
        return tracked.answer.container_id if alive(fds) else ""

    async def look_at_one(self, allocation_id: str) -> None:
        """Look at one container before another one takes its place."""
        tracked = self._tracked.get(allocation_id)
        if tracked is not None:
            for seen in _look_at_all([tracked], self._boot_id, self._regions.folder):
                await self._apply(*seen)

    def is_running(self, allocation_id: str) -> bool:
        """Tell whether a claim is running, as far as it was seen."""
        tracked = self._tracked.get(allocation_id)
        return tracked is not None and tracked.answer.state == RUNNING

    @contextlib.asynccontextmanager
    async def creating(self, key: tuple[str, str]) -> AsyncIterator[None]:
        """Keep claims of `key` as they are while one container of it is created, one at a time."""
        creation = self._creating.setdefault(key, _Creation())
        creation.users += 1
        try:
            async with creation.lock:
                ids = {tracked.answer.allocation_id for tracked in self._of_key(key)}
                ids.update(each for each, orphan in self._orphans.items() if orphan.key == key)
                if releasing := [self._releasing[each] for each in ids & self._releasing.keys()]:
                    await asyncio.wait(releasing)
                yield
        finally:
            creation.users -= 1
            if creation.users == 0:
                del self._creating[key]

    @contextlib.asynccontextmanager
    async def creating_in_pod(self, allocation: pb.Allocation) -> AsyncIterator[None]:
        """Keep a pod's allocation while a container of it is created, one at a time.

        It is reported meanwhile: the cluster must not give away what was just resolved.
        """
        async with self.creating(pod_key(allocation.allocation_id)):
            self._promised[allocation.allocation_id] = allocation
            try:
                yield
            finally:
                del self._promised[allocation.allocation_id]

    def started(self, answer: Answer, launcher_pidfd: int) -> None:
        """Observe the container of `answer`; the store has it already. Duplicates the pidfd."""
        launcher = os.dup(launcher_pidfd)
        self._track(_Tracked(answer=answer, launcher=launcher))
        asyncio.get_running_loop().add_reader(launcher, self._process_ended, launcher)
        self._orphans.pop(answer.allocation_id, None)
        self._changed()

    async def forget(self, allocation_ids: Iterable[str]) -> None:
        """Drop claims that are over; durable when this returns."""
        gone = list(allocation_ids)
        for allocation_id in gone:
            self._untrack(allocation_id)
            self._orphans.pop(allocation_id, None)
        if not gone:
            return
        async with contextlib.AsyncExitStack() as stack:
            if self._pods is not None:
                # A create that begins meanwhile makes its files after these are gone.
                for allocation_id in gone:
                    await stack.enter_async_context(self.creating(pod_key(allocation_id)))
            await in_thread(partial(self._erase, gone))

    # What the cache says

    async def replace_all(self, allocations: Iterable[pb.Allocation]) -> None:
        """Take a snapshot: claims that are not in it go, unless their container runs."""
        known = {allocation.allocation_id: allocation for allocation in allocations}
        gone = [
            tracked.answer.allocation_id
            for tracked in self._tracked.values()
            if tracked.answer.allocation_id not in known and self._may_drop(tracked)
        ]
        self._orphans = {key: value for key, value in self._orphans.items() if key in known}
        await self.forget(gone)
        for allocation in known.values():
            await self.upsert(allocation)
        await self._sweep()

    async def upsert(self, allocation: pb.Allocation) -> None:
        """Take a claim that is new or has changed."""
        tracked = self._tracked.get(allocation.allocation_id)
        if tracked is None:
            if allocation.HasField("claim"):
                self._orphans.setdefault(allocation.allocation_id, _Orphan(allocation))
            return
        if tracked.answer.allocation == allocation:
            return
        try:
            check_allocation(allocation, self._card_bytes())
        except RefusedError as error:
            logger.error(
                "change of a slice not taken, what was promised holds on",
                extra={"allocation_id": allocation.allocation_id, "reason": error.reason},
            )
            return
        tracked.answer = replace(tracked.answer, allocation=allocation)
        region = self._regions.get(allocation.allocation_id)
        if region is not None:
            region.update(allocation)
            with contextlib.suppress(OSError):  # an older record is better than none
                self._regions.record(allocation.allocation_id, encode_answer(tracked.answer))
        await self._keep(tracked.answer)

    async def drop(self, allocation_id: str) -> None:
        """Take the end of a claim; a running container keeps its slice and is reported again."""
        self._orphans.pop(allocation_id, None)
        tracked = self._tracked.get(allocation_id)
        if tracked is not None and self._may_drop(tracked):
            await self.forget([allocation_id])

    # Observation

    async def adopt(self) -> None:
        """Take over what an earlier agent stored, and look at all of it once."""
        for answer in await in_thread(self._restored):
            await self._keep(answer)
            self._track(_Tracked(answer=answer))
        for answer in self._store.all():
            self._track(_Tracked(answer=answer))
        await self._look()
        for answer, _ in self.running():
            if self._regions.adopt(answer.allocation) is None and not answer.allocation.whole_cards:
                logger.error(
                    "limits file of a running container is missing",
                    extra={"allocation_id": answer.allocation_id},
                )

    def _restored(self) -> list[Answer]:
        """Return the answers that are no longer in the store, from the containers' own folders."""
        answers = []
        for name, content in self._regions.records().items():
            if self._store.get(name) is not None:
                continue
            try:
                answer = decode_answer(content)
            except ValueError as error:
                extra = {"allocation_id": name, "reason": str(error)}
                logger.warning("record of a container is not readable", extra=extra)
                continue
            if answer.allocation_id == name and answer.boot_id == self._boot_id:
                logger.warning("answer restored", extra={"allocation_id": name})
                answers.append(answer)
        return answers

    async def _sweep(self) -> None:
        """Remove the files of containers that neither the cache nor this node knows any more."""
        known = {*self._tracked, *self._orphans, *self._freed}
        leftovers = self._regions.names() - known
        if leftovers:
            held = await in_thread(partial(holders, self._regions.folder))
            for name in sorted(leftovers & held.keys()):
                logger.error("unknown container with a slice runs", extra={"allocation_id": name})
            for name in sorted(leftovers - held.keys()):
                await self._sweep_one(name)

    async def _sweep_one(self, name: str) -> None:
        """Remove a leftover, unless a container has it again since it was found."""
        if pod_key(name) in self._creating:
            return
        async with self.creating(pod_key(name)):
            if name not in self._tracked and await in_thread(partial(self._remove_files, name)):
                logger.info("leftover removed", extra={"allocation_id": name})

    async def run(self) -> None:
        """Look each second at all, and at once where a process has ended, until cancelled."""
        next_pass = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_pass - time.monotonic()):
                    await self._wake.wait()
            self._wake.clear()
            ended, self._ended = self._ended, set()
            try:
                if time.monotonic() >= next_pass:
                    next_pass = time.monotonic() + PASS_SECONDS
                    await self._look()
                else:
                    await self._look_at(
                        [t for t in self._tracked.values() if ended & set(t.pidfds())]
                    )
                    await self._erase_freed()
            except Exception:  # one bad look must not end the observation
                logger.exception("looking at the claims failed")

    async def look(self) -> None:
        """Look at all, and wait until what is over is released, or cannot be now."""
        await self._look()
        await self._released_now()
        await self._erase_freed()

    async def _look(self) -> None:
        """Make one whole pass that starts after this call; callers share the next one."""
        if self._next_pass is None:
            self._next_pass = asyncio.create_task(self._pass())
        await asyncio.shield(self._next_pass)

    async def look_before_create(self, key: tuple[str, str]) -> None:
        """Look at the container itself before a create of `key` asks for a slice.

        The others wait for the next pass, or until there is no room: to look at them would cost
        more than the create.
        """
        own = [
            each for each in _without_init(list(self._tracked.values())) if each.answer.key == key
        ]
        if own:
            # Some reads of /run: a thread, and a pass that holds the lock, would take longer.
            for seen in _look_at_all(own, self._boot_id, self._regions.folder):
                await self._apply(*seen)

    async def free_removed(self, key: tuple[str, str]) -> None:
        """Free what containers held that were removed a moment ago, for a create of `key`."""
        await self._free_removed(_without_init(list(self._tracked.values())), key)

    def close(self) -> None:
        """Give every descriptor back; containers, files and answers stay."""
        for task in self._releasing.values():
            task.cancel()
        for tracked in self._tracked.values():
            self._retire(tracked)
        self._tracked.clear()
        self._close_retired()

    async def _pass(self) -> None:
        async with self._pass_lock:
            self._next_pass = None
            self._close_retired()
            # Nearly all containers live, and one poll says so without a thread.
            await self._settle(_without_init(list(self._tracked.values())))
            await self._look_at_orphans()
            self._release(self._released())
            await self._forget_pods()
            await self._keep_rest()
            await self._erase_freed()

    async def _forget_pods(self) -> None:
        """Drop ended containers that the cache took back while they ran."""
        if self._pods is not None and self._pods.live:
            await self.forget(
                [
                    tracked.answer.allocation_id
                    for tracked in self._tracked.values()
                    if self._may_drop(tracked)
                    and self._pods.get(tracked.answer.allocation_id) is None
                ]
            )

    async def _free_removed(self, doubtful: list[_Tracked], key: tuple[str, str]) -> None:
        await self._look_at(await in_thread(partial(_urgent, doubtful, key)))
        await self._released_now()

    async def _look_at(self, entries: list[_Tracked]) -> None:
        if entries:
            async with self._pass_lock:
                await self._settle(entries)
                self._release(self._released())

    async def _released_now(self) -> None:
        """Wait for the releases under way; a cache that hangs holds up nobody else."""
        if self._releasing:
            await asyncio.wait(set(self._releasing.values()))

    async def _settle(self, entries: list[_Tracked]) -> None:
        if entries:
            for seen in await in_thread(
                partial(_look_at_all, entries, self._boot_id, self._regions.folder)
            ):
                await self._apply(*seen)

    async def _apply(self, tracked: _Tracked, found: Init | None, sighting: Sighting) -> None:
        answer = tracked.answer
        if self._tracked.get(answer.allocation_id) is not tracked:
            if found is not None:
                found.close()
            return
        if found is not None:
            if tracked.init is not None:
                self._retired.append(tracked.init.pidfd)
            tracked.init = found
            asyncio.get_running_loop().add_reader(found.pidfd, self._process_ended, found.pidfd)
            if not answer.init_seen:
                answer = tracked.answer = replace(answer, init_seen=True)
                await self._keep(answer)
        if self._is_being_created(answer):
            return
        if self._pods is not None:  # the engine's folders of a pod's container say nothing
            sighting = replace(sighting, engine_knows=True)
        state = next_state(answer.state, sighting)
        if state == answer.state:
            return
        tracked.answer = answer.in_state(state, time.time_ns())
        logger.info(
            "claim changed",
            extra={
                "allocation_id": answer.allocation_id,
                "container_id": answer.container_id,
                "state": pb.ClaimState.Name(state),
            },
        )
        await self._keep(tracked.answer)
        self._changed()

    def _released(self) -> list[str]:
        if self._pods is not None:
            return []
        return [
            tracked.answer.allocation_id
            for tracked in self._tracked.values()
            if tracked.answer.state == RELEASED and tracked.answer.key not in self._creating
        ]

    def _release(self, allocation_ids: Iterable[str]) -> None:
        """Free claims at the cache, in the background; what fails stays for another try.

        What is freed is erased from the disk by `_erase_freed`: a create need not wait for that.
        """
        for allocation_id in allocation_ids:
            if allocation_id not in self._releasing:
                task = asyncio.create_task(self._release_one(allocation_id))
                self._releasing[allocation_id] = task

    async def _erase_freed(self) -> None:
        freed = list(self._freed)
        if freed:
            await in_thread(partial(self._erase, freed))
            self._freed = [each for each in self._freed if each not in freed]

    async def _release_one(self, allocation_id: str) -> None:
        try:
            await self._cache.release(allocation_id)
        except RuntimeShimError as error:
            extra = {"allocation_id": allocation_id, "reason": str(error)}
            logger.warning("claim not released yet", extra=extra)
        else:
            self._untrack(allocation_id)
            self._orphans.pop(allocation_id, None)
            self._freed.append(allocation_id)
            self._wake.set()  # to erase it
        finally:
            del self._releasing[allocation_id]

    async def _look_at_orphans(self) -> None:
        """Adopt orphans whose container runs; free the ones that have had no process for long.

        An answer is stored before its verdict is given, so a claim without one belongs to a create
        that failed, or to a store that was deleted.
        """
        for allocation_id, orphan in list(self._orphans.items()):
            key = orphan.key
            if allocation_id in self._tracked:
                self._orphans.pop(allocation_id, None)
                continue
            if key in self._creating:
                continue
            init = await in_thread(partial(self._find_orphan, orphan))
            if init is not None:
                await self._adopt_orphan(orphan, key, init)
            elif time.monotonic() - orphan.first_seen >= NO_PROCESS_SECONDS:
                self._release([allocation_id])

    async def _adopt_orphan(self, orphan: _Orphan, key: tuple[str, str], init: Init) -> None:
        answer = Answer(
            allocation=orphan.allocation,
            request=pb.AllocationRequest(),  # not known, so that it equals none
            runtime_root=key[0],
            container_id=key[1],
            bundle="",
            engine_directory="",
            pid_file="",
            boot_id=self._boot_id,
            init_seen=True,
            verdict_boottime_ns=0,
            state=RUNNING,
            since_unix_ns=time.time_ns(),
        )
        await self._keep(answer)
        self._track(_Tracked(answer=answer, init=init))
        self._regions.adopt(orphan.allocation)
        self._orphans.pop(answer.allocation_id, None)
        asyncio.get_running_loop().add_reader(init.pidfd, self._process_ended, init.pidfd)
        logger.warning(
            "running container without an answer adopted",
            extra={"allocation_id": answer.allocation_id, "container_id": key[1]},
        )

    def _find_orphan(self, orphan: _Orphan) -> Init | None:
        found = find_init(*orphan.key, pid_file="", not_before_ns=0)
        if found is None:
            found = _hold(holders(self._regions.folder).get(orphan.allocation.allocation_id))
        return found

    # Bookkeeping

    async def _keep(self, answer: Answer) -> None:
        """Store what was seen; where the disk cannot take it now, the next pass tries again."""
        try:
            await in_thread(partial(self._store.put, answer))
            self._unkept.discard(answer.allocation_id)
        except OSError as error:
            if answer.allocation_id not in self._unkept:
                extra = {"allocation_id": answer.allocation_id, "reason": str(error)}
                logger.error("answer not stored yet", extra=extra)
            self._unkept.add(answer.allocation_id)

    async def _keep_rest(self) -> None:
        for allocation_id in list(self._unkept):
            tracked = self._tracked.get(allocation_id)
            if tracked is None:
                self._unkept.discard(allocation_id)
            else:
                await self._keep(tracked.answer)

    def _of_key(self, key: tuple[str, str]) -> list[_Tracked]:
        return [tracked for tracked in self._tracked.values() if tracked.answer.key == key]

    def _may_drop(self, tracked: _Tracked) -> bool:
        return tracked.answer.state != RUNNING and not self._is_being_created(tracked.answer)

    def _is_being_created(self, answer: Answer) -> bool:
        return answer.key in self._creating or pod_key(answer.allocation_id) in self._creating

    def _track(self, tracked: _Tracked) -> None:
        self._untrack(tracked.answer.allocation_id)
        self._tracked[tracked.answer.allocation_id] = tracked

    def _untrack(self, allocation_id: str) -> None:
        tracked = self._tracked.pop(allocation_id, None)
        if tracked is not None:
            self._retire(tracked)

    def _retire(self, tracked: _Tracked) -> None:
        """Close a claim's descriptors once no pass in a thread can poll them any more."""
        loop = asyncio.get_running_loop()
        for pidfd in tracked.pidfds():
            loop.remove_reader(pidfd)
            self._retired.append(pidfd)

    def _close_retired(self) -> None:
        for pidfd in self._retired:
            os.close(pidfd)
        self._retired.clear()

    def _process_ended(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        self._ended.add(pidfd)
        self._wake.set()

    def _erase(self, allocation_ids: list[str]) -> None:
        self._store.remove(*allocation_ids)
        for allocation_id in allocation_ids:
            self._remove_files(allocation_id)

    def _remove_files(self, allocation_id: str) -> bool:
        """Remove a container's files; those that stay, for a mount in them, hold up nothing else.

        The next snapshot finds them left over.
        """
        try:
            self._regions.remove(allocation_id)
        except OSError as error:
            extra = {"allocation_id": allocation_id, "reason": str(error)}
            logger.error("files of a container not removed", extra=extra)
            return False
        return True


def pod_key(allocation_id: str) -> tuple[str, str]:
    """Return the key under which creates of a pod's container wait for each other.

    Each of its starts has another id, so that the id is none.
    """
    return "pod", allocation_id


_Seen = tuple[_Tracked, Init | None, Sighting]


def _without_init(entries: list[_Tracked]) -> list[_Tracked]:
    """Return the claims that are not running beyond doubt."""
    living = alive([each.init.pidfd for each in entries if each.init is not None])
    return [
        each
        for each in entries
        if each.init is None or each.init.pidfd not in living or each.answer.state != RUNNING
    ]


def _urgent(entries: list[_Tracked], key: tuple[str, str]) -> list[_Tracked]:
    return [
        each
        for each in entries
        if each.answer.key == key or not _exists(each.answer.engine_directory)
    ]


def _look_at_all(entries: list[_Tracked], this_boot: str, regions: Path) -> list[_Seen]:
    living = alive([pidfd for each in entries for pidfd in each.pidfds()])
    held = cache(partial(holders, regions))  # looks at every process: once, and only if it must be
    return [_look_at(each, living, this_boot, held) for each in entries]


def _look_at(
    tracked: _Tracked, living: set[int], this_boot: str, held: Callable[[], dict[str, int]]
) -> _Seen:
    """Return what is to be seen of one container, and its init if that is newly found."""
    answer = tracked.answer
    same_boot = answer.boot_id == this_boot
    found = None
    if same_boot and (tracked.init is None or tracked.init.pidfd not in living):
        found = find_init(
            answer.runtime_root,
            answer.container_id,
            answer.pid_file,
            answer.verdict_boottime_ns,
            answer.runtime_dir,
        )
    cgroup = tracked.init.cgroup if tracked.init is not None else None
    process = Process.ALIVE
    if not (
        any(pidfd in living for pidfd in tracked.pidfds())
        or found is not None
        or (cgroup is not None and cgroup_populated(cgroup))
    ):
        process = Process.GONE if answer.init_seen else Process.NEVER
        # Whoever was stopped once is looked for where its runtime says it is, and that is enough.
        if same_boot and tracked.init is None and answer.state == RUNNING:
            found = _hold(held().get(answer.allocation_id))
            if found is not None:
                process = Process.ALIVE
            elif not answer.init_seen:
                process = _without_process(tracked)
    since_verdict_ns = boottime_ns() - answer.verdict_boottime_ns
    sighting = Sighting(
        process=process,
        engine_knows=_exists(answer.engine_directory),
        seconds_since_verdict=since_verdict_ns / 1e9 if same_boot else math.inf,
    )
    return tracked, found, sighting


def _without_process(tracked: _Tracked) -> Process:
    """Return what to think of a container of which no process was ever seen."""
    answer = tracked.answer
    match runtime_record(answer.runtime_root, answer.container_id, answer.runtime_dir):
        case Record.PRESENT:
            return Process.GONE
        case Record.ABSENT:
            return Process.NEVER if tracked.launcher is None else Process.FAILED
        case _:
            return Process.UNKNOWN


def _hold(pid: int | None) -> Init | None:
    if pid is None:
        return None
    return hold_init(InitFacts(pid=pid, start_time=None, cgroup=None))


def _exists(folder: str) -> bool:
    """Tell whether a folder exists; one that cannot be looked at may."""
    if not folder:
        return False
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
