# SPDX-License-Identifier: Apache-2.0
"""Checks what the host's engines know of the runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from runtime_shim.configure.editor import RUNTIME_NAME, EditError, about
from runtime_shim.configure.engines import ENGINES, Target
from runtime_shim.configure.text_file import read_text
from runtime_shim.doctor.finding import Finding, fail, ok, warn

# The program by which an engine is known to be installed.
_PROGRAMS = {"docker": "dockerd", "containerd": "containerd", "crio": "crio", "podman": "podman"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_engines(
    targets: Mapping[str, Callable[[Path | None], Target]] = ENGINES, path: str = _PATH
) -> list[Finding]:
    """Look at every engine that is installed; at least one must know the runtime."""
    present = [name for name in targets if shutil.which(_PROGRAMS[name], path=path)]
    if not present:
        names = ", ".join(targets)
        return [warn("engines", f"none of {names} is installed", "install a container engine")]
    findings = [_check(name, targets[name]) for name in present]
    known = any(finding is not None for finding in findings)
    return [
        finding or _without(name, known) for name, finding in zip(present, findings, strict=True)
    ]


def _without(engine: str, another_has_it: bool) -> Finding:
    """Return what to think of an engine that does not know the runtime: one that does is enough."""
    name, words = f"engine {engine}", f"does not know {RUNTIME_NAME!r}"
    if another_has_it:
        return ok(name, words)
    return warn(name, f"{words}, and no other engine does", f"vgpuctl configure {engine}")


def _check(engine: str, find: Callable[[Path | None], Target]) -> Finding | None:
    """Return what is to say of an engine that knows the runtime; None of one that does not."""
    name = f"engine {engine}"
    try:
        target = find(None)
        with about(target.path):
            text = read_text(target.path)
            traces = target.editor.traces(text or "")
    except (EditError, OSError) as error:
        return warn(name, f"not known: {error}", f"then vgpuctl configure {engine}")
    if traces.runtime is None:
        return None
    program = runtime_program(traces.runtime)
    if not program.startswith("/") or not os.access(program, os.X_OK):
        return fail(
            name,
            f"{target.path} names {program or 'no program'}, which cannot be run: with it no "
            "container starts",
            f"vgpuctl configure {engine}, or vgpuctl configure {engine} --undo",
        )
    try:
        with about(target.path):
            target.verify(program, traces.default == RUNTIME_NAME)
    except EditError as error:
        return fail(name, str(error), f"correct it, then vgpuctl configure {engine}")
    words = "as its default" if traces.default == RUNTIME_NAME else "when it is asked for"
    return ok(name, f"{target.path}: uses {program} {words}")


def runtime_program(entry: object) -> str:
    """Return the program of a runtime's entry, in whichever engine's form; empty without one."""
    match entry:
        case {"path": str(program)} | {"runtime_path": str(program)}:
            return program
        case {"options": {"BinaryName": str(program)}}:
            return program
        case [str(program), *_]:
            return program
    return ""
