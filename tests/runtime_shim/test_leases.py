# SPDX-License-Identifier: Apache-2.0
"""A container's leases on its files, which would make an open wait for 45 s; real ones."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtime_shim.arbiter import Arbiter
from runtime_shim.library import VerifiedCopies
from runtime_shim.procfs import mapped_file
from runtime_shim.region import Regions, read_overhead, read_usage, repair_usage
from tests.runtime_shim.allocations import GIB, allocation, part
from tests.runtime_shim.test_arbiter import LIBRARY as ARBITER
from tests.runtime_shim.test_library import library
from tests.runtime_shim.test_region import PRELOAD, limits_of, regions
from tests.testbed.leases import build_lease, grants_lease, leased
from tests.testbed.node import wait_until

__all__ = ["library", "regions"]

# Far less than a lease holds up an open here (20 s) and by default (45 s).
SECONDS = 10.0
KINDS = [fcntl.F_RDLCK, fcntl.F_WRLCK]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_lease(tmp_path_factory.mktemp("lease") / "lease")


@pytest.fixture
def in_time() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_no_lease_is_granted_while_an_agent_has_the_files(regions: Regions, kind: int) -> None:
    made = regions.create(allocation(part()), PRELOAD)
    assert not grants_lease(made.usage_path, kind)
    assert not grants_lease(made.limits_path, kind)

    regions.close()
    adopted = regions.adopt(made.allocation)

    assert adopted is not None
    assert not grants_lease(made.usage_path, kind)
    assert not grants_lease(made.limits_path, kind)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("kind", ["r", "w"])
def test_nothing_waits_for_a_leased_file(regions: Regions, program: Path, kind: str) -> None:
    region = regions.create(allocation(part()), PRELOAD)
    regions.close()

    with leased(region.usage_path, kind, program), leased(region.limits_path, kind, program):
        with pytest.raises(BlockingIOError, match="lease"):
            repair_usage(region.usage_path)
        for read in (
            lambda: read_usage(region.usage_path, region.allocation),
            lambda: read_overhead(region.limits_path, 1),
        ):
            if kind == "w":
                with pytest.raises(BlockingIOError, match="lease"):
                    read()


@pytest.mark.parametrize("name", ["limits", "usage/usage"])
def test_the_next_agent_starts_at_once_and_gets_leased_files_in_the_end(
    regions: Regions, program: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = regions.create(allocation(part()), PRELOAD)
    regions.close()

    with leased(made.folder / name, "r", program):
        begun = time.monotonic()
        adopted = regions.adopt(made.allocation)
        assert time.monotonic() - begun < SECONDS
        assert adopted is not None
        assert "files of a container are kept from the agent" in caplog.messages
        changed = allocation(part(memory_bytes=GIB))
        changed.allocation_id = made.allocation.allocation_id
        adopted.update(changed)

        def is_written() -> bool:
            adopted.beat(77)
            return bool(limits_of(made).heartbeat_ns == 77)

        wait_until(is_written, "the lease has ended", timeout_seconds=120)
        assert limits_of(made).dev[0].memory_bytes == GIB
        assert not grants_lease(made.folder / name, fcntl.F_RDLCK)


def test_the_arbiter_gives_others_turns_beside_a_leased_file(
    regions: Regions, program: Path
) -> None:
    bad = regions.create(allocation(part()), PRELOAD)
    good = regions.create(allocation(part()), PRELOAD)
    bad.close()
    arbiter = Arbiter(ARBITER)
    try:
        with leased(bad.usage_path, "w", program):
            begun = time.monotonic()
            arbiter.follow([bad, good])

            assert time.monotonic() - begun < SECONDS
            assert arbiter.turns().keys() == {good.allocation.allocation_id}
    finally:
        arbiter.close()


def test_no_lease_is_granted_on_a_copy_that_an_agent_has(library: Path, tmp_path: Path) -> None:
    old = VerifiedCopies(library, tmp_path / "state").library()
    other = old.parent.parent.with_name("0123") / "1.0" / old.name
    other.parent.mkdir(parents=True)
    other.write_bytes(old.read_bytes())
    assert grants_lease(old, fcntl.F_WRLCK)

    copies = VerifiedCopies(library, tmp_path / "state")

    assert copies.library() == old
    assert not grants_lease(old, fcntl.F_WRLCK)
    assert not grants_lease(other, fcntl.F_WRLCK), "an earlier build's"


def test_a_leased_copy_is_left_to_its_containers(
    library: Path, tmp_path: Path, program: Path
) -> None:
    old = VerifiedCopies(library, tmp_path / "state").library()
    inode = old.stat().st_ino

    with ExitStack() as stack:
        stack.enter_context(leased(old, "w", program))
        begun = time.monotonic()
        new = VerifiedCopies(library, tmp_path / "state").library()
        with pytest.raises(BlockingIOError, match="lease"):
            mapped_file(old)

        assert time.monotonic() - begun < SECONDS
        assert new != old
        assert new.read_bytes() == library.read_bytes()
        assert new.parent.name == old.parent.name, "of the same version"
    assert old.stat().st_ino == inode
