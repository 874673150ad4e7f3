# SPDX-License-Identifier: Apache-2.0
"""Who leads: never two at once, never under an epoch that was used before."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from scheduler_cache.errors import NotLeaderError
from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.leader import Election, Terms
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import until

LEASES = "/apis/coordination.k8s.io/v1/leases"
OURS = "/apis/coordination.k8s.io/v1/namespaces/vgpu-system/leases"
SHORT = Terms(lease_seconds=3.0, renew_seconds=2.0, retry_seconds=0.05)


class Candidate:
    """An election with clocks that a test moves."""

    def __init__(self, client: KubeClient, name: str, terms: Terms = SHORT, floor: int = 0) -> None:
        self.wall = datetime.now(UTC)
        self.offset = 0.0
        self.reigns: list[int] = []
        self.election = Election(
            client,
            "vgpu-system",
            "cache",
            name,
            terms=terms,
            epoch_floor=lambda: floor,
            monotonic=lambda: asyncio.get_running_loop().time() + self.offset,
            now=lambda: self.wall,
        )
        self._task: asyncio.Task[None] | None = None

    async def _started(self, epoch: int) -> None:
        self.reigns.append(epoch)

    def start(self) -> None:
        self._task = asyncio.create_task(self.election.run(self._started))

    async def kill(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def lease(server: FakeApiServer) -> dict[str, object]:
    spec: dict[str, object] = server.objects[LEASES]["vgpu-system", "cache"]["spec"]
    return spec


def renewed(server: FakeApiServer, times: int) -> bool:
    return server.count("PUT", f"{OURS}/cache") >= times


async def test_one_of_two_leads(server: FakeApiServer, client: KubeClient) -> None:
    first, second = Candidate(client, "a"), Candidate(client, "b")
    first.start()
    await until(lambda: first.election.leading)
    second.start()
    await until(lambda: second.election.holder == "a")

    assert first.election.check() == first.election.epoch == 1
    with pytest.raises(NotLeaderError, match="this replica does not lead; a does"):
        second.election.check()
    assert lease(server)["leaseTransitions"] == 1
    await first.kill()
    await second.kill()


async def test_kill_9_of_the_leader_makes_the_other_lead_under_a_higher_epoch(
    server: FakeApiServer, client: KubeClient
) -> None:
    first, second = Candidate(client, "a"), Candidate(client, "b")
    first.start()
    await until(lambda: first.election.leading)
    second.start()
    await first.kill()

    await until(lambda: second.election.leading)

    assert second.election.epoch == 2
    assert not first.election.leading
    await second.kill()


async def test_a_leader_that_resigns_is_followed_without_waiting(
    server: FakeApiServer, client: KubeClient
) -> None:
    patient = Terms(lease_seconds=3600, renew_seconds=1800, retry_seconds=0.05)
    first, second = Candidate(client, "a", patient), Candidate(client, "b", patient)
    first.start()
    await until(lambda: first.election.leading)
    second.start()
    await until(lambda: second.election.holder == "a")
    await first.kill()
    await first.election.resign()

    await until(lambda: second.election.leading)

    assert second.election.epoch == 2
    await first.election.resign()  # no longer its own to give away
    assert lease(server)["holderIdentity"] == "b"
    await second.kill()


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = Candidate(client, "a")
    first.start()
    await until(lambda: first.election.leading)
    server.fail("PUT", OURS, times=10**9, code=500)

    await until(lambda: not first.election.leading)

    with pytest.raises(NotLeaderError):
        first.election.check()
    server.faults.clear()
    await until(lambda: first.election.leading)
    await until(lambda: first.reigns == [1, 1])
    await first.kill()


@pytest.mark.parametrize("hours", [-48, 48])
async def test_a_clock_that_jumps_changes_nothing(
    server: FakeApiServer, client: KubeClient, hours: int
) -> None:
    first, second = Candidate(client, "a"), Candidate(client, "b")
    first.start()
    await until(lambda: first.election.leading)
    second.start()
    for candidate in (first, second, first):
        candidate.wall += timedelta(hours=hours)
        wanted = server.count("PUT", f"{OURS}/cache") + 10
        await until(partial(renewed, server, wanted))

    assert first.election.leading
    assert not second.election.leading
    assert (first.reigns, second.reigns) == ([1], [])
    await first.kill()
    await second.kill()


async def test_a_process_that_was_paused_leads_no_longer(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = Candidate(client, "a")
    first.start()
    await until(lambda: first.election.leading)

    first.offset += 2.1  # everything stood still for longer than it may go without renewal

    with pytest.raises(NotLeaderError):
        first.election.check()
    await first.kill()


async def test_who_cannot_do_a_leaders_work_does_not_go_on_leading(
    server: FakeApiServer, client: KubeClient
) -> None:
    one = Candidate(client, "one")

    async def failing(epoch: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(one.election.run(failing), 30)

    assert not one.election.leading


async def test_a_deleted_lease_makes_no_epoch_come_back(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = Candidate(client, "a", floor=7)
    first.start()
    await until(lambda: first.election.leading)
    assert first.election.epoch == 8
    await server.remove(LEASES, "cache", "vgpu-system")

    await until(lambda: first.election.epoch == 9)

    assert lease(server)["leaseTransitions"] == 9
    await until(lambda: first.reigns == [8, 9])
    assert first.election.leading
    await first.kill()


@pytest.mark.parametrize("seed", range(3))
async def test_never_two_lead_at_once_whatever_fails(
    server: FakeApiServer, client: KubeClient, seed: int
) -> None:
    chance = random.Random(seed)
    candidates = [Candidate(client, name) for name in "abc"]
    for candidate in candidates:
        candidate.start()
    for _ in range(60):
        server.fail(
            chance.choice(["GET", "PUT"]),
            OURS,
            times=chance.randrange(1, 30),
            code=chance.choice([0, 409, 500]),
            after=chance.random() < 0.3,
        )
        for _ in range(5):
            await asyncio.sleep(0.01)
            assert sum(candidate.election.leading for candidate in candidates) <= 1
        if chance.random() < 0.2:
            victim = chance.choice(candidates)
            await victim.kill()
            victim.start()
    server.faults.clear()
    await until(lambda: any(candidate.election.leading for candidate in candidates))

    holders = {epoch: name for name in "abc" for epoch in candidates["abc".index(name)].reigns}
    assert len(holders) == len({epoch for each in candidates for epoch in set(each.reigns)})
    for candidate in candidates:
        assert candidate.reigns == sorted(candidate.reigns)
        await candidate.kill()


def test_terms_that_would_let_two_lead_are_refused() -> None:
    with pytest.raises(ValueError, match="keeps two from leading"):
        Terms(lease_seconds=10, renew_seconds=10, retry_seconds=2)
