# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import grpc
import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.config import Config
from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.server import running
from scheduler_cache.wire import pod_of
from tests.scheduler_cache.builders import GIB, NODE
from tests.scheduler_cache.messages import allocate, card, report, request, told


async def refused(call: Awaitable[object], code: grpc.StatusCode, words: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call

    assert caught.value.code() is code
    assert words in (caught.value.details() or "")


async def listed(stub: SchedulerCacheStub) -> dict[str, pb.Claim]:
    response = await stub.ListAllocations(pb.ListAllocationsRequest(node_name=NODE))
    return {claim.allocation.claim.container_id: claim for claim in response.claims}


@pytest.fixture
async def node(stub: SchedulerCacheStub) -> SchedulerCacheStub:
    """Return a client of a server that knows one card of 8 GiB."""
    await stub.ReportNode(report(card("GPU-1")))
    return stub


async def test_a_claim_goes_out_with_its_slices(node: SchedulerCacheStub) -> None:
    response = await node.Allocate(allocate("c1", 2, 25))

    allocation = response.allocation
    assert list(allocation.slices) == [
        pb.Slice(
            card_uuid="GPU-1",
            memory_bytes=2 * GIB,
            cores_percent=25,
            reserved_percent=25,
            cores_max_percent=25,
            compute_mode=pb.COMPUTE_MODE_HARD,
            weight=25,
        )
    ]
    assert (allocation.node_name, allocation.source_dialect) == (NODE, "local")
    assert allocation.claim == pb.ClaimKey(runtime_root="/run/runc", container_id="c1")
    assert response.taken_allocation_ids == []


async def test_allocate_is_idempotent(node: SchedulerCacheStub) -> None:
    first = await node.Allocate(allocate("c1", 2))

    assert await node.Allocate(allocate("c1", 2)) == first


async def test_at_once_is_as_one_after_the_other(node: SchedulerCacheStub) -> None:
    calls = (node.Allocate(allocate(f"c{i}", 2)) for i in range(8))

    answers = await asyncio.gather(*calls, return_exceptions=True)

    refusals = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(refusals) == 4
    assert len(await listed(node)) == 4


async def test_no_room_says_what_is_free(node: SchedulerCacheStub) -> None:
    await node.Allocate(allocate("c1", 7))

    await refused(
        node.Allocate(allocate("c2", 4)),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "no card has 4.0Gi free: GPU-1 has 1.0Gi of 8.0Gi; "
        "wait for a container to end or ask for less",
    )


async def test_what_can_never_fit_says_so(node: SchedulerCacheStub) -> None:
    await refused(
        node.Allocate(allocate("c1", 16)),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "this can never fit on this host: no card has 16.0Gi",
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (allocate("", 1), "claim.container_id is required"),
        (pb.AllocateRequest(), "node_name is required"),
        (allocate("c1", 1, count=0), "count 0 is not within 1..16"),
        (allocate("c1", 1, 101), "cores of 101% are not within"),
        (allocate("c1", 0), "memory is required"),
    ],
)
async def test_a_broken_rule_is_an_invalid_argument(
    node: SchedulerCacheStub, message: pb.AllocateRequest, words: str
) -> None:
    await refused(node.Allocate(message), grpc.StatusCode.INVALID_ARGUMENT, words)


async def test_before_the_first_report_nothing_is_answered(stub: SchedulerCacheStub) -> None:
    await refused(
        stub.Allocate(allocate("c1", 1)), grpc.StatusCode.UNAVAILABLE, "has not reported its cards"
    )
    watch = stub.WatchNode(pb.WatchNodeRequest(node_name=NODE))
    await refused(watch.read(), grpc.StatusCode.UNAVAILABLE, "has not reported its cards")


async def test_resolve_answers_by_allocation_id(node: SchedulerCacheStub) -> None:
    allocation = (await node.Allocate(allocate("c1", 2))).allocation

    request = pb.ResolveRequest(container_uuid=allocation.allocation_id, node_name=NODE)
    assert (await node.Resolve(request)).allocation == allocation


async def test_an_unknown_id_is_not_found(node: SchedulerCacheStub) -> None:
    await refused(
        node.Resolve(pb.ResolveRequest(container_uuid="nobody")),
        grpc.StatusCode.NOT_FOUND,
        "no allocation nobody is known",
    )


async def test_an_identity_alone_is_an_invalid_argument(node: SchedulerCacheStub) -> None:
    await refused(
        node.Resolve(pb.ResolveRequest(engine_container_id="c1")),
        grpc.StatusCode.INVALID_ARGUMENT,
        "container_uuid is required",
    )


async def test_another_nodes_allocation_is_denied(node: SchedulerCacheStub) -> None:
    allocation = (await node.Allocate(allocate("c1", 2))).allocation

    await refused(
        node.Resolve(
            pb.ResolveRequest(container_uuid=allocation.allocation_id, node_name="node-b")
        ),
        grpc.StatusCode.PERMISSION_DENIED,
        "belongs to another node",
    )


