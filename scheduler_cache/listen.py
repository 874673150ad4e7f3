# SPDX-License-Identifier: Apache-2.0
"""Listening addresses: what may be listened on without TLS, and binding it."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from scheduler_cache.errors import ListenError


def checked_address(address: str) -> str:
    """Return `address`, or raise ListenError: `unix:/absolute/path`, or HOST:PORT on loopback.

    Without TLS nobody proves who they are, so that TCP stays on the host itself.
    """
    if address.startswith("unix:"):
        path = unix_path(address)
        # sun_path holds 108 bytes with its terminating zero. Source: unix(7).
        if not path.is_absolute() or len(os.fsencode(path)) > 107:
            raise ListenError(f"{address}: needs an absolute path of at most 107 bytes")
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ListenError(f"{address}: neither unix:PATH nor HOST:PORT")
    if host == "localhost":
        return address
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ListenError(f"{address}: TCP without TLS is served on loopback addresses only")
    return address


def unix_path(address: str) -> Path:
    """Return the socket's path in a `unix:` address."""
    return Path(address.removeprefix("unix:"))


def make_room(path: Path) -> None:
    """Remove a socket that nobody listens on, so that `path` can be bound.

    Raises ListenError when somebody listens on it, or when it is not a socket.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"unix:{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"unix:{path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ListenError(f"unix:{path}: {error.strerror or error}") from error
        else:
            raise ListenError(f"unix:{path}: another process listens there")


@contextmanager
def bound(server: grpc.aio.Server, addresses: list[str]) -> Iterator[None]:
    """Bind all addresses; Unix sockets are root's alone and are removed at the end."""
    paths = [unix_path(address) for address in addresses if address.startswith("unix:")]
    for path in paths:
        make_room(path)
    # The sockets are made with their final mode, so that there is no moment at which others may
    # connect. Nothing else runs in this process yet.
    umask = os.umask(0o177)
    try:
        for address in addresses:
            _bind(server, address)
    finally:
        os.umask(umask)
    ours = {path: _identity(path) for path in paths}
    try:
        yield
    finally:
        for path, identity in ours.items():
            with suppress(FileNotFoundError):
                if _identity(path) == identity:
                    path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _bind(server: grpc.aio.Server, address: str) -> None:
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(f"{address}: cannot be bound: is another process using it?") from error
