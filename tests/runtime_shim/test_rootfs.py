# SPDX-License-Identifier: Apache-2.0
"""What is seen in a container's root, and what is never followed out of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_shim.errors import RefusedError
from runtime_shim.openat2 import open_in_root, path_in_root
from runtime_shim.rootfs import RootfsFacts, inspect_rootfs, merge_preload
from runtime_shim.spec import Spec
from runtime_shim.view import View
from tests.runtime_shim.elsewhere import view_with
from tests.runtime_shim.specs import bind, plain_spec

LOADER = "lib64/ld-linux-x86-64.so.2"
LIBRARY = "/dev/vgpu/libvgpu.so"
SECRET = b"/secret.so\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a Debian image, as far as it matters; a secret lies outside."""
    root = tmp_path / "bundle" / "rootfs"
    machine = os.uname().machine
    (root / f"usr/lib/{machine}-linux-gnu").mkdir(parents=True)
    for name in ("dev", "etc", "proc", "usr/lib64"):
        (root / name).mkdir()
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").symlink_to("usr/lib64")
    put_loader(root)
    (tmp_path / "secret").write_bytes(SECRET)
    return root


def put_loader(
    root: Path,
    text: bytes = b"\x7fELF ... /etc/ld.so.preload ...",
    folder: str = "usr/lib64",
) -> None:
    (root / folder / "ld-linux-x86-64.so.2").write_bytes(text)


def inspect(
    root: Path, spec: Spec | None = None, *, library: bool = True, view: View | None = None
) -> RootfsFacts:
    fd = os.open(root.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        return inspect_rootfs(fd, spec or plain_spec(), library=library, view=view)
    finally:
        os.close(fd)


def test_a_debian_root_takes_the_library(root: Path) -> None:
    facts = inspect(root)

    assert facts == RootfsFacts(
        loader=f"/{LOADER}",
        library_dir=f"/usr/lib/{os.uname().machine}-linux-gnu",
        preload=b"",
        preload_objection=None,
        read_only_filesystem=False,
        notes=[],
    )


def test_an_absolute_root_is_found_too(root: Path) -> None:
    spec = plain_spec()
    spec["root"]["path"] = str(root)

    assert inspect(root, spec).loader == f"/{LOADER}"


@pytest.mark.parametrize(
    ("path", "message"),
    [(None, "names no rootfs"), ("", "names no rootfs"), ("absent", r"rootfs 'absent' \(ENOENT\)")],
)
def test_a_root_that_is_not_there_is_refused(root: Path, path: str | None, message: str) -> None:
    spec = plain_spec()
    spec["root"]["path"] = path

    with pytest.raises(RefusedError, match=message):
        inspect(root, spec)


@pytest.mark.parametrize(
    ("folders", "links", "library_dir"),
    [
        (["usr/lib64", "usr/lib"], {"lib64": "usr/lib64"}, "/usr/lib64"),
        (["usr/lib"], {"usr/lib64": "lib", "lib64": "usr/lib"}, "/usr/lib"),
        (["lib64"], {}, "/lib64"),
        (["x/y"], {"lib64": "/x/y"}, "/x/y"),
    ],
)
def test_driver_libraries_go_where_the_loader_looks(
    tmp_path: Path, folders: list[str], links: dict[str, str], library_dir: str
) -> None:
    root = tmp_path / "bundle" / "rootfs"
    for folder in folders:
        (root / folder).mkdir(parents=True)
    for name, target in links.items():
        (root / name).symlink_to(target)
    put_loader(root, folder=folders[0])

    assert inspect(root).library_dir == library_dir


def musl_only(root: Path) -> None:
    (root / LOADER).unlink()
    (root / "lib" / "ld-musl-x86_64.so.1").touch()


def musl_with_gcompat(root: Path) -> None:
    put_loader(root, b"\x7fELF gcompat")
    (root / "lib" / "ld-musl-x86_64.so.1").touch()


def nix(root: Path) -> None:
    (root / LOADER).unlink()
    (root / "nix" / "store").mkdir(parents=True)


def other_loader(root: Path) -> None:
    put_loader(root, b"\x7fELF /etc/ld-nix.so.preload")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (musl_only, r"uses musl \(/lib/ld-musl-x86_64.so.1\), which does not read"),
        (musl_with_gcompat, "uses musl"),
        (nix, r"another loader than glibc's \(/nix/store\).*based on glibc"),
        (other_loader, "another loader than glibc's"),
    ],
)
def test_a_loader_that_would_ignore_the_library_is_refused(
    root: Path, change: Callable[[Path], None], message: str
) -> None:
    change(root)

    with pytest.raises(RefusedError, match=message):
        inspect(root)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("lib/ld-musl-x86_64.so.1", "the image uses musl"),
        ("nix/store", r"the image uses another loader than glibc's \(/nix/store\)"),
        ("gnu/store", "another loader than glibc's"),
        ("lib/ld-linux.so.2", r"another loader than glibc's \(/lib/ld-linux.so.2\)"),
    ],
)
def test_a_loader_beside_glibc_s_is_refused_since_programs_choose(
    root: Path, path: str, message: str
) -> None:
    (root / path).mkdir(parents=True)

    with pytest.raises(RefusedError, match=message):
        inspect(root)


