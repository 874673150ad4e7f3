# SPDX-License-Identifier: Apache-2.0
"""Which mounts and namespaces lead out of a container."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.config import Config, Paths
from runtime_shim.create import own_paths
from runtime_shim.doors import Doors, check_hooks, check_namespaces, check_own_files, leads_out
from runtime_shim.errors import RefusedError
from runtime_shim.mount_table import HostMount
from runtime_shim.spec import Spec, SpecError
from runtime_shim.view import View, view_of
from tests.runtime_shim.elsewhere import process, view_with
from tests.runtime_shim.specs import bind, plain_spec


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a host with the agent's files below run, state and lib, and a user's below home."""
    for folder in ("run/vgpu/containers", "state/agent", "lib/vgpu/1.0", "home/user", "bundle"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run/vgpu/agent.sock").touch()
    (tmp_path / "lib/vgpu/current").symlink_to("1.0")
    return tmp_path


def check(host: Path, *sources: str, absolute: bool = True) -> None:
    names = [f"{host}/{name}" if absolute else name for name in sources]
    check_spec(host, plain_spec(mounts=[bind(name, "/x") for name in names]))


def check_mount(host: Path, kind: str | None, source: str, *options: str) -> None:
    """Look at a mount that is no bind; `{host}` in its words is the host's folder."""
    words = [option.format(host=host) for option in options]
    mount = {"destination": "/x", "type": kind, "source": source, "options": words}
    check_spec(host, plain_spec(mounts=[mount]))


def check_spec(host: Path, spec: Spec, view: View | None = None, *, bundle: str = "bundle") -> None:
    own = ("run/vgpu", "run/vgpu/containers", "state/agent", "lib/vgpu/current", "run/cache.sock")
    look(Doors([host / path for path in own]), spec, host / bundle, view)


def look(doors: Doors, spec: Spec, bundle: Path = Path("/"), view: View | None = None) -> None:
    fd = os.open(bundle, os.O_PATH | os.O_DIRECTORY)
    try:
        doors.check(spec, fd, view)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "source",
    [
        "run/vgpu",
        "run/vgpu/",
        "run/vgpu/agent.sock",
        "run/vgpu/containers/1/limits",
        "run",
        "state/agent/answers",
        "state",
        "lib/vgpu/1.0/libvgpu.so",
        "lib/vgpu",
        "run/cache.sock",
        "home/../run",
        "",
    ],
)
def test_a_bind_that_leads_to_the_agents_files_is_refused(host: Path, source: str) -> None:
    with pytest.raises(RefusedError, match=r"it mounts '.*' at '/x', which leads to the files"):
        check(host, source)


def test_so_is_a_library_of_an_earlier_version_that_containers_still_have(host: Path) -> None:
    (host / "lib/vgpu/0.9").mkdir()
    paths = Paths(
        run_dir=host / "run/vgpu",
        state_dir=host / "state/agent",
        library=host / "lib/vgpu/current/libvgpu.so",
        socket=host / "run/vgpu/agent.sock",
    )
    doors = Doors(own_paths(Config(paths=paths)))
    fd = os.open(host / "bundle", os.O_PATH | os.O_DIRECTORY)
    try:
        for source in ("lib/vgpu/0.9", "lib/vgpu/1.0", "lib/vgpu/current"):
            with pytest.raises(RefusedError, match="leads to the files"):
                doors.check(plain_spec(mounts=[bind(f"{host}/{source}", "/x")]), fd)
    finally:
        os.close(fd)


