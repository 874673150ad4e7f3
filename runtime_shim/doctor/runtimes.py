# SPDX-License-Identifier: Apache-2.0
"""Checks the launcher and the two runtimes that it becomes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tomllib
from pathlib import Path
from typing import Any

from runtime_shim.doctor.finding import Finding, fail, ok, warn
from runtime_shim.doctor.program import ask
from runtime_shim.doctor.runtime_conf import RuntimeConf
from runtime_shim.strip import names_cards

# The oldest that the test tiers run.
_LEAST = {"runc": (1, 0), "crun": (1, 8)}
# Earlier ones let an image run code as root on the host: CVE-2025-23266, CVE-2025-23359.
_LEAST_TOOLKIT = (1, 17, 8)
_TOOLKIT = "nvidia-container-runtime"
_TOOLKIT_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PT_INTERP = 3


def check_launcher(launcher: Path | None, conf: RuntimeConf) -> Finding:
    """Look whether engines can run it, and whether it becomes the low-level runtime."""
    if launcher is None:
        return fail(
            "launcher",
            "vgpu-container-runtime is neither beside vgpuctl nor in /usr/bin or /usr/local/bin",
            "install the package vgpu-runtime",
        )
    status = os.stat(launcher)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return fail(
            "launcher",
            f"{launcher} can be changed by others than root, and engines run it as root",
            f"chown root:root {launcher}; chmod 755 {launcher}",
        )
    if _is_dynamic(launcher):
        return fail(
            "launcher",
            f"{launcher} is linked dynamically, so that an engine's environment can change it",
            "install the package vgpu-runtime again",
        )
    low_level = conf.low_level()
    if low_level is not None:
        expected = ask(low_level, "--version")
        said = ask(launcher, "--version")
        if expected.status == 0 and said.output != expected.output:
            return fail(
                "launcher",
                f"{launcher} does not become {low_level}: {said.last_line}",
                f"correct {conf.source}",
            )
    return ok("launcher", str(launcher))


def check_low_level(conf: RuntimeConf) -> Finding:
    """Look for the runtime that every container ends in."""
    path = conf.low_level()
    if path is None:
        return fail(
            "low-level runtime",
            "neither runc nor crun is in /usr/local/sbin, /usr/local/bin, /usr/sbin or /usr/bin",
            f"install runc, or set low_level_runtime in {conf.source}",
        )
    said = ask(path, "--version")
    found = re.search(r"\b(runc|crun) version (\d+)\.(\d+)(\S*)", said.output)
    if said.status != 0:
        return fail(
            "low-level runtime",
            f"{path}: {said.last_line}",
            f"install runc, or correct low_level_runtime in {conf.source}",
        )
    if found is None:
        return warn(
            "low-level runtime",
            f"{path} is neither runc nor crun",
            "vgpu is tested on these two",
        )
    name, version = found[1], (int(found[2]), int(found[3]))
    words = f"{path}, {name} {found[2]}.{found[3]}{found[4]}"
    if version < _LEAST[name]:
        least = ".".join(map(str, _LEAST[name]))
        return fail("low-level runtime", words, f"install {name} {least} or newer")
    return ok("low-level runtime", words)


def check_gpu_runtime(
    conf: RuntimeConf, enabled: bool, toolkit_config: Path = _TOOLKIT_CONFIG
) -> Finding:
    """Look whether NVIDIA's runtime, where it is used, does what the agent relies on."""
    name = "gpu runtime"
    if enabled and not conf.gpu_runtime:
        return fail(
            name,
            "agent.toml says gpu_runtime.enabled, and the launcher knows no GPU runtime",
            f"set gpu_runtime in {conf.source}, or gpu_runtime.enabled = false",
        )
    path = conf.gpu_runtime or shutil.which(_TOOLKIT, path=_PATH)
    if path is None:
        return ok(name, "not used; the agent gives devices and driver libraries itself")
    said = ask(path, "--version")
    if not enabled and said.status != 0:
        return ok(name, f"not used; {path} is there and does not work: {said.last_line}")
    if said.status != 0:
        return fail(name, f"{path}: {said.last_line}", f"correct gpu_runtime in {conf.source}")
    version = _toolkit_version(said.output)
    words = f"{path} {'.'.join(map(str, version)) if version else 'of an unknown version'}"
    if version is not None and version < _LEAST_TOOLKIT:
        least = ".".join(map(str, _LEAST_TOOLKIT))
        level = fail if enabled else warn
        return level(
            name,
            f"{words}: an image can become root on this host (CVE-2025-23266)",
            f"install nvidia-container-toolkit {least} or newer",
        )
    if not enabled:
        return ok(name, f"not used; {words} is there for other containers")
    if version is None:
        return warn(name, words, "vgpu is made for NVIDIA's container toolkit")
    return _toolkit_settings(name, words, conf, toolkit_config)


def _toolkit_settings(name: str, words: str, conf: RuntimeConf, path: Path) -> Finding:
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        settings = {}
    except (OSError, ValueError) as error:
        return fail(
            name,
            f"{path} cannot be read ({error}), and then NVIDIA's runtime cannot even stop a "
            "container",
            "nvidia-ctk config --in-place repairs it",
        )
    if settings.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True) is False:
        return fail(
            name,
            f"{path} ignores NVIDIA_VISIBLE_DEVICES, by which the agent names the cards "
            "(accept-nvidia-visible-devices-envvar-when-unprivileged = false)",
            "set gpu_runtime.enabled = false in agent.toml: then the agent gives devices itself",
        )
    swarm = [each.strip() for each in str(settings.get("swarm-resource") or "").split(",")]
    if foreign := [each for each in swarm if each and not names_cards(each)]:
        return fail(
            name,
            f"{path} lets every container choose its cards by its variable {foreign[0]!r}"
            " (swarm-resource)",
            "take it out there, or name it DOCKER_RESOURCE_GPU, which the agent watches",
        )
    below = _toolkit_low_level(settings)
    ours = conf.low_level()
    if below is None:
        return fail(name, f"{words} finds no low-level runtime", f"correct runtimes in {path}")
    if ours is not None and os.path.realpath(below) != os.path.realpath(ours):
        return fail(
            name,
            f"{words} ends in {below}, and every other command in {ours}: a container that one "
            "has made the other cannot end",
            f"name the same in {path} (runtimes) and {conf.source} (low_level_runtime)",
        )
    return ok(name, f"{words}, on {below}")


def _toolkit_low_level(settings: dict[str, Any]) -> str | None:
    """Return what NVIDIA's runtime becomes: the first of its list that it finds."""
    names = settings.get("nvidia-container-runtime", {}).get("runtimes") or ["runc", "crun"]
    found = (shutil.which(str(each), path=_PATH) for each in names)
    return next((each for each in found if each), None)


def _toolkit_version(text: str) -> tuple[int, ...] | None:
    found = re.search(r"version:?\s+v?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found and "NVIDIA" in text else None


def _is_dynamic(path: Path) -> bool:
    """Tell whether a program asks for an interpreter. Source: System V ABI, "Program Header"."""
    content = path.read_bytes()[:4096]
    if not content.startswith(b"\x7fELF\x02\x01"):
        return True
    start = int.from_bytes(content[32:40], "little")
    size, count = (int.from_bytes(content[at : at + 2], "little") for at in (54, 56))
    headers = (content[start + index * size :][:4] for index in range(count))
    return _PT_INTERP in (int.from_bytes(each, "little") for each in headers)
