# SPDX-License-Identifier: Apache-2.0
"""The create path, top to bottom: read, classify, ask, prepare, edit, write, verdict.

Every branch that is not a proven success ends in a refusal: a container that asked for a slice
starts with exactly that, or not at all.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import RELEASED, RUNNING, Answer, AnswerStore, encode_answer
from runtime_shim.bundle import Bundle
from runtime_shim.calibration import Calibration
from runtime_shim.claims import Claims
from runtime_shim.classify import Classification, classify
from runtime_shim.config import DEFAULT_PATH, Config
from runtime_shim.configure.launcher import LAUNCHER_NAME
from runtime_shim.counters import Counters
from runtime_shim.doors import Doors, check_hooks, check_namespaces, check_own_files
from runtime_shim.engine import engine_directory
from runtime_shim.errors import (
    CacheFailedError,
    CacheUnreachableError,
    NoRoomError,
    RefusedError,
)
from runtime_shim.host import Host
from runtime_shim.identity import Identity, IdentityError, check_container_uuid, identity_of
from runtime_shim.inventory import CardFacts, Inventory
from runtime_shim.isolation import Isolation
from runtime_shim.library import CURRENT, VerifiedCopies, copies_folders
from runtime_shim.loading import check_loading
from runtime_shim.messages import ContainerName, name_by_id, refusal_line
from runtime_shim.node_watch import PodLookup
from runtime_shim.policy import (
    Decision,
    Treatment,
    check_managed,
    driver_capabilities,
    treat_unmanaged,
)
from runtime_shim.processes import boot_id, boottime_ns
from runtime_shim.region import Regions, check_allocation
from runtime_shim.request import parse_request
from runtime_shim.rootfs import RootfsFacts, inspect_rootfs, merge_preload
from runtime_shim.spec import (
    ContainerEdits,
    Mount,
    Spec,
    apply_edits,
    destination,
    environment,
    merge_edits,
    mounts,
    source,
    within,
)
from runtime_shim.strip import VGPU_MOUNT, strip_gpu
from runtime_shim.threads import Lane
from runtime_shim.verdict import GPU, LOW_LEVEL, Launch, Verdict, refuse
from runtime_shim.view import view_of
from runtime_shim.voucher import Voucher

logger = logging.getLogger(__name__)

CONTAINER_LIBRARY = "/dev/vgpu/libvgpu.so"
CONTAINER_LIMITS = "/dev/vgpu/limits"
CONTAINER_USAGE = "/dev/vgpu/usage"
CONTAINER_PRELOAD = "/etc/ld.so.preload"

# Source: docs/configuration.md, scheduler-cache.toml.
_CACHE_CONFIG = DEFAULT_PATH.with_name("scheduler-cache.toml")
_CACHE_STATE = Path("/var/lib/vgpu/cache")


# What an answer takes once the cache has failed.
_ANSWER_SECONDS = 0.5

_FULL = "free space there, then start this container again"
_OS_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "make it writable, then start this container again",
}


class Allocator(Protocol):
    """The part of the scheduler cache that answers a create."""

    async def allocate(
        self,
        key: tuple[str, str],
        request: pb.AllocationRequest,
        seconds: float,
        *,
        spare_stopped: bool = False,
    ) -> pb.AllocateResponse:
        """Return the claim of a container. Raises RefusedError or CacheUnreachableError."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What one look at the bundle says; everything after it follows from this and the answer."""

    spec: Spec
    """Without any way to a GPU."""
    request: pb.AllocationRequest
    library: Path | None
    """The verified vgpu library on the host; None for a container that asks for whole cards."""
    capabilities: Sequence[str]
    engine_directory: str


