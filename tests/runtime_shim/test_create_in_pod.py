# SPDX-License-Identifier: Apache-2.0
"""The create path in Kubernetes mode: real files, everything but runc and the network."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import AnswerStore
from runtime_shim.claims import Claims
from runtime_shim.config import Policy
from runtime_shim.create import Creator
from runtime_shim.errors import CacheUnreachableError, RefusedError
from runtime_shim.node_watch import NodeAnswers, PodLookup
from runtime_shim.spec import Spec, environment
from tests.runtime_shim.allocations import CARD, GIB, part
from tests.runtime_shim.containers import Process, write_runc_state
from tests.runtime_shim.pods import (
    MAIN,
    NODE,
    OTHER_UID,
    containerd_marks,
    crio_marks,
    kubelet_mounts,
    pod_allocation,
    pod_spec,
    systemd_cgroup,
)
from tests.runtime_shim.specs import bind, plain_spec
from tests.runtime_shim.test_create import Bundle, Node, create
from tests.runtime_shim.test_node_watch import Cache as Resolving

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
OTHER_UUID = "aaaaaaaa-0000-4000-8000-000000000002"
WITH_UUID = f"VGPU_CONTAINER_UUID={UUID}"
IMAGE = "NVIDIA_VISIBLE_DEVICES=all"


class PodNode(Node):
    """A node in Kubernetes mode."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        super().__init__(folder, policy, gpu_runtime=False)
        self.config = replace(self.config, mode="kubernetes", node_name=NODE)
        self.answers = NodeAnswers()
        self.resolving = Resolving()
        self.pods = PodLookup(
            self.config, NODE, self.answers, self.resolving, self.store, self.counters
        )
        self.claims = Claims(self.store, self.regions, self.cache, lambda: None, self.answers)
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
            pods=self.pods,
        )


async def make_node(folder: Path, **policy: Any) -> PodNode:  # noqa: ANN401
    node = PodNode(folder, Policy(**policy))
    await node.start()
    node.answers.replace([pod_allocation(container_uuid=UUID)])
    return node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[PodNode]:
    node = await make_node(tmp_path / "node")
    yield node
    await node.stop()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path / "bundle", pod_spec(WITH_UUID, IMAGE))


def has_library(bundle: Bundle) -> bool:
    return bundle.mount("/dev/vgpu/libvgpu.so") is not None


def sees(bundle: Bundle) -> str:
    return environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"]


@pytest.mark.parametrize("marks", [containerd_marks(), crio_marks()])
async def test_a_container_gets_what_its_pod_was_given(
    node: PodNode, tmp_path: Path, marks: dict[str, str]
) -> None:
    bundle = Bundle(tmp_path / "bundle", pod_spec(WITH_UUID, IMAGE, annotations=marks))

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == CARD
    assert has_library(bundle)
    (stored,) = node.store.all()
    assert (stored.allocation_id, stored.container_id) == (UUID, "c1")
    assert node.resolving.asked == []
    assert [claim.allocation.allocation_id for claim in node.claims.reports()] == [UUID]


async def test_requests_in_the_environment_mean_nothing(node: PodNode, tmp_path: Path) -> None:
    words = ("VGPU_MEMORY=64Gi", "VGPU_COUNT=9", "VGPU_CORES=100", "VGPU_WEIGHT=1000")
    bundle = Bundle(tmp_path / "bundle", pod_spec(WITH_UUID, *words))

    await create(node, bundle)

    assert sees(bundle) == CARD
    ours = [name for name in environment(bundle.spec()) if name.startswith("VGPU_")]
    assert ours == ["VGPU_CONTAINER_UUID"]
    region = node.regions.get(UUID)
    assert region is not None
    assert [each.memory_bytes for each in region.allocation.slices] == [part().memory_bytes]