def test_every_loader_of_glibc_is_fine(root: Path) -> None:
    (root / "lib/ld-linux.so.2").write_bytes(b"\x7fELF /etc/ld.so.preload")

    assert inspect(root).loader == f"/{LOADER}"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a folder with a loader that reads another file."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "ld-linux-x86-64.so.2").write_bytes(b"\x7fELF /etc/ld.so.preloax")
    return volume


def into_a_volume_by_the_image(root: Path) -> None:
    (root / "lib64").unlink()
    (root / "lib64").symlink_to("/data")


def by_a_chain_of_links(root: Path) -> None:
    (root / "srv/l").mkdir(parents=True)
    put_loader(root, folder="srv/l")
    (root / "lib64").unlink()
    (root / "lib64").symlink_to("data")
    (root / "data").symlink_to("srv/l")


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("/lib64", None),
        ("/usr/lib64", None),
        ("/usr/../lib64/", None),
        ("/data", into_a_volume_by_the_image),
        ("/data", by_a_chain_of_links),
        ("/srv/l", by_a_chain_of_links),
    ],
)
def test_a_loader_in_a_volume_is_looked_at(
    root: Path, volume: Path, place: str, change: Callable[[Path], None] | None
) -> None:
    if change is not None:
        change(root)
    spec = plain_spec(mounts=[bind(str(volume), place)])

    with pytest.raises(RefusedError, match=r"the mount at '/.*' uses another loader than glibc's"):
        inspect(root, spec)

    (volume / "ld-linux-x86-64.so.2").write_bytes(b"\x7fELF /etc/ld.so.preload")
    assert inspect(root, spec).loader == f"/{LOADER}"


@pytest.mark.parametrize("relative", [True, False])
def test_a_volume_and_a_root_are_those_that_the_runtime_sees(
    root: Path, tmp_path: Path, needs_root: None, relative: bool
) -> None:
    put_loader(tmp_path, b"a loader of somebody else", folder=".")
    (tmp_path / "volume").mkdir()
    put_loader(tmp_path, folder="volume")
    source = "../volume" if relative else f"{tmp_path}/volume"
    spec = plain_spec(mounts=[bind(source, "/lib64")])
    of_root = plain_spec()
    of_root["root"]["path"] = "rootfs" if relative else str(root)

    with view_with(
        f"mount --bind {tmp_path} {tmp_path}/volume", f"mount -t tmpfs none {root}/usr/lib64"
    ) as view:
        assert inspect(root, spec).loader == f"/{LOADER}"
        with pytest.raises(RefusedError, match="another loader"):
            inspect(root, spec, view=view)
        assert inspect(root, of_root).loader == f"/{LOADER}"
        assert inspect(root, of_root, view=view).loader == ""


def test_a_single_file_over_the_loader_is_looked_at(root: Path, volume: Path) -> None:
    spec = plain_spec(mounts=[bind(str(volume / "ld-linux-x86-64.so.2"), f"/{LOADER}")])

    with pytest.raises(RefusedError, match="another loader than glibc's"):
        inspect(root, spec)


