# SPDX-License-Identifier: Apache-2.0
"""The server's side of TLS. Files that change are read again before the next handshake."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import grpc

from scheduler_cache.errors import ListenError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsFiles:
    """PEM files. `client_ca`: who signs the certificates of those who may call."""

    certificate: Path
    key: Path
    client_ca: Path


def server_credentials(files: TlsFiles, *, require_client: bool) -> grpc.ServerCredentials:
    """Return credentials that follow the files. Raises ListenError when they cannot be read now.

    `require_client`: a caller without a certificate is turned away; without it nobody is asked for
    one, so that whoever proves himself otherwise needs a listener of his own.
    """
    try:
        first = _read(files)
    except OSError as error:
        raise ListenError(f"TLS: {error.filename}: {error.strerror}") from error
    reader = _Reader(files, first)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(first),
        reader,  # type: ignore[arg-type]  # it may return None, whatever the stubs say
        require_client_authentication=require_client,
    )


_Contents = tuple[bytes, bytes, bytes]


class _Reader:
    """gRPC asks it before every handshake, in a thread of its own; None: nothing has changed."""

    def __init__(self, files: TlsFiles, first: _Contents) -> None:
        self._files = files
        self._last = first

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            now = _read(self._files)
        except OSError as error:  # in the middle of a rotation; the old ones go on working
            logger.warning("TLS files cannot be read", extra={"reason": str(error)})
            return None
        if now == self._last:
            return None
        self._last = now
        logger.info("TLS files have changed", extra={"certificate": str(self._files.certificate)})
        return _configuration(now)


def _read(files: TlsFiles) -> _Contents:
    return files.key.read_bytes(), files.certificate.read_bytes(), files.client_ca.read_bytes()


def _configuration(contents: _Contents) -> grpc.ServerCertificateConfiguration:
    key, certificate, client_ca = contents
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)
