# SPDX-License-Identifier: Apache-2.0
"""The cluster's state: who holds what, since when, and until when."""

from __future__ import annotations

import copy
import json

import pytest

from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.errors import (
    NoRoomError,
    NoSliceError,
    NotBelievedError,
    NotFoundError,
    NotYetError,
    WrongNodeError,
)
from scheduler_cache.record import AllocationState
from tests.scheduler_cache.builders import GIB, NODE
from tests.scheduler_cache.kube_objects import (
    A,
    B,
    World,
    bound_pod,
    container,
    gpu,
    identity,
    kube_node,
    node_report,
    pod,
)

UUID = "11111111-2222-4333-8444-555555555555"


def test_a_bound_pod_is_resolved_with_what_the_leader_chose() -> None:
    world = World(gpu(A))

    world.bind(pod("p1", container(memory="2Gi", cores="30", uuid=UUID)))

    allocation = world.cluster.resolve(UUID, NODE, identity())
    assert allocation.allocation_id == UUID
    assert [
        (part.card_uuid, part.memory_bytes, part.cores_percent) for part in allocation.slices
    ] == [(A, 2 * GIB, 30)]
    assert world.cluster.snapshot(NODE) == [allocation]
    assert world.used() == (2, 30, 1)


def test_the_state_goes_from_pending_to_released() -> None:
    world = World(gpu(A))
    source = pod("p1")
    states = []

    world.apply(source)
    states.append(world.cluster.state("p1"))
    reservation, _ = world.cluster.reserve("p1", NODE, 1, world.now)
    states.append(world.cluster.state("p1"))
    world.cluster.confirm("p1", world.now)
    states.append(world.cluster.state("p1"))
    bound = bound_pod(source, reservation.annotations, NODE)
    world.apply(bound)
    allocation = world.resolve()
    world.report(allocation)
    states.append(world.cluster.state("p1"))
    world.apply({**bound, "status": {"phase": "Succeeded"}})
    states.append(world.cluster.state("p1"))
    world.report()
    states.append(world.cluster.state("p1"))

    assert states == [
        AllocationState.PENDING,
        AllocationState.ASSUMED,
        AllocationState.BOUND,
        AllocationState.RUNNING,
        AllocationState.RUNNING,
        AllocationState.RELEASED,
    ]
    assert world.used() == (0, 0, 0)


def test_a_node_hears_of_an_allocation_when_the_binding_is_accepted_and_not_before() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))

    reservation, reserved = world.cluster.reserve("p1", NODE, 1, world.now)
    confirmed = world.cluster.confirm("p1", world.now)

    assert reserved.watch == []
    assert confirmed.watch == [(NODE, reservation.allocations["main"])]


def test_a_reservation_holds_before_anything_is_written() -> None:
    world = World(gpu(A, 4))
    world.apply(pod("p1", container(memory="3Gi")))
    world.apply(pod("p2", container(memory="3Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)

    with pytest.raises(NoRoomError, match="1.0Gi of 4.0Gi"):
        world.cluster.reserve("p2", NODE, 1, world.now)


def test_an_abandoned_reservation_is_free_at_once_and_a_forgotten_one_later() -> None:
    world = World(gpu(A, 4), assume_seconds=30)
    world.apply(pod("p1", container(memory="3Gi")))
    world.apply(pod("p2", container(memory="3Gi")))
    world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.abandon("p1", world.now)
    world.cluster.reserve("p2", NODE, 1, world.now)

    world.wait(29)
    held = world.used()
    world.wait(2)

    assert held == (3, 0, 1)
    assert world.used() == (0, 0, 0)


def test_a_confirmed_reservation_never_lapses() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))
    world.cluster.reserve("p1", NODE, 1, world.now)
    world.cluster.confirm("p1", world.now)

    world.wait(100_000)

    assert world.used() == (2, 0, 1)
    assert world.resolve().slices[0].card_uuid == A


def test_a_deletion_timestamp_frees_nothing() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))
    world.report()

    bound["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bound["metadata"]["resourceVersion"] = "9999"
    world.apply(bound)
    world.report()

    assert world.used() == (2, 0, 1)


def test_a_terminal_pod_holds_until_its_node_reports_the_end() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))
    allocation = world.resolve()
    world.report(allocation)

    world.apply({**bound, "status": {"phase": "Failed"}})
    while_running = world.used()
    world.report(allocation)
    still_running = world.used()
    deltas = world.report()

    assert while_running == still_running == (2, 0, 1)
    assert world.used() == (0, 0, 0)
    assert deltas.watch == [(NODE, allocation.allocation_id)]


