# SPDX-License-Identifier: Apache-2.0
"""Which nodes below /dev/dri are an NVIDIA card's."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime_shim.drm import nvidia_drm_numbers


def add_card(root: Path, name: str, number: str, vendor: str = "", driver: str = "") -> None:
    """Make what sysfs says of a DRM node."""
    folder = root / "sys/class/drm" / name
    (folder / "device").mkdir(parents=True)
    (folder / "dev").write_text(f"{number}\n")
    if vendor:
        (folder / "device/vendor").write_text(f"{vendor}\n")
    if driver:
        (folder / "device/driver").symlink_to(f"../../bus/platform/drivers/{driver}")


def test_an_nvidia_card_s_nodes_are_found_among_others(tmp_path: Path) -> None:
    add_card(tmp_path, "card0", "226:0", vendor="0x8086", driver="i915")
    add_card(tmp_path, "card1", "226:1", vendor="0x10de", driver="nvidia")
    add_card(tmp_path, "renderD129", "226:129", vendor="0x10de")
    add_card(tmp_path, "card2", "226:2", driver="tegra-drm")
    add_card(tmp_path, "card3", "garbage", vendor="0x10de")
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir()
    (tmp_path / "sys/class/drm/version").write_text("drm 1.1.0\n")

    assert nvidia_drm_numbers(tmp_path) == {(226, 1), (226, 129), (226, 2)}


@pytest.mark.parametrize("made", ["", "sys/class", "sys/class/drm"])
def test_a_host_without_drm_has_none(tmp_path: Path, made: str) -> None:
    (tmp_path / made).mkdir(parents=True, exist_ok=True)

    assert nvidia_drm_numbers(tmp_path) == frozenset()