class Creator:
    """Answers launchers."""

    def __init__(
        self,
        config: Config,
        *,
        cache: Allocator,
        claims: Claims,
        store: AnswerStore,
        regions: Regions,
        inventory: Inventory,
        calibration: Calibration,
        host: Host,
        counters: Counters | None = None,
        pods: PodLookup | None = None,
        voucher: Voucher | None = None,
        isolation: Isolation | None = None,
        installed: VerifiedCopies | None = None,
    ) -> None:
        """`pods`: Kubernetes mode, in which containers get what the cluster gave them; `voucher`
        knows there who was given whole cards by another plugin, and `isolation` is told of starts.
        """
        self._pods = pods
        self._voucher = voucher
        self._isolation = isolation or Isolation(lambda: None, time.monotonic)
        self._config = config
        paths = config.paths
        self._installed = installed or VerifiedCopies(paths.library, paths.state_dir)
        self._counters = counters or Counters()
        self._cache = cache
        self._claims = claims
        self._store = store
        self._regions = regions
        self._inventory = inventory
        self._calibration = calibration
        self._host = host
        self._boot_id = boot_id()
        self._inspections = Lane()
        self._doors = Doors(own_paths(config))

    async def create(self, launch: Launch) -> Verdict:
        """Return the verdict for one launcher; never raises but when cancelled."""
        kind = "late"
        try:
            verdict = await self._verdict(_Creation(launch))
            kind = verdict.kind
            return verdict
        finally:
            self._counters.verdict(kind, time.monotonic() - launch.began)

    async def _verdict(self, creation: _Creation) -> Verdict:
        try:
            return await self._create(creation)
        except RefusedError as error:
            cause = "no_room" if isinstance(error, NoRoomError) else creation.step
            return self._refused(creation, cause, error.reason, error.remedy)
        except CacheFailedError as error:
            return self._refused(
                creation,
                "cache_failed",
                f"the scheduler cache at {error.address} has failed: {error.detail}",
                error.remedy,
            )
        except CacheUnreachableError as error:
            seconds = round(error.seconds, 1)
            return self._refused(
                creation,
                "cache_unreachable",
                f"the scheduler cache at {error.address} gave no answer in {seconds:g} s"
                f" ({error.detail})",
                "start vgpu-scheduler-cache, then start this container again",
            )
        except OSError as error:
            logger.error(
                "create failed",
                extra={"container_id": creation.launch.container_id, "reason": str(error)},
                exc_info=error if error.errno not in _OS_REMEDIES else None,
            )
            place = error.filename or "a file"
            return self._refused(
                creation,
                "files",
                f"the node agent cannot use {place}: {error.strerror or error}",
                _OS_REMEDIES.get(error.errno or 0, "see the log of vgpu-node-agent"),
            )
        except Exception as error:
            logger.exception("create failed", extra={"container_id": creation.launch.container_id})
            return self._refused(
                creation,
                "failure",
                f"the node agent failed ({type(error).__name__})",
                "see the log of vgpu-node-agent",
            )

    def _refused(self, creation: _Creation, cause: str, reason: str, remedy: str) -> Verdict:
        """Return the refusal; `cause`: one of counters.REFUSALS."""
        self._counters.refusals[cause] += 1
        if creation.pod is not None:
            self._isolation.refused(creation.pod, creation.allocation_id, f"{reason}; {remedy}")
        line = refusal_line(creation.name, reason, remedy)
        logger.warning(
            "container refused",
            extra={"container_id": creation.launch.container_id, "line": line},
        )
        return refuse(line)

    async def _create(self, creation: _Creation) -> Verdict:
        if self._pods is not None:
            return await self._create_in_pod(creation, self._pods)
        # Short and on local file systems: a thread would wait longer for the interpreter. Only the
        # root and the sources of binds may lie on a file system that hangs.
        plan = self._read(creation)
        if plan is None:
            return await self._start_unmanaged(creation)
        creation.step = "rootfs"
        rootfs = await self._inspections.run(
            partial(self._inspect, creation, plan.spec, plan.library)
        )
        creation.step = "cache"
        launch = creation.launch
        key = (launch.root, launch.container_id)
        async with self._claims.creating(key):
            await self._claims.look_before_create(key)
            if self._claims.has_live_init(key):
                raise RefusedError(
                    "a container of this id is running", "stop it first, or use another id"
                )
            allocation = await self._allocation(key, plan.request, launch.began)
            check_allocation(allocation, self._inventory.card_bytes)
            _check_answers(allocation, plan)
            cards = self._cards(allocation)
            answer = self._answer(creation, plan, allocation)
            creation.step = "files"
            # From here on a failure leaves a claim that is observed, and ends as stopped.
            self._claims.started(answer, launch.launcher_pidfd)
            self._prepare(creation, plan, rootfs, answer, cards)
        return GPU if self._config.gpu_runtime.enabled else LOW_LEVEL

    async def _create_in_pod(self, creation: _Creation, pods: PodLookup) -> Verdict:
        """Give a pod's container what the cluster gave it. Nothing in its variables counts but the
        UUID, and that only where pod and container are the ones it was made for.
        """
        launch, bundle = creation.launch, creation.bundle
        spec = bundle.read()
        facts = classify(spec, mode="kubernetes")
        creation.name = facts.name(launch.container_id)
        if facts.sandbox and not facts.managed:
            # Anybody may call a container so who starts it past the kubelet; pause needs no card.
            decision = treat_unmanaged(facts, default=self._config.policy.unmanaged)
            if decision.treatment is Treatment.VOID:
                self._void(creation, spec)
            return await self._start_unmanaged(creation)
        creation.step = "identity"
        identity = self._identity(creation, spec, facts)
        if identity is None or not (facts.managed or pods.known(identity)):
            await self._judge_beside(creation, spec, facts, identity)
            return await self._start_unmanaged(creation)
        creation.pod = pb.PodIdentity(
            uid=identity.pod_uid,
            namespace=identity.namespace,
            name=identity.pod,
            container_name=identity.container_name,
        )
        container_uuid = check_container_uuid(facts.container_uuid) if facts.managed else ""
        if not container_uuid and self._config.policy.require_uuid:
            raise IdentityError(
                "it holds a slice and has no VGPU_CONTAINER_UUID, which this node requires",
                "see that vgpu's webhook admits pods, then make the pod anew",
            )
        creation.step = "policy"
        self._check_policy(creation, facts)
        creation.step = "cache"
        snapshots = pods.snapshots
        allocation = await pods.find(
            identity, container_uuid, launch.container_id, self._seconds_left(launch)
        )
        creation.pod, creation.allocation_id = allocation.pod, allocation.allocation_id
        if not allocation.slices:
            self._void(creation, spec)
            return await self._start_unmanaged(creation)
        check_allocation(allocation, self._inventory.card_bytes)
        cards = self._cards(allocation)
        plan = self._plan(
            creation, spec, pb.AllocationRequest(), whole=_gives_whole_cards(allocation, cards)
        )
        async with self._claims.creating_in_pod(allocation):
            creation.step = "rootfs"
            rootfs = await self._inspections.run(
                partial(self._inspect, creation, plan.spec, plan.library)
            )
            creation.step = "cache"
            await self._claims.look_at_one(allocation.allocation_id)
            if other := self._claims.other_that_runs(allocation.allocation_id, launch.container_id):
                raise RefusedError(
                    f"container {other[:12]} still runs with its slice",
                    "it starts once that one has ended",
                )
            if pods.is_gone(allocation.allocation_id, snapshots):
                raise RefusedError(
                    "its slice was taken back while it started",
                    "a pod that was deleted is not started again",
                )
            latest = pods.latest(allocation)
            if latest != allocation:
                check_allocation(latest, self._inventory.card_bytes)
                allocation, cards = latest, self._cards(latest)
                if _gives_whole_cards(allocation, cards) != (plan.library is None):
                    raise RefusedError("its slice changed while it started", "it is started again")
            answer = self._answer(creation, plan, allocation)
            creation.step = "files"
            self._claims.started(answer, launch.launcher_pidfd)
            self._prepare(creation, plan, rootfs, answer, cards)
        self._isolation.enforced(allocation, creation.weaknesses)
        return GPU if self._config.gpu_runtime.enabled else LOW_LEVEL

    async def _judge_beside(
        self, creation: _Creation, spec: Spec, facts: Classification, identity: Identity | None
    ) -> None:
        """Decide about a pod's container without a slice, to which another plugin may have given
        whole cards.
        """
        allow = self._config.policy.unmanaged_allow if identity else ()
        decision = treat_unmanaged(facts, default=self._config.policy.unmanaged, allow=allow)
        if decision.treatment is Treatment.VOID and identity and self._voucher:
            creation.step = "kubelet"
            seconds = self._seconds_left(creation.launch)
            if await self._voucher.vouches(identity, spec, seconds):
                decision = treat_unmanaged(facts, vouched=True)
        if decision.named_cards and self._voucher and self._voucher.needs_gpu_runtime(spec):
            creation.unmanaged_verdict = GPU
        self._unmanaged(creation, spec, decision)

    def _identity(self, creation: _Creation, spec: Spec, facts: Classification) -> Identity | None:
        """Return whose container it is; None for one that holds nothing and need not say."""
        if facts.managed and not facts.cri:
            raise IdentityError(
                "it has a VGPU_CONTAINER_UUID and was not started by the kubelet",
                "leave this variable to vgpu",
            )
        try:
            return identity_of(spec) if facts.cri else None
        except IdentityError as error:
            if facts.managed:
                raise
            logger.warning(
                "container without a slice contradicts itself",
                extra={"container_id": creation.launch.container_id, "reason": error.reason},
            )
            return None

    async def _start_unmanaged(self, creation: _Creation) -> Verdict:
        if creation.guarded is not None:
            creation.step = "rootfs"
            await self._inspections.run(partial(self._check_own_only, creation, creation.guarded))
        if creation.void is not None:
            creation.step = "rootfs"
            await self._inspections.run(partial(self._check_doors, creation, creation.void))
            creation.bundle.write(creation.void)
        return creation.unmanaged_verdict

    def _seconds_left(self, launch: Launch) -> float:
        """Return how long the cache may be asked: its sentence must still reach the launcher."""
        left = launch.began + verdict_seconds(self._config) - _ANSWER_SECONDS - time.monotonic()
        return max(min(self._config.cache.total_seconds, left), 0.1)

    def _read(self, creation: _Creation) -> _Plan | None:
        """Look at the bundle. None: it asks for nothing, and starts as it is or as `void` says."""
        bundle, launch = creation.bundle, creation.launch
        spec = bundle.read()
        facts = classify(spec)
        creation.name = facts.name(launch.container_id)
        if facts.cri:
            raise RefusedError(
                "it belongs to Kubernetes, and the node agent serves this host without it",
                "use another runtime class, or set the mode of the node agent",
            )
        creation.step = "request"
        env = environment(spec)
        request = parse_request(env) if facts.managed else self._earlier_request(launch, spec, env)
        if request is None:
            self._unmanaged(
                creation, spec, treat_unmanaged(facts, default=self._config.policy.unmanaged)
            )
            return None
        creation.step = "policy"
        self._check_policy(creation, facts)
        return self._plan(creation, spec, request, whole=_asks_for_whole_cards(request))

    def _check_policy(self, creation: _Creation, facts: Classification) -> None:
        check_managed(facts, sys_admin=self._config.policy.sys_admin)
        if "SYS_ADMIN" in facts.undoing:
            self._weakened(creation, "CAP_SYS_ADMIN can unmount what limits the container")

    def _weakened(self, creation: _Creation, why: str) -> None:
        creation.weaknesses.append(why)
        logger.warning(
            "weak isolation: %s", why, extra={"container_id": creation.launch.container_id}
        )

    def _plan(
        self, creation: _Creation, spec: Spec, request: pb.AllocationRequest, *, whole: bool
    ) -> _Plan:
        """`whole`: it gets whole cards, and so no library."""
        launch = creation.launch
        creation.step = "policy"
        capabilities = driver_capabilities(
            environment(spec).get("NVIDIA_DRIVER_CAPABILITIES"),
            self._config.policy.driver_capabilities,
        )
        library = None
        if not whole:
            check_loading(spec, os.uname().machine)
            creation.step = "library"
            library = self._installed.library()
        creation.step = "policy"
        stripped = self._strip(
            creation, spec, CONTAINER_LIBRARY if library else None, self._config.policy.deny
        )
        return _Plan(
            spec=stripped,
            request=request,
            library=library,
            capabilities=capabilities,
            engine_directory=engine_directory(spec, launch.container_id, launch.bundle),
        )

    def _earlier_request(
        self, launch: Launch, spec: Spec, env: Mapping[str, str]
    ) -> pb.AllocationRequest | None:
        """Return the request of a bundle that an earlier create of ours has already edited.

        A launcher asks again when the agent died between its edit and its verdict, and people run
        one bundle twice. The request has left the environment then, and stands in the answer.
        """
        prepared = [
            Path(source(mount)).parent.name
            for mount in mounts(spec)
            if destination(mount) == CONTAINER_LIMITS
            and within(source(mount), str(self._regions.folder))
        ]
        cards = env.get("NVIDIA_VISIBLE_DEVICES", "")
        for answer in self._store.find((launch.root, launch.container_id)):
            given = ",".join(part.card_uuid for part in answer.allocation.slices)
            if answer.state != RELEASED and (answer.allocation_id in prepared or cards == given):
                return answer.request
        if prepared:
            raise RefusedError(
                "its config.json was edited for a slice that it no longer has",
                "let the engine write config.json anew",
            )
        return None

    def _inspect(self, creation: _Creation, spec: Spec, library: Path | None) -> RootfsFacts:
        launch = creation.launch
        with view_of(launch.launcher_pidfd) as view:
            check_namespaces(spec, launch.bundle_fd, view)
            self._doors.check(spec, launch.bundle_fd, view)
            check_hooks(spec, view)
            if library is not None:
                check_own_files((library, self._regions.folder), view)
            with_library = library is not None
            facts = inspect_rootfs(launch.bundle_fd, spec, library=with_library, view=view)
        for note in facts.notes:
            logger.info(
                "rootfs", extra={"container_id": creation.launch.container_id, "note": note}
            )
        if facts.preload_objection is not None and self._config.policy.preload_env != "allow":
            raise facts.preload_objection
        return facts

    def _check_doors(self, creation: _Creation, spec: Spec) -> None:
        with view_of(creation.launch.launcher_pidfd) as view:
            self._doors.check(spec, creation.launch.bundle_fd, view)
            check_hooks(spec, view)

    def _check_own_only(self, creation: _Creation, spec: Spec) -> None:
        with view_of(creation.launch.launcher_pidfd) as view:
            self._doors.check(spec, creation.launch.bundle_fd, view, own_only=True)

    def _unmanaged(self, creation: _Creation, spec: Spec, decision: Decision) -> None:
        if decision.treatment is Treatment.LEAVE:
            logger.warning(
                "container without a slice left as it is",
                extra={
                    "container_id": creation.launch.container_id,
                    "container": f"{creation.name.place}/{creation.name.name}",
                    "reason": decision.reason,
                },
            )
            if self._config.gpu_runtime.enabled:
                creation.unmanaged_verdict = GPU
            creation.guarded = None if decision.trusted else spec
            return
        logger.info(
            "container sees no GPU",
            extra={"container_id": creation.launch.container_id, "reason": decision.reason},
        )
        self._void(creation, spec)

    def _void(self, creation: _Creation, spec: Spec) -> None:
        stripped = self._strip(creation, spec, None)
        edits = ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": "void"})
        creation.void = apply_edits(stripped, edits)

    def _strip(
        self,
        creation: _Creation,
        spec: Spec,
        library: str | None,
        deny: Sequence[str] = (),
    ) -> Spec:
        paths = self._config.paths
        stripped, removed = strip_gpu(
            spec,
            library=library,
            majors=self._host.majors(),
            own_folders=(str(paths.run_dir), *_library_folders(self._config)),
            drm=self._host.drm_numbers(),
            deny=deny,
        )
        if removed:
            logger.info(
                "ways to a GPU removed",
                extra={"container_id": creation.launch.container_id, "removed": removed},
            )
        return stripped

    async def _allocation(
        self, key: tuple[str, str], request: pb.AllocationRequest, began: float
    ) -> pb.Allocation:
        """Return the cache's answer, or the stored one of the same request when it is away."""
        stored = self._stored(key, request)
        cache = self._config.cache
        longest = cache.try_seconds if stored else cache.total_seconds

        def seconds() -> float:
            # Whatever was waited for before: the sentence about the cache must reach the launcher.
            left = began + verdict_seconds(self._config) - _ANSWER_SECONDS - time.monotonic()
            return max(min(longest, left), 0.1)

        try:
            try:
                response = await self._cache.allocate(key, request, seconds(), spare_stopped=True)
            except NoRoomError:
                # What removed containers held goes before what a stopped one may come back for.
                await self._claims.free_removed(key)
                response = await self._cache.allocate(key, request, seconds())
        except CacheUnreachableError as error:
            if stored is None:
                raise
            self._counters.stored_answers += 1
            logger.warning(
                "cache unreachable, container starts from its stored answer",
                extra={"allocation_id": stored.allocation_id, "reason": str(error)},
            )
            return stored.allocation
        allocation = response.allocation
        for taken in response.taken_allocation_ids:
            if self._claims.is_running(taken):
                raise RefusedError(
                    f"its slice was taken from {taken}, which runs",
                    "try again in a moment",
                )
        # Durably, before anything of this container exists: a stale answer gives a slice twice.
        replaced = {answer.allocation_id for answer in self._store.find(key)}
        replaced.discard(allocation.allocation_id)
        await self._claims.forget([*response.taken_allocation_ids, *replaced])
        return allocation

    def _stored(self, key: tuple[str, str], request: pb.AllocationRequest) -> Answer | None:
        for answer in self._store.find(key):
            if answer.request == request and answer.state != RELEASED:
                return answer
        return None

    def _cards(self, allocation: pb.Allocation) -> list[CardFacts]:
        try:
            return self._inventory.find(part.card_uuid for part in allocation.slices)
        except KeyError as error:
            raise RefusedError(
                f"card {error.args[0]} of its allocation cannot be used:"
                f" {self._inventory.why_not(error.args[0])}",
                "check the NVIDIA driver; a card that comes back is used again",
            ) from error

    def _answer(self, creation: _Creation, plan: _Plan, allocation: pb.Allocation) -> Answer:
        launch = creation.launch
        return Answer(
            allocation=allocation,
            request=plan.request,
            runtime_root=launch.root,
            container_id=launch.container_id,
            bundle=launch.bundle,
            engine_directory=plan.engine_directory,
            pid_file=launch.pid_file,
            boot_id=self._boot_id,
            init_seen=False,
            verdict_boottime_ns=boottime_ns(),
            state=RUNNING,
            since_unix_ns=time.time_ns(),
            runtime_dir=launch.runtime_dir,
        )

    def _prepare(
        self,
        creation: _Creation,
        plan: _Plan,
        rootfs: RootfsFacts,
        answer: Answer,
        cards: Sequence[CardFacts],
    ) -> None:
        """Store the answer, make the container's files and write its bundle."""
        self._store.put(answer)
        allocation = answer.allocation
        edits = [
            ContainerEdits(
                env={
                    "NVIDIA_VISIBLE_DEVICES": ",".join(p.card_uuid for p in allocation.slices),
                    "NVIDIA_DRIVER_CAPABILITIES": ",".join(plan.capabilities),
                }
            )
        ]
        if not self._config.gpu_runtime.enabled:
            edits.append(self._host.edits(cards, rootfs, plan.capabilities))
        if plan.library is not None:
            edits.append(self._limited(creation, plan.library, rootfs, allocation))
        self._regions.record(answer.allocation_id, encode_answer(answer))
        creation.bundle.write(apply_edits(plan.spec, merge_edits(*edits)))

    def _limited(
        self, creation: _Creation, library: Path, rootfs: RootfsFacts, allocation: pb.Allocation
    ) -> ContainerEdits:
        """Make the limits and usage files; return what brings them and the library in."""
        region = self._regions.create(
            allocation,
            merge_preload(CONTAINER_LIBRARY, rootfs.preload),
            self._calibration.context_bytes(part.card_uuid for part in allocation.slices),
        )
        binds = [
            VGPU_MOUNT,
            _bind(library, CONTAINER_LIBRARY, "ro"),
            _bind(region.limits_path, CONTAINER_LIMITS, "ro", "noexec"),
            _bind(region.usage_path, CONTAINER_USAGE, "rw", "noexec"),
        ]
        if rootfs.preload_objection is None:
            binds.append(_bind(region.preload_path, CONTAINER_PRELOAD, "ro", "noexec"))
            return ContainerEdits(mounts=binds)
        self._weakened(creation, "the library is preloaded by LD_PRELOAD")
        return ContainerEdits(env={"LD_PRELOAD": CONTAINER_LIBRARY}, mounts=binds)