def test_the_same_report_again_is_a_sign_of_life_and_changes_nothing() -> None:
    world = World(gpu(A))
    world.bind(pod("p1"))
    allocation = world.resolve()
    first = world.report(allocation)
    view = world.cluster.view(NODE)

    world.now += 10**9
    again = world.report(allocation)

    assert NODE in first.nodes
    assert again == Deltas()
    assert world.cluster.view(NODE) is view
    assert world.cluster.reported_ns(NODE) == world.now


def test_a_report_from_before_the_end_was_known_releases_nothing() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))
    world.report()

    world.apply({**bound, "status": {"phase": "Succeeded"}})

    assert world.used() == (2, 0, 1)


def test_a_force_deleted_running_pod_holds_as_an_orphan_until_it_ends() -> None:
    world = World(gpu(A))
    world.bind(pod("p1"))
    allocation = world.resolve()
    world.report(allocation)

    world.cluster.delete_pod("p1", world.now)

    assert world.cluster.state("p1") is AllocationState.ORPHAN
    assert world.used() == (2, 0, 1)
    world.report(allocation)
    assert world.used() == (2, 0, 1)
    assert world.cluster.snapshot(NODE) == [allocation]
    with pytest.raises(NotFoundError, match="was deleted"):
        world.resolve()

    world.report()
    assert world.used() == (0, 0, 0)
    assert world.cluster.snapshot(NODE) == []


def test_of_a_deleted_pod_only_the_containers_that_run_hold() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="2Gi"), container("second", memory="3Gi")))
    both = [world.resolve(), world.resolve(name="second")]
    world.report(*both)

    world.cluster.delete_pod("p1", world.now)
    assert world.used() == (5, 0, 2)
    world.report(both[1])

    assert world.used() == (3, 0, 1)
    assert world.cluster.snapshot(NODE) == [both[1]]


def test_an_orphan_is_held_by_a_cache_that_never_knew_its_pod() -> None:
    world = World(gpu(A, 4))
    world.bind(pod("p1", container(memory="3Gi")))
    allocation = world.resolve()
    restarted = World(gpu(A, 4))

    deltas = restarted.report(allocation)

    assert restarted.used() == (3, 0, 1)
    assert [notice.reason for _, notice in deltas.notices] == ["Orphan"]
    restarted.apply(pod("p2", container(memory="2Gi")))
    with pytest.raises(NoRoomError):
        restarted.cluster.reserve("p2", NODE, 2, restarted.now)


def test_a_running_container_of_which_nobody_knows_anything_closes_its_node() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))

    world.report("99999999-2222-4333-8444-555555555555")

    with pytest.raises(NoRoomError, match="nobody knows what it holds"):
        world.cluster.reserve("p1", NODE, 1, world.now)


def test_the_pods_of_a_lost_node_are_released_after_the_eviction_time_only_once_they_ended() -> (
    None
):
    world = World(gpu(A), eviction_seconds=340)
    world.cluster.apply_lease(NODE, "2026-01-01T00:00:00Z", world.now)
    first = world.bind(pod("p1"))
    world.bind(pod("p2"))
    world.apply({**first, "status": {"phase": "Failed"}})

    world.wait(339)
    before = world.used()
    world.wait(2)

    assert before == (4, 0, 2)
    assert world.used() == (2, 0, 1)
    assert world.cluster.state("p2") is AllocationState.BOUND


def test_a_lease_that_changes_keeps_its_node_whatever_the_time_in_it() -> None:
    world = World(gpu(A), eviction_seconds=340)
    bound = world.bind(pod("p1"))
    world.apply({**bound, "status": {"phase": "Failed"}})

    for second in range(4):
        world.cluster.apply_lease(NODE, f"1999-01-01T00:00:0{second}Z", world.now)
        world.wait(300)

    assert world.used() == (2, 0, 1)


def test_a_deleted_pod_that_nobody_sent_anywhere_is_forgotten_at_once() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))

    world.cluster.delete_pod("p1", world.now)

    assert world.cluster.record("p1") is None
    with pytest.raises(NotFoundError):
        world.resolve()


def test_a_deletion_is_remembered_for_ten_minutes() -> None:
    world = World(gpu(A))
    world.apply(pod("p1"))
    world.cluster.delete_pod("p1", world.now)

    world.wait(599)
    with pytest.raises(NotFoundError):
        world.resolve()
    world.wait(2)
    with pytest.raises(NotYetError, match="not known"):
        world.resolve()


