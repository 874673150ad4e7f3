# SPDX-License-Identifier: Apache-2.0
"""Runs a program of this image in the host's mount namespace, for the node's DaemonSet.

`python -m runtime_shim.host_namespace vgpu-node-agent run`: the agent judges what a container is to
mount by the paths that its engine means, and makes mounts that the engine must see; an installation
edits the host's files and asks the host's programs. From a pod's own mount namespace all of these
are other files. So the process enters the host's and becomes the program, with the image's Python
and the image's libraries; only the driver's NVML comes from the host. The image, with the volumes
of its pod, is then found below `IMAGE_ROOT`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from runtime_shim.elf import read_interpreter
from runtime_shim.errors import RuntimeShimError

PROGRAMS: Mapping[str, str] = {
    "vgpu-node-agent": "runtime_shim.agent",
    "vgpuctl": "runtime_shim.cli",
}

# Above what a program opens before it execs, so that configuration can name them.
_IMAGE_FD = 100
_NAMESPACE_FD = 101
IMAGE_ROOT = Path(f"/proc/self/fd/{_IMAGE_FD}")
"""The root of the image, for the process that has left it."""

_CLONE_NEWNS = 0x00020000  # Source: linux/sched.h
_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables by which the image's own start would change what the host's programs load.
_IMAGE_VARIABLES = ("LD_", "PYTHON")


class HostNamespaceError(RuntimeShimError):
    """The host's mount namespace cannot be entered."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What to execute once the host's namespace is entered."""

    loader: str
    """The image's dynamic loader: the host's may be older than the image's libraries."""
    words: tuple[str, ...]
    environment: Mapping[str, str]


def invocation(program: str, arguments: Sequence[str]) -> Invocation:
    """Return how this interpreter, seen from outside its image, runs one of `PROGRAMS`."""
    python = sys.executable
    interpreter = read_interpreter(Path(python))
    if interpreter is None:
        raise HostNamespaceError(f"{python} names no dynamic loader; use the image as it was built")
    loader = _in_image(interpreter)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_IMAGE_VARIABLES) and name != "PATH"
    }
    environment["PATH"] = _HOST_PATH
    environment["PYTHONHOME"] = _in_image(sys.base_prefix)
    # All of it: what .pth files and a virtual environment have added is found nowhere else.
    environment["PYTHONPATH"] = ":".join(_in_image(each) for each in sys.path if each[:1] == "/")
    words = (loader, "--argv0", program, "--library-path", ":".join(_library_folders(interpreter)))
    # -P -s: nothing of the host's, its root or a home of it, is imported.
    python_words = (_in_image(python), "-P", "-s", "-m", PROGRAMS[program])
    return Invocation(
        loader=loader, words=(*words, *python_words, *arguments), environment=environment
    )


def run(program: str, arguments: Sequence[str], host_pid: int = 1) -> NoReturn:
    """Become `program` in the mount namespace of process `host_pid`. Raises HostNamespaceError.

    No other thread may run: the kernel moves a whole process or none.
    """
    call = invocation(program, arguments)
    try:
        host = _host_namespace(host_pid)
        _keep("/", os.O_PATH | os.O_DIRECTORY, _IMAGE_FD)
        # Without it the pod's volumes would be gone with the last process of their namespace.
        _keep("/proc/self/ns/mnt", os.O_RDONLY, _NAMESPACE_FD)
        if ctypes.CDLL(None, use_errno=True).setns(host, _CLONE_NEWNS) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        os.chdir("/")
        os.execve(call.loader, call.words, call.environment)
    except OSError as error:
        raise HostNamespaceError(
            f"cannot run {program} in the host's mount namespace: {error.strerror}; the pod needs "
            "hostPID: true, and its container privileged: true"
        ) from error


def _host_namespace(host_pid: int) -> int:
    path = f"/proc/{host_pid}/ns/mnt"
    if os.readlink(path) == os.readlink("/proc/self/ns/mnt"):
        raise HostNamespaceError(
            f"{path} is this process's own mount namespace; the pod needs hostPID: true"
        )
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _keep(path: str, flags: int, number: int) -> None:
    """Open `path` under a number that the program inherits."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    os.dup2(descriptor, number, inheritable=True)
    os.close(descriptor)


def _in_image(path: str) -> str:
    """Return how a path of the image is reached from outside, free of links: an absolute one would
    lead to a file of the host.
    """
    return f"{IMAGE_ROOT}{os.path.realpath(path)}"


def _library_folders(interpreter: str) -> Iterable[str]:
    """Return the image's library folders: its loader's own defaults, and where Python has some."""
    architecture = f"{os.uname().machine}-linux-gnu"
    folders = [
        f"{sys.base_prefix}/lib",
        f"/usr/local/lib/{architecture}",
        "/usr/local/lib",
        f"/lib/{architecture}",
        f"/usr/lib/{architecture}",
        os.path.dirname(interpreter),
        "/lib",
        "/usr/lib",
    ]
    return dict.fromkeys(_in_image(each) for each in folders)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--host-pid",
    default=1,
    show_default=True,
    help="A process of the host, whose mount namespace is entered.",
)
@click.argument("program", type=click.Choice(sorted(PROGRAMS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(host_pid: int, program: str, arguments: Sequence[str]) -> None:
    """Run PROGRAM of this image in the host's mount namespace."""
    try:
        run(program, arguments, host_pid)
    except HostNamespaceError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="vgpu-on-host")
