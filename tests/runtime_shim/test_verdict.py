# SPDX-License-Identifier: Apache-2.0
"""The launchers' socket, asked as launchers ask."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from runtime_shim.threads import in_thread
from runtime_shim.verdict import (
    LOW_LEVEL,
    Launch,
    MalformedError,
    Verdict,
    VerdictServer,
    decode_request,
    encode_verdict,
    listen,
    refuse,
)
from tests.runtime_shim.launchers import LauncherClient, ask, packet, request


class Handler:
    """Records launches and answers what it is told to."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.verdict: Verdict | Exception = LOW_LEVEL
        self.hold = False
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.bundle_entries: list[str] = []
        self.pid_alive = False

    async def __call__(self, launch: Launch) -> Verdict:
        self.launches.append(launch)
        self.bundle_entries = sorted(os.listdir(f"/proc/self/fd/{launch.bundle_fd}"))
        self.pid_alive = not select.select([launch.launcher_pidfd], [], [], 0)[0]
        self.entered.set()
        try:
            if self.hold:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def address(scratch: Path, handler: Handler) -> AsyncIterator[Path]:
    path = scratch / "agent.sock"
    with listen(path) as listener:
        task = asyncio.create_task(VerdictServer(listener, handler).serve())
        yield path
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text("{}")
    return bundle


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_request_reaches_the_handler_whole(
    address: Path, handler: Handler, bundle: Path
) -> None:
    content = request(bundle, "c1", root="/run/r", pid_file="/run/p", later_field="ignored")

    reply = await ask(address, content, bundle)

    assert reply == {"verdict": "low-level"}
    launch = handler.launches[0]
    assert (launch.command, launch.container_id) == ("create", "c1")
    assert (launch.root, launch.pid_file) == ("/run/r", "/run/p")
    assert launch.bundle == str(bundle)
    assert handler.bundle_entries == ["config.json"]
    assert handler.pid_alive


async def test_absent_fields_are_empty(address: Path, handler: Handler, bundle: Path) -> None:
    await ask(address, request(bundle, "c1", pid_file="relative.pid"), bundle)

    assert (handler.launches[0].root, handler.launches[0].pid_file) == ("", "")


@pytest.mark.parametrize("root", ["/run/r", "/run/./r/", "//run//r", "/./run/r/."])
async def test_one_root_has_one_spelling(
    address: Path, handler: Handler, bundle: Path, root: str
) -> None:
    await ask(address, request(bundle, "c1", root=root, runtime_dir="/run/user/0"), bundle)

    assert handler.launches[0].root == "/run/r"
    assert handler.launches[0].runtime_dir == "/run/user/0"


async def test_a_refusal_carries_its_line(address: Path, handler: Handler, bundle: Path) -> None:
    handler.verdict = refuse("vgpu: no\nroom: permission denied")

    reply = await ask(address, request(bundle, "c1"), bundle)

    assert reply == {"verdict": "refuse", "message": "vgpu: no room: access refused"}


MALFORMED: list[tuple[bytes, int, str]] = [
    (b"", 1, ""),
    (b"short", 1, "less than its header"),
    (packet(b"", magic=1), 1, "does not begin as a launcher's does"),
    (packet(b"a=b\0", major=2), 1, "speaks version 2.0 and the agent 1.0"),
    (packet(b"a=b\0", length=9), 1, "says 9 bytes and has 4"),
    (packet(b"a=b"), 1, "says 3 bytes and has 3"),
    (packet(b"ab\0"), 1, "bad field"),
    (packet(b"a=1\0a=2\0"), 1, "bad field"),
    (packet(b"command=start\0id=c\0bundle=/b\0"), 1, "'start' is none of create, run, restore"),
    (packet(b"command=run\0bundle=/b\0"), 1, "container id '' is not valid"),
    (packet(b"command=run\0id=../x\0bundle=/b\0"), 1, "container id '../x' is not valid"),
    (packet(b"command=run\0id=..\0bundle=/b\0"), 1, "container id '..' is not valid"),
    (packet(b"command=run\0id=c\0bundle=b\0"), 1, "by an absolute path"),
    (packet(b"command=run\0id=c\0bundle=/b\0"), 0, "does not carry the bundle's directory"),
    (packet(b"command=run\0id=c\0bundle=/b\0"), 2, "more descriptors than the bundle's"),
    (packet(b"command=run\0id=c\0bundle=/b\0"), 40, "more descriptors than the bundle's"),
    (packet(b"command=run\0id=c\0bundle=/b\0root=r\0"), 1, "--root 'r' is not an absolute path"),
    (packet(b"command=run\0id=c\0bundle=/b\0root=/a/../r\0"), 1, "without '..'"),
]


