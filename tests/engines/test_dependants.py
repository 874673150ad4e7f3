# SPDX-License-Identifier: Apache-2.0
"""An engine's living containers are known to need the launcher, also those without a slice."""

from runtime_shim.dependants import engine_containers
from tests.engines.conftest import Bed
from tests.testbed.node import wait_until


def test_a_living_container_is_seen_to_need_the_launcher(bed: Bed) -> None:
    launcher = str(bed.node.launcher)
    assert engine_containers(launcher) == set()

    bed.engine.start("plain")

    # Who calls runc or crun by hand can call them without us.
    by_hand = bed.name.startswith(("runc-", "crun-"))
    assert len(engine_containers(launcher)) == (0 if by_hand else 1)
    bed.engine.remove("plain")
    wait_until(
        lambda: engine_containers(launcher) == set(), "it is seen to be gone", timeout_seconds=60
    )
