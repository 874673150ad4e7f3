# SPDX-License-Identifier: Apache-2.0
"""The create path on real bundles, files and mounts; the cache and NVML are told what to say."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import answers
from runtime_shim.answers import RELEASED, RUNNING, STOPPED, AnswerStore
from runtime_shim.calibration import Calibration
from runtime_shim.claims import Claims
from runtime_shim.config import Config, Driver, GpuRuntime, Paths, Policy
from runtime_shim.counters import Counters
from runtime_shim.create import Creator
from runtime_shim.errors import (
    CacheFailedError,
    CacheUnreachableError,
    NoRoomError,
    RefusedError,
)
from runtime_shim.host import Host
from runtime_shim.inventory import CardFacts, CardLoad, CardProcess, Inventory, Xid
from runtime_shim.library import VerifiedCopies
from runtime_shim.probe import Probe
from runtime_shim.region import Regions
from runtime_shim.spec import Spec, environment
from runtime_shim.verdict import Launch, Verdict
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD, allocation, part
from tests.runtime_shim.containers import Process, write_runc_state
from tests.runtime_shim.specs import plain_spec
from tests.testbed import BUILD
from tests.testbed.installation import record_digests

REQUEST = ("VGPU_MEMORY=2Gi", "VGPU_CORES=25")


class Cards:
    """NVML of a host with two cards."""

    def cards(self) -> list[CardFacts]:
        return [
            CardFacts(
                uuid=uuid,
                kind=pb.CARD_KIND_GPU,
                model="m",
                memory_bytes=8 * GIB,
                minor=minor,
                pci_bus_id=f"0000:0{minor}:00.0",
                index=str(minor),
            )
            for minor, uuid in enumerate((CARD, OTHER_CARD))
        ]

    def processes(self, uuid: str) -> list[CardProcess]:
        return []

    def load(self, uuid: str) -> CardLoad:
        return CardLoad(used_bytes=None, utilization_percent=None, busy_percent=None)

    def xids(self) -> list[Xid]:
        return []


class Cache:
    """Gives every request what a test wants."""

    def __init__(self) -> None:
        self.give: pb.Allocation | Exception = allocation()
        self.taken: list[str] = []
        self.full_unless_taken = False
        """Only the slices of stopped containers make room."""
        self.seconds: list[float] = []
        self.released: list[str] = []
        self.on_allocate: Callable[[], None] = lambda: None

    async def allocate(
        self,
        key: tuple[str, str],
        request: pb.AllocationRequest,
        seconds: float,
        *,
        spare_stopped: bool = False,
    ) -> pb.AllocateResponse:
        self.seconds.append(seconds)
        self.on_allocate()
        if spare_stopped and self.full_unless_taken:
            raise NoRoomError("no card has room", "free a slice")
        if isinstance(self.give, Exception):
            raise self.give
        return pb.AllocateResponse(allocation=self.give, taken_allocation_ids=self.taken)

    async def release(self, allocation_id: str) -> None:
        self.released.append(allocation_id)


UNREACHABLE = CacheUnreachableError("unix:/run/vgpu/cache.sock", 8.0, "unavailable: no connection")


class Node:
    """An agent without sockets, on scratch folders."""

    def __init__(self, folder: Path, policy: Policy, gpu_runtime: bool) -> None:
        self.folder = folder
        library = folder / "lib" / "1.0" / "libvgpu.so"
        library.parent.mkdir(parents=True)
        shutil.copy(BUILD / "libvgpu.so", library)
        record_digests(library.parent)
        (folder / "lib" / "current").symlink_to("1.0")
        self.library = library
        self.config = Config(
            paths=Paths(
                run_dir=folder / "run",
                state_dir=folder / "state",
                library=folder / "lib" / "current" / "libvgpu.so",
            ),
            driver=Driver(root=folder / "driver", library_dirs=(folder / "driver",), cdi_dirs=()),
            gpu_runtime=GpuRuntime(enabled=gpu_runtime),
            policy=policy,
        )
        nodes = folder / "driver" / "dev"
        nodes.mkdir(parents=True)
        for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)):
            os.mknod(nodes / name, 0o20666, os.makedev(195, minor))
        self.cache = Cache()
        self.counters = Counters()
        self.store = AnswerStore(folder / "state" / "answers")
        self.regions = Regions(folder / "run" / "containers")
        self.inventory = Inventory(Cards())
        self.claims = Claims(self.store, self.regions, self.cache, lambda: None)
        probe = Probe(lambda: folder / "none", ())
        self.calibration = Calibration(folder / "contexts.json", probe, self.inventory)
        self.host = Host(self.config.driver)
        self.creator = Creator(
            self.config,
            cache=self.cache,
            claims=self.claims,
            store=self.store,
            regions=self.regions,
            inventory=self.inventory,
            calibration=self.calibration,
            host=self.host,
            counters=self.counters,
        )

    async def start(self) -> None:
        self.store.load()
        self.regions.prepare()
        await self.inventory.refresh()

    async def stop(self) -> None:
        self.claims.close()
        self.regions.close()
        self.regions.sweep(())
        self.inventory.close()


class Bundle:
    """A bundle with a rootfs that has glibc's loader."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.folder = folder
        root = folder / "rootfs"
        for name in ("etc", "lib64", f"usr/lib/{os.uname().machine}-linux-gnu"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "lib64/ld-linux-x86-64.so.2").write_bytes(b"\x7fELF /etc/ld.so.preload")
        self.write(spec)

    def write(self, spec: Spec) -> None:
        (self.folder / "config.json").write_text(json.dumps(spec))

    def spec(self) -> Any:  # noqa: ANN401 - any JSON
        return json.loads((self.folder / "config.json").read_text())

    def mount(self, destination: str) -> dict[str, Any] | None:
        found = [each for each in self.spec()["mounts"] if each["destination"] == destination]
        assert len(found) <= 1
        return found[0] if found else None


