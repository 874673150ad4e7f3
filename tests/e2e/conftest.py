# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tier: real Kubernetes (`make e2e`); docs/e2e.md says what is real."""

from __future__ import annotations

import signal
import tempfile
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from tests.e2e.namespace import Namespace
from tests.testbed.kubernetes import ControlPlane, UnavailableError, control_plane
from tests.testbed.kubernetes.cluster import Cluster


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yield a control plane that all tests share; each uses names of its own."""
    try:
        with control_plane(tmp_path_factory.mktemp("plane")) as plane:
            yield plane
    except UnavailableError as error:
        pytest.fail(str(error))


@pytest.fixture
async def client(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """Yield a client of the API server that may do everything."""
    connection = KubeconfigConnection(plane.kubeconfig(tmp_path / "kubeconfig"))
    async with KubeClient(connection) as client:
        yield client


@pytest.fixture(scope="session")
def ends_in_order() -> Iterator[None]:
    """Let SIGTERM, by which CI ends what takes too long, end the cluster's daemons, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def session_cluster(template: Path, ends_in_order: None) -> Iterator[Cluster]:
    """Yield a cluster that all tests share, one after the other."""
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        try:
            cluster = Cluster(Path(name), template)
        except UnavailableError as error:
            pytest.fail(str(error))
        with cluster:
            yield cluster


@pytest.fixture
def cluster(session_cluster: Cluster) -> Cluster:
    """Return the cluster with every part running, whatever the test before has killed."""
    session_cluster.whole()
    return session_cluster


@pytest.fixture
async def namespace(cluster: Cluster) -> AsyncIterator[Namespace]:
    """Yield a namespace of the test's own; afterwards its pods are gone and their cards free."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    async with KubeClient(KubeconfigConnection(cluster.kubeconfig)) as client:
        await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield Namespace(cluster, client, name)
        cluster.whole()
        await Namespace(cluster, client, name).clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last words of every part of the cluster with a test that failed."""
    report = yield
    cluster: Any = getattr(item, "funcargs", {}).get("session_cluster")
    if report.failed and isinstance(cluster, Cluster):
        for name, words in cluster.logs().items():
            report.sections.append((f"{name}'s last words", words))
    return report
