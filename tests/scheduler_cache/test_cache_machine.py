# SPDX-License-Identifier: Apache-2.0
"""Random events against a plain model: nothing is lost, nothing is given out twice."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from scheduler_cache.cache import Cache, Changes
from scheduler_cache.errors import NoRoomError, NotSyncedError
from scheduler_cache.model import Allocation, Card, CardPolicy, Claim, ClaimState, Request
from scheduler_cache.sqlite_store import Store
from tests.scheduler_cache import oracle
from tests.scheduler_cache.builders import (
    NODE,
    SECOND,
    START,
    allocation,
    card,
    key,
    part,
    report,
    request,
    told,
)

CARDS = (card("GPU-1", 8, slots=3), card("GPU-2", 6, slots=4), card("GPU-3", 4, slots=1))

REQUESTS = (
    request(1),
    request(2, cores=(40,)),
    request(5, cores=(60,)),
    request(2, count=2, cores=(30,)),
    request(5, 3),
    request(3, 2, 4),
    request("50%", count=2),
    request(1, policy=CardPolicy.EXCLUSIVE),
    request("100%"),
    request(9),
)


@dataclass
class Expected:
    """What the plain model knows of a claim."""

    allocation: Allocation
    state: ClaimState
    since: int
    request: Request | None
    lost_once: bool = False


class CacheMachine(RuleBasedStateMachine):
    """One host: its containers, the cache, and the database under it."""

    ids = Bundle("ids")
    lost_allocations = Bundle("lost_allocations")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = itertools.count()
        self.now = START
        self.cards: tuple[Card, ...] = CARDS
        self.known: dict[str, Expected] = {}
        self.synced = False
        self.open()

    def teardown(self) -> None:
        self.store.close()
        rmtree(self.folder)

    def open(self) -> None:
        self.store = Store.open(self.folder)
        self.cache = Cache(self.store.load(), new_id=lambda: f"a{next(self.numbers)}")
        self.synced = False

    def commit(self, changes: Changes) -> None:
        if changes.durable:
            self.store.save(changes)
        self.cache.apply(changes)

    def held(self, without: set[str] = frozenset()) -> list[Allocation]:  # type: ignore[assignment]
        return [each.allocation for name, each in self.known.items() if name not in without]

    def tell(self, *claims: Claim, running: tuple[str, ...] = ()) -> None:
        self.commit(self.cache.report(report(self.cards, *claims, running=running), self.now))
        self.synced = True

    @initialize()
    def first_report(self) -> None:
        self.tell()

    @rule(seconds=st.sampled_from([1, 4, 11, 40]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule()
    def the_cache_restarts(self) -> None:
        before = self.cache.state
        self.store.close()
        self.open()
        assert self.cache.state == before

    @rule(missing=st.sets(st.sampled_from([0, 1, 2]), max_size=2), sick=st.booleans())
    def cards_come_and_go(self, missing: set[int], sick: bool) -> None:
        self.cards = tuple(
            replace(each, healthy=not (sick and i == 0), health_reason="Xid 79" if sick else "")
            for i, each in enumerate(CARDS)
            if i not in missing
        )
        self.tell()

    @rule(target=ids, container=st.sampled_from("abcdef"), asked=st.sampled_from(REQUESTS))
    def a_container_asks(self, container: str, asked: Request) -> object:
        own = {name for name, each in self.known.items() if each.allocation.claim == key(container)}
        # Of several claims of one container, after lost state, only the cache's own is replaced.
        repeat = [self.known[name] for name in own if self.known[name].request == asked]
        try:
            claim, changes = self.cache.allocate(NODE, key(container), asked, self.now)
        except NotSyncedError:
            assert not self.synced
            assert not oracle.fits(asked, self.usable_cards(), self.held())
            return multiple()
        except NoRoomError as error:
            gone = self.replaced(own)
            takeable = gone | {
                name
                for name, each in self.known.items()
                if each.state is ClaimState.STOPPED and self.now - each.since >= 10 * SECOND
            }
            assert not repeat
            assert not oracle.fits(asked, self.usable_cards(), self.held(takeable))
            if error.never:
                idle = [replace(each, healthy=True) for each in self.usable_cards()]
                assert not oracle.fits(asked, idle, [])
            return multiple()
        name = claim.allocation.allocation_id
        if name in self.known:
            mine = self.known[name]
            assert mine.allocation == claim.allocation
            assert mine.request in (asked, None)
            mine.request = asked
            if mine.state is ClaimState.STOPPED:
                mine.state, mine.since = ClaimState.RUNNING, self.now
            self.commit(changes)
            return name
        gone = self.replaced(own)
        taken = set(claim.taken_allocation_ids)
        assert not repeat
        assert set(changes.removed) == taken | gone
        self.check_taken(asked, taken, gone)
        for other in taken | gone:
            del self.known[other]
        self.known[name] = Expected(claim.allocation, ClaimState.RUNNING, self.now, asked)
        self.commit(changes)
        return name

    def usable_cards(self) -> tuple[Card, ...]:
        return tuple(room.card for room in self.cache.rooms(NODE))

    def replaced(self, own: set[str]) -> set[str]:
        """Return the claim that another request under the same key replaces."""
        if not own:
            return set()
        return {
            max(
                own,
                key=lambda name: (
                    self.known[name].request is not None,
                    self.known[name].since,
                    name,
                ),
            )
        }

    def check_taken(self, asked: Request, taken: set[str], gone: set[str]) -> None:
        """Only old stopped claims are taken, and only if the request fits nowhere else."""
        cards = self.usable_cards()
        assert oracle.fits(asked, cards, self.held(taken | gone))
        for other in taken:
            assert self.known[other].state is ClaimState.STOPPED
            assert self.now - self.known[other].since >= 10 * SECOND
            assert not oracle.fits(asked, cards, self.held((taken | gone) - {other}))
        if taken:
            # None newer than it must: without the newest and all that are as new, it does not fit.
            newest = max(self.known[other].since for other in taken)
            older = {
                name
                for name, each in self.known.items()
                if each.state is ClaimState.STOPPED and each.since < newest
            }
            assert not oracle.fits(asked, cards, self.held(older | gone))

    @rule(name=ids)
    def a_container_stops(self, name: str) -> None:
        mine = self.known.get(name)
        if mine is not None:
            self.tell(told(mine.allocation, ClaimState.STOPPED, self.now))
            mine.state, mine.since = ClaimState.STOPPED, self.now

    @rule(name=ids)
    def a_container_is_removed(self, name: str) -> None:
        mine = self.known.pop(name, None)
        if mine is not None:
            self.tell(told(mine.allocation, ClaimState.RELEASED, self.now))

    @rule(name=ids)
    def a_claim_is_released(self, name: str) -> None:
        self.commit(self.cache.release(name, self.now))
        self.known.pop(name, None)

    @rule(
        target=ids,
        container=st.sampled_from("abxy"),
        slices=st.sampled_from(
            [(part("GPU-1", 3, 30),), (part("GPU-2", 6),), (part("GPU-1", 1), part("GPU-3", 2, 50))]
        ),
        exclusive=st.booleans(),
    )
    def a_running_container_was_lost(
        self, container: str, slices: tuple[object, ...], exclusive: bool
    ) -> str:
        name = f"lost{next(self.numbers)}"
        lost = replace(
            allocation(name, *slices, exclusive=exclusive),  # type: ignore[arg-type]
            claim=key(container),
        )
        self.tell(told(lost, since_unix_ns=self.now))
        self.known[name] = Expected(lost, ClaimState.RUNNING, self.now, None, lost_once=True)
        return name

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def a_report_from_the_past_arrives(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        mine = self.known[name]
        state = data.draw(st.sampled_from(list(ClaimState)))
        if state is not mine.state:
            self.tell(told(mine.allocation, state, mine.since - 1))
        # A stop or a release from the past is no news; a process may be one that still lives.
        if state is ClaimState.RUNNING:
            mine.state = state

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        assert {
            claim.allocation.allocation_id: (claim.allocation, claim.state, claim.since_unix_ns)
            for claim in self.cache.claims()
        } == {name: (each.allocation, each.state, each.since) for name, each in self.known.items()}

    @invariant()
    def no_card_gives_more_than_it_has(self) -> None:
        own = [each.allocation for each in self.known.values() if not each.lost_once]
        for each in CARDS:
            memory, cores, slots = oracle.sums(each, own)
            assert memory <= each.memory_bytes
            assert cores <= 100
            assert slots <= each.slots
            owners = [one for one in own if each.uuid in {s.card_uuid for s in one.slices}]
            assert len(owners) <= 1 or not any(one.exclusive for one in owners)

    @invariant()
    def what_is_held_is_what_the_claims_hold(self) -> None:
        for room in self.cache.rooms(NODE):
            use = room.use
            assert (use.memory_bytes, use.reserved_percent, use.slices) == oracle.sums(
                room.card, self.held()
            )
            assert room.free_bytes >= 0

    @invariant()
    def the_database_says_the_same(self) -> None:
        assert self.store.load() == self.cache.state


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
