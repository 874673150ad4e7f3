# SPDX-License-Identifier: Apache-2.0
"""The node's cards and who computes on them, as NVML says; the only importer of pynvml.

NVML may be absent, come later with the driver, or hang: it is called in one thread of its own, and
what it said last stands until it says something else.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import pynvml
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.errors import InventoryError
from runtime_shim.threads import in_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What newer or older drivers do not offer. Source: NVML API reference, nvmlReturn_t.
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

# Source: NVML API reference, nvmlEventTypeXidCriticalError, nvmlEventData_t.
_XID_EVENT = 0x8
_NO_INSTANCE = 0xFFFFFFFF
# Enough to be told what is there; the thread has other questions to ask.
_EVENT_WAIT_MS = 5
# At a time: programs that fail without a pause must not keep the thread from its other questions.
_MOST_EVENTS = 256

_NO_MEMORY = (
    "the driver does not say how much memory it has; set driver.unified_memory_bytes of the node"
    " agent"
)

# The driver was unloaded or replaced under us.
_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What is fixed about a card, or a MIG instance, of this host."""

    uuid: str
    kind: pb.CardKind
    model: str
    memory_bytes: int
    minor: int
    """N of /dev/nvidiaN; a MIG instance has its GPU's."""
    pci_bus_id: str
    parent_uuid: str = ""
    reserved_bytes: int = 0
    """Memory that its driver keeps beside `memory_bytes`. Other schedulers divide all of it."""
    numa_node: int = 0
    gpu_instance: int = -1
    """Of a MIG instance; -1 for a whole GPU."""
    compute_instance: int = -1
    index: str = ""
    """NVML's number of it now, `GPU:INSTANCE` of a MIG instance; it moves when cards come or go."""
    health_reason: str = ""
    """Why nothing may start on it, in words; empty when it is healthy."""
    lost: bool = False
    """The driver has lost it; all else is what was known before."""


@dataclass(frozen=True, kw_only=True)
class CardLoad:
    """How busy a card is, by whomever, in the eyes of the driver. None: it does not say."""

    used_bytes: int | None
    utilization_percent: int | None
    busy_percent: Mapping[int, int] | None
    """By host PID, over the driver's last sample; who is idle is not in it."""


@dataclass(frozen=True, kw_only=True)
class CardProcess:
    """What one process holds on one card, in the eyes of the driver."""

    pid: int
    """In the host's PID namespace."""
    used_bytes: int


@dataclass(frozen=True, kw_only=True)
class Xid:
    """An error that the driver has reported. Source: NVIDIA, "XID Errors"."""

    number: int
    gpu_uuid: str
    """Empty when it is not known."""
    gpu_instance: int = -1
    """Of the MIG instance where it happened; -1: it is not one's alone."""


class Nvml(Protocol):
    """The part of NVML that is used here. Blocking calls, one at a time."""

    def cards(self) -> list[CardFacts]:
        """Return the cards. Raises InventoryError."""

    def processes(self, uuid: str) -> list[CardProcess]:
        """Return the processes on a card. Raises InventoryError."""

    def load(self, uuid: str) -> CardLoad:
        """Return how busy a card has been since the last call. Raises InventoryError."""

    def xids(self) -> list[Xid]:
        """Return the errors since the last call, without waiting. Raises InventoryError."""


