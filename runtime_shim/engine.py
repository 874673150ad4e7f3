# SPDX-License-Identifier: Apache-2.0
"""Which folder of the host exists for as long as an engine knows a container."""

from __future__ import annotations

import os
import re

from runtime_shim.spec import Spec, annotations_of, destination, is_bind, mounts, source

# Docker keeps these in <data-root>/containers/<id>/ and binds them into the container. With
# --network container:OTHER they are OTHER's, so only the folder above counts.
_DOCKER_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
# <data root>/<address>/containers/<namespace>/<id>; its own OCI hook reads the annotation too.
# Users of other engines may set it, but cannot know an id beforehand.
# Source: nerdctl, pkg/labels/labels.go, StateDir; pkg/containerutil, ContainerStateDirPath.
_NERDCTL_STATE = "nerdctl/state-dir"
_NERDCTL_FOLDER = re.compile(r"/.+/containers/[^/]+/([^/]+)")
# <storage>/overlay-containers/<id>/userdata. Source: containers/storage, ContainerDirectory.
_PODMAN_BUNDLE = re.compile(r"/.+/([^/]+)/userdata")


def engine_directory(spec: Spec, container_id: str, bundle: str) -> str:
    """Return the folder whose end is the end of the container.

    Docker: the container's own folder. Podman: the parent of the bundle. nerdctl: its state
    directory. Others, ctr among them: the bundle, which goes with the task.
    """
    marks = annotations_of(spec)
    if marks.get("io.container.manager") == "libpod" and _names(
        _PODMAN_BUNDLE, bundle, container_id
    ):
        return os.path.dirname(bundle)
    state = marks.get(_NERDCTL_STATE, "")
    named = [state] if _names(_NERDCTL_FOLDER, state, container_id) else []
    for folder in named + _docker_folders(spec, container_id):
        if folder.startswith("/") and os.path.isdir(folder):
            return folder
    return bundle


def _names(pattern: re.Pattern[str], path: str, container_id: str) -> bool:
    """Tell whether a path without detours has the form of `pattern`, with the id in its place."""
    match = pattern.fullmatch(path)
    return bool(match and match[1] == container_id and os.path.normpath(path) == path)


def _docker_folders(spec: Spec, container_id: str) -> list[str]:
    folders = [
        os.path.join(os.path.dirname(os.path.dirname(source(mount))), container_id)
        for mount in mounts(spec)
        if is_bind(mount) and destination(mount) in _DOCKER_FILES
    ]
    return list(dict.fromkeys(folders))
