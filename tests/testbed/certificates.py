# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of a test: nodes, servers and impostors get real certificates."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NODES_ORGANIZATION = "system:nodes"
_HOUR = datetime.timedelta(hours=1)
# Clocks of a test and of what it starts are the same, but gRPC's are whole seconds.
_BACKDATED = datetime.timedelta(minutes=5)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """One certificate with its key, on the disk as programs want them."""

    certificate: Path
    """PEM."""
    key: Path
    """PEM, PKCS #8."""
    bundle: Path
    """Both in one file, as the kubelet keeps its own."""


class CertificateAuthority:
    """Signs certificates into a directory; two authorities do not know each other."""

    def __init__(self, directory: Path, name: str = "vgpu test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = _name(name, "")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._serial = 0
        now = _now()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + 24 * _HOUR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            # Python 3.13 insists on key usage and key identifiers (RFC 5280, 4.2.1.1 to 4.2.1.3).
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.pem"
        """What everybody trusts who trusts this authority."""
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        common_name: str,
        *,
        organization: str = "",
        dns_names: Sequence[str] = (),
        ip_addresses: Sequence[str] = (),
        uris: Sequence[str] = (),
        server: bool = False,
        expires_in: datetime.timedelta = _HOUR,
        file: str = "",
    ) -> Credentials:
        """Sign a certificate for a client, or with `server` for a server that may be a client, too.

        `expires_in` may be negative, up to the five minutes that every certificate is backdated.
        `file`: the stem of the files; issuing under the same one again replaces them at once, as a
        rotation does.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = _now()
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if server:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name, organization))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + expires_in)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ip_addresses]
        alternatives += [x509.UniformResourceIdentifier(uri) for uri in uris]
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return self._written(certificate, key, file)

    def issue_node(
        self, node_name: str, *, expires_in: datetime.timedelta = _HOUR, file: str = ""
    ) -> Credentials:
        """Sign what the kubelet of a node has."""
        return self.issue(
            f"system:node:{node_name}",
            organization=NODES_ORGANIZATION,
            expires_in=expires_in,
            file=file,
        )

    def issue_server(
        self, *dns_names: str, expires_in: datetime.timedelta = _HOUR, file: str = ""
    ) -> Credentials:
        """Sign what a server of these names has; it serves on loopback, too."""
        return self.issue(
            dns_names[0] if dns_names else "localhost",
            dns_names=[*dns_names, "localhost"],
            ip_addresses=["127.0.0.1", "::1"],
            server=True,
            expires_in=expires_in,
            file=file,
        )

    def _written(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, file: str
    ) -> Credentials:
        self._serial += 1
        stem = file or f"issued-{self._serial}"
        public = certificate.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Credentials(
            certificate=self._replaced(f"{stem}.crt", public),
            key=self._replaced(f"{stem}.key", private),
            bundle=self._replaced(f"{stem}.pem", public + private),
        )

    def _replaced(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        draft = path.with_name(f"{name}.new")
        draft.write_bytes(content)
        draft.chmod(0o600)
        os.replace(draft, path)
        return path


def _name(common_name: str, organization: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