def test_an_event_from_before_a_deletion_brings_nobody_back() -> None:
    world = World(gpu(A))
    world.bind(pod("p1"))
    late = bound_pod(pod("p1", version=500), {}, NODE)
    late["metadata"]["resourceVersion"] = "500"
    world.cluster.delete_pod("p1", world.now, version=501)
    world.report()

    world.apply(late)

    assert world.cluster.record("p1") is None


def test_a_pod_that_is_newer_than_a_stale_list_stays() -> None:
    world = World(gpu(A))
    world.apply(pod("p1", version=900))
    world.apply(pod("p2", version=700))

    world.cluster.replace_pods([], 800, world.now)

    assert world.cluster.record("p1") is not None
    assert world.cluster.record("p2") is None


def test_an_older_event_changes_nothing() -> None:
    world = World(gpu(A))
    world.bind(pod("p1"))
    before = world.cluster.view(NODE)

    deltas = world.apply(pod("p1", version=1))

    assert deltas.nodes == set()
    assert world.cluster.view(NODE) is before


def test_the_same_event_twice_tells_nobody_anything() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))
    again = world.apply(bound)
    report = world.report(world.resolve())
    report_again = world.report(world.resolve())

    assert [again.watch, report.watch, report_again.watch] == [[], [], []]
    assert [again.notices, report.notices, report_again.notices] == [[], [], []]


def test_a_dropped_delete_is_repaired_by_the_next_list() -> None:
    world = World(gpu(A))
    kept = world.bind(pod("p1"))
    world.bind(pod("p2"))
    allocation = world.resolve("p2")
    world.report(allocation)

    world.cluster.replace_pods([kept], 0, world.now)
    world.report()

    assert world.used() == (2, 0, 1)
    assert world.cluster.record("p2") is None


def test_a_pod_without_request_gets_no_slice_at_once() -> None:
    world = World(gpu(A))
    world.apply(pod("p1", container("web"), node=NODE))

    with pytest.raises(NoSliceError, match="asks for none"):
        world.resolve("p1", "web")
    with pytest.raises(NoSliceError, match="no such container"):
        world.resolve("p1", "debugger")


def test_a_pod_that_somebody_bound_without_choosing_cards_gets_none() -> None:
    world = World(gpu(A))
    world.apply(pod("p1", node=NODE))

    with pytest.raises(NoSliceError, match="nobody chose cards"):
        world.resolve()
    assert world.used() == (0, 0, 0)


def test_another_nodes_pod_is_refused() -> None:
    world = World(gpu(A))
    world.bind(pod("p1"))

    with pytest.raises(WrongNodeError, match=f"on node {NODE}, not node-b"):
        world.resolve(node="node-b")


def test_a_uuid_of_another_pod_is_no_key() -> None:
    world = World(gpu(A))
    world.bind(pod("p1", container(memory="2Gi", uuid=UUID)))
    world.bind(pod("p2"))

    with pytest.raises(NotBelievedError, match="UUID"):
        world.cluster.resolve(UUID, NODE, identity("p2"))
    with pytest.raises(NotBelievedError, match="another pod"):
        world.cluster.resolve(UUID, NODE, identity("nobody"))


def test_a_uuid_that_two_pods_have_belongs_to_the_older_one() -> None:
    world = World(gpu(A))
    world.bind(pod("p2", container(memory="2Gi", uuid=UUID), created="2026-01-02T00:00:00Z"))
    world.bind(pod("p1", container(memory="1Gi", uuid=UUID), created="2026-01-01T00:00:00Z"))

    assert world.resolve("p1").slices[0].memory_bytes == GIB
    with pytest.raises(NotBelievedError, match="older pod"):
        world.resolve("p2")


def forged(bound: dict, **changes: object) -> dict:  # type: ignore[type-arg]
    """Return a bound pod whose allocation was changed by somebody without the key."""
    source = json.loads(bound["metadata"]["annotations"]["vgpu.dev/allocation"])
    source.update(changes)
    return bound_pod(bound, {"vgpu.dev/allocation": json.dumps(source)}, bound["spec"]["nodeName"])


def test_an_allocation_with_a_wrong_mac_blocks_and_is_never_resolved() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))

    deltas = world.apply(forged(bound, epoch=9))

    assert world.used() == (2, 0, 1)
    assert [notice.reason for _, notice in deltas.notices] == ["AllocationRefused"]
    with pytest.raises(NotBelievedError, match="MAC"):
        world.resolve()
    assert world.cluster.snapshot(NODE) == []