async def make_node(folder: Path, *, gpu_runtime: bool = False, **policy: Any) -> Node:  # noqa: ANN401
    node = Node(folder, Policy(**policy), gpu_runtime)
    await node.start()
    return node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = await make_node(tmp_path / "node")
    yield node
    await node.stop()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path / "bundle", plain_spec(*REQUEST))


async def create(
    node: Node, bundle: Bundle, container_id: str = "c1", launcher: Process | None = None
) -> Verdict:
    """Ask as a launcher of this id does; it ends right after its verdict unless it is given."""
    directory = os.open(bundle.folder, os.O_PATH | os.O_DIRECTORY)
    with Process() as own:
        pidfd = os.pidfd_open((launcher or own).pid)
        try:
            return await node.creator.create(
                Launch(
                    command="create",
                    container_id=container_id,
                    root=str(node.folder / "runtime"),
                    bundle=str(bundle.folder),
                    pid_file="",
                    bundle_fd=directory,
                    launcher_pidfd=pidfd,
                )
            )
        finally:
            os.close(pidfd)
            os.close(directory)


def given(node: Node) -> pb.Allocation:
    assert isinstance(node.cache.give, pb.Allocation)
    return node.cache.give


async def test_a_container_gets_exactly_its_slice(node: Node, bundle: Bundle) -> None:
    verdict = await create(node, bundle)

    assert verdict == Verdict(kind="low-level")
    env = environment(bundle.spec())
    assert env["NVIDIA_VISIBLE_DEVICES"] == CARD
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert not [name for name in env if name.startswith("VGPU_")]
    nodes = {device["path"] for device in bundle.spec()["linux"]["devices"]}
    assert nodes == {"/dev/nvidia0", "/dev/nvidiactl"}


