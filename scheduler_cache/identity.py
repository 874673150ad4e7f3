# SPDX-License-Identifier: Apache-2.0
"""Who calls, by what TLS or a reviewed token proves, and what that lets them see. Pure.

A node's proof is the kubelet's own certificate (CN `system:node:NAME`, O `system:nodes`), one with
the URI `vgpu://node/NAME`, or a token that is bound to a pod on it. Nothing that the caller writes
into a message counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from scheduler_cache.errors import NotProvedError, WrongNodeError

NODES = "system:nodes"
_NODE_USER = "system:node:"
_NODE_URI = "vgpu://node/"

# More than a large cluster has nodes.
_CERTIFICATES = 32_768

# Source: RFC 1123, as the API server checks a Node's name.
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody with a proof. `node`: the node that they are; empty: no node."""

    name: str
    node: str = ""
    reads_all: bool = False
    """May look at every node: an operator, or root on this host."""

    def node_named(self, asked: str) -> str:
        """Return the node to answer for, or raise WrongNodeError.

        A node asks for itself alone; empty means itself.
        """
        if self.node and asked in ("", self.node):
            return self.node
        if self.reads_all and asked:
            return asked
        if self.node:
            raise WrongNodeError(f"{self.name} may not ask for node {asked}")
        raise WrongNodeError(f"{self.name} is no node; say which one is meant")

    def own_node(self, asked: str) -> str:
        """Return the node that the caller itself is, or raise WrongNodeError."""
        if self.node and asked in ("", self.node):
            return self.node
        raise WrongNodeError(f"{self.name} may not report for node {asked or '(none)'}")

    def sees(self, node_name: str) -> bool:
        """Return whether the caller may look at what a node holds."""
        return self.reads_all or (bool(self.node) and self.node == node_name)


LOCAL = Identity("root on the host of the cache", reads_all=True)
"""Whoever reaches the socket that only root can open."""


def of_certificate(
    properties: Mapping[str, Collection[bytes]], operators: Collection[str]
) -> Identity:
    """Return whom gRPC's properties of a checked client certificate prove, or raise NotProvedError.

    `operators`: organizations whose members may look at everything.
    """
    return _proved(
        tuple(properties.get("x509_subject", ())),
        tuple(properties.get("peer_uri", ())),
        frozenset(operators),
    )


# Every call of a node proves the same: to read it anew would be a quarter of our own work.
@lru_cache(maxsize=_CERTIFICATES)
def _proved(
    subjects: tuple[bytes, ...], uris: tuple[bytes, ...], operators: frozenset[str]
) -> Identity:
    subject = [
        (kind, value)
        for text in subjects
        for kind, value in attributes(text.decode(errors="replace"))
    ]
    names = [value for kind, value in subject if kind == "CN"]
    organizations = {value for kind, value in subject if kind == "O"}
    name = names[0] if len(names) == 1 else ""
    nodes = {
        uri.removeprefix(_NODE_URI)
        for raw in uris
        if (uri := raw.decode(errors="replace")).startswith(_NODE_URI)
    }
    if name.startswith(_NODE_USER) and NODES in organizations:
        nodes.add(name.removeprefix(_NODE_USER))
    reads_all = not organizations.isdisjoint(operators)
    if len(nodes) > 1 or not all(map(_NODE_NAME.fullmatch, nodes)):
        raise NotProvedError(f"the certificate of {name or 'nobody'} names no node, or several")
    if not nodes and not reads_all:
        raise NotProvedError(
            f"the certificate of {name or 'nobody'} proves no node: it needs CN system:node:NAME "
            f"with O {NODES}, or the URI {_NODE_URI}NAME"
        )
    node = next(iter(nodes), "")
    return Identity(f"node {node}" if node else name or "an operator", node, reads_all)


def attributes(subject: str) -> Iterator[tuple[str, str]]:
    """Yield the (type, value) pairs of a distinguished name as RFC 2253 writes it."""
    for part in re.split(r"[,+]", _masked(subject)):
        kind, equals, value = part.partition("=")
        if equals:
            yield kind.strip().upper(), _unmasked(value)


def _masked(text: str) -> str:
    """Hide escaped characters behind private ones, one by one, so that none separates."""
    out, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        pair = text[at + 1 : at + 3]
        if re.fullmatch(r"[0-9A-Fa-f]{2}", pair):
            out.append(chr(0xE000 + int(pair, 16)))
            at += 3
        else:
            out.append(chr(0xE000 + ord(pair[0])) if pair and ord(pair[0]) < 256 else "\ufffd")
            at += 2
    return "".join(out)


def _unmasked(text: str) -> str:
    return "".join(
        chr(ord(each) - 0xE000) if 0xE000 <= ord(each) < 0xE100 else each for each in text
    )
