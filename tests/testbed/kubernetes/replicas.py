# SPDX-License-Identifier: Apache-2.0
"""The replicas of the scheduler cache as processes, behind the Services of the chart."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.testbed.kubernetes.control_plane import ControlPlane
from tests.testbed.kubernetes.process import Process, free_port
from tests.testbed.kubernetes.release import NAMESPACE, Release
from tests.testbed.kubernetes.service import Services

ACCOUNT = "vgpu-scheduler-cache"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# The Deployment's ports by name, which are its Services' target ports, and the keys that say where
# the process listens.
_LISTEN = {
    "grpc": ("listen",),
    "grpc-token": ("token_listen",),
    "metrics": ("metrics_listen",),
    "admission": ("admission", "listen"),
    "extender": ("extender", "listen"),
}


class Replicas:
    """Two replicas. Each has a pod in the API that no node runs: the process is what runs."""

    names = ("cache-0", "cache-1")

    def __init__(
        self, folder: Path, plane: ControlPlane, release: Release, client_ca: Path
    ) -> None:
        """`client_ca`: who signed the nodes' certificates."""
        folder.mkdir()
        self._plane = plane
        self._ports = {name: {port: free_port() for port in _LISTEN} for name in self.names}
        self._selected: dict[str, list[str]] = {}
        token = release.token(ACCOUNT)
        kubeconfig = plane.kubeconfig(folder / "kubeconfig", {"token": token})
        tls = release.secret("vgpu-tls", folder / "tls")
        keys = release.secret("vgpu-keys", folder / "keys")
        mounts = {
            "/etc/vgpu/tls": str(tls),
            "/etc/vgpu/client-ca/ca.crt": str(client_ca),
            "/etc/vgpu/keys": str(keys),
        }
        self.certificate_authority = tls / "ca.crt"
        self.processes: list[Process] = []
        for name in self.names:
            config = _moved(release.config(), mounts)
            config["log_format"] = "text"
            config["listen"] = [f"unix:{folder}/{name}.sock"]
            config["kubernetes"].update(in_cluster=False, kubeconfig=str(kubeconfig), pod_name=name)
            self._listen(config["kubernetes"], name)
            file = folder / f"{name}.toml"
            file.write_text(_toml(config))
            words: list[str | Path] = [
                sys.executable,
                "-m",
                "scheduler_cache.cli",
                "serve",
                "--config",
                file,
            ]
            self.processes.append(Process(name, words, folder / f"{name}.log"))
            pod = {
                "metadata": {"name": name, "labels": release.replica_labels()},
                "spec": {
                    "schedulingGates": [{"name": "vgpu.dev/runs-as-a-process"}],
                    "serviceAccountName": ACCOUNT,
                    "containers": [{"name": "cache", "image": "docker.io/vgpu-test/none:1"}],
                },
            }
            plane.request("POST", _PODS, pod)

    def serve(self, services: Services, items: Sequence[Any]) -> None:
        """Put the replicas behind the Services that select their pods."""
        for item in items:
            spec = item["spec"]
            selector = ",".join(f"{key}={value}" for key, value in spec["selector"].items())
            for port in spec["ports"]:
                target = str(port["targetPort"])

                def endpoints(selector: str = selector, target: str = target) -> list[int]:
                    return [self._ports[name][target] for name in self._ready(selector)]

                services.add(spec["clusterIP"], port["port"], endpoints)

    def leader(self) -> str:
        """Return the name of the replica that leads as the API knows it; empty: none."""
        names = self._select("vgpu.dev/leader=true")
        return names[0] if len(names) == 1 else ""

    def _ready(self, selector: str) -> list[str]:
        """Return the replicas that a Service leads to; without an API server, those of before."""
        with suppress(OSError, urllib.error.URLError):
            self._selected[selector] = self._select(selector)
        return [name for name in self._selected.get(selector, ()) if self._is_ready(name)]

    def _select(self, selector: str) -> list[str]:
        listed = self._plane.request("GET", f"{_PODS}?labelSelector={selector}")
        return [each["metadata"]["name"] for each in listed["items"]]

    def _is_ready(self, name: str) -> bool:
        """Ask as the kubelet's readiness probe does."""
        try:
            url = f"http://127.0.0.1:{self._ports[name]['metrics']}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _listen(self, table: dict[str, Any], name: str) -> None:
        """Give a replica ports of its own: in a pod each would have all of them."""
        for port, (*path, key) in _LISTEN.items():
            inner = table
            for step in path:
                inner = inner.get(step, {})
            if key in inner:
                address = f"127.0.0.1:{self._ports[name][port]}"
                inner[key] = address if isinstance(inner[key], str) else [address]


def _moved(value: Any, mounts: Mapping[str, str]) -> Any:  # noqa: ANN401 - TOML
    """Return a configuration whose paths lead to what a pod would have mounted there."""
    if isinstance(value, Mapping):
        return {key: _moved(each, mounts) for key, each in value.items()}
    if isinstance(value, str):
        for place, real in mounts.items():
            if value == place or value.startswith(f"{place}/"):
                return real + value.removeprefix(place)
    return value


def _toml(table: Mapping[str, Any], path: str = "") -> str:
    """Return a table as TOML, whose plain values are JSON's."""
    lines = [f"[{path}]"] if path else []
    lines += [
        f"{key} = {json.dumps(value)}" for key, value in table.items() if not _is_table(value)
    ]
    lines += [
        _toml(value, f"{path}.{key}" if path else key)
        for key, value in table.items()
        if _is_table(value)
    ]
    return "\n".join(lines) + "\n"


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)