class _Creation:
    """One create on its way."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.bundle = Bundle(launch.bundle_fd)
        self.name: ContainerName = name_by_id(launch.container_id)
        self.unmanaged_verdict = LOW_LEVEL
        self.guarded: Spec | None = None
        """What starts as it is, if it does not reach for the agent's own files."""
        self.pod: pb.PodIdentity | None = None
        """Kubernetes: whose container it is that is to have a slice."""
        self.allocation_id = ""
        self.weaknesses: list[str] = []
        """What makes its isolation weaker than usual, in words."""
        self.void: Spec | None = None
        """What config.json becomes for a container that sees no GPU."""
        self.step = "bundle"
        """Where it is, as counters.REFUSALS names it."""


def verdict_seconds(config: Config) -> float:
    """Return how long a create may take: 9 s by default, less than the launcher's 10."""
    return config.cache.total_seconds + 1.0


def _bind(path: Path, place: str, *options: str) -> Mount:
    return Mount(
        destination=place,
        source=str(path),
        options=("bind", "nosuid", "nodev", "rprivate", *options),
    )


def _check_answers(allocation: pb.Allocation, plan: _Plan) -> None:
    """Raise RefusedError unless `allocation` is one that the plan was made for."""
    whole = plan.library is None
    if (
        len(allocation.slices) != plan.request.count
        or allocation.whole_cards != whole
        or _gives_more_memory(allocation, plan.request)
    ):
        raise RefusedError(
            "the scheduler cache's answer does not fit the request",
            "install the same version of vgpu's node agent and scheduler cache",
        )


