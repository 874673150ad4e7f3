# SPDX-License-Identifier: Apache-2.0
"""Root file systems for containers, made from this host's busybox and glibc; no registry needed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.testbed import BUILD

PROBE = "/usr/bin/vgpu-probe"


def build_rootfs(target: Path, *, loader: str = "glibc") -> Path:
    """Fill `target` with busybox and, by `loader`, glibc and vgpu-probe, a musl name, or nothing.

    `loader` is `glibc`, `musl` (a loader file that only looks like musl's) or `none`.
    """
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o755)  # whatever made it; containers run as other users too
    for folder in ("bin", "etc", "proc", "sys", "dev", "tmp", "usr/bin", "run", "root", "lib"):
        (target / folder).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox is not installed: run `make setup`"
    shutil.copy2(busybox, target / "bin/busybox")
    for applet in ("sh", "sleep", "cat", "env", "ls", "dd", "echo", "true", "id", "mount", "tail"):
        (target / "bin" / applet).symlink_to("busybox")
    (target / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n"
    )
    (target / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    if loader == "glibc":
        _copy_glibc(target)
        shutil.copy2(BUILD / "vgpu-probe", target / PROBE.lstrip("/"))
    elif loader == "musl":
        (target / "lib/ld-musl-x86_64.so.1").write_bytes(b"\x7fELF")
    return target


def copy_rootfs(template: Path, target: Path) -> Path:
    """Copy `template` by hard links: cheap, and containers only add files to it."""
    subprocess.run(["cp", "-al", f"{template}/.", str(target)], check=True)
    return target


def _copy_glibc(target: Path) -> None:
    """Copy the loader and the C library that this host's Python runs on, at their own paths."""
    listing = subprocess.run(
        ["ldd", str(BUILD / "vgpu-probe")], check=True, capture_output=True, text=True
    ).stdout
    files = set(re.findall(r"(/\S+) \(0x", listing))
    libc = next(Path(file) for file in files if "libc.so.6" in file)
    for soname in ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"):
        if (libc.parent / soname).exists():
            files.add(str(libc.parent / soname))
    for file in files:
        destination = target / file.lstrip("/")
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(os.path.realpath(file), destination)
    # Debian's loader searches /usr/lib/<triplet> too: that is where driver libraries are bound.
    (target / "usr/lib" / libc.parent.name).mkdir(parents=True, exist_ok=True)
