# SPDX-License-Identifier: Apache-2.0
"""The kubelet of a scratch cluster, which believes that this host's /var is its own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.kubernetes.process import Process, free_port

# The kubelet has these two folders in its text: its device plugins' sockets are below
# /var/lib/kubelet, and links to logs in /var/log/containers. Mounts in the scratch directory are
# shared with the engine, all others are the kubelet's own.
_OWN_VAR = """
for place in / /var /var/lib /var/log; do mount --make-slave "$place" 2>/dev/null; done
mount --bind "$1/lib" /var/lib && mount --bind "$1/log" /var/log || exit 1
shift
exec "$@"
"""


@dataclass(frozen=True, kw_only=True)
class KubeletSetup:
    """What a kubelet is told."""

    folder: Path
    """Its own; mounts in it must be shared with the engine."""
    program: Path
    node_name: str
    node_address: str
    kubeconfig: Path
    client_ca: Path
    """Who signs the API server's certificate, by which it may ask for logs."""
    engine: Path
    """The socket of the engine's CRI."""
    cgroup: str


class Kubelet:
    """One kubelet."""

    def __init__(self, setup: KubeletSetup) -> None:
        self._setup = setup
        self._health_port = free_port()
        folder = setup.folder
        self.root = folder / "lib" / "kubelet"
        """Its `/var/lib/kubelet`, as everybody else sees it."""
        for place in (self.root, folder / "log" / "pods", folder / "plugins"):
            place.mkdir(parents=True, exist_ok=True)
        config = folder / "config.json"
        config.write_text(json.dumps(self._config()))
        self.process = Process(
            "kubelet",
            [
                *("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _OWN_VAR),
                *("sh", folder),
                setup.program,
                f"--config={config}",
                f"--kubeconfig={setup.kubeconfig}",
                f"--root-dir={self.root}",
                f"--cert-dir={folder}/pki",
                f"--hostname-override={setup.node_name}",
                f"--node-ip={setup.node_address}",
            ],
            folder / "kubelet.log",
        )

    def healthy(self) -> bool:
        """Return whether it says that it is well."""
        self.process.check()
        try:
            url = f"http://127.0.0.1:{self._health_port}/healthz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _config(self) -> dict[str, object]:
        """Return what differs from the defaults, and why."""
        setup = self._setup
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{setup.engine}",
            "port": free_port(),
            "healthzPort": self._health_port,
            "authentication": {
                "x509": {"clientCAFile": str(setup.client_ca)},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "podLogsDir": str(setup.folder / "log" / "pods"),
            "volumePluginDir": str(setup.folder / "plugins"),
            "resolvConf": "",
            # No systemd here, and a cgroup beside those of other kubelets.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{setup.cgroup}",
            "enforceNodeAllocatable": [],
            # The host's network is not the test's.
            "makeIPTablesUtilChains": False,
            # Not every machine that runs tests is one that a kubelet would call fit.
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Its image is nowhere but here.
            "imageMinimumGCAge": "24h",
        }
