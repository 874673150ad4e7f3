# SPDX-License-Identifier: Apache-2.0
"""The table `[kubernetes]` of the configuration."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from scheduler_cache.config_dialects import DialectsConfig
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.errors import ConfigError

_LEAST_SECRET = 32

DIALECTS = ("native", "volcano", "hami", "koordinator", "kai", "gpu_manager", "alnair")
POLICIES = ("deny", "allow")
SCOPES = ("nodes", "cluster")


@dataclass(frozen=True, kw_only=True)
class AdmissionConfig:
    """How pods are admitted: the table `[kubernetes.admission]`."""

    listen: tuple[str, ...] = ()
    """HOST:PORT of the webhooks, with TLS. Empty: none are served."""
    certificate: str = ""
    """A PEM file that somebody else renews (cert-manager). Empty: the replicas make their own, keep
    it in `secret`, and write who signed it into the webhook configurations."""
    key: str = ""
    client_ca: str = ""
    """Who signs the API server's own certificate. Empty: it shows none, as in most clusters; a
    review then has no effect beyond its answer, which tells nothing but what was sent."""
    client_names: tuple[str, ...] = ()
    """Common names that the caller's certificate may carry; empty: any that `client_ca` signed."""
    secret: str = "vgpu-admission"
    """Holds the certificate that all replicas share."""
    service: str = "vgpu-admission"
    """The Service under whose name the API server calls."""
    webhooks: str = "vgpu-admission"
    """The name of both webhook configurations."""
    certificate_days: float = 90.0
    """Life of a certificate of our own; a new one is made when a third of it is left."""
    check_seconds: float = 30.0
    """Between two looks at Secret and webhook configurations: what a reset of one may last."""
    settle_seconds: float = 15.0
    """From the change of the webhook configurations to the first use of a new certificate: each API
    server must have heard of it."""
    dialects: tuple[str, ...] = ("native",)
    """The dialects whose pods are ours. Pods of a dialect that is left out are not looked at: its
    own system may serve them."""
    dialect_scope: str = "nodes"
    """Which pods that ask in another system's dialect are ours: with `nodes` those that choose
    nodes by the label `vgpu.dev/dialect` (nodeSelector, or required node affinity), with `cluster`
    all of them."""
    runtime_class: str = "vgpu"
    scheduler_name: str = ""
    """Set where the pod names none or the default one; empty: pods keep theirs."""
    priority_class: str = ""
    """Set where the pod names none; empty: pods keep theirs."""
    privileged: str = "deny"
    """`deny` or `allow`: what reaches past its slice (privileged, hostPID, /dev of the host)."""
    user: str = ""
    """The user name under which the replicas write. Empty: the service account
    `vgpu-scheduler-cache` of `kubernetes.namespace`."""
    join_users: tuple[str, ...] = ()
    """User names of other schedulers and their helpers, which may write their own decisions."""

    @property
    def guarded(self) -> frozenset[str]:
        """The dialects in which, on all pods, only their schedulers can have decided."""
        return frozenset(self.dialects if self.dialect_scope == "cluster" else ())

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("kubernetes.admission: give certificate and key, or neither")
        unknown = sorted(set(self.dialects) - set(DIALECTS))
        if unknown:
            raise ConfigError(
                f"kubernetes.admission: dialects must be among {', '.join(DIALECTS)}, not "
                f"{unknown[0]}"
            )
        if self.privileged not in POLICIES:
            raise ConfigError(
                f"kubernetes.admission: privileged must be one of {', '.join(POLICIES)}"
            )
        if self.dialect_scope not in SCOPES:
            raise ConfigError(
                f"kubernetes.admission: dialect_scope must be one of {', '.join(SCOPES)}"
            )
        if not self.runtime_class:
            raise ConfigError("kubernetes.admission: runtime_class is empty")
        if min(self.certificate_days, self.check_seconds) <= 0 or self.settle_seconds < 0:
            raise ConfigError(
                "kubernetes.admission: certificate_days and check_seconds must be positive, and "
                "settle_seconds not negative"
            )


@dataclass(frozen=True, kw_only=True)
class ExtenderConfig:
    """How kube-scheduler is answered: the table `[kubernetes.extender]`."""

    listen: tuple[str, ...] = ()
    """HOST:PORT. Empty: no extender is served."""
    plain: bool = False
    """Without TLS, on loopback alone: for a scheduler that runs beside this replica."""
    certificate: str = ""
    """Empty: `kubernetes.certificate` and `kubernetes.key`."""
    key: str = ""
    client_ca: str = ""
    """Who signs the schedulers' certificates; empty: `kubernetes.client_ca`."""
    client_names: tuple[str, ...] = ("system:kube-scheduler",)
    """Common names that a scheduler's certificate may carry. Never empty: the cluster's CA signs
    every kubelet's certificate, too, and no kubelet may bind pods."""
    scheduler_names: tuple[str, ...] = ("vgpu-scheduler",)
    """Only pods of these are bound."""
    preempt_slices: bool = True
    """Evict pods of lower priority for one that waits for nothing but slices, since kube-scheduler
    preempts only for what it counts itself."""
    bind_wait_seconds: float = 2.0
    """How long a bind waits for the news of its pod: what a watch is late under load, and less than
    the scheduler's httpTimeout."""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("kubernetes.extender: give certificate and key, or neither")
        if not self.client_names or not all(self.client_names):
            raise ConfigError("kubernetes.extender: client_names is empty, or has an empty name")
        if not self.scheduler_names or not all(self.scheduler_names):
            raise ConfigError("kubernetes.extender: scheduler_names is empty, or has an empty name")
        if self.bind_wait_seconds < 0:
            raise ConfigError("kubernetes.extender: bind_wait_seconds must not be negative")


_DIALECTS = DialectsConfig()
_ADMISSION = AdmissionConfig()
_EXTENDER = ExtenderConfig()


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
    dialects: DialectsConfig = _DIALECTS
    admission: AdmissionConfig = _ADMISSION
    extender: ExtenderConfig = _EXTENDER

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

    @property
    def user(self) -> str:
        """Under which user name the API server knows the replicas."""
        return self.admission.user or (
            f"system:serviceaccount:{self.namespace}:vgpu-scheduler-cache"
        )

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
