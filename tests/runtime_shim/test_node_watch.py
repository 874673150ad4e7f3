# SPDX-License-Identifier: Apache-2.0
"""The node's copy of the cluster's answers, and whom it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import AnswerStore
from runtime_shim.config import Config
from runtime_shim.counters import Counters
from runtime_shim.errors import CacheUnreachableError, NotYetKnownError, RefusedError
from runtime_shim.identity import Identity, IdentityError
from runtime_shim.node_watch import NodeAnswers, PodLookup
from tests.runtime_shim.allocations import OTHER_CARD, answer, part
from tests.runtime_shim.pods import MAIN, NODE, OTHER_UID, pod_allocation

UUID = "aaaaaaaa-0000-4000-8000-000000000001"
OTHER_UUID = "aaaaaaaa-0000-4000-8000-000000000002"
SIDE = replace(MAIN, container_name="side")
STRANGER = replace(MAIN, pod_uid=OTHER_UID, pod="spy")
UNREACHABLE = CacheUnreachableError("cache:9400", 2.0, "unavailable: no connection")


class Cache:
    """Answers as a test wants."""

    def __init__(self) -> None:
        self.give: pb.Allocation | Exception = UNREACHABLE
        self.asked: list[pb.ResolveRequest] = []
        self.seconds: list[float] = []
        self.on_resolve: Callable[[], None] = lambda: None

    async def resolve(self, request: pb.ResolveRequest, seconds: float) -> pb.Allocation:
        self.asked.append(request)
        self.seconds.append(seconds)
        self.on_resolve()
        await asyncio.sleep(0)
        if isinstance(self.give, Exception):
            raise self.give
        return self.give


class Lookup:
    """A lookup with everything around it."""

    def __init__(self, folder: Path) -> None:
        self.answers = NodeAnswers()
        self.cache = Cache()
        self.store = AnswerStore(folder)
        self.store.load()
        self.counters = Counters()
        self.pods = PodLookup(
            Config(mode="kubernetes"), NODE, self.answers, self.cache, self.store, self.counters
        )

    async def find(self, identity: Identity = MAIN, container_uuid: str = UUID) -> pb.Allocation:
        return await self.pods.find(identity, container_uuid, "c1", 8.0)

    def ran_before(self, allocation: pb.Allocation) -> None:
        """Store the answer of a container that ran here."""
        self.store.put(answer(allocation))


@pytest.fixture
def lookup(tmp_path: Path) -> Lookup:
    return Lookup(tmp_path / "answers")


async def test_what_was_told_is_answered_without_asking(lookup: Lookup) -> None:
    allocation = pod_allocation(container_uuid=UUID)
    lookup.answers.replace([allocation])

    assert await lookup.find() == allocation
    assert lookup.cache.asked == []
    assert lookup.counters.resolved_by_identity == 0


async def test_what_was_not_told_yet_is_asked_for(lookup: Lookup) -> None:
    lookup.answers.replace([])
    lookup.cache.give = pod_allocation(container_uuid=UUID)

    assert await lookup.find() == lookup.cache.give

    (asked,) = lookup.cache.asked
    assert (asked.container_uuid, asked.node_name, asked.engine_container_id) == (UUID, NODE, "c1")
    assert (asked.pod.uid, asked.pod.namespace, asked.pod.name, asked.pod.container_name) == (
        MAIN.pod_uid,
        "team-a",
        "train-0",
        "main",
    )
    assert lookup.cache.seconds == [8.0]


async def test_a_container_without_uuid_is_known_by_its_pod(lookup: Lookup) -> None:
    allocation = pod_allocation(container_uuid=UUID)
    lookup.answers.replace([allocation])

    assert lookup.pods.known(MAIN)
    assert not lookup.pods.known(SIDE)
    assert await lookup.find(container_uuid="") == allocation
    assert lookup.counters.resolved_by_identity == 1


@pytest.mark.parametrize("identity", [SIDE, STRANGER])
@pytest.mark.parametrize("told", [True, False])
async def test_the_uuid_of_another_container_is_refused(
    lookup: Lookup, identity: Identity, told: bool
) -> None:
    allocation = pod_allocation(container_uuid=UUID)
    lookup.answers.replace([allocation] if told else [])
    lookup.cache.give = allocation

    with pytest.raises(IdentityError) as caught:
        await lookup.find(identity)

    assert caught.value.reason == "its VGPU_CONTAINER_UUID belongs to another container"


async def test_an_answer_for_another_node_is_refused(lookup: Lookup) -> None:
    lookup.cache.give = pod_allocation(container_uuid=UUID, node_name="worker-9")

    with pytest.raises(IdentityError, match="for node worker-9, and this is testbed"):
        await lookup.find()


async def test_an_answer_to_another_question_is_refused(lookup: Lookup) -> None:
    lookup.cache.give = pod_allocation(container_uuid=OTHER_UUID)

    with pytest.raises(IdentityError, match="answered for another container"):
        await lookup.find()


async def test_a_pod_of_another_name_is_refused(lookup: Lookup) -> None:
    lookup.answers.replace([pod_allocation(container_uuid=UUID)])

    with pytest.raises(IdentityError, match="allocation is for team-a/train-0"):
        await lookup.find(replace(MAIN, pod="other"))


async def test_the_cache_s_no_is_the_answer(lookup: Lookup) -> None:
    lookup.ran_before(pod_allocation(container_uuid=UUID))
    lookup.cache.give = RefusedError("the container was deleted", "make a new pod")

    with pytest.raises(RefusedError, match="was deleted"):
        await lookup.find()


async def test_a_container_that_ran_here_starts_without_the_cache(
    lookup: Lookup, caplog: pytest.LogCaptureFixture
) -> None:
    allocation = pod_allocation(container_uuid=UUID)
    lookup.ran_before(allocation)

    assert await lookup.find() == allocation
    assert lookup.cache.seconds == [2.0], "it does not wait as long as an unknown one"
    assert lookup.counters.stored_answers == 1
    assert "cache unreachable, container starts from its stored answer" in caplog.messages


async def test_without_a_uuid_it_starts_from_its_stored_answer_too(lookup: Lookup) -> None:
    lookup.ran_before(pod_allocation(container_uuid=UUID))

    assert lookup.pods.known(MAIN)
    assert (await lookup.find(container_uuid="")).allocation_id == UUID


@pytest.mark.parametrize(
    ("identity", "container_uuid"), [(MAIN, OTHER_UUID), (SIDE, UUID), (STRANGER, UUID)]
)
async def test_a_stored_answer_is_nobody_else_s(
    lookup: Lookup, identity: Identity, container_uuid: str
) -> None:
    lookup.ran_before(pod_allocation(container_uuid=UUID))

    with pytest.raises(CacheUnreachableError):
        await lookup.find(identity, container_uuid)


async def test_a_cache_that_answers_makes_stored_answers_void(lookup: Lookup) -> None:
    lookup.ran_before(pod_allocation(container_uuid=UUID))
    lookup.answers.replace([])

    with pytest.raises(CacheUnreachableError):
        await lookup.find()


async def test_what_comes_by_the_stream_meanwhile_counts(lookup: Lookup) -> None:
    allocation = pod_allocation(container_uuid=UUID)
    lookup.answers.replace([])
    lookup.cache.on_resolve = lambda: lookup.answers.upsert(allocation)
    lookup.cache.give = NotYetKnownError("the pod is not known yet", "wait")

    assert await lookup.find() == allocation


async def test_a_pod_that_never_comes_is_refused_in_the_cache_s_words(lookup: Lookup) -> None:
    lookup.answers.replace([])
    lookup.cache.give = NotYetKnownError("the pod is not known yet", "wait")

    with pytest.raises(NotYetKnownError, match="not known yet"):
        await lookup.find()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([pod_allocation(container_uuid=UUID)], "start from a stored answer confirmed"),
        ([], "container started from a stored answer that the cache does not confirm"),
        (
            [pod_allocation(part(OTHER_CARD), container_uuid=UUID)],
            "container started from a stored answer that the cache does not confirm",
        ),
    ],
)
async def test_a_start_without_the_cache_is_confirmed_later(
    lookup: Lookup,
    caplog: pytest.LogCaptureFixture,
    said: list[pb.Allocation],
    message: str,
) -> None:
    caplog.set_level("INFO")
    lookup.ran_before(pod_allocation(container_uuid=UUID))
    await lookup.find()

    lookup.answers.replace(said)
    lookup.pods.confirm()
    lookup.pods.confirm()

    assert caplog.messages.count(message) == 1


def test_the_end_of_an_allocation_is_remembered_until_the_next_snapshot() -> None:
    answers = NodeAnswers()
    answers.replace([pod_allocation(container_uuid=UUID)])
    assert not answers.was_removed(UUID)

    answers.remove(UUID)
    assert answers.was_removed(UUID)
    assert answers.get(UUID) is None
    assert answers.of(MAIN) is None

    answers.replace([])
    assert not answers.was_removed(UUID)


def test_after_the_stream_nothing_is_certain() -> None:
    answers = NodeAnswers()
    assert not answers.live
    answers.replace([pod_allocation(container_uuid=UUID)])
    assert answers.live

    answers.lost()

    assert not answers.live
    assert answers.get(UUID) is not None


IDS = st.sampled_from([UUID, OTHER_UUID])
WHO = st.sampled_from([MAIN, SIDE, STRANGER])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), IDS, WHO),
        st.tuples(st.just("remove"), IDS),
        st.tuples(st.just("replace"), st.dictionaries(IDS, WHO)),
    )
)


@given(EVENTS)
def test_any_order_of_events_gives_what_the_cache_has(events: list[Any]) -> None:
    answers = NodeAnswers()
    truth: dict[str, pb.Allocation] = {}
    doubled: set[Identity] = set()
    for kind, *words in events:
        match kind:
            case "upsert":
                truth[words[0]] = pod_allocation(container_uuid=words[0], identity=words[1])
                answers.upsert(truth[words[0]])
            case "remove":
                truth.pop(words[0], None)
                answers.remove(words[0])
            case _:
                truth = {
                    key: pod_allocation(container_uuid=key, identity=who)
                    for key, who in words[0].items()
                }
                answers.replace(truth.values())

        assert {each.allocation_id: each for each in answers.all()} == truth
        for who in (MAIN, SIDE, STRANGER):
            owned = [each for each in truth.values() if _owner(each) == _key(who)]
            found = answers.of(who)
            if len(owned) > 1:  # no cache says so; whoever is not certain is nobody
                doubled.add(who)
            assert found in owned or (found is None and (not owned or who in doubled))


def _owner(allocation: pb.Allocation) -> tuple[str, str]:
    return allocation.pod.uid, allocation.pod.container_name


def _key(identity: Identity) -> tuple[str, str]:
    return identity.pod_uid, identity.container_name
