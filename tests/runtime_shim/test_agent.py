# SPDX-License-Identifier: Apache-2.0
"""The agent as a process of its own, on simulated cards, before the real scheduler cache."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.answers import read_answers
from runtime_shim.spec import environment
from tests.fakes.gpu import Card, SimulatedGpu
from tests.fakes.scheduler_cache import ScriptedCache, serving
from tests.runtime_shim.allocations import GIB, allocation, part
from tests.runtime_shim.launchers import LauncherClient, ask, request
from tests.runtime_shim.specs import plain_spec
from tests.runtime_shim.test_create import Bundle
from tests.testbed.node import Node, wait_until

REQUEST = ("VGPU_MEMORY=2Gi", "VGPU_CORES=25")


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    return SimulatedGpu.create(scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)])


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu, needs_root: None) -> Iterator[Node]:
    """Yield a node of which nothing runs yet."""
    node = Node(scratch / "node", gpu)
    try:
        yield node
    finally:
        node.__exit__(None, None, None)


@pytest.fixture
async def cache(node: Node) -> AsyncIterator[ScriptedCache]:
    cache = ScriptedCache()
    assert node.gpu is not None
    uuid = node.gpu.uuid()
    cache.allocate = lambda asked: pb.AllocateResponse(
        allocation=allocation(
            part(uuid),
            container_id=asked.claim.container_id,
            root=asked.claim.runtime_root,
            allocation_id="00000000-0000-4000-8000-00000000000a",
        )
    )
    async with serving(cache, node.cache_socket):
        yield cache


@pytest.fixture
def bundle(scratch: Path) -> Bundle:
    return Bundle(scratch / "bundle", plain_spec(*REQUEST))


async def start_agent(node: Node) -> None:
    await asyncio.to_thread(node.start_agent)


async def until(condition: Callable[[], object]) -> None:
    """Wait without holding up the servers of this loop; TimeoutError when it takes forever."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def test_it_reports_its_cards_and_that_it_is_ready(
    node: Node, cache: ScriptedCache, gpu: SimulatedGpu
) -> None:
    await start_agent(node)

    await until(lambda: cache.reports)

    report = cache.reports[0]
    assert report.node_name == "testbed"
    assert report.ready
    assert [(card.uuid, card.memory_bytes) for card in report.cards] == [(gpu.uuid(), 8 * GIB)]
    assert report.cards[0].slots == 10
    assert report.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def test_a_create_is_answered_and_reported(
    node: Node, cache: ScriptedCache, gpu: SimulatedGpu, bundle: Bundle
) -> None:
    await start_agent(node)

    reply = await ask(node.agent_socket, request(bundle.folder, "c1"), bundle.folder)

    assert reply == {"verdict": "low-level"}
    assert environment(bundle.spec())["NVIDIA_VISIBLE_DEVICES"] == gpu.uuid()
    await until(lambda: cache.reports[-1].claims)
    claim = cache.reports[-1].claims[0]
    assert claim.state == pb.CLAIM_STATE_RUNNING
    assert list(cache.reports[-1].running_allocation_ids) == [claim.allocation.allocation_id]


async def test_kill_9_while_a_create_waits_leaves_no_half(
    node: Node, cache: ScriptedCache, bundle: Bundle
) -> None:
    await start_agent(node)
    await until(lambda: cache.reports)
    cache.silent = True
    client = LauncherClient(node.agent_socket)
    client.send(request(bundle.folder, "c1"), bundle.folder)
    await until(lambda: cache.allocations)

    node.stop_agent(signal.SIGKILL)

    with contextlib.suppress(ConnectionResetError):  # or an end of file: the launcher asks again
        assert await client.reply() == {}
    client.close()
    assert bundle.spec() == plain_spec(*REQUEST)
    cache.silent = False
    await start_agent(node)
    reply = await ask(node.agent_socket, request(bundle.folder, "c1"), bundle.folder)
    assert reply == {"verdict": "low-level"}


async def test_kill_9_after_a_create_loses_nothing(
    node: Node, cache: ScriptedCache, bundle: Bundle
) -> None:
    await start_agent(node)
    await ask(node.agent_socket, request(bundle.folder, "c1"), bundle.folder)
    edited = bundle.spec()

    node.stop_agent(signal.SIGKILL)
    await start_agent(node)

    answers = read_answers(node.state_dir / "agent" / "answers")
    assert [answer.container_id for answer in answers] == ["c1"]
    reply = await ask(node.agent_socket, request(bundle.folder, "c1"), bundle.folder)
    assert reply == {"verdict": "low-level"}
    assert bundle.spec() == edited


