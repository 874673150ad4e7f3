# SPDX-License-Identifier: Apache-2.0
"""Who needs the launcher and which library, from a made-up /proc."""

import os
from pathlib import Path

import pytest

from runtime_shim.dependants import (
    Dependant,
    dependants,
    engine_containers,
    mounted_libraries,
    remove_unused_copies,
    remove_unused_versions,
)

LAUNCHER = "vgpu-container-runtime"
LIMITS = "36 25 0:27 /vgpu/containers/{id}/limits /dev/vgpu/limits ro,nosuid - tmpfs tmpfs rw\n"
LIBRARY = "37 25 8:1 /usr/lib/vgpu/{version}/libvgpu.so{gone} /dev/vgpu/libvgpu.so ro - ext4 x rw\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def process(
    proc: Path,
    pid: int,
    *,
    comm: str = "sleep",
    mounts: str = "",
    words: str = "",
    cwd: Path,
    namespace: str = "",
) -> None:
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/mnt").symlink_to(f"mnt:[{pid}]")
    (folder / "ns/pid").symlink_to(namespace or os.readlink("/proc/self/ns/pid"))
    (folder / "comm").write_text(comm + "\n")
    (folder / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/root rw\n" + mounts)
    (folder / "cmdline").write_text(words.replace(" ", "\0") + "\0")
    (folder / "cwd").symlink_to(cwd)


def slice_mounts(allocation_id: str, version: str, gone: str = "") -> str:
    return LIMITS.format(id=allocation_id) + LIBRARY.format(version=version, gone=gone)


def test_mounts_say_which_version_a_container_has(proc: Path, tmp_path: Path) -> None:
    process(proc, 10, mounts=slice_mounts("a1", "0.1.0"), cwd=tmp_path)
    process(proc, 11, mounts=slice_mounts("a2", "0.2.0", "//deleted"), cwd=tmp_path)
    process(proc, 12, mounts=LIMITS.format(id="a3"), cwd=tmp_path)
    process(proc, 13, cwd=tmp_path)
    process(proc, 15, mounts=slice_mounts("a\xe9\\040b", "0.1.0"), cwd=tmp_path)
    (proc / "14").mkdir()  # ends while it is looked at

    assert mounted_libraries(proc) == {"a1": "0.1.0", "a2": "0.2.0", "a3": ""}


def test_shims_tell_which_of_their_containers_came_through_the_launcher(
    proc: Path, tmp_path: Path
) -> None:
    tasks = tmp_path / "tasks"
    for name, file, text in (
        ("sandbox", "runtime", "/usr/bin/runc"),
        ("ours", "runtime", f"/usr/bin/{LAUNCHER}"),
        ("docker", "options.json", f'{{"binary_name":"/usr/bin/{LAUNCHER}","root":"/run"}}'),
    ):
        (tasks / name).mkdir(parents=True)
        (tasks / name / file).write_text(text)
    process(proc, 10, comm="containerd-shim", cwd=tasks / "sandbox")
    process(proc, 11, comm="sleep", cwd=tmp_path)

    assert engine_containers(LAUNCHER, proc) == {"ours", "docker"}


def test_conmon_names_its_container_and_its_runtime(proc: Path, tmp_path: Path) -> None:
    ours = f"/usr/bin/conmon --api-version 1 -c abc123 -u abc123 -r /usr/bin/{LAUNCHER} -b /x"
    ours += " --exit-command /usr/bin/podman --exit-command-arg --runtime --exit-command-arg vgpu"
    other = "/usr/bin/conmon --api-version 1 -c def456 -u def456 -r /usr/bin/crun -b /x"
    long = f"/usr/bin/conmon --cid fed789 --runtime /usr/bin/{LAUNCHER}"
    for pid, words in ((10, ours), (11, other), (12, long)):
        process(proc, pid, comm="conmon", words=words, cwd=tmp_path)

    assert engine_containers(LAUNCHER, proc) == {"abc123", "fed789"}


def test_a_name_that_is_no_text_stops_nobody(proc: Path, tmp_path: Path) -> None:
    process(proc, 10, cwd=tmp_path)
    (proc / "10/comm").write_bytes(b"\xff\xfe\n")

    assert engine_containers(LAUNCHER, proc) == set()


def test_a_tenant_that_calls_itself_conmon_is_none(proc: Path, tmp_path: Path) -> None:
    words = f"conmon -c x -r {LAUNCHER}"
    process(proc, 10, comm="conmon", words=words, cwd=tmp_path, namespace="pid:[1]")

    assert engine_containers(LAUNCHER, proc) == set()


def test_a_container_without_a_slice_counts_too(proc: Path, tmp_path: Path) -> None:
    process(proc, 10, mounts=slice_mounts("a1", "0.1.0"), cwd=tmp_path)
    words = f"conmon -c plain -r /usr/bin/{LAUNCHER}"
    process(proc, 11, comm="conmon", words=words, cwd=tmp_path)

    assert dependants(LAUNCHER, [], proc) == [
        Dependant(container_id="a1", allocation_id="a1", library_version="0.1.0"),
        Dependant(container_id="plain"),
    ]


def versions(folder: Path, *names: str, current: str) -> Path:
    for name in (*names, "packaged", "python"):
        (folder / name).mkdir(parents=True)
        (folder / name / "libvgpu.so").write_bytes(b"\x7fELF")
    (folder / "current").symlink_to(current)
    return folder / "current" / "libvgpu.so"


def test_versions_that_nobody_has_mounted_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = versions(tmp_path, "0.1.0", "0.1.1", "0.2.0", "0.3.0", current="0.2.0")
    (tmp_path / "3rd-party").mkdir()
    monkeypatch.setattr("runtime_shim.dependants.mounted_libraries", lambda: {"a1": "0.1.0"})

    removed = remove_unused_versions(library)

    assert removed == ["0.1.1", "0.3.0"]
    left = ["0.1.0", "0.2.0", "3rd-party", "current", "packaged", "python"]
    assert sorted(os.listdir(tmp_path)) == left
    assert library.is_file()


def test_copies_that_nobody_has_mounted_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["state/aa/0.1.0", "state/bb/0.2.0", "state/cc/0.3.0", "state/dd/0.1.1"]
    names += ["state/dd/0.3.0", "beside/aa/0.1.0", "beside/bb/0.2.0"]
    folders = [tmp_path / "state", tmp_path / "beside"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "libvgpu.so").touch()
    monkeypatch.setattr("runtime_shim.dependants.mounted_libraries", lambda: {"a1": "0.1.0"})

    removed = remove_unused_copies(folders, tmp_path / "state/cc/0.3.0/libvgpu.so")

    assert removed == ["0.1.1", "0.2.0"]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*/*")}
    assert left == {"state/aa/0.1.0", "state/cc/0.3.0", "state/dd/0.3.0", "beside/aa/0.1.0"}
    assert not (tmp_path / "state/bb").exists()


def test_without_the_link_nothing_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "0.1.0"
    folder.mkdir()
    (folder / "libvgpu.so").write_bytes(b"\x7fELF")
    (tmp_path / "0.0.9").mkdir()
    (tmp_path / "0.0.9/libvgpu.so").write_bytes(b"\x7fELF")

    assert remove_unused_versions(folder / "libvgpu.so") == []
    assert (tmp_path / "0.0.9/libvgpu.so").exists()
