# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1.scheduler_cache_pb2_grpc import SchedulerCacheStub

from scheduler_cache.cli import main
from tests.scheduler_cache.builders import NODE
from tests.scheduler_cache.messages import card, report
from tests.scheduler_cache.process import cache_process


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_a_mode_must_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")

    status, output = run("serve", "--config", str(path))

    assert status == 2
    assert "give --embedded, --in-cluster or --kubeconfig FILE" in output


def test_the_kubernetes_mode_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "cache.toml"
    path.write_text(f'[kubernetes]\nkeys_dir = "{tmp_path}"\n')

    # In a process of its own: asyncio.run here would drop the loop that pytest-asyncio keeps open.
    words = ["serve", "--config", str(path), "--kubeconfig", "/nowhere"]
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_cache.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert f"{tmp_path}/current: there is no key; make one with" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_config_prints_what_would_run(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('card_policy = "spread"\n')

    status, output = run("check-config", "--config", str(path), "--embedded", "--state", "/s")

    assert status == 0
    assert "embedded = true\n" in output
    assert 'state_dir = "/s"\n' in output
    assert 'card_policy = "spread"\n' in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "0.0.0.0:1"), "loopback addresses only"),
        (("--config", "/nowhere.toml"), "/nowhere.toml: No such file"),
        (("--card-policy", "best"), "'best' is not one of"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_mistake_ends_with_a_sentence(
    command: str, arguments: tuple[str, ...], words: str
) -> None:
    status, output = run(command, *arguments)

    assert status in (1, 2)
    assert words in output
    assert "Traceback" not in output


async def test_sigterm_drains_and_ends_streams(tmp_path: Path) -> None:
    with cache_process(tmp_path) as process:
        process.start("--log-format", "json")
        async with grpc.aio.insecure_channel(process.address) as channel:
            stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            await stub.ReportNode(report(card("GPU-1")), wait_for_ready=True, timeout=60)
            watch = stub.WatchNode(pb.WatchNodeRequest(node_name=NODE))
            await watch.read()

            status = process.terminate()

            # With the sentence, or with the end of the connection if that was faster.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert status == 0
        assert '"msg": "stopping"' in process.log.read_text()
        assert not (tmp_path / "cache.sock").exists()


async def test_a_second_process_on_the_same_state_ends_with_a_sentence(tmp_path: Path) -> None:
    with cache_process(tmp_path) as first, cache_process(tmp_path) as second:
        first.start()
        async with grpc.aio.insecure_channel(first.address) as channel:
            stub = SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            await stub.ReportNode(report(card("GPU-1")), wait_for_ready=True, timeout=60)

            second.start("--listen", f"unix:{tmp_path}/other.sock")

            assert second.wait() == 1
            assert "is in use by another scheduler cache" in first.log.read_text()
            assert "Traceback" not in first.log.read_text()
            await stub.ReportNode(report(card("GPU-1")))


def test_a_damaged_state_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.db").write_bytes(b"x" * 5000)
    with cache_process(tmp_path) as process:
        process.start()

        assert process.wait() == 1
        assert "is damaged" in process.log.read_text()
        assert "Traceback" not in process.log.read_text()
