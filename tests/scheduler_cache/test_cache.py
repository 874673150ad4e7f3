# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_cache.cache import Cache, Changes, State
from scheduler_cache.errors import NoRoomError, NotFoundError, NotSyncedError
from scheduler_cache.model import CardPolicy, CardUse, Claim, ClaimState
from tests.scheduler_cache.builders import (
    GIB,
    NODE,
    SECOND,
    START,
    Host,
    allocation,
    card,
    cards_of,
    counter,
    key,
    part,
    report,
    request,
    told,
)


@pytest.fixture
def host() -> Host:
    """Return a host with one idle card of 8 GiB."""
    return Host(card("GPU-1"))


def held_bytes(host: Host, uuid: str = "GPU-1") -> int:
    return host.cache.room(uuid).use.memory_bytes


# Allocating


def test_a_new_claim_runs_and_holds_its_slices(host: Host) -> None:
    claim = host.allocate("c1", request(2, cores=(25,)))

    assert claim.state is ClaimState.RUNNING
    assert claim.since_unix_ns == host.now
    assert claim.allocation.allocation_id == "a1"
    assert host.cache.room("GPU-1").use == CardUse(2 * GIB, 25, 1, holders=1)


def test_the_same_request_under_the_same_key_is_the_same_claim(host: Host) -> None:
    first = host.allocate("c1", request(2))
    again, changes = host.cache.allocate(NODE, key("c1"), request(2), host.now + SECOND)

    assert again == first
    assert not changes.durable


def test_the_same_container_id_under_another_root_is_another_container(host: Host) -> None:
    first = host.allocate("c1", request(2))
    other_root = replace(key("c1"), runtime_root="/elsewhere")
    second, _ = host.cache.allocate(NODE, other_root, request(2), host.now)

    assert second.allocation.allocation_id != first.allocation.allocation_id


def test_a_restart_makes_a_stopped_claim_run_again_with_the_same_cards(host: Host) -> None:
    first = host.allocate("c1", request(2))
    host.stop(first)
    host.wait(60)

    again = host.allocate("c1", request(2))

    assert again.allocation == first.allocation
    assert (again.state, again.since_unix_ns) == (ClaimState.RUNNING, host.now)


def test_another_request_under_the_key_replaces_the_old_claim(host: Host) -> None:
    old = host.allocate("c1", request(6))

    new = host.allocate("c1", request(7))

    assert new.allocation.allocation_id != old.allocation.allocation_id
    assert host.ids() == {new.allocation.allocation_id}
    assert held_bytes(host) == 7 * GIB


def test_a_replacement_that_does_not_fit_changes_nothing(host: Host) -> None:
    old = host.allocate("c1", request(2))
    host.allocate("c2", request(5))

    with pytest.raises(NoRoomError, match="GPU-1 has 3.0Gi of 8.0Gi"):
        host.allocate("c1", request(4))

    assert host.cache.claim(old.allocation.allocation_id) == old


def test_a_refused_request_changes_nothing(host: Host) -> None:
    host.allocate("c1", request(5))
    before = host.cache.state

    with pytest.raises(NoRoomError, match="no card has 4.0Gi free"):
        host.allocate("c2", request(4))

    assert host.cache.state == before


def test_a_node_that_never_reported_is_not_synced(host: Host) -> None:
    with pytest.raises(NotSyncedError, match="node-b has not reported its cards yet"):
        host.cache.allocate("node-b", key("c1"), request(1), host.now)


def test_a_release_frees_the_slices_and_may_be_repeated(host: Host) -> None:
    claim = host.allocate("c1", request(8))

    host.release(claim)

    assert not host.release(claim).durable
    assert host.allocate("c2", request(8))


def test_an_exclusive_claim_keeps_others_out_though_memory_is_free(host: Host) -> None:
    claim = host.allocate("c1", request(2, policy=CardPolicy.EXCLUSIVE))

    assert claim.allocation.exclusive
    assert not claim.allocation.whole_cards
    with pytest.raises(NoRoomError, match="held exclusively by container c1"):
        host.allocate("c2", request(1))


