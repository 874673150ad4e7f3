# SPDX-License-Identifier: Apache-2.0
"""Who is a container's first process, and does it live: with real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime_shim.processes import (
    Init,
    Record,
    alive,
    boottime_ns,
    cgroup_pids,
    cgroup_populated,
    find_init,
    pid_namespace,
    runtime_record,
    start_time,
)
from tests.runtime_shim.containers import Process, write_crun_state, write_runc_state


@pytest.fixture
def process() -> Iterator[Process]:
    with Process() as process:
        yield process


def find(root: Path, pid_file: Path | str = "", not_before_ns: int = 0) -> Init | None:
    init = find_init(str(root), "c1", str(pid_file), not_before_ns)
    if init is not None:
        init.close()
    return init


def test_runc_s_state_names_the_init(tmp_path: Path, process: Process) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    write_runc_state(tmp_path, "c1", process.pid, cgroup=cgroup)

    init = find(tmp_path)

    assert init is not None
    assert (init.pid, init.cgroup) == (process.pid, cgroup)
    assert init.pid_namespace == pid_namespace(os.getpid())


def test_crun_s_state_names_the_init(tmp_path: Path, process: Process) -> None:
    write_crun_state(tmp_path, "c1", process.pid)

    init = find(tmp_path)

    assert init is not None
    assert (init.pid, init.cgroup) == (process.pid, None)


def test_a_pid_file_names_it_where_no_state_does(tmp_path: Path, process: Process) -> None:
    pid_file = tmp_path / "init.pid"
    pid_file.write_text(f"{process.pid}\n")

    init = find(tmp_path / "absent", pid_file)

    assert init is not None
    assert init.pid == process.pid


def test_a_pid_that_another_process_has_by_now_is_nobody(tmp_path: Path, process: Process) -> None:
    started = start_time(process.pid)
    assert started is not None
    write_runc_state(tmp_path, "c1", process.pid, started=started - 1)

    assert find(tmp_path) is None


def test_a_process_older_than_the_verdict_is_another_one(tmp_path: Path, process: Process) -> None:
    pid_file = tmp_path / "init.pid"
    pid_file.write_text(str(process.pid))

    assert find(tmp_path, pid_file, boottime_ns() + 10**9) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b'{"pid": -1}', b"\xff"])
def test_a_broken_state_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c1").mkdir()
    for name in ("state.json", "status"):
        (tmp_path / "c1" / name).write_bytes(content)
    (tmp_path / "init.pid").write_bytes(content)

    assert find(tmp_path, tmp_path / "init.pid") is None


def test_a_dead_process_is_nobody(tmp_path: Path, process: Process) -> None:
    write_runc_state(tmp_path, "c1", process.pid)
    process.end()

    assert find(tmp_path) is None


def test_a_held_process_is_alive_until_it_ends(process: Process) -> None:
    pidfd = os.pidfd_open(process.pid)

    assert alive([pidfd]) == {pidfd}
    process.end()
    assert alive([pidfd]) == set()
    assert alive([]) == set()
    os.close(pidfd)


def test_a_cgroup_counts_with_everything_below(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "cgroup.procs").write_text("")
    assert not cgroup_populated(tmp_path)

    (below / "cgroup.procs").write_text("7\n8\n")

    assert cgroup_populated(tmp_path)
    assert list(cgroup_pids(tmp_path)) == [7, 8]
    assert not cgroup_populated(tmp_path / "gone")


def test_nothing_is_known_of_a_pid_that_nobody_has() -> None:
    assert start_time(2**22 + 1) is None
    assert pid_namespace(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("runtime", "write"), [("runc", write_runc_state), ("crun", write_crun_state)]
)
def test_without_a_root_the_runtime_directory_is_searched(
    tmp_path: Path, process: Process, runtime: str, write: Callable[[Path, str, int], Path]
) -> None:
    write(tmp_path / runtime, "c1", process.pid)

    init = find_init("", "c1", "", 0, str(tmp_path))

    assert init is not None
    assert init.pid == process.pid
    init.close()
    assert runtime_record("", "c1", str(tmp_path)) is Record.PRESENT


def test_what_a_runtime_s_root_tells(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert runtime_record(str(root), "c1") is Record.UNKNOWN
    root.mkdir()
    assert runtime_record(str(root), "c1") is Record.ABSENT
    (root / "c1").mkdir()
    assert runtime_record(str(root), "c1") is Record.ABSENT
    (root / "c1" / "state.json").write_text("not what runc writes")
    assert runtime_record(str(root), "c1") is Record.UNKNOWN
    write_runc_state(root, "c1", 1)
    assert runtime_record(str(root), "c1") is Record.PRESENT