async def test_its_files_are_mounted_as_the_contract_says(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)

    folder = node.regions.folder / given(node).allocation_id
    wanted = {
        "/dev/vgpu/libvgpu.so": (
            VerifiedCopies(node.library, node.folder / "state").library(),
            {"ro"},
        ),
        "/dev/vgpu/limits": (folder / "limits", {"ro", "noexec"}),
        "/dev/vgpu/usage": (folder / "usage/usage", {"rw", "noexec"}),
        "/etc/ld.so.preload": (folder / "ld.so.preload", {"ro", "noexec"}),
    }
    for destination, (source, options) in wanted.items():
        mount = bundle.mount(destination)
        assert mount is not None
        assert mount["source"] == str(source)
        assert {"bind", "nosuid", "nodev", *options} <= set(mount["options"])
    assert (folder / "ld.so.preload").read_text() == "/dev/vgpu/libvgpu.so\n"


async def test_the_image_s_own_preloads_come_after_ours(node: Node, bundle: Bundle) -> None:
    (bundle.folder / "rootfs/etc/ld.so.preload").write_text("/usr/lib/jemalloc.so\r\n")

    await create(node, bundle)

    folder = node.regions.folder / given(node).allocation_id
    assert (folder / "ld.so.preload").read_text() == "/dev/vgpu/libvgpu.so\n/usr/lib/jemalloc.so\n"


async def test_the_answer_is_stored_before_the_verdict(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)

    again = AnswerStore(node.store.folder)
    again.load()
    stored = again.all()[0]
    assert stored.allocation == given(node)
    assert (stored.container_id, stored.bundle) == ("c1", str(bundle.folder))
    assert stored.engine_directory == str(bundle.folder)
    assert stored.state == RUNNING


async def test_the_same_create_again_changes_nothing(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    first = bundle.spec()
    bundle.write(plain_spec(*REQUEST))

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert bundle.spec() == first
    assert len(node.store.all()) == 1


async def test_cards_come_in_the_order_of_the_answer(node: Node, tmp_path: Path) -> None:
    node.cache.give = allocation(part(OTHER_CARD), part(CARD))
    bundle = Bundle(tmp_path / "b", plain_spec(*REQUEST, "VGPU_COUNT=2"))

    await create(node, bundle)

    env = environment(bundle.spec())
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{OTHER_CARD},{CARD}"


async def test_a_whole_card_comes_without_library(node: Node, tmp_path: Path) -> None:
    whole = allocation(part(memory_bytes=8 * GIB, cores_percent=100))
    whole.whole_cards = True
    node.cache.give = whole
    bundle = Bundle(tmp_path / "b", plain_spec("VGPU_MEMORY=100%"))

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert bundle.mount("/dev/vgpu/libvgpu.so") is None
    assert bundle.mount("/etc/ld.so.preload") is None
    assert environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"] == CARD


async def test_the_gpu_runtime_gives_the_devices_where_there_is_one(
    tmp_path: Path, bundle: Bundle
) -> None:
    node = await make_node(tmp_path / "gpu", gpu_runtime=True)

    verdict = await create(node, bundle)

    assert verdict == Verdict(kind="gpu")
    assert "devices" not in bundle.spec()["linux"]
    assert bundle.mount("/dev/vgpu/libvgpu.so") is not None
    await node.stop()


async def test_no_request_means_no_gpu_and_no_question(node: Node, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "b", plain_spec("NVIDIA_VISIBLE_DEVICES=all"))

    verdict = await create(node, bundle)

    assert verdict == Verdict(kind="low-level")
    assert environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert node.cache.seconds == []
    assert node.store.all() == []


async def test_policy_may_leave_the_unmanaged_alone(tmp_path: Path) -> None:
    node = await make_node(tmp_path / "node", unmanaged="allow")
    spec = plain_spec("NVIDIA_VISIBLE_DEVICES=all")
    bundle = Bundle(tmp_path / "b", spec)

    assert (await create(node, bundle)).kind == "low-level"
    assert bundle.spec() == spec
    await node.stop()


def _privileged(spec: Spec) -> None:
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})


