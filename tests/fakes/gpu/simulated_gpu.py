"""Creates the file that the simulated driver shares, and reads the truth from it."""

import dataclasses
import errno
import fcntl
import mmap
import os
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cffi

from tests.fakes.gpu.description import Card, Description, MigInstance

_SOURCE = Path(__file__).parent
LIBRARY_DIRECTORY = _SOURCE.parents[2] / "build" / "fake"
"""Where `make` puts the two libraries."""

_SNAPSHOT_TRIES = 1000

_FLOCK = struct.Struct("hhqqi4x")

CharArray: TypeAlias = Any
"""A `char[]` of the file; cffi has no type for it."""


def _text(characters: CharArray) -> str:
    value = _ffi.string(characters)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _entries(description: Description) -> list[tuple[int, MigInstance | None]]:
    """Every card and, after them, every instance with the index of its card."""
    cards = description.cards
    instances = [(index, each) for index, card in enumerate(cards) for each in card.instances]
    return [*((index, None) for index in range(len(cards))), *instances]


def _write_identity(written: Any, name: str, model: str) -> None:  # noqa: ANN401 (cffi)
    written.uuid = name.encode()
    written.uuid_bytes = list(uuid.UUID(name[len("GPU-") :]).bytes)
    written.model = model.encode()


def _layout() -> cffi.FFI:
    text = (_SOURCE / "state.h").read_text()
    ffi = cffi.FFI()
    ffi.cdef(text.split("/* state: begin */")[1].split("/* state: end */")[0])
    return ffi


_ffi = _layout()
_constants: Any = _ffi.dlopen(None)


@dataclasses.dataclass(frozen=True)
class GpuProcess:
    """A living process and what it holds, by card index."""

    pid: int
    """As this process sees it; 0 when it is in a namespace that cannot be seen from here."""
    name: str
    memory_bytes: dict[int, int]
    """What NVML lists with the process: contexts and allocations."""
    hidden_bytes: dict[int, int]
    """What it takes besides, and NVML lists with nobody."""
    busy_ns: dict[int, int]
    """Time for which its kernels have been, or will be, on the card."""
    launches: dict[int, int]