def test_an_allocation_copied_from_another_pod_is_not_believed() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))

    world.apply(bound_pod(pod("p2"), bound["metadata"]["annotations"], NODE))

    with pytest.raises(NotBelievedError, match="another pod"):
        world.resolve("p2")


def test_an_unreadable_allocation_blocks_what_was_asked_for_on_every_card() -> None:
    world = World(gpu(A), gpu(B))

    deltas = world.apply(
        bound_pod(
            pod("p1", container(memory="3Gi", cores="20")), {"vgpu.dev/allocation": "{"}, NODE
        )
    )

    assert world.used(A) == world.used(B) == (3, 20, 1)
    assert [notice.reason for _, notice in deltas.notices] == ["AllocationUnreadable"]
    with pytest.raises(NotBelievedError, match="not JSON"):
        world.resolve()


def test_an_allocation_of_a_card_that_left_the_node_blocks_every_card() -> None:
    world = World(gpu(A), gpu(B))
    world.bind(pod("p1", container(memory="3Gi")))

    world.cards = (gpu(B),)
    deltas = world.report()

    assert world.used(B) == (3, 0, 1)
    assert "does not have" in deltas.notices[0][1].message
    world.cards = (gpu(A), gpu(B))
    world.report()
    assert world.used(B) == (0, 0, 0)
    assert world.resolve().slices[0].card_uuid == A


def test_a_card_that_two_nodes_claim_is_nobodys() -> None:
    world = World(gpu(A), gpu(B))
    world.bind(pod("p1"))
    world.apply(pod("p2", container(memory="1Gi")))

    world.cluster.apply_report(node_report(gpu(A), node="node-b"), world.now)

    with pytest.raises(NotBelievedError, match="node-b claims it, too"):
        world.resolve()
    reservation, _ = world.cluster.reserve("p2", NODE, 1, world.now)
    assert reservation.allocations["main"].slices[0].card_uuid == B
    world.cluster.apply_report(node_report(node="node-b"), world.now)
    assert world.resolve().slices[0].card_uuid == A


def test_on_an_overbooked_card_the_later_leader_wins() -> None:
    """The paused old leader that writes late: its pod never starts, and is evicted."""
    world = World(gpu(A, 4))
    old, new = World(gpu(A, 4)), World(gpu(A, 4))
    late = old.bind(pod("late", container(memory="3Gi")), epoch=1)
    good = new.bind(pod("good", container(memory="3Gi")), epoch=2)

    world.apply(late)
    world.apply(good)

    with pytest.raises(NotBelievedError, match="another allocation comes first"):
        world.resolve("late")
    view = world.cluster.view(NODE)
    assert view is not None
    assert set(view.evict) == {"late"}
    assert view.room(A).overbooked
    # Another replica may have let it start: the winner waits until it is gone for certain.
    with pytest.raises(NotYetError, match="still used"):
        world.resolve("good")
    world.cluster.delete_pod("late", world.now)
    world.report()
    assert world.resolve("good").epoch == 2


@pytest.mark.parametrize("terminal", [False, True])
def test_nobody_loses_to_a_pod_whose_end_only_the_leader_has_heard(terminal: bool) -> None:
    """A follower hears no reports; once it leads, it evicts nobody for that."""
    leader, follower = World(gpu(A, 4)), World(gpu(A, 4))
    old = leader.bind(pod("old", container(memory="3Gi")))
    follower.apply(old)
    ended = copy.deepcopy(old)
    ended["status"] = {**ended.get("status", {}), "phase": "Failed"}
    # Newer than whatever else was made in this process.
    ended["metadata"]["resourceVersion"] = str(10**12)
    for world in (leader, follower):
        world.apply(ended)
        if not terminal:
            world.cluster.delete_pod("old", world.now)
    leader.report()

    deltas = follower.apply(leader.bind(pod("new", container(memory="3Gi"))))

    view = follower.cluster.view(NODE)
    assert view is not None
    assert (view.evict, deltas.evict) == ({}, [])
    assert "AllocationLost" not in {notice.reason for _, notice in deltas.notices}
    with pytest.raises(NotYetError, match="still used"):
        follower.resolve("new")
    follower.report()
    assert follower.resolve("new").slices[0].card_uuid == A


def test_what_runs_counts_as_its_node_tells_it_when_its_annotation_was_changed() -> None:
    world = World(gpu(A, 8))
    bound = world.bind(pod("p1", container(memory="6Gi")))
    world.report(world.resolve())

    world.apply(forged(bound, containers={}))

    assert world.used() == (6, 0, 1)


