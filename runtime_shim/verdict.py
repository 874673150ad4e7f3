# SPDX-License-Identifier: Apache-2.0
"""The launchers' socket: one packet with a bundle's descriptor in, one verdict out.

The agent's half of launcher/protocol.h. What is asked and answered is decided elsewhere; a broken
or vanished launcher costs nothing but its own connection.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtime_shim.errors import RuntimeShimError
from runtime_shim.messages import name_by_id, one_line, refusal_line

logger = logging.getLogger(__name__)

MAGIC: Final = 0x4B504756
MAJOR: Final = 1
MINOR: Final = 0
PACKET_BYTES: Final = 65536
HEADER: Final = struct.Struct("=IHHII")

COMMANDS: Final = ("create", "run", "restore")

# More launchers than this wait in the kernel's queue; a node starts some hundred at once at boot.
_CONNECTIONS: Final = 256
_BACKLOG: Final = 1024
# A launcher sends its packet right after it connects.
_REQUEST_SECONDS: Final = 1.0
# Below the launcher's 10 s, so that the engine shows our reason and not "no verdict".
_VERDICT_SECONDS: Final = 9.0
_LISTEN_FDS_START: Final = 3

# What runc and crun take as an id; it becomes part of paths here.
_CONTAINER_ID: Final = re.compile(r"[A-Za-z0-9_+.-]{1,1024}")
_PEER_CREDENTIALS: Final = struct.Struct("=iII")


class MalformedError(RuntimeShimError):
    """A packet that is not a launcher's request; the launcher gets the text."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a launcher asks for. The descriptors belong to the server and end with the handler."""

    command: str
    container_id: str
    root: str
    """The value of --root, absolute; empty when it was not given."""
    bundle: str
    """Absolute; for messages and claims. Files are reached through `bundle_fd` alone."""
    pid_file: str
    """Absolute, or empty when it was not given."""
    bundle_fd: int
    launcher_pidfd: int
    runtime_dir: str = ""
    """XDG_RUNTIME_DIR where no root was given; runtimes may keep their state below it."""
    began: float = field(default_factory=time.monotonic)
    """When it was asked, by the monotonic clock; the launcher waits from then."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the launcher does: executes the low-level runtime, the GPU runtime, or nothing."""

    kind: str
    message: str = ""
    """For `refuse`: the one line that the engine shows."""


LOW_LEVEL: Final = Verdict(kind="low-level")
GPU: Final = Verdict(kind="gpu")


def refuse(message: str) -> Verdict:
    """Return the verdict that starts nothing and says why."""
    return Verdict(kind="refuse", message=message)


Handler = Callable[[Launch], Awaitable[Verdict]]


def decode_request(packet: bytes) -> dict[str, str]:
    """Return the fields of a request; MalformedError says what is wrong with it."""
    if len(packet) < HEADER.size:
        raise MalformedError(f"the request has {len(packet)} bytes, less than its header")
    magic, major, minor, length, _ = HEADER.unpack_from(packet)
    if magic != MAGIC:
        raise MalformedError("the request does not begin as a launcher's does")
    if major != MAJOR:
        raise MalformedError(
            f"the launcher speaks version {major}.{minor} and the agent {MAJOR}.{MINOR}"
        )
    body = packet[HEADER.size :]
    if length != len(body) or (body and not body.endswith(b"\0")):
        raise MalformedError(f"the request says {length} bytes and has {len(body)}")
    fields: dict[str, str] = {}
    for item in body.split(b"\0")[:-1]:
        key, equals, value = item.partition(b"=")
        if not equals or os.fsdecode(key) in fields:
            raise MalformedError(f"the request has a bad field {item[:64]!r}")
        fields[os.fsdecode(key)] = os.fsdecode(value)
    return fields


def encode_verdict(verdict: Verdict) -> bytes:
    """Return the reply's packet."""
    body = b"verdict=" + verdict.kind.encode() + b"\0"
    if verdict.message:
        body += b"message=" + one_line(verdict.message).encode() + b"\0"
    return HEADER.pack(MAGIC, MAJOR, MINOR, len(body), 0) + body


def listen(path: Path) -> socket.socket:
    """Return the socket that systemd passed, else a new one at `path`, root's alone.

    What an earlier agent left at `path` is replaced by a rename, so that a launcher finds a
    listener at every moment; the caller holds the agent's lock.
    """
    inherited = _inherited_socket()
    if inherited is not None:
        return inherited
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(str(temporary))
        temporary.chmod(0o600)
        listener.listen(_BACKLOG)
        temporary.rename(path)
    except OSError:
        listener.close()
        raise
    return listener


