# SPDX-License-Identifier: Apache-2.0
"""What is held is neither lost nor kept too long: by refused Bindings, broken pods, lost nodes."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler_cache.cluster_leader import epoch_floor
from scheduler_cache.dialects.dialect import Decision
from scheduler_cache.dialects.hami import Hami
from scheduler_cache.dialects.koordinator import Koordinator
from scheduler_cache.dialects.volcano import Volcano
from scheduler_cache.errors import (
    NoRoomError,
    NoSliceError,
    NotBelievedError,
    NotFoundError,
    NotYetError,
    WrongNodeError,
)
from scheduler_cache.pod import KubeNode, Pod, pod_of
from scheduler_cache.record import AllocationState
from tests.scheduler_cache.builders import GIB, NODE
from tests.scheduler_cache.kube_objects import (
    A,
    B,
    World,
    bound_pod,
    container,
    container_of,
    gpu,
    identity,
    kube_node,
    node_report,
    pod,
)

OTHER = "node-b"


def two_nodes() -> World:
    world = World(gpu(A))
    world.cluster.apply_node(kube_node(OTHER), world.now)
    world.cluster.apply_report(node_report(gpu(B, 4), node=OTHER), world.now)
    return world


# Bindings


def test_a_refused_second_binding_frees_nothing_of_the_confirmed_first() -> None:
    world = two_nodes()
    world.apply(pod("p1", container(memory="3Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.confirm("p1", world.now)

    deltas = world.cluster.abandon("p1", world.now)

    assert (deltas.watch, world.used(A)) == ([], (3, 0, 1))
    assert world.resolve().slices[0].card_uuid == A


def test_a_confirmed_pod_is_reserved_on_no_other_node() -> None:
    world = two_nodes()
    world.apply(pod("p1", container(memory="3Gi")))
    first, _ = world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.confirm("p1", world.now)

    with pytest.raises(WrongNodeError, match=f"already bound to node {NODE}"):
        world.cluster.reserve("p1", OTHER, 2, world.now)
    again, _ = world.cluster.reserve("p1", NODE, 2, world.now)

    # What was written is what a later leader says, too.
    assert again == first
    assert (world.used(A), world.used(B, OTHER)) == ((3, 0, 1), (0, 0, 0))


def test_a_reservation_that_fails_leaves_the_one_that_holds() -> None:
    world = two_nodes()
    world.apply(pod("p1", container(memory="6Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)

    with pytest.raises(NoRoomError):
        world.cluster.reserve("p1", OTHER, 1, world.now)

    assert world.used(A) == (6, 0, 1)
    assert world.cluster.confirm("p1", world.now).watch


def test_a_reservation_of_a_later_epoch_that_fails_leaves_the_one_that_holds() -> None:
    world = World(gpu(A))
    world.apply(pod("p1", container(memory="6Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.apply_node(kube_node(annotations={"vgpu.dev/cordon": A}), world.now)

    with pytest.raises(NoRoomError, match="cordoned"):
        world.cluster.reserve("p1", NODE, 2, world.now)

    assert world.used(A) == (6, 0, 1)


def test_a_reservation_on_another_node_replaces_the_first() -> None:
    world = two_nodes()
    world.apply(pod("p1", container(memory="3Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)

    world.cluster.reserve("p1", OTHER, 1, world.now)

    assert (world.used(A), world.used(B, OTHER)) == ((0, 0, 0), (3, 0, 1))


def test_a_reservation_whose_binding_is_being_written_does_not_lapse() -> None:
    world = World(gpu(A), assume_seconds=30)
    world.apply(pod("p1", container(memory="3Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)

    for _ in range(4):
        world.cluster.hold("p1", world.now)
        world.wait(45)
        assert world.used(A)[0] == 3

    world.wait(30)
    assert world.used(A)[0] == 0


# Init containers


def started(world: World, init_done: bool) -> dict[str, object]:
    """Bind a pod with a large init container, and say that that has ended."""
    inits = [container("first", memory="6Gi")]
    bound = world.bind(pod("p1", container(memory="2Gi"), inits=inits))
    if init_done:
        later = pod("p1", container(memory="2Gi"), inits=inits, node=NODE, init_done=["first"])
        later["metadata"]["annotations"] = bound["metadata"]["annotations"]
        world.apply(later)
    return bound


def test_what_an_init_container_holds_is_kept_free_at_reserve_time_and_later() -> None:
    world = World(gpu(A))
    world.apply(pod("p2", container(memory="3Gi")))
    started(world, init_done=False)

    assert world.used(A) == (6, 0, 1)
    with pytest.raises(NoRoomError):
        world.cluster.reserve("p2", NODE, 1, world.now)
    assert world.resolve("p1", "first").slices[0].memory_bytes == 6 << 30


def test_an_init_container_that_is_over_gets_no_slice_that_others_may_have() -> None:
    world = World(gpu(A))
    started(world, init_done=True)
    world.bind(pod("p2", container(memory="6Gi")))

    with pytest.raises(NotYetError, match="the init containers of its pod have finished"):
        world.resolve("p1", "first")
    assert {each.pod.container_name for each in world.cluster.snapshot(NODE) if each.pod} == {
        "main"
    }
    assert world.resolve("p1", "main")
    assert world.resolve("p2", "main")


def test_a_whole_card_of_an_init_container_is_cut_up_for_the_others() -> None:
    """They never run at a time: the pod does not overbook its own card."""
    world = World(gpu(A))
    inits = [container("first", memory_percent="100")]
    apps = [container("one", memory="2Gi"), container("two", memory="3Gi")]

    bound = world.bind(pod("p1", *apps, inits=inits))

    assert world.resolve("p1", "first").whole_cards
    assert [world.resolve("p1", name).exclusive for name in ("first", "one", "two")] == [
        True,
        False,
        False,
    ]
    assert world.used() == (8, 100, 2)
    with pytest.raises(NoRoomError, match="held exclusively"):
        world.bind(pod("p2", container(memory="1Gi")))

    later = pod("p1", *apps, inits=inits, node=NODE, init_done=["first"])
    later["metadata"]["annotations"] = bound["metadata"]["annotations"]
    world.apply(later)

    assert world.used() == (5, 0, 2)
    world.bind(pod("p3", container(memory="1Gi")))
    assert world.resolve("p3").slices[0].card_uuid == A
    assert world.resolve("p1", "two").slices[0].memory_bytes == 3 * GIB


def test_init_containers_that_run_again_hold_again() -> None:
    world = World(gpu(A))
    bound = started(world, init_done=True)
    first = next(iter(world.cluster.records)).ids["first"]
    world.report(first)
    assert world.used(A)[0] == 6

    world.report()
    assert world.used(A)[0] == 2
    again = pod("p1", container(memory="2Gi"), inits=[container("first", memory="6Gi")], node=NODE)
    again["metadata"]["annotations"] = bound["metadata"]["annotations"]  # type: ignore[index]
    world.apply(again)
    assert world.resolve("p1", "first")


# What is written vanishes


def test_a_bound_pod_that_loses_its_allocation_keeps_its_slice_while_it_runs() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="6Gi")))
    running = world.resolve()
    world.report(running)

    world.apply(pod("p1", container(memory="6Gi"), node=NODE))

    assert world.used(A)[0] == 6
    assert world.cluster.snapshot(NODE) == [running]
    with pytest.raises(NoSliceError):
        world.resolve()
    world.report()
    assert world.used(A)[0] == 0


# Faults of a reader


class Faulty(Volcano):
    """A dialect with a fault of its own."""

    def parse_allocation(self, pod: Pod) -> Decision:
        raise KeyError("missing")

    def parse_node(self, node: KubeNode) -> None:
        raise ZeroDivisionError


def test_a_fault_in_a_reader_ends_nothing_and_blocks_what_the_pod_may_hold() -> None:
    world = World(gpu(A), others=[Faulty()])
    source = pod(
        "p1",
        container_of("main", {"volcano.sh/vgpu-memory": "5120"}),
        annotations={"volcano.sh/vgpu-ids-new": "whatever"},
        node=NODE,
    )

    world.apply(source)

    assert world.used(A)[0] == 5
    with pytest.raises(NotBelievedError, match=r"failed \(KeyError"):
        world.resolve()


def test_a_fault_in_a_reader_of_nodes_ends_nothing_and_offers_nothing() -> None:
    world = World(gpu(A), others=[Faulty()])
    world.apply(pod("p1", container(memory="1Gi")))

    with pytest.raises(NoRoomError, match="ZeroDivisionError"):
        world.cluster.reserve("p1", NODE, 1, world.now)


# Nodes that are gone


def test_a_node_that_is_gone_is_forgotten_once_nothing_holds_there() -> None:
    world = two_nodes()
    world.bind(pod("p1", container(memory="1Gi")), node=OTHER)
    world.cluster.delete_node(OTHER, world.now)
    world.wait(1)

    world.wait(400)
    assert world.cluster.view(OTHER) is not None
    world.cluster.delete_pod("p1", world.now)
    deltas = world.wait(1)

    assert OTHER in deltas.nodes
    assert world.cluster.view(OTHER) is None
    assert world.cluster.node_names == [NODE]
    assert world.cluster.snapshot(OTHER) == []


def test_an_orphan_of_a_lost_node_ends_with_it_and_its_node_hears_of_it() -> None:
    world = two_nodes()
    world.bind(pod("p1", container(memory="1Gi")), node=OTHER)
    running = world.cluster.snapshot(OTHER)[0]
    world.cluster.apply_report(node_report(gpu(B, 4), running=[running], node=OTHER), world.now)
    world.cluster.delete_pod("p1", world.now)
    world.cluster.delete_node(OTHER, world.now)
    world.wait(1)
    assert world.cluster.snapshot(OTHER) == [running]

    first, second = world.wait(400), world.wait(1)

    assert (OTHER, running.allocation_id) in first.watch + second.watch
    assert world.cluster.view(OTHER) is None


def test_a_card_of_a_node_that_is_gone_may_serve_in_another() -> None:
    world = two_nodes()
    world.cluster.delete_node(OTHER, world.now)
    world.wait(1)
    world.wait(400)
    world.cluster.apply_report(node_report(gpu(A), gpu(B), node=NODE), world.now)

    world.bind(pod("p1", container(memory="1Gi", count="2")))

    assert world.used(B)[2] == 1


def test_a_node_that_still_reports_or_renews_its_lease_is_kept() -> None:
    world = two_nodes()
    world.cluster.delete_node(OTHER, world.now)
    world.wait(1)
    world.wait(200)
    world.cluster.apply_report(node_report(gpu(B, 4), node=OTHER), world.now)
    world.wait(200)
    assert world.cluster.view(OTHER) is not None
    world.cluster.apply_lease(OTHER, "later", world.now)
    world.wait(200)
    assert world.cluster.view(OTHER) is not None
    world.cluster.apply_node(kube_node(OTHER), world.now)
    world.wait(4000)
    assert world.cluster.view(OTHER) is not None


def test_a_node_that_nobody_ever_described_is_forgotten_with_its_pods() -> None:
    """After a restart, all that is left of a node may be a pod that names it."""
    world = World(gpu(A))
    source = pod("p1", container(memory="1Gi"))
    world.apply(bound_pod(source, {}, "node-of-old"))
    world.wait(1)
    assert "node-of-old" in world.cluster.node_names

    world.cluster.delete_pod("p1", world.now)
    world.wait(400)
    world.wait(1)

    assert world.cluster.node_names == [NODE]
    assert world.cluster.record("p1") is None


# Events that come again, late, or in another order


def test_news_of_a_pod_that_is_not_bound_yet_frees_nothing_of_its_reservation() -> None:
    """kube-scheduler writes a condition; the Binding may be under way, or accepted already."""
    world = World(gpu(A))
    for confirmed in (False, True):
        world.apply(pod("p1", container(memory="3Gi")))
        world.cluster.reserve("p1", NODE, 1, world.now)
        if confirmed:
            world.cluster.confirm("p1", world.now)

        world.apply(pod("p1", container(memory="3Gi")))

        assert world.used(A)[0] == 3


def test_a_pod_that_ended_and_was_released_holds_nothing_again_at_its_next_event() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1", container(memory="3Gi")))

    def ended() -> dict[str, object]:
        later = pod("p1", container(memory="3Gi"), node=NODE, phase="Succeeded")
        later["metadata"]["annotations"] = bound["metadata"]["annotations"]
        return later

    world.apply(ended())
    assert world.used(A)[0] == 3
    world.report()
    assert world.used(A)[0] == 0

    world.apply(ended())

    assert world.used(A)[0] == 0
    assert world.cluster.state("p1") is AllocationState.RELEASED


def test_a_pod_that_has_ended_holds_while_its_node_reports_a_container() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1", container(memory="3Gi")))
    held = world.resolve().allocation_id
    later = pod("p1", container(memory="3Gi"), node=NODE, phase="Failed")
    later["metadata"]["annotations"] = bound["metadata"]["annotations"]
    world.apply(later)

    world.report(held)

    assert world.used(A)[0] == 3
    assert world.cluster.state("p1") is AllocationState.RUNNING
    view = world.cluster.view(NODE)
    assert view is not None
    assert view.refusal == ""


def test_a_pod_is_remembered_as_deleted_at_the_latest_version_that_was_told() -> None:
    world = World(gpu(A))
    world.cluster.delete_pod("p1", world.now, 20)
    world.cluster.delete_pod("p1", world.now, 10)

    world.apply(pod("p1", container(memory="3Gi"), version=15))

    assert world.cluster.record("p1") is None


def test_to_hear_of_a_deletion_again_does_not_prolong_its_memory() -> None:
    world = World(gpu(A), remember_seconds=100)
    world.cluster.delete_pod("p1", world.now, 20)
    world.wait(90)
    world.cluster.delete_pod("p1", world.now, 20)

    world.wait(20)

    with pytest.raises(NotYetError):
        world.resolve()


def test_a_lease_that_comes_again_unchanged_is_no_sign_of_life() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="3Gi")))
    world.cluster.apply_lease(NODE, "renewed", world.now)
    world.cluster.delete_pod("p1", world.now)
    for _ in range(5):
        world.wait(100)
        world.cluster.apply_lease(NODE, "renewed", world.now)

    world.wait(1)

    assert world.used(A)[0] == 0


# What still runs


def placed_elsewhere(uid: str, memory: str) -> dict[str, object]:
    """Return a pod as another leader, who knew of nothing else, has bound it."""
    return World(gpu(A)).bind(pod(uid, container(memory=memory)))


def test_who_is_bound_where_an_orphan_runs_waits_for_its_end() -> None:
    world, other = World(gpu(A)), World(gpu(A))
    other.bind(pod("p9", container(memory="6Gi")))
    world.report(other.resolve("p9"))

    world.apply(placed_elsewhere("p2", "6Gi"))

    with pytest.raises(NotYetError, match="still used by a container that must end"):
        world.resolve("p2")
    world.report()
    assert world.resolve("p2").slices[0].memory_bytes == 6 << 30


def test_who_runs_already_is_not_taken_off_by_an_orphan() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="6Gi")))
    running = world.resolve()
    other = World(gpu(A))
    other.bind(pod("p9", container(memory="6Gi")))

    world.report(running, other.resolve("p9"))

    assert running in world.cluster.snapshot(NODE)
    assert world.resolve() == running


def test_what_runs_counts_when_the_record_of_it_is_made_smaller() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1", container(memory="6Gi")))
    running = world.resolve()
    text = bound["metadata"]["annotations"]["vgpu.dev/allocation"]
    smaller = text.replace(str(6 << 30), str(1 << 30))
    assert smaller != text

    tampered = pod("p1", container(memory="6Gi"), node=NODE)
    tampered["metadata"]["annotations"]["vgpu.dev/allocation"] = smaller
    world.apply(tampered)
    world.report(running)

    assert world.used(A)[0] >= 6
    with pytest.raises(NotBelievedError):
        world.resolve()


def test_a_pod_whose_card_became_smaller_is_not_started_and_not_evicted_for_it() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="6Gi")))
    world.cards = (gpu(A, 4),)

    deltas = world.report()

    with pytest.raises(NotBelievedError, match="overbooked"):
        world.resolve()
    assert deltas.evict == []
    assert [notice.reason for _, notice in deltas.notices] == ["AllocationLost"]


# What two leaders, or two schedulers, gave twice


def test_of_two_that_hold_the_last_slot_of_a_card_one_is_started() -> None:
    world = World(gpu(A, slots=1))
    for uid in ("p1", "p2"):
        world.apply(placed_elsewhere(uid, "1Gi"))

    with pytest.raises(NotBelievedError, match="overbooked"):
        world.resolve("p2")
    # Another replica may have let p2 start; it is evicted.
    with pytest.raises(NotYetError, match="must end"):
        world.resolve("p1")
    world.cluster.delete_pod("p2", world.now)
    world.report()
    assert world.resolve("p1")


def test_nobody_is_started_beside_who_holds_a_card_alone() -> None:
    world, other = World(gpu(A)), World(gpu(A))
    alone = pod("p1", container(memory="1Gi"), annotations={"vgpu.dev/card-policy": "exclusive"})
    world.apply(other.bind(alone))
    world.apply(placed_elsewhere("p2", "1Gi"))

    with pytest.raises(NotBelievedError, match="overbooked"):
        world.resolve("p2")
    world.cluster.delete_pod("p2", world.now)
    world.report()
    assert world.resolve("p1").exclusive


def test_what_wanted_a_card_alone_and_cannot_be_read_keeps_every_card_alone() -> None:
    world = World(gpu(A))
    annotations = {"vgpu.dev/card-policy": "exclusive", "vgpu.dev/allocation": "unreadable"}
    world.apply(pod("p1", container(memory="1Gi"), annotations=annotations, node=NODE))
    world.apply(pod("p2", container(memory="1Gi")))

    with pytest.raises(NoRoomError):
        world.cluster.reserve("p2", NODE, 1, world.now)


def test_a_scheduler_that_was_replaced_decides_nothing_any_more() -> None:
    world = World(gpu(A), others=[Hami()])
    decided = {"hami.io/vgpu-node": NODE, "hami.io/vgpu-devices-allocated": f"{A},NVIDIA,1024,0:;"}
    source = pod(
        "p1",
        container_of("main", {"nvidia.com/gpumem": "1024"}),
        annotations=decided,
        node=NODE,
    )
    for mode, believed in (("join", True), ("replace", False)):
        labels = {"vgpu.dev/dialect": "hami", "vgpu.dev/mode": mode}
        world.cluster.apply_node(kube_node(labels=labels), world.now)
        world.apply(source)
        if believed:
            assert world.resolve()
        else:
            with pytest.raises(NotBelievedError, match="hami decided about"):
                world.resolve()


def test_containers_of_one_account_hold_the_same_or_nothing() -> None:
    world = World(gpu(A), others=[Koordinator()])
    limits = {"koordinator.sh/gpu-memory": "2Gi", "koordinator.sh/gpu-core": "20"}
    containers = [container_of(name, limits) for name in ("main", "second")]
    source = pod("p1", *containers)
    world.apply(source)
    reservation, _ = world.cluster.reserve("p1", NODE, 1, world.now)
    unequal = dict(reservation.allocations)
    part = unequal["second"].slices[0]
    less = dataclasses.replace(part, memory_bytes=part.memory_bytes // 2)
    unequal["second"] = dataclasses.replace(unequal["second"], slices=(less,))
    signed = world.dialects.native.encode_allocation(pod_of(source), unequal, {})

    world.apply(bound_pod(source, signed, NODE))

    with pytest.raises(NotBelievedError, match="share one account and yet hold different"):
        world.resolve()


def test_no_node_can_use_up_the_epochs() -> None:
    """A Lease counts to 2^31; a new leader's epoch begins above all that we ever wrote."""
    world = World(gpu(A))
    world.bind(pod("p1"), epoch=7)
    told = dataclasses.replace(
        world.resolve(), allocation_id="x", pod=identity("p9"), epoch=(1 << 31) - 2
    )

    world.report(told)

    assert epoch_floor(world.cluster) == 7
    world.apply(pod("p2"))
    world.cluster.reserve("p2", NODE, 8, world.now)
    assert epoch_floor(world.cluster) == 8


def test_a_pod_that_is_deleted_while_its_binding_is_written_is_forgotten() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))
    world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.delete_pod("p1", world.now)
    assert world.used()[2] == 1

    world.cluster.abandon("p1", world.now)

    assert world.used() == (0, 0, 0)
    assert world.cluster.record("p1") is None
    with pytest.raises(NotFoundError):
        world.resolve()
    world.wait(1000)
    with pytest.raises(NotYetError):
        world.resolve()