def test_a_winner_waits_for_a_loser_that_runs() -> None:
    world = World(gpu(A, 4))
    old, new = World(gpu(A, 4)), World(gpu(A, 4))
    world.apply(old.bind(pod("late", container(memory="3Gi")), epoch=1))
    running = world.resolve("late")
    world.report(running)

    world.apply(new.bind(pod("good", container(memory="3Gi")), epoch=2))

    with pytest.raises(NotYetError, match="still used"):
        world.resolve("good")
    world.cluster.delete_pod("late", world.now)
    world.report()
    assert world.resolve("good").epoch == 2


def test_the_previous_key_is_still_accepted_and_an_older_one_is_not() -> None:
    first, second, third = (Key(f"k{n}", b"secret %d" % n) for n in (1, 2, 3))
    bound = World(gpu(A), keyring=Keyring(first)).bind(pod("p1"))
    next_world = World(gpu(A), keyring=Keyring(second, first))
    last_world = World(gpu(A), keyring=Keyring(third, second))

    next_world.apply(bound)
    last_world.apply(bound)

    assert next_world.resolve().slices[0].card_uuid == A
    with pytest.raises(NotBelievedError, match="'k1', which is neither"):
        last_world.resolve()


def test_nothing_is_placed_on_a_node_that_has_not_reported_to_this_process() -> None:
    world = World()
    inventory = world.dialects.native.encode_inventory((gpu(A),))
    world.cluster.apply_node(kube_node(annotations=inventory), world.now)
    world.apply(pod("p1"))

    with pytest.raises(NoRoomError, match="has not reported"):
        world.cluster.reserve("p1", NODE, 1, world.now)


def test_allocations_are_resolved_from_the_api_server_alone_after_a_restart() -> None:
    world = World(gpu(A))
    bound = world.bind(pod("p1"))
    restarted = World()
    inventory = world.dialects.native.encode_inventory((gpu(A),))

    restarted.cluster.replace_pods([bound], 0, restarted.now)
    with pytest.raises(NotYetError, match="not known here yet"):
        restarted.resolve()
    restarted.cluster.replace_nodes([kube_node(annotations=inventory)], restarted.now)

    assert restarted.resolve() == world.resolve()


def test_a_cordoned_card_takes_nothing_new_and_keeps_what_it_has() -> None:
    world = World(gpu(A), gpu(B, 80))
    world.bind(pod("p1"))

    world.cluster.apply_node(kube_node(annotations={"vgpu.dev/cordon": f"{A},"}), world.now)

    assert world.resolve().slices[0].card_uuid == A
    world.apply(pod("p2"))
    reservation, _ = world.cluster.reserve("p2", NODE, 1, world.now)
    assert reservation.allocations["main"].slices[0].card_uuid == B


def test_init_containers_and_sidecars_are_counted_over_the_pods_life() -> None:
    world = World(gpu(A, 40))
    source = pod(
        "p1",
        container("main", memory="4Gi"),
        inits=[
            container("first", memory="1Gi"),
            container("side", memory="2Gi", sidecar=True),
            container("second", memory="9Gi"),
        ],
    )

    bound = world.bind(source)
    starting = world.used()
    world.apply(
        bound_pod(
            {
                **bound,
                "status": {
                    "phase": "Running",
                    "initContainerStatuses": [
                        {"name": name, "state": {"terminated": {"exitCode": 0}}}
                        for name in ("first", "second")
                    ],
                },
            },
            {},
            NODE,
        )
    )

    assert starting == (11, 0, 2)
    assert world.used() == (6, 0, 2)


def test_a_cluster_without_anything_answers_that_it_does_not_know() -> None:
    cluster = Cluster(World().dialects)

    with pytest.raises(NotYetError):
        cluster.resolve(UUID, NODE, None)
    assert cluster.snapshot(NODE) == []
    assert cluster.view(NODE) is None
    assert cluster.state("p1") is None


def test_containers_that_ask_alike_keep_one_request() -> None:
    """A hundred containers with a list of 256 cards each would be megabytes a pod."""
    world = World(gpu(A))
    several = [container(name, memory="1Gi") for name in ("a", "b")]

    world.apply(pod("p1", *several, container("c", memory="2Gi")))

    record = world.cluster.record("p1")
    assert record is not None
    assert record.request is not None
    asked = record.request.containers
    assert asked["a"] is asked["b"]
    assert asked["c"] != asked["a"]