@pytest.mark.parametrize(("content", "folders", "reason"), MALFORMED)
async def test_a_malformed_packet_is_answered_and_forgotten(
    address: Path, handler: Handler, bundle: Path, content: bytes, folders: int, reason: str
) -> None:
    before = open_descriptors()

    reply = await ask(address, content, *[bundle] * folders)

    if reason:
        assert reply["verdict"] == "refuse"
        assert reason in reply["message"]
        assert "; this container is not started" in reply["message"]
    assert handler.launches == []
    assert (await ask(address, request(bundle, "next"), bundle)) == {"verdict": "low-level"}
    assert open_descriptors() == before


async def test_a_file_is_no_bundle(address: Path, bundle: Path) -> None:
    reply = await ask(address, request(bundle, "c"), bundle / "config.json")

    assert "does not carry the bundle's directory" in reply["message"]


async def test_a_launcher_that_goes_cancels_its_work(
    address: Path, handler: Handler, bundle: Path
) -> None:
    before = open_descriptors()
    handler.hold = True
    client = LauncherClient(address)
    client.send(request(bundle, "c1"), bundle)
    await handler.entered.wait()

    client.close()
    await handler.cancelled.wait()

    handler.hold = False
    assert (await ask(address, request(bundle, "c2"), bundle)) == {"verdict": "low-level"}
    assert open_descriptors() == before


async def test_a_launcher_is_answered_before_it_gives_up(tmp_path: Path, bundle: Path) -> None:
    hanging = threading.Event()

    async def hang(launch: Launch) -> Verdict:
        await in_thread(hanging.wait)
        return LOW_LEVEL

    path = tmp_path / "late.sock"
    with listen(path) as listener:
        serving = asyncio.create_task(VerdictServer(listener, hang, seconds=0.3).serve())
        began = time.monotonic()

        reply = await ask(path, request(bundle, "c1"), bundle)

        assert time.monotonic() - began < 2
        assert reply["verdict"] == "refuse"
        assert "'c1' (c1): the node agent came to no verdict in 0.3 s; see" in reply["message"]
        busy = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - busy < 0.3
        hanging.set()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_launcher_that_says_nothing_holds_nobody_up(address: Path, bundle: Path) -> None:
    silent = [LauncherClient(address) for _ in range(300)]
    began = time.monotonic()

    assert (await ask(address, request(bundle, "c"), bundle)) == {"verdict": "low-level"}
    assert time.monotonic() - began < 2
    assert "no request came in 1 s" in (await silent[0].reply())["message"]
    for each in silent:
        each.close()


async def test_a_bug_in_the_handler_ends_one_connection(
    address: Path, handler: Handler, bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler.verdict = ZeroDivisionError("a bug")

    with caplog.at_level(logging.ERROR):
        assert (await ask(address, request(bundle, "c"), bundle)) == {}

    assert "launcher request failed" in caplog.messages
    handler.verdict = LOW_LEVEL
    assert (await ask(address, request(bundle, "c"), bundle)) == {"verdict": "low-level"}


async def test_many_launchers_are_answered(address: Path, bundle: Path) -> None:
    replies = await asyncio.gather(
        *(ask(address, request(bundle, f"c{index}"), bundle) for index in range(40))
    )

    assert replies == [{"verdict": "low-level"}] * 40


async def test_only_root_may_ask(address: Path, bundle: Path) -> None:
    # Not pytest's own folder: each session that starts closes it to strangers again.
    address.parent.chmod(0o755)
    address.chmod(0o666)
    script = (
        "import os, socket, sys; os.setuid(1000); "
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); "
        "s.send(b'x'); print(s.recv(65536))"
    )

    answered = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-S", "-c", script, str(address)],
        capture_output=True,
        text=True,
    )

    assert "runs as uid 1000, and only root may ask" in answered.stdout, answered.stderr


async def test_the_socket_is_root_s_alone_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    listen(path).close()

    with listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        LauncherClient(path).close()


def test_a_socket_passed_by_systemd_is_used(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(str(tmp_path / "passed.sock"))
        passed.listen()
        script = (
            "import os; os.environ['LISTEN_PID'] = str(os.getpid()); "
            "from pathlib import Path; from runtime_shim.verdict import listen; "
            "print(listen(Path('/absent/agent.sock')).getsockname())"
        )
        environment = {**os.environ, "LISTEN_FDS": "1"}
        inherit: Callable[[], object] = lambda: os.dup2(passed.fileno(), 3)  # noqa: E731
        answered = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            pass_fds=[3],
            preexec_fn=inherit,
            capture_output=True,
            text=True,
        )

    assert answered.stdout.strip() == str(tmp_path / "passed.sock"), answered.stderr


def test_a_request_may_hold_any_bytes() -> None:
    fields = decode_request(packet(b"bundle=/\xff\xfe\0"))

    assert os.fsencode(fields["bundle"]) == b"/\xff\xfe"


def test_decode_names_what_is_wrong() -> None:
    with pytest.raises(MalformedError, match="less than its header"):
        decode_request(b"")


def test_a_reply_fits_one_packet() -> None:
    assert len(encode_verdict(refuse("x" * 100_000))) < 65536
