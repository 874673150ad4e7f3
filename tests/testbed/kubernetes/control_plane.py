# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes API server with its etcd, in a scratch directory."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.programs import find_built, find_installed
from tests.testbed.node import wait_until

TOKEN = "end-to-end"
START_SECONDS = 120.0

# Pods, nodes and leases are objects alone; whoever tests is everybody who would act on them.
ALONE = (
    "--authorization-mode=RBAC",
    "--service-cluster-ip-range=10.0.0.0/24",
    # No controller makes the accounts that it would ask for.
    "--disable-admission-plugins=ServiceAccount",
    # As everywhere where node agents are DaemonSets.
    "--allow-privileged=true",
    # Tests are its only clients and may ask as fast as they can.
    "--enable-priority-and-fairness=false",
    "--max-requests-inflight=0",
    "--max-mutating-requests-inflight=0",
)


class ControlPlane:
    """One etcd and one API server; either can be killed and started again."""

    def __init__(
        self,
        folder: Path,
        etcd: Path,
        apiserver: Path,
        flags: Sequence[str] = ALONE,
        certificate_authority: Path | None = None,
    ) -> None:
        """`flags`: of the API server, beside those that say where everything is.

        `certificate_authority`: who signed the server's certificate; None: it makes its own.
        """
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._etcd_port, peer_port, port = (free_port() for _ in range(3))
        self.certificate_authority = (
            certificate_authority or folder / "certificates" / "apiserver.crt"
        )
        self.url = f"https://127.0.0.1:{port}"
        self.service_account_key = folder / "service-account.key"
        self.etcd = Process(
            "etcd",
            [
                etcd,
                f"--data-dir={folder}/etcd",
                f"--listen-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--advertise-client-urls=http://127.0.0.1:{self._etcd_port}",
                f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
                f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
                # A scratch cluster's data die with the test.
                "--unsafe-no-fsync",
            ],
            folder / "etcd.log",
        )
        self.apiserver = Process(
            "kube-apiserver",
            [
                apiserver,
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={folder}/certificates",
                f"--token-auth-file={folder}/tokens.csv",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={self.service_account_key}",
                f"--service-account-key-file={self.service_account_key}",
                *flags,
            ],
            folder / "kube-apiserver.log",
        )

    def start(self) -> None:
        """Start what does not run, and wait until it is ready."""
        (self._folder / "tokens.csv").write_text(f'{TOKEN},tester,tester,"system:masters"\n')
        if not self.service_account_key.exists():
            subprocess.run(
                ["openssl", "genrsa", "-out", self.service_account_key, "2048"],
                check=True,
                capture_output=True,
            )
        self.etcd.start()
        self.apiserver.start()
        wait_until(self._ready, "the API server is ready", timeout_seconds=START_SECONDS, step=0.1)

    def kill(self, name: str) -> None:
        """End `etcd` or `kube-apiserver` with SIGKILL."""
        {"etcd": self.etcd, "kube-apiserver": self.apiserver}[name].kill()

    def stop(self) -> None:
        """End everything."""
        self.apiserver.stop()
        self.etcd.stop()

    def compact(self) -> None:
        """Let etcd forget all history, and the API server its own by starting anew."""
        revision = self._etcd("range", {"key": "AA=="})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})
        self.apiserver.kill()
        self.start()

    def kubeconfig(self, path: Path, user: Mapping[str, str] | None = None) -> Path:
        """Write a kubeconfig of `user`; None is somebody who may do everything."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "e2e",
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "me"}}],
            "clusters": [
                {
                    "name": "e2e",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.certificate_authority),
                    },
                }
            ],
            "users": [{"name": "me", "user": dict(user or {"token": TOKEN})}],
        }
        path.write_text(json.dumps(config))
        return path

    def request(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Call the API server as somebody who may do everything; raises urllib's errors."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
        )
        context = ssl.create_default_context(cafile=str(self.certificate_authority))
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            text = response.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def _etcd(self, method: str, request: dict[str, object]) -> Any:  # noqa: ANN401 - JSON
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{method}"
        with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as response:
            return json.load(response)

    def _ready(self) -> bool:
        self.etcd.check()
        self.apiserver.check()
        try:
            return bool(self.request("GET", "/readyz") == "ok")
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Yield a running control plane, and end it. Raises UnavailableError."""
    plane = ControlPlane(folder, find_installed("etcd"), find_built("kube-apiserver"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
