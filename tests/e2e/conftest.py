# SPDX-License-Identifier: Apache-2.0
"""The end-to-end tier: a real API server with a real etcd (`make e2e`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.connection import KubeconfigConnection
from tests.testbed.kubernetes import ControlPlane, UnavailableError, control_plane


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
