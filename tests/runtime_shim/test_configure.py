# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl configure` on real files, and the engines' own word on the result."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from runtime_shim.cli import main
from runtime_shim.configure.engines import ENGINES
from tests.runtime_shim.test_configure_editors import (
    CONTAINERD_2,
    CONTAINERD_2_SCATTERED,
    CRIO,
    DAEMON_JSON,
)

SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
CONTAINERD = shutil.which("containerd", path=SEARCH)
DOCKERD = shutil.which("dockerd", path=SEARCH)
needs_containerd = pytest.mark.skipif(CONTAINERD is None, reason="containerd is not installed")


@dataclass
class Host:
    """A folder with engines' files, and vgpuctl for it."""

    folder: Path

    @property
    def launcher(self) -> Path:
        return self.folder / "bin/vgpu-container-runtime"

    @property
    def record(self) -> Path:
        return self.folder / "var/configure.json"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(mode)
        return path

    def configure(self, *words: str | Path) -> Result:
        arguments = ["configure", "--record", self.record, "--runtime", self.launcher, *words]
        # Whatever the agent's own file says, an engine can be configured and undone.
        return CliRunner().invoke(
            main, ["--config", str(self.folder / "no-agent.toml"), *map(str, arguments)]
        )

    def done(self, *words: str | Path) -> str:
        result = self.configure(*words)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *words: str | Path) -> str:
        result = self.configure(*words)
        assert result.exit_code == 1, result.output
        return result.output


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host without engines; containerd is not asked unless a test wants it."""
    host = Host(tmp_path)
    host.write("bin/vgpu-container-runtime", "#!/bin/sh\n", 0o755)
    return host


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


# -- the engines themselves ----------------------------------------------------------------


def dump(main_file: Path) -> dict[str, Any]:
    """Return what containerd makes of its file."""
    assert CONTAINERD is not None
    done = subprocess.run(
        [CONTAINERD, "--config", main_file, "config", "dump"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return tomllib.loads(done.stdout)


def handlers(main_file: Path) -> tuple[str, dict[str, Any]]:
    """Return containerd's default handler, and all of them."""
    plugins = dump(main_file)["plugins"]
    names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    cri = next(plugins[name] for name in names if name in plugins)["containerd"]
    return cri["default_runtime_name"], cri["runtimes"]


def stated(value: Any) -> Any:  # noqa: ANN401 - TOML's
    """Return a value without the empty ones in it, which mean what their absence means."""
    if isinstance(value, dict):
        inner = {key: stated(each) for key, each in value.items()}
        return {key: each for key, each in inner.items() if each}
    return value


def without_handlers(table: dict[str, Any]) -> dict[str, Any]:
    """Return containerd's configuration without what is to change."""
    for plugin in table["plugins"].values():
        if "containerd" in plugin:
            del plugin["containerd"]["default_runtime_name"], plugin["containerd"]["runtimes"]
    return table


@needs_containerd
@pytest.mark.parametrize(
    "text",
    [CONTAINERD_2, CONTAINERD_2_SCATTERED, "version = 2\n", ""],
    ids=["kubeadm", "scattered", "bare", "empty"],
)
@pytest.mark.parametrize("words", [(), ("--default",)], ids=["runtime", "default"])
def test_containerd_sees_the_handler(host: Host, text: str, words: tuple[str, ...]) -> None:
    path = host.write("config.toml", text)
    before, elsewhere = handlers(path), without_handlers(dump(path))

    host.done("containerd", "--file", path, *words)

    default, runtimes = handlers(path)
    options = runtimes["vgpu"]["options"]
    assert options["BinaryName"] == str(host.launcher)
    assert options.get("SystemdCgroup", False) is ("SystemdCgroup = true" in text)
    assert default == ("vgpu" if words else before[0])
    others = {name: value for name, value in runtimes.items() if name != "vgpu"}
    assert stated(others) == stated(before[1])
    assert without_handlers(dump(path)) == elsewhere
    host.done("--undo")
    assert path.read_text() == text
    assert handlers(path) == before


@needs_containerd
def test_containerds_own_default_configuration_is_edited(host: Host) -> None:
    text = subprocess.run(
        [str(CONTAINERD), "config", "default"], capture_output=True, text=True, check=True
    ).stdout
    path = host.write("config.toml", text)

    host.done("containerd", "--file", path, "--default")

    assert handlers(path)[0] == "vgpu"
    host.done("--undo")
    assert path.read_text() == text


@needs_containerd
def test_the_imported_file_that_counts_is_edited(host: Host) -> None:
    """Before containerd 2.1 the last file with the plugin's table replaces that of the others."""
    main_file = host.write("config.toml", f'version = 2\nimports = ["{host.folder}/site/*.toml"]\n')
    site = host.write("site/50-cri.toml", CONTAINERD_2.replace("imports", "# imports"))

    host.done("containerd", "--file", main_file)

    assert "vgpu" in handlers(main_file)[1]
    host.done("--undo")
    assert site.read_text() == CONTAINERD_2.replace("imports", "# imports")
    assert "vgpu" not in handlers(main_file)[1]


@needs_containerd
def test_what_containerd_refuses_is_not_touched(host: Host) -> None:
    path = host.write("config.toml", 'version = 2\noom_score = "much"\n')

    output = host.refused("containerd", "--file", path)

    assert "is refused by containerd" in output
    assert path.read_text() == 'version = 2\noom_score = "much"\n'


def test_docker_accepts_its_file(host: Host) -> None:
    if DOCKERD is None:
        pytest.skip("dockerd is not installed")
    usage = subprocess.run([DOCKERD, "--help"], capture_output=True, text=True).stdout
    if "--validate" not in usage:
        pytest.skip("this dockerd has no --validate; tests/engines starts it with such a file")
    path = host.write("daemon.json", DAEMON_JSON)

    host.done("docker", "--file", path, "--default")

    subprocess.run([DOCKERD, "--validate", "--config-file", path], check=True)


def test_podman_finds_the_runtime(host: Host, scratch: Path) -> None:
    podman = shutil.which("podman", path=SEARCH)
    if podman is None or os.geteuid() != 0:
        pytest.skip("podman is not installed, or this is not root")
    shutil.copy2("/bin/true", host.launcher)
    path = host.folder / "containers.conf.d/99-vgpu.conf"
    host.done("podman", "--file", path, "--default")

    runtime = subprocess.run(
        [
            podman,
            f"--root={scratch}/root",
            f"--runroot={scratch}/run",  # podman wants it short
            "--storage-driver=vfs",
            "info",
            "--format={{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}",
        ],
        env={**os.environ, "CONTAINERS_CONF": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (runtime.stdout.strip(), runtime.returncode) == (f"vgpu {host.launcher}", 0), (
        runtime.stderr
    )


def test_every_engine_has_a_file() -> None:
    assert set(FILES) == set(ENGINES)
