# SPDX-License-Identifier: Apache-2.0
"""The table `[kubernetes]` of the configuration."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.errors import ConfigError

_LEAST_SECRET = 32


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig:
    """How the Kubernetes mode runs."""

    in_cluster: bool = False
    """Reach the API server as the kubelet tells every pod."""
    kubeconfig: str = ""
    """Reach it as this file says, when not in the cluster."""
    context: str = ""
    """The kubeconfig's context; empty: its current one."""
    namespace: str = "vgpu-system"
    """Where the Lease and the replicas' pods are."""
    pod_name: str = ""
    """This replica's pod, which gets the label `vgpu.dev/leader`. Empty: POD_NAME, else none."""
    lease_name: str = "vgpu-scheduler-cache"
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
    listen: tuple[str, ...] = ("[::]:9400",)
    """HOST:PORT with TLS, for callers with a certificate."""
    token_listen: tuple[str, ...] = ()
    """HOST:PORT with TLS, for callers with a service account's token."""
    certificate: str = "/etc/vgpu/tls/tls.crt"
    key: str = "/etc/vgpu/tls/tls.key"
    client_ca: str = "/etc/vgpu/client-ca/ca.crt"
    """Who signs the nodes' certificates: the cluster's own CA for the kubelets' certificates."""
    operators: tuple[str, ...] = ("system:masters",)
    """Organizations in certificates whose members may look at every node."""
    token_audience: str = "vgpu-scheduler-cache"
    token_accounts: tuple[str, ...] = ("vgpu-system/vgpu-node-agent",)
    """NAMESPACE/NAME of the service accounts that node agents run under."""
    keys_dir: str = "/etc/vgpu/keys"
    """Holds `current` and perhaps `previous`: what all replicas sign allocations with."""
    metrics_listen: str = "[::]:9401"
    """HOST:PORT of /metrics, /healthz and /readyz; empty: none."""
    eviction_seconds: float = 340.0
    """A node whose Lease has not changed for so long is lost, and its pods hold nothing."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ConfigError(
                "kubernetes: retry_seconds < renew_seconds < lease_seconds is what keeps two "
                "replicas from leading at once"
            )
        if self.in_cluster and self.kubeconfig:
            raise ConfigError("kubernetes: give kubeconfig or in_cluster, not both")
        if not all("/" in account for account in self.token_accounts):
            raise ConfigError("kubernetes: token_accounts must be NAMESPACE/NAME")
        if self.eviction_seconds <= 0:
            raise ConfigError("kubernetes: eviction_seconds must be positive")

    @property
    def own_pod(self) -> str:
        """The name of this replica's pod; empty: it runs in none."""
        return self.pod_name or os.environ.get("POD_NAME", "")

    @property
    def replica(self) -> str:
        """Who this replica is, among those that run now."""
        return self.own_pod or socket.gethostname()

    def keyring(self) -> Keyring:
        """Read the keys. Raises ConfigError.

        A key's name is a hash of it, so that replicas agree without being told names.
        """
        current = self._key("current")
        if current is None:
            raise ConfigError(
                f"{self.keys_dir}/current: there is no key; make one with "
                "`head -c 32 /dev/urandom` and share it among all replicas"
            )
        return Keyring(current, self._key("previous"))

    def _key(self, name: str) -> Key | None:
        path = Path(self.keys_dir) / name
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        if len(secret) < _LEAST_SECRET:
            raise ConfigError(f"{path}: a key has at least {_LEAST_SECRET} bytes")
        return key_of(secret)


def key_of(secret: bytes) -> Key:
    """Return a secret with the name that every replica gives it."""
    return Key(hashlib.sha256(b"vgpu key name" + secret).hexdigest()[:16], secret)
