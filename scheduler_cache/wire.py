# SPDX-License-Identifier: Apache-2.0
"""The messages of `vgpu.v1` to and from the model. Pure; every rule of the wire is checked here.

Source: proto/vgpu/v1/scheduler_cache.proto.
"""

from __future__ import annotations

from vgpu.v1 import scheduler_cache_pb2 as pb

from scheduler_cache.cache import Report
from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.isolation import Isolation, IsolationState
from scheduler_cache.model import (
    MAX_BYTES,
    MAX_CARDS,
    MAX_CLAIMS,
    NO_CLAIM,
    Allocation,
    Card,
    CardKind,
    CardPolicy,
    Claim,
    ClaimKey,
    ClaimState,
    ComputeMode,
    MemoryAmount,
    Node,
    PodContainer,
    Request,
    Slice,
    WholeCards,
)

# Source: Linux's MINORBITS.
_MAX_MINOR = (1 << 20) - 1

_LONGEST_UID = 64
"""Kubernetes makes uids of 36 characters, and of 32 for static pods."""

_MODES = {
    pb.COMPUTE_MODE_HARD: ComputeMode.HARD,
    pb.COMPUTE_MODE_BURST: ComputeMode.BURST,
}
_MODE_NUMBERS = {mode: number for number, mode in _MODES.items()}

_POLICIES = {
    pb.CARD_POLICY_BINPACK: CardPolicy.BINPACK,
    pb.CARD_POLICY_SPREAD: CardPolicy.SPREAD,
    pb.CARD_POLICY_EXCLUSIVE: CardPolicy.EXCLUSIVE,
}

_KINDS = {
    pb.CARD_KIND_UNSPECIFIED: CardKind.GPU,
    pb.CARD_KIND_GPU: CardKind.GPU,
    pb.CARD_KIND_MIG: CardKind.MIG,
}

_STATES = {
    pb.CLAIM_STATE_RUNNING: ClaimState.RUNNING,
    pb.CLAIM_STATE_STOPPED: ClaimState.STOPPED,
    pb.CLAIM_STATE_RELEASED: ClaimState.RELEASED,
}
_ISOLATION_STATES = {
    pb.ISOLATION_STATE_ENFORCED: IsolationState.ENFORCED,
    pb.ISOLATION_STATE_REFUSED: IsolationState.REFUSED,
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}


def request_of(message: pb.AllocationRequest) -> Request:
    """Return the request, or raise InvalidRequestError with the broken rule."""
    if message.compute_mode and message.compute_mode not in _MODES:
        raise InvalidRequestError(f"compute mode {message.compute_mode} is not known here")
    if message.card_policy and message.card_policy not in _POLICIES:
        raise InvalidRequestError(f"card policy {message.card_policy} is not known here")
    return Request(
        count=message.count,
        memory=tuple(
            MemoryAmount(bytes=amount.bytes, percent=amount.percent) for amount in message.memory
        ),
        cores_percent=tuple(message.cores_percent),
        compute_mode=_MODES.get(message.compute_mode),
        uuids=tuple(message.uuids),
        models=tuple(message.models),
        card_policy=_POLICIES.get(message.card_policy),
    )


def key_of(message: pb.ClaimKey) -> ClaimKey:
    """Return the key of a claim, or raise InvalidRequestError."""
    if not message.container_id:
        raise InvalidRequestError("claim.container_id is required")
    return ClaimKey(runtime_root=message.runtime_root, container_id=message.container_id)


def node_name_of(name: str) -> str:
    """Return `name`, or raise InvalidRequestError when it is empty."""
    if not name:
        raise InvalidRequestError("node_name is required")
    return name


def report_of(message: pb.ReportNodeRequest) -> Report:
    """Return the whole report, or raise InvalidRequestError for the first thing wrong with it."""
    name = node_name_of(message.node_name)
    if len(message.cards) > MAX_CARDS:
        raise InvalidRequestError(
            f"the report of node {name} names {len(message.cards)} cards, more than {MAX_CARDS}"
        )
    cards = {card.uuid: _card_of(card) for card in message.cards}
    if len(cards) != len(message.cards):
        raise InvalidRequestError(f"the report of node {name} names a card twice")
    most = max(
        len(message.claims),
        len(message.running_allocation_ids),
        len(message.isolation),
        len(message.whole_cards),
    )
    if most > MAX_CLAIMS:
        raise InvalidRequestError(
            f"the report of node {name} names {most} containers, more than {MAX_CLAIMS}"
        )
    claims = {claim.allocation.allocation_id: _claim_of(claim, name) for claim in message.claims}
    if len(claims) != len(message.claims):
        raise InvalidRequestError(f"the report of node {name} names a claim twice")
    return Report(
        node=Node(
            name=name,
            cards=tuple(cards[uuid] for uuid in sorted(cards)),
            ready=message.ready,
            boot_id=message.boot_id,
            agent_version=message.agent_version,
        ),
        running=frozenset(message.running_allocation_ids),
        claims=tuple(claims.values()),
        isolation=tuple(
            Isolation(pod=pod_of(each.pod), state=_ISOLATION_STATES[each.state], reason=each.reason)
            for each in message.isolation
            # A later agent may know more states.
            if each.state in _ISOLATION_STATES
        ),
        served_resources=frozenset(message.served_resources),
        whole_cards=_whole_cards_of(message) if message.whole_cards_known else None,
    )


def _whole_cards_of(message: pb.ReportNodeRequest) -> tuple[WholeCards, ...]:
    return tuple(
        WholeCards(
            pod=PodContainer(
                uid=each.pod.uid,
                namespace=each.pod.namespace,
                name=each.pod.name,
                container_name=each.pod.container_name,
            ),
            card_uuids=frozenset(each.card_uuids),
        )
        for each in message.whole_cards
    )


