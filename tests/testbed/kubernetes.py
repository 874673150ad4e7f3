# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes API server with its etcd, in a scratch directory: no kubelet, no scheduler.

Pods, nodes and leases are objects; whoever tests is everybody who would act on them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "end-to-end"
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0


class UnavailableError(Exception):
    """The programs cannot be had here; the message says which and why."""


def find_programs() -> tuple[str, str]:
    """Return the paths of etcd and kube-apiserver. Raises UnavailableError."""
    etcd = shutil.which("etcd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if etcd is None:
        raise UnavailableError("etcd is not installed: run `scripts/setup e2e`")
    return etcd, str(find_program("kube-apiserver"))


def find_program(name: str) -> Path:
    """Return the path of a program of Kubernetes, built when it is not there yet.

    Raises UnavailableError.
    """
    found = subprocess.run(
        [REPOSITORY / "scripts" / "kube-program", name], stdout=subprocess.PIPE, check=False
    )
    if found.returncode:
        raise UnavailableError(f"{name} cannot be had: see above")
    return Path(found.stdout.decode().strip())


class ControlPlane:
    """One etcd and one API server; either can be killed and started again."""

    def __init__(self, folder: Path, etcd: str, apiserver: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._programs = {"etcd": etcd, "kube-apiserver": apiserver}
        self._etcd_port, peer_port, self._port = (_free_port() for _ in range(3))
        self.url = f"https://127.0.0.1:{self._port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments = {
            "etcd": [
                f"--data-dir={folder}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
                f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
                # A scratch cluster's data die with the test.
                "--unsafe-no-fsync",
            ],
            "kube-apiserver": [
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self._port}",
                f"--cert-dir={folder}/certificates",
                f"--token-auth-file={folder}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={folder}/service-account.key",
                f"--service-account-key-file={folder}/service-account.key",
                "--service-cluster-ip-range=10.0.0.0/24",
                # No controller makes the accounts that it would ask for.
                "--disable-admission-plugins=ServiceAccount",
                # Tests are its only clients and may ask as fast as they can.
                "--enable-priority-and-fairness=false",
                "--max-requests-inflight=0",
                "--max-mutating-requests-inflight=0",
            ],
        }

    @property
    def certificate_authority(self) -> Path:
        """What signs the server's certificate: itself."""
        return self._folder / "certificates" / "apiserver.crt"

    def start(self) -> None:
        """Start what does not run, and wait until it is ready."""
        (self._folder / "tokens.csv").write_text(f'{TOKEN},tester,tester,"system:masters"\n')
        key = self._folder / "service-account.key"
        if not key.exists():
            subprocess.run(
                ["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True
            )
        for name in self._programs:
            self._start(name)
        self._wait_ready()

    def kill(self, name: str) -> None:
        """End `etcd` or `kube-apiserver` with SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        process.wait(_STOP_SECONDS)

    def stop(self) -> None:
        """End everything."""
        for name in reversed(list(self._running)):
            process = self._running.pop(name)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)

    def compact(self) -> None:
        """Let etcd forget all history, and the API server its own by starting anew."""
        revision = self._etcd("range", {"key": "AA=="})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})
        self.kill("kube-apiserver")
        self.start()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig of somebody who may do everything."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "tester"}}],
            "clusters": [
                {
                    "name": "e2e",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.certificate_authority),
                    },
                }
            ],
            "users": [{"name": "tester", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(config))
        return path

    def _etcd(self, method: str, request: dict[str, object]) -> Any:  # noqa: ANN401 - JSON
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{method}"
        with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as response:
            return json.load(response)

    def _start(self, name: str) -> None:
        if name in self._running:
            return
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._programs[name], *self._arguments[name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready():
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended: {self._last_words(name)}"
            assert time.monotonic() < deadline, self._last_words("kube-apiserver")
            time.sleep(0.1)

    def _ready(self) -> bool:
        if not self.certificate_authority.exists():
            return False
        try:
            context = ssl.create_default_context(cafile=str(self.certificate_authority))
            request = urllib.request.Request(
                f"{self.url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"}
            )
            with urllib.request.urlopen(request, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _last_words(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Yield a running control plane, and end it. Raises UnavailableError."""
    plane = ControlPlane(folder, *find_programs())
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