async def test_release_frees_and_may_be_repeated(node: SchedulerCacheStub) -> None:
    allocation = (await node.Allocate(allocate("c1", 8))).allocation

    for _ in range(2):
        await node.Release(pb.ReleaseRequest(allocation_id=allocation.allocation_id))

    assert await listed(node) == {}
    await node.Allocate(allocate("c2", 8))
    await refused(
        node.Release(pb.ReleaseRequest()),
        grpc.StatusCode.INVALID_ARGUMENT,
        "allocation_id is required",
    )


async def test_a_report_stops_a_claim_and_another_may_take_it(node: SchedulerCacheStub) -> None:
    old = (await node.Allocate(allocate("c1", 8))).allocation
    await node.Release(pb.ReleaseRequest(allocation_id=old.allocation_id))
    stopped = old.allocation_id[:-4] + "0000"
    old.allocation_id = stopped
    await node.ReportNode(
        report(card("GPU-1"), claims=(told(old, pb.CLAIM_STATE_STOPPED, ago_seconds=11),))
    )
    assert (await listed(node))["c1"].state == pb.CLAIM_STATE_STOPPED

    response = await node.Allocate(allocate("c2", 1))

    assert response.taken_allocation_ids == [stopped]
    assert (await node.Allocate(allocate("c2", 1))).taken_allocation_ids == [stopped]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.ReportNodeRequest(), "node_name is required"),
        (report(card("GPU-1"), card("GPU-1")), "names a card twice"),
        (report(*(card(f"GPU-{i}") for i in range(129))), "names 129 cards, more than 128"),
        (report(card("")), "a card without UUID"),
        (report(card("GPU-1", 0)), "memory of 0 bytes is out of range"),
        (report(claims=(pb.Claim(),)), "a claim without allocation_id"),
        (report(claims=(told(pb.Allocation(allocation_id="x"), 0),)), "state 0 is not known"),
        (
            report(
                claims=(
                    pb.Claim(
                        allocation=pb.Allocation(allocation_id="x"), state=pb.CLAIM_STATE_RUNNING
                    ),
                )
            ),
            "since_unix_ns is required",
        ),
        (
            report(claims=(told(pb.Allocation(allocation_id="x")),)),
            "claim.container_id is required",
        ),
    ],
)
async def test_a_malformed_report_is_refused_whole(
    node: SchedulerCacheStub, message: pb.ReportNodeRequest, words: str
) -> None:
    await refused(node.ReportNode(message), grpc.StatusCode.INVALID_ARGUMENT, words)

    assert await node.Allocate(allocate("c1", 8))


async def test_an_unusable_slice_in_a_report_is_refused(node: SchedulerCacheStub) -> None:
    allocation = (await node.Allocate(allocate("c1", 2))).allocation
    for field, value, words in (
        ("card_uuid", "", "a slice without card_uuid"),
        ("memory_bytes", 0, "memory of 0 bytes"),
        ("cores_percent", 0, "do not go together"),
        ("cores_max_percent", 101, "do not go together"),
        ("reserved_percent", 7, "do not go together"),
        ("compute_mode", 0, "compute mode 0 is not known"),
    ):
        broken = pb.Allocation.FromString(allocation.SerializeToString())
        setattr(broken.slices[0], field, value)
        await refused(
            node.ReportNode(report(card("GPU-1"), claims=(told(broken),))),
            grpc.StatusCode.INVALID_ARGUMENT,
            words,
        )


async def test_a_restarted_server_knows_everything(config: Config) -> None:
    async with running(config), grpc.aio.insecure_channel(config.listen[0]) as channel:
        stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
        await stub.ReportNode(report(card("GPU-1")))
        allocation = (await stub.Allocate(allocate("c1", 6))).allocation

    async with running(config), grpc.aio.insecure_channel(config.listen[0]) as channel:
        stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
        assert (await stub.Allocate(allocate("c1", 6))).allocation == allocation
        await refused(
            stub.Allocate(allocate("c2", 3)), grpc.StatusCode.RESOURCE_EXHAUSTED, "2.0Gi of 8.0Gi"
        )


# Watching


async def test_a_watch_starts_with_everything_and_goes_on_in_order(
    node: SchedulerCacheStub,
) -> None:
    first = (await node.Allocate(allocate("c1", 2))).allocation
    watch = node.WatchNode(pb.WatchNodeRequest(node_name=NODE))

    snapshot = await watch.read()
    second = (await node.Allocate(allocate("c2", 2))).allocation
    replaced = (await node.Allocate(allocate("c1", 3))).allocation
    await node.ReportNode(report(card("GPU-1"), claims=(told(second, pb.CLAIM_STATE_STOPPED),)))
    await node.Release(pb.ReleaseRequest(allocation_id=second.allocation_id))
    events = [await watch.read() for _ in range(4)]

    assert snapshot.sequence == 1
    assert list(snapshot.snapshot.allocations) == [first]
    assert events == [
        pb.WatchNodeResponse(sequence=2, upsert=second),
        pb.WatchNodeResponse(sequence=3, remove=first.allocation_id),
        pb.WatchNodeResponse(sequence=4, upsert=replaced),
        pb.WatchNodeResponse(sequence=5, remove=second.allocation_id),
    ]


