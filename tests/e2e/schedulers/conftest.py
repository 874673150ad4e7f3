# SPDX-License-Identifier: Apache-2.0
"""The tier of other systems' schedulers: which there are, and what became of each case."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from _pytest.terminal import TerminalReporter

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from tests.e2e.namespace import Namespace
from tests.e2e.schedulers.hami import Hami
from tests.e2e.schedulers.kai import Kai
from tests.e2e.schedulers.koordinator import Koordinator
from tests.e2e.schedulers.record import Record, Result
from tests.e2e.schedulers.system import System
from tests.e2e.schedulers.volcano import Volcano
from tests.testbed.kubernetes.cluster import Cluster

SYSTEMS: tuple[type[System], ...] = (Hami, Volcano, Koordinator, Kai)
PROGRAMS = "VGPU_SCHEDULER_PROGRAMS"
"""Names the folder with the systems' programs, each system's in a folder of its name."""
RECORD = "VGPU_SCHEDULER_RECORD"
"""Names the folder for the record of each system; without it none is written."""
_RECORDS = pytest.StashKey[dict[str, Record]]()
_SELECTED = pytest.StashKey[bool]()
"""Whether a case of this tier is part of the run."""


def missing(system: type[System]) -> str:
    """Return why a system's programs cannot be run here; empty: they can."""
    folder = os.environ.get(PROGRAMS, "")
    if not folder:
        return "no PROGRAMS=DIR names built programs"
    absent = [each for each in system.programs if not (programs_of(system) / each).is_file()]
    return f"{system.name}/{', '.join(absent)}: not in PROGRAMS" if absent else ""


def programs_of(system: type[System]) -> Path:
    """Return the folder with a system's programs."""
    return Path(os.environ[PROGRAMS]).resolve() / system.name


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=SYSTEMS, ids=lambda system: str(system.name)
)
async def session_system(
    request: pytest.FixtureRequest, session_cluster: Cluster
) -> AsyncIterator[System]:
    """Yield a system that runs beside ours, on a node whose cards it sells."""
    kind: type[System] = request.param
    system = kind(session_cluster, programs_of(kind))
    # An interrupted run ends the loop before the block below.
    request.addfinalizer(system.stop)
    async with system.running():
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def system(session_system: System) -> System:
    """Return the system with every part running, and ours, whatever the test before has killed."""
    await session_system.whole()
    return session_system


@pytest_asyncio.fixture(loop_scope="session")
async def place(system: System) -> AsyncIterator[Namespace]:
    """Yield a namespace of the test's own; afterwards its pods are gone and their cards free."""
    cluster, name = system.cluster, f"e2e-{uuid.uuid4().hex[:8]}"
    async with KubeClient(KubeconfigConnection(cluster.kubeconfig)) as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        there = Namespace(cluster, client, name)
        yield there
        await system.whole()
        await there.clear()


# -- what became of it ---------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Begin with a record for each system."""
    config.stash[_RECORDS] = {each.name: Record(each, missing(each)) for each in SYSTEMS}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of systems that are not there, before a cluster is made for them."""
    for item in items:
        system = _system_of(item)
        reason = config.stash[_RECORDS][system.name].not_run if system else ""
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"NOT RUN: {reason}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """See whether this tier is part of the run at all."""
    session.config.stash[_SELECTED] = any(_system_of(item) for item in session.items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what became of a case; show the last words of the system's programs when it failed."""
    report = yield
    kind = _system_of(item)
    if kind is None:
        return report
    record = item.config.stash[_RECORDS][kind.name]
    system: Any = getattr(item, "funcargs", {}).get("session_system")
    if report.failed and isinstance(system, System):
        for process in system.processes:
            report.sections.append((f"{process.name}'s last words", process.last_words(20000)))
    if not record.not_run and (report.when == "call" or not report.passed):
        reason = ""
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome, reason = "known", report.wasxfail
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
        record.results[_case_of(item)] = Result(outcome, report.duration, reason)
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Say of each system what was run, and write it down where that is asked for."""
    if not config.stash.get(_SELECTED, False):
        return
    records = config.stash[_RECORDS]
    terminalreporter.section("other systems' schedulers")
    folder = os.environ.get(RECORD, "")
    for record in records.values():
        terminalreporter.write_line(record.summary())
        if folder and record.results:
            Path(folder).mkdir(parents=True, exist_ok=True)
            text = record.text(programs_of(record.system))
            (Path(folder) / f"schedulers-{record.system.name}.txt").write_text(text)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run without any system is not a run that passed."""
    ran = any(each.results for each in session.config.stash[_RECORDS].values())
    if session.config.stash.get(_SELECTED, False) and exitstatus == pytest.ExitCode.OK and not ran:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _system_of(item: pytest.Item) -> type[System] | None:
    specification = getattr(item, "callspec", None)
    found = specification.params.get("session_system") if specification else None
    return found if isinstance(found, type) else None


def _case_of(item: pytest.Item) -> str:
    """Return a case's name as people read it."""
    function = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
    params = item.callspec.params if hasattr(item, "callspec") else {}
    more = [str(value) for name, value in params.items() if name != "session_system"]
    return ", ".join([function, *more])