def _gives_more_memory(allocation: pb.Allocation, request: pb.AllocationRequest) -> bool:
    """Tell whether a slice has more bytes than were asked for; percentages are of each card."""
    asked = [amount.bytes for amount in request.memory]
    if not all(asked):
        return False
    asked *= len(allocation.slices) if len(asked) == 1 else 1
    given = sorted(part.memory_bytes for part in allocation.slices)
    return any(more > most for more, most in zip(given, sorted(asked), strict=True))


def _asks_for_whole_cards(request: pb.AllocationRequest) -> bool:
    return bool(request.memory) and all(amount.percent == 100 for amount in request.memory)


def _gives_whole_cards(allocation: pb.Allocation, cards: Sequence[CardFacts]) -> bool:
    """Tell whether nothing is left to limit. What another scheduler decided may be less than what
    the pod asked for, and others may have the rest of the card.
    """
    return allocation.whole_cards and all(
        part.memory_bytes >= card.memory_bytes and part.cores_percent == 100
        for part, card in zip(allocation.slices, cards, strict=True)
    )


def _library_folders(config: Config) -> tuple[str, ...]:
    """Return where libraries of this and of earlier versions are, and the agent's copies."""
    paths = config.paths
    copies = copies_folders(paths.library, paths.state_dir)
    return (str(paths.library.parent.parent), *map(str, copies))


