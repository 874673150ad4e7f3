# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import stat
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from scheduler_cache.config import Config
from scheduler_cache.errors import ListenError
from scheduler_cache.listen import checked_address, make_room
from scheduler_cache.server import running


@pytest.mark.parametrize(
    "address", ["unix:/run/x.sock", "127.0.0.1:50051", "[::1]:0", "localhost:80", "127.9.9.9:1"]
)
def test_what_only_this_host_reaches_is_fine(address: str) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("unix:relative.sock", "needs an absolute path"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
        ("0.0.0.0:1", "loopback addresses only"),
        ("[::]:1", "loopback addresses only"),
        ("192.168.1.1:1", "loopback addresses only"),
        ("example.org:1", "loopback addresses only"),
        (":1", "loopback addresses only"),
        ("127.0.0.1", "neither unix:PATH nor HOST:PORT"),
        ("127.0.0.1:http", "neither unix:PATH nor HOST:PORT"),
        ("127.0.0.1:65536", "neither unix:PATH nor HOST:PORT"),
    ],
)
def test_what_others_could_reach_is_refused(address: str, words: str) -> None:
    with pytest.raises(ListenError, match=words):
        checked_address(address)


def test_a_stale_socket_makes_room(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    make_room(path)

    assert not path.exists()


def test_a_live_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()

        with pytest.raises(ListenError, match="another process listens there"):
            make_room(path)

    assert path.exists()


def test_a_file_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")

    with pytest.raises(ListenError, match="exists and is not a socket"):
        make_room(path)

    assert path.read_text() == "precious"


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    make_room(tmp_path / "run" / "vgpu" / "s.sock")

    assert (tmp_path / "run" / "vgpu").is_dir()


async def test_the_socket_is_roots_alone_and_goes_with_the_server(config: Config) -> None:
    path = Path(config.listen[0].removeprefix("unix:"))

    async with running(config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    assert not path.exists()


async def test_a_second_server_does_not_steal_the_socket(config: Config, tmp_path: Path) -> None:
    async with running(config):
        with pytest.raises(ListenError, match="another process listens there"):
            async with running(replace(config, state_dir=tmp_path / "other")):
                pass

        async with grpc.aio.insecure_channel(config.listen[0]) as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            check = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
            assert await check(b"") == b"\x08\x01"


async def test_a_tcp_port_is_not_shared(config: Config, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    async with running(replace(config, listen=(*config.listen, address))):
        async with grpc.aio.insecure_channel(address) as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            check = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
            assert await check(b"") == b"\x08\x01"
        with pytest.raises(ListenError, match="is another process using it"):
            async with running(replace(config, listen=(address,), state_dir=tmp_path / "other")):
                pass
