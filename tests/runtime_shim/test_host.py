# SPDX-License-Identifier: Apache-2.0
"""Which device nodes belong to which cards of a host."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import Driver
from runtime_shim.host import Host
from tests.runtime_shim.allocations import CARD, OTHER_CARD
from tests.runtime_shim.test_inventory import card

CAPS = 236


@pytest.fixture
def host(tmp_path: Path, needs_root: None) -> Host:
    """Return a host of two cards; the second one has the MIG instances 1 and 2."""
    dev, caps = tmp_path / "dev", tmp_path / "dev/nvidia-caps"
    caps.mkdir(parents=True)
    for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255), ("nvidia-other", 77)):
        os.mknod(dev / name, 0o20666, os.makedev(195, minor))
    for minor in (1, 2, 30, 31, 40, 41):
        os.mknod(caps / f"nvidia-cap{minor}", 0o20444, os.makedev(CAPS, minor))
    for instance, first in ((1, 30), (2, 40)):
        folder = tmp_path / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}"
        (folder / "ci0").mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {first}\nDeviceFileMode: 292\n")
        (folder / "ci0/access").write_text(f"DeviceFileMinor: {first + 1}\n")
    return Host(Driver(root=tmp_path, library_dirs=(tmp_path,), cdi_dirs=()))


def test_a_card_has_its_node_and_those_that_control_all(host: Host) -> None:
    assert host.numbers_of([card(CARD)]) == {(195, 0), (195, 255)}


def test_an_instance_has_the_capabilities_of_itself_alone(host: Host) -> None:
    instance = dataclasses.replace(
        card(OTHER_CARD), minor=1, kind=pb.CARD_KIND_MIG, gpu_instance=2, compute_instance=0
    )

    assert host.numbers_of([instance]) == {(195, 1), (195, 255), (CAPS, 40), (CAPS, 41)}


def test_no_card_has_no_node(host: Host) -> None:
    assert host.numbers_of([]) == frozenset()