def test_so_are_the_configuration_and_the_programs_that_go_by_it(host: Path) -> None:
    (host / "bin").mkdir()
    for program in ("bin/vgpu-container-runtime", "bin/vgpu-container-runtime.conf", "bin/other"):
        (host / program).touch()
    (host / "share/vgpu-runtime/runtime_shim").mkdir(parents=True)
    (host / "share/zoneinfo").mkdir()
    paths = Paths(
        run_dir=host / "run/vgpu",
        state_dir=host / "state/agent",
        library=host / "lib/vgpu/current/libvgpu.so",
        socket=host / "run/vgpu/agent.sock",
    )
    doors = Doors(own_paths(Config(paths=paths)))

    def mount(source: str) -> None:
        look(doors, plain_spec(mounts=[bind(source, "/x")]))

    for source in (
        "/etc/vgpu",
        "/etc/vgpu/runtime.conf",
        "/etc",
        f"{host}/bin",
        f"{host}/bin/vgpu-container-runtime",
        f"{host}/bin/vgpu-container-runtime.conf",
        f"{host}/share",
        f"{host}/share/vgpu-runtime/runtime_shim",
    ):
        with pytest.raises(RefusedError, match="leads to the files"):
            mount(source)
    for source in ("/etc/hostname", f"{host}/bin/other", f"{host}/share/zoneinfo"):
        mount(source)


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        (None, "/var/lib/vgpu/cache"),
        ('state_dir = "{host}/home/cache"', "{host}/home/cache"),
        ('state_dir = "{host}/home/cache', "/var/lib/vgpu/cache"),
        ("state_dir = 7", "/var/lib/vgpu/cache"),
    ],
)
def test_so_is_the_cache_s_state_where_its_own_file_has_it(
    host: Path, text: str | None, guarded: str
) -> None:
    """And not what lies beside the agent's, which may have been moved by itself."""
    file = host / "scheduler-cache.toml"
    if text is not None:
        file.write_text(text.format(host=host))
    doors = Doors(own_paths(Config(paths=Paths(state_dir=host / "state/agent")), file))

    with pytest.raises(RefusedError, match="leads to the files"):
        look(doors, plain_spec(mounts=[bind(guarded.format(host=host) + "/state.db", "/x")]))
    look(doors, plain_spec(mounts=[bind(f"{host}/state/cache", "/x")]))


def test_so_is_the_launchers_own_file_that_is_made_for_the_mount(host: Path) -> None:
    (host / "bin").mkdir()
    (host / "bin/vgpu-container-runtime").touch()
    doors = Doors(own_paths(Config(paths=Paths(library=host / "lib/vgpu/current/libvgpu.so"))))
    conf = host / "bin/vgpu-container-runtime.conf"
    conf.touch()  # Kubernetes: a hostPath of type FileOrCreate

    with pytest.raises(RefusedError, match="leads to the files"):
        look(doors, plain_spec(mounts=[bind(str(conf), "/x")]))


def test_so_is_the_whole_host(host: Path) -> None:
    with pytest.raises(RefusedError, match=r"it mounts '/' at '/x', which leads to the files"):
        check(host, "/", absolute=False)


def test_so_is_one_that_gets_there_by_a_link_or_from_the_bundle(host: Path) -> None:
    (host / "home/user/link").symlink_to("../../run")

    for source in ("home/user/link", "home/user/link/vgpu"):
        with pytest.raises(RefusedError, match="leads to the files"):
            check(host, source)
    with pytest.raises(RefusedError, match="leads to the files"):
        check(host, "../run", absolute=False)


