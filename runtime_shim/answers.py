# SPDX-License-Identifier: Apache-2.0
"""The node's durable copy of its answers: one file per allocation, replaced whole or not at all.

A stored answer lets a known container start again while the scheduler cache is away, and tells a
new agent what its predecessor had started. Blocking calls; any thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from google.protobuf import json_format
from google.protobuf.message import Message
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.files import write_all

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

_MESSAGES = {"allocation": pb.Allocation, "request": pb.AllocationRequest}

RUNNING = pb.CLAIM_STATE_RUNNING
STOPPED = pb.CLAIM_STATE_STOPPED
RELEASED = pb.CLAIM_STATE_RELEASED


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one container was given, and how to tell whether it still lives."""

    allocation: pb.Allocation
    request: pb.AllocationRequest
    """What was asked; another request under the same key is another claim."""
    runtime_root: str
    """The low-level runtime's --root; empty when it was not given."""
    container_id: str
    bundle: str
    engine_directory: str
    """Exists for as long as the engine knows the container; empty when that is not known."""
    pid_file: str
    boot_id: str
    """The boot in which the verdict was given."""
    init_seen: bool
    """Its first process was seen since the verdict."""
    verdict_boottime_ns: int
    """CLOCK_BOOTTIME of the verdict; means something within that boot only."""
    state: pb.ClaimState
    since_unix_ns: int
    runtime_dir: str = ""
    """XDG_RUNTIME_DIR of the launcher where there was no --root. Fields that come later have
    defaults, as this one: a package is upgraded under running containers."""

    @property
    def allocation_id(self) -> str:
        """The name of the file, the region and the claim."""
        return self.allocation.allocation_id

    @property
    def key(self) -> tuple[str, str]:
        """(runtime root, container id): one container of this host."""
        return self.runtime_root, self.container_id

    def in_state(self, state: pb.ClaimState, now_unix_ns: int) -> Answer:
        """Return the answer in another state, entered now; itself when it is in it already."""
        if state == self.state:
            return self
        return replace(self, state=state, since_unix_ns=now_unix_ns)


_FIELDS = frozenset(field.name for field in fields(Answer))