def test_a_whole_card_is_exclusive(host: Host) -> None:
    claim = host.allocate("c1", request("100%"))

    assert (claim.allocation.whole_cards, claim.allocation.exclusive) == (True, True)
    assert claim.allocation.slices[0].memory_bytes == 8 * GIB


def test_the_default_policy_is_the_caches() -> None:
    cache = Cache(State(), default_policy=CardPolicy.EXCLUSIVE, new_id=counter())
    cache.apply(cache.report(report([card("GPU-1")]), START))

    claim, _ = cache.allocate(NODE, key("c1"), request(1), START)

    assert claim.allocation.exclusive


# Taking stopped claims


def test_a_stopped_claim_is_kept_as_long_as_there_is_room(host: Host) -> None:
    old = host.allocate("c1", request(4))
    host.stop(old)
    host.wait(3600)

    new = host.allocate("c2", request(4))

    assert new.taken_allocation_ids == ()
    assert host.cache.claim(old.allocation.allocation_id).state is ClaimState.STOPPED


def test_a_stopped_claim_is_taken_by_what_fits_nowhere_else(host: Host) -> None:
    old = host.allocate("c1", request(4))
    host.stop(old)
    host.wait(10)

    new = host.allocate("c2", request(5))

    assert new.taken_allocation_ids == (old.allocation.allocation_id,)
    assert host.ids() == {new.allocation.allocation_id}


def test_a_caller_may_spare_stopped_claims(host: Host) -> None:
    old = host.allocate("c1", request(4))
    host.stop(old)
    host.wait(3600)

    with pytest.raises(NoRoomError):
        host.cache.allocate(NODE, key("c2"), request(5), host.now, spare_stopped=True)
    beside, _ = host.cache.allocate(NODE, key("c2"), request(2), host.now, spare_stopped=True)

    assert beside.taken_allocation_ids == ()
    assert host.ids() == {old.allocation.allocation_id}


def test_a_running_claim_is_never_taken(host: Host) -> None:
    host.allocate("c1", request(4))
    host.wait(3600)

    with pytest.raises(NoRoomError, match="wait for a container to end"):
        host.allocate("c2", request(5))


def test_a_claim_is_safe_for_ten_seconds_after_its_stop(host: Host) -> None:
    host.stop(host.allocate("c1", request(4)))
    host.wait(9.999)

    with pytest.raises(NoRoomError, match="keeps its slice for 10 s: try again then"):
        host.allocate("c2", request(5))

    host.wait(0.001)
    assert host.allocate("c2", request(5))


def test_the_oldest_stop_is_taken_first(host: Host) -> None:
    claims = [host.allocate(name, request(2)) for name in ("c1", "c2", "c3", "c4")]
    for claim in (claims[2], claims[0], claims[3]):
        host.stop(claim)
        host.wait(60)

    taken = host.allocate("c5", request(2)).taken_allocation_ids
    more = host.allocate("c6", request(4)).taken_allocation_ids

    assert taken == (claims[2].allocation.allocation_id,)
    assert set(more) == {claims[0].allocation.allocation_id, claims[3].allocation.allocation_id}


def test_no_more_is_taken_than_is_needed() -> None:
    host = Host(card("GPU-1"), card("GPU-2"))
    on_one = host.allocate("c1", request(4, uuids=("GPU-1",)))
    small = host.allocate("c2", request(1, uuids=("GPU-2",)))
    large = host.allocate("c3", request(7, uuids=("GPU-2",)))
    host.allocate("c4", request(4, uuids=("GPU-1",)))
    for claim in (on_one, small, large):
        host.stop(claim)
        host.wait(60)

    # Only GPU-2 can ever have 7 GiB free beside c4: what is older on GPU-1 does not help, nor
    # does the small one beside it.
    new = host.allocate("c5", request(7))

    assert new.taken_allocation_ids == (large.allocation.allocation_id,)
    assert cards_of(new) == ["GPU-2"]


