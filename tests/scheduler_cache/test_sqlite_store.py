# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from scheduler_cache import sqlite_store
from scheduler_cache.cache import Changes, State
from scheduler_cache.errors import StoreBusyError, StoreError
from scheduler_cache.model import (
    Card,
    CardKind,
    CardPolicy,
    Claim,
    ClaimState,
    ComputeMode,
    Node,
)
from scheduler_cache.sqlite_store import SCHEMA_VERSION, Store
from tests.scheduler_cache.builders import GIB, START, allocation, card, part, request

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield an open, empty store."""
    with Store.open(tmp_path) as store:
        yield store


def claim(name: str, *taken: str, state: ClaimState = ClaimState.RUNNING) -> Claim:
    return Claim(
        allocation=replace(
            allocation(name, part("GPU-1", 2, 30), part("MIG-2", 1), exclusive=True),
            account_id="account",
            whole_cards=True,
        ),
        state=state,
        since_unix_ns=START,
        request=request(
            "50%",
            3,
            cores=(30, 40),
            policy=CardPolicy.SPREAD,
            mode=ComputeMode.BURST,
            uuids=("!GPU-9",),
            models=("h100",),
        ),
        taken_allocation_ids=taken,
    )


NODE_A = Node(
    name="node-a",
    cards=(
        card("GPU-1"),
        Card(
            uuid="MIG-2",
            kind=CardKind.MIG,
            model="MIG 1g.10gb",
            memory_bytes=10 * GIB,
            slots=1,
            healthy=False,
            health_reason="Xid 79",
            parent_uuid="GPU-2",
            numa_node=1,
        ),
    ),
    ready=True,
    boot_id="b1",
    agent_version="0.1.0",
)


def reopened(store: Store, tmp_path: Path) -> State:
    store.close()
    with Store.open(tmp_path) as again:
        return again.load()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"{sqlite_store.DATABASE_NAME}*")}


def test_an_empty_folder_is_an_empty_state(tmp_path: Path) -> None:
    with Store.open(tmp_path / "new" / "folder") as store:
        assert store.load() == State()
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700


def test_everything_comes_back_as_it_was(store: Store, tmp_path: Path) -> None:
    lost = replace(claim("a2", state=ClaimState.STOPPED), request=None)

    store.save(Changes(nodes=(NODE_A,), claims=(claim("a1", "t1", "t2"), lost)))

    assert reopened(store, tmp_path) == State(
        nodes=(NODE_A,), claims=(claim("a1", "t1", "t2"), lost)
    )


def test_a_saved_node_replaces_its_inventory(store: Store) -> None:
    store.save(Changes(nodes=(NODE_A,)))
    smaller = replace(NODE_A, cards=NODE_A.cards[:1], ready=False)

    store.save(Changes(nodes=(smaller,)))

    assert store.load().nodes == (smaller,)


def test_a_card_moves_between_nodes_in_one_step(store: Store) -> None:
    store.save(Changes(nodes=(NODE_A,)))
    emptied, other = replace(NODE_A, cards=()), replace(NODE_A, name="node-0")

    store.save(Changes(nodes=(other, emptied)))

    assert store.load().nodes == (other, emptied)


def test_saving_the_same_changes_twice_is_saving_them_once(store: Store) -> None:
    store.save(Changes(claims=(claim("a0"),)))
    changes = Changes(nodes=(NODE_A,), claims=(claim("a1"),), removed=("a0", "unknown"))

    store.save(changes)
    store.save(changes)

    assert store.load() == State(nodes=(NODE_A,), claims=(claim("a1"),))


def test_a_save_is_all_or_nothing(store: Store) -> None:
    store.save(Changes(claims=(claim("a1"),)))
    impossible = replace(claim("a2"), since_unix_ns=None)  # type: ignore[arg-type]

    with pytest.raises(StoreError, match="NOT NULL constraint failed: claim.since_unix_ns"):
        store.save(Changes(claims=(impossible,), removed=("a1",)))

    assert store.load().claims == (claim("a1"),)
    store.save(Changes(removed=("a1",)))
    assert store.load().claims == ()


def test_a_full_disk_is_named_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    store.save(Changes(claims=(claim("a1"),)))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    many = tuple(claim(f"b{number}") for number in range(200))

    with pytest.raises(StoreError, match="database or disk is full; free space in") as caught:
        store.save(Changes(claims=many, removed=("a1",)))

    assert caught.value.status is grpc.StatusCode.INTERNAL
    assert store.load().claims == (claim("a1"),)


def test_a_database_that_somebody_holds_is_worth_another_try(store: Store) -> None:
    path = store._connection.execute("PRAGMA database_list").fetchone()[2]
    store._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusyError, match="locked; retrying is safe") as caught:
        store.save(Changes(claims=(claim("a1"),)))

    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    other.close()


def test_only_sync_waits_for_the_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = store._connection
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    store.save(Changes(claims=(claim("a1"),)))
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 1
    assert synced == []

    store.sync()
    assert synced == [f"{tmp_path}/state.db-wal"]


def test_a_second_cache_on_the_same_state_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"in use by another scheduler cache \(process \d+\)"):
        Store.open(tmp_path)


def test_a_closed_store_may_be_opened_again(store: Store, tmp_path: Path) -> None:
    store.close()

    Store.open(tmp_path).close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="cannot use state directory .*/file"):
        Store.open(tmp_path / "file")


# Versions


def database(folder: Path, script: str) -> Path:
    path = folder / sqlite_store.DATABASE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_version_1_is_read_and_migrated(tmp_path: Path) -> None:
    database(tmp_path, (GOLDEN / "state-v1.sql").read_text())

    with Store.open(tmp_path) as store:
        state = store.load()
        store.save(Changes(claims=(claim("a1", "t1"),)))

    (node,) = state.nodes
    first, second, lost = state.claims
    assert [each.uuid for each in node.cards] == ["GPU-1111", "GPU-2222", "MIG-3333"]
    assert first.request == request(2, cores=(25,))
    assert first.taken_allocation_ids == ()
    assert (second.state, second.request) == (
        ClaimState.STOPPED,
        request(
            "50%",
            3,
            models=("h100", "!A100"),
            policy=CardPolicy.SPREAD,
            mode=ComputeMode.BURST,
        ),
    )
    assert [each.card_uuid for each in second.allocation.slices] == ["MIG-3333", "GPU-1111"]
    assert lost.request is None
    with Store.open(tmp_path) as store:
        assert claim("a1", "t1") in store.load().claims


def test_a_migration_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(tmp_path, (GOLDEN / "state-v1.sql").read_text())
    broken = (*sqlite_store.MIGRATIONS, ("DELETE FROM claim", "SELECT * FROM nowhere"))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, "MIGRATIONS", broken)
        patch.setattr(sqlite_store, "SCHEMA_VERSION", len(broken))
        with pytest.raises(StoreError, match="no such table: nowhere"):
            Store.open(tmp_path)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert connection.execute("SELECT count(*) FROM claim").fetchone()[0] == 3


def test_a_new_database_and_a_migrated_one_have_the_same_schema(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    database(tmp_path / "old", (GOLDEN / "state-v1.sql").read_text())
    columns = []
    for folder in ("new", "old"):
        with Store.open(tmp_path / folder) as store:
            columns.append(
                store._connection.execute(
                    "SELECT m.name, c.name, c.type, c.pk FROM sqlite_schema m "
                    "JOIN pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY 1, c.cid"
                ).fetchall()
            )

    new, old = ([tuple(row) for row in rows] for rows in columns)
    assert new == old


def test_a_newer_version_is_refused_and_both_are_named(store: Store, tmp_path: Path) -> None:
    store._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store._connection.execute("UPDATE compatibility SET oldest_reader = oldest_reader + 1")
    store.close()
    before = files(tmp_path)

    with pytest.raises(
        StoreError,
        match=f"schema version {SCHEMA_VERSION + 1}, .* knows versions up to {SCHEMA_VERSION};",
    ):
        Store.open(tmp_path)

    assert files(tmp_path) == before


def test_a_downgrade_goes_on_with_what_a_compatible_newer_version_wrote(
    store: Store, tmp_path: Path
) -> None:
    store.save(Changes(claims=(claim("a1", "t1"),)))
    newer = SCHEMA_VERSION + 1
    store._connection.execute("ALTER TABLE claim ADD COLUMN later TEXT NOT NULL DEFAULT 'x'")
    store._connection.execute("CREATE TABLE later (anything TEXT)")
    store._connection.execute(f"PRAGMA user_version = {newer}")
    store.close()

    with Store.open(tmp_path) as older:
        before = older.load().claims
        older.save(Changes(claims=(claim("a2", "t2"),)))
    with Store.open(tmp_path) as again:
        after = again.load().claims
        version = again._connection.execute("PRAGMA user_version").fetchone()[0]

    assert before == (claim("a1", "t1"),)
    assert set(after) == {claim("a1", "t1"), claim("a2", "t2")}
    assert version == newer


# Damage


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / sqlite_store.DATABASE_NAME).write_bytes(b"not a database" * 1000)
    before = files(tmp_path)

    with pytest.raises(StoreError, match=r"state\.db is damaged .*; nothing was changed"):
        Store.open(tmp_path)

    assert files(tmp_path) == before


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    database(tmp_path, "CREATE TABLE music (title TEXT)")
    before = files(tmp_path)

    with pytest.raises(StoreError, match="is not the state of a scheduler cache"):
        Store.open(tmp_path)

    assert files(tmp_path) == before


def test_a_damaged_page_is_found_at_the_start(store: Store, tmp_path: Path) -> None:
    store.save(Changes(nodes=(NODE_A,), claims=tuple(claim(f"a{i}") for i in range(200))))
    store.close()
    path = tmp_path / sqlite_store.DATABASE_NAME
    content = bytearray(path.read_bytes())
    content[4096 * 8 : 4096 * 12] = b"\x55" * (4096 * 4)
    path.write_bytes(content)

    with pytest.raises(StoreError, match="is damaged"):
        Store.open(tmp_path)

    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE claim SET state = 'dancing'", "'dancing' is not a valid ClaimState"),
        ("UPDATE claim SET request = '{'", "damaged"),
        ("UPDATE claim SET request = '{}'", "'count'"),
        ("UPDATE card SET kind = 'toaster'", "'toaster' is not a valid CardKind"),
    ],
)
def test_values_without_a_meaning_are_damage(store: Store, statement: str, words: str) -> None:
    store.save(Changes(nodes=(NODE_A,), claims=(claim("a1"),)))
    store._connection.execute(statement)

    with pytest.raises(StoreError, match=words):
        store.load()
