# SPDX-License-Identifier: Apache-2.0
"""Claims, observed on real processes, folders and state files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import claims as claims_module
from runtime_shim.answers import RELEASED, RUNNING, STOPPED, Answer, AnswerStore, encode_answer
from runtime_shim.claims import Claims
from runtime_shim.errors import CacheUnreachableError
from runtime_shim.node_watch import NodeAnswers
from runtime_shim.processes import boottime_ns
from runtime_shim.region import Regions
from tests.runtime_shim.allocations import CARD, GIB, allocation, answer, part
from tests.runtime_shim.containers import Process, write_runc_state
from tests.runtime_shim.pods import pod_allocation

LONG_AGO_NS = 40 * 10**9


class Cache:
    """Frees claims, or fails to."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.reachable = True
        self.gate: asyncio.Event | None = None

    async def release(self, allocation_id: str) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if not self.reachable:
            raise CacheUnreachableError("unix:x", 2.0, "unavailable")
        self.released.append(allocation_id)


class Node:
    """The parts that claims need, on scratch folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = AnswerStore(folder / "answers")
        self.regions = Regions(folder / "containers")
        self.cache = Cache()
        self.changes = 0
        self.store.load()
        self.regions.prepare()
        self.claims = Claims(
            self.store,
            self.regions,
            self.cache,
            self._changed,
            card_bytes=lambda: {CARD: 8 * GIB},
        )

    def _changed(self) -> None:
        self.changes += 1

    def state(self, of: Answer) -> pb.ClaimState | None:
        found = [
            claim.state
            for claim in self.claims.reports()
            if claim.allocation.allocation_id == of.allocation_id
        ]
        return found[0] if found else None

    def stored(self, of: Answer) -> pb.ClaimState | None:
        again = AnswerStore(self.store.folder)
        again.load()
        found = again.get(of.allocation_id)
        return found.state if found else None

    def start(self, of: Answer, launcher: Process) -> None:
        """Do what a create does at its end."""
        self.store.put(of)
        self.regions.create(of.allocation, b"")
        pidfd = os.pidfd_open(launcher.pid)
        self.claims.started(of, pidfd)
        os.close(pidfd)


class PodNode(Node):
    """In Kubernetes mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.claims = Claims(self.store, self.regions, self.cache, self._changed, NodeAnswers())

    def close(self) -> None:
        self.claims.close()
        self.regions.close()
        self.regions.sweep(())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    node.claims.close()
    node.regions.close()
    node.regions.sweep(())


@pytest.fixture
def launcher() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def init() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def container(tmp_path: Path) -> Answer:
    """Return the answer of a container whose engine directory exists."""
    engine = tmp_path / "engine"
    engine.mkdir()
    return answer(
        allocation(container_id="c1", root=str(tmp_path / "root")),
        engine_directory=str(engine),
    )


def write_state(of: Answer, process: Process, cgroup: Path | None = None) -> None:
    write_runc_state(Path(of.runtime_root), of.container_id, process.pid, cgroup=cgroup)


def forget_by_engine(of: Answer) -> None:
    Path(of.engine_directory).rmdir()


@contextlib.contextmanager
def mounted(limits: Path) -> Iterator[int]:
    """Run a process that has the file mounted in a mount namespace of its own, as a container."""
    script = 'mount --bind "$1" "$1" && echo ready && exec sleep 600'
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(limits)],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


