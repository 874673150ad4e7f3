# SPDX-License-Identifier: Apache-2.0
"""The state on disk of the embedded mode: one SQLite database that one process holds.

Every `save` is one transaction that survives kill -9 of anything when it returns, and loss of power
once `sync` has returned (WAL, synchronous=NORMAL). A create does not wait for the disk, which takes
longer than all the rest: a power cut ends every container, and what it may undo is the last moment
before it, as a whole. Nothing is repaired or overwritten on doubt: a database that cannot be
understood is left as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from io import FileIO
from pathlib import Path
from types import TracebackType

from scheduler_cache import __version__
from scheduler_cache.cache import Changes, State
from scheduler_cache.errors import InvalidRequestError, StoreBusyError, StoreError
from scheduler_cache.model import (
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
    Request,
    Slice,
)

DATABASE_NAME = "state.db"

# "vGPU" in ASCII, in the header of the database: tells ours from somebody else's.
_APPLICATION_ID = 0x76475055

# MIGRATIONS[n] leads from version n to n + 1; version 0 is an empty database. Released ones are
# never edited. Packages are downgraded, too: a version that its predecessors cannot read and write
# (anything but new tables and columns whose default says what was so before) sets `oldest_reader`
# to itself, and only then do they refuse it.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE node (
            name TEXT PRIMARY KEY,
            ready INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            agent_version TEXT NOT NULL
        ) STRICT
        """,
        """
        CREATE TABLE card (
            uuid TEXT PRIMARY KEY,
            node_name TEXT NOT NULL,
            kind TEXT NOT NULL,
            model TEXT NOT NULL,
            memory_bytes INTEGER NOT NULL,
            slots INTEGER NOT NULL,
            healthy INTEGER NOT NULL,
            health_reason TEXT NOT NULL,
            parent_uuid TEXT NOT NULL,
            numa_node INTEGER NOT NULL
        ) STRICT
        """,
        """
        CREATE TABLE claim (
            allocation_id TEXT PRIMARY KEY,
            node_name TEXT NOT NULL,
            runtime_root TEXT NOT NULL,
            container_id TEXT NOT NULL,
            state TEXT NOT NULL,
            since_unix_ns INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            account_id TEXT NOT NULL,
            source_dialect TEXT NOT NULL,
            whole_cards INTEGER NOT NULL,
            exclusive INTEGER NOT NULL,
            request TEXT
        ) STRICT
        """,
        """
        CREATE TABLE slice (
            allocation_id TEXT NOT NULL,
            position INTEGER NOT NULL,
            card_uuid TEXT NOT NULL,
            memory_bytes INTEGER NOT NULL,
            virtual_memory_bytes INTEGER NOT NULL,
            cores_percent INTEGER NOT NULL,
            reserved_percent INTEGER NOT NULL,
            cores_max_percent INTEGER NOT NULL,
            compute_mode TEXT NOT NULL,
            priority INTEGER NOT NULL,
            weight INTEGER NOT NULL,
            PRIMARY KEY (allocation_id, position)
        ) STRICT, WITHOUT ROWID
        """,
    ),
    # A repeated Allocate must name again what the first one took: its answer may have been lost.
    ("ALTER TABLE claim ADD COLUMN taken TEXT NOT NULL DEFAULT '[]'",),
    (
        "CREATE TABLE compatibility (oldest_reader INTEGER NOT NULL) STRICT",
        "INSERT INTO compatibility VALUES (3)",
    ),
)

SCHEMA_VERSION = len(MIGRATIONS)

# The columns that this version knows, in the order of its rows.
_COLUMNS = {
    "node": ("name", "ready", "boot_id", "agent_version"),
    "card": (
        *("uuid", "node_name", "kind", "model", "memory_bytes", "slots", "healthy"),
        *("health_reason", "parent_uuid", "numa_node"),
    ),
    "claim": (
        *("allocation_id", "node_name", "runtime_root", "container_id", "state", "since_unix_ns"),
        *("epoch", "account_id", "source_dialect", "whole_cards", "exclusive", "request", "taken"),
    ),
    "slice": (
        *("allocation_id", "position", "card_uuid", "memory_bytes", "virtual_memory_bytes"),
        *("cores_percent", "reserved_percent", "cores_max_percent", "compute_mode", "priority"),
        "weight",
    ),
}
_INSERT = {
    table: f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    for table, columns in _COLUMNS.items()
}


