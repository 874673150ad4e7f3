# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler asks an extender, and what it is answered, as JSON. Pure.

Source: k8s.io/kube-scheduler/extender/v1, whose fields have no JSON tags: their names are
capitalised. A caller that keeps no cache of nodes sends whole `Nodes` and gets them back; since our
cache knows the nodes, only their names are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from scheduler_cache.errors import InvalidRequestError
from scheduler_cache.kube import objects

_LARGEST_INT32: Final = (1 << 31) - 1

_MessageT = TypeVar("_MessageT")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesAsked:
    """A pod and the nodes in question: of filter and prioritize."""

    pod: objects.Pod
    names: list[str]
    whole: Sequence[msgspec.Raw] | None = None
    """The Node objects, in the order of `names`; None: only names were sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Victims:
    """Pods whose eviction would make room on one node."""

    uids: tuple[str, ...]
    pdb_violations: int = 0
    """How many of them a disruption budget protects, as kube-scheduler counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptionAsked:
    """A pod, and for each node the victims whom kube-scheduler would choose."""

    pod: objects.Pod
    victims: Mapping[str, Victims]


@dataclass(frozen=True, kw_only=True, slots=True)
class BindingAsked:
    """A pod that is to be bound."""

    namespace: str
    name: str
    uid: str
    node_name: str


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw]


class _NodeMetadata(msgspec.Struct):
    name: str


class _NodeName(msgspec.Struct):
    metadata: _NodeMetadata


class _FilterArgs(msgspec.Struct):
    Pod: objects.Pod
    NodeNames: list[str] | None = None
    Nodes: _NodeList | None = None


class _MetaPod(msgspec.Struct):
    UID: str


class _MetaVictims(msgspec.Struct):
    Pods: list[_MetaPod] | None = None
    NumPDBViolations: int = 0


class _PodVictims(msgspec.Struct):
    Pods: list[objects.Pod] | None = None
    NumPDBViolations: int = 0


class _PreemptionArgs(msgspec.Struct):
    Pod: objects.Pod
    NodeNameToVictims: dict[str, _PodVictims] | None = None
    NodeNameToMetaVictims: dict[str, _MetaVictims] | None = None


