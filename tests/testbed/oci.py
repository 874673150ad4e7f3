# SPDX-License-Identifier: Apache-2.0
"""OCI bundles, and the commands that an engine gives to a runtime."""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.testbed.rootfs import copy_rootfs

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Docker's default capabilities.
CAPABILITIES = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
]


def default_spec(args: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return a config.json in the shape that `docker run` makes, without networking."""
    return {
        "ociVersion": "1.0.2-dev",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": [PATH, *(f"{name}={value}" for name, value in env.items())],
            "cwd": "/",
            "capabilities": {kind: CAPABILITIES for kind in ("bounding", "effective", "permitted")},
        },
        "root": {"path": "rootfs"},
        "hostname": "testbed",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
            },
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
            },
            {
                "destination": "/sys",
                "type": "sysfs",
                "source": "sysfs",
                "options": ["nosuid", "noexec", "nodev", "ro"],
            },
        ],
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/sys"],
        },
    }


@dataclass
class Bundle:
    """A bundle directory: `config.json` and `rootfs`."""

    directory: Path
    spec: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        directory: Path,
        template: Path,
        args: Sequence[str],
        env: Mapping[str, str],
        *,
        mounts: Sequence[tuple[Path, str]] = (),
    ) -> "Bundle":
        """Make a bundle from a rootfs template; `mounts` are (host path, path inside) pairs."""
        (directory / "rootfs").mkdir(parents=True)
        copy_rootfs(template, directory / "rootfs")
        bundle = cls(directory, default_spec(args, env))
        # As every engine does; by their names alone, containers of two tests would share a cgroup.
        digest = hashlib.sha256(str(directory).encode()).hexdigest()
        bundle.spec["linux"]["cgroupsPath"] = f"/vgpu-{digest[:16]}"
        for source, destination in mounts:
            bundle.spec["mounts"].append(
                {
                    "destination": destination,
                    "type": "bind",
                    "source": str(source),
                    "options": ["rbind", "rw"],
                }
            )
        bundle.write()
        return bundle

    def write(self) -> None:
        """Write config.json afresh, as an engine does before every start."""
        (self.directory / "config.json").write_text(
            json.dumps(self.spec, separators=(",", ":")), encoding="utf-8"
        )

    def read(self) -> Any:  # noqa: ANN401  a config.json is arbitrary JSON
        """Return config.json as it stands on disk, with the agent's edits."""
        return json.loads((self.directory / "config.json").read_text(encoding="utf-8"))


class RuntimeFailedError(Exception):
    """A runtime command ended with an exit code other than 0."""

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)}: exit {status}: {stderr.strip()}")
        self.argv = argv
        self.status = status
        self.stderr = stderr


class OciRuntime:
    """Gives commands to a runtime binary as engines do, with a root directory of its own."""

    def __init__(
        self,
        binary: Path,
        root: Path,
        *,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self.binary = binary
        self.root = root
        self._global = [*prefix, str(binary), "--root", str(root), *options]

    def words(self, *words: str) -> list[str]:
        """Return a whole command line."""
        return [*self._global, *words]

    def command(
        self, *words: str, timeout_seconds: float = 60, log: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; raise `RuntimeFailedError` unless it exits 0."""
        argv = list(self._global)
        if log is not None:
            argv += ["--log", str(log), "--log-format", "json"]
        argv += words
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
        if done.returncode != 0:
            raise RuntimeFailedError(argv, done.returncode, done.stderr)
        return done

    def run(self, bundle: Bundle, container_id: str, *, timeout_seconds: float = 60) -> str:
        """Run a container in the foreground and return its stdout."""
        return self.command(
            "run", "--bundle", str(bundle.directory), container_id, timeout_seconds=timeout_seconds
        ).stdout

    def start_detached(self, bundle: Bundle, container_id: str, *, log: Path | None = None) -> None:
        """Create and start a container as containerd's shim does: stdio is not ours to hold."""
        argv = list(self._global)
        if log is not None:
            argv += ["--log", str(log), "--log-format", "json"]
        argv += ["create", "--bundle", str(bundle.directory), container_id]
        with (bundle.directory / "stdio").open("w+b") as stdio:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=stdio, stderr=stdio, timeout=60
            )
            if done.returncode != 0:
                stdio.seek(0)
                raise RuntimeFailedError(argv, done.returncode, stdio.read().decode())
        self.command("start", container_id)

    def exec(self, container_id: str, *args: str, timeout_seconds: float = 60) -> str:
        """Run a command in a running container and return its stdout."""
        return self.command("exec", container_id, *args, timeout_seconds=timeout_seconds).stdout

    def exec_detached(self, container_id: str, *args: str) -> None:
        """Start a command in a running container and leave it running."""
        argv = [*self._global, "exec", "--detach", container_id, *args]
        subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )

    def state(self, container_id: str) -> Any:  # noqa: ANN401  JSON of the runtime
        """Return the runtime's own word on a container."""
        return json.loads(self.command("state", container_id).stdout)

    def delete(self, container_id: str) -> None:
        """Kill and delete a container, whatever its state; no error when it is not there."""
        self.command("delete", "--force", container_id)
