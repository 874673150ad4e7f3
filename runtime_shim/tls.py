# SPDX-License-Identifier: Apache-2.0
"""What proves this node to the scheduler cache: a certificate or a token, read from files.

Others renew the files; whoever uses them asks from time to time whether they have changed.
"""

from __future__ import annotations

import datetime
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime_shim.config import Cache
from runtime_shim.errors import ConfigError, RuntimeShimError

_NODES = "system:nodes"
_NODE_USER = "system:node:"
_NODE_URI = "vgpu://node/"


class CredentialsError(RuntimeShimError):
    """A certificate, key or token that cannot be used now; another one may come."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What one channel is opened with."""

    authority: bytes
    """PEM: whom we believe to be the scheduler cache."""
    certificate: bytes = b""
    """PEM chain; empty where a token proves the node."""
    key: bytes = b""
    node_name: str = ""
    """Whom the certificate proves; empty without one."""
    expires_unix_seconds: float = float("inf")

    def expired(self, now_unix_seconds: float | None = None) -> bool:
        """Tell whether no server will take the certificate any more."""
        now = time.time() if now_unix_seconds is None else now_unix_seconds
        return now >= self.expires_unix_seconds

    def expires_at(self) -> str:
        """Return when the certificate ends, for people."""
        when = datetime.datetime.fromtimestamp(self.expires_unix_seconds, datetime.UTC)
        return when.strftime("%Y-%m-%d %H:%M:%S UTC")


class Proof:
    """The files of the configuration. Blocking calls, of small files."""

    def __init__(self, config: Cache) -> None:
        self._config = config
        self._token: tuple[tuple[object, ...], str] | None = None

    def fingerprint(self) -> tuple[object, ...]:
        """Return what changes when one of the files does; cheap."""
        config = self._config
        return tuple(_mark(path) for path in (config.ca, config.certificate, config.key) if path)

    def load(self) -> Credentials:
        """Return what the files hold now. Raises CredentialsError, which names the file."""
        config = self._config
        authority = _read(config.ca)
        if config.token:
            return Credentials(authority=authority)
        return load_credentials(authority, Path(config.certificate), Path(config.key_path()))

    def token(self) -> str:
        """Return the token as it is now; empty where none is used. Raises CredentialsError."""
        path = self._config.token
        if not path:
            return ""
        mark = _mark(path)
        if self._token is None or self._token[0] != mark:
            text = _read(path).decode(errors="replace").strip()
            if not text.isascii() or not text.isprintable() or not text:
                raise CredentialsError(f"{path} holds no token")
            self._token = (mark, text)
        return self._token[1]


def load_credentials(authority: bytes, certificate: Path, key: Path) -> Credentials:
    """Return the pair of certificate and key in these two files, which may be one.

    Raises CredentialsError when they do not belong together or prove no node.
    """
    # Twelve MiB that only Kubernetes needs.
    from cryptography import x509

    chain = _read(str(certificate))
    secret = _read(str(key))
    try:
        # OpenSSL's own check that the two belong together.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key)
        leaf = x509.load_pem_x509_certificate(_first_certificate(chain))
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CredentialsError(
            f"{certificate} and {key} are no certificate with its key: {error}"
        ) from error
    return Credentials(
        authority=authority,
        certificate=chain,
        key=secret,
        node_name=_node_name(leaf, certificate),
        expires_unix_seconds=_end(leaf).timestamp(),
    )


def _first_certificate(chain: bytes) -> bytes:
    # The kubelet's file may begin with its key.
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    start = chain.find(begin)
    stop = chain.find(end, start)
    if start < 0 or stop < 0:
        raise ValueError("there is no certificate in it")
    return chain[start : stop + len(end)] + b"\n"


def _node_name(leaf: Any, path: Path) -> str:  # noqa: ANN401 - imported where it is needed
    """Return the one node that a certificate proves. Source: docs/contract.md; DESIGN, rule 3."""
    from cryptography import x509

    names = [each.value for each in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    groups = {
        each.value for each in leaf.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    }
    nodes = {
        name.removeprefix(_NODE_USER)
        for name in names
        if name.startswith(_NODE_USER) and _NODES in groups
    }
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        nodes |= {
            uri.removeprefix(_NODE_URI)
            for uri in alternatives.get_values_for_type(x509.UniformResourceIdentifier)
            if uri.startswith(_NODE_URI)
        }
    except x509.ExtensionNotFound:
        pass
    if len(nodes) != 1 or "" in nodes:
        raise CredentialsError(
            f"{path} proves no node: it needs CN {_NODE_USER}NAME with O {_NODES}, or the one URI"
            f" {_NODE_URI}NAME"
        )
    return str(nodes.pop())


def _end(leaf: Any) -> datetime.datetime:  # noqa: ANN401 - as above
    aware = getattr(leaf, "not_valid_after_utc", None)  # cryptography 42 and later
    if isinstance(aware, datetime.datetime):
        return aware
    naive: datetime.datetime = leaf.not_valid_after
    return naive.replace(tzinfo=datetime.UTC)


def _mark(path: str) -> tuple[object, ...]:
    try:
        status = os.stat(path)  # through links: a rotation may exchange one
    except OSError as error:
        return (path, error.errno)
    return (path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from error


def needs_proof(config: Cache) -> bool:
    """Tell whether the cache is reached over a network, so that both sides must prove who they are.

    Raises ConfigError for a file that is missing in the configuration.
    """
    if config.address.startswith("unix:"):
        return False
    if not config.ca:
        raise ConfigError(
            "cache.ca is empty: without it anybody could be the scheduler cache; name the file of"
            " the authority that signed its certificate"
        )
    return True