class SimulatedGpu:
    """The cards of one simulated host, seen from outside.

    Every number here is read from the file that all simulated processes share; nothing has to run
    for it to be true.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.description = Description.load(directory / "gpu.json")
        self._fd = os.open(directory / "state", os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, _ffi.sizeof("struct fake_state"))
        # The file itself, as state.h lays it out: for tests of the simulation.
        self.state: Any = _ffi.cast("struct fake_state *", _ffi.from_buffer(self._map))

    @classmethod
    def create(
        cls,
        directory: Path,
        cards: Sequence[Card] = (Card(),),
        *,
        driver_version: str = "580.159.04",
        cuda_version: int = 13000,
        context_bytes: int = 8 << 20,
        check_nodes: bool = False,
        node_directory: str = "/dev",
    ) -> "SimulatedGpu":
        """Make new cards in a directory, which may exist."""
        return cls.from_description(
            directory,
            Description(
                cards=tuple(cards),
                driver_version=driver_version,
                cuda_version=cuda_version,
                context_bytes=context_bytes,
                check_nodes=check_nodes,
                node_directory=node_directory,
            ),
        )

    @classmethod
    def from_description(cls, directory: Path, description: Description) -> "SimulatedGpu":
        """Make new cards in a directory from a description, e.g. one that was loaded from JSON."""
        description = description.resolved()
        count = len(_entries(description))
        if count > _constants.FAKE_MAX_CARDS:
            raise ValueError(f"{count} cards and instances: at most {_constants.FAKE_MAX_CARDS}")
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)  # any user of any container joins
        (directory / "gpu.json").write_text(description.to_json())
        path = directory / "state"
        path.unlink(missing_ok=True)
        path.touch(mode=0o666)
        path.chmod(0o666)
        os.truncate(path, _ffi.sizeof("struct fake_state"))
        gpu = cls(directory)
        gpu._write(description)
        return gpu

    def _write(self, description: Description) -> None:
        state = self.state
        state.size = _ffi.sizeof("struct fake_state")
        state.version = _constants.FAKE_STATE_VERSION
        entries = _entries(description)
        state.card_count = len(entries)
        state.cuda_version = description.cuda_version
        state.driver_version = description.driver_version.encode()
        major = description.cuda_version // 1000
        state.nvml_version = f"{major}.{description.driver_version}".encode()
        state.check_nodes = description.check_nodes
        state.node_directory = description.node_directory.encode()
        for number, (index, instance) in enumerate(entries):
            self._write_card(number, index, description.cards[index])
            if instance is not None:
                self._write_instance(number, index, instance)
        state.magic = _constants.FAKE_STATE_MAGIC  # last: now it may be used

    def _write_card(self, number: int, index: int, card: Card) -> None:
        written = self.state.card[number]
        _write_identity(written, card.uuid, card.model)
        written.serial = card.serial.encode()
        written.memory_bytes = card.memory_bytes
        written.reserved_bytes = card.reserved_bytes
        written.context_bytes = card.context_bytes
        written.context_hidden_bytes = card.context_hidden_bytes
        written.process_hidden_bytes = card.process_hidden_bytes
        written.stream_bytes = card.stream_bytes
        written.minor = card.minor
        written.pci_domain = 0
        written.pci_bus = 0x10 + index
        written.pci_device = 0
        written.sm_count = card.sm_count
        written.threads_per_sm = card.threads_per_sm
        written.compute_major, written.compute_minor = card.compute_capability
        written.mig_mode = card.mig_mode
        written.persistence_mode = card.persistence_mode

    def _write_instance(self, number: int, index: int, instance: MigInstance) -> None:
        """Overwrite what is an instance's own; all else is its card's."""
        written = self.state.card[number]
        card = self.description.cards[index]
        _write_identity(written, instance.uuid, f"{card.model} MIG {instance.profile}")
        written.serial = b""
        written.memory_bytes = instance.memory_bytes
        written.reserved_bytes = 0  # taken from the card
        written.sm_count = instance.sm_count
        written.mig_mode = False
        written.parent = index + 1
        written.gpu_instance = instance.gpu_instance
        written.compute_instance = instance.compute_instance
        written.slices = int(instance.profile.partition("g.")[0])
        # As /proc/driver/nvidia-caps/mig-minors numbers them.
        node = 3 + 9 * (15 * written.minor + written.gpu_instance)
        written.gpu_instance_node = node
        written.compute_instance_node = node + 1 + instance.compute_instance

    def close(self) -> None:
        """Unmap the file. The cards stay."""
        self.state = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def environment(self, library_directory: Path = LIBRARY_DIRECTORY) -> dict[str, str]:
        """Return what a process outside containers needs to find the libraries and the cards."""
        return {"FAKE_GPU_DIR": str(self.directory), "LD_LIBRARY_PATH": str(library_directory)}

    def uuid(self, card: int = 0) -> str:
        """The UUID of a card."""
        index, instance = _entries(self.description)[card]
        return self.description.cards[index].uuid if instance is None else instance.uuid

    def instance(self, number: int = 0, card: int = 0) -> int:
        """What stands for a MIG instance wherever the number of a card is asked for."""
        before = sum(len(each.instances) for each in self.description.cards[:card])
        return len(self.description.cards) + before + number

    def nodes(self, card: int = 0) -> list[str]:
        """The nodes, below the directory of nodes, without which a card is not seen."""
        described = self.state.card[card]
        capabilities = [described.gpu_instance_node, described.compute_instance_node]
        return [
            f"nvidia{described.minor}",
            *(f"nvidia-caps/nvidia-cap{number}" for number in capabilities if described.parent),
        ]

    # --- the truth ---------------------------------------------------------------------------

    def _owner(self, slot: int) -> int | None:
        """The PID that owns a slot, or None when nobody does."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return None if answer[0] == fcntl.F_UNLCK else int(answer[4])

    def _snapshot(self) -> Any:  # noqa: ANN401 (a cffi array)
        """All slots ever used, as they were at one moment."""
        slots: Any = []
        for _ in range(_SNAPSHOT_TRIES):
            before = self.state.changes
            slots = _ffi.new("struct fake_process[]", self.state.processes_high)
            _ffi.memmove(slots, self.state.process, _ffi.sizeof(slots))
            if self.state.changes == before:
                break
        return slots  # the array: its elements do not keep it alive

    def processes(self) -> list[GpuProcess]:
        """The living processes that have called cuInit."""
        found = []
        for slot, process in enumerate(self._snapshot()):
            if process.state & 3 != _constants.FAKE_SLOT_LIVE:
                continue
            pid = self._owner(slot)
            if pid is None:
                continue
            held = {card: process.held[card] for card in range(self.state.card_count)}
            found.append(
                GpuProcess(
                    pid=pid,
                    name=_text(process.name),
                    memory_bytes={c: h.context_bytes + h.memory_bytes for c, h in held.items()},
                    hidden_bytes={c: h.hidden_bytes for c, h in held.items()},
                    busy_ns={c: h.busy_ns for c, h in held.items()},
                    launches={c: h.launches for c, h in held.items()},
                )
            )
        return found

    def used_bytes(self, card: int = 0) -> int:
        """What the living hold on a card, without the driver's own reserve.

        Of a card in MIG mode that is nothing: its instances have it.
        """
        return int(self.state.card[card].foreign_bytes) + sum(
            process.memory_bytes[card] + process.hidden_bytes[card] for process in self.processes()
        )

    # --- what a test may do to the cards ---------------------------------------------------

    def set_lost(self, card: int = 0, lost: bool = True) -> None:
        """Let a card fall off the bus, or put it back."""
        for each in self.state.card[0 : self.state.card_count]:
            if each.parent == card + 1:
                each.lost = lost
        self.state.card[card].lost = lost

    def raise_xid(self, xid: int, card: int = 0) -> None:
        """Report a critical error to whoever waits for NVML events of the card."""
        self.state.card[card].xid = xid
        self.state.card[card].xid_count += 1

    def set_utilisation(self, percent: int | None, card: int = 0) -> None:
        """Let NVML report this utilisation; None: what is measured."""
        self.state.card[card].utilisation_override = 0 if percent is None else percent + 1

    def set_foreign_bytes(self, used_bytes: int, card: int = 0) -> None:
        """Memory that something outside the simulation holds."""
        self.state.card[card].foreign_bytes = used_bytes

    def inject(
        self,
        function: str,
        code: int = 0,
        *,
        skip: int = 0,
        times: int = 1 << 62,
        delay_seconds: float = 0.0,
        pid: int = 0,
    ) -> None:
        """Let calls of an exported symbol return `code` after `delay_seconds`.

        The first `skip` calls, of all processes together, and those after `times` more go on as
        ever. Code 0 only delays. `pid` (in the process's own namespace) picks one process.
        A delay ends with `clear_faults`, too.
        """
        high = int(self.state.faults_high)
        if high == _constants.FAKE_MAX_FAULTS:
            raise OSError(errno.ENOSPC, "no room for another fault; clear_faults() first")
        fault = self.state.fault[high]
        fault.name = function.encode()
        fault.code = code
        fault.pid = pid
        fault.delay_ns = int(delay_seconds * 1e9)
        fault.skip = skip
        fault.times = times
        fault.calls = 0
        self.state.faults_high = high + 1

    def clear_faults(self) -> None:
        """Take back everything that was injected."""
        self.state.faults_high = 0
        for fault in self.state.fault:
            fault.name = b""

    def calls(self, function: str) -> int:
        """How often a function with an injected fault has been called since."""
        return sum(
            int(self.state.fault[i].calls)
            for i in range(self.state.faults_high)
            if _text(self.state.fault[i].name) == function
        )