def test_a_link_from_a_volume_into_another_is_followed(root: Path, volume: Path) -> None:
    (volume / "l").mkdir()
    (volume / "l/ld-linux-x86-64.so.2").symlink_to("/other/ld")
    (volume / "ld").write_bytes(b"\x7fELF")
    spec = plain_spec(mounts=[bind(str(volume / "l"), "/lib64"), bind(str(volume), "/other")])

    with pytest.raises(RefusedError, match="the mount at '/other' uses another loader"):
        inspect(root, spec)


def test_a_store_of_nix_in_a_volume_is_refused(root: Path, volume: Path) -> None:
    (volume / "store").mkdir()

    with pytest.raises(RefusedError, match=r"the mount at '/nix' uses.*/nix/store"):
        inspect(root, plain_spec(mounts=[bind(str(volume), "/nix")]))


def test_a_folder_of_loaders_that_nobody_can_look_into_is_refused(root: Path) -> None:
    overlay = {"destination": "/usr/lib64", "type": "overlay", "source": "overlay"}

    with pytest.raises(RefusedError, match="a mount of type overlay covers '/usr/lib64'"):
        inspect(root, plain_spec(mounts=[overlay]))


def test_links_without_end_are_refused(root: Path) -> None:
    (root / "lib64").unlink()
    (root / "lib64").symlink_to("lib64")

    with pytest.raises(RefusedError, match="more than 40 links"):
        inspect(root)


@pytest.mark.parametrize(
    ("link", "target"),
    [("x", "dev/vgpu"), ("x", "/dev/vgpu/limits"), ("x", "../y"), ("data/x", "../dev/./vgpu")],
)
def test_a_volume_that_a_dangling_link_puts_at_our_place_is_refused(
    root: Path, link: str, target: str
) -> None:
    (root / "data").mkdir()
    (root / "y").symlink_to("/dev/vgpu")
    (root / link).symlink_to(target)

    with pytest.raises(RefusedError, match="a mount of '/srv' at '/.*x' covers the place of the"):
        inspect(root, plain_spec(mounts=[bind("/srv", f"/{link}")]))


OURS = ("/dev/vgpu", "/dev/vgpu/libvgpu.so", "/dev/vgpu/new", "/dev", "/", "/etc", "etc/./")
OF_PROC = ("/proc/self/root/etc/ld.so.preload", "/proc/1/root/etc", "/dev/fd/../root/etc", "/p/x")
ITS_NAMES = ("/etc/ld.so.preload", "/x/../etc/ld.so.preload", "/link", "/a/vgpu")


@pytest.mark.parametrize("kind", ["maskedPaths", "devices"])
@pytest.mark.parametrize("path", [*OURS, *OF_PROC, *ITS_NAMES])
def test_nothing_is_put_over_what_holds_a_container(root: Path, kind: str, path: str) -> None:
    (root / "link").symlink_to("etc/ld.so.preload")
    (root / "p").symlink_to("proc/thread-self/../../root")
    (root / "a").symlink_to("dev")
    spec = plain_spec()
    node = {"path": path, "type": "c", "major": 1, "minor": 3}
    spec["linux"][kind] = [path if kind == "maskedPaths" else node]

    with pytest.raises(RefusedError, match="covers what holds it|another place to each process"):
        inspect(root, spec)
    assert inspect(root, spec, library=False)


def test_a_link_on_the_way_to_our_file_is_not_hidden(root: Path) -> None:
    (root / "opt").mkdir()
    (root / "opt/preload").symlink_to("/usr/preload")
    (root / "etc/ld.so.preload").symlink_to("/opt/preload")
    (root / "usr/preload").touch()
    spec = plain_spec()
    for path in ("/opt", "/usr/preload", "/etc"):
        spec["linux"]["maskedPaths"] = [path]
        with pytest.raises(RefusedError, match="covers what holds it"):
            inspect(root, spec)


