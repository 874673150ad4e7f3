# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from scheduler_cache.errors import NotProvedError, WrongNodeError
from scheduler_cache.identity import LOCAL, Identity, attributes, of_certificate

OPERATORS = ("system:masters",)


def proved(subject: str, *uris: str) -> Identity:
    properties = {
        "x509_subject": [subject.encode()],
        "peer_uri": [uri.encode() for uri in uris],
        # What a signer may have put elsewhere proves nothing.
        "x509_subject_alternative_name": [b"vgpu://node/other"],
    }
    return of_certificate(properties, OPERATORS)


@pytest.mark.parametrize(
    ("subject", "uris", "node"),
    [
        ("CN=system:node:n1,O=system:nodes", (), "n1"),
        ("O=system:nodes,CN=system:node:n1.example.org", (), "n1.example.org"),
        ("CN=anything", ("vgpu://node/n2",), "n2"),
        ("CN=system:node:n1,O=system:nodes", ("vgpu://node/n1", "https://x"), "n1"),
    ],
)
def test_a_node_is_who_its_certificate_says(subject: str, uris: tuple[str, ...], node: str) -> None:
    identity = proved(subject, *uris)

    assert identity == Identity(f"node {node}", node)
    assert identity.node_named("") == identity.node_named(node) == identity.own_node("") == node
    assert identity.sees(node)
    assert not identity.sees("other")


@pytest.mark.parametrize(
    ("subject", "uris"),
    [
        ("CN=system:node:n1", ()),
        ("CN=system:node:n1,O=system:nodesx", ()),
        ("CN=x,O=system:nodes", ()),
        (r"CN=system:node:n1\,O=system:nodes", ()),
        (r"CN=system:node:n1\2CO\3Dsystem:nodes", ()),
        (r"CN=a\\,O=other", ()),
        ("CN=system:node:n1,CN=system:node:n2,O=system:nodes", ()),
        ("CN=system:node:,O=system:nodes", ()),
        ("CN=system:node:N1,O=system:nodes", ()),
        ("CN=system:node:n1/../n2,O=system:nodes", ()),
        ("CN=system:node:n1,O=system:nodes", ("vgpu://node/n2",)),
        ("CN=x", ("vgpu://node/",)),
        ("CN=x", ("vgpu://node/n1", "vgpu://node/n2")),
        ("CN=x", ("vgpu://operator/x",)),
        ("", ()),
    ],
)
def test_what_proves_no_node_is_refused(subject: str, uris: tuple[str, ...]) -> None:
    with pytest.raises(NotProvedError, match="names no node, or several|proves no node"):
        proved(subject, *uris)


def test_an_operator_looks_at_every_node_and_reports_for_none() -> None:
    identity = proved("CN=alice,O=system:masters")

    assert identity.node_named("n1") == "n1"
    assert identity.sees("n1")
    with pytest.raises(WrongNodeError, match="alice is no node; say which one is meant"):
        identity.node_named("")
    with pytest.raises(WrongNodeError, match="alice may not report for node n1"):
        identity.own_node("n1")


def test_a_node_asks_for_no_other() -> None:
    identity = proved("CN=system:node:n1,O=system:nodes")

    with pytest.raises(WrongNodeError, match="node n1 may not ask for node n2"):
        identity.node_named("n2")
    with pytest.raises(WrongNodeError, match="node n1 may not report for node n2"):
        identity.own_node("n2")


def test_root_looks_and_does_not_report() -> None:
    assert LOCAL.sees("n1")
    with pytest.raises(WrongNodeError):
        LOCAL.own_node("n1")


@pytest.mark.parametrize(
    ("subject", "pairs"),
    [
        ("CN=a,O=b+OU=c", [("CN", "a"), ("O", "b"), ("OU", "c")]),
        (r"CN=a\,b\+c\\,O=d\=e", [("CN", r"a,b+c" + "\\"), ("O", "d=e")]),
        (r"CN=\C3\A4", [("CN", "\xc3\xa4")]),
        ("CN=a\\", [("CN", "a\ufffd")]),
    ],
)
def test_names_are_read_as_rfc_2253_writes_them(subject: str, pairs: list[tuple[str, str]]) -> None:
    assert list(attributes(subject)) == pairs
