# SPDX-License-Identifier: Apache-2.0
"""The kernel's list of mounts, and the mount that a path is on."""

from __future__ import annotations

import os

import pytest

from runtime_shim.mount_table import HostMount, MountTable
from runtime_shim.overlay import overlay_folders

# Of a host with Docker, a disk that is mounted twice, and a folder with a blank in its name.
TABLE = rb"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1024k
41 22 254:1 /var/lib /mnt/my\040disk rw,relatime - ext4 /dev/vda1 rw
42 22 0:50 / /mnt/over rw - overlay overlay rw,lowerdir=/a\134:b:/run/vgpu,upperdir=/up
43 22 0:51 / /mntx rw - tmpfs none rw
garbage
"""


def test_mounts_below_a_folder_come_with_it() -> None:
    table = MountTable(TABLE)

    disk, overlay = table.below("/mnt")
    assert disk == HostMount(
        device="254:1", root="/var/lib", place="/mnt/my disk", type="ext4", options="rw"
    )
    assert disk.inner("/mnt/my disk") == "/var/lib"
    assert disk.inner("/mnt/my disk/vgpu/agent") == "/var/lib/vgpu/agent"
    assert overlay.layers("/mnt/over/x") == ["/a:b/x", "/run/vgpu/x", "/up/x"]
    assert disk.layers("/mnt/my disk") == []
    assert [mount.place for mount in table.below("/")] == ["/run", *places("/mnt"), "/mntx"]
    assert table.below("/mnt/over") == []


def places(folder: str) -> list[str]:
    return [mount.place for mount in MountTable(TABLE).below(folder)]


def test_the_mount_of_an_open_file_is_its_own() -> None:
    fd = os.open("/proc/self/status", os.O_PATH)
    try:
        mount = MountTable.read().mount_of(fd)
        assert mount is not None
        assert (mount.type, mount.inner("/proc/7/status")) == ("proc", "/7/status")
        assert MountTable(b"").mount_of(fd) is None
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("options", "folders"),
    [
        ("ro,lowerdir=/a:/b,upperdir=/u,workdir=/w,index=off", ["/a", "/b", "/u", "/w"]),
        (r"lowerdir=/a\:b:/c\\:/d\,e", ["/a:b", "/c\\", "/d,e"]),
        ("lowerdir=/a::/data", ["/a", "/data"]),
        ("lowerdir+=/a:b,datadir+=/d", ["/a:b", "/d"]),
        ("xlowerdir=/a,lowerdir,=/b", []),
    ],
)
def test_the_folders_of_an_overlay(options: str, folders: list[str]) -> None:
    assert list(overlay_folders(options)) == folders
