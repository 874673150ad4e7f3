# SPDX-License-Identifier: Apache-2.0
"""The launcher's half of its protocol, for tests of the agent's half."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from pathlib import Path

from runtime_shim.verdict import HEADER, MAGIC, MAJOR, PACKET_BYTES


def packet(body: bytes, *, magic: int = MAGIC, major: int = MAJOR, length: int = -1) -> bytes:
    """Return a packet with this body; header fields can be made wrong."""
    return HEADER.pack(magic, major, 0, len(body) if length < 0 else length, 0) + body


def request(bundle: Path, container_id: str, **fields: str) -> bytes:
    """Return the packet of a create."""
    all_fields = {"command": "create", "id": container_id, "bundle": str(bundle), **fields}
    return packet(b"".join(f"{key}={value}\0".encode() for key, value in all_fields.items()))


class LauncherClient:
    """One connection of a launcher. Runs in this process, so its pid is ours."""

    def __init__(self, address: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(address))

    def send(self, content: bytes, *folders: Path) -> None:
        """Send one packet, with a descriptor of each folder."""
        descriptors = [os.open(folder, os.O_PATH) for folder in folders]
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self.socket.sendmsg([content], [rights] if descriptors else [])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def reply(self) -> dict[str, str]:
        """Return the fields of the reply; empty when the connection ended without one."""
        content = await asyncio.to_thread(self.socket.recv, PACKET_BYTES)
        if not content:
            return {}
        magic, major, _, length, _ = HEADER.unpack_from(content)
        body = content[HEADER.size :]
        assert (magic, major, length) == (MAGIC, MAJOR, len(body))
        pairs = (item.partition(b"=") for item in body.split(b"\0")[:-1])
        return {key.decode(): value.decode() for key, _, value in pairs}

    def close(self) -> None:
        """Go away, as a launcher that was killed."""
        self.socket.close()


async def ask(address: Path, content: bytes, *folders: Path) -> dict[str, str]:
    """Send one packet and return the reply."""
    client = LauncherClient(address)
    try:
        client.send(content, *folders)
        return await client.reply()
    finally:
        client.close()