def test_a_stopped_claim_is_not_taken_before_the_node_has_reported(host: Host) -> None:
    host.stop(host.allocate("c1", request(8)))
    host.wait(60)
    restarted = Host(state=host.cache.state)
    restarted.now, restarted.cards = host.now, host.cards

    with pytest.raises(NotSyncedError, match="has not reported since this cache started"):
        restarted.allocate("c2", request(8))

    restarted.report()
    assert restarted.allocate("c2", request(8))


def test_what_fits_without_taking_needs_no_report_after_a_restart(host: Host) -> None:
    restarted = Host(state=host.cache.state)

    assert restarted.allocate("c1", request(8))


def test_what_was_taken_is_named_again_unless_it_came_back(host: Host) -> None:
    old = host.allocate("c1", request(8))
    host.stop(old)
    host.wait(60)
    new = host.allocate("c2", request(8))

    again = host.allocate("c2", request(8))
    assert host.cache.taken_by(again) == (old.allocation.allocation_id,)

    host.report(told(old.allocation, since_unix_ns=host.now))
    assert host.cache.taken_by(host.cache.claim(new.allocation.allocation_id)) == ()


# Reports


def test_a_report_that_says_nothing_new_changes_nothing(host: Host) -> None:
    claim = host.allocate("c1", request(2))

    changes = host.report(
        told(claim.allocation, since_unix_ns=host.now),
        running=[claim.allocation.allocation_id],
    )

    assert not changes.durable


def test_a_claim_that_the_report_does_not_list_is_kept(host: Host) -> None:
    claim = host.allocate("c1", request(2))

    host.report()

    assert host.ids() == {claim.allocation.allocation_id}


def test_a_claim_reported_released_is_gone(host: Host) -> None:
    claim = host.allocate("c1", request(8))

    host.report(told(claim.allocation, ClaimState.RELEASED, host.now))

    assert host.ids() == set()
    assert held_bytes(host) == 0


def test_a_live_process_outweighs_a_stopped_claim(host: Host) -> None:
    claim = host.allocate("c1", request(2))
    host.stop(claim)

    host.report(
        told(claim.allocation, ClaimState.STOPPED, host.now),
        running=[claim.allocation.allocation_id],
    )

    assert host.cache.claim("a1").state is ClaimState.RUNNING


def test_a_live_process_alone_makes_a_known_claim_run(host: Host) -> None:
    host.stop(host.allocate("c1", request(2)))

    host.report(running=["a1", "unknown"])

    assert host.cache.claim("a1").state is ClaimState.RUNNING


def test_a_report_older_than_a_restart_does_not_stop_the_claim(host: Host) -> None:
    claim = host.allocate("c1", request(2))
    host.stop(claim)
    host.wait(60)
    stopped_long_ago = told(claim.allocation, ClaimState.STOPPED, host.now - 60 * SECOND)
    host.allocate("c1", request(2))

    host.report(stopped_long_ago)
    assert host.cache.claim("a1").state is ClaimState.RUNNING

    host.report(replace(stopped_long_ago, state=ClaimState.RELEASED))
    assert host.cache.claim("a1").state is ClaimState.RUNNING


def test_a_clock_that_was_set_back_does_not_freeze_a_claim(host: Host) -> None:
    claim = host.allocate("c1", request(2))
    host.wait(-3600)

    host.stop(claim)

    assert host.cache.claim("a1").state is ClaimState.STOPPED


def test_a_stop_in_the_future_counts_from_now(host: Host) -> None:
    claim = host.allocate("c1", request(8))
    host.report(told(claim.allocation, ClaimState.STOPPED, host.now + 3600 * SECOND))
    host.wait(10)

    assert host.allocate("c2", request(8)).taken_allocation_ids == ("a1",)


