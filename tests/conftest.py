# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every tier shares."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.testbed.rootfs import build_rootfs

# A loaded machine is slow, which is no fault; CI tries the same examples every time.
hypothesis.settings.register_profile(
    "vgpu",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("vgpu")


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """Let the collector see again what a server that ran in the test's own process froze."""
    yield
    gc.unfreeze()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Yield a directory with a short name: a unix socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def needs_root() -> None:
    """End a test that needs root with a sentence when it has none."""
    if os.geteuid() != 0:
        pytest.fail("this tier starts real containers: run it as root")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, needs_root: None) -> Path:
    """Return a glibc rootfs with vgpu-probe, to copy from."""
    return build_rootfs(tmp_path_factory.mktemp("rootfs"))