async def test_a_container_runs_while_its_launcher_works(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.start(container, launcher)
    forget_by_engine(container)

    await node.claims.look()

    assert node.state(container) == RUNNING
    assert node.changes == 1


async def test_it_runs_until_its_init_ends_and_then_it_is_stopped(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    node.start(container, launcher)
    write_state(container, init)
    launcher.end()
    await node.claims.look()
    assert node.state(container) == RUNNING
    assert node.claims.has_live_init(container.key)

    init.end()
    await node.claims.look()

    assert node.state(container) == STOPPED
    assert node.stored(container) == STOPPED
    assert not node.claims.has_live_init(container.key)
    assert node.cache.released == []


async def test_processes_left_in_its_own_cgroup_keep_it_running(
    node: Node, container: Answer, launcher: Process, init: Process, tmp_path: Path
) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("4711\n")
    node.start(container, launcher)
    write_state(container, init, cgroup)
    await node.claims.look()
    launcher.end()
    init.end()
    await node.claims.look()
    assert node.state(container) == RUNNING

    (cgroup / "cgroup.procs").write_text("")
    await node.claims.look()

    assert node.state(container) == STOPPED


async def test_it_is_released_when_the_engine_forgets_it(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.start(container, launcher)
    launcher.end()
    forget_by_engine(container)

    await node.claims.look()

    assert node.cache.released == [container.allocation_id]
    assert node.claims.reports() == []
    assert node.stored(container) is None
    assert not (node.regions.folder / container.allocation_id).exists()


async def test_a_create_that_failed_is_stopped_at_once(
    node: Node, container: Answer, launcher: Process
) -> None:
    Path(container.runtime_root).mkdir()
    young = replace(container, verdict_boottime_ns=boottime_ns())
    node.start(young, launcher)
    launcher.end()

    await node.claims.look()

    assert node.state(young) == STOPPED
    assert node.stored(young) == STOPPED


async def test_a_create_whose_end_nobody_saw_is_held_and_then_stopped(
    node: Node, container: Answer
) -> None:
    Path(container.runtime_root).mkdir()
    young = replace(container, verdict_boottime_ns=boottime_ns())
    old = replace(young, verdict_boottime_ns=boottime_ns() - LONG_AGO_NS)
    old = replace(old, allocation=allocation(container_id="c2", root=old.runtime_root))
    node.store.put(young)
    node.store.put(old)

    await node.claims.adopt()

    assert node.state(young) == RUNNING
    assert node.state(old) == STOPPED


@pytest.mark.parametrize("unknown", ["no root", "a file", "a state of another runtime"])
async def test_a_container_that_cannot_be_looked_at_runs_until_the_engine_forgets_it(
    node: Node, container: Answer, launcher: Process, unknown: str
) -> None:
    root = Path(container.runtime_root)
    if unknown == "a file":
        root.write_text("")
    elif unknown == "a state of another runtime":
        (root / container.container_id).mkdir(parents=True)
        (root / container.container_id / "state.json").write_text('{"pid": 0}')
    old = replace(container, verdict_boottime_ns=boottime_ns() - LONG_AGO_NS)
    node.start(old, launcher)
    launcher.end()

    await node.claims.look()

    assert node.state(old) == RUNNING
    forget_by_engine(old)
    await node.claims.look()
    assert node.cache.released == [old.allocation_id]


@pytest.mark.parametrize("root_exists", [True, False])
async def test_a_container_is_found_by_its_limits_file_wherever_its_runtime_keeps_its_state(
    node: Node, container: Answer, launcher: Process, root_exists: bool
) -> None:
    if root_exists:
        Path(container.runtime_root).mkdir()
    old = replace(container, verdict_boottime_ns=boottime_ns() - LONG_AGO_NS)
    node.start(old, launcher)
    launcher.end()
    with mounted(node.regions.folder / old.allocation_id / "limits") as init:
        forget_by_engine(old)
        await node.claims.look()

        assert node.state(old) == RUNNING
        ((_, found),) = node.claims.running()
        assert found is not None
        assert found.pid == init

    await node.claims.look()
    assert node.cache.released == [old.allocation_id]


async def test_a_release_that_fails_is_tried_again(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.cache.reachable = False
    node.start(container, launcher)
    launcher.end()
    forget_by_engine(container)
    await node.claims.look()
    assert node.state(container) == RELEASED
    assert node.stored(container) == RELEASED

    node.cache.reachable = True
    await node.claims.look()

    assert node.cache.released == [container.allocation_id]
    assert node.claims.reports() == []


async def test_a_create_waits_for_a_release_under_way_and_then_holds_off_others(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.cache.gate = asyncio.Event()
    node.start(container, launcher)
    launcher.end()
    forget_by_engine(container)
    looking = asyncio.create_task(node.claims.look())
    entered = asyncio.Event()

    async def create() -> None:
        async with node.claims.creating(container.key):
            entered.set()
            assert node.cache.released == [container.allocation_id]

    while node.state(container) != RELEASED:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    creating = asyncio.create_task(create())
    await asyncio.sleep(0.05)
    assert not entered.is_set()

    node.cache.gate.set()
    await asyncio.gather(looking, creating)


async def test_nothing_changes_under_a_create(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.start(container, launcher)
    launcher.end()
    forget_by_engine(container)

    async with node.claims.creating(container.key):
        await node.claims.look()
        await node.claims.replace_all([])
        assert node.state(container) == RUNNING
    await node.claims.look()

    assert node.cache.released == [container.allocation_id]


async def test_a_pods_create_waits_until_what_was_before_is_erased(
    tmp_path: Path, launcher: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of a replica that lags drops a stopped container, which is just started again."""
    node = PodNode(tmp_path)
    before = answer(pod_allocation(), container_id="c1")
    node.start(before, launcher)
    launcher.end()
    await node.claims.look()
    assert node.stored(before) == STOPPED
    erasing, erase = threading.Event(), threading.Event()
    remove = node.regions.remove

    def slowly(allocation_id: str) -> None:
        erasing.set()
        assert erase.wait(60)
        remove(allocation_id)

    monkeypatch.setattr(node.regions, "remove", slowly)
    dropping = asyncio.create_task(node.claims.replace_all([]))
    await asyncio.to_thread(erasing.wait, 60)

    async def create() -> None:
        async with node.claims.creating_in_pod(before.allocation):
            node.store.put(before)
            node.regions.create(before.allocation, b"")

    creating = asyncio.create_task(create())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not creating.done()
    erase.set()
    await asyncio.gather(dropping, creating)

    assert node.stored(before) is not None
    assert (node.regions.folder / before.allocation_id / "limits").exists()
    node.close()


async def test_files_that_cannot_be_removed_hold_up_nothing_else(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each snapshot would end in an error, and the node would never follow its cache again."""
    stuck, other = (answer(allocation(container_id=each)) for each in ("c1", "c2"))
    remove = node.regions.remove

    def fail(allocation_id: str) -> None:
        if allocation_id == stuck.allocation_id:
            raise OSError(errno.EBUSY, "Device or resource busy")
        remove(allocation_id)

    monkeypatch.setattr(node.regions, "remove", fail)
    for gone in (
        node.claims.replace_all([]),
        node.claims.forget([i.allocation_id for i in (stuck, other)]),
    ):
        for each in (stuck, other):
            node.regions.create(each.allocation, b"")
        await gone
        assert node.regions.names() == {stuck.allocation_id}


async def test_what_was_left_over_and_is_used_again_is_not_swept(
    tmp_path: Path, launcher: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PodNode(tmp_path)
    again = answer(pod_allocation(), container_id="c2")
    node.regions.create(again.allocation, b"")
    looking, go_on = threading.Event(), threading.Event()

    def slowly(_: Path) -> dict[str, int]:
        looking.set()
        assert go_on.wait(60)
        return {}

    monkeypatch.setattr(claims_module, "holders", slowly)
    sweeping = asyncio.create_task(node.claims.replace_all([]))
    await asyncio.to_thread(looking.wait, 60)
    node.start(again, launcher)
    go_on.set()
    await sweeping

    assert (node.regions.folder / again.allocation_id / "limits").exists()
    node.regions.remove(again.allocation_id)  # it is mounted, and the folder could not be removed
    node.close()


async def test_creates_of_one_container_wait_for_each_other(node: Node) -> None:
    order: list[str] = []

    async def create(name: str) -> None:
        async with node.claims.creating(("", "c1")):
            order.append(f"{name} in")
            await asyncio.sleep(0.01)
            order.append(f"{name} out")

    await asyncio.gather(*(create(name) for name in "abc"))

    assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]


async def test_the_next_agent_adopts_what_runs(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    node.start(container, launcher)
    write_state(container, init)
    await node.claims.look()
    node.claims.close()
    node.regions.close()
    node.regions.create(allocation(), b"")  # a leftover
    node.regions.close()

    later = Node(node.folder)
    await later.claims.adopt()

    assert later.state(container) == RUNNING
    assert later.claims.has_live_init(container.key)
    assert later.regions.get(container.allocation_id) is not None
    assert len(os.listdir(later.regions.folder)) == 2  # the cache may know the other one
    await later.claims.replace_all([container.allocation])
    assert os.listdir(later.regions.folder) == [container.allocation_id]
    later.claims.close()
    later.regions.close()


async def test_an_agent_without_its_state_restores_it_from_the_containers_folders(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    node.start(container, launcher)
    node.regions.record(container.allocation_id, encode_answer(container))
    node.regions.record("broken", b"{")
    earlier = replace(container, allocation=allocation(), boot_id="another boot")
    node.regions.record(earlier.allocation_id, encode_answer(earlier))
    write_state(container, init)
    node.claims.close()
    node.regions.close()
    shutil.rmtree(node.store.folder)

    later = Node(node.folder)
    await later.claims.adopt()
    await later.claims.replace_all([])

    assert [claim.allocation for claim in later.claims.reports()] == [container.allocation]
    assert later.state(container) == RUNNING
    stored = later.store.get(container.allocation_id)
    assert stored is not None
    assert (stored.request, stored.init_seen) == (container.request, True)
    assert later.regions.get(container.allocation_id) is not None
    assert os.listdir(later.regions.folder) == [container.allocation_id]
    later.claims.close()
    later.regions.close()


async def test_the_next_agent_sees_processes_that_the_init_left_behind(
    node: Node, container: Answer
) -> None:
    seen = replace(container, init_seen=True)
    node.store.put(seen)
    region = node.regions.create(seen.allocation, b"")
    with mounted(region.limits_path):
        await node.claims.adopt()
        assert node.state(seen) == RUNNING

    await node.claims.look()
    assert node.state(seen) == STOPPED


async def test_the_files_of_an_unknown_container_that_lives_are_not_swept(
    node: Node, container: Answer
) -> None:
    region = node.regions.create(container.allocation, b"")
    with mounted(region.limits_path):
        await node.claims.replace_all([])
        assert region.limits_path.exists()

    await node.claims.replace_all([])
    assert not region.folder.exists()


async def test_a_cache_that_hangs_holds_up_no_pass(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    node.cache.gate = asyncio.Event()
    gone = replace(container, allocation=allocation(container_id="c2"), engine_directory="/absent")
    node.store.put(gone)
    await node.claims.adopt()
    watching = asyncio.create_task(node.claims.run())
    await asyncio.sleep(0.05)
    node.start(container, launcher)
    write_state(container, init)
    launcher.end()

    async with asyncio.timeout(60):
        while not node.claims.has_live_init(container.key):
            await asyncio.sleep(0.01)
        await node.claims.look_before_create(container.key)

    assert node.state(gone) == RELEASED
    node.cache.gate.set()
    async with asyncio.timeout(60):
        while node.stored(gone) is not None:
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_full_disk_ends_no_observation(
    node: Node, container: Answer, launcher: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(container.runtime_root).mkdir()
    node.start(container, launcher)
    put = node.store.put

    def full(answer: Answer) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "answers")

    monkeypatch.setattr(node.store, "put", full)
    launcher.end()
    await node.claims.look()
    assert node.state(container) == STOPPED
    assert node.stored(container) == RUNNING

    monkeypatch.setattr(node.store, "put", put)
    await node.claims.look()

    assert node.stored(container) == STOPPED


async def test_what_ended_while_no_agent_ran_is_stopped_at_once(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    young = replace(container, verdict_boottime_ns=boottime_ns())
    node.start(young, launcher)
    with Process() as later_init:
        write_state(young, later_init)
        await node.claims.look()
    node.claims.close()
    launcher.end()

    later = Node(node.folder)
    await later.claims.adopt()

    assert later.state(young) == STOPPED
    later.claims.close()


async def test_claims_of_an_earlier_boot_are_stopped(
    node: Node, container: Answer, init: Process
) -> None:
    earlier = replace(container, boot_id="another boot", verdict_boottime_ns=boottime_ns())
    node.store.put(earlier)
    write_state(earlier, init)  # left over, and its PID is somebody else's by now

    await node.claims.adopt()

    assert node.state(earlier) == STOPPED


async def test_a_snapshot_removes_what_is_not_in_it_but_runs(
    node: Node, container: Answer, launcher: Process
) -> None:
    stopped = answer(allocation(container_id="c2"), state=STOPPED, boot_id="earlier")
    node.store.put(stopped)
    await node.claims.adopt()
    node.start(container, launcher)

    await node.claims.replace_all([])

    assert node.state(stopped) is None
    assert node.stored(stopped) is None
    assert node.state(container) == RUNNING
    assert node.cache.released == []


async def test_the_cache_s_word_ends_a_stopped_claim_and_no_running_one(
    node: Node, container: Answer, launcher: Process
) -> None:
    stopped = answer(allocation(container_id="c2"), state=STOPPED, boot_id="earlier")
    node.store.put(stopped)
    await node.claims.adopt()
    node.start(container, launcher)

    await node.claims.drop(stopped.allocation_id)
    await node.claims.drop(container.allocation_id)
    await node.claims.drop("never heard of")

    assert node.state(stopped) is None
    assert node.state(container) == RUNNING


@pytest.mark.parametrize(
    "parts",
    [[], [part(memory_bytes=0)], [part(cores_percent=0)], [part(memory_bytes=8 * GIB + 1)]],
    ids=["none", "memory", "cores", "more-than-the-card"],
)
async def test_a_change_to_no_limit_is_not_taken(
    node: Node, container: Answer, launcher: Process, parts: list[pb.Slice]
) -> None:
    node.start(container, launcher)
    broken = allocation(container_id="c1", allocation_id=container.allocation_id)
    del broken.slices[:]
    broken.slices.extend(parts)

    await node.claims.upsert(broken)

    region = node.regions.get(container.allocation_id)
    assert region is not None
    assert region.allocation == container.allocation


async def test_a_changed_allocation_reaches_the_limits_file(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.start(container, launcher)
    changed = allocation(
        part(memory_bytes=3 * GIB), container_id="c1", allocation_id=container.allocation_id
    )

    await node.claims.upsert(changed)

    region = node.regions.get(container.allocation_id)
    assert region is not None
    assert region.allocation == changed
    again = AnswerStore(node.store.folder)
    again.load()
    assert again.all()[0].allocation == changed


async def test_taken_claims_are_forgotten_durably(
    node: Node, container: Answer, launcher: Process
) -> None:
    node.start(container, launcher)

    await node.claims.forget([container.allocation_id])

    assert node.stored(container) is None
    assert not (node.regions.folder / container.allocation_id).exists()


async def test_an_orphan_whose_container_runs_is_adopted(
    node: Node, container: Answer, init: Process
) -> None:
    write_state(container, init)

    await node.claims.replace_all([container.allocation])
    await node.claims.look()

    assert node.state(container) == RUNNING
    assert node.stored(container) == RUNNING
    init.end()
    await node.claims.look()
    assert node.cache.released == [container.allocation_id]


async def test_an_orphan_without_process_is_freed_in_the_end(
    node: Node, container: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.claims.upsert(container.allocation)
    await node.claims.look()
    assert node.cache.released == []

    monkeypatch.setattr(claims_module, "NO_PROCESS_SECONDS", 0.0)
    await node.claims.look()

    assert node.cache.released == [container.allocation_id]
    await node.claims.look()
    assert node.cache.released == [container.allocation_id]


async def test_a_create_waits_for_the_release_of_an_orphan(
    node: Node, container: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "NO_PROCESS_SECONDS", 0.0)
    node.cache.gate = asyncio.Event()
    await node.claims.upsert(container.allocation)
    looking = asyncio.create_task(node.claims.look())
    await asyncio.sleep(0.05)

    async def create() -> None:
        async with node.claims.creating(container.key):
            assert node.cache.released == [container.allocation_id]

    creating = asyncio.create_task(create())
    await asyncio.sleep(0.05)
    node.cache.gate.set()
    await asyncio.gather(looking, creating)


async def test_an_orphan_that_a_create_completes_is_none(
    node: Node, container: Answer, launcher: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_module, "NO_PROCESS_SECONDS", 0.0)
    await node.claims.upsert(container.allocation)
    async with node.claims.creating(container.key):
        await node.claims.look()
        node.start(container, launcher)
    await node.claims.look()

    assert node.state(container) == RUNNING
    assert node.cache.released == []


async def test_the_end_of_a_process_is_seen_without_waiting(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    node.start(container, launcher)
    write_state(container, init)
    watching = asyncio.create_task(node.claims.run())
    while not node.claims.has_live_init(container.key):
        await asyncio.sleep(0.01)
    launcher.end()

    init.end()
    while node.state(container) != STOPPED:
        await asyncio.sleep(0.01)

    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_descriptors_are_given_back(
    node: Node, container: Answer, launcher: Process, init: Process
) -> None:
    await node.claims.look()  # threads are there from now on
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        node.start(container, launcher)
        write_state(container, init)
        await node.claims.look()

    await node.claims.forget([container.allocation_id])
    await node.claims.look()

    assert len(os.listdir("/proc/self/fd")) == before
