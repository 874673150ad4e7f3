# SPDX-License-Identifier: Apache-2.0
"""Where the API server is and how we prove who we are.

Reading a kubeconfig, a pod's service account and running an exec plugin is kubernetes_asyncio's
work; its 1,700 generated API classes are left alone.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from pathlib import Path

from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.config import incluster_config, kube_config
from kubernetes_asyncio.config.config_exception import ConfigException

from scheduler_cache.kube.errors import KubeConfigError


class Connection(ABC):
    """An API server. `load` may be called again, when the server no longer takes the proof."""

    def __init__(self) -> None:
        self._configuration = Configuration()

    @property
    def base_url(self) -> str:
        """`https://host:port`, without a slash at the end."""
        return str(self._configuration.host).rstrip("/")

    @property
    def server_name(self) -> str | None:
        """The name that the server's certificate must carry, when the URL has another."""
        return self._configuration.tls_server_name

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy on the way."""
        return self._configuration.proxy

    async def headers(self) -> dict[str, str]:
        """Return what proves who we are; a service account's token is read again as it rotates."""
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": str(token).strip()} if token else {}

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS side of it; None for plain HTTP. Raises KubeConfigError."""
        configuration = self._configuration
        if not self.base_url.startswith("https://"):
            return None
        try:
            context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
            if configuration.cert_file:
                context.load_cert_chain(configuration.cert_file, configuration.key_file)
        except (OSError, ssl.SSLError) as error:
            raise KubeConfigError(
                f"the certificates for {self.base_url} cannot be used: {error}"
            ) from error
        # Clusters' own CAs often lack the key identifiers that Python 3.13 began to insist on.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    @abstractmethod
    async def load(self) -> None:
        """Read everything anew. Raises KubeConfigError."""


class KubeconfigConnection(Connection):
    """As a kubeconfig file says; its exec plugin is run at every `load`."""

    def __init__(self, path: Path, context: str | None = None) -> None:
        super().__init__()
        self._path = path
        self._context = context

    async def load(self) -> None:
        """Read the file, and run its exec plugin."""
        if not self._path.is_file():
            raise KubeConfigError(f"kubeconfig {self._path}: there is no such file")
        configuration = Configuration()
        try:
            await kube_config.load_kube_config(
                str(self._path), self._context, configuration, persist_config=False
            )
        except Exception as error:  # whatever a YAML parser, an assertion or a plugin raises
            raise KubeConfigError(f"kubeconfig {self._path}: {error or 'malformed'}") from error
        self._configuration = configuration


class InClusterConnection(Connection):
    """As the kubelet tells every pod: environment, and the service account's folder."""

    def __init__(
        self, folder: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    ) -> None:
        super().__init__()
        self._folder = folder

    async def load(self) -> None:
        """Read the service account."""
        configuration = Configuration()
        try:
            incluster_config.load_incluster_config(  # type: ignore[no-untyped-call]
                configuration,
                token_filename=str(self._folder / "token"),
                cert_filename=str(self._folder / "ca.crt"),
            )
        except (ConfigException, OSError) as error:
            raise KubeConfigError(
                f"not inside a cluster, or without a service account: {error}"
            ) from error
        self._configuration = configuration
