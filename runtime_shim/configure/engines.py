# SPDX-License-Identifier: Apache-2.0
"""Where the engines of this host have their configuration, and what they make of it."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime_shim.configure.containerd import (
    ContainerdEditor,
    Effective,
    defines_cri,
    effective_config,
)
from runtime_shim.configure.crio import CrioEditor, CrioHandler
from runtime_shim.configure.docker import DockerEditor
from runtime_shim.configure.editor import RUNTIME_NAME, EditError, Editor, FaultError, about
from runtime_shim.configure.podman import PodmanEditor
from runtime_shim.configure.text_file import read_text
from runtime_shim.procfs import parent_pid

_ENGINE_SECONDS = 30.0
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DROP_IN = "99-vgpu"
# From here on a file that is imported adds to a plugin's table; before, it replaced the table.
# Source: containerd issue 5837.
_MERGES = (2, 1)
_DOCKER_FILE = Path("/etc/docker/daemon.json")
_DOCKER_FILE_OPTION = "--config-file"
_DOCKER_DEFAULT_OPTION = "--default-runtime"
_GENERATED = re.compile(r"^#.*\bDO NOT EDIT\b.*$", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One file of an engine that is to be edited."""

    engine: str
    path: Path
    editor: Editor
    verify: Callable[[str, bool], None] = lambda _path, _default: None
    """Asks the engine whether the file, as it now stands, has the runtime. Raises EditError."""


def docker(file: Path | None) -> Target:
    """Return Docker's daemon.json."""
    path = file or _file_in_use("dockerd", _DOCKER_FILE_OPTION, _DOCKER_FILE)
    program = _program("dockerd")

    def verify(_path: str, default: bool) -> None:
        for words in _command_lines("dockerd"):
            used = Path(_option_value(words, (_DOCKER_FILE_OPTION, "")) or _DOCKER_FILE)
            if default and used == path and _option_value(words, (_DOCKER_DEFAULT_OPTION, "")):
                raise FaultError(
                    "would name a default, and dockerd was started with "
                    f"{_DOCKER_DEFAULT_OPTION}: with both it does not start; take the option out "
                    "of its unit first"
                )
        # Docker 20.10 cannot check; it has no such option.
        if program and "--validate" in _output(program, "--help"):
            try:
                _output(program, "--validate", "--config-file", str(path))
            except EditError as error:
                raise FaultError(f"would be refused by Docker: {error}") from error

    return Target(
        engine="docker",
        path=path,
        editor=DockerEditor(),
        verify=verify,
    )


def containerd(file: Path | None) -> Target:
    """Return the file of containerd in which a handler of the CRI plugin takes effect."""
    main = file or _file_in_use("containerd", "--config", Path("/etc/containerd/config.toml"), "-c")
    with about(main):
        text = read_text(main)
        effective_config(text or "")  # says better than containerd what is wrong with it
    if text and (mark := _GENERATED.search(text[:4096])):
        raise EditError(f"{main} is generated (`{mark[0]}`); put the runtime into its template")
    program = _program("containerd")
    if program is None and text is None:
        raise EditError(f"there is neither a program containerd nor {main}; install containerd")
    version = _version(program) if program else (0, 0)
    own_version = effective_config(text).version if text else 0
    with about(main):
        _check_version(own_version, version[0], text or "")
    effective = _effective(program, main, text)
    if effective.disabled:
        raise EditError(
            f"{main} disables the CRI plugin (disabled_plugins), so that no handler is ever used; "
            "remove it from that list first"
        )
    path = _containerd_file(main, version, effective)

    def verify(runtime: str, default: bool) -> None:
        if program is None:
            return
        now = effective_config(_dump(program, main))
        if hidden := sorted(set(effective.runtimes) - set(now.runtimes)):
            raise FaultError(f"would hide the handler {hidden[0]!r}")
        handler = now.runtimes.get(RUNTIME_NAME, {})
        if handler.get("options", {}).get("BinaryName") != runtime:
            raise FaultError("has the handler, but containerd does not see it: an import covers it")
        if default and now.default != RUNTIME_NAME:
            raise FaultError(f"is overruled by an import, which makes {now.default!r} the default")

    return Target(
        engine="containerd",
        path=path,
        editor=ContainerdEditor(
            effective=effective,
            new_file_version=own_version or effective.version or 2,
            merges=version >= _MERGES,
        ),
        verify=verify,
    )


def crio(file: Path | None) -> Target:
    """Return our drop-in for CRI-O."""
    path = file or Path("/etc/crio/crio.conf.d") / f"{_DROP_IN}.conf"
    files = [path.parent.parent / "crio.conf", *sorted(path.parent.glob("*"))]
    handler = CrioHandler()
    for each in files:
        if each.is_file() and each != path:
            with about(each):
                handler.read(read_text(each) or "")
    return Target(engine="crio", path=path, editor=CrioEditor(handler=handler.default()))


