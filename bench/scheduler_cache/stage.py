# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of a measurement, and says on what machine it ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.scheduler_cache.api_server import OWN_POD
from bench.scheduler_cache.synthetic import KEYRING, Size
from scheduler_cache.config import Config
from scheduler_cache.config_kubernetes import ExtenderConfig, KubernetesConfig
from tests.testbed.certificates import CertificateAuthority

SERVER_NAME = "vgpu-scheduler-cache"

# Names are not looked up: a resolver without a network takes seconds for each, 64 at a time.
NAME_OPTION = ("grpc.ssl_target_name_override", "localhost")


def secret() -> bytes:
    """Return what synthetic allocations are signed with, in the form that a key file has."""
    return KEYRING.current.secret


class Child:
    """A Python module as a process that speaks lines of JSON."""

    def __init__(self, module: str, *arguments: str, cpus: Sequence[int] = ()) -> None:
        self.started_ns = time.monotonic_ns()
        words = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            [word.replace("NOW", str(self.started_ns)) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)

    def read(self) -> str:
        """Return the next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line.strip()

    def json(self) -> Any:  # noqa: ANN401 - JSON
        """Return the next line decoded."""
        return json.loads(self.read())

    def ask(self, line: str) -> Any:  # noqa: ANN401 - JSON
        """Write a line and return the answer."""
        self.tell(line)
        return self.json()

    def tell(self, line: str) -> None:
        """Write a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used, which a busy machine hardly changes."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()


class Stage:
    """One folder with an authority, a key and a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority(folder / "ca")
        self.serving = self.authority.issue_server(SERVER_NAME)
        (folder / "keys").mkdir()
        (folder / "keys" / "current").write_bytes(secret())
        self._stack = ExitStack()

    def config(
        self,
        kubeconfig: Path,
        own_pod: str = OWN_POD,
        extender: ExtenderConfig = ExtenderConfig(),  # noqa: B008 - frozen
        *,
        name: str = "cache",
    ) -> Path:
        """Write a replica's configuration for the API server that `kubeconfig` leads to."""
        config = Config(
            listen=(f"unix:{self.folder}/{name}.sock",),
            drain_seconds=0.1,
            kubernetes=replace(
                KubernetesConfig(),
                kubeconfig=str(kubeconfig),
                pod_name=own_pod,
                listen=("127.0.0.1:0",),
                certificate=str(self.serving.certificate),
                key=str(self.serving.key),
                client_ca=str(self.authority.certificate),
                keys_dir=str(self.folder / "keys"),
                metrics_listen="",
                # Nobody renews the Leases of synthetic nodes.
                eviction_seconds=86400.0,
                extender=extender,
            ),
        )
        path = self.folder / f"{name}.toml"
        path.write_text(str(config))
        return path

    def kubeconfig(self, url: str) -> Path:
        """Write a kubeconfig for a server that asks for no proof."""
        path = self.folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "current-context": "bench",
                    "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": ""}}],
                    "clusters": [{"name": "bench", "cluster": {"server": url}}],
                    "users": [],
                }
            )
        )
        return path

    def start(self, module: str, *arguments: str, cpus: Sequence[int] = ()) -> Child:
        """Start a process that ends with this stage."""
        child = Child(module, *arguments, cpus=cpus)
        self._stack.callback(child.kill)
        return child

    def synthetic(self, size: Size, cpus: Sequence[int] = ()) -> Path:
        """Start a synthetic API server and return the configuration that leads to it."""
        server = self.start(
            "bench.scheduler_cache.api_server",
            "--nodes",
            str(size.nodes),
            "--pods",
            str(size.pods),
            cpus=cpus,
        )
        return self.config(self.kubeconfig(server.read()))

    def replica(self, config: Path, cpus: Sequence[int] = ()) -> Child:
        """Start the cache."""
        return self.start("bench.scheduler_cache.replica", str(config), "NOW", cpus=cpus)

    def close(self) -> None:
        """End all processes."""
        self._stack.close()


@contextmanager
def stage() -> Iterator[Stage]:
    """Give a stage that is cleared at the end."""
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder))
        try:
            yield stage
        finally:
            stage.close()


def dialled(address: str) -> str:
    """Return where to reach a listener of the cache on this machine; with NAME_OPTION."""
    return f"ipv4:127.0.0.1:{address.rpartition(':')[2]}"


def print_machine() -> None:
    """Say what else ran on how many processors: a busy machine makes every number larger."""
    cpus = os.cpu_count()
    print(f"{cpus} processors, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
