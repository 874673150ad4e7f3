# SPDX-License-Identifier: Apache-2.0
"""Which folder of the host exists for as long as an engine knows a container."""

from __future__ import annotations

import os

from runtime_shim.spec import Spec, annotations_of, destination, is_bind, mounts, source

# Docker keeps these in <data-root>/containers/<id>/ and binds them into the container. With
# --network container:OTHER they are OTHER's, so only the folder above counts.
_DOCKER_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
# Source: nerdctl, pkg/labels/labels.go, StateDir; its own OCI hook reads the annotation too.
_NERDCTL_STATE = "nerdctl/state-dir"


def engine_directory(spec: Spec, container_id: str, bundle: str) -> str:
    """Return the folder whose end is the end of the container.

    Docker: the container's own folder. Podman: the parent of the bundle. nerdctl: its state
    directory. Others, ctr among them: the bundle, which goes with the task.
    """
    marks = annotations_of(spec)
    if marks.get("io.container.manager") == "libpod":
        return os.path.dirname(bundle)
    named = [marks[_NERDCTL_STATE]] if _NERDCTL_STATE in marks else []
    for folder in named + _docker_folders(spec, container_id):
        if folder.startswith("/") and os.path.isdir(folder):
            return folder
    return bundle


def _docker_folders(spec: Spec, container_id: str) -> list[str]:
    folders = [
        os.path.join(os.path.dirname(os.path.dirname(source(mount))), container_id)
        for mount in mounts(spec)
        if is_bind(mount) and destination(mount) in _DOCKER_FILES
    ]
    return list(dict.fromkeys(folders))
