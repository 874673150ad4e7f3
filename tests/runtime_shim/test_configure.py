# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl configure` on real files; what the engines say of them is in tests/engines."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime_shim.configure.engines import ENGINES
from tests.runtime_shim.engine_host import Host
from tests.runtime_shim.test_configure_editors import CONTAINERD_2, CRIO, DAEMON_JSON
from tests.testbed.node import wait_until


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host without engines; containerd is not asked unless a test wants it."""
    return Host.create(tmp_path)


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no program of an engine be found."""
    monkeypatch.setattr("runtime_shim.configure.engines._PLACES", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))


FILES = {
    "docker": ("docker/daemon.json", DAEMON_JSON),
    "containerd": ("containerd/config.toml", CONTAINERD_2),
    "crio": ("crio/crio.conf.d/99-vgpu.conf", None),
    "podman": ("containers/containers.conf.d/99-vgpu.conf", None),
}
every_engine = pytest.mark.parametrize("engine", sorted(FILES))


def file_of(host: Host, engine: str) -> Path:
    name, text = FILES[engine]
    return host.write(name, text) if text is not None else host.folder / name


@pytest.mark.usefixtures("no_engines")
@every_engine
def test_a_file_comes_back_to_the_byte_and_nothing_is_left(host: Host, engine: str) -> None:
    path = file_of(host, engine)
    before = path.read_bytes() if path.exists() else None

    host.done(engine, "--file", path)
    host.done(engine, "--file", path, "--default")
    assert str(host.launcher) in path.read_text()
    host.done("--undo")

    assert (path.read_bytes() if path.exists() else None) == before
    assert before is not None or not path.parent.exists()
    assert not host.record.exists()
    assert [each for each in host.folder.rglob("*") if each.name.startswith(".")] == []


@pytest.mark.usefixtures("no_engines")
@every_engine
def test_twice_changes_nothing_and_says_so(host: Host, engine: str) -> None:
    path = file_of(host, engine)
    host.done(engine, "--file", path)
    inode = path.stat().st_ino

    output = host.done(engine, "--file", path)

    assert "has the runtime 'vgpu' already" in output
    assert path.stat().st_ino == inode


@pytest.mark.usefixtures("no_engines")
@every_engine
def test_a_dry_run_shows_the_diff_and_writes_nothing(host: Host, engine: str) -> None:
    path = file_of(host, engine)
    tree = sorted(host.folder.rglob("*"))

    output = host.done(engine, "--file", path, "--dry-run")

    assert f"+++ {path}" in output
    assert any(line.startswith("+") and str(host.launcher) in line for line in output.splitlines())
    assert "nothing was changed" in output
    assert sorted(host.folder.rglob("*")) == tree


@pytest.mark.usefixtures("no_engines")
@every_engine
def test_the_last_line_says_how_it_is_applied(host: Host, engine: str) -> None:
    output = host.done(engine, "--file", file_of(host, engine))

    words = {
        "docker": "systemctl reload docker",
        "containerd": "systemctl restart containerd",
        "crio": "systemctl restart crio",
        "podman": "the next podman command",
    }
    assert words[engine] in output.splitlines()[-1]


@pytest.mark.usefixtures("no_engines")
def test_mode_owner_and_link_stay(host: Host) -> None:
    real = host.write("etc/real.json", DAEMON_JSON, 0o640)
    if os.geteuid() == 0:
        os.chown(real, 12, 34)
    owner = real.stat().st_uid, real.stat().st_gid
    link = host.folder / "daemon.json"
    link.symlink_to(real)

    host.done("docker", "--file", link)

    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (real.stat().st_uid, real.stat().st_gid) == owner
    assert "vgpu" in json.loads(real.read_text())["runtimes"]


