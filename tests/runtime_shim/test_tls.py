# SPDX-License-Identifier: Apache-2.0
"""What proves a node: certificates and tokens in files, whole, wrong and renewed."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from runtime_shim.config import Cache
from runtime_shim.errors import ConfigError
from runtime_shim.tls import CredentialsError, Proof, load_credentials, needs_proof
from tests.testbed.certificates import CertificateAuthority


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "ca")


def test_the_kubelet_s_certificate_names_the_node(authority: CertificateAuthority) -> None:
    node = authority.issue_node("worker-1")

    for certificate, key in ((node.certificate, node.key), (node.bundle, node.bundle)):
        credentials = load_credentials(b"ca", certificate, key)

        assert credentials.node_name == "worker-1"
        assert not credentials.expired()
        assert credentials.expired(credentials.expires_unix_seconds)


def test_a_key_before_its_certificate_is_read(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    node = authority.issue_node("worker-1")
    path = tmp_path / "turned.pem"
    path.write_bytes(node.key.read_bytes() + node.certificate.read_bytes())

    assert load_credentials(b"", path, path).node_name == "worker-1"


def test_a_uri_names_the_node(authority: CertificateAuthority) -> None:
    node = authority.issue("whoever", uris=["https://x", "vgpu://node/worker-2"])

    assert load_credentials(b"", node.certificate, node.key).node_name == "worker-2"


@pytest.mark.parametrize(
    ("common_name", "organization", "uris"),
    [
        ("system:node:worker-1", "", []),
        ("system:node:worker-1", "system:masters", []),
        ("worker-1", "system:nodes", []),
        ("system:node:", "system:nodes", []),
        ("x", "", ["vgpu://node/a", "vgpu://node/b"]),
        ("system:node:a", "system:nodes", ["vgpu://node/b"]),
    ],
)
def test_a_certificate_of_no_node_or_of_two_proves_nothing(
    authority: CertificateAuthority, common_name: str, organization: str, uris: list[str]
) -> None:
    other = authority.issue(common_name, organization=organization, uris=uris)

    with pytest.raises(CredentialsError, match="proves no node: it needs CN system:node:NAME"):
        load_credentials(b"", other.certificate, other.key)


def test_a_foreign_key_is_named(authority: CertificateAuthority) -> None:
    one, other = authority.issue_node("a"), authority.issue_node("b")

    with pytest.raises(CredentialsError, match=r"are no certificate with its key: .*mismatch"):
        load_credentials(b"", one.certificate, other.key)


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_is_named(
    authority: CertificateAuthority, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "node.pem"
    path.write_bytes(content)

    with pytest.raises(CredentialsError, match=str(path)):
        load_credentials(b"", path, path)


def test_a_missing_file_is_named(authority: CertificateAuthority, tmp_path: Path) -> None:
    config = Cache(address="cache:9400", ca=str(tmp_path / "absent.pem"))

    with pytest.raises(CredentialsError, match=r"cannot read .*absent\.pem"):
        Proof(config).load()


def test_a_rotation_changes_the_fingerprint(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    first = authority.issue_node("worker-1")
    current = tmp_path / "current.pem"
    current.symlink_to(first.bundle)
    config = Cache(address="cache:9400", ca=str(authority.certificate), certificate=str(current))
    proof = Proof(config)
    before, certificate = proof.fingerprint(), proof.load().certificate
    assert proof.fingerprint() == before

    second = authority.issue_node("worker-1")
    (tmp_path / "new").symlink_to(second.bundle)
    os.replace(tmp_path / "new", current)  # as the kubelet does

    assert proof.fingerprint() != before
    assert proof.load().certificate != certificate


def test_a_certificate_that_ended_says_when(authority: CertificateAuthority) -> None:
    node = authority.issue_node("worker-1", expires_in=datetime.timedelta(minutes=-1))

    credentials = load_credentials(b"", node.certificate, node.key)

    assert credentials.expired()
    assert credentials.expires_at().endswith(" UTC")


def test_a_token_is_read_anew_when_it_changes(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    proof = Proof(Cache(address="cache:9401", ca=str(authority.certificate), token=str(token)))
    assert proof.token() == "one"
    assert proof.load().certificate == b""

    token.write_text("another\n")

    assert proof.token() == "another"


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "ümlaut"])
def test_what_is_no_token_is_named(tmp_path: Path, text: str) -> None:
    token = tmp_path / "token"
    token.write_text(text)

    with pytest.raises(CredentialsError, match=f"{token} holds no token"):
        Proof(Cache(address="cache:9401", ca="/ca.pem", token=str(token))).token()


def test_a_network_needs_an_authority() -> None:
    assert not needs_proof(Cache())
    assert needs_proof(Cache(address="cache:9400", ca="/ca.pem"))
    with pytest.raises(ConfigError, match=r"cache\.ca is empty"):
        needs_proof(Cache(address="cache:9400"))
