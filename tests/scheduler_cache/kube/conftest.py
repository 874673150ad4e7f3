# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler_cache.kube.client import KubeClient
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_cache.kube.clusters import connection_to


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """Yield an API server without objects."""
    async with FakeApiServer().serving() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """Yield a client of `server`."""
    async with KubeClient(connection_to(server.url, tmp_path)) as client:
        yield client
