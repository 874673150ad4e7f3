# SPDX-License-Identifier: Apache-2.0
"""vgpuctl: its words, its output and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.abi import ffi
from runtime_shim.agent import main as agent_main
from runtime_shim.answers import STOPPED, AnswerStore
from runtime_shim.cli import main
from runtime_shim.region import Regions
from scheduler_cache.cli import main as cache_main
from tests.fakes.scheduler_cache import ScriptedCache, serving
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD, allocation, answer, part
from tests.runtime_shim.test_region import write_slot


@dataclass
class Node:
    """The files of a node's agent."""

    folder: Path
    store: AnswerStore
    regions: Regions

    def vgpuctl(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.folder / "agent.toml"), *words])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "agent.toml").write_text(
        f'[paths]\nrun_dir = "{tmp_path}/run"\nstate_dir = "{tmp_path}/state"\n'
        f'[cache]\naddress = "unix:{tmp_path}/cache.sock"\ntry_seconds = 0.5\n'
        '[driver]\nnvml_library = "/absent.so"\n'
    )
    store = AnswerStore(tmp_path / "state" / "answers")
    store.load()
    regions = Regions(tmp_path / "run" / "containers")
    regions.prepare()
    yield Node(tmp_path, store, regions)
    regions.close()
    regions.sweep(())


@pytest.fixture
async def cache(node: Node) -> AsyncIterator[ScriptedCache]:
    cache = ScriptedCache()
    async with serving(cache, node.folder / "cache.sock"):
        yield cache


def test_ps_shows_who_holds_what(node: Node) -> None:
    running = answer(allocation(part(), part(OTHER_CARD, GIB, 5), container_id="a" * 64))
    stopped = answer(allocation(container_id="b"), state=STOPPED)
    for each in (running, stopped):
        node.store.put(each)
    write_slot(node.regions.create(running.allocation, b"").usage_path, 0, GIB)

    done = node.vgpuctl("ps")

    assert done.exit_code == 0
    assert [line.split() for line in done.output.splitlines()] == [
        ["CONTAINER", "CARD", "MEMORY", "USED", "CORES", "STATE"],
        ["a" * 12, CARD, "2GiB", "1GiB", "25%", "running"],
        ["a" * 12, OTHER_CARD, "1GiB", "0B", "5%", "running"],
        ["b", CARD, "2GiB", "-", "25%", "stopped"],
    ]


def test_ps_shows_what_nvml_sees_beyond_the_account(node: Node) -> None:
    running = answer(allocation(container_id="a"))
    node.store.put(running)
    region = node.regions.create(running.allocation, b"")
    write_slot(region.usage_path, 0, GIB)
    with region.usage_path.open("r+b") as file:
        file.seek(ffi.offsetof("struct vgpu_usage", "slots_high"))
        file.write(bytes(4))
    region.set_overhead(0, 7 * GIB)

    done = node.vgpuctl("ps", "--json")

    assert json.loads(done.output)[0]["used_bytes"] == 8 * GIB


def test_ps_json_has_every_field(node: Node) -> None:
    stopped = answer(allocation(container_id="b"), state=STOPPED)
    node.store.put(stopped)

    done = node.vgpuctl("ps", "--json")

    assert json.loads(done.output) == [
        {
            "container_id": "b",
            "allocation_id": stopped.allocation_id,
            "card_uuid": CARD,
            "memory_bytes": 2 * GIB,
            "used_bytes": None,
            "cores_percent": 25,
            "compute_mode": "hard",
            "state": "stopped",
        }
    ]


def test_ps_of_a_node_without_agent_is_empty(node: Node) -> None:
    node.store.folder.rmdir()

    done = node.vgpuctl("ps")

    assert (done.exit_code, done.output) == (0, "no container holds a slice\n")
    assert json.loads(node.vgpuctl("ps", "--json").output) == []


@pytest.mark.parametrize("program", [main, agent_main, cache_main])
def test_every_help_text_reads_as_text(program: click.Group) -> None:
    commands = [[], *([name] for name in program.commands)]

    for words in commands:
        done = CliRunner().invoke(program, [*words, "--help"])

        assert done.exit_code == 0
        assert "\\" not in done.output
        assert "\b" not in done.output


def test_examples_in_a_help_text_keep_their_lines(node: Node) -> None:
    lines = node.vgpuctl("explain", "--help").output.splitlines()

    assert "  vgpuctl explain VGPU_MEMORY=8Gi VGPU_CORES=50" in lines


def test_cards_without_nvml_is_a_failure(node: Node) -> None:
    done = node.vgpuctl("cards")

    assert done.exit_code == 1
    assert "NVML is not available" in done.output


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([CARD], pb.ExplainRequest(card_uuid=CARD)),
        (["some-id"], pb.ExplainRequest(allocation_id="some-id")),
        (
            ["VGPU_MEMORY=8Gi", "VGPU_CORES=50"],
            pb.ExplainRequest(
                request=pb.AllocationRequest(
                    count=1, memory=[pb.MemoryAmount(bytes=8 * GIB)], cores_percent=[50]
                )
            ),
        ),
    ],
)
async def test_explain_prints_the_cache_s_words(
    node: Node, cache: ScriptedCache, words: list[str], asked: pb.ExplainRequest
) -> None:
    done = await asyncio.to_thread(node.vgpuctl, "explain", *words)

    assert (done.exit_code, done.output) == (0, "a sentence\n")
    assert cache.explained == [asked]


async def test_explain_of_the_unknown_fails(node: Node, cache: ScriptedCache) -> None:
    cache.failures = [(grpc.StatusCode.NOT_FOUND, "nothing is known of x")]

    done = await asyncio.to_thread(node.vgpuctl, "explain", "x")

    assert done.exit_code == 1
    assert "nothing is known of x" in done.output


def test_explain_without_a_cache_fails(node: Node) -> None:
    done = node.vgpuctl("explain", CARD)

    assert done.exit_code == 1
    assert "gave no answer" in done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["explain"], "Missing argument"),
        (["explain", "a", "b"], "give one card"),
        (["explain", "VGPU_MEMORY=0"], "smallest slice"),
        (["explain", "VGPU_MEMORY=1Gi", "HOME=/"], "HOME is not a variable of a request"),
        (["nothing"], "No such command"),
    ],
)
def test_wrong_usage_is_exit_code_2(node: Node, words: list[str], reason: str) -> None:
    done = node.vgpuctl(*words)

    assert done.exit_code == 2
    assert reason in done.output


def test_a_bad_configuration_is_a_failure(node: Node) -> None:
    (node.folder / "agent.toml").write_text("x = 1")

    done = node.vgpuctl("ps")

    assert done.exit_code == 1
    assert "unknown key x" in done.output
