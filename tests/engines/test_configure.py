# SPDX-License-Identifier: Apache-2.0
"""What `vgpuctl configure` writes, in the eyes of the engines: every version of the matrix."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import not_run
from tests.runtime_shim.engine_host import Host
from tests.runtime_shim.test_configure_editors import (
    CONTAINERD_1,
    CONTAINERD_2,
    CONTAINERD_2_SCATTERED,
    CONTAINERD_3,
    DAEMON_JSON,
)
from tests.testbed import BUILD
from tests.testbed.docker import Docker
from tests.testbed.engines.matrix import CANDIDATES, SEARCH, Candidate
from tests.testbed.node import wait_until
from tests.testbed.packages import UnobtainableError

IMAGE = "vgpu-test:1"


def of(kind: str) -> list[Candidate]:
    """Return the versions of an engine."""
    return [each for each in CANDIDATES if each.name.startswith(f"{kind}-")]


def search_path(candidate: Candidate) -> tuple[Path | None, str]:
    """Return where a version was unpacked, and a PATH that finds its programs first."""
    try:
        binaries = candidate.obtain()
    except UnobtainableError as error:
        not_run(candidate.name, error)
    if binaries is None:
        return None, SEARCH
    return binaries, f"{binaries}/usr/sbin:{binaries}/usr/bin:{SEARCH}"


@pytest.fixture
def host(scratch: Path) -> Host:
    """Return a folder in the place of a host's; podman wants short names."""
    return Host.create(scratch)


# -- containerd ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Handlers:
    """What containerd has of runtimes, without what says nothing."""

    default: str
    handlers: dict[str, Any]


@dataclass(frozen=True)
class Containerd:
    """One version of containerd, asked for its opinion only."""

    program: str

    def output(self, *words: str | Path) -> str:
        return subprocess.run(
            [self.program, *words], capture_output=True, text=True, check=True, timeout=60
        ).stdout

    @property
    def major(self) -> int:
        return 2 if "/v2 " in self.output("--version") else 1

    def read(self, file: Path) -> tuple[Handlers, dict[str, Any]]:
        """Return the handlers of a file as containerd sees them, and the rest of it."""
        table = tomllib.loads(self.output("--config", file, "config", "dump"))
        found = []
        for plugin in table["plugins"].values():
            if isinstance(plugin.get("containerd"), dict):
                cri = plugin["containerd"]
                found.append(Handlers(cri.pop("default_runtime_name"), stated(cri.pop("runtimes"))))
        (handlers,) = found
        return handlers, table


def stated(value: Any) -> Any:  # noqa: ANN401 - TOML's
    """Return a value without the empty ones in it, which mean what their absence means."""
    if isinstance(value, dict):
        inner = {key: stated(each) for key, each in value.items()}
        return {key: each for key, each in inner.items() if each}
    return value


@pytest.fixture(params=of("ctr"), ids=lambda candidate: candidate.name)
def containerd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Containerd:
    """Return a version of containerd that vgpuctl finds, too."""
    _, search = search_path(request.param)
    monkeypatch.setenv("PATH", search)
    program = shutil.which("containerd")
    assert program is not None
    version = Containerd(program).output("--version").split()[2]
    request.node.user_properties.append(("engine", f"{request.param.name} {version}"))
    return Containerd(program)


FILES = {
    "none": None,
    "empty": "",
    "bare": "version = 2\n",
    "version 1": CONTAINERD_1,
    "kubeadm": CONTAINERD_2,
    "scattered": CONTAINERD_2_SCATTERED,
    "version 3": CONTAINERD_3,
    "own default": "",
}