async def test_a_node_is_told_that_a_stopped_claim_has_no_room(node: SchedulerCacheStub) -> None:
    lost = (await node.Allocate(allocate("c1", 2))).allocation
    lost.allocation_id = "lost"
    await node.Allocate(allocate("c2", 6))
    watch = node.WatchNode(pb.WatchNodeRequest(node_name=NODE))
    await watch.read()

    await node.ReportNode(report(card("GPU-1"), claims=(told(lost, pb.CLAIM_STATE_STOPPED),)))

    assert (await watch.read()).remove == "lost"


async def test_a_watcher_that_went_away_costs_nothing(node: SchedulerCacheStub) -> None:
    watch = node.WatchNode(pb.WatchNodeRequest(node_name=NODE))
    await watch.read()

    watch.cancel()

    assert await node.Allocate(allocate("c1", 2))


async def test_a_stopping_server_ends_its_streams_as_unavailable(config: Config) -> None:
    async with grpc.aio.insecure_channel(config.listen[0]) as channel:
        async with running(config):
            stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            await stub.ReportNode(report(card("GPU-1")))
            watch = stub.WatchNode(pb.WatchNodeRequest(node_name=NODE))
            await watch.read()
        # The sentence, or the end of the connection if that was faster.
        await refused(watch.read(), grpc.StatusCode.UNAVAILABLE, "")


# Words


async def test_explains_a_card(node: SchedulerCacheStub) -> None:
    allocation = (await node.Allocate(allocate("c1", 2, 25))).allocation

    response = await node.Explain(pb.ExplainRequest(card_uuid="GPU-1"))

    assert list(response.lines) == [
        "GPU-1 (NVIDIA H100): 2.0Gi of 8.0Gi memory, 25% of cores and 1 of 10 slots are held.",
        f"Container c1 (runtime root /run/runc), allocation {allocation.allocation_id}, "
        "holds 2.0Gi and 25% of cores.",
    ]


async def test_explains_an_overbooked_card(node: SchedulerCacheStub) -> None:
    lost = (await node.Allocate(allocate("c1", 6))).allocation
    lost.allocation_id = "lost"
    await node.ReportNode(report(card("GPU-1"), claims=(told(lost),)))

    lines = list((await node.Explain(pb.ExplainRequest(card_uuid="GPU-1"))).lines)
    about = list((await node.Explain(pb.ExplainRequest(allocation_id="lost"))).lines)

    assert lines[1] == "It is overbooked: it takes no new container until enough of these end."
    assert about[1:] == [
        "It holds 6.0Gi and idle cores of GPU-1.",
        "It was taken back from its node's report, because this cache had lost it.",
    ]


async def test_explains_a_request(node: SchedulerCacheStub) -> None:
    await node.Allocate(allocate("c1", 6))

    fits = await node.Explain(pb.ExplainRequest(request=request(2)))
    waits = await node.Explain(pb.ExplainRequest(request=request(4)))

    assert list(fits.lines) == [
        "It fits on node node-a now: it would get 2.0Gi and idle cores of GPU-1."
    ]
    assert list(waits.lines) == [
        "It does not fit on node node-a now: no card has 4.0Gi free: GPU-1 has 2.0Gi of 8.0Gi; "
        "wait for a container to end or ask for less."
    ]
    assert len(await listed(node)) == 1


async def test_explains_nothing_that_is_unknown(node: SchedulerCacheStub) -> None:
    for message, code, words in (
        (pb.ExplainRequest(card_uuid="GPU-9"), grpc.StatusCode.NOT_FOUND, "no card GPU-9"),
        (pb.ExplainRequest(allocation_id="x"), grpc.StatusCode.NOT_FOUND, "no allocation x"),
        (pb.ExplainRequest(), grpc.StatusCode.INVALID_ARGUMENT, "name a card"),
    ):
        await refused(node.Explain(message), code, words)


# Speed


async def test_a_thousand_claims_do_not_slow_an_allocation_down(stub: SchedulerCacheStub) -> None:
    await stub.ReportNode(report(*(card(f"GPU-{i}", 80, slots=200) for i in range(8))))

    async def seconds_each(first: int, number: int) -> float:
        message = allocate("", 1)
        message.request.memory[0].bytes = 256 << 20
        start = time.process_time()  # cache and caller: what else the machine does counts not
        for i in range(first, first + number):
            message.claim.container_id = f"c{i}"
            await stub.Allocate(message)
        return (time.process_time() - start) / number

    await seconds_each(0, 50)
    few = await seconds_each(50, 100)
    await seconds_each(150, 850)
    many = await seconds_each(1000, 100)

    # The round trip is most of it: a loose bound catches what grows with the number of claims.
    assert many < 3 * few + 0.001


def test_a_uid_that_is_none_is_refused() -> None:
    """Uids of ended pods are written on the Lease, which holds so many characters only."""
    with pytest.raises(InvalidRequestError, match="has 250000 characters, not a uid's 36"):
        pod_of(pb.PodIdentity(uid="u" * 250_000, container_name="main"))