class _BindingArgs(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


_FILTER: Final = msgspec.json.Decoder(_FilterArgs)
_PREEMPTION: Final = msgspec.json.Decoder(_PreemptionArgs)
_BINDING: Final = msgspec.json.Decoder(_BindingArgs)
_NODE: Final = msgspec.json.Decoder(_NodeName)
_encode: Final = msgspec.json.Encoder().encode


def nodes_asked(body: bytes) -> NodesAsked:
    """Return the ExtenderArgs of filter or prioritize, or raise InvalidRequestError."""
    args = _decoded(_FILTER, body, "ExtenderArgs")
    pod = _checked_pod(args.Pod, "ExtenderArgs")
    if args.NodeNames is not None:
        names, whole = args.NodeNames, None
    elif args.Nodes is not None:
        whole = args.Nodes.items
        names = [_decoded(_NODE, each, "ExtenderArgs.Nodes").metadata.name for each in whole]
    else:
        raise InvalidRequestError("ExtenderArgs: NodeNames and Nodes are both missing; send one")
    if not all(names):
        raise InvalidRequestError("ExtenderArgs: a node has an empty name")
    return NodesAsked(pod=pod, names=names, whole=whole)


def filter_result(
    asked: NodesAsked,
    fitting: list[str],
    failed: Mapping[str, str],
    unresolvable: Mapping[str, str],
) -> bytes:
    """Return an ExtenderFilterResult in the form in which the nodes were sent."""
    result: dict[str, Any] = {
        "FailedNodes": _unformatted_of(failed),
        "FailedAndUnresolvableNodes": _unformatted_of(unresolvable),
        "Error": "",
    }
    if asked.whole is None:
        result["NodeNames"] = fitting
    else:
        fits = set(fitting)
        pairs = zip(asked.names, asked.whole, strict=True)
        result["Nodes"] = {"metadata": {}, "items": [node for name, node in pairs if name in fits]}
    return _encode(result)


def host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Return a HostPriorityList."""
    pairs = zip(names, scores, strict=True)
    return _encode([{"Host": name, "Score": score} for name, score in pairs])


def preemption_asked(body: bytes) -> PreemptionAsked:
    """Return ExtenderPreemptionArgs, or raise InvalidRequestError."""
    args = _decoded(_PREEMPTION, body, "ExtenderPreemptionArgs")
    pod = _checked_pod(args.Pod, "ExtenderPreemptionArgs")
    if args.NodeNameToMetaVictims:
        uids = {
            name: ([each.UID for each in given.Pods or ()], given.NumPDBViolations)
            for name, given in args.NodeNameToMetaVictims.items()
        }
    elif args.NodeNameToVictims:
        uids = {
            name: (
                [each.get("metadata", {}).get("uid", "") for each in given.Pods or ()],
                given.NumPDBViolations,
            )
            for name, given in args.NodeNameToVictims.items()
        }
    else:
        uids = {}
    for name, (victims, violations) in uids.items():
        if not name or not all(victims):
            raise InvalidRequestError("ExtenderPreemptionArgs: a node or a victim has no name")
        if not 0 <= violations <= _LARGEST_INT32:
            raise InvalidRequestError(
                f"ExtenderPreemptionArgs: NumPDBViolations of node {name} is {violations}, which "
                "is no count"
            )
    return PreemptionAsked(
        pod=pod,
        victims={
            name: Victims(uids=tuple(dict.fromkeys(victims)), pdb_violations=violations)
            for name, (victims, violations) in uids.items()
        },
    )


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Return an ExtenderPreemptionResult."""
    return _encode(
        {
            "NodeNameToMetaVictims": {
                name: {
                    "Pods": [{"UID": uid} for uid in each.uids],
                    "NumPDBViolations": each.pdb_violations,
                }
                for name, each in victims.items()
            }
        }
    )


def binding_asked(body: bytes) -> BindingAsked:
    """Return ExtenderBindingArgs, or raise InvalidRequestError."""
    args = _decoded(_BINDING, body, "ExtenderBindingArgs")
    asked = BindingAsked(
        namespace=args.PodNamespace, name=args.PodName, uid=args.PodUID, node_name=args.Node
    )
    if not (asked.namespace and asked.name and asked.uid and asked.node_name):
        raise InvalidRequestError(
            "ExtenderBindingArgs: PodName, PodNamespace, PodUID and Node are all required"
        )
    return asked


def binding_result(error: str = "") -> bytes:
    """Return an ExtenderBindingResult; with an error kube-scheduler tries the pod again."""
    return _encode({"Error": _unformatted(error)})


def _unformatted_of(reasons: Mapping[str, str]) -> dict[str, str]:
    # A thousand nodes share a few sentences.
    shown = {reason: _unformatted(reason) for reason in set(reasons.values())}
    return {name: shown[reason] for name, reason in reasons.items()}


def _unformatted(reason: str) -> str:
    """Return a reason in which Go's fmt finds no verb, whatever text of users is in it.

    kube-scheduler gives the reason of a FailedScheduling event to `Eventf` as the format, so that
    "50% of cores" came out as "50%!o(MISSING)f cores". A "%%" would be shown as such in the pod's
    condition, which is not formatted.
    """
    return reason.replace("%", " percent")


def _decoded(
    decoder: msgspec.json.Decoder[_MessageT], body: bytes | msgspec.Raw, what: str
) -> _MessageT:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"{what} cannot be read: {error}") from error


def _checked_pod(pod: objects.Pod, what: str) -> objects.Pod:
    metadata, priority = pod.get("metadata", {}), pod.get("spec", {}).get("priority", 0)
    if not metadata.get("name") or not metadata.get("uid"):
        raise InvalidRequestError(f"{what}: Pod has no name or no uid")
    if not -_LARGEST_INT32 - 1 <= priority <= _LARGEST_INT32:
        raise InvalidRequestError(
            f"{what}: Pod.spec.priority is {priority}, which is no 32-bit number"
        )
    return pod