class Store:
    """The open database. Not thread-safe."""

    def __init__(self, connection: sqlite3.Connection, lock: FileIO, path: Path) -> None:
        self._connection = connection
        self._lock = lock
        self._path = path

    @classmethod
    def open(cls, state_dir: Path) -> Store:
        """Open the state in `state_dir`, made when missing, and hold it until `close`.

        Raises StoreError when another process holds it, when it is damaged, is not ours, or was
        written by a newer version; the files are then as they were.
        """
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _lock(state_dir)
        except OSError as error:
            raise StoreError(f"cannot use state directory {state_dir}: {error.strerror}") from error
        path = state_dir / DATABASE_NAME
        try:
            connection = _connect(path)
        except BaseException:
            lock.close()
            raise
        return cls(connection, lock, path)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, then let other processes have it. May be repeated."""
        self._connection.close()
        self._lock.close()

    def load(self) -> State:
        """Return everything that was saved, or raise StoreError."""
        try:
            return State(nodes=tuple(self._nodes()), claims=tuple(self._claims()))
        except (
            sqlite3.DatabaseError,
            ValueError,
            KeyError,
            TypeError,
            InvalidRequestError,
        ) as error:
            raise _damaged(self._path, error) from error

    def save(self, changes: Changes) -> None:
        """Write `changes` as one transaction; they survive a killed process when this returns.

        Raises StoreError when that fails, StoreBusyError where a moment helps; nothing is written
        then.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._write(changes)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _not_written(self._path, error) from error

    def sync(self) -> None:
        """Bring everything that was saved to the disk. Blocks, and may run in any thread.

        What is not in the log any more, a checkpoint of SQLite has brought to the disk.
        """
        descriptor = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _write(self, changes: Changes) -> None:
        execute, many = self._connection.execute, self._connection.executemany
        # A card may move between nodes in one step: all old rows go first.
        many("DELETE FROM card WHERE node_name = ?", ((node.name,) for node in changes.nodes))
        many("DELETE FROM node WHERE name = ?", ((node.name,) for node in changes.nodes))
        for node in changes.nodes:
            execute(
                _INSERT["node"],
                (node.name, node.ready, node.boot_id, node.agent_version),
            )
            many(
                _INSERT["card"],
                (_card_row(node.name, card) for card in node.cards),
            )
        ids = [(claim.allocation.allocation_id,) for claim in changes.claims]
        ids += [(allocation_id,) for allocation_id in changes.removed]
        many("DELETE FROM slice WHERE allocation_id = ?", ids)
        many("DELETE FROM claim WHERE allocation_id = ?", ids)
        many(_INSERT["claim"], map(_claim_row, changes.claims))
        many(
            _INSERT["slice"],
            (row for claim in changes.claims for row in _slice_rows(claim.allocation)),
        )

    def _nodes(self) -> Iterable[Node]:
        cards: dict[str, list[Card]] = {}
        for row in self._connection.execute("SELECT * FROM card ORDER BY uuid"):
            cards.setdefault(row["node_name"], []).append(_card(row))
        for row in self._connection.execute("SELECT * FROM node ORDER BY name"):
            yield Node(
                name=row["name"],
                cards=tuple(cards.get(row["name"], ())),
                ready=bool(row["ready"]),
                boot_id=row["boot_id"],
                agent_version=row["agent_version"],
            )

    def _claims(self) -> Iterable[Claim]:
        slices: dict[str, list[Slice]] = {}
        for row in self._connection.execute("SELECT * FROM slice ORDER BY allocation_id, position"):
            slices.setdefault(row["allocation_id"], []).append(_slice(row))
        for row in self._connection.execute("SELECT * FROM claim ORDER BY allocation_id"):
            yield _claim(row, tuple(slices.get(row["allocation_id"], ())))


