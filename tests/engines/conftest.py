# SPDX-License-Identifier: Apache-2.0
"""Every engine of the matrix, each with a node of its own."""

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed.docker import DockerFailedError
from tests.testbed.engines.base import Engine, EngineFailedError, Setup
from tests.testbed.engines.matrix import CANDIDATES, Candidate
from tests.testbed.node import GIB, Node, probe, wait_until
from tests.testbed.packages import UnobtainableError
from tests.testbed.rootfs import PROBE

NOT_RUN = "NOT RUN"
# What an engine that does not start here raises; anything else is a fault of the tests.
NOT_STARTED = (
    EngineFailedError,
    DockerFailedError,
    grpc.RpcError,
    subprocess.SubprocessError,
    OSError,
    RuntimeError,
)


# Engines answer in seconds; a busy machine takes its time.
eventually = partial(wait_until, timeout_seconds=90)


@dataclass(frozen=True)
class Bed:
    """An engine whose containers come through our runtime, and the node behind that."""

    name: str
    version: str
    engine: Engine
    node: Node

    def probe(self, container: str, *words: str) -> dict[str, Any]:
        """Return what vgpu-probe prints in an exec session, which has none of our environment."""
        return probe(self.engine.exec(container, PROBE, *words))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/engines/" not in str(item.path):
            continue
        item.add_marker(pytest.mark.engine)
        # All tests of an engine share its daemon, so they go to one worker.
        callspec = getattr(item, "callspec", None)
        params = callspec.params.values() if callspec is not None else ()
        names = [param.name for param in params if isinstance(param, Candidate)]
        group = names[0] if names else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", params=CANDIDATES, ids=lambda candidate: candidate.name)
def bed(request: pytest.FixtureRequest, template: Path) -> Iterator[Bed]:
    """Yield an engine, running; NOT RUN with the reason where it cannot be had or started here."""
    candidate: Candidate = request.param
    try:
        binaries = candidate.obtain()
        low_level = candidate.runtime(binaries)
    except UnobtainableError as error:
        not_run(candidate.name, error)
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        cards = [Card(memory_bytes=8 * GIB)] * 2
        gpu = SimulatedGpu.create(scratch / "gpu", cards=cards, context_bytes=0, check_nodes=True)
        with Node(scratch / "node", gpu, low_level=str(low_level)) as node:
            mounts = node.gpu_mounts()
            setup = Setup(scratch / "engine", node.launcher, low_level, template, mounts)
            with opened(candidate.make(setup, binaries), candidate) as engine:
                yield Bed(candidate.name, engine.version(), engine, node)


@contextmanager
def opened(engine: Engine, candidate: Candidate) -> Iterator[Engine]:
    """Yield an engine that has started a container by the plain runtime below ours."""
    try:
        engine.open()
        done = engine.run("plain", ["/bin/true"], plain=True)
        if done.status != 0:
            raise EngineFailedError(["run", "plain"], done.status, done.stderr)
    except NOT_STARTED as error:
        with suppress(*NOT_STARTED):  # it may fail for the same reason
            engine.shut()
        not_run(candidate.name, error)
    try:
        yield engine
    finally:
        engine.shut()


def not_run(name: str, why: object) -> NoReturn:
    """End a test whose engine is not here."""
    pytest.skip(f"{NOT_RUN}: {name}: {' '.join(str(why).split())[-500:]}")


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell the summary the engine's version; leave the engine and its node without containers."""
    if "bed" not in request.fixturenames:
        yield
        return
    bed: Bed = request.getfixturevalue("bed")
    request.node.user_properties.append(("engine", f"{bed.name} {bed.version}"))
    yield
    bed.engine.remove_all()
    eventually(lambda: bed.node.claim_states() == {}, "every claim is freed")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a tier in which no engine ran."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        reporter is not None
        and exitstatus == pytest.ExitCode.OK
        and not reporter.stats.get("passed")
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:  # noqa: ANN401
    """Print which versions ran, and which engines did not and why."""
    ran: dict[str, Counter[str]] = {}
    missing: dict[str, str] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else ""
            if NOT_RUN in reason:
                name, _, why = reason.partition(f"{NOT_RUN}: ")[2].partition(": ")
                missing[name] = why
            for key, value in report.user_properties:
                if key == "engine" and (report.when == "call" or outcome != "passed"):
                    ran.setdefault(value, Counter())[outcome] += 1
    if not ran and not missing:
        return
    terminalreporter.section("engines")
    for engine, outcomes in sorted(ran.items()):
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        terminalreporter.line(f"{engine}: {counts}")
    for name, why in sorted(missing.items()):
        terminalreporter.line(f"{name}: {NOT_RUN}: {why}")
