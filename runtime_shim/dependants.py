# SPDX-License-Identifier: Apache-2.0
"""Which living containers need what is installed: the launcher, and which version of the library.

Asked of the kernel alone, so that the answer holds also when no agent runs. Blocking calls.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

from runtime_shim.answers import RUNNING, Answer
from runtime_shim.processes import boot_id, find_init

# What a container has mounted: `<root of the mount> /dev/vgpu/<file>`. The kernel marks a source
# that was deleted. Source: proc_pid_mountinfo(5), fields 4 and 5.
_MOUNTED = re.compile(rb"^\d+ \d+ \S+ (\S+?)(?://deleted)? /dev/vgpu/(libvgpu\.so|limits) ", re.M)
# Files of a containerd bundle that name the runtime binary.
# Source: containerd, cmd/containerd-shim-runc-v2/runc, WriteRuntime and WriteOptions.
_BUNDLE_FILES = ("runtime", "options.json")
_NAME = re.compile(r"[\w.+~-]{1,256}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Dependant:
    """A living container that was started through the launcher."""

    container_id: str
    allocation_id: str = ""
    """Empty: it has no slice, and its engine ends it through the launcher all the same."""
    library_version: str = ""
    """Name of the folder whose library it has mounted; empty when it has none."""


def dependants(
    launcher: str, answers: Collection[Answer], proc: Path = Path("/proc")
) -> list[Dependant]:
    """Return the living containers, by id."""
    by_allocation = {answer.allocation_id: answer for answer in answers}
    found: dict[str, Dependant] = {}
    for allocation_id, version in mounted_libraries(proc).items():
        answer = by_allocation.get(allocation_id)
        name = answer.container_id if answer else allocation_id
        found[name] = Dependant(
            container_id=name, allocation_id=allocation_id, library_version=version
        )
    for answer in answers:
        if answer.container_id not in found and _lives(answer):
            found[answer.container_id] = Dependant(
                container_id=answer.container_id, allocation_id=answer.allocation_id
            )
    for name in engine_containers(launcher, proc):
        found.setdefault(name, Dependant(container_id=name))
    return [found[name] for name in sorted(found)]


def mounted_libraries(proc: Path = Path("/proc")) -> dict[str, str]:
    """Return allocation id → version of the library that its container has mounted."""
    tables: dict[str, dict[str, str]] = {}
    for process in _processes(proc):
        with contextlib.suppress(OSError):
            namespace = os.readlink(process / "ns/mnt")
            if namespace not in tables:
                tables[namespace] = _mounts(process)
    found = {}
    for files in tables.values():
        if "limits" in files:
            # …/containers/<allocation id>/limits, …/<version>/libvgpu.so
            allocation_id = Path(files["limits"]).parent.name
            version = Path(files.get("libvgpu.so", "")).parent.name
            # A tenant with a user namespace of its own can mount what it likes there.
            if _NAME.fullmatch(allocation_id):
                found[allocation_id] = version if _NAME.fullmatch(version) else ""
    return found


def remove_unused_versions(library: Path) -> list[str]:
    """Remove the folders of versions that no container has mounted; return their names.

    Only where `library` is reached through the link `current` beside which versions lie; the one
    that it names stays, and so does what is no version's folder.
    """
    link = library.parent
    if not link.is_symlink():
        return []
    keep = {os.path.basename(os.path.realpath(link)), *mounted_libraries().values()}
    removed = []
    for folder in sorted(link.parent.iterdir()):
        if folder.name in keep or folder.is_symlink() or not folder.name[:1].isdigit():
            continue
        if (folder / library.name).is_file():
            shutil.rmtree(folder)
            removed.append(folder.name)
    return removed


def remove_unused_copies(copies: Iterable[Path], current: Path) -> list[str]:
    """Remove the agent's copies of versions that no container has mounted; return their names.

    `copies`: the folders that hold them. `current`: the copy of the library that new containers
    get; its version stays.
    """
    keep = {current.parent.name, *mounted_libraries().values()}
    removed = set()
    for folder in chain.from_iterable(each.glob("*/*") for each in copies):
        if folder.name not in keep:
            shutil.rmtree(folder)
            removed.add(folder.name)
            with contextlib.suppress(OSError):  # a file of another version has the same content
                folder.parent.rmdir()
    return sorted(removed)


def engine_containers(launcher: str, proc: Path = Path("/proc")) -> set[str]:
    """Return the ids of containers whose engine will call the launcher to end them.

    `launcher` is its path, or only its name. A shim of containerd (Docker's too) stands in its
    bundle, beside those of the same pod; conmon has the runtime among its words.
    """
    found: set[str] = set()
    here = os.readlink("/proc/self/ns/pid")
    for process in _processes(proc):
        try:
            if os.readlink(process / "ns/pid") != here:  # a tenant's, whatever it calls itself
                continue
            name = (process / "comm").read_text(errors="replace").strip()
            if name.startswith("containerd-shim"):
                found |= _shim_containers(launcher, process / "cwd")
            elif name.startswith("conmon"):
                found |= _conmon_containers(launcher, process)
        except OSError:  # it has ended
            continue
    return found


def _processes(proc: Path) -> Iterator[Path]:
    yield from (entry for entry in proc.iterdir() if entry.name.isdecimal())


def _mounts(process: Path) -> dict[str, str]:
    table = (process / "mountinfo").read_bytes()
    return {name.decode(): os.fsdecode(root) for root, name in _MOUNTED.findall(table)}


def _lives(answer: Answer) -> bool:
    """Tell whether a container without mounts of ours (whole cards) has its first process."""
    if answer.state != RUNNING or answer.boot_id != boot_id():
        return False
    init = find_init(
        answer.runtime_root,
        answer.container_id,
        answer.pid_file,
        answer.verdict_boottime_ns,
        answer.runtime_dir,
    )
    if init is None:
        return False
    init.close()
    return True


def _shim_containers(launcher: str, cwd: Path) -> set[str]:
    tasks = Path(os.readlink(cwd)).parent
    found = set()
    for bundle in tasks.iterdir():
        for name in _BUNDLE_FILES:
            with contextlib.suppress(OSError):
                if launcher in (bundle / name).read_text(errors="replace"):
                    found.add(bundle.name)
    return found


def _conmon_containers(launcher: str, process: Path) -> set[str]:
    words = (process / "cmdline").read_text(errors="replace").split("\0")
    # --cid or -c ID, --runtime or -r PATH. Source: conmon(8).
    # What comes after --exit-command is another program's.
    own = words[: words.index("--exit-command")] if "--exit-command" in words else words
    values = dict(pairwise(own))
    runtime = values.get("--runtime") or values.get("-r") or ""
    container_id = values.get("--cid") or values.get("-c") or ""
    if launcher not in runtime or not _NAME.fullmatch(container_id):
        return set()
    return {container_id}