@pytest.mark.usefixtures("no_engines")
def test_a_new_file_can_be_read_by_everybody(host: Host) -> None:
    path = host.folder / "docker/daemon.json"

    host.done("docker", "--file", path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.usefixtures("no_engines")
def test_an_undo_after_another_hand_takes_out_our_part_alone(host: Host) -> None:
    path = host.write("daemon.json", DAEMON_JSON)
    host.done("docker", "--file", path, "--default")
    edited = json.loads(path.read_text())
    edited["debug"] = True
    path.write_text(json.dumps(edited))

    host.done("docker", "--undo")

    assert json.loads(path.read_text()) == {**json.loads(DAEMON_JSON), "debug": True}


@pytest.mark.usefixtures("no_engines")
def test_an_undo_never_brings_back_a_text_that_lacks_another_hands_edit(host: Host) -> None:
    path = host.write("config.toml", CONTAINERD_2)
    host.done("containerd", "--file", path)
    path.write_text(path.read_text() + '[debug]\n  level = "info"\n')
    host.done("containerd", "--file", path, "--default")

    host.done("--undo")

    want = {**tomllib.loads(CONTAINERD_2), "debug": {"level": "info"}}
    assert tomllib.loads(path.read_text()) == want


@pytest.mark.usefixtures("no_engines")
def test_a_file_of_ours_that_somebody_added_to_is_not_deleted(host: Host) -> None:
    path = file_of(host, "podman")
    host.done("podman", "--file", path)
    path.write_text(path.read_text() + "[containers]\npids_limit = 0\n")

    host.done("podman", "--undo")

    assert tomllib.loads(path.read_text()) == {"containers": {"pids_limit": 0}}


@pytest.mark.usefixtures("no_engines")
def test_the_default_that_was_before_comes_back(host: Host) -> None:
    path = host.write("daemon.json", '{"default-runtime": "nvidia"}')
    host.done("docker", "--file", path, "--default")
    path.write_text(path.read_text().replace("{", '{"debug": true, ', 1))

    host.done("--undo")

    assert json.loads(path.read_text()) == {"debug": True, "default-runtime": "nvidia"}


@pytest.mark.usefixtures("no_engines")
@pytest.mark.parametrize(
    ("engine", "text", "word"),
    [
        ("docker", "{", "is not JSON"),
        ("docker", "{}\0", "is not JSON"),
        ("docker", '{"a": NaN}', "is not JSON: it has NaN"),
        ("docker", '{"a": ' + "[" * 10**5 + "]" * 10**5 + "}", "is nested too deeply"),
        ("containerd", "a = " + "[" * 10**5 + "]" * 10**5, "is nested too deeply"),
        ("containerd", "version = [", "is not TOML"),
        ("containerd", "disabled_plugins = ['cri']", "disables the CRI plugin"),
        ("containerd", "# generated by k3s. DO NOT EDIT. Use config.toml.tmpl\n", "is generated"),
        ("crio", "[[", "is not TOML"),
        ("podman", "engine = 1", "engine, which is not a table"),
    ],
)
def test_what_cannot_be_edited_is_left_alone_with_one_sentence(
    host: Host, engine: str, text: str, word: str
) -> None:
    path = host.write("engine/file", text)

    output = host.refused(engine, "--file", path)

    assert word in output
    assert str(path) in output
    assert len(output.strip().splitlines()) == 1
    assert path.read_text() == text
    assert not host.record.exists()


@pytest.mark.usefixtures("no_engines")
def test_bytes_that_are_no_text_are_left_alone(host: Host) -> None:
    path = host.folder / "daemon.json"
    path.write_bytes(b'{"a": "\xff"}')

    assert "is not UTF-8" in host.refused("docker", "--file", path)
    assert path.read_bytes() == b'{"a": "\xff"}'


@pytest.mark.usefixtures("no_engines")
def test_a_fifo_in_the_files_place_does_not_hang(host: Host) -> None:
    path = host.folder / "daemon.json"
    os.mkfifo(path)

    assert "is not a regular file" in host.refused("docker", "--file", path)


@pytest.mark.usefixtures("no_engines")
def test_without_the_launcher_no_engine_is_pointed_at_it(host: Host) -> None:
    host.launcher.unlink()

    output = host.refused("docker", "--file", host.folder / "daemon.json")

    assert "there is no program at" in output
    assert not (host.folder / "daemon.json").exists()


@pytest.mark.usefixtures("no_engines")
def test_an_undo_needs_neither_launcher_nor_engine(host: Host) -> None:
    path = host.write("daemon.json", DAEMON_JSON)
    host.done("docker", "--file", path)
    host.launcher.unlink()

    host.done("docker", "--undo")

    assert path.read_text() == DAEMON_JSON


@pytest.mark.usefixtures("no_engines")
def test_the_list_says_what_is_configured_and_what_is_left_of_it(host: Host) -> None:
    docker = host.write("daemon.json", "{}")
    podman = file_of(host, "podman")
    assert host.done("--list") == ""
    host.done("docker", "--file", docker, "--default")
    host.done("podman", "--file", podman)

    assert host.done("--list") == f"docker\t{docker}\tdefault\npodman\t{podman}\truntime\n"
    docker.write_text("{}")
    podman.unlink()
    assert host.done("--list") == f"docker\t{docker}\tgone\npodman\t{podman}\tgone\n"
    host.done("--undo")
    assert (docker.read_text(), podman.exists()) == ("{}", False)
    assert host.done("--list") == ""


@pytest.mark.usefixtures("no_engines")
def test_one_file_that_cannot_be_undone_does_not_keep_the_others(host: Host) -> None:
    docker = host.write("daemon.json", "{}")
    podman = file_of(host, "podman")
    host.done("podman", "--file", podman)
    host.done("docker", "--file", docker)
    docker.write_text("broken")

    output = host.refused("--undo")

    assert "is not JSON" in output
    assert not podman.exists()
    assert host.done("--list") == f"docker\t{docker}\tgone\n"


@pytest.mark.usefixtures("no_engines")
def test_a_record_that_cannot_be_understood_is_not_written_over(host: Host) -> None:
    host.record.parent.mkdir()
    host.record.write_text("{}")
    path = host.write("daemon.json", "{}")

    for words in (("docker", "--file", path), ("--undo",), ("--list",)):
        assert "cannot be understood" in host.refused(*words)
    assert (host.record.read_text(), path.read_text()) == ("{}", "{}")


@pytest.mark.usefixtures("no_engines")
def test_what_a_failed_write_leaves(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host.write("daemon.json", "{}")
    real = os.rename

    def fails(source: str, target: Path) -> None:
        if Path(target) == path:
            raise OSError(28, "No space left on device", str(target))
        real(source, target)

    monkeypatch.setattr(os, "rename", fails)

    assert "No space left" in host.refused("docker", "--file", path)
    assert path.read_text() == "{}"
    assert sorted(each.name for each in host.folder.iterdir()) == ["bin", "daemon.json", "var"]
    assert host.done("--list") == ""


@pytest.mark.parametrize(
    "words", [(), ("--default",), ("--list", "docker"), ("docker", "--undo", "--default"), ("lxc",)]
)
def test_wrong_usage(host: Host, words: tuple[str, ...]) -> None:
    assert host.configure(*words).exit_code == 2


def test_crios_drop_in_takes_after_the_files_before_it(host: Host) -> None:
    host.write("crio/crio.conf", CRIO)
    host.write("crio/crio.conf.d/10-more.conf", '[crio.runtime]\ndefault_runtime = "crun"\n')
    path = host.folder / "crio/crio.conf.d/99-vgpu.conf"

    host.done("crio", "--file", path)

    handler = tomllib.loads(path.read_text())["crio"]["runtime"]["runtimes"]["vgpu"]
    assert handler["monitor_path"] == "/usr/libexec/crio/conmon"


@contextmanager
def daemon(host: Host, program: str, *words: str, script: str = "read nothing") -> Iterator[int]:
    """Run a process whose command line is `program`, a script and `words`; yield its PID."""
    file = host.write(f"{program}.sh", f"{script}\n")
    argv = [program, str(file), *words]
    with subprocess.Popen(argv, executable="/bin/bash", stdin=subprocess.PIPE) as process:
        # Until it has become the program, its command line is this one's.
        line = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: line.read_bytes().startswith(program.encode()), f"{program} runs")
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_default_that_dockerds_own_option_contradicts(host: Host) -> None:
    path = host.write("daemon.json", "{}")

    with daemon(host, "dockerd", "--config-file", str(path), "--default-runtime=runc"):
        output = host.refused("docker", "--file", path, "--default")
        host.done("docker", "--file", path)

    assert "was started with --default-runtime" in output
    assert "default-runtime" not in json.loads(path.read_text())


@pytest.mark.parametrize(
    ("engine", "option"), [("docker", "--config-file"), ("containerd", "--config")]
)
def test_of_two_daemons_one_must_be_chosen(host: Host, engine: str, option: str) -> None:
    program = {"docker": "dockerd"}.get(engine, engine)
    files = [str(host.write(name, "")) for name in ("a.conf", "b.conf")]

    with daemon(host, program, option, files[0]), daemon(host, program, f"{option}={files[1]}"):
        output = host.refused(engine)

    assert "choose one with --file" in output
    assert all(file in output for file in files)


def test_a_containerd_of_dockers_own_is_not_edited(host: Host) -> None:
    """Docker starts one where the host has none, with a file that it writes anew each time."""
    mine = str(host.write("mine.toml", "version = ["))
    child = host.write("child.sh", "read nothing\n")
    script = 'exec 3<&0; (exec -a containerd /bin/bash "$1" --config "$2" <&3) & wait'
    with daemon(
        host, "dockerd", str(child), str(host.folder / "dockers.toml"), script=script
    ) as pid:
        children = Path(f"/proc/{pid}/task/{pid}/children")

        def started() -> bool:
            pids = children.read_text().split()
            lines = [Path(f"/proc/{each}/cmdline").read_bytes() for each in pids]
            return any(line.startswith(b"containerd\0") for line in lines)

        wait_until(started, "dockerd has its containerd")
        with daemon(host, "containerd", "--config", mine):
            output = host.refused("containerd")

    assert "dockers.toml" not in output
    assert f"{mine} is not TOML" in output or "choose one with --file" in output


def test_a_daemon_with_a_relative_path(host: Host) -> None:
    with daemon(host, "dockerd", "--config-file", "daemon.json"):
        output = host.refused("docker")

    assert "name the file with --file" in output or "choose one with --file" in output


def test_every_engine_has_a_file() -> None:
    assert set(FILES) == set(ENGINES)