@pytest.mark.parametrize("name", FILES)
def test_containerd_sees_one_handler_more(host: Host, containerd: Containerd, name: str) -> None:
    text = containerd.output("config", "default") if name == "own default" else FILES[name]
    if (name, containerd.major) in (("version 3", 1), ("version 1", 2)):
        path = host.write("config.toml", text or "")
        assert f"is of {name}" in host.refused("containerd", "--file", path)
        assert path.read_text() == text
        return
    # Without a file containerd runs on its defaults; its older ones dump only a file that exists.
    path = host.write("config.toml", text or "")
    before, elsewhere = containerd.read(path)
    if text is None:
        path.unlink()

    for words, default in (((), before.default), (("--default",), "vgpu")):
        host.done("containerd", "--file", path, *words)

        now, now_elsewhere = containerd.read(path)
        ours = now.handlers.pop("vgpu")
        assert ours["options"].pop("BinaryName") == str(host.launcher)
        systemd = "SystemdCgroup = true" in (text or "")
        assert ours["options"].get("SystemdCgroup", False) is systemd
        assert ours["runtime_type"] == "io.containerd.runc.v2"
        assert (now.default, now.handlers) == (default, before.handlers)
        assert {**now_elsewhere, "version": 0} == {**elsewhere, "version": 0}

    host.done("--undo")
    assert (path.read_bytes().decode() if path.exists() else None) == text


def test_the_file_that_counts_is_edited(host: Host, containerd: Containerd) -> None:
    """Before 2.1 an imported file with the plugin's table covers every other one's."""
    main = host.write("config.toml", f'version = 2\nimports = ["{host.folder}/site/*.toml"]\n')
    site_text = CONTAINERD_2.replace("imports", "# imports")
    site = host.write("site/50-cri.toml", site_text)
    before = main.read_text()

    host.done("containerd", "--file", main)

    handlers = containerd.read(main)[0].handlers
    assert handlers["vgpu"]["options"]["SystemdCgroup"] is True
    assert set(handlers) == {"runc", "vgpu"}
    host.done("--undo")
    assert (main.read_text(), site.read_text()) == (before, site_text)


def test_a_drop_in_is_used_where_containerd_merges_it(host: Host, containerd: Containerd) -> None:
    text = CONTAINERD_2.replace("/etc/containerd/site.d", f"{host.folder}/conf.d")
    main = host.write("config.toml", text)

    host.done("containerd", "--file", main, "--default")

    now, _ = containerd.read(main)
    assert (now.default, set(now.handlers)) == ("vgpu", {"runc", "vgpu"})
    drop_in = host.folder / "conf.d/99-vgpu.toml"
    assert drop_in.exists() is (containerd.major == 2)
    assert (main.read_text() == text) is (containerd.major == 2)
    host.done("--undo")
    assert (main.read_text(), drop_in.parent.exists()) == (text, False)


def test_an_import_that_overrules_the_default_is_told_and_nothing_stays(
    host: Host, containerd: Containerd
) -> None:
    other = (
        "version = 2\n"
        '[plugins."io.containerd.grpc.v1.cri".containerd]\n'
        'default_runtime_name = "runc"\n'
    )
    text = CONTAINERD_2.replace("/etc/containerd/site.d", f"{host.folder}/site")
    main = host.write("config.toml", text)
    host.write("site/50-default.toml", other)

    if containerd.major < 2:  # the last file with the plugin's table is edited itself
        host.done("containerd", "--file", main, "--default")
        assert (main.read_text(), containerd.read(main)[0].default) == (text, "vgpu")
        return
    output = host.refused("containerd", "--file", main, "--default")

    assert "overruled by an import" in output
    assert main.read_text() == text
    assert host.done("--list") == ""


def test_what_containerd_refuses_is_not_touched(host: Host, containerd: Containerd) -> None:
    path = host.write("config.toml", 'version = 2\noom_score = "much"\n')

    output = host.refused("containerd", "--file", path)

    assert "is refused by containerd" in output
    assert path.read_text() == 'version = 2\noom_score = "much"\n'


