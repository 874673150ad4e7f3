# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks, each on files that are well and on such as are not."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from runtime_shim import config
from runtime_shim.cli import main
from runtime_shim.config import Config, Paths
from runtime_shim.configure.docker import DockerEditor
from runtime_shim.configure.editor import EditError, FaultError
from runtime_shim.configure.engines import Target
from runtime_shim.doctor.container import tiny_program
from runtime_shim.doctor.driver import check_driver, check_nvml
from runtime_shim.doctor.engines import check_engines, runtime_program
from runtime_shim.doctor.library import (
    check_copies,
    check_digests,
    check_driver_names,
    check_library,
    known_names,
    unknown_names,
)
from runtime_shim.doctor.runtime_conf import RuntimeConf, parse_runtime_conf, read_runtime_conf
from runtime_shim.doctor.runtimes import check_gpu_runtime, check_launcher, check_low_level
from runtime_shim.doctor.services import check_agent, check_cache
from runtime_shim.library import digest_of
from runtime_shim.symbols import read_symbols
from runtime_shim.verdict import HEADER, MAGIC
from tests.testbed import BUILD, REPOSITORY
from tests.testbed.installation import record_digests

SOURCE = Path("/etc/vgpu/runtime.conf")
TABLE = REPOSITORY / "hook_c/api.tsv"


def script(path: Path, text: str) -> Path:
    """Make a program that prints `text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return path


# -- launcher and runtimes -----------------------------------------------------------------


def test_the_launchers_configuration_is_read_as_the_launcher_reads_it() -> None:
    text = (
        "# low_level_runtime=/no\n"
        " low_level_runtime = /usr/sbin/runc\t\r\n"
        "gpu_runtime=\n"
        "agent_socket=/one\nagent_socket=/run/other.sock\n"
        "unknown=1\nnonsense\n"
    )

    conf = parse_runtime_conf(SOURCE, text)

    assert conf == RuntimeConf(
        source=SOURCE, low_level_runtime="/usr/sbin/runc", agent_socket="/run/other.sock"
    )


def test_the_file_beside_the_launcher_is_read_first(tmp_path: Path) -> None:
    launcher, usual = tmp_path / "launcher", tmp_path / "runtime.conf"
    usual.write_text("gpu_runtime=/usual\n")

    assert read_runtime_conf(launcher, usual).gpu_runtime == "/usual"
    Path(f"{launcher}.conf").write_text("gpu_runtime=/own\n")
    assert read_runtime_conf(launcher, usual).gpu_runtime == "/own"
    assert read_runtime_conf(tmp_path / "x", tmp_path / "y") == RuntimeConf(source=tmp_path / "y")


@pytest.mark.parametrize(
    ("words", "level", "part"),
    [
        ("runc version 1.1.5+ds1\nspec: 1.0.2-dev", "ok", "runc 1.1.5+ds1"),
        ("runc version 1.0.0-rc93", "ok", "runc 1.0"),
        ("crun version 1.8.1\ncommit: x", "ok", "crun 1.8.1"),
        ("crun version 1.4\n", "fail", "crun 1.4"),
        ("runc version 0.1.1", "fail", "runc 0.1"),
        ("youki version 0.3", "warn", "neither runc nor crun"),
    ],
)
def test_the_low_level_runtimes_version(tmp_path: Path, words: str, level: str, part: str) -> None:
    path = script(tmp_path / "runtime", words)

    finding = check_low_level(RuntimeConf(source=SOURCE, low_level_runtime=str(path)))

    assert (finding.level, part in finding.message) == (level, True), finding


def test_a_low_level_runtime_that_is_not_there(tmp_path: Path) -> None:
    finding = check_low_level(RuntimeConf(source=SOURCE, low_level_runtime=f"{tmp_path}/runc"))

    assert (finding.level, "cannot be run" in finding.message) == ("fail", True)
    assert str(SOURCE) in finding.remedy


def test_the_launcher_that_was_built(tmp_path: Path) -> None:
    launcher = tmp_path / "vgpu-container-runtime"
    launcher.write_bytes((BUILD / "vgpu-container-runtime").read_bytes())
    launcher.chmod(0o755)
    runtime = script(tmp_path / "runc", "runc version 1.1.5")
    Path(f"{launcher}.conf").write_text(f"low_level_runtime={runtime}\n")

    finding = check_launcher(launcher, read_runtime_conf(launcher))

    assert finding.level == "ok", finding
    other = RuntimeConf(
        source=SOURCE, low_level_runtime=str(script(tmp_path / "x", "crun version 9"))
    )
    assert "does not become" in check_launcher(launcher, other).message
    launcher.chmod(0o775)
    assert "can be changed by others" in check_launcher(launcher, other).message


def test_a_launcher_that_depends_on_its_environment() -> None:
    conf = RuntimeConf(source=SOURCE)

    assert "linked dynamically" in check_launcher(Path("/bin/ls").resolve(), conf).message
    assert check_launcher(None, conf).level == "fail"


# -- NVIDIA's runtime ----------------------------------------------------------------------


def toolkit(tmp_path: Path, version: str = "1.17.8", settings: str = "") -> tuple[str, Path]:
    """Return NVIDIA's runtime of a version, and its configuration."""
    words = f"NVIDIA Container Runtime version {version}\ncommit: abc\nspec: 1.2.0"
    path = script(tmp_path / "nvidia-container-runtime", words)
    file = tmp_path / "config.toml"
    file.write_text(settings)
    return str(path), file


