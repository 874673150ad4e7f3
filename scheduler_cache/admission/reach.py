# SPDX-License-Identifier: Apache-2.0
"""What lets a pod reach past its slice, or our own files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from vgpu.privileges import UNDOING

from scheduler_cache.admission.podspec import (
    ContainerSource,
    Json,
    flag_of,
    list_of,
    mapping_of,
    spec_of,
    text_of,
    volumes_of,
)
from scheduler_cache.admission.review import DeniedError
from scheduler_cache.admission.rules import Rules

# `//` and `/./` are one slash, /var/run is a link to /run, and /proc/PID/root and /proc/PID/cwd are
# ones to everything. The API server reads it as RE2. There is one way to match any text, so that
# none takes long.
_SLASH: Final = r"/+(\./+)*"
_NUMBER: Final = r"[^/.][^/]*"
_PROCESS: Final = rf"proc{_SLASH}{_NUMBER}{_SLASH}(task{_SLASH}{_NUMBER}{_SLASH})?"
_ROOT: Final = rf"({_PROCESS}(root|cwd){_SLASH})*"
_LIB: Final = rf"(usr{_SLASH}(local{_SLASH})?|var{_SLASH})?lib"
OWN_PATHS: Final = rf"^{_SLASH}{_ROOT}((var{_SLASH})?run|{_LIB}|dev|etc|opt){_SLASH}vgpu(/|$)"
"""Host paths of ours: sockets, limits and answers; configuration, library and launcher."""

_CAPABILITIES: Final = frozenset({"ALL", *UNDOING})

# Where a host path shows cards, our files or processes: what holds them, and what is beneath. Where
# programs and library are is the node's to know, which refuses what holds them. Other devices, such
# as /dev/infiniband, and /dev/shm are the pod's own matter.
_HOLDERS: Final = frozenset({"", "dev", "etc", "run", "sys", "sys/fs", "var", "var/run", "var/lib"})
_SHOWN: Final = re.compile(r"dev/(nvidia|dri)|(proc|sys/fs/cgroup)(/|$)")

_REMEDY: Final = "remove it, or let the policy allow it (kubernetes.admission.privileged)"

CDI_DOMAIN: Final = "cdi.k8s.io"

_OWN_PATHS = re.compile(OWN_PATHS)


def check_host_paths(source: Json) -> None:
    """Refuse a volume of our own folders, whoever asks. Raises DeniedError."""
    for place, path in _host_paths(source):
        if _OWN_PATHS.match(path):
            raise DeniedError(f"{place} is {path!a}: it belongs to vgpu; remove the volume")


def check_reach(source: Json, rules: Rules) -> None:
    """Refuse what a pod with a slice may not see of its node. Raises DeniedError."""
    if list_of(spec_of(source), "resourceClaims", "/spec"):
        raise DeniedError(
            "spec.resourceClaims: a pod gets its cards by a slice or by claims, not by both; "
            "remove one of the two"
        )
    if not rules.deny_privileged:
        return
    if flag_of(spec_of(source), "hostPID", "/spec"):
        raise DeniedError(f"spec.hostPID is true: it would see others' processes; {_REMEDY}")
    for place, path in _host_paths(source):
        parts = [part for part in path.split("/") if part not in ("", ".")]
        plain = "/".join(parts)
        if plain in _HOLDERS or _SHOWN.match(plain):
            raise DeniedError(
                f"{place} is {path!a}: it shows devices, processes, cgroups or vgpu's files of the "
                f"host; "
                f"{_REMEDY}"
            )


def check_privileges(containers: Iterable[ContainerSource], rules: Rules) -> None:
    """Refuse containers beside which a limit means nothing. Raises DeniedError."""
    if not rules.deny_privileged:
        return
    for each in containers:
        place = f"{each.path}/securityContext"
        context = mapping_of(each.source, "securityContext", each.path)
        if flag_of(context, "privileged", place):
            raise DeniedError(
                f"container {each.name!a} is privileged: it would see every card; {_REMEDY}"
            )
        capabilities = mapping_of(context, "capabilities", place)
        for name in list_of(capabilities, "add", f"{place}/capabilities"):
            if str(name).upper().removeprefix("CAP_") in _CAPABILITIES:
                raise DeniedError(
                    f"container {each.name!a} adds the capability {str(name)[:40]!a}, "
                    f"with which limits can be undone; {_REMEDY}"
                )


def cdi_annotations(annotations: Iterable[str]) -> list[str]:
    """Return the annotations by which an engine would give devices: `*.cdi.k8s.io/*`, too."""
    return [
        name
        for name in annotations
        if (domain := name.partition("/")[0]) == CDI_DOMAIN or domain.endswith(f".{CDI_DOMAIN}")
    ]


def _host_paths(source: Json) -> Iterator[tuple[str, str]]:
    for index, volume in volumes_of(source):
        pointer = f"/spec/volumes/{index}"
        path = text_of(mapping_of(volume, "hostPath", pointer), "path", f"{pointer}/hostPath")
        if path:
            yield f"spec.volumes[{index}].hostPath.path", path
