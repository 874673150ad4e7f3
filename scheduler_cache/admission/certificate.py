# SPDX-License-Identifier: Apache-2.0
"""The certificate that all replicas serve under: when a new one is due, and how it is made. No I/O.

Each has an authority of its own, whose key is forgotten at once: nobody can sign another with it.
Whoever calls believes the present authority and the one before, so that replicas may change over
one after the other.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scheduler_cache.errors import SchedulerCacheError

CERTIFICATE_KEY: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
AUTHORITIES_KEY: Final = "ca.crt"

# Clocks of API servers may be behind ours.
_BACKDATED: Final = timedelta(minutes=10)
_PEM: Final = serialization.Encoding.PEM


class UnusableSecretError(SchedulerCacheError):
    """A Secret does not hold a certificate as we make them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What the Secret holds, in PEM."""

    certificate: bytes
    """The server's own."""
    key: bytes = field(repr=False)
    authorities: bytes
    """Who signed it, then who signed the one before."""
    names: frozenset[str]
    not_before: datetime
    not_after: datetime

    def due(self, names: Sequence[str], now: datetime) -> str:
        """Return why a new one is to be made; empty: this one is good."""
        if self.names != frozenset(names):
            return "it is for other names"
        life = self.not_after - self.not_before
        if now < self.not_before or self.not_after - now < life / 3:
            return "less than a third of its life is left"
        return ""

    def data(self) -> dict[str, str]:
        """Return the data of the Secret."""
        return {
            CERTIFICATE_KEY: base64.b64encode(self.certificate).decode(),
            PRIVATE_KEY: base64.b64encode(self.key).decode(),
            AUTHORITIES_KEY: base64.b64encode(self.authorities).decode(),
        }


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the names under which an API server calls a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def made(names: Sequence[str], now: datetime, life: timedelta, before: Held | None = None) -> Held:
    """Make a new certificate; who believed `before` goes on doing so."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    start, end = _whole(now - _BACKDATED), _whole(now + life)
    # Told apart by its name, since two of them stand in one bundle.
    issuer = _name(f"vgpu admission {x509.random_serial_number():x}")
    authority = (
        _builder(issuer, issuer, authority_key, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name(names[0]), issuer, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    earlier = _split(before.authorities)[:1] if before is not None else []
    return Held(
        certificate=certificate.public_bytes(_PEM),
        key=key.private_bytes(
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        authorities=b"".join(each.public_bytes(_PEM) for each in (authority, *earlier)),
        names=frozenset(names),
        not_before=start,
        not_after=end,
    )


def held_of(data: Mapping[str, Any]) -> Held:
    """Return what a Secret's data hold. Raises UnusableSecretError."""
    try:
        certificate, key, authorities = (
            base64.b64decode(data[name], validate=True)
            for name in (CERTIFICATE_KEY, PRIVATE_KEY, AUTHORITIES_KEY)
        )
        leaf = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        signers = _split(authorities)
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise UnusableSecretError(f"the Secret holds no certificate of ours: {error}") from error
    if _public(private.public_key()) != _public(leaf.public_key()):
        raise UnusableSecretError("the Secret's key is not that of its certificate")
    if not signers or signers[0].subject != leaf.issuer:
        raise UnusableSecretError("the Secret's first authority did not sign its certificate")
    return Held(
        certificate=certificate,
        key=key,
        authorities=authorities,
        names=frozenset(names.get_values_for_type(x509.DNSName)),
        not_before=_utc(leaf, "not_valid_before"),
        not_after=_utc(leaf, "not_valid_after"),
    )


def believes(bundle: bytes, held: Held) -> bool:
    """Return whether who has `bundle` believes everything that is served now or was before."""
    try:
        known = set(_split(bundle))
    except ValueError:
        return False
    return known >= set(_split(held.authorities))


def _split(bundle: bytes) -> list[x509.Certificate]:
    """Return the certificates of a bundle; cryptography reads several only since 39."""
    end = b"-----END CERTIFICATE-----"
    return [x509.load_pem_x509_certificate(part + end) for part in bundle.split(end)[:-1]]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start.replace(tzinfo=None))
        .not_valid_after(end.replace(tzinfo=None))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    # A common name has 64 characters at most; the alternative names are what counts.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _public(key: Any) -> bytes:  # noqa: ANN401  any kind of key
    encoded: bytes = key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _utc(certificate: x509.Certificate, name: str) -> datetime:
    """Return a date of a certificate; since cryptography 42 the naive one warns."""
    aware: datetime | None = getattr(certificate, f"{name}_utc", None)
    return aware or getattr(certificate, name).replace(tzinfo=UTC)


def _whole(moment: datetime) -> datetime:
    """Certificates know whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0)