# -- docker --------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", of("docker"), ids=lambda candidate: candidate.name)
def test_docker_needs_a_reload_only(
    request: pytest.FixtureRequest, host: Host, template: Path, candidate: Candidate
) -> None:
    binaries, search = search_path(candidate)
    shutil.copy2(BUILD / "vgpu-container-runtime", host.launcher)
    runc = shutil.which("runc", path=search)
    host.write("bin/vgpu-container-runtime.conf", f"low_level_runtime={runc}\n")
    text = '{\n\t"labels": ["rack=7"],\n\t"runtimes": {}\n}\n'
    with Docker(host.folder / "docker", {}, binaries=binaries) as docker:
        version = docker.command("version", "--format={{.Server.Version}}").strip()
        request.node.user_properties.append(("engine", f"{candidate.name} {version}"))
        docker.import_image(template, IMAGE)
        path = host.write("docker/daemon.json", text)

        def reload() -> None:
            os.kill(int((host.folder / "docker/pid").read_text()), signal.SIGHUP)

        def info() -> tuple[str, bool, list[str]]:
            known: dict[str, Any] = json.loads(docker.command("info", "--format={{json .}}"))
            return known["DefaultRuntime"], "vgpu" in known["Runtimes"], known["Labels"]

        host.done("docker", "--file", path)
        reload()
        wait_until(lambda: info() == ("runc", True, ["rack=7"]), "dockerd knows it")
        run = ("run", "--rm", "--network=none")
        assert docker.command(*run, "--runtime=vgpu", IMAGE, "echo", "one") == "one\n"
        host.done("docker", "--file", path, "--default")
        reload()
        wait_until(lambda: info() == ("vgpu", True, ["rack=7"]), "dockerd has it as its default")
        assert docker.command(*run, IMAGE, "echo", "two") == "two\n"
        # Not a reload: none takes a default away, and 20.10 panics when it misses its default's
        # runtime.
        assert "systemctl restart docker" in host.done("--undo")
        assert path.read_text() == text


@pytest.mark.parametrize("candidate", of("docker"), ids=lambda candidate: candidate.name)
def test_docker_itself_checks_the_file_where_it_can(
    host: Host, monkeypatch: pytest.MonkeyPatch, candidate: Candidate
) -> None:
    _, search = search_path(candidate)
    monkeypatch.setenv("PATH", search)
    usage = subprocess.run(["dockerd", "--help"], capture_output=True, text=True, check=True)
    path = host.write("daemon.json", DAEMON_JSON)
    host.done("docker", "--file", path, "--default")
    bad = host.write("bad.json", '{"no-such-option": 1}')

    result = host.configure("docker", "--file", bad)

    can = "--validate" in usage.stdout
    assert result.exit_code == (1 if can else 0), result.output
    if can:
        assert "would be refused by Docker" in result.output
        assert bad.read_text() == '{"no-such-option": 1}'


# -- podman --------------------------------------------------------------------------------

ETC = Path("/etc/containers")
IN_A_NAMESPACE = 'mount --bind "$1" /etc/containers && shift && exec "$@"'


@pytest.mark.parametrize("candidate", of("podman"), ids=lambda candidate: candidate.name)
def test_podman_takes_it_from_the_drop_in(
    request: pytest.FixtureRequest, host: Host, candidate: Candidate
) -> None:
    binaries, search = search_path(candidate)
    if not ETC.is_dir():
        not_run(candidate.name, f"{ETC} is not here: install podman")
    shutil.copy2(BUILD / "vgpu-container-runtime", host.launcher)
    helpers = "" if binaries is None else f'helper_binaries_dir = ["{binaries}/usr/lib/podman"]\n'
    host.write("containers/containers.conf", f'[engine]\n{helpers}runtime = "runc"\n')
    path = host.folder / "containers/containers.conf.d/99-vgpu.conf"

    def podman(*words: str) -> str:
        """Run podman where our folder is its /etc/containers."""
        program = shutil.which("podman", path=search)
        assert program is not None
        options = [f"--root={host.folder}/r", f"--runroot={host.folder}/s", "--storage-driver=vfs"]
        done = subprocess.run(
            [
                *("unshare", "--mount", "sh", "-c", IN_A_NAMESPACE, "sh"),
                *(str(host.folder / "containers"), program, *options, f"--tmpdir={host.folder}/t"),
                *words,
            ],
            env={**os.environ, "PATH": search, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    version = podman("version", "--format={{.Client.Version}}")
    request.node.user_properties.append(("engine", f"{candidate.name} {version}"))
    runtime = ("info", "--format={{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}")
    host.done("podman", "--file", path)
    assert podman("--runtime=vgpu", *runtime) == f"vgpu {host.launcher}"
    assert podman(*runtime).startswith("runc ")
    host.done("podman", "--file", path, "--default")
    assert podman(*runtime) == f"vgpu {host.launcher}"
    host.done("--undo")
    assert podman(*runtime).startswith("runc ")