@pytest.mark.parametrize("env", [(WITH_UUID,), ()], ids=["slice", "nothing"])
async def test_links_of_services_and_options_of_our_programs_stay(
    node: PodNode, tmp_path: Path, env: tuple[str, ...]
) -> None:
    """The launcher asks about any name that begins with `VGPU_`."""
    others = ["VGPU_SERVICE_HOST=10.0.0.1", "VGPU_A_PORT_80_TCP=x", "VGPU_CONFIG=/c", "VGPU_X=1"]
    bundle = Bundle(tmp_path / "bundle", pod_spec(*env, *others))
    if not env:
        node.answers.replace([])

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    found = bundle.spec()["process"]["env"]
    assert [entry for entry in found if entry in others] == others
    assert sees(bundle) == (CARD if env else "void")


async def test_a_request_without_a_pod_s_slice_sees_nothing(node: PodNode, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "bundle", plain_spec("VGPU_MEMORY=1Gi", IMAGE))

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == "void"
    assert not has_library(bundle)
    assert node.resolving.asked == []


async def test_a_container_without_uuid_gets_its_slice(node: PodNode, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "bundle", pod_spec(IMAGE))

    await create(node, bundle)

    assert sees(bundle) == CARD
    assert has_library(bundle)
    assert node.counters.resolved_by_identity == 1


async def test_a_node_may_require_the_uuid(tmp_path: Path) -> None:
    node = await make_node(tmp_path / "node", require_uuid=True)
    bundle = Bundle(tmp_path / "bundle", pod_spec(IMAGE))

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "which this node requires" in verdict.message
    assert node.counters.refusals["identity"] == 1
    await node.stop()


async def test_another_container_of_the_pod_sees_nothing(node: PodNode, tmp_path: Path) -> None:
    side = replace(MAIN, container_name="side")
    bundle = Bundle(tmp_path / "bundle", pod_spec(IMAGE, identity=side))

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == "void"
    assert node.resolving.asked == [], "the unmanaged never ask the network"


async def test_an_answer_of_no_slices_is_void(node: PodNode, bundle: Bundle) -> None:
    node.answers.replace([pod_allocation(container_uuid=UUID, void=True)])

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == "void"
    assert node.store.all() == []


async def test_whole_cards_come_without_library(node: PodNode, bundle: Bundle) -> None:
    whole = part(memory_bytes=8 * GIB, cores_percent=100)
    allocation = pod_allocation(whole, container_uuid=UUID)
    allocation.whole_cards = True
    node.answers.replace([allocation])

    await create(node, bundle)

    assert sees(bundle) == CARD
    assert not has_library(bundle)


@pytest.mark.parametrize(("memory_bytes", "cores_percent"), [(4 * GIB, 100), (8 * GIB, 50)])
async def test_less_than_the_whole_card_is_limited_whatever_was_asked_for(
    node: PodNode, bundle: Bundle, memory_bytes: int, cores_percent: int
) -> None:
    given = part(memory_bytes=memory_bytes, cores_percent=cores_percent)
    allocation = pod_allocation(given, container_uuid=UUID)
    allocation.whole_cards = True
    node.answers.replace([allocation])

    await create(node, bundle)

    assert has_library(bundle)
    region = node.regions.get(UUID)
    assert region is not None
    assert list(region.allocation.slices) == [given]


async def test_more_than_the_card_starts_nothing(node: PodNode, bundle: Bundle) -> None:
    allocation = pod_allocation(part(memory_bytes=2**63), container_uuid=UUID)
    node.answers.replace([allocation])

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert f"gives {2**63} bytes of card {CARD}, which has {8 * GIB}" in verdict.message
    assert node.store.all() == []


def _spy(spec: Spec) -> None:
    spec["annotations"].update(containerd_marks(replace(MAIN, pod="spy", pod_uid=OTHER_UID)))
    spec["mounts"] = [*spec["mounts"][:2], *kubelet_mounts(OTHER_UID)]
    spec["linux"]["cgroupsPath"] = systemd_cgroup(OTHER_UID)


def _forged_annotation(spec: Spec) -> None:
    spec["annotations"]["io.kubernetes.cri.sandbox-uid"] = OTHER_UID


def _forged_hosts(spec: Spec) -> None:
    spec["mounts"] = [*spec["mounts"][:2], *kubelet_mounts(OTHER_UID)]