def own_paths(config: Config, cache_config: Path = _CACHE_CONFIG) -> list[Path]:
    """Return where everything is that holds containers to their slices, and the sockets.

    Who writes the node's configuration, or the programs that go by it, writes every limit, too.
    """
    paths = config.paths
    own = [
        paths.run_dir,
        paths.run_dir / "containers",
        paths.state_dir,
        _cache_state(cache_config),
        paths.library.parent,
        paths.socket,
        DEFAULT_PATH.parent,  # the launcher reads its own file there, whatever the agent's is
    ]
    if paths.library.parent.name == CURRENT:  # beside it is what containers still have
        own.append(paths.library.parent.parent)
    own += _programs(paths.library)
    scheme, _, address = config.cache.address.partition(":")
    if scheme == "unix" and address.startswith("/"):
        own.append(Path(address))
    return own


def _cache_state(cache_config: Path) -> Path:
    """Return where this host's scheduler cache keeps its claims, whether there is one or not.

    Its own file says so, or nothing does; what only its command line says, nobody else knows.
    """
    try:
        named = tomllib.loads(cache_config.read_text()).get("state_dir")
    except (OSError, ValueError):  # the cache itself does not start with such a file
        named = None
    return Path(named) if isinstance(named, str) and named.startswith("/") else _CACHE_STATE


def _programs(library: Path) -> list[Path]:
    """Return what scripts/install has put below the library's prefix, as far as it is there.

    The launcher's own file counts before there is one: who is first to make it chooses runc.
    """
    if library.parts[-4:-1] != ("lib", "vgpu", "current"):
        return []
    prefix = library.parents[3]
    launcher = prefix / "bin" / LAUNCHER_NAME
    installed = (launcher, prefix / "bin/vgpu-node-agent", prefix / "share/vgpu-runtime")
    own = [path for path in installed if path.exists()]
    if launcher in own:
        own.append(launcher.with_name(f"{LAUNCHER_NAME}.conf"))
    return own