class AnswerStore:
    """The answers below one folder, read once and then kept in memory too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._answers: dict[str, Answer] = {}
        self._ids: dict[tuple[str, str], dict[str, None]] = {}
        self._unsynced: set[str] = set()
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read every file; one that cannot be read is set aside with an event."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for path in sorted(self.folder.glob("*.tmp")):
            if path.with_suffix(".json").exists():  # written in part; the old one still stands
                path.unlink()
            else:
                path.rename(path.with_suffix(".json"))
        for path in sorted(self.folder.glob("*.json")):
            self._load_file(path)

    def all(self) -> list[Answer]:
        """Return every answer."""
        with self._lock:
            return list(self._answers.values())

    def get(self, allocation_id: str) -> Answer | None:
        """Return the answer of an allocation."""
        return self._answers.get(allocation_id)

    def find(self, key: tuple[str, str]) -> list[Answer]:
        """Return the answers of one container; more than one only after a crash."""
        with self._lock:
            return [self._answers[each] for each in self._ids.get(key, ())]

    def put(self, answer: Answer) -> None:
        """Keep `answer`; it survives a killed agent once this returns, and a crash of the host
        once `sync` has returned. OSError leaves the old one.

        A create does not wait for the disk (7 ms here, four times the rest of the create): a crash
        of the host ends the container, too, and its next create asks the scheduler cache.
        """
        path = self._path(answer.allocation_id)
        temporary = path.with_suffix(".tmp")
        with self._lock:
            try:
                descriptor = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
                )
                try:
                    write_all(descriptor, encode_answer(answer))
                finally:
                    os.close(descriptor)
            except OSError as error:  # a full disk
                temporary.unlink(missing_ok=True)
                raise OSError(error.errno, error.strerror, str(path)) from error
            # Not a rename over the old file: ext4 then waits for the disk. What a crash may leave
            # between these two lines, `load` completes.
            path.unlink(missing_ok=True)
            temporary.rename(path)
            self._remember(answer)
            self._unsynced.add(answer.allocation_id)

    def sync(self) -> None:
        """Bring every answer that was put to the disk."""
        with self._lock:
            names, self._unsynced = self._unsynced, set()
        if not names:
            return
        try:
            for name in names:
                _fsync(self._path(name))
            _fsync(self.folder)
        except OSError:
            with self._lock:
                self._unsynced |= names & self._answers.keys()
            raise

    def remove(self, *allocation_ids: str) -> None:
        """Forget answers, durably; those that are not there cost nothing."""
        with self._lock:
            known = [each for each in allocation_ids if self._forget(each)]
            self._unsynced.difference_update(known)
            for allocation_id in known:
                self._path(allocation_id).unlink(missing_ok=True)
        if known:
            _fsync(self.folder)

    def _remember(self, answer: Answer) -> None:
        self._answers[answer.allocation_id] = answer
        self._ids.setdefault(answer.key, {})[answer.allocation_id] = None

    def _forget(self, allocation_id: str) -> bool:
        answer = self._answers.pop(allocation_id, None)
        if answer is None:
            return False
        ids = self._ids[answer.key]
        del ids[allocation_id]
        if not ids:
            del self._ids[answer.key]
        return True

    def _path(self, allocation_id: str) -> Path:
        return self.folder / f"{allocation_id}.json"

    def _load_file(self, path: Path) -> None:
        try:
            answer = decode_answer(path.read_bytes())
            if answer.allocation_id != path.stem:
                raise ValueError(f"it is the answer of {answer.allocation_id}")
        except (ValueError, OSError) as error:
            aside = path.with_suffix(".corrupt")
            path.rename(aside)
            logger.warning("answer set aside", extra={"file": str(aside), "reason": str(error)})
            return
        self._remember(answer)


def read_answers(folder: Path) -> list[Answer]:
    """Return the readable answers in `folder`, for one who only looks. OSError without it."""
    answers = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            with contextlib.suppress(ValueError, FileNotFoundError):
                answers.append(decode_answer(path.read_bytes()))
    return answers


def encode_answer(answer: Answer) -> bytes:
    """Return the file of `answer`."""
    table = {field.name: getattr(answer, field.name) for field in fields(answer)}
    for name in _MESSAGES:
        table[name] = _plain(table[name])
    table["state"] = pb.ClaimState.Name(answer.state)
    return json.dumps({"version": FORMAT_VERSION, **table}).encode()


def _plain(message: Message) -> dict[str, object]:
    """Return a message as JSON has it; a quarter of the time of json_format, which reads it too."""
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _plain_value(value: object) -> object:
    # By the value: protobuf 7 no longer has a field's `label`, Debian's 3.21 has no `is_repeated`.
    if isinstance(value, Message):
        return _plain(value)
    if isinstance(value, str | bytes | int | float):
        return value
    assert isinstance(value, Iterable)
    return [_plain_value(each) for each in value]


def decode_answer(content: bytes) -> Answer:
    """Return the answer in a file; ValueError says why it holds none."""
    table = json.loads(content)
    if not isinstance(table, dict) or table.pop("version", None) != FORMAT_VERSION:
        raise ValueError(f"it is not an answer of version {FORMAT_VERSION}")
    try:
        for name, message in _MESSAGES.items():
            table[name] = json_format.ParseDict(table[name], message(), ignore_unknown_fields=True)
        table["state"] = pb.ClaimState.Value(table["state"])
        # A newer version may have written more; a package is downgraded, too.
        answer = Answer(**{name: table[name] for name in table.keys() & _FIELDS})
    except (KeyError, TypeError, ValueError, json_format.ParseError) as error:
        raise ValueError(f"a field is missing or wrong: {error}") from error
    for field in fields(answer):
        wanted = {"str": str, "int": int, "bool": bool}.get(str(field.type))
        if wanted is not None and type(getattr(answer, field.name)) is not wanted:
            raise ValueError(f"{field.name} has a wrong type")
    if not answer.allocation_id:
        raise ValueError("the allocation has no id")
    return answer


def _fsync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # removed in the meantime
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