def _forged_cgroup(spec: Spec) -> None:
    spec["linux"]["cgroupsPath"] = systemd_cgroup(OTHER_UID)


def _no_pod(spec: Spec) -> None:
    spec.pop("annotations")
    spec["mounts"] = spec["mounts"][:2]


def _bad_uuid(spec: Spec) -> None:
    spec["process"]["env"].append("VGPU_CONTAINER_UUID=../../x")


def _empty_uuid(spec: Spec) -> None:
    spec["process"]["env"].append("VGPU_CONTAINER_UUID=")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_spy, "its VGPU_CONTAINER_UUID belongs to another container"),
        (_forged_annotation, "the kubelet's /etc/hosts says"),
        (_forged_hosts, "the kubelet's /etc/hosts says"),
        (_forged_cgroup, "the cgroup's path says"),
        (_no_pod, "was not started by the kubelet"),
        (_bad_uuid, "is not what admission writes"),
        (_empty_uuid, "is not what admission writes"),
    ],
)
async def test_a_false_identity_is_refused(
    node: PodNode, bundle: Bundle, spoil: Callable[[Spec], None], sentence: str
) -> None:
    spec = bundle.spec()
    spoil(spec)
    bundle.write(spec)
    before = bundle.spec()

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert sentence in verdict.message
    assert bundle.spec() == before
    assert node.store.all() == []
    assert node.counters.refusals["identity"] + node.counters.refusals["cache"] == 1


async def test_a_contradiction_without_a_slice_only_hides(
    node: PodNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side = replace(MAIN, container_name="side")
    spec = pod_spec(IMAGE, identity=side, cgroup=systemd_cgroup(OTHER_UID))
    bundle = Bundle(tmp_path / "bundle", spec)

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == "void"
    assert "container without a slice contradicts itself" in caplog.messages


def _privileged(spec: Spec) -> None:
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}


def _host_pid(spec: Spec) -> None:
    spec["linux"]["namespaces"] = [{"type": "mount"}]


@pytest.mark.parametrize(
    ("spoil", "sentence"), [(_privileged, "privileged"), (_host_pid, "PID namespace")]
)
async def test_what_cannot_be_held_is_refused(
    node: PodNode, bundle: Bundle, spoil: Callable[[Spec], None], sentence: str
) -> None:
    spec = bundle.spec()
    spoil(spec)
    bundle.write(spec)

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert sentence in verdict.message
    assert node.counters.refusals["policy"] == 1


@pytest.mark.parametrize("by_cri", [True, False])
async def test_what_calls_itself_a_sandbox_sees_no_card(
    node: PodNode, tmp_path: Path, by_cri: bool
) -> None:
    """`podman run --annotation io.kubernetes.cri.container-type=sandbox --device /dev/nvidia0`."""
    marks = containerd_marks(kind="sandbox")
    if not by_cri:
        marks = {"io.kubernetes.cri.container-type": "sandbox"}
    card = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    rules = [{"allow": True, "type": "c", "major": 195, "access": "rwm"}]
    bundle = Bundle(
        tmp_path / "bundle", plain_spec(IMAGE, annotations=marks, rules=rules, devices=[card])
    )

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert sees(bundle) == "void"
    assert bundle.spec()["linux"]["devices"] == []
    assert rules[0] not in bundle.spec()["linux"]["resources"]["devices"]