def test_a_running_container_that_the_cache_lost_is_taken_back(host: Host) -> None:
    lost = allocation("lost", part("GPU-1", 6, 40))

    host.report(told(lost))

    assert host.cache.claim("lost").request is None
    assert host.cache.room("GPU-1").use == CardUse(6 * GIB, 40, 1, holders=1)


def test_a_container_taken_back_may_overbook_a_card_which_then_takes_nobody(host: Host) -> None:
    host.allocate("c1", request(6))

    host.report(told(allocation("lost", part("GPU-1", 6))))

    assert host.cache.room("GPU-1").overbooked
    assert host.cache.room("GPU-1").free_bytes == 0
    with pytest.raises(NoRoomError, match=r"overbooked: 12\.0Gi of 8\.0Gi"):
        host.allocate("c2", request(1))


def test_an_exclusive_claim_taken_back_is_exclusive(host: Host) -> None:
    host.report(told(allocation("lost", part("GPU-1", 2), exclusive=True)))

    with pytest.raises(NoRoomError, match="held exclusively by container lost"):
        host.allocate("c2", request(1))


def test_a_claim_taken_back_answers_its_own_request_again(host: Host) -> None:
    given_out = host.allocate("c1", request(2, cores=(25,)))
    empty = Host(*host.cards)
    empty.report(told(given_out.allocation))

    again = empty.allocate("c1", request(2, cores=(25,)))

    assert again.allocation == given_out.allocation
    assert again.request == request(2, cores=(25,))


def test_a_claim_taken_back_does_not_answer_another_request(host: Host) -> None:
    host.report(told(allocation("c1", part("GPU-1", 2))))

    assert host.allocate("c1", request(3)).allocation.allocation_id == "a1"
    assert host.ids() == {"a1"}


def test_a_lost_stopped_claim_comes_back_where_it_fits(host: Host) -> None:
    host.report(told(allocation("lost", part("GPU-1", 6)), ClaimState.STOPPED))

    assert host.cache.claim("lost").state is ClaimState.STOPPED


def test_a_lost_stopped_claim_that_does_not_fit_is_gone(host: Host) -> None:
    host.allocate("c1", request(6))

    changes = host.report(told(allocation("lost", part("GPU-1", 6)), ClaimState.STOPPED))

    assert changes.removed == ("lost",)
    assert host.ids() == {"a1"}


def test_of_lost_stopped_claims_the_newest_comes_back(host: Host) -> None:
    host.report(
        told(allocation("old", part("GPU-1", 6)), ClaimState.STOPPED, START - 2 * SECOND),
        told(allocation("new", part("GPU-1", 6)), ClaimState.STOPPED, START - SECOND),
        told(allocation("small", part("GPU-1", 2)), ClaimState.STOPPED, START - 3 * SECOND),
    )

    assert host.ids() == {"new", "small"}


def test_lost_running_claims_come_before_stopped_ones(host: Host) -> None:
    host.report(
        told(allocation("stopped", part("GPU-1", 6)), ClaimState.STOPPED),
        told(allocation("running", part("GPU-1", 6))),
    )

    assert host.ids() == {"running"}


def test_a_report_from_before_a_release_does_not_bring_the_claim_back(host: Host) -> None:
    claim = host.allocate("c1", request(2))
    before_the_release = told(claim.allocation, since_unix_ns=host.now)
    host.release(claim)

    assert host.report(before_the_release).removed == ("a1",)
    assert host.ids() == set()

    host.wait(30)
    host.report(before_the_release)
    assert host.ids() == {"a1"}


def test_two_claims_under_one_key_hold_both_and_the_caches_own_answers(host: Host) -> None:
    own = host.allocate("c1", request(2))

    host.report(told(replace(allocation("lost", part("GPU-1", 3)), claim=key("c1"))))

    assert held_bytes(host) == 5 * GIB
    assert host.allocate("c1", request(2)).allocation == own.allocation
    host.release(own)
    assert held_bytes(host) == 3 * GIB


