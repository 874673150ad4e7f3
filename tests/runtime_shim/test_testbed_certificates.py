# SPDX-License-Identifier: Apache-2.0
import datetime
import ssl
from pathlib import Path

import pytest

from tests.testbed.certificates import CertificateAuthority, Credentials


def handshake(trusted: CertificateAuthority, client: Credentials, server: Credentials) -> object:
    """Return what a server is told of its client after a handshake in memory."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server.certificate, server.key)
    server_context.load_verify_locations(trusted.certificate)
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = ssl.create_default_context(cafile=str(trusted.certificate))
    client_context.load_cert_chain(client.bundle)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server_context.wrap_bio(to_server, to_client, server_side=True)
    asking = client_context.wrap_bio(to_client, to_server, server_hostname="cache.example")
    finished: set[object] = set()
    for _ in range(10):
        for side in (asking, serving):
            try:
                side.do_handshake()
                finished.add(side)
            except ssl.SSLWantReadError:
                continue
    assert len(finished) == 2
    return serving.getpeercert()


def test_a_node_and_a_server_trust_each_other(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)

    peer = handshake(
        authority, authority.issue_node("worker-1"), authority.issue_server("cache.example")
    )

    assert isinstance(peer, dict)
    assert peer["subject"] == (
        (("organizationName", "system:nodes"),),
        (("commonName", "system:node:worker-1"),),
    )


@pytest.mark.parametrize("impostor", ["foreign", "expired"])
def test_an_impostor_is_not_believed(tmp_path: Path, impostor: str) -> None:
    authority = CertificateAuthority(tmp_path / "ours")
    if impostor == "foreign":
        client = CertificateAuthority(tmp_path / "theirs").issue_node("worker-1")
    else:
        client = authority.issue_node("worker-1", expires_in=datetime.timedelta(minutes=-1))

    with pytest.raises(ssl.SSLError, match="certificate"):
        handshake(authority, client, authority.issue_server("cache.example"))


def test_issuing_again_replaces_the_files(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    first = authority.issue_node("worker-1", file="node")
    before = first.bundle.read_bytes()

    second = authority.issue_node("worker-1", file="node")

    assert second == first
    assert second.bundle.read_bytes() != before
