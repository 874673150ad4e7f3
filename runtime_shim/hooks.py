# SPDX-License-Identifier: Apache-2.0
"""Recognises hooks of a spec that run the NVIDIA toolkit, which adds devices by itself; pure.

Only root writes hooks: an engine, its hook folders, a CDI spec, NRI plugins. So the danger is an
administrator's own arrangement, not a tenant's disguise, and the toolkit's programs are looked for
by their names. Every other hook stays: engines need theirs, for networks above all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from runtime_shim.errors import RefusedError
from runtime_shim.spec import Item, Spec, items, section, texts

# Source: libnvidia-container and nvidia-container-toolkit, their packages' /usr/bin; suffixes such
# as `.real` come from the GPU operator.
_PROGRAMS = r"nvidia-(?:container-(?:cli|runtime-hook|toolkit)|cdi-hook|ctk)"
_IS_PROGRAM = re.compile(rf"(?:[^\s=;&|]*/)?{_PROGRAMS}(?:[.-][\w.-]*)?")
_NAMES_PROGRAM = re.compile(rf"(?<![\w-]){_PROGRAMS}(?![\w/])")

# Such a hook is resolved in the container's root, not in the host's.
# Source: OCI runtime-spec 1.2, config.md, "POSIX-platform Hooks".
_IN_CONTAINER = "startContainer"

_REMEDY = "take it out of the engine's hooks: vgpu itself brings what is granted"


def is_nvidia_hook(hook: Item) -> bool:
    """Tell whether a hook is a program of the NVIDIA toolkit, or hands over to one.

    `containerd oci-hook -- nvidia-container-cli …` of `ctr run --gpus` does the latter, and so do
    env, sudo, timeout, nsenter and their like: the program is an argument of its own.
    """
    return any(_IS_PROGRAM.fullmatch(word) for word in _words(hook))


def refuse_hidden_nvidia(spec: Spec) -> None:
    """Raise RefusedError for a hook that names a program of the toolkit inside a longer text.

    A shell's command or a variable may do other things besides, which nobody would miss if the hook
    were taken out silently.
    """
    hooks = section(spec, "hooks")
    for stage in hooks:
        for hook in items(hooks, stage):
            for text in (*_words(hook), *texts(hook, "env")):
                if found := _NAMES_PROGRAM.search(text):
                    raise _refusal(stage, hook, f"names {found[0]}")


def host_paths(spec: Spec) -> Iterator[tuple[str, Item, str]]:
    """Yield each path of the host that a hook may run: its stage, the hook, the path."""
    hooks = section(spec, "hooks")
    for stage in hooks.keys() - {_IN_CONTAINER}:
        for hook in items(hooks, stage):
            for word in _words(hook):
                if word.startswith("/") and _may_be_a_file(word):
                    yield stage, hook, word


def refuse_nvidia_file(stage: str, hook: Item, path: str, real: str, text: str) -> None:
    """Raise RefusedError if a file that a hook runs is a program of the toolkit, or names one.

    `real`: its path without links; `text`: its content if that is a text.
    """
    if _IS_PROGRAM.fullmatch(real):
        raise _refusal(stage, hook, f"leads to {real}")
    if found := _NAMES_PROGRAM.search(text):
        raise _refusal(stage, hook, f"runs {path}, which names {found[0]}")


def _may_be_a_file(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # JSON can write what no file's name can be
        return False


def _words(hook: Item) -> list[str]:
    path = hook.get("path")
    return ([path] if isinstance(path, str) else []) + texts(hook, "args")


def _refusal(stage: str, hook: Item, what: str) -> RefusedError:
    return RefusedError(
        f"its {stage} hook {str(hook.get('path'))[:256]!r} {what}, which would add GPUs", _REMEDY
    )
