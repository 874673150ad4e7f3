# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler's extender answers: filter, prioritize, preempt, and what may be bound. Pure.

The card is chosen at bind alone: a filter reserves nothing, so that what a scheduler asks and does
not use costs no room. Two pods may so be sent to the same last room; the second's bind is refused,
and its scheduler tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from scheduler_cache.cluster import Cluster, Deltas
from scheduler_cache.dialects.dialect import DialectError, PodRequest
from scheduler_cache.dialects.registry import Dialects
from scheduler_cache.errors import (
    InvalidRequestError,
    NotBelievedError,
    NotFoundError,
    NotYetError,
    WrongNodeError,
)
from scheduler_cache.extender.messages import BindingAsked, Victims
from scheduler_cache.extender.node_fit import Filtered, NodeFit
from scheduler_cache.extender.nominations import Nominations
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.victims import Cost, Search
from scheduler_cache.extender.what_if import without
from scheduler_cache.kube import objects
from scheduler_cache.model import CardPolicy
from scheduler_cache.node_view import NodeView
from scheduler_cache.pod import Pod, pod_of
from scheduler_cache.record import AllocationState, Record


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pod and its request; None: it asks for no card, or says what is wrong."""

    pod: Pod
    request: PodRequest | None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Relief:
    """Evictions that make room for a pod."""

    node_name: str
    victims: frozenset[str]
    cost: Cost


class Extender:
    """Answers from what the cluster holds. `follow` hears of every change of it."""

    def __init__(
        self,
        cluster: Cluster,
        dialects: Dialects,
        *,
        default_policy: CardPolicy = CardPolicy.BINPACK,
        scheduler_names: Sequence[str] = ("vgpu-scheduler",),
    ) -> None:
        """`scheduler_names`: pods of other schedulers are not bound here."""
        self._cluster = cluster
        self._dialects = dialects
        self._default = default_policy
        self._scheduler_names = tuple(scheduler_names)
        self._nodes = NodeFit(default_policy)
        self._nominations = Nominations(cluster, default_policy)
        self._take(cluster.node_names)

    def follow(self, deltas: Deltas) -> None:
        """Take in what changed."""
        self._take(deltas.nodes)
        for uid in deltas.pods:
            self._nominations.follow(uid)

    def filter(self, source: objects.Pod, names: list[str]) -> Filtered:
        """Return which of the nodes take the pod now, and why the others do not."""
        asked = self._read(source)
        if asked.error:
            why = f"the pod's request cannot be read: {asked.error}"
            return Filtered(fitting=[], unresolvable=dict.fromkeys(names, why))
        if asked.request is None:
            return Filtered(fitting=names)
        shape = Shape.of(asked.pod, asked.request)
        found = self._nodes.filter(shape, names)
        taken = self._nominations.taken(asked.pod, shape, found.fitting)
        if taken:
            found = found.failing(taken)
        held = self._reserved_on(asked.pod.uid)
        if held in found.failed or held in found.unresolvable:
            found = found.fitting_too(held)
        return found

    def prioritize(self, source: objects.Pod, names: list[str]) -> list[int]:
        """Return a score of 0..10 for each node, in the order given."""
        asked = self._read(source)
        if asked.request is None:
            return [0] * len(names)
        return self._nodes.prioritize(Shape.of(asked.pod, asked.request), names)

    def preempt(self, source: objects.Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """Return the nodes on which evictions help, with everybody who must go.

        Whom kube-scheduler names must go, for CPU and the like; holders of slices come on top. The
        counts of disruption budgets are passed on as they came: we know no budgets.
        """
        asked = self._read(source)
        if asked.error:
            return {}
        if asked.request is None:
            return dict(victims)
        shape = Shape.of(asked.pod, asked.request)
        found = {}
        for name, given in victims.items():
            more = self._victims(asked.pod, shape, name, given.uids)
            if more is not None and (given.uids or more):
                found[name] = Victims(
                    uids=(*given.uids, *sorted(more)), pdb_violations=given.pdb_violations
                )
        return found

    def check_binding(self, asked: BindingAsked) -> Record:
        """Return the pod that is to be bound, or raise.

        NotYetError: it is not known here yet. NotFoundError, WrongNodeError, NotBelievedError: it
        is not to be bound, now or ever.
        """
        record = self._cluster.record(asked.uid)
        named = f"{asked.namespace}/{asked.name}"
        if record is None:
            raise NotYetError(f"pod {named} with uid {asked.uid} is not known here yet")
        pod = record.pod
        if record.gone or pod.terminal or pod.deleting:
            raise NotFoundError(f"pod {named} with uid {asked.uid} is gone, or going")
        if str(pod) != named:
            raise NotBelievedError(f"uid {asked.uid} is that of pod {pod}, not of {named}")
        if pod.node_name:
            raise WrongNodeError(f"pod {named} is already bound to node {pod.node_name}")
        if pod.scheduler_name not in self._scheduler_names:
            raise NotBelievedError(
                f"pod {named} is scheduler {pod.scheduler_name!r}'s, and this cache binds pods of "
                f"{' and '.join(self._scheduler_names)} alone (kubernetes.extender.scheduler_names)"
            )
        return record

    def _reserved_on(self, uid: str) -> str:
        """Return where a pod holds its cards already, since an earlier bind's outcome is awaited;
        empty: nowhere. A bind to that node gets the same cards.
        """
        record = self._cluster.record(uid)
        assumed = record.assumed if record is not None else None
        return assumed.node_name if assumed is not None else ""

    def _take(self, names: Iterable[str]) -> None:
        for name in names:
            view = self._cluster.view(name)
            if view is None:
                self._nodes.remove(name)
            else:
                self._nodes.update(view)

    def _read(self, source: objects.Pod) -> _Asked:
        """Return what a pod asks for."""
        pod = pod_of(source)
        known = self._cluster.record(pod.uid)
        if known is not None and known.pod.version == pod.version != 0:
            return _Asked(known.pod, known.request, known.request_error)
        try:
            return _Asked(pod, self._dialects.parse_request(pod))
        except (DialectError, InvalidRequestError) as error:
            return _Asked(pod, None, str(error))

    def relief(self, uid: str, name: str, spared: Set[str]) -> Relief | None:
        """Return whose eviction makes room on a node for a pod that waits; None: nobody's does.

        `spared`: pods that may not be evicted now. An empty set of victims: those who hold the room
        are ending already. Raises nothing; a pod that needs no help gets none.
        """
        record = self._cluster.record(uid)
        if (
            record is None
            or record.request is None
            or not record.pod.preempts
            or self._cluster.state(uid) is not AllocationState.PENDING
            or self._nominations.promised(uid)
        ):
            return None
        search = self._search(record.pod, Shape.of(record.pod, record.request), name, (), spared)
        victims = search.victims() if search is not None else None
        if search is None or victims is None:
            return None
        return Relief(node_name=name, victims=victims, cost=search.cost(victims))

    def promise(self, uid: str, node_name: str) -> None:
        """Keep the room on a node for a pod, from pods of lower or equal priority."""
        self._nominations.promise(uid, node_name)

    def withdraw(self, uid: str) -> None:
        """End a promise. A pod that is bound or gone needs it no more by itself."""
        self._nominations.withdraw(uid)

    def _victims(
        self, pod: Pod, shape: Shape, name: str, given: Sequence[str]
    ) -> frozenset[str] | None:
        """Return who must go besides `given`; None: evictions do not help there."""
        search = self._search(pod, shape, name, given, frozenset())
        return search.victims() if search is not None else None

    def _search(
        self, pod: Pod, shape: Shape, name: str, given: Sequence[str], spared: Set[str]
    ) -> Search | None:
        view = self._nominations.later(pod, name)
        if view is None:
            return None
        lower = self._lower(pod, view)
        ending = {uid for uid, each in lower.items() if each.deleting}
        stay = ending.union(given, spared)
        return Search(
            view=without(view, ending.union(given)),
            shape=shape,
            evictable={uid: each.priority for uid, each in lower.items() if uid not in stay},
            default=self._default,
        )

    def _lower(self, pod: Pod, view: NodeView) -> dict[str, Pod]:
        """Return the pods of lower priority that hold something on a node, by uid."""
        held = {hold.pod_uid for holds in view.holds.values() for hold in holds if hold.pod_uid}
        return {
            record.pod.uid: record.pod
            for record in map(self._cluster.record, held)
            # A reservation ends by itself, and what is gone from the API server cannot be evicted.
            if record is not None
            and not record.gone
            and record.pod.node_name == view.name
            and record.pod.priority < pod.priority
        }
