# SPDX-License-Identifier: Apache-2.0
"""Starts two real containers through the launcher: one that asks for nothing, one that asks.

Their only file is a program of a few instructions, which tells whether it sees its limits: nothing
of the host's is needed, and no GPU is touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

from runtime_shim.doctor.finding import Finding, fail, ok, warn
from runtime_shim.doctor.program import Spoken, ask
from runtime_shim.elf import MACHINES

_SECONDS = 60.0
_LIMITS = b"/dev/vgpu/limits\0"
# exit(open("/dev/vgpu/limits", O_RDONLY) < 0)
_CODE = {
    "x86_64": bytes.fromhex(
        "b802000000"  # mov eax, 2 (open)
        "488d3d12000000"  # lea rdi, [rip + 18]: the path behind the code
        "31f6"  # xor esi, esi
        "31d2"  # xor edx, edx
        "0f05"  # syscall
        "c1e81f"  # shr eax, 31: 1 for an error
        "89c7"  # mov edi, eax
        "b83c000000"  # mov eax, 60 (exit)
        "0f05"  # syscall
    ),
    "aarch64": struct.pack(
        "<8I",
        0x92800C60,  # mov x0, #-100 (AT_FDCWD)
        0x100000E1,  # adr x1, . + 28: the path behind the code
        0xD2800002,  # mov x2, #0
        0xD2800708,  # mov x8, #56 (openat)
        0xD4000001,  # svc #0
        0xD37FFC00,  # lsr x0, x0, #63: 1 for an error
        0xD2800BA8,  # mov x8, #93 (exit)
        0xD4000001,  # svc #0
    ),
}
_SEES_LIMITS, _SEES_NONE = 0, 1
_LOAD_ADDRESS = 0x400000


def check_container(launcher: Path | None, mode: str) -> Finding:
    """Start both containers, and clean up after them.

    In Kubernetes mode nobody gets a slice without a pod: there the second one asks for all GPUs,
    and must see none.
    """
    name = "container"
    if launcher is None:
        return fail(name, "not started: there is no launcher", "see the line of the launcher")
    if os.geteuid() != 0:
        return warn(name, "not started: only root can", "run vgpuctl doctor as root")
    if os.uname().machine not in _CODE:
        return warn(name, f"not started: no program for {os.uname().machine}", "start one by hand")
    # Not /tmp, which may be mounted so that nothing in it can be executed.
    with tempfile.TemporaryDirectory(prefix="vgpu-doctor-", dir="/run") as folder:
        plain = _run(launcher, Path(folder), "plain", [])
        if plain.status != _SEES_NONE or plain.error:
            return fail(
                name,
                f"one without a GPU does not start through {launcher}: {plain.last_line}",
                "see the lines of the launcher and the low-level runtime",
            )
        if mode != "local":
            asking = _run(launcher, Path(folder), "asking", ["NVIDIA_VISIBLE_DEVICES=all"])
            return _without_pod(name, asking)
        sliced = _run(launcher, Path(folder), "slice", ["VGPU_MEMORY=1Mi"])
    if sliced.status == _SEES_LIMITS and not sliced.error:
        return ok(name, "starts with a slice of 1 MiB, and sees its limits")
    if re.search(r"\bno (?:unused )?card\b.*\b(?:free|left)\b", sliced.error):
        return warn(
            name,
            f"starts without a GPU; no slice is free: {sliced.last_line}",
            "look again when the node is less busy",
        )
    if sliced.error:
        return fail(name, f"none starts with a slice: {sliced.last_line}", "do what it says")
    return fail(
        name,
        "it started with a slice and has no /dev/vgpu/limits",
        "see journalctl -u vgpu-node-agent",
    )


def _without_pod(name: str, asking: Spoken) -> Finding:
    if asking.status == _SEES_NONE and not asking.error:
        return ok(name, "starts, and without a pod it gets no slice")
    return fail(
        name,
        f"one that asks for GPUs without a pod does not start: {asking.last_line}",
        "see journalctl -u vgpu-node-agent",
    )


def tiny_program(machine: str) -> bytes:
    """Return the program as a static ELF file. Source: System V ABI, "ELF Header"."""
    code = _CODE[machine] + _LIMITS
    header_bytes = 64 + 56
    size = header_bytes + len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,  # ET_EXEC
        MACHINES[machine],
        1,
        _LOAD_ADDRESS + header_bytes,
        64,
        0,
        0,
        64,
        56,
        1,
        64,
        0,
        0,
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, size, size, 0x1000)
    return header + segment + code


def _run(launcher: Path, folder: Path, name: str, env: list[str]) -> Spoken:
    bundle = folder / name
    for directory in ("dev", "etc", "proc", "sys"):
        (bundle / "rootfs" / directory).mkdir(parents=True)
    program = bundle / "rootfs/look"
    program.write_bytes(tiny_program(os.uname().machine))
    program.chmod(0o755)
    (bundle / "config.json").write_text(json.dumps(_spec(env)))
    container_id = f"vgpu-doctor-{name}-{os.getpid()}"
    root = ("--root", str(folder / "root"))
    try:
        return ask(launcher, *root, "run", "--bundle", str(bundle), container_id, seconds=_SECONDS)
    finally:
        ask(launcher, *root, "delete", "--force", container_id)
        # The claim ends with the bundle.
        shutil.rmtree(bundle, ignore_errors=True)


def _spec(env: list[str]) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/look"],
            "env": ["PATH=/", *env],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "hostname": "vgpu-doctor",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=64k"],
            },
        ],
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
        },
    }
