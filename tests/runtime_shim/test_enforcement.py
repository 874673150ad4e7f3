# SPDX-License-Identifier: Apache-2.0
"""What is above its limit, unhooked or foreign: the decisions as properties, the deeds on real
processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim import enforcement
from runtime_shim.config import Policy
from runtime_shim.enforcement import (
    Enforcer,
    Holding,
    Sight,
    Streaks,
    end_process,
    in_container,
    is_over,
    tolerated_bytes,
)
from runtime_shim.library import copies_folders
from runtime_shim.processes import Init, pid_namespace
from runtime_shim.procfs import mapped_file, maps_any
from tests.runtime_shim.allocations import CARD, GIB
from tests.runtime_shim.containers import Process

MIB = 1 << 20
ALLOCATION = "a"


@pytest.fixture
def process() -> Iterator[Process]:
    with Process() as process:
        yield process


@pytest.fixture
def neighbour() -> Iterator[Process]:
    with Process() as process:
        yield process


def holding(held_bytes: int, *pids: int) -> Holding:
    return Holding(
        allocation_id=ALLOCATION,
        card_uuid=CARD,
        limit_bytes=GIB,
        held_bytes=held_bytes,
        pids=pids,
    )


def container(folder: Path, *pids: int) -> Init:
    """Return the init of a container whose cgroup has these processes."""
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return Init(pid=pids[0], pidfd=-1, cgroup=folder, pid_namespace=pid_namespace(pids[0]))


# The decisions

LOOKS = st.lists(st.tuples(st.floats(0.1, 4.0), st.sets(st.sampled_from("abc"))), max_size=60)


@given(looks=LOOKS, seconds=st.floats(0, 20))
def test_due_is_what_was_so_at_every_look_of_the_time(
    looks: Sequence[tuple[float, set[str]]], seconds: float
) -> None:
    streaks: Streaks[str] = Streaks(seconds)
    now = 0.0
    history: list[tuple[float, set[str]]] = []
    for pause, so in looks:
        now += pause
        history.append((now, so))
        due, _ = streaks.look(so, now)

        for key in "abc":
            unbroken = [at for at, then in history if key in then]
            breaks = [at for at, then in history if key not in then]
            began = min((at for at in unbroken if not breaks or at > breaks[-1]), default=now + 1)
            assert (key in due) == (now - began >= seconds and key in so)


@given(looks=LOOKS, repeat=st.floats(1, 100))
def test_news_come_once_in_their_time(
    looks: Sequence[tuple[float, set[str]]], repeat: float
) -> None:
    streaks: Streaks[str] = Streaks(2.0, min(repeat, 60.0))
    now = 0.0
    told: dict[str, float] = {}
    for pause, so in looks:
        now += pause
        due, news = streaks.look(so, now)

        assert set(news) <= set(due)
        for key in news:
            assert now - told.get(key, -1000.0) >= min(repeat, 60.0)
            told[key] = now
        assert all(now - told[key] < min(repeat, 60.0) for key in due)


def test_nobody_is_charged_with_a_time_in_which_nobody_looked() -> None:
    streaks: Streaks[str] = Streaks(30.0)
    streaks.look({"a"}, 0)

    assert streaks.look({"a"}, 100) == ([], [])


def test_a_streak_outlasts_pauses_between_looks() -> None:
    streaks: Streaks[str] = Streaks(9.0)
    streaks.look({"a", "b"}, 0)

    assert streaks.look({"a"}, 100) == ([], [])
    assert streaks.look({"a", "b"}, 200)[0] == ["a"], "5 s of each pause count"


@given(limit=st.integers(MIB, 1 << 37), processes=st.integers(0, 1024))
def test_the_slack_is_as_promised(limit: int, processes: int) -> None:
    slack = tolerated_bytes(limit, processes) - limit - 8 * MIB * processes

    assert slack == max(64 * MIB, limit // 100)


def test_over_is_beyond_the_slack() -> None:
    assert not is_over(holding(GIB + 80 * MIB, 1, 2))
    assert is_over(holding(GIB + 80 * MIB + 1, 1, 2))


# The deeds


class Look:
    """Looks of one enforcer, a second apart by its own clock."""

    def __init__(self, folder: Path, policy: Policy, library: Path | None = None) -> None:
        state = folder / "state"
        state.mkdir(exist_ok=True)
        self.enforcer = Enforcer(policy, library or folder / "none" / "libvgpu.so", state)
        self.now = 1000.0

    def at(self, sight: Sight, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.enforcer._look(sight, self.now)


def ended(process: Process) -> bool:
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_container_above_its_limit_is_an_event_a_minute_and_lives(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    look = Look(tmp_path, Policy())
    sight = Sight(
        holdings=[holding(8 * GIB, process.pid)],
        inits={ALLOCATION: container(tmp_path, process.pid)},
    )

    look.at(sight, 30)
    assert not caplog.messages
    look.at(sight, 65)

    assert caplog.messages.count("container above its limit") == 2
    record = caplog.records[0].__dict__
    assert (record["allocation_id"], record["card_uuid"]) == (ALLOCATION, CARD)
    assert (record["limit_bytes"], record["held_bytes"]) == (GIB, 8 * GIB)
    assert not ended(process)


def test_kill_ends_the_containers_processes_alone(
    tmp_path: Path, process: Process, neighbour: Process
) -> None:
    look = Look(tmp_path, Policy(over_limit="kill", over_limit_seconds=2))
    sight = Sight(
        # NVML names the neighbour by mistake: its number may have been the process's a moment ago.
        holdings=[holding(8 * GIB, process.pid, neighbour.pid)],
        inits={ALLOCATION: container(tmp_path, process.pid)},
    )

    look.at(sight, 2)
    assert not ended(process)
    look.at(sight, 2)

    wait_until(lambda: ended(process))
    assert not ended(neighbour)


def test_a_container_whose_processes_are_not_known_is_not_touched(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    look = Look(tmp_path, Policy(over_limit="kill", over_limit_seconds=1))

    look.at(Sight(holdings=[holding(8 * GIB, process.pid)]), 5)

    assert "container above its limit" in caplog.messages
    assert not ended(process)


def test_a_process_that_is_another_when_held_is_not_ended(process: Process) -> None:
    assert not end_process(process.pid, lambda _: False)
    assert not ended(process)
    process.end()
    assert not end_process(process.pid, lambda _: True)


def test_a_shared_pid_namespace_makes_nobody_a_member(tmp_path: Path, process: Process) -> None:
    init = replace(container(tmp_path, os.getpid()), cgroup=None)

    assert not in_container(init, process.pid)


def libc_of(pid: int) -> Path:
    maps = Path(f"/proc/{pid}/maps").read_text()
    found = re.search(r"(/\S+/libc\.so\.6)$", maps, re.MULTILINE)
    assert found is not None
    return Path(found[1])


def test_maps_tell_whether_a_library_is_loaded(tmp_path: Path, process: Process) -> None:
    wait_until(lambda: "libc.so.6" in Path(f"/proc/{process.pid}/maps").read_text())
    other = tmp_path / "libvgpu.so"
    other.write_bytes(b"x")

    assert maps_any(process.pid, {mapped_file(libc_of(process.pid))}) is True
    assert maps_any(process.pid, {mapped_file(other)}) is False
    process.end()
    assert maps_any(process.pid, {mapped_file(other)}) is None


@pytest.mark.parametrize("rule", ["event", "kill"])
def test_a_process_without_the_library_is_unhooked_once(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture, rule: str
) -> None:
    library = tmp_path / "lib" / "libvgpu.so"
    library.parent.mkdir()
    library.write_bytes(b"x")
    look = Look(tmp_path, Policy(unhooked=rule), library)
    sight = Sight(
        holdings=[holding(GIB, process.pid)], inits={ALLOCATION: container(tmp_path, process.pid)}
    )

    for _ in range(10):
        look.at(sight, 1)
        time.sleep(0.05)  # its maps are read in a thread of their own

    assert caplog.messages.count("unhooked") == 1
    assert caplog.records[0].__dict__["command"] == "sleep"
    assert ended(process) == (rule == "kill")


def test_a_process_with_the_library_is_left_alone(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: "libc.so.6" in Path(f"/proc/{process.pid}/maps").read_text())
    look = Look(tmp_path, Policy(unhooked="kill"), libc_of(process.pid))
    sight = Sight(
        holdings=[holding(GIB, process.pid)], inits={ALLOCATION: container(tmp_path, process.pid)}
    )

    for _ in range(20):
        look.at(sight, 1)
        time.sleep(0.01)

    assert not caplog.messages
    assert not ended(process)


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_with_the_agents_copy_of_the_library_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    installed = tmp_path / "lib/current/libvgpu.so"
    copy = copies_folders(installed, tmp_path / "state")[number] / "0123/1.0/libvgpu.so"
    for path in (installed, copy):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\0" * 4096)
    script = (
        "import mmap, sys; file = open(sys.argv[1]);"
        " mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC);"
        " input()"
    )
    tenant = subprocess.Popen([sys.executable, "-c", script, copy], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: str(copy) in Path(f"/proc/{tenant.pid}/maps").read_text())
        look = Look(tmp_path, Policy(unhooked="event"), installed)
        sight = Sight(
            holdings=[holding(GIB, tenant.pid)], inits={ALLOCATION: container(tmp_path, tenant.pid)}
        )

        for _ in range(10):
            look.at(sight, 1)
            time.sleep(0.05)

        assert not caplog.messages
    finally:
        tenant.kill()
        tenant.communicate()


def test_a_host_process_is_an_event_whatever_the_policy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcement, "parent_pid", lambda _: 1)
    with Process() as stranger:
        look = Look(tmp_path, Policy(foreign="kill"))
        look.enforcer.remember_first_run()
        look.enforcer.take_snapshot()

        look.at(Sight(strangers={stranger.pid: CARD}), 20)

        assert caplog.messages == ["process without an allocation on a shared card"]
        assert caplog.records[0].__dict__["kind"] == "host"
        assert not ended(stranger)


def test_the_agents_own_probe_is_no_event(
    tmp_path: Path, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    Look(tmp_path, Policy()).at(Sight(strangers={process.pid: CARD}), 20)

    assert not caplog.messages


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Yield `unshare` whose child is the first process of a PID namespace without privileges."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "setpriv", "--bounding-set", "-all"]
    with subprocess.Popen([*words, "sleep", "600"]) as parent:
        yield parent
        parent.kill()


def child_of(parent: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    wait_until(lambda: bool(children.read_text().split()))
    pid = int(children.read_text().split()[0])
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    return pid


def test_a_foreign_container_is_ended_when_everything_is_known(
    tmp_path: Path, foreign: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    look = Look(tmp_path, Policy(foreign="kill"))
    (tmp_path / "state" / "first-run.json").write_text('{"boot_id": "old", "boottime_ns": 1}')
    look.enforcer.take_snapshot()

    look.at(Sight(strangers={child_of(foreign): CARD}), 10)

    assert foreign.wait(5) != 0
    assert "process without an allocation ended" in caplog.messages


@pytest.mark.parametrize("missing", ["policy", "snapshot", "inits", "later"])
def test_a_foreign_container_lives_while_anything_is_not_known(
    tmp_path: Path,
    foreign: subprocess.Popen[bytes],
    caplog: pytest.LogCaptureFixture,
    missing: str,
) -> None:
    pid = child_of(foreign)
    look = Look(tmp_path, Policy(foreign="event" if missing == "policy" else "kill"))
    if missing == "later":  # the container was there before the first agent
        time.sleep(0.05)
        look.enforcer.remember_first_run()
    else:
        (tmp_path / "state" / "first-run.json").write_text('{"boot_id": "old", "boottime_ns": 1}')
    if missing != "snapshot":
        look.enforcer.take_snapshot()

    look.at(Sight(strangers={pid: CARD}, complete=missing != "inits"), 20)

    assert caplog.messages == ["process without an allocation on a shared card"]
    assert caplog.records[0].__dict__["kind"] == "container"
    assert foreign.poll() is None


def test_the_first_run_is_remembered(tmp_path: Path) -> None:
    look = Look(tmp_path, Policy())
    look.enforcer.remember_first_run()
    first: Any = (tmp_path / "state" / "first-run.json").read_text()

    look.enforcer.remember_first_run()

    assert (tmp_path / "state" / "first-run.json").read_text() == first