async def test_a_clean_stop_leaves_containers_their_files(
    node: Node, cache: ScriptedCache, bundle: Bundle
) -> None:
    await start_agent(node)
    await ask(node.agent_socket, request(bundle.folder, "c1"), bundle.folder)
    folder = next((node.run_dir / "containers").iterdir())

    await asyncio.to_thread(node.stop_agent)

    assert (folder / "limits").exists()
    assert (folder / "usage" / "usage").exists()
    assert "Traceback" not in node.log("agent")


async def test_a_container_that_is_gone_is_released(
    node: Node, cache: ScriptedCache, bundle: Bundle
) -> None:
    await start_agent(node)
    client = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _ONE_LAUNCHER, str(node.agent_socket), str(bundle.folder)],
        capture_output=True,
        check=True,
    )
    assert b"verdict=low-level" in client.stdout

    shutil.rmtree(bundle.folder)

    await until(lambda: cache.released)
    assert cache.released == ["00000000-0000-4000-8000-00000000000a"]
    await until(lambda: not list((node.run_dir / "containers").iterdir()))


# A launcher that is a process of its own, so that its end can be seen.
_ONE_LAUNCHER = """
import asyncio, sys
from pathlib import Path
from tests.runtime_shim.launchers import ask, request
socket, bundle = map(Path, sys.argv[1:])
print(*map("=".join, asyncio.run(ask(socket, request(bundle, "c1"), bundle)).items()))
"""


async def test_a_lost_cache_is_followed_again(node: Node, bundle: Bundle) -> None:
    first, second = ScriptedCache(), ScriptedCache()
    async with serving(first, node.cache_socket):
        await start_agent(node)
        await until(lambda: first.reports)

    async with serving(second, node.cache_socket):
        await until(lambda: second.reports)


async def test_a_second_agent_ends_with_one_sentence(node: Node, cache: ScriptedCache) -> None:
    await start_agent(node)

    second = await asyncio.to_thread(run_agent, "run", "--config", node.directory / "agent.toml")

    assert second.returncode == 1
    assert second.stderr.startswith("Error: another vgpu-node-agent uses ")
    assert len(second.stderr.splitlines()) == 1
    assert node.agent_runs()


def run_agent(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtime_shim.agent", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_check_config_prints_what_would_run(node: Node) -> None:
    done = run_agent("check-config", "--config", node.directory / "agent.toml")

    assert done.returncode == 0
    assert f'socket = "{node.agent_socket}"' in done.stdout


def test_a_bad_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text("surprise = 1")

    done = run_agent("run", "--config", path)

    assert done.returncode == 1
    assert f"{path}: unknown key surprise" in done.stderr
    assert "Traceback" not in done.stderr


async def test_systemd_is_told_and_its_socket_used(node: Node, cache: ScriptedCache) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        tempfile.TemporaryFile("w+") as log,
    ):
        notified.bind(str(node.directory / "notify"))
        listener.bind(str(node.directory / "passed.sock"))
        listener.listen()
        notified.settimeout(30)
        words = [sys.executable, "-m", "runtime_shim.agent", "run", "--log-format", "json"]
        assert node.gpu is not None
        agent = subprocess.Popen(
            ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *words],
            pass_fds=[3],
            preexec_fn=lambda: os.dup2(listener.fileno(), 3),
            env={
                **os.environ,
                "FAKE_GPU_DIR": str(node.gpu.directory),
                "VGPU_CONFIG": str(node.directory / "agent.toml"),
                "LISTEN_FDS": "1",
                "NOTIFY_SOCKET": str(node.directory / "notify"),
            },
            stderr=log,
        )
        try:
            said = await asyncio.to_thread(notified.recv, 100)
            LauncherClient(node.directory / "passed.sock").close()
        finally:
            agent.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(agent.wait, 20)
        log.seek(0)
        lines = [json.loads(line) for line in log.read().splitlines()]

    assert said == b"READY=1"
    assert status == 0
    assert not node.agent_socket.exists()
    assert {"serving", "stopping"} <= {line["msg"] for line in lines}


def test_the_agent_is_small(node: Node) -> None:
    node.start_cache()
    node.start_agent()
    wait_until(lambda: "serving" in node.log("agent"), "the agent serves")

    assert node.agent_rss_bytes() <= 64 << 20