def _cri(spec: Spec) -> None:
    spec["annotations"] = {
        "io.kubernetes.cri.sandbox-id": "s",
        "io.kubernetes.cri.sandbox-namespace": "shop",
        "io.kubernetes.cri.sandbox-name": "web-0",
        "io.kubernetes.cri.container-name": "main",
    }


def _host_dev(spec: Spec) -> None:
    spec["mounts"].append(
        {"destination": "/hostdev", "type": "bind", "source": "/dev", "options": ["rbind"]}
    )


def _foreign_mount(spec: Spec) -> None:
    spec["mounts"].append(
        {"destination": "/dev/vgpu/limits", "type": "bind", "source": "/etc/passwd"}
    )


def _zero(spec: Spec) -> None:
    spec["process"]["env"].append("VGPU_MEMORY=0")


@pytest.mark.parametrize(
    ("spoil", "start", "reason"),
    [
        (_privileged, "vgpu: container 'c1' (c1): it is privileged", "no slice could hold it"),
        (_cri, "vgpu: container 'main' (shop/web-0): it belongs to Kubernetes", "without it"),
        (_host_dev, "vgpu: container 'c1' (c1): it mounts the host's /dev", "every GPU"),
        (_foreign_mount, "vgpu: container 'c1' (c1): a mount of '/etc/passwd'", "/dev/vgpu"),
        (_zero, "vgpu: container 'c1' (c1): VGPU_MEMORY='0'", "smallest slice"),
    ],
)
async def test_what_cannot_be_held_is_refused_before_anybody_is_asked(
    node: Node,
    tmp_path: Path,
    spoil: Callable[[Spec], None],
    start: str,
    reason: str,
) -> None:
    spec = plain_spec(*REQUEST)
    spoil(spec)
    bundle = Bundle(tmp_path / "b", spec)

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert verdict.message.startswith(start)
    assert reason in verdict.message
    assert bundle.spec() == spec
    assert node.cache.seconds == []


async def test_a_musl_image_is_refused_before_anybody_is_asked(node: Node, bundle: Bundle) -> None:
    (bundle.folder / "rootfs/lib64/ld-linux-x86-64.so.2").unlink()
    (bundle.folder / "rootfs/lib").mkdir(exist_ok=True)
    (bundle.folder / "rootfs/lib/ld-musl-x86_64.so.1").write_bytes(b"\x7fELF musl")

    verdict = await create(node, bundle)

    assert "musl" in verdict.message
    assert node.cache.seconds == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), (b"", "is empty"), (b"#!/bin/sh\n" * 9, "is not a 64-bit ELF")],
)
async def test_without_a_sound_library_nothing_starts(
    node: Node, bundle: Bundle, content: bytes | None, reason: str
) -> None:
    if content is None:
        node.library.unlink()
    else:
        node.library.write_bytes(content)

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert reason in verdict.message
    assert node.cache.seconds == []


async def test_the_cache_s_no_is_shown_in_its_words(node: Node, bundle: Bundle) -> None:
    node.cache.give = RefusedError("no card has 2Gi free", "wait for a container to end")

    verdict = await create(node, bundle)

    assert verdict.message == (
        "vgpu: container 'c1' (c1): no card has 2Gi free; wait for a container to end"
    )


def _no_memory() -> pb.Allocation:
    broken = allocation()
    broken.slices[0].memory_bytes = 0
    return broken