@pytest.fixture(params=["run", "run/vgpu", "run/vgpu/containers"])
def volume(host: Path, needs_root: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of another mount of an own folder, as a volume of Docker's makes one."""
    (host / "home/volume").mkdir()
    subprocess.run(["mount", "--bind", host / request.param, host / "home/volume"], check=True)
    yield "home/volume"
    subprocess.run(["umount", host / "home/volume"], check=True)


def test_so_is_another_mount_of_the_same_folder(host: Path, volume: str) -> None:
    with pytest.raises(RefusedError, match="leads to the files"):
        check(host, volume)


def test_other_folders_may_be_mounted(host: Path) -> None:
    check(host, "home", "home/user", "absent", "runx", "lib/vgpu-other", "state/other")


def test_the_hosts_dev_and_its_cards_are_seen_behind_links(host: Path) -> None:
    (host / "home/dev").symlink_to("/dev")

    with pytest.raises(RefusedError, match="is the host's /dev"):
        check(host, "home/dev")


def test_a_folder_of_the_agent_that_comes_later_counts_from_then_on(host: Path) -> None:
    doors = Doors([host / "later"])
    spec = plain_spec(mounts=[bind(f"{host}/link", "/x")])
    (host / "link").symlink_to("elsewhere")
    look(doors, spec)
    (host / "elsewhere").mkdir()
    (host / "later").symlink_to("elsewhere")

    with pytest.raises(RefusedError, match="leads to the files"):
        look(doors, spec)


@pytest.mark.parametrize(
    "options",
    [
        ["lowerdir={host}/run/vgpu,upperdir={host}/up,workdir={host}/work,private"],
        ["lowerdir={host}/run/vgpu", "upperdir={host}/up", "workdir={host}/work"],
        ["lowerdir={host}/home:{host}/run"],
        ["lowerdir={host}/home::{host}/run/vgpu/containers"],
        ["lowerdir+={host}/home", "lowerdir+={host}/state"],
        ["lowerdir={host}/home", "datadir+={host}/state/agent/x"],
        ["lowerdir={host}/home", "upperdir={host}/run/vgpu", "workdir={host}/work"],
        ["lowerdir={host}/home", "upperdir={host}/up", "workdir={host}/state/agent"],
        ["lowerdir={host}/home/link"],
        ["lowerdir={host}/home/../run"],
        ["lowerdir={host}/home/a\\:b"],
        ["ro", "lowerdir={host}/home/a\\,b"],
        ["lowerdir=/"],
    ],
    ids=lambda options: ",".join(options),
)
def test_so_is_an_overlay_with_a_folder_that_leads_there(host: Path, options: list[str]) -> None:
    """Podman `-v /run/vgpu:/x:O` makes one."""
    (host / "home/link").symlink_to("../run/vgpu")
    for odd in ("a:b", "a,b"):
        (host / "home" / odd).symlink_to("../run")

    with pytest.raises(RefusedError, match=r"overlay of '.*' at '/x', which leads to the files"):
        check_mount(host, "overlay", "overlay", *options)


def test_so_is_an_overlay_of_the_hosts_dev(host: Path) -> None:
    with pytest.raises(RefusedError, match="overlay of '/dev' at '/x', which is the host's /dev"):
        check_mount(host, "overlay", "overlay", "lowerdir={host}/home:/dev")


def test_an_overlay_of_relative_folders_is_refused(host: Path) -> None:
    with pytest.raises(RefusedError, match="'run' at '/x', which is another folder to each"):
        check_mount(host, "overlay", "overlay", "lowerdir=run")


def test_other_overlays_may_be_mounted(host: Path) -> None:
    options = "lowerdir={host}/home:{host}/absent,upperdir={host}/up,workdir={host}/work"
    check_mount(host, "overlay", "overlay", options)


def test_a_devtmpfs_is_the_hosts_dev(host: Path) -> None:
    with pytest.raises(RefusedError, match="is the host's /dev"):
        check_mount(host, "devtmpfs", "devtmpfs", "nosuid")


@pytest.mark.parametrize(
    "kind",
    ["ext4", "xfs", "btrfs", "nfs4", "9p", "virtiofs", "fuse.fuse-overlayfs", "Overlay", None],
)
def test_a_file_system_that_may_be_the_hosts_is_refused(host: Path, kind: str | None) -> None:
    with pytest.raises(
        RefusedError, match=r"type '.*', so that nobody can tell .* bind the folder"
    ):
        check_mount(host, kind, "/dev/vda1", "ro")


def test_what_engines_mount_themselves_is_fine(host: Path) -> None:
    for kind in ("proc", "tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2", "hugetlbfs"):
        check_mount(host, kind, kind, "nosuid", "tmpcopyup")


@pytest.mark.parametrize("options", [["rbind"], ["ro", "bind"]])
@pytest.mark.parametrize("kind", ["none", "overlay", "tmpfs", None])
def test_an_option_makes_a_bind_of_any_type(
    host: Path, kind: str | None, options: list[str]
) -> None:
    with pytest.raises(RefusedError, match="leads to the files"):
        check_mount(host, kind, f"{host}/run/vgpu", *options, "idmap", "lowerdir={host}/home")


@pytest.mark.parametrize("root", ["/", "{host}", "{host}/run/vgpu", "{host}/link", "../run"])
def test_a_root_that_leads_there_is_refused(host: Path, root: str) -> None:
    (host / "link").symlink_to("state")
    spec = plain_spec()
    spec["root"]["path"] = root.format(host=host)

    with pytest.raises(RefusedError, match="its root is '.*', which leads to the files"):
        check_spec(host, spec)


def test_a_source_is_followed_as_the_kernel_does(host: Path) -> None:
    """By its text alone, `link/..` would be the folder of the link."""
    (host / "state/other").mkdir()
    (host / "home/link").symlink_to("../state/other")

    with pytest.raises(RefusedError, match="leads to the files"):
        check(host, "home/link/../agent")


@pytest.mark.parametrize(
    "source", ["/proc/self/root/run", "/proc/{pid}/root", "/proc/{pid}/cwd/x", "/proc/self/fd/0"]
)
def test_a_link_that_each_process_reads_otherwise_is_refused(host: Path, source: str) -> None:
    with pytest.raises(RefusedError, match="leads through a link of /proc"):
        check(host, source.format(pid=os.getpid()), absolute=False)


def test_a_source_that_cannot_be_looked_at_is_refused(host: Path) -> None:
    with pytest.raises(RefusedError, match=r"cannot be looked at \(ENAMETOOLONG\)"):
        check(host, "x" * 300)


@pytest.fixture
def mounted(host: Path, needs_root: None) -> Iterator[Callable[..., None]]:
    """Return a function that mounts something at home/volume, as a volume driver does."""
    place = host / "home/volume"
    place.mkdir()

    def mount(*words: str | Path) -> None:
        subprocess.run(["mount", *words, place], check=True)

    yield mount
    subprocess.run(["umount", "--recursive", place], check=True)


@pytest.mark.parametrize("source", ["home/volume", "home/volume/vgpu/containers", "home"])
def test_so_is_a_volume_that_is_an_overlay(
    host: Path, mounted: Callable[..., None], source: str
) -> None:
    """Docker volume create --opt type=overlay --opt o=lowerdir=/run,…"""
    mounted("-t", "overlay", "overlay", "-o", f"lowerdir={host}/run:{host}/bundle")

    with pytest.raises(RefusedError, match="leads to the files"):
        check(host, source)


def test_a_part_of_an_overlay_that_does_not_lead_there_is_fine(
    host: Path, mounted: Callable[..., None]
) -> None:
    (host / "run/other").mkdir()
    mounted("-t", "overlay", "overlay", "-o", f"lowerdir={host}/run:{host}/bundle")

    check(host, "home/volume/other")


@pytest.mark.parametrize("source", ["home/volume", "home"])
def test_the_hosts_processes_are_not_shown(
    host: Path, mounted: Callable[..., None], source: str
) -> None:
    """Below /proc/PID/root lie the limits of others, also where it is mounted read-only."""
    mounted("-t", "proc", "proc")

    with pytest.raises(RefusedError, match="shows the host's processes and settings"):
        check(host, source)
    with pytest.raises(RefusedError, match="shows the host's processes and settings"):
        check_mount(host, "none", f"{host}/home/volume", "rbind", "ro")


def test_what_drivers_tell_in_proc_may_be_shown(host: Path, mounted: Callable[..., None]) -> None:
    mounted("-t", "proc", "proc")

    check(host, "home/volume/driver")
    with pytest.raises(RefusedError, match="shows the host's processes and settings"):
        check(host, "home/volume/sys")


def test_the_hosts_cgroups_are_not_shown(host: Path, mounted: Callable[..., None]) -> None:
    """Who is in another cgroup has its device rules: none at the top."""
    mounted("-t", "cgroup2", "cgroup2")

    for source in ("home/volume", "home"):
        with pytest.raises(RefusedError, match="shows the host's cgroups"):
            check(host, source)
    check_mount(host, "none", f"{host}/home/volume", "rbind", "ro")
    with pytest.raises(RefusedError, match="shows the host's cgroups"):  # it stays writable there
        check_mount(host, "none", f"{host}/home", "rbind", "ro")


def test_of_cgroups_v1_one_hierarchy_has_device_rules(host: Path) -> None:
    def line(options: str) -> HostMount:
        return HostMount(device="0:30", root="/", place="/c", type="cgroup", options=options)

    assert leads_out(line("rw,devices"))
    assert not leads_out(line("rw,xattr,name=systemd"))
    assert not leads_out(line("rw,memory"))


@pytest.mark.parametrize(
    "source", ["home/volume/run/vgpu/containers/1", "home/volume/state", "home", "home/volume"]
)
def test_so_is_any_part_of_another_mount_of_the_disk(
    host: Path, mounted: Callable[..., None], source: str
) -> None:
    """Docker volume create --opt type=ext4 --opt device=/dev/vda1, then one of its folders."""
    (host / "run/vgpu/containers/1").mkdir()
    mounted("--bind", host)

    with pytest.raises(RefusedError, match="leads to the files"):
        check(host, source)
    check(host, "home/volume/home/user")


@pytest.mark.parametrize(
    ("begin", "folders", "message"),
    [
        ("run", "vgpu:../bundle", r"shows the overlay at '.*/volume', whose folders"),
        (".", "home/user:bundle", r"shows the overlay at '.*/volume', whose folders"),
        (".", "run/vgpu:bundle", "leads to the files"),
    ],
)
def test_so_is_an_overlay_of_relative_folders(
    host: Path, volume_folder: Path, begin: str, folders: str, message: str
) -> None:
    """Podman volume create --opt type=overlay --opt o=lowerdir=vgpu:…, from /run."""
    words = ["-t", "overlay", "overlay", "-o", f"lowerdir={folders}", str(volume_folder)]
    subprocess.run(["mount", *words], check=True, cwd=host / begin)
    try:
        for source in ("home/volume", "home"):
            with pytest.raises(RefusedError, match=message):
                check(host, source)
    finally:
        subprocess.run(["umount", volume_folder], check=True)


@pytest.mark.parametrize(
    ("folders", "refused"), [("run/vgpu:bundle", True), ("home/user:bundle", False)]
)
def test_a_root_of_relative_folders_is_an_engines_and_looked_at(
    host: Path, needs_root: None, folders: str, refused: bool
) -> None:
    """Engines name the layers of a root so where their names would be too long."""
    (host / "images/one").mkdir(parents=True)
    words = ["-t", "overlay", "overlay", "-o", f"lowerdir={folders}", "images/one"]
    subprocess.run(["mount", *words], check=True, cwd=host)
    spec = plain_spec()
    spec["root"]["path"] = str(host / "images/one")
    try:
        if refused:
            with pytest.raises(RefusedError, match="its root is '.*', which leads to the files"):
                check_spec(host, spec)
        else:
            check_spec(host, spec)
    finally:
        subprocess.run(["umount", host / "images/one"], check=True)


def test_so_is_an_overlay_of_another_mount_of_the_folder(
    host: Path, mounted: Callable[..., None]
) -> None:
    """Of a layer, too, names alone do not tell."""
    (host / "home/disk").mkdir()
    (host / "run/vgpu/containers/1").mkdir()
    subprocess.run(["mount", "--bind", host, host / "home/disk"], check=True)
    try:
        layer = host / "home/disk/run/vgpu/containers/1"
        mounted("-t", "overlay", "overlay", "-o", f"lowerdir={layer}:{host}/bundle")
        with pytest.raises(RefusedError, match="leads to the files"):
            check(host, "home/volume")
    finally:
        subprocess.run(["umount", host / "home/disk"], check=True)


def check_elsewhere(host: Path, source: str, view: View | None = None) -> None:
    check_spec(host, plain_spec(mounts=[bind(f"{host}/{source}", "/x")]), view)


@pytest.fixture
def volume_folder(host: Path, needs_root: None) -> Path:
    """Return a folder with nothing in it, over which a process may mount something."""
    (host / "home/volume").mkdir()
    return host / "home/volume"


@pytest.mark.parametrize(
    "command",
    [
        "mount --bind {host}/run {host}/home/volume",
        "mount --bind {host}/run/vgpu/containers {host}/home/volume",
        "mount --bind {host} {host}/home/volume",
        "mount -t overlay o -o lowerdir={host}/run:{host}/bundle {host}/home/volume",
        "mount --bind {host}/run {host}/home/user && rmdir {host}/home/volume"
        " && ln -s user {host}/home/volume",
        "mount --bind {host}/run {host}/home/user && mount -t overlay o"
        " -o lowerdir={host}/home/user:{host}/bundle {host}/home/volume",
    ],
)
def test_what_the_runtime_sees_counts_where_it_has_mounts_of_its_own(
    host: Path, volume_folder: Path, command: str
) -> None:
    """Buildah binds each volume of a build in a mount namespace of its own."""
    check_elsewhere(host, "home/volume")  # nothing is there for the agent

    with view_with(command.format(host=host)) as view:
        assert view.foreign
        for source in ("home/volume", "home"):
            with pytest.raises(RefusedError, match="leads to the files"):
                check_elsewhere(host, source, view)
        check_elsewhere(host, "bundle", view)


def test_a_relative_source_is_one_of_the_runtime_s_too(host: Path, volume_folder: Path) -> None:
    spec = plain_spec(mounts=[bind("../home/volume", "/x")])

    with view_with(f"mount --bind {host}/run {volume_folder}") as view:
        with pytest.raises(RefusedError, match="leads to the files"):
            check_spec(host, spec, view)
        check_spec(host, plain_spec(mounts=[bind("../home/user", "/x")]), view)


def test_a_bundle_that_the_runtime_does_not_see_is_refused(host: Path, needs_root: None) -> None:
    (host / "bundle/data").mkdir()

    with (
        view_with(f"mount -t tmpfs none {host}/bundle") as view,
        pytest.raises(RefusedError, match="its bundle is at '.*', where the runtime does not find"),
    ):
        check_spec(host, plain_spec(mounts=[bind("data", "/x")]), view)


@pytest.mark.parametrize("own_mounts", [True, False])
def test_a_runtime_in_a_chroot_is_followed_there(
    host: Path, volume_folder: Path, own_mounts: bool
) -> None:
    """`/volume` is a folder of its own root; `/link` is a link in it."""
    (host / "home/link").symlink_to("/volume/vgpu")
    bind_root = f"mount --bind {host}/home {host}/home"
    bind_run = f"mount --bind {host}/run {volume_folder}"
    spec, fine = (plain_spec(mounts=[bind(path, "/x")]) for path in ("/link", "/user"))

    try:
        with view_with(bind_root, bind_run, root=host / "home", own_mounts=own_mounts) as view:
            assert view.foreign
            with pytest.raises(RefusedError, match="leads to the files"):
                check_spec(host, spec, view, bundle="home/user")
            check_spec(host, fine, view, bundle="home/user")
    finally:
        if not own_mounts:
            subprocess.run(["umount", "--recursive", host / "home"], check=True)


def test_mounts_that_have_no_name_for_the_runtime_are_refused(host: Path, needs_root: None) -> None:
    """The kernel does not say what is mounted above a root that is no mount itself."""
    with (
        view_with(root=host / "home") as view,
        pytest.raises(RefusedError, match="is on a mount that its runtime cannot name"),
    ):
        check_spec(host, plain_spec(mounts=[bind("/user", "/x")]), view, bundle="home/user")


def test_the_view_of_a_runtime_that_has_ended_is_refused(needs_root: None) -> None:
    with process(own_mounts=False) as running:
        pidfd = os.pidfd_open(running.pid)
    try:
        with pytest.raises(RefusedError, match="cannot see the host as its engine"), view_of(pidfd):
            pass
    finally:
        os.close(pidfd)


def test_a_runtime_beside_the_agent_sees_what_the_agent_sees() -> None:
    with view_with(own_mounts=False) as view:
        assert not view.foreign


def test_files_of_ours_that_the_runtime_finds_elsewhere_are_refused(
    host: Path, needs_root: None
) -> None:
    ours = (host / "run/vgpu/containers", host / "lib/vgpu/1.0")

    with view_with(f"mount -t tmpfs none {host}/bundle") as view:
        check_own_files(ours, view)
    for command in (f"mount -t tmpfs none {ours[0]}", f"mount --bind {host}/home {host}/lib"):
        with (
            view_with(command) as view,
            pytest.raises(RefusedError, match="its runtime does not see the node agent's"),
        ):
            check_own_files(ours, view)


def test_a_hook_is_the_file_that_the_runtime_runs(host: Path, needs_root: None) -> None:
    (host / "home/hook").write_text("#!/bin/sh\n")
    (host / "home/evil").write_text("#!/bin/sh\nnvidia-ctk hook\n")
    spec = plain_spec()
    spec["hooks"] = {"prestart": [{"path": f"{host}/home/hook"}]}
    check_hooks(spec)

    with (
        view_with(f"mount --bind {host}/home/evil {host}/home/hook") as view,
        pytest.raises(RefusedError, match="which names nvidia-ctk"),
    ):
        check_hooks(spec, view)


def namespaces(*given: dict[str, Any]) -> dict[str, Any]:
    spec = plain_spec()
    spec["linux"]["namespaces"] = list(given)
    return spec


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"type": "pid"}], "no mount namespace of its own"),
        ([{"type": "mount", "path": "/proc/1/ns/mnt"}], "no mount namespace of its own"),
        (
            [{"type": "mount"}, {"type": "pid", "path": "/proc/self/ns/pid"}],
            "joins the PID namespace '/proc/self/ns/pid', which is the host's",
        ),
        ([{"type": "mount"}, {"type": "pid", "path": "/absent"}], "or cannot be looked at"),
        ([{"type": "mount"}, {"type": "pid", "path": "/\0"}], "or cannot be looked at"),
    ],
)
def test_a_foreign_namespace_is_refused(given: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        check_namespaces(namespaces(*given))


@pytest.mark.parametrize("path", ["", None, "/proc/self/ns/uts"])
def test_own_namespaces_and_those_of_other_containers_are_fine(path: str | None) -> None:
    check_namespaces(namespaces({"type": "pid", "path": path}, {"type": "mount", "path": ""}))


def test_a_namespace_is_the_one_that_the_runtime_joins(host: Path, needs_root: None) -> None:
    place = host / "home/pid"
    place.touch()
    by_name, by_number = (
        namespaces({"type": "pid", "path": path}, {"type": "mount"})
        for path in (str(place), f"/proc/{os.getpid()}/ns/uts")
    )
    check_namespaces(by_name)

    with (
        view_with(f"mount --bind /proc/self/ns/pid {place}") as view,
        pytest.raises(RefusedError, match="joins the PID namespace"),
    ):
        check_namespaces(by_name, view=view)
    with view_with(f"mount -t tmpfs none {host}/home") as view:
        check_namespaces(by_number, view=view)
    with (
        view_with("mount -t tmpfs none /proc", f"mkdir -p /proc/{os.getpid()}/ns") as view,
        pytest.raises(RefusedError, match="joins the PID namespace"),
    ):
        check_namespaces(by_number, view=view)


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="path of a namespace is not a string"):
        check_namespaces(namespaces({"type": "mount"}, {"type": "pid", "path": 7}))