# Inventory


def test_a_card_that_vanishes_keeps_its_claims_and_takes_no_new_ones() -> None:
    host = Host(card("GPU-1"), card("GPU-2"))
    claim = host.allocate("c1", request(2))
    host.cards = host.cards[1:]

    host.report()

    assert cards_of(claim) == ["GPU-1"]
    gone = host.cache.room("GPU-1")
    assert (gone.card.healthy, gone.card.health_reason) == (False, "not reported")
    assert cards_of(host.allocate("c2", request(2))) == ["GPU-2"]

    host.release(claim)
    host.report()
    with pytest.raises(NotFoundError, match="no card GPU-1"):
        host.cache.room("GPU-1")


def test_a_card_that_comes_back_is_as_it_was(host: Host) -> None:
    host.allocate("c1", request(2))
    cards = host.cards
    host.cards = ()
    host.report()
    host.cards = cards

    host.report()

    room = host.cache.room("GPU-1")
    assert (room.card, room.free_bytes) == (cards[0], 6 * GIB)


def test_a_card_that_vanishes_idle_is_forgotten(host: Host) -> None:
    host.cards = ()

    host.report()

    with pytest.raises(NoRoomError, match="this host has reported no card"):
        host.allocate("c1", request(1))


def test_a_card_that_shrinks_below_what_is_held_has_nothing_free(host: Host) -> None:
    host.allocate("c1", request(6))
    host.cards = (card("GPU-1", 4),)

    host.report()

    assert host.cache.room("GPU-1").free_bytes == 0
    with pytest.raises(NoRoomError, match=r"overbooked: 6\.0Gi of 4\.0Gi"):
        host.allocate("c2", request(1))


def test_a_lost_claim_on_an_unknown_card_holds_it_when_it_appears(host: Host) -> None:
    host.report(told(allocation("lost", part("GPU-9", 6))))
    host.cards = (*host.cards, card("GPU-9"))

    host.report()

    assert host.cache.room("GPU-9").free_bytes == 2 * GIB


def test_an_unhealthy_card_takes_nobody(host: Host) -> None:
    host.cards = (replace(host.cards[0], healthy=False, health_reason="Xid 79"),)

    host.report()

    with pytest.raises(NoRoomError, match="unhealthy: Xid 79"):
        host.allocate("c1", request(1))


def test_a_renamed_host_keeps_its_cards_and_claims(host: Host) -> None:
    claim = host.allocate("c1", request(2))

    host.apply(host.cache.report(report(host.cards, node="renamed"), host.now))

    assert [c.allocation.allocation_id for c in host.cache.claims("renamed")] == ["a1"]
    again, _ = host.cache.allocate("renamed", key("c1"), request(2), host.now)
    assert again.allocation.slices == claim.allocation.slices
    assert host.cache.rooms(NODE) == []


# State


def test_applying_changes_twice_is_applying_them_once(host: Host) -> None:
    claim, changes = host.cache.allocate(NODE, key("c1"), request(2), host.now)

    host.apply(changes)
    host.apply(changes)

    assert held_bytes(host) == 2 * GIB
    removal = Changes(removed=(claim.allocation.allocation_id,))
    host.apply(removal)
    host.apply(removal)
    assert held_bytes(host) == 0


def test_a_cache_made_from_the_state_is_the_same_cache(host: Host) -> None:
    claims: list[Claim] = [host.allocate(f"c{i}", request(1, cores=(10,))) for i in range(3)]
    host.stop(claims[1])

    again = Cache(host.cache.state, new_id=counter())

    assert again.state == host.cache.state
    assert again.room("GPU-1") == host.cache.room("GPU-1")
    assert again.claims_on("GPU-1") == host.cache.claims_on("GPU-1")


def test_an_unknown_allocation_is_not_found(host: Host) -> None:
    with pytest.raises(NotFoundError, match="no allocation nobody"):
        host.cache.claim("nobody")