def gpu_conf(tmp_path: Path, gpu_runtime: str, low_level: str = "runc") -> RuntimeConf:
    """Return a launcher's configuration with both runtimes."""
    path = script(tmp_path / low_level, f"{low_level} version 1.1.5")
    return RuntimeConf(source=SOURCE, gpu_runtime=gpu_runtime, low_level_runtime=str(path))


def test_nvidias_runtime_on_the_same_low_level_runtime(tmp_path: Path) -> None:
    below = tmp_path / "runc"
    path, file = toolkit(
        tmp_path, settings=f'[nvidia-container-runtime]\nruntimes = ["/no/such", "{below}"]\n'
    )

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert (finding.level, finding.message) == ("ok", f"{path} 1.17.8, on {below}")


def test_nvidias_runtime_on_another_low_level_runtime(tmp_path: Path) -> None:
    other = script(tmp_path / "other/crun", "crun version 1.8")
    path, file = toolkit(tmp_path, settings=f'[nvidia-container-runtime]\nruntimes=["{other}"]\n')

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert (finding.level, f"ends in {other}" in finding.message) == ("fail", True)


@pytest.mark.parametrize(
    ("version", "level"),
    [("1.17.7", "fail"), ("1.16.2", "fail"), ("1.18.0", "ok"), ("1.17.8-rc.1", "ok")],
)
def test_old_toolkits_let_images_become_root(tmp_path: Path, version: str, level: str) -> None:
    below = tmp_path / "runc"
    path, file = toolkit(tmp_path, version, f'[nvidia-container-runtime]\nruntimes=["{below}"]\n')

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert finding.level == level, finding
    assert level == "ok" or "CVE-2025-23266" in finding.message