def _whole() -> pb.Allocation:
    broken = allocation()
    broken.whole_cards = True
    return broken


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_no_memory(), "has no valid limit"),
        (pb.Allocation(allocation_id="a"), "has 0 cards"),
        (allocation(part(CARD), part(OTHER_CARD)), "does not fit the request"),
        (allocation(part(memory_bytes=2**63)), f"gives {2**63} bytes of card {CARD}, which has 85"),
        (allocation(part(memory_bytes=2 * GIB + 1)), "does not fit the request"),
        (_whole(), "does not fit the request"),
        (
            allocation(part("GPU-00000000-0000-4000-8000-000000000009")),
            "000009 of its allocation cannot be used: it is not on this host",
        ),
    ],
)
async def test_an_answer_that_cannot_be_kept_starts_nothing(
    node: Node, bundle: Bundle, answer: pb.Allocation, reason: str
) -> None:
    node.cache.give = answer

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert reason in verdict.message
    assert node.store.all() == []
    assert bundle.spec() == plain_spec(*REQUEST)


async def test_an_unreachable_cache_refuses_the_unknown(node: Node, bundle: Bundle) -> None:
    node.cache.give = UNREACHABLE

    verdict = await create(node, bundle)

    assert "the scheduler cache at unix:/run/vgpu/cache.sock gave no answer" in verdict.message
    assert "start vgpu-scheduler-cache" in verdict.message
    assert node.cache.seconds == [8.0]