def _inherited_socket() -> socket.socket | None:
    # Source: sd_listen_fds(3).
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_LISTEN_FDS_START, False)
    listener = socket.socket(fileno=_LISTEN_FDS_START)
    if (listener.family, listener.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        raise RuntimeShimError("the socket passed by systemd is not a SOCK_SEQPACKET unix socket")
    return listener


class VerdictServer:
    """Accepts launchers and asks `handler` once for each; a launcher that goes cancels it."""

    def __init__(
        self, listener: socket.socket, handler: Handler, seconds: float = _VERDICT_SECONDS
    ) -> None:
        self._listener = listener
        self._handler = handler
        self._seconds = seconds
        self._free = asyncio.Semaphore(_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until cancelled; then no launcher is answered any more."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            while True:
                await self._free.acquire()
                connection, _ = await loop.sock_accept(self._listener)
                task = loop.create_task(self._serve_one(connection))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.release()

    async def _serve_one(self, connection: socket.socket) -> None:
        began = time.monotonic()
        descriptors: list[int] = []
        with connection:
            try:
                launch = await self._receive(connection, descriptors)
                if launch is None:
                    return
                verdict = await self._ask(connection, launch)
                if verdict is not None:
                    await _send(connection, encode_verdict(verdict))
                    logger.info(
                        "create answered",
                        extra={
                            "container_id": launch.container_id,
                            "verdict": verdict.kind,
                            "seconds": round(time.monotonic() - began, 4),
                        },
                    )
            except MalformedError as error:
                logger.warning("launcher request refused", extra={"reason": str(error)})
                verdict = refuse(f"vgpu: {error}; this container is not started")
                with contextlib.suppress(OSError):
                    await _send(connection, encode_verdict(verdict))
            except OSError as error:
                logger.info("launcher went away", extra={"reason": str(error)})
            except Exception:
                # The launcher gets no answer, asks again until its deadline and refuses by itself.
                logger.exception("launcher request failed")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    async def _receive(self, connection: socket.socket, descriptors: list[int]) -> Launch | None:
        pid, uid, _ = _PEER_CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        )
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                await _readable(connection)
        except TimeoutError:
            raise MalformedError(f"no request came in {_REQUEST_SECONDS:g} s") from None
        packet, received, flags = _receive_packet(connection)
        descriptors += received
        if not packet:
            return None
        if uid != 0:
            raise MalformedError(f"the launcher runs as uid {uid}, and only root may ask")
        if flags & socket.MSG_TRUNC:
            raise MalformedError(f"the request is larger than {PACKET_BYTES} bytes")
        fields = decode_request(packet)
        if len(received) > 1 or flags & socket.MSG_CTRUNC:
            raise MalformedError("the request carries more descriptors than the bundle's directory")
        if not received or not stat.S_ISDIR(os.fstat(received[0]).st_mode):
            raise MalformedError("the request does not carry the bundle's directory")
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        descriptors.append(pidfd)
        return _launch(fields, received[0], pidfd)

    def _too_late(self, launch: Launch) -> Verdict:
        line = refusal_line(
            name_by_id(launch.container_id),
            f"the node agent came to no verdict in {self._seconds:g} s",
            "see the log of vgpu-node-agent, then start this container again",
        )
        logger.error("create took too long", extra={"container_id": launch.container_id})
        return refuse(line)

    async def _ask(self, connection: socket.socket, launch: Launch) -> Verdict | None:
        """Return the handler's verdict, or None when the launcher went away first."""
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._handler(launch))

        def gone() -> None:
            loop.remove_reader(connection)  # or it would be told again until the work has ended
            work.cancel()

        # After its request a launcher only listens: readable means that it has closed.
        loop.add_reader(connection, gone)
        try:
            left = launch.began + self._seconds - time.monotonic()
            if not (await asyncio.wait({work}, timeout=left))[0]:
                gone()
                # Before the end of the work, which may hang in a file system of the container.
                with contextlib.suppress(OSError):
                    await _send(connection, encode_verdict(self._too_late(launch)))
                await asyncio.wait({work})
                return None
            return work.result()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                work.cancel()
                await asyncio.wait({work})
                raise
            logger.info("launcher went away", extra={"container_id": launch.container_id})
            return None
        finally:
            loop.remove_reader(connection)


def _launch(fields: dict[str, str], bundle_fd: int, pidfd: int) -> Launch:
    command, container_id = fields.get("command", ""), fields.get("id", "")
    if command not in COMMANDS:
        raise MalformedError(f"the request's command {command!r} is none of {', '.join(COMMANDS)}")
    if not _CONTAINER_ID.fullmatch(container_id) or container_id in (".", ".."):
        raise MalformedError(f"the container id {container_id[:64]!r} is not valid")
    bundle = fields.get("bundle", "")
    if not bundle.startswith("/"):
        raise MalformedError("the request does not name the bundle by an absolute path")
    pid_file, runtime_dir = fields.get("pid_file", ""), fields.get("runtime_dir", "")
    return Launch(
        command=command,
        container_id=container_id,
        root=_checked_root(fields.get("root", "")),
        bundle=bundle,
        # A relative one is relative to a folder that the agent does not know.
        pid_file=pid_file if pid_file.startswith("/") else "",
        bundle_fd=bundle_fd,
        launcher_pidfd=pidfd,
        runtime_dir=runtime_dir if runtime_dir.startswith("/") else "",
    )


def _checked_root(root: str) -> str:
    """Return `root` in one spelling; MalformedError for one under which no state can be found."""
    if not root:
        return ""
    words = [word for word in root.split("/") if word not in ("", ".")]
    if not root.startswith("/") or ".." in words:
        raise MalformedError(f"--root {root[:256]!r} is not an absolute path without '..'")
    return "/" + "/".join(words)


def _receive_packet(connection: socket.socket) -> tuple[bytes, list[int], int]:
    received = array.array("i")
    packet, ancillary, flags, _ = connection.recvmsg(
        PACKET_BYTES, socket.CMSG_SPACE(4 * received.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return packet, list(received), flags


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, arrived)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


async def _send(connection: socket.socket, packet: bytes) -> None:
    # One packet of a few KiB into an empty queue: it fits, or the launcher is gone.
    await asyncio.get_running_loop().sock_sendall(connection, packet)