def test_a_toolkit_that_ignores_the_variable_by_which_cards_are_named(tmp_path: Path) -> None:
    path, file = toolkit(
        tmp_path, settings="accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    )

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert finding.level == "fail"
    assert "gpu_runtime.enabled = false" in finding.remedy


@pytest.mark.parametrize(
    ("variables", "level"), [("DOCKER_RESOURCE_GPU", "ok"), ("DOCKER_RESOURCE_GPU, CARDS", "fail")]
)
def test_a_toolkit_that_lets_containers_name_their_cards(
    tmp_path: Path, variables: str, level: str
) -> None:
    below = tmp_path / "runc"
    settings = f'swarm-resource = "{variables}"\n[nvidia-container-runtime]\nruntimes=["{below}"]\n'
    path, file = toolkit(tmp_path, settings=settings)

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert finding.level == level, finding
    assert level == "ok" or "'CARDS'" in finding.message


def test_a_toolkit_with_a_broken_configuration(tmp_path: Path) -> None:
    path, file = toolkit(tmp_path, settings="[")

    finding = check_gpu_runtime(gpu_conf(tmp_path, path), True, file)

    assert (finding.level, str(file) in finding.message) == ("fail", True)


def test_the_two_configurations_must_agree_on_a_gpu_runtime(tmp_path: Path) -> None:
    path, file = toolkit(tmp_path)

    unknown = check_gpu_runtime(RuntimeConf(source=SOURCE), True, file)
    unused = check_gpu_runtime(gpu_conf(tmp_path, path), False, file)
    missing = check_gpu_runtime(gpu_conf(tmp_path, f"{tmp_path}/no"), True, file)

    assert (unknown.level, "knows no GPU runtime" in unknown.message) == ("fail", True)
    assert (unused.level, "not used" in unused.message) == ("ok", True)
    assert (missing.level, "cannot be run" in missing.message) == ("fail", True)


def test_an_old_toolkit_that_we_do_not_use_is_a_warning(tmp_path: Path) -> None:
    path, file = toolkit(tmp_path, "1.16.1")

    assert check_gpu_runtime(gpu_conf(tmp_path, path), False, file).level == "warn"


# -- driver --------------------------------------------------------------------------------


def test_no_driver(tmp_path: Path) -> None:
    finding = check_driver(config.Driver(root=tmp_path))

    assert (finding.level, "modprobe nvidia" in finding.remedy) == ("fail", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_driver_without_its_libraries(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    os.mknod(tmp_path / "dev/nvidia0", 0o020666, os.makedev(195, 0))

    finding = check_driver(config.Driver(root=tmp_path, library_dirs=(tmp_path,)))

    assert (finding.level, "libcuda.so.1" in finding.message) == ("fail", True)


def test_nvml_that_is_not_there(tmp_path: Path) -> None:
    finding = check_nvml(config.Driver(nvml_library=str(tmp_path / "libnvidia-ml.so.1")))

    assert (finding.level, "NVML is not available" in finding.message) == ("fail", True)


# -- library -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["libvgpu.so", "vgpu-probe"])
def test_symbols_are_those_that_readelf_shows(name: str) -> None:
    path = BUILD / name

    def readelf(*words: str) -> str:
        return subprocess.run(
            ["readelf", "--wide", *words, path], capture_output=True, text=True, check=True
        ).stdout

    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    defined = {
        row[7].split("@")[0]
        for row in rows
        if len(row) == 8 and row[6].isdigit() and row[4] in ("GLOBAL", "WEAK")
    }
    versions = set(re.findall(r"Name: (\S+)  Flags", readelf("--version-info")))
    symbols = read_symbols(path)

    assert symbols.exported == defined
    assert symbols.needed_versions == versions


def installed(folder: Path) -> Path:
    """Install the library and its probe as version 1.2.3."""
    versioned = folder / "1.2.3"
    versioned.mkdir(parents=True)
    for name in ("libvgpu.so", "vgpu-probe"):
        (versioned / name).write_bytes((BUILD / name).read_bytes())
        (versioned / name).chmod(0o755)
    record_digests(versioned)
    (folder / "current").symlink_to("1.2.3")
    return folder / "current/libvgpu.so"


def test_the_library_that_was_built(tmp_path: Path) -> None:
    library = installed(tmp_path)

    finding = check_library(library)

    assert (finding.level, "version 1.2.3" in finding.message) == ("ok", True), finding
    (tmp_path / "1.2.3/vgpu-probe").unlink()
    assert "vgpu-probe is not beside" in check_library(library).message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_where_the_copies_lie_is_said_before_the_first_container(tmp_path: Path) -> None:
    library = tmp_path / "lib/current/libvgpu.so"
    library.parent.mkdir(parents=True)
    state = tmp_path / "var/agent"
    state.mkdir(parents=True)
    before = check_copies(library, state)
    noexec = ["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs"]
    subprocess.run([*noexec, state.parent], check=True)
    try:
        beside = check_copies(library, state)
        subprocess.run([*noexec, library.parents[1]], check=True)
        try:
            nowhere = check_copies(library, state)
        finally:
            subprocess.run(["umount", library.parents[1]], check=True)
    finally:
        subprocess.run(["umount", state.parent], check=True)

    assert (before.level, before.message) == ("ok", f"in {state}/library")
    assert (beside.level, beside.message) == (
        "ok",
        f"in {tmp_path}/lib/copies, since containers cannot load them from {state}/library",
    )
    assert nowhere.level == "fail"
    assert f"{state}/library is mounted noexec" in nowhere.message
    assert "set paths.state_dir to a folder elsewhere" in nowhere.remedy


def test_a_library_for_newer_systems_only(tmp_path: Path) -> None:
    library = installed(tmp_path)
    content = library.read_bytes()
    assert b"GLIBC_2.16\0" in content
    library.write_bytes(content.replace(b"GLIBC_2.16\0", b"GLIBC_2.34\0"))
    record_digests(library.parent)

    finding = check_library(library)

    assert (finding.level, "needs GLIBC_2.34" in finding.message) == ("fail", True), finding


def test_a_library_that_is_another(tmp_path: Path) -> None:
    library = installed(tmp_path)
    library.write_bytes(Path("/lib/x86_64-linux-gnu/libz.so.1").read_bytes())

    finding = check_library(library)

    assert (finding.level, "is not the file that was installed" in finding.message) == (
        "fail",
        True,
    )
    record_digests(library.parent)
    finding = check_library(library)
    assert (finding.level, "does not export cuGetProcAddress" in finding.message) == ("fail", True)


def test_digests_of_an_installation(tmp_path: Path) -> None:
    library = installed(tmp_path)

    finding = check_digests(library, None)

    assert (finding.level, "all 2 files of" in finding.message) == ("ok", True), finding


@pytest.mark.parametrize("name", ["libvgpu.so", "vgpu-probe"])
def test_a_file_that_is_not_the_installed_one_is_named(tmp_path: Path, name: str) -> None:
    library = installed(tmp_path)
    with (tmp_path / "1.2.3" / name).open("ab") as file:
        file.write(b"\0")

    finding = check_digests(library, None)

    assert finding.level == "fail"
    assert f"{name} is not the file that was installed" in finding.message
    assert "install the package vgpu-runtime again" in finding.remedy


def test_another_program_in_the_launchers_place_is_named(tmp_path: Path) -> None:
    library = installed(tmp_path)
    launcher = tmp_path / "bin" / "vgpu-container-runtime"
    launcher.parent.mkdir()
    launcher.write_bytes(b"the launcher")
    digest = digest_of(launcher)
    with (library.parent / "SHA256SUMS").open("a") as file:
        file.write(f"{digest}  ../../../bin/vgpu-container-runtime\n")

    assert check_digests(library, launcher).level == "ok"
    launcher.write_bytes(b"runc")

    finding = check_digests(library, launcher)
    assert (finding.level, f"{launcher} is not the file" in finding.message) == ("fail", True)


def test_an_installation_without_digests(tmp_path: Path) -> None:
    library = installed(tmp_path)
    (tmp_path / "1.2.3/SHA256SUMS").unlink()

    finding = check_digests(library, None)

    assert (finding.level, "no digest was recorded" in finding.message) == ("fail", True)


def test_the_simulated_driver_has_no_unknown_function() -> None:
    finding = check_driver_names(config.Driver(library_dirs=(BUILD / "fake",)))

    assert finding.level == "ok", finding


def test_a_driver_that_is_newer_than_the_table(tmp_path: Path) -> None:
    table = tmp_path / "api.tsv"
    lines = TABLE.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith("cuMemAlloc\t")))

    finding = check_driver_names(config.Driver(library_dirs=(BUILD / "fake",)), table)

    assert finding.level == "warn"
    assert "has cuMemAlloc, which this version does not know" in finding.message


def test_variants_of_a_known_function_are_known() -> None:
    known = known_names("# comment\ncuMemAlloc\talloc\tout=0\ncuLaunchKernel\tlaunch\n")
    exported = {"cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemAlloc", "cudbgApiInit", "dlsym"}

    assert unknown_names(frozenset(exported), known) == []
    assert unknown_names(frozenset({"cuNew_v3_ptsz", "cuNew"}), known) == ["cuNew"]


# -- services ------------------------------------------------------------------------------


@contextmanager
def answering(path: Path, packet: bytes | None) -> Iterator[None]:
    """Answer one connection with `packet`, or never."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if packet is not None:
                    connection.send(packet)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(20)


def agent_level(path: Path, listens_at: Path | None = None) -> tuple[str, str]:
    """Return what the doctor says of the agent at `path`."""
    settings = Config(paths=Paths(socket=listens_at or path))
    finding = check_agent(settings, RuntimeConf(source=SOURCE, agent_socket=str(path)))
    return finding.level, finding.message


def test_the_agents_answers(scratch: Path) -> None:
    path = scratch / "agent.sock"
    assert "nobody answers" in agent_level(path)[1]
    for packet, level, part in (
        (HEADER.pack(MAGIC, 1, 0, 0, 0), "ok", "protocol 1.0"),
        (HEADER.pack(MAGIC, 2, 7, 0, 0), "fail", "speaks protocol 2.7"),
        (b"garbage, garbage, garbage", "fail", "is not the agent's socket"),
        (None, "fail", "is not the agent's socket"),
    ):
        with answering(path, packet):
            found = agent_level(path)
        path.unlink()

        assert (found[0], part in found[1]) == (level, True), found


def test_launcher_and_agent_at_different_places(scratch: Path) -> None:
    level, message = agent_level(scratch / "a.sock", scratch / "b.sock")

    assert (level, "the launcher asks at" in message) == ("fail", True)


def test_a_cache_that_is_not_there(scratch: Path) -> None:
    settings = config.Cache(address=f"unix:{scratch}/cache.sock", try_seconds=0.5)

    finding = check_cache(Config(cache=settings))

    assert (finding.level, "gave no answer" in finding.message) == ("fail", True)


def test_a_cache_is_asked_for_what_it_can_say(scratch: Path) -> None:
    settings = config.Cache(address=f"unix:{scratch}/cache.sock", try_seconds=0.2)

    finding = check_cache(Config(mode="kubernetes", cache=settings))

    assert "[cache] in agent.toml" in finding.remedy


# -- engines -------------------------------------------------------------------------------


def engine(path: Path, fault: str = "") -> dict[str, object]:
    """Return a docker whose file is at `path`."""

    def verify(_path: str, _default: bool) -> None:
        if fault:
            raise FaultError(fault)

    def find(_file: Path | None) -> Target:
        return Target(engine="docker", path=path, editor=DockerEditor(), verify=verify)

    return {"docker": find}


@pytest.mark.parametrize(
    ("text", "fault", "level", "part"),
    [
        (None, "", "warn", "does not know 'vgpu', and no other engine does"),
        ("{}", "", "warn", "does not know 'vgpu'"),
        ("{", "", "warn", "is not JSON"),
        ('{"runtimes": {"vgpu": {"path": "/bin/sh"}}}', "", "ok", "when it is asked for"),
        (
            '{"runtimes": {"vgpu": {"path": "/bin/sh"}}, "default-runtime": "vgpu"}',
            "",
            "ok",
            "as its default",
        ),
        ('{"runtimes": {"vgpu": {"path": "/no/sh"}}}', "", "fail", "/no/sh, which cannot be run"),
        ('{"runtimes": {"vgpu": {"path": "sh"}}}', "", "fail", "sh, which cannot be run"),
        ('{"runtimes": {"vgpu": {}}}', "", "fail", "no program, which cannot be run"),
        ('{"runtimes": {"vgpu": {"path": "/bin/sh"}}}', "is odd", "fail", "daemon.json is odd"),
    ],
)
def test_what_an_engine_knows(
    tmp_path: Path, text: str | None, fault: str, level: str, part: str
) -> None:
    script(tmp_path / "bin/dockerd", "")
    file = tmp_path / "daemon.json"
    if text is not None:
        file.write_text(text)

    (finding,) = check_engines(engine(file, fault), str(tmp_path / "bin"))  # type: ignore[arg-type]

    assert (finding.level, part in finding.message) == (level, True), finding


def test_no_engine_at_all(tmp_path: Path) -> None:
    (finding,) = check_engines(path=str(tmp_path))

    assert (finding.level, "is installed" in finding.message) == ("warn", True)


def test_an_engine_that_cannot_be_found_out_is_no_crash(tmp_path: Path) -> None:
    script(tmp_path / "bin/dockerd", "")

    def broken(_file: Path | None) -> Target:
        raise EditError("dockerd runs more than once")

    (finding,) = check_engines({"docker": broken}, str(tmp_path / "bin"))

    assert "runs more than once" in finding.message


@pytest.mark.parametrize(
    ("entry", "program"),
    [
        ({"path": "/a"}, "/a"),
        ({"runtime_path": "/b", "runtime_type": "oci"}, "/b"),
        ({"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "/c"}}, "/c"),
        (["/d", "/e"], "/d"),
        ([], ""),
        ({"path": 1}, ""),
        (None, ""),
    ],
)
def test_every_engines_form_of_a_runtime(entry: object, program: str) -> None:
    assert runtime_program(entry) == program


# -- the container's program, and the command ----------------------------------------------


def test_the_program_says_whether_it_sees_limits(tmp_path: Path) -> None:
    program = tmp_path / "look"
    program.write_bytes(tiny_program(os.uname().machine))
    program.chmod(0o755)

    assert subprocess.run([program], check=False).returncode == 1, "no /dev/vgpu on a host"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_is_what_an_assembler_makes_of_its_comments(
    tmp_path: Path, machine: str
) -> None:
    source = {
        "x86_64": """
            mov $2, %eax
            lea path(%rip), %rdi
            xor %esi, %esi
            xor %edx, %edx
            syscall
            shr $31, %eax
            mov %eax, %edi
            mov $60, %eax
            syscall""",
        "aarch64": """
            mov x0, #-100
            adr x1, path
            mov x2, #0
            mov x8, #56
            svc #0
            lsr x0, x0, #63
            mov x8, #93
            svc #0""",
    }[machine]
    file = tmp_path / "look.s"
    file.write_text(f'{source}\npath: .asciz "/dev/vgpu/limits"\n')
    subprocess.run(
        [
            *(REPOSITORY / ".venv/bin/python", "-m", "ziglang", "cc"),
            *("-target", f"{machine}-linux-musl", "-c", file, "-o", tmp_path / "look.o"),
        ],
        check=True,
        timeout=120,
    )

    code = tiny_program(machine)[120:]
    assert code in (tmp_path / "look.o").read_bytes()


def test_the_command_needs_no_node(tmp_path: Path) -> None:
    settings = tmp_path / "agent.toml"
    settings.write_text(
        f'[paths]\nlibrary = "{tmp_path}/none.so"\nsocket = "{tmp_path}/agent.sock"\n'
        f'[cache]\naddress = "unix:{tmp_path}/cache.sock"\ntry_seconds = 0.2\n'
        f'[driver]\nroot = "{tmp_path}"\nnvml_library = "{tmp_path}/nvml.so"\n'
    )

    result = CliRunner().invoke(main, ["--config", str(settings), "doctor", "--no-container"])

    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("ok    configuration: ")
    assert any(line.startswith("fail  driver: ") for line in lines)
    assert all(re.match(r"(ok   |warn |fail ) [\w -]+: .", line) for line in lines)