class Inventory:
    """The last known cards, and NVML behind one thread."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._cards: dict[str, CardFacts] = {}
        self._at_index: dict[str, str] = {}
        self._ailments: Mapping[str, str] = {}
        self._failure = ""
        self.indices_moved = False
        """Whether an index has come to mean another card than when somebody else learned it."""
        self.errors: dict[str, int] = {"": 0}
        """How often NVML failed to answer for a card; under "" for all of them."""

    @property
    def failure(self) -> str:
        """Why NVML did not list the cards the last time; empty when it did."""
        return self._failure

    @property
    def cards(self) -> tuple[CardFacts, ...]:
        """The cards that NVML named last."""
        return tuple(self._judged(card) for card in self._cards.values())

    @property
    def healthy(self) -> tuple[CardFacts, ...]:
        """Those of them on which something may start."""
        return tuple(card for card in self.cards if not card.health_reason)

    @property
    def card_bytes(self) -> dict[str, int]:
        """The whole memory of each card, as far as it is known, with what its driver keeps."""
        return {
            card.uuid: card.memory_bytes + card.reserved_bytes
            for card in self._cards.values()
            if card.memory_bytes
        }

    def find(self, uuids: Iterable[str]) -> list[CardFacts]:
        """Return the cards of these UUIDs in order; KeyError for one that cannot be used."""
        found = [self._judged(self._cards[uuid]) for uuid in uuids]
        for card in found:
            if card.health_reason:
                raise KeyError(card.uuid)
        return found

    def why_not(self, uuid: str) -> str:
        """Return why a card cannot be used, in words."""
        card = self._cards.get(uuid)
        return "it is not on this host" if card is None else self._judged(card).health_reason

    def judge(self, ailments: Mapping[str, str]) -> bool:
        """Hold back the cards of these UUIDs for the reasons given; return whether any changed."""
        before, self._ailments = self._ailments, dict(ailments)
        return before != self._ailments

    def _judged(self, card: CardFacts) -> CardFacts:
        ailment = self._ailments.get(card.uuid, "")
        if card.health_reason or not ailment:
            return card
        return replace(card, health_reason=ailment)

    async def refresh(self) -> bool:
        """Ask NVML anew; return whether the cards have changed. A failure keeps the last ones."""
        try:
            found = await in_thread(self._nvml.cards, self._executor)
        except InventoryError as error:
            news = str(error) != self._failure
            if news:
                logger.warning("cards not readable", extra={"reason": str(error)})
            self._failure = str(error)
            self.errors[""] += 1
            return news and bool(self._cards)
        cards = {card.uuid: card for card in found}
        for uuid in cards:
            self.errors.setdefault(uuid, 0)
        changed = cards != self._cards or bool(self._failure)
        self._failure = ""
        if cards != self._cards:
            lost = sorted(card.uuid for card in found if card.health_reason)
            logger.info("cards changed", extra={"cards": sorted(cards), "lost": lost})
        self._cards = cards
        self._watch_indices(found)
        return changed

    def _watch_indices(self, cards: Iterable[CardFacts]) -> None:
        for card in cards:
            if card.index and self._at_index.setdefault(card.index, card.uuid) != card.uuid:
                self._at_index[card.index] = card.uuid
                self.indices_moved = True
                logger.warning(
                    "index of a card has moved", extra={"index": card.index, "card": card.uuid}
                )

    async def processes(self, uuid: str) -> list[CardProcess] | None:
        """Return the processes on a card; None when NVML does not say, which is not "nobody"."""
        return await self._ask(uuid, partial(self._nvml.processes, uuid))

    async def load(self, uuid: str) -> CardLoad | None:
        """Return how busy a card has been since the last call; None when NVML does not say."""
        return await self._ask(uuid, partial(self._nvml.load, uuid))

    async def xids(self) -> list[Xid]:
        """Return the errors that the driver has reported since the last call.

        None of them while NVML is away, which `refresh` counts and tells.
        """
        try:
            return await in_thread(self._nvml.xids, self._executor)
        except InventoryError:
            return []

    async def _ask(self, uuid: str, question: Callable[[], T]) -> T | None:
        try:
            return await in_thread(question, self._executor)
        except InventoryError:
            self.errors[uuid] = self.errors.get(uuid, 0) + 1
            return None

    def messages(self, slots_per_card: int) -> list[pb.Card]:
        """Return the cards as the cache wants them reported."""
        return [
            pb.Card(
                uuid=card.uuid,
                kind=card.kind,
                model=card.model,
                memory_bytes=card.memory_bytes,
                slots=slots_per_card,
                healthy=not (self._failure or card.health_reason),
                health_reason=self._failure or card.health_reason,
                parent_uuid=card.parent_uuid,
                numa_node=card.numa_node,
                minor=card.minor,
            )
            for card in self.cards
        ]

    def close(self) -> None:
        """Stop asking; a call that hangs is left behind."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class PyNvml:
    """NVML through pynvml."""

    def __init__(self, library: str = "", unified_memory_bytes: int = 0) -> None:
        """`library`: a path, when the loader does not find libnvidia-ml.so.1 by itself.

        `unified_memory_bytes`: of a board whose driver does not say; 0: it cannot be used.
        """
        self._library = library
        self._unified_memory_bytes = unified_memory_bytes
        self._ready = False
        self._at_index: dict[int, list[CardFacts]] = {}
        self._sampled_us: dict[str, int] = {}
        self._unknown: dict[int, str] = {}
        self._events: Any = None
        self._watched: dict[int, str] = {}

    def cards(self) -> list[CardFacts]:
        """Return every GPU, or its MIG instances where MIG is on."""
        self._start()
        try:
            cards: list[CardFacts] = []
            for index in range(pynvml.nvmlDeviceGetCount()):
                cards += self._cards_at(index)
            return cards
        except pynvml.NVMLError as error:
            raise self._failed("list its cards", error) from error

    def _cards_at(self, index: int) -> list[CardFacts]:
        """Return what is at an index. A card that fails costs itself, not its neighbours."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found = list(_cards_of(handle, index, self._unified_memory_bytes))
            self._at_index[index] = found
            return found
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise
            lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
            reason = "the driver lost it" if lost else f"NVML cannot describe it: {error}"
            known = self._at_index.setdefault(index, [])
            if not known and self._unknown.get(index) != reason:
                self._unknown[index] = reason
                logger.error("card left out", extra={"index": index, "reason": reason})
            return [replace(each, health_reason=reason, lost=lost) for each in known]

    def processes(self, uuid: str) -> list[CardProcess]:
        """Return compute and graphics processes on a card, each once."""
        self._start()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            used: dict[int, int] = {}
            for query in (
                pynvml.nvmlDeviceGetComputeRunningProcesses,
                pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                for process in _optional(query, handle, default=[]):
                    held = process.usedGpuMemory or 0
                    used[process.pid] = max(used.get(process.pid, 0), held)
            return [CardProcess(pid=pid, used_bytes=held) for pid, held in used.items()]
        except pynvml.NVMLError as error:
            raise self._card_failed(f"list the processes of {uuid}", error) from error

    def load(self, uuid: str) -> CardLoad:
        """Return memory and time of a card that is in use, as far as this driver says."""
        self._start()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
            rates = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle, default=None)
            return CardLoad(
                used_bytes=None if memory is None else int(memory.used),
                utilization_percent=None if rates is None else int(rates.gpu),
                busy_percent=self._busy(handle, uuid),
            )
        except pynvml.NVMLError as error:
            raise self._card_failed(f"say how busy {uuid} is", error) from error

    def xids(self) -> list[Xid]:
        """Return the errors since the last call; those before the first one are not known."""
        self._start()
        found: list[Xid] = []
        try:
            self._watch()
            for _ in range(_MOST_EVENTS):
                event = _next_event(self._events)
                if event is None:
                    break
                found.append(self._xid(event))
        except pynvml.NVMLError as error:
            failure = self._card_failed("watch for errors of cards", error)
            self._watch_anew()
            if not found:  # what was told already is told to nobody again
                raise failure from error
        return found

    def _xid(self, event: Any) -> Xid:  # noqa: ANN401 - pynvml has no types
        address = ctypes.cast(event.device, ctypes.c_void_p).value or 0
        instance = event.gpuInstanceId
        return Xid(
            number=event.eventData,
            gpu_uuid=self._watched.get(address, ""),
            gpu_instance=-1 if instance == _NO_INSTANCE else instance,
        )

    def _watch_anew(self) -> None:
        """Let go of the events: a lost card may fail for all, and is not watched the next time."""
        events, self._events = self._events, None
        if events is not None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _watch(self) -> None:
        """Watch every GPU that is not watched yet; MIG instances have no events of their own."""
        if self._events is None:
            self._events = pynvml.nvmlEventSetCreate()
            self._watched = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                address = ctypes.cast(handle, ctypes.c_void_p).value or 0
                if address in self._watched:
                    continue
                uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
                if pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _XID_EVENT:
                    pynvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, self._events)
            except pynvml.NVMLError as error:
                if error.value in _GONE:
                    raise
                if error.value not in _ABSENT:
                    continue  # tried again, perhaps in a better moment
            self._watched[address] = uuid

    def _busy(self, handle: Any, uuid: str) -> dict[int, int] | None:  # noqa: ANN401 - no types
        since_us = self._sampled_us.get(uuid, 0)
        query = partial(pynvml.nvmlDeviceGetProcessUtilization, timeStamp=since_us)
        try:
            samples = _optional(query, handle, default=None)
        except pynvml.NVMLError_NotFound:  # nobody has been busy
            return {}
        if samples is None:
            return None
        percent: dict[int, list[int]] = {}
        for sample in samples:
            since_us = max(since_us, sample.timeStamp)
            percent.setdefault(sample.pid, []).append(min(sample.smUtil, 100))
        self._sampled_us[uuid] = since_us
        return {pid: sum(each) // len(each) for pid, each in percent.items()}

    def _start(self) -> None:
        if self._ready:
            return
        try:
            if self._library:
                # pynvml opens the soname, which the loader then finds among the loaded ones.
                ctypes.CDLL(self._library, mode=ctypes.RTLD_GLOBAL)
            pynvml.nvmlInit()
        except (pynvml.NVMLError, OSError) as error:
            raise InventoryError(f"NVML is not available: {error}") from error
        self._ready = True

    def _card_failed(self, what: str, error: pynvml.NVMLError) -> InventoryError:
        """Return the error of one card; to begin anew for it would make the others wait."""
        if error.value in _GONE:
            return self._failed(what, error)
        return InventoryError(f"NVML cannot {what}: {error}")

    def _failed(self, what: str, error: pynvml.NVMLError) -> InventoryError:
        # After a driver reload every call fails until NVML is initialised again.
        self._ready = False
        self._events = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return InventoryError(f"NVML cannot {what}: {error}")


def _next_event(events: Any) -> Any:  # noqa: ANN401 - pynvml has no types
    """Return the next event of a set, None where there is none now."""
    try:
        return pynvml.nvmlEventSetWait_v2(events, _EVENT_WAIT_MS)
    except pynvml.NVMLError_Timeout:
        return None


def _cards_of(handle: Any, index: int, unified_memory_bytes: int) -> Iterator[CardFacts]:  # noqa: ANN401 - pynvml has no types
    uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    minor = pynvml.nvmlDeviceGetMinorNumber(handle)
    bus_id = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    numa_node = _optional(pynvml.nvmlDeviceGetNumaNodeId, handle, default=0)
    enabled, _ = _optional(pynvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    ailment = _ailment(handle)
    if not enabled:
        memory_bytes, reserved_bytes = _memory_bytes(handle)
        memory_bytes = memory_bytes or unified_memory_bytes
        yield CardFacts(
            uuid=uuid,
            kind=pb.CARD_KIND_GPU,
            model=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_bytes=memory_bytes,
            minor=minor,
            pci_bus_id=bus_id,
            reserved_bytes=reserved_bytes,
            numa_node=numa_node,
            index=str(index),
            health_reason=ailment or ("" if memory_bytes else _NO_MEMORY),
        )
        return
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:
            continue
        memory_bytes, reserved_bytes = _memory_bytes(instance)
        yield CardFacts(
            uuid=_text(pynvml.nvmlDeviceGetUUID(instance)),
            kind=pb.CARD_KIND_MIG,
            model=_text(pynvml.nvmlDeviceGetName(instance)),
            memory_bytes=memory_bytes,
            minor=minor,
            pci_bus_id=bus_id,
            parent_uuid=uuid,
            reserved_bytes=reserved_bytes,
            numa_node=numa_node,
            gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(instance),
            compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(instance),
            index=f"{index}:{number}",
            health_reason=ailment or ("" if memory_bytes else _NO_MEMORY),
        )


def _ailment(handle: Any) -> str:  # noqa: ANN401 - pynvml has no types
    """Return what the driver itself holds against a GPU; empty when nothing."""
    rows = _optional(pynvml.nvmlDeviceGetRemappedRows, handle, default=None)
    if rows is not None and rows[3]:
        return "a row of its memory could not be remapped: it must be replaced"
    return ""


def _memory_bytes(handle: Any) -> tuple[int, int]:  # noqa: ANN401 - pynvml has no types
    """Return a card's memory without what its driver keeps, and that: 480 MiB on an H100.

    Slices that add up to NVML's total would promise memory that nobody can have. 0: the driver does
    not say, since the card shares the host's memory.
    """
    query = partial(pynvml.nvmlDeviceGetMemoryInfo, version=pynvml.nvmlMemory_v2)
    memory = _optional(query, handle, default=None)
    if memory is not None:
        return int(memory.total - memory.reserved), int(memory.reserved)
    # a driver before R510
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    return (0 if memory is None else int(memory.total)), 0


def _optional(query: Any, handle: Any, default: Any) -> Any:  # noqa: ANN401 - pynvml has no types
    try:
        return query(handle)
    except pynvml.NVMLError as error:
        if error.value not in _ABSENT:
            raise
        return default


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
