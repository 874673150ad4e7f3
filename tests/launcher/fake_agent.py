# SPDX-License-Identifier: Apache-2.0
"""An agent that answers launchers by a script, over the real socket.

The wire is written out here a second time, on purpose: a change of protocol.h that breaks released
agents must break a test.
"""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HEADER = struct.Struct("<IHHII")
MAGIC = 0x4B504756


def reply(*fields: str | bytes, major: int = 1, minor: int = 0, magic: int = MAGIC) -> bytes:
    """Return a reply packet of `key=value` fields."""
    body = b"".join((f.encode() if isinstance(f, str) else f) + b"\0" for f in fields)
    return HEADER.pack(magic, major, minor, len(body), 0) + body


LOW_LEVEL = reply("verdict=low-level")
GPU = reply("verdict=gpu")


def refuse(message: str | bytes) -> bytes:
    """Return the reply that refuses with `message`."""
    text = message.encode() if isinstance(message, str) else message
    return reply("verdict=refuse", b"message=" + text)


@dataclass(frozen=True)
class Request:
    """What one launcher sent."""

    magic: int
    major: int
    fields: dict[str, str]
    bundle: os.stat_result
    """Of the directory behind the descriptor."""


Answer = bytes | None | Callable[[threading.Event], bytes | None]
"""A packet; None closes without one; a callable may wait for the event that ends the agent."""


class FakeAgent:
    """Answers each connection with the next of `answers`, the last one for ever."""

    def __init__(self, path: Path, *answers: Answer) -> None:
        self.requests: list[Request] = []
        self._path = path
        self._answers = list(answers)
        self._ended = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "FakeAgent":
        self._socket.bind(str(self._path))
        self._socket.listen(16)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        packet, descriptors, _, _ = socket.recv_fds(connection, 65536, 8)
        if packet:
            self.requests.append(_decode(packet, descriptors))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer = answer(self._ended)
        if answer is not None:
            with contextlib.suppress(BrokenPipeError):  # a launcher that waits no more
                connection.send(answer)


def _decode(packet: bytes, descriptors: list[int]) -> Request:
    magic, major, _, length, _ = HEADER.unpack_from(packet)
    body = packet[HEADER.size :]
    assert length == len(body)
    assert body.endswith(b"\0")
    (bundle,) = descriptors
    status = os.stat(bundle)
    os.close(bundle)
    pairs = [os.fsdecode(item).split("=", 1) for item in body[:-1].split(b"\0")]
    return Request(magic, major, {key: value for key, value in pairs}, status)