async def test_an_unreachable_cache_lets_the_known_restart(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    wanted = bundle.spec()
    bundle.write(plain_spec(*REQUEST))
    node.cache.give = UNREACHABLE

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert bundle.spec() == wanted
    assert node.cache.seconds == [8.0, 2.0]


async def test_a_cache_that_has_failed_is_named_and_lets_the_known_restart(
    node: Node, bundle: Bundle
) -> None:
    node.cache.give = CacheFailedError("unix:/cache.sock", "its disk is full", "free space")
    refused = await create(node, bundle)
    assert refused.message.endswith(
        "the scheduler cache at unix:/cache.sock has failed: its disk is full; free space"
    )

    node.cache.give = allocation()
    await create(node, bundle)
    bundle.write(plain_spec(*REQUEST))
    node.cache.give = CacheFailedError("unix:/cache.sock", "its disk is full", "free space")

    assert (await create(node, bundle)).kind == "low-level"


async def test_an_answer_that_cannot_be_stored_refuses_in_words(
    node: Node, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(answers, "write_all", no_space)
        verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "answers/" in verdict.message
    assert "No space left on device; free space there, then start" in verdict.message
    assert bundle.spec() == plain_spec(*REQUEST)
    assert os.listdir(node.store.folder) == []


async def test_the_store_answers_no_other_request(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    bundle.write(plain_spec("VGPU_MEMORY=3Gi"))
    node.cache.give = UNREACHABLE

    assert "gave no answer" in (await create(node, bundle)).message


async def test_the_store_answers_for_no_released_claim(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    node.store.put(node.store.all()[0].in_state(RELEASED, 1))
    bundle.write(plain_spec(*REQUEST))
    node.cache.give = UNREACHABLE

    assert "gave no answer" in (await create(node, bundle)).message


async def test_a_removed_container_goes_before_a_stopped_one(
    node: Node, bundle: Bundle, tmp_path: Path
) -> None:
    await create(node, bundle, "removed")
    removed = node.store.all()[0]
    node.cache.give = allocation(container_id="stopped")
    await create(node, Bundle(tmp_path / "stopped", plain_spec(*REQUEST)), "stopped")
    with Process() as init:
        write_runc_state(node.folder / "runtime", "stopped", init.pid)
        await node.claims.look()
    await node.claims.look()
    assert STOPPED in [each.state for each in node.claims.reports()]
    shutil.rmtree(bundle.folder)
    node.cache.give = allocation(container_id="new")
    released_before: list[list[str]] = []
    node.cache.on_allocate = lambda: released_before.append(list(node.cache.released))
    node.cache.full_unless_taken = True

    await create(node, Bundle(tmp_path / "new", plain_spec(*REQUEST)), "new")

    # No slice of a stopped one was to be had before the removed one's was free.
    assert released_before == [[], [removed.allocation_id]]


async def test_taken_claims_are_forgotten_before_the_verdict(
    node: Node, bundle: Bundle, tmp_path: Path
) -> None:
    await create(node, bundle, "old")
    old = node.store.all()[0]
    with Process() as init:
        write_runc_state(node.folder / "runtime", "old", init.pid)
        await node.claims.look()
    await node.claims.look()
    assert node.claims.reports()[0].state == STOPPED
    node.cache.give, node.cache.taken = allocation(container_id="new"), [old.allocation_id]

    verdict = await create(node, Bundle(tmp_path / "new", plain_spec(*REQUEST)), "new")

    assert verdict.kind == "low-level"
    assert [each.container_id for each in node.store.all()] == ["new"]
    assert not (node.regions.folder / old.allocation_id).exists()


async def test_a_slice_taken_from_a_running_container_starts_nothing(
    node: Node, bundle: Bundle, tmp_path: Path
) -> None:
    await create(node, bundle, "old")
    old = node.store.all()[0]
    node.cache.give, node.cache.taken = allocation(container_id="new"), [old.allocation_id]

    verdict = await create(node, Bundle(tmp_path / "new", plain_spec(*REQUEST)), "new")

    assert f"was taken from {old.allocation_id}, which runs" in verdict.message
    assert [each.container_id for each in node.store.all()] == ["old"]


async def test_another_request_replaces_the_claim(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    old = given(node)
    bundle.write(plain_spec("VGPU_MEMORY=3Gi"))
    node.cache.give = allocation(part(memory_bytes=3 * GIB))

    await create(node, bundle)

    assert [each.allocation_id for each in node.store.all()] == [given(node).allocation_id]
    assert not (node.regions.folder / old.allocation_id).exists()


async def test_an_id_that_runs_is_refused(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    bundle.write(plain_spec(*REQUEST))
    with Process() as init:
        write_runc_state(node.folder / "runtime", "c1", init.pid)

        verdict = await create(node, bundle)

    assert "a container of this id is running; stop it first" in verdict.message
    assert bundle.spec() == plain_spec(*REQUEST)


async def test_a_bundle_that_was_edited_already_is_known_again(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    edited = bundle.spec()

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert bundle.spec() == edited


async def test_an_edited_bundle_of_a_whole_card_is_known_again(node: Node, tmp_path: Path) -> None:
    node.cache.give = _whole()
    bundle = Bundle(tmp_path / "b", plain_spec("VGPU_MEMORY=100%"))
    await create(node, bundle)
    edited = bundle.spec()

    await create(node, bundle)

    assert bundle.spec() == edited


async def test_an_edited_bundle_without_a_claim_is_refused(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)
    await node.claims.forget([given(node).allocation_id])

    verdict = await create(node, bundle)

    assert "edited for a slice that it no longer has" in verdict.message


async def test_a_failure_after_the_answer_leaves_an_observed_claim(
    node: Node, bundle: Bundle
) -> None:
    shutil.rmtree(node.folder / "driver" / "dev")
    (node.folder / "driver" / "dev").mkdir()
    os.mknod(node.folder / "driver/dev/nvidia1", 0o20666, os.makedev(195, 1))

    verdict = await create(node, bundle)

    assert "the host has no /dev/nvidia0" in verdict.message
    assert [each.allocation_id for each in node.store.all()] == [given(node).allocation_id]
    assert bundle.spec() == plain_spec(*REQUEST)
    shutil.rmtree(bundle.folder)
    await node.claims.look()
    assert node.cache.released == [given(node).allocation_id]


async def test_a_container_removed_a_moment_ago_makes_room(
    node: Node, bundle: Bundle, tmp_path: Path
) -> None:
    await create(node, bundle, "old")
    old = given(node).allocation_id
    shutil.rmtree(bundle.folder)
    node.cache.give = allocation(container_id="new")

    def full() -> None:
        if not node.cache.released:
            raise NoRoomError("no card has 2Gi free")

    node.cache.on_allocate = full

    verdict = await create(node, Bundle(tmp_path / "new", plain_spec(*REQUEST)), "new")

    assert verdict.kind == "low-level"
    assert node.cache.released == [old]
    await node.claims.look()
    assert [each.container_id for each in node.store.all()] == ["new"]
    assert not (node.regions.folder / old).exists()


async def test_no_room_after_all_is_a_refusal(node: Node, bundle: Bundle) -> None:
    node.cache.give = NoRoomError("no card has 2Gi free", "wait for a container to end")

    verdict = await create(node, bundle)

    assert "no card has 2Gi free; wait for a container to end" in verdict.message
    assert len(node.cache.seconds) == 2


async def test_a_bug_refuses(node: Node, bundle: Bundle) -> None:
    node.cache.give = ZeroDivisionError("a bug")

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "the node agent failed (ZeroDivisionError)" in verdict.message


async def test_a_bundle_that_cannot_be_read_is_refused(node: Node, bundle: Bundle) -> None:
    (bundle.folder / "config.json").write_text("{")

    verdict = await create(node, bundle)

    assert "config.json is not JSON" in verdict.message


async def test_an_etc_that_takes_no_mount_is_refused_or_gets_the_variable(
    tmp_path: Path, node: Node, bundle: Bundle
) -> None:
    (bundle.folder / "rootfs/etc/ld.so.preload").mkdir()
    refused = await create(node, bundle)
    weak = await make_node(tmp_path / "weak", preload_env="allow")

    allowed = await create(weak, bundle)

    assert "ld.so.preload" in refused.message
    assert allowed.kind == "low-level"
    assert environment(bundle.spec())["LD_PRELOAD"] == "/dev/vgpu/libvgpu.so"
    assert bundle.mount("/etc/ld.so.preload") is None
    await weak.stop()


def _unknown_variable(spec: Spec) -> None:
    spec["process"]["env"].append("VGPU_MEM=1Gi")


@pytest.mark.parametrize(
    ("spoil", "given", "reason"),
    [
        (_unknown_variable, None, "request"),
        (_privileged, None, "policy"),
        (None, RefusedError("no", "r"), "cache"),
        (None, NoRoomError("no room", "r"), "no_room"),
        (None, UNREACHABLE, "cache_unreachable"),
        (None, ValueError("a bug"), "failure"),
    ],
)
async def test_a_refusal_is_counted_by_its_reason(
    node: Node,
    bundle: Bundle,
    spoil: Callable[[Spec], None] | None,
    given: Exception | None,
    reason: str,
) -> None:
    if spoil is not None:
        spec = bundle.spec()
        spoil(spec)
        bundle.write(spec)
    if given is not None:
        node.cache.give = given

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    counted = {name: count for name, count in node.counters.refusals.items() if count}
    assert counted == {reason: 1}
    assert node.counters.verdicts["refuse"] == 1
    assert sum(node.counters.latency_counts) == 1


async def test_a_slice_is_counted(node: Node, bundle: Bundle) -> None:
    await create(node, bundle)

    assert node.counters.verdicts["low-level"] == 1
    assert sum(node.counters.refusals.values()) == 0


def _node_of_a_gpu(spec: Spec) -> None:
    spec["linux"]["devices"] = [{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}]


async def test_a_policy_refuses_for_slices_and_hides_from_others(tmp_path: Path) -> None:
    node = await make_node(tmp_path / "node", deny=("device_nodes",))
    with_slice, without = plain_spec(*REQUEST), plain_spec("NVIDIA_VISIBLE_DEVICES=all")
    for spec in (with_slice, without):
        _node_of_a_gpu(spec)

    refused = await create(node, Bundle(tmp_path / "a", with_slice), "a")
    hidden = await create(node, Bundle(tmp_path / "b", without), "b")

    assert "device '/dev/nvidia1' is a GPU's; take it out" in refused.message
    assert node.counters.refusals["policy"] == 1
    assert hidden.kind == "low-level"
    await node.stop()
