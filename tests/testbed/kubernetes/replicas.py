# SPDX-License-Identifier: Apache-2.0
"""The replicas of the scheduler cache as processes, and the two Services in front of them."""

from __future__ import annotations

import json
import sys
import urllib.error
from pathlib import Path

from tests.testbed.certificates import CertificateAuthority
from tests.testbed.kubernetes.control_plane import START_SECONDS, ControlPlane
from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.service import Service
from tests.testbed.node import wait_until

NAMESPACE = "vgpu-system"
ACCOUNT = "vgpu-scheduler-cache"
SERVER_NAME = "vgpu-scheduler-cache"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_LEADER = "vgpu.dev/leader=true"


class Replicas:
    """Two replicas. Each has a pod in the API that no node runs: the process is what runs."""

    def __init__(self, folder: Path, plane: ControlPlane, authority: CertificateAuthority) -> None:
        folder.mkdir()
        self._plane = plane
        keys = folder / "keys"
        keys.mkdir()
        (keys / "current").write_bytes(b"end to end".ljust(32, b"."))
        serving = authority.issue_server(SERVER_NAME, file="serving")
        proof = authority.issue(
            f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
            organization="system:serviceaccounts",
            file="replica",
        )
        kubeconfig = plane.kubeconfig(
            folder / "kubeconfig",
            {"client-certificate": str(proof.certificate), "client-key": str(proof.key)},
        )
        self.names = ("cache-0", "cache-1")
        self._ports = {name: free_port() for name in self.names}
        self._led_by: list[str] = []
        self.processes: list[Process] = []
        for name in self.names:
            config = folder / f"{name}.toml"
            settings = {
                "kubeconfig": str(kubeconfig),
                "namespace": NAMESPACE,
                "pod_name": name,
                "listen": [f"127.0.0.1:{self._ports[name]}"],
                "certificate": str(serving.certificate),
                "key": str(serving.key),
                "client_ca": str(authority.certificate),
                "keys_dir": str(keys),
                "metrics_listen": "127.0.0.1:0",
            }
            lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
            socket = f'listen = ["unix:{folder}/{name}.sock"]'
            config.write_text("\n".join([socket, "[kubernetes]", *lines]) + "\n")
            self.processes.append(
                Process(
                    name,
                    [sys.executable, "-m", "scheduler_cache.cli", "serve", "--config", config],
                    folder / f"{name}.log",
                )
            )
        self.leader_service = Service(self._leader_ports)

    def make_pods(self) -> None:
        """Make the replicas' pods, once the controllers have made the namespace's account."""
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_until(lambda: self._exists(account), account, timeout_seconds=START_SECONDS)
        for name in self.names:
            pod = {
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "schedulingGates": [{"name": "vgpu.dev/runs-as-a-process"}],
                    "containers": [{"name": "cache", "image": "docker.io/vgpu-test/none:1"}],
                },
            }
            self._plane.request("POST", _PODS, pod)

    def close(self) -> None:
        """End the Service."""
        self.leader_service.close()

    def leader(self) -> str:
        """Return the name of the replica that leads as the API knows it; empty: none."""
        listed = self._plane.request("GET", f"{_PODS}?labelSelector={_LEADER}")
        names = [item["metadata"]["name"] for item in listed["items"]]
        return names[0] if len(names) == 1 else ""

    def _leader_ports(self) -> list[int]:
        """Return where the Service leads; while the API server is away, where it led before."""
        try:
            leader = self.leader()
        except (OSError, urllib.error.URLError):
            pass
        else:
            self._led_by = [leader] if leader else []
        return [self._ports[name] for name in self._led_by]

    def _exists(self, path: str) -> bool:
        try:
            self._plane.request("GET", path)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True