def test_what_engines_mask_and_give_is_fine(root: Path) -> None:
    spec = plain_spec(devices=[{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}])
    spec["linux"]["maskedPaths"] = [
        *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
        *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
        *("/proc/timer_stats", "/sys/dev/block", "/sys/devices/virtual/powercap"),
        *("/sys/devices/system/cpu/cpu0/thermal_throttle", "/sys/firmware", "/sys/fs/selinux"),
    ]

    assert inspect(root, spec).preload_objection is None


def test_a_container_without_a_library_may_have_any_loader(root: Path) -> None:
    musl_only(root)

    assert inspect(root, library=False).loader == ""


def test_a_root_without_any_loader_starts(tmp_path: Path) -> None:
    root = tmp_path / "bundle" / "rootfs"
    (root / "bin").mkdir(parents=True)

    facts = inspect(root)

    assert (facts.loader, facts.library_dir, facts.preload_objection) == ("", "", None)


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        ([], "its /dev is a part of the image"),
        ([bind("/dev", "/dev")], "its /dev is a mount of '/dev'"),
        (
            [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}, bind("/x", "/dev/.")],
            "a mount of '/x' and not a tmpfs",
        ),
        (
            [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}, bind("/x", "/data/l")],
            "a mount of '/x' and not a tmpfs",
        ),
    ],
)
def test_a_dev_that_is_not_the_containers_own_is_refused(
    root: Path, mounts: list[dict[str, Any]], message: str
) -> None:
    (root / "data").mkdir()
    (root / "data/l").symlink_to("/dev")
    spec = {**plain_spec(), "mounts": mounts}

    with pytest.raises(RefusedError, match=message):
        inspect(root, spec)


def test_the_images_own_preloads_are_found(root: Path) -> None:
    (root / "etc/ld.so.preload").write_bytes(b"/usr/lib/libjemalloc.so\r\n")

    assert inspect(root).preload == b"/usr/lib/libjemalloc.so\r\n"


@pytest.mark.parametrize("target", ["/opt/list", "../opt/list", "../../../../opt/list"])
def test_a_link_is_followed_inside_the_root(root: Path, target: str) -> None:
    (root / "opt").mkdir()
    (root / "opt/list").write_bytes(b"/inside.so\n")
    (root / "etc/ld.so.preload").symlink_to(target)

    assert inspect(root).preload == b"/inside.so\n"


def test_no_link_leads_out_of_the_root(root: Path, tmp_path: Path) -> None:
    for target in (str(tmp_path / "secret"), "../../../secret"):
        (root / "etc/ld.so.preload").unlink(missing_ok=True)
        (root / "etc/ld.so.preload").symlink_to(target)

        facts = inspect(root)

        assert facts.preload == b""
        assert "dangling link" in facts.notes[0]


def test_no_magic_link_is_followed(root: Path, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDONLY)
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)

    with pytest.raises(OSError, match="symbolic links"):
        open_in_root(root_fd, f"/proc/self/fd/{secret}", os.O_RDONLY)

    os.close(secret)
    os.close(root_fd)


def test_a_path_is_told_without_links(root: Path) -> None:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)

    assert path_in_root(fd, f"/{LOADER}") == "/usr/lib64/ld-linux-x86-64.so.2"
    assert path_in_root(fd, "/") == "/"
    assert path_in_root(fd, "/absent") is None
    os.close(fd)


def objection(facts: RootfsFacts) -> str:
    assert facts.preload_objection is not None
    return str(facts.preload_objection)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (as_folder, "it is a directory in the image"),
        (as_fifo, "it is not a regular file in the image"),
        (as_huge_file, "cannot look into /etc/ld.so.preload (EFBIG)"),
    ],
)
def test_what_cannot_be_merged_is_an_objection(
    root: Path, make: Callable[[Path], None], message: str
) -> None:
    make(root / "etc/ld.so.preload")

    assert message in objection(inspect(root))


def test_a_link_below_a_mount_is_an_objection(root: Path) -> None:
    (root / "data").mkdir()
    (root / "data/list").write_bytes(b"/x.so\n")
    (root / "etc/ld.so.preload").symlink_to("/data/list")

    facts = inspect(root, plain_spec(mounts=[bind("/srv", "/data")]))

    assert "it is a link to '/data/list', which a mount covers" in objection(facts)