async def test_a_privileged_sandbox_passes_untouched(node: PodNode, tmp_path: Path) -> None:
    spec = plain_spec(annotations=containerd_marks(kind="sandbox"))
    spec["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    bundle = Bundle(tmp_path / "bundle", spec)
    before = (bundle.folder / "config.json").read_bytes()

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    assert (bundle.folder / "config.json").read_bytes() == before


async def test_a_container_that_calls_itself_a_sandbox_is_none(
    node: PodNode, tmp_path: Path
) -> None:
    marks = {**containerd_marks(), "io.kubernetes.cri.container-type": "sandbox"}
    bundle = Bundle(tmp_path / "bundle", pod_spec(WITH_UUID, annotations=marks))
    await create(node, bundle)
    assert has_library(bundle)

    marks["io.kubernetes.cri.container-name"] = "side"
    mounts = [*kubelet_mounts(container_name="side"), bind("/dev/nvidia0", "/dev/nvidia0")]
    bundle.write(pod_spec(IMAGE, annotations=marks, mounts=mounts))
    await create(node, bundle, "c2")

    assert sees(bundle) == "void"
    assert bundle.mount("/dev/nvidia0") is None


@pytest.mark.parametrize(
    ("patterns", "left_alone"),
    [
        (("team-*/train-?",), True),
        (("team-a/*",), True),
        (("other/*",), False),
        ((), False),
    ],
)
async def test_pods_of_the_policy_s_patterns_are_left_alone(
    tmp_path: Path, patterns: tuple[str, ...], left_alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node = await make_node(tmp_path / "node", unmanaged_allow=patterns)
    side = replace(MAIN, container_name="side")
    bundle = Bundle(tmp_path / "bundle", pod_spec(IMAGE, identity=side))

    await create(node, bundle)

    assert sees(bundle) == ("all" if left_alone else "void")
    told = "container without a slice left as it is" in caplog.messages
    assert told is left_alone
    await node.stop()


async def test_no_pattern_lets_through_who_contradicts_himself(tmp_path: Path) -> None:
    node = await make_node(tmp_path / "node", unmanaged_allow=("team-a/*",))
    side = replace(MAIN, container_name="side")
    spec = pod_spec(IMAGE, identity=side, cgroup=systemd_cgroup(OTHER_UID))
    bundle = Bundle(tmp_path / "bundle", spec)

    await create(node, bundle)

    assert sees(bundle) == "void"
    await node.stop()


async def test_a_privileged_container_without_a_slice_is_let_through_and_told(
    node: PodNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = pod_spec(IMAGE, identity=replace(MAIN, container_name="side"))
    _privileged(spec)
    bundle = Bundle(tmp_path / "bundle", spec)

    await create(node, bundle)

    assert sees(bundle) == "all"
    assert "container without a slice left as it is" in caplog.messages


async def test_a_deleted_pod_is_not_started_again(node: PodNode, bundle: Bundle) -> None:
    await create(node, bundle)
    node.answers.remove(UUID)
    await node.claims.drop(UUID)
    node.resolving.give = RefusedError("container was deleted", "make a new pod")
    bundle.write(pod_spec(WITH_UUID))

    verdict = await create(node, bundle, "c2")

    assert verdict.kind == "refuse"
    assert "was deleted" in verdict.message


async def test_a_slice_taken_back_meanwhile_starts_nothing(node: PodNode, bundle: Bundle) -> None:
    node.answers.replace([])
    node.resolving.give = pod_allocation(container_uuid=UUID)
    node.resolving.on_resolve = lambda: node.answers.remove(UUID)

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "taken back while it started" in verdict.message
    assert node.store.all() == []


def while_it_is_created(node: PodNode, act: Callable[[], None]) -> None:
    """Let something happen between the answer and the container's files."""
    look = node.claims.look_at_one

    async def later(allocation_id: str) -> None:
        act()
        await look(allocation_id)

    node.claims.look_at_one = later  # type: ignore[method-assign]


async def test_a_snapshot_without_the_slice_meanwhile_starts_nothing(
    node: PodNode, bundle: Bundle
) -> None:
    while_it_is_created(node, lambda: node.answers.replace([]))

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "taken back while it started" in verdict.message
    assert node.store.all() == []


async def test_a_slice_that_changes_meanwhile_is_given_as_it_is_now(
    node: PodNode, bundle: Bundle
) -> None:
    smaller = part(memory_bytes=GIB)
    while_it_is_created(
        node, lambda: node.answers.upsert(pod_allocation(smaller, container_uuid=UUID))
    )

    verdict = await create(node, bundle)

    assert verdict.kind == "low-level"
    region = node.regions.get(UUID)
    assert region is not None
    assert [each.memory_bytes for each in region.allocation.slices] == [GIB]
    (stored,) = node.store.all()
    assert list(stored.allocation.slices) == [smaller]


async def test_a_limit_that_comes_meanwhile_needs_the_library(
    node: PodNode, bundle: Bundle
) -> None:
    whole = pod_allocation(part(memory_bytes=8 * GIB, cores_percent=100), container_uuid=UUID)
    whole.whole_cards = True
    node.answers.replace([whole])
    while_it_is_created(
        node, lambda: node.answers.upsert(pod_allocation(part(), container_uuid=UUID))
    )

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "its slice changed while it started" in verdict.message


async def test_a_restart_without_the_cache_keeps_the_slice(node: PodNode, bundle: Bundle) -> None:
    await create(node, bundle, "c1")
    node.answers.lost()
    node.answers.replace([])
    node.answers.lost()
    node.resolving.give = CacheUnreachableError("cache:9400", 2.0, "unavailable")
    bundle.write(pod_spec(WITH_UUID, IMAGE))

    verdict = await create(node, bundle, "c2")

    assert verdict.kind == "low-level"
    assert sees(bundle) == CARD
    assert node.counters.stored_answers == 1
    (stored,) = node.store.all()
    assert stored.container_id == "c2"


async def test_a_first_start_without_the_cache_is_refused(node: PodNode, bundle: Bundle) -> None:
    node.answers.lost()
    node.resolving.give = CacheUnreachableError("cache:9400", 8.0, "unavailable")

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert "the scheduler cache at cache:9400 gave no answer in 8 s" in verdict.message


async def test_the_slice_of_a_container_that_runs_is_not_given_again(
    node: PodNode, bundle: Bundle
) -> None:
    await create(node, bundle, "c1")
    with Process() as init:
        write_runc_state(node.folder / "runtime", "c1", init.pid)
        await node.claims.look()
        bundle.write(pod_spec(WITH_UUID, IMAGE))

        refused = await create(node, bundle, "c2")

        assert refused.kind == "refuse"
        assert "container c1 still runs with its slice" in refused.message
        init.end()

        assert (await create(node, bundle, "c2")).kind == "low-level"


async def test_two_creates_of_one_slice_at_once_are_one(node: PodNode, tmp_path: Path) -> None:
    bundles = [Bundle(tmp_path / f"b{n}", pod_spec(WITH_UUID)) for n in range(4)]
    with Process() as launcher:
        verdicts = await asyncio.gather(
            *(create(node, each, f"c{n}", launcher) for n, each in enumerate(bundles))
        )

    assert sorted(verdict.kind for verdict in verdicts) == ["low-level", *["refuse"] * 3]


async def test_a_container_that_ended_keeps_its_answer_as_long_as_the_cache_does(
    node: PodNode, bundle: Bundle
) -> None:
    (node.folder / "runtime").mkdir()
    await create(node, bundle)
    shutil.rmtree(bundle.folder)  # the engine forgets it
    await node.claims.look()
    assert not node.claims.is_running(UUID)
    assert [each.allocation_id for each in node.store.all()] == [UUID]
    assert node.cache.released == []

    node.answers.remove(UUID)
    await node.claims.look()

    assert node.store.all() == []
    assert node.regions.get(UUID) is None


async def test_answers_survive_in_the_form_of_before(node: PodNode, bundle: Bundle) -> None:
    await create(node, bundle)

    again = AnswerStore(node.store.folder)
    again.load()

    (stored,) = again.all()
    assert stored.allocation.pod == pb.PodIdentity(
        uid=MAIN.pod_uid, namespace="team-a", name="train-0", container_name="main"
    )
    content = json.loads((node.store.folder / f"{UUID}.json").read_text())
    assert content["allocation"]["pod"]["uid"] == MAIN.pod_uid


async def test_a_volume_over_the_kubelet_s_hosts_is_no_other_pod(
    node: PodNode, tmp_path: Path
) -> None:
    mounts = [*kubelet_mounts(), bind(f"/srv/pods/{OTHER_UID}/etc-hosts", "/etc/hosts")]
    bundle = Bundle(tmp_path / "bundle", pod_spec(WITH_UUID, mounts=mounts))

    verdict = await create(node, bundle)

    assert verdict.kind == "refuse"
    assert OTHER_UUID not in verdict.message