def podman(file: Path | None) -> Target:
    """Return our drop-in for podman and buildah."""
    path = file or Path("/etc/containers/containers.conf.d") / f"{_DROP_IN}.conf"
    return Target(
        engine="podman",
        path=path,
        editor=PodmanEditor(),
    )


ENGINES: Mapping[str, Callable[[Path | None], Target]] = {
    "docker": docker,
    "containerd": containerd,
    "crio": crio,
    "podman": podman,
}

EDITORS: Mapping[str, Editor] = {
    "docker": DockerEditor(),
    "containerd": ContainerdEditor(),
    "crio": CrioEditor(),
    "podman": PodmanEditor(),
}
"""What undoes: it needs nothing of the engine, which may be gone."""

APPLY: Mapping[str, str] = {
    "docker": "systemctl reload docker",
    "containerd": "systemctl restart containerd",
    "crio": "systemctl restart crio",
    "podman": "nothing; the next podman command reads it",
}
"""What a person does to let the engine read its file."""

APPLY_UNDO: Mapping[str, str] = {
    **APPLY,
    # A reload takes neither a runtime nor a default away, and Docker 20.10 ends with a panic when
    # the default that it still has is no longer among the runtimes.
    "docker": "systemctl restart docker (a reload does not do)",
}
"""The same after an undo."""


def _check_version(own: int, major: int, text: str) -> None:
    """Refuse a file that containerd reads and then, for the CRI plugin, ignores."""
    if major == 1 and own > 2:
        raise FaultError(f"is of version {own}, which containerd 1 does not know")
    if major > 1 and own < 2 and text.strip():
        raise FaultError(
            f"is of version 1, whose CRI plugin containerd {major} ignores; bring it up to date "
            "with `containerd config migrate`"
        )


def _containerd_file(main: Path, version: tuple[int, int], effective: Effective) -> Path:
    imported = _imported(main, effective.imports)
    if version < _MERGES:
        # The last file with the plugin's table is the only one that counts.
        return next((each for each in reversed(imported) if _defines_cri(each)), main)
    drop_in = main.parent / "conf.d" / f"{_DROP_IN}.toml"
    patterns = [str(main.parent / pattern) for pattern in effective.imports]
    covered = any(fnmatch.fnmatchcase(str(drop_in), pattern) for pattern in patterns)
    return drop_in if covered else main


def _imported(main: Path, imports: Sequence[str]) -> list[Path]:
    names = [name for each in imports for name in sorted(glob.glob(str(main.parent / each)))]
    return [Path(name) for name in dict.fromkeys(names) if Path(name) != main]


def _defines_cri(path: Path) -> bool:
    with about(path):
        return defines_cri(read_text(path) or "")


def _effective(program: str | None, main: Path, text: str | None) -> Effective:
    if program is None:
        return effective_config(text or "")
    if text is None:
        return effective_config(_output(program, "config", "default"))
    return effective_config(_dump(program, main))


def _dump(program: str, main: Path) -> str:
    try:
        return _output(program, "--config", str(main), "config", "dump")
    except EditError as error:
        raise EditError(f"{main} is refused by containerd: {error}") from error


def _version(program: str) -> tuple[int, int]:
    found = re.search(r"\sv?(\d+)\.(\d+)\.", _output(program, "--version"))
    if found is None:
        raise EditError(f"{program} --version does not name a version")
    return int(found[1]), int(found[2])


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_PLACES}")


def _output(program: str, *words: str) -> str:
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ENGINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EditError(f"{program} cannot be run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise EditError(lines[-1] if lines else f"{program} ended with {done.returncode}")
    return done.stdout


def _file_in_use(program: str, option: str, usual: Path, short: str = "") -> Path:
    """Return the file that the running daemon was given. Raises EditError when there are several.

    A host may have a second engine (of k3s, say); to edit the wrong one helps nobody.
    """
    files = {
        Path(_option_value(words, (option, short)) or usual) for words in _command_lines(program)
    }
    if len(files) > 1:
        names = ", ".join(sorted(map(str, files)))
        raise EditError(f"{program} runs more than once, with {names}; choose one with --file")
    found = files.pop() if files else usual
    if not found.is_absolute():
        raise EditError(
            f"{program} was started with {found}, below a folder that only it knows; "
            "name the file with --file"
        )
    return found


def _command_lines(program: str) -> list[list[str]]:
    """Return the command lines of a program's processes that see the file system as we do."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
                continue
        except OSError:
            continue
        words = _command_line(int(pid))
        # A containerd that dockerd has started is dockerd's, its file included.
        if os.path.basename(words[0]) == program:
            parent = _command_line(parent_pid(int(pid)))
            if os.path.basename(parent[0]) != "dockerd":
                found.append(words)
    return found


def _command_line(pid: int) -> list[str]:
    """Return the words of a process; one empty word when it is gone."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return [""]


def _option_value(words: list[str], names: tuple[str, str]) -> str:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names and name:
            return value if equals else "".join(words[index + 1 : index + 2])
    return ""