def _lock(state_dir: Path) -> FileIO:
    """Return a file that holds the directory's lock as long as it is open."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    lock = FileIO(fd, "r+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock.read(32).decode(errors="replace").partition("\n")[0] or "unknown"
        lock.close()
        raise StoreError(
            f"state directory {state_dir} is in use by another scheduler cache (process {holder}); "
            "stop it first"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n{__version__}\n".encode())  # for vgpuctl status
    return lock


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection to a sound database of our version."""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {path}: {error}") from error
    connection.row_factory = sqlite3.Row
    try:
        _check(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        raise StoreError(f"cannot open {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _damaged(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError unless the database is empty, or ours, sound and not newer than we are."""
    version = int(_pragma(connection, "user_version"))
    with closing(connection.execute("SELECT count(*) FROM sqlite_schema")) as cursor:
        empty = version == 0 and cursor.fetchone()[0] == 0
    if empty:
        return
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise StoreError(f"{path} is not the state of a scheduler cache; nothing was changed")
    if version > SCHEMA_VERSION and _oldest_reader(connection, version) > SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, this vgpu-scheduler-cache knows versions up to "
            f"{SCHEMA_VERSION}; install the newer one again"
        )
    verdict = _pragma(connection, "quick_check")
    if verdict != "ok":
        raise _damaged(path, verdict)


def _oldest_reader(connection: sqlite3.Connection, version: int) -> int:
    """Return the oldest version of this program that may use a newer database."""
    try:
        with closing(connection.execute("SELECT oldest_reader FROM compatibility")) as cursor:
            row = cursor.fetchone()
    except sqlite3.OperationalError:  # no such table: nothing is promised
        return version
    return int(row[0]) if row else version


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to SCHEMA_VERSION, all of it or nothing; a newer one stays."""
    version = int(_pragma(connection, "user_version"))
    if version >= SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int | str:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        value: int | str = cursor.fetchone()[0]
        return value


def _not_written(path: Path, error: sqlite3.Error) -> StoreError:
    # The low byte is the code, the others say more. Source: https://sqlite.org/rescode.html.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusyError(f"cannot write {path}: {error}; retrying is safe")
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            remedy = f"free space in {path.parent}"
        case _:
            remedy = "see the log of the scheduler cache"
    return StoreError(f"cannot write {path}: {error}; {remedy}")


def _damaged(path: Path, cause: object) -> StoreError:
    return StoreError(
        f"state database {path} is damaged ({cause}); nothing was changed: restore it, or move it "
        "away to start empty (running containers come back with their node's report)"
    )


def _card_row(node_name: str, card: Card) -> tuple[object, ...]:
    return (
        card.uuid,
        node_name,
        card.kind.value,
        card.model,
        card.memory_bytes,
        card.slots,
        card.healthy,
        card.health_reason,
        card.parent_uuid,
        card.numa_node,
    )


def _card(row: sqlite3.Row) -> Card:
    return Card(
        uuid=row["uuid"],
        kind=CardKind(row["kind"]),
        model=row["model"],
        memory_bytes=row["memory_bytes"],
        slots=row["slots"],
        healthy=bool(row["healthy"]),
        health_reason=row["health_reason"],
        parent_uuid=row["parent_uuid"],
        numa_node=row["numa_node"],
    )


def _claim_row(claim: Claim) -> tuple[object, ...]:
    allocation = claim.allocation
    return (
        allocation.allocation_id,
        allocation.node_name,
        allocation.claim.runtime_root,
        allocation.claim.container_id,
        claim.state.value,
        claim.since_unix_ns,
        allocation.epoch,
        allocation.account_id,
        allocation.source_dialect,
        allocation.whole_cards,
        allocation.exclusive,
        None if claim.request is None else _request_text(claim.request),
        json.dumps(claim.taken_allocation_ids),
    )


def _claim(row: sqlite3.Row, slices: tuple[Slice, ...]) -> Claim:
    return Claim(
        allocation=Allocation(
            allocation_id=row["allocation_id"],
            node_name=row["node_name"],
            slices=slices,
            claim=ClaimKey(runtime_root=row["runtime_root"], container_id=row["container_id"]),
            epoch=row["epoch"],
            account_id=row["account_id"],
            source_dialect=row["source_dialect"],
            whole_cards=bool(row["whole_cards"]),
            exclusive=bool(row["exclusive"]),
        ),
        state=ClaimState(row["state"]),
        since_unix_ns=row["since_unix_ns"],
        request=None if row["request"] is None else _request(row["request"]),
        taken_allocation_ids=tuple(json.loads(row["taken"])),
    )


def _slice_rows(allocation: Allocation) -> Iterable[tuple[object, ...]]:
    for position, part in enumerate(allocation.slices):
        yield (
            allocation.allocation_id,
            position,
            part.card_uuid,
            part.memory_bytes,
            part.virtual_memory_bytes,
            part.cores_percent,
            part.reserved_percent,
            part.cores_max_percent,
            part.compute_mode.value,
            part.priority,
            part.weight,
        )


def _slice(row: sqlite3.Row) -> Slice:
    return Slice(
        card_uuid=row["card_uuid"],
        memory_bytes=row["memory_bytes"],
        virtual_memory_bytes=row["virtual_memory_bytes"],
        cores_percent=row["cores_percent"],
        reserved_percent=row["reserved_percent"],
        cores_max_percent=row["cores_max_percent"],
        compute_mode=ComputeMode(row["compute_mode"]),
        priority=row["priority"],
        weight=row["weight"],
    )


def _request_text(request: Request) -> str:
    return json.dumps(
        {
            "count": request.count,
            "memory": [
                {"bytes": amount.bytes} if amount.bytes else {"percent": amount.percent}
                for amount in request.memory
            ],
            "cores_percent": request.cores_percent,
            "compute_mode": request.compute_mode.value if request.compute_mode else None,
            "uuids": request.uuids,
            "models": request.models,
            "card_policy": request.card_policy.value if request.card_policy else None,
        }
    )


def _request(text: str) -> Request:
    fields = json.loads(text)
    return Request(
        count=fields["count"],
        memory=tuple(MemoryAmount(**amount) for amount in fields["memory"]),
        cores_percent=tuple(fields["cores_percent"]),
        compute_mode=ComputeMode(fields["compute_mode"]) if fields["compute_mode"] else None,
        uuids=tuple(fields["uuids"]),
        models=tuple(fields["models"]),
        card_policy=CardPolicy(fields["card_policy"]) if fields["card_policy"] else None,
    )