def _card_of(message: pb.Card) -> Card:
    if not message.uuid:
        raise InvalidRequestError("a card without UUID")
    if message.kind not in _KINDS:
        raise InvalidRequestError(f"card {message.uuid}: kind {message.kind} is not known here")
    if message.memory_bytes > MAX_BYTES or (message.healthy and not message.memory_bytes):
        raise InvalidRequestError(
            f"card {message.uuid}: memory of {message.memory_bytes} bytes is out of range"
        )
    if message.minor > _MAX_MINOR:
        raise InvalidRequestError(f"card {message.uuid}: minor {message.minor} is out of range")
    return Card(
        uuid=message.uuid,
        kind=_KINDS[message.kind],
        model=message.model,
        memory_bytes=message.memory_bytes,
        slots=message.slots,
        healthy=message.healthy,
        health_reason=message.health_reason,
        parent_uuid=message.parent_uuid,
        numa_node=message.numa_node,
        minor=message.minor if message.HasField("minor") else -1,
    )


def _claim_of(message: pb.Claim, node_name: str) -> Claim:
    told = message.allocation
    if not told.allocation_id:
        raise InvalidRequestError("a claim without allocation_id")
    what = f"claim {told.allocation_id}"
    if message.state not in _STATES:
        raise InvalidRequestError(f"{what}: state {message.state} is not known here")
    if message.since_unix_ns <= 0:
        raise InvalidRequestError(f"{what}: since_unix_ns is required")
    return Claim(
        allocation=Allocation(
            allocation_id=told.allocation_id,
            node_name=node_name,
            slices=tuple(_slice_of(part, what) for part in told.slices),
            claim=NO_CLAIM if told.HasField("pod") else key_of(told.claim),
            pod=pod_of(told.pod) if told.HasField("pod") else None,
            epoch=told.epoch,
            account_id=told.account_id,
            source_dialect=told.source_dialect or "local",
            whole_cards=told.whole_cards,
            exclusive=told.exclusive or told.whole_cards,
        ),
        state=_STATES[message.state],
        since_unix_ns=message.since_unix_ns,
        request=None,
    )


def _slice_of(message: pb.Slice, what: str) -> Slice:
    if not message.card_uuid:
        raise InvalidRequestError(f"{what}: a slice without card_uuid")
    if not 1 <= message.memory_bytes <= MAX_BYTES or message.virtual_memory_bytes > MAX_BYTES:
        raise InvalidRequestError(f"{what}: memory of {message.memory_bytes} bytes is out of range")
    cores, ceiling = message.cores_percent, message.cores_max_percent
    if not 1 <= cores <= ceiling <= 100 or message.reserved_percent not in (0, cores):
        raise InvalidRequestError(
            f"{what}: cores {cores}%, reserved {message.reserved_percent}%, at most {ceiling}% "
            "do not go together"
        )
    if message.compute_mode not in _MODES:
        raise InvalidRequestError(f"{what}: compute mode {message.compute_mode} is not known here")
    return Slice(
        card_uuid=message.card_uuid,
        memory_bytes=message.memory_bytes,
        virtual_memory_bytes=message.virtual_memory_bytes,
        cores_percent=cores,
        reserved_percent=message.reserved_percent,
        cores_max_percent=ceiling,
        compute_mode=_MODES[message.compute_mode],
        priority=message.priority,
        weight=message.weight,
    )


def allocation_message(allocation: Allocation) -> pb.Allocation:
    """Return an allocation as the node reads it."""
    return pb.Allocation(
        allocation_id=allocation.allocation_id,
        epoch=allocation.epoch,
        slices=[
            pb.Slice(
                card_uuid=part.card_uuid,
                memory_bytes=part.memory_bytes,
                virtual_memory_bytes=part.virtual_memory_bytes,
                cores_percent=part.cores_percent,
                reserved_percent=part.reserved_percent,
                cores_max_percent=part.cores_max_percent,
                compute_mode=_MODE_NUMBERS[part.compute_mode],
                priority=part.priority,
                weight=part.weight,
            )
            for part in allocation.slices
        ],
        account_id=allocation.account_id,
        source_dialect=allocation.source_dialect,
        node_name=allocation.node_name,
        pod=pod_message(allocation.pod) if allocation.pod else None,
        claim=None
        if allocation.pod
        else pb.ClaimKey(
            runtime_root=allocation.claim.runtime_root,
            container_id=allocation.claim.container_id,
        ),
        whole_cards=allocation.whole_cards,
        exclusive=allocation.exclusive,
    )


def pod_message(pod: PodContainer) -> pb.PodIdentity:
    """Return who a container of a pod is."""
    return pb.PodIdentity(
        uid=pod.uid, namespace=pod.namespace, name=pod.name, container_name=pod.container_name
    )


def pod_of(message: pb.PodIdentity) -> PodContainer:
    """Return who a container of a pod is, or raise InvalidRequestError."""
    if not message.uid or not message.container_name:
        raise InvalidRequestError("a pod's container needs pod.uid and pod.container_name")
    if len(message.uid) > _LONGEST_UID:
        raise InvalidRequestError(f"pod.uid has {len(message.uid)} characters, not a uid's 36")
    return PodContainer(
        uid=message.uid,
        namespace=message.namespace,
        name=message.name,
        container_name=message.container_name,
    )


def claim_message(claim: Claim) -> pb.Claim:
    """Return a claim with its state."""
    return pb.Claim(
        allocation=allocation_message(claim.allocation),
        state=_STATE_NUMBERS[claim.state],
        since_unix_ns=claim.since_unix_ns,
    )
