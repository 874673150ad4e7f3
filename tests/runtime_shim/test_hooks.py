# SPDX-License-Identifier: Apache-2.0
"""Which hooks are the NVIDIA toolkit's, and which are an engine's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime_shim.doors import check_hooks
from runtime_shim.errors import RefusedError
from runtime_shim.spec import Spec
from runtime_shim.strip import strip_gpu
from tests.runtime_shim.specs import plain_spec

STAGES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
CLI = "/usr/bin/nvidia-container-cli"
CONFIGURE = ("configure", "--device=0", "--pid={{pid}}", "{{rootfs}}")

# As Docker, nerdctl and podman's packages write them.
OWN_HOOKS = (
    {
        "path": "/proc/811/exe",
        "args": ["libnetwork-setkey", "-exec-root=/var/run/docker", "4f1c", "9a0b"],
    },
    {
        "path": "/usr/local/bin/nerdctl",
        "args": ["nerdctl", "internal", "oci-hook", "createRuntime"],
        "env": ["PATH=/usr/local/nvidia/bin:/usr/bin", "NVIDIA_VISIBLE_DEVICES=all"],
    },
    {"path": "/usr/bin/oci-seccomp-bpf-hook", "args": ["oci-seccomp-bpf-hook", "-s"]},
    {"path": "/bin/sh", "args": ["sh", "-c", "ip link set eth0 up"]},
    {"path": "/usr/bin/my-nvidia-ctk"},
    {"path": "/usr/bin/net", "args": ["net", "--config=/etc/nvidia-container-toolkit/x"]},
)


def with_hook(stage: str, *hooks: dict[str, Any]) -> Spec:
    return {**plain_spec(), "hooks": {stage: list(hooks)}}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "words",
    [
        [CLI, "nvidia-container-cli", *CONFIGURE],
        ["/usr/bin/nvidia-container-runtime-hook", "nvidia-container-runtime-hook", "prestart"],
        ["/usr/local/nvidia/toolkit/nvidia-ctk.real", "nvidia-ctk", "hook"],
        ["/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "update-ldcache"],
        ["/usr/bin/containerd", "containerd", "oci-hook", "--", CLI, "--load-kmods", *CONFIGURE],
        ["/usr/bin/env", "env", "A=1", CLI, *CONFIGURE],
        ["/usr/bin/sudo", "sudo", "-E", "nvidia-container-cli", *CONFIGURE],
        ["/usr/bin/timeout", "timeout", "9", CLI, *CONFIGURE],
        ["/usr/bin/nsenter", "nsenter", "-t", "1", "-m", CLI, *CONFIGURE],
        ["/bin/busybox", "busybox", "sh", "-c", CLI],
    ],
    ids=lambda words: "-".join(Path(word).name for word in words[:3]),
)
def test_a_hook_that_is_or_hands_over_to_the_toolkit_is_taken_out(
    stage: str, words: list[str]
) -> None:
    spec = with_hook(stage, {"path": words[0], "args": words[1:]}, *OWN_HOOKS)

    stripped, removed = strip_gpu(spec, library=None)

    assert stripped["hooks"] == {stage: list(OWN_HOOKS)}
    assert removed == [f"{stage} hook of the NVIDIA toolkit would add devices"]
    assert strip_gpu(stripped, library=None) == (stripped, [])


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "hook",
    [
        {"path": "/bin/sh", "args": ["sh", "-c", f"ip link set eth0 up; exec {CLI} configure"]},
        {"path": "/bin/sh", "args": ["sh", "-c", "$RUN"], "env": [f"RUN={CLI} configure"]},
        {"path": "/usr/bin/mine", "args": ["mine", f"--gpu={CLI}"]},
        {"path": "/bin/sh", "args": ["sh", "-c", "nvidia-ctk;ip link set eth0 up"]},
    ],
    ids=["command", "variable", "option", "commands"],
)
def test_a_hook_that_may_do_more_is_refused(stage: str, hook: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match=rf"its {stage} hook '{hook['path']}' names nvidia-"):
        strip_gpu(with_hook(stage, hook), library=None)


def test_hooks_of_engines_stay() -> None:
    for stage in STAGES:
        spec = with_hook(stage, *OWN_HOOKS)
        assert strip_gpu(spec, library=None) == (spec, [])
        check_hooks(spec)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a hook's script on the host that starts the toolkit."""
    path = tmp_path / "hook"
    path.write_text(f"#!/bin/sh\nip link set eth0 up\nexec {CLI} configure\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "startContainer"])
def test_a_script_that_runs_the_toolkit_is_refused(stage: str, script: Path) -> None:
    alone = {"path": str(script)}
    by_a_shell = {"path": "/bin/sh", "args": ["sh", "-e", str(script)]}

    for hook in (alone, by_a_shell):
        with pytest.raises(RefusedError, match=f"{stage} hook .* names nvidia-container-cli"):
            check_hooks(with_hook(stage, hook))


def test_a_link_to_the_toolkit_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "hook"
    link.symlink_to("/usr/bin/nvidia-container-runtime-hook")

    with pytest.raises(RefusedError, match="leads to /usr/bin/nvidia-container-runtime-hook"):
        check_hooks(with_hook("prestart", {"path": str(link)}))


def test_a_path_of_the_container_is_not_looked_for_on_the_host(script: Path) -> None:
    check_hooks(with_hook("startContainer", {"path": str(script)}))


def test_what_is_no_script_is_passed_over(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\0nvidia-container-cli")

    for path in (program, tmp_path, tmp_path / "missing", Path("/dev/zero"), Path("/x\0y")):
        check_hooks(with_hook("prestart", {"path": str(path)}))