def over_a_link(root: Path) -> None:
    (root / "etc").rmdir()
    (root / "etc").symlink_to("data/etc")


@pytest.mark.parametrize("options", [(), ("ro",)])
@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("/etc", None),
        ("/etc/../etc/", None),
        ("/conf", None),
        ("/", None),
        ("/data", over_a_link),
        ("/data/etc", over_a_link),
    ],
)
def test_a_volume_over_etc_is_an_objection_since_others_may_take_our_file_away(
    root: Path,
    tmp_path: Path,
    place: str,
    change: Callable[[Path], None] | None,
    options: tuple[str, ...],
) -> None:
    volume = tmp_path / "v"
    for folder in ("dev", "etc"):
        (volume / folder).mkdir(parents=True)
    (volume / "etc/ld.so.preload").write_bytes(b"/theirs.so\n")
    (root / "conf").symlink_to("etc")
    if change is not None:
        change(root)
    spec = plain_spec(mounts=[bind(str(volume), place, *options)])
    spec["mounts"].sort(key=lambda mount: mount["destination"])

    facts = inspect(root, spec)

    assert "who shares it could take /etc/ld.so.preload away" in objection(facts)
    assert "mount single files below /etc" in objection(facts)


def test_a_mount_of_the_file_in_a_volume_over_etc_is_an_objection_too(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "v").mkdir()
    binds = [bind(str(tmp_path / "v"), "/etc"), bind("/dev/null", "/etc/ld.so.preload")]

    facts = inspect(root, plain_spec(mounts=binds))

    assert "could take /etc/ld.so.preload away" in objection(facts)


def test_single_files_below_etc_may_be_mounted(root: Path, tmp_path: Path) -> None:
    spec = plain_spec(mounts=[bind(str(tmp_path / "secret"), "/etc/hosts")])

    assert inspect(root, spec).preload_objection is None


def test_a_tmpfs_over_etc_hides_the_images_file(root: Path) -> None:
    (root / "etc/ld.so.preload").write_bytes(b"/theirs.so\n")
    tmpfs = {"destination": "/etc", "type": "tmpfs", "source": "tmpfs"}

    hidden = inspect(root, plain_spec(mounts=[tmpfs]))
    copied = inspect(root, plain_spec(mounts=[{**tmpfs, "options": ["tmpcopyup"]}]))

    assert (hidden.preload, copied.preload) == (b"", b"/theirs.so\n")


def test_an_unknown_mount_over_etc_is_an_objection(root: Path) -> None:
    overlay = {"destination": "/etc", "type": "overlay", "source": "overlay"}

    facts = inspect(root, plain_spec(mounts=[overlay]))

    assert "a mount of type overlay covers /etc" in objection(facts)


def test_the_users_own_mount_of_the_file_is_merged(root: Path, tmp_path: Path) -> None:
    spec = plain_spec(mounts=[bind(str(tmp_path / "secret"), "/etc/ld.so.preload")])

    facts = inspect(root, spec)

    assert (facts.preload, facts.preload_objection) == (SECRET, None)


@pytest.fixture
def read_only_root(root: Path, needs_root: None) -> Iterator[Path]:
    """Return `root` on a file system that takes no new file."""
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    yield root
    subprocess.run(["umount", root], check=True)


def test_a_root_on_a_read_only_file_system_is_an_objection(read_only_root: Path) -> None:
    facts = inspect(read_only_root)

    assert facts.read_only_filesystem
    assert "lies on a read-only file system without that file" in objection(facts)


def test_a_read_only_flag_in_the_spec_is_fine(root: Path) -> None:
    spec = plain_spec()
    spec["root"]["readonly"] = True

    assert inspect(root, spec).preload_objection is None


LINES = st.lists(st.text("/ab. ", min_size=1, max_size=6).filter(str.strip), max_size=4)


@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n", ""]))
def test_ours_comes_first_and_theirs_follow_without_carriage_returns(
    lines: list[str], ending: str
) -> None:
    own = "\r\n".join(lines) + ending

    merged = merge_preload(LIBRARY, own.encode())

    assert merged.decode().splitlines() == [LIBRARY, *lines]
    assert merged.endswith(b"\n")
