# SPDX-License-Identifier: Apache-2.0
"""`/metrics` and `vgpuctl top` of a whole node: real runc, real HTTP, simulated cards."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.conftest import MakeBundle, slice_env
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

MIB = 1 << 20
NVML_ERROR_UNKNOWN = 999


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def gpu(scratch: Path) -> SimulatedGpu:
    """Return two cards of 8 GiB."""
    cards = [Card(memory_bytes=8 * GIB), Card(memory_bytes=8 * GIB)]
    return SimulatedGpu.create(scratch / "gpu", cards=cards, context_bytes=0, check_nodes=True)


@pytest.fixture
def node(scratch: Path, gpu: SimulatedGpu, port: int) -> Iterator[Node]:
    """Yield a running node that serves metrics."""
    lines = ["[metrics]", f'listen = "127.0.0.1:{port}"']
    with Node(scratch / "node", gpu, agent_lines=lines) as running:
        yield running


def scrape(port: int) -> dict[str, dict[str, float]]:
    """Return samples by name and by card (or, without one, by the first label's value)."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text = response.read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("card", next(iter(sample.labels.values()), ""))
            found.setdefault(sample.name, {})[label] = sample.value
    return found


def top(node: Node) -> Any:  # noqa: ANN401 - any JSON
    done = node.vgpuctl("top", "--once", "--json")
    return json.loads(done.stdout) if done.returncode == 0 else None


def test_a_container_is_there_with_zeros_and_goes_with_its_end(
    node: Node, gpu: SimulatedGpu, port: int, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
    wait_until(lambda: "vgpu_container_running" in scrape(port), "the container has its series")

    first = scrape(port)

    (card,) = first["vgpu_container_running"]
    assert first["vgpu_container_memory_limit_bytes"] == {card: GIB}
    assert first["vgpu_container_memory_used_bytes"] == {card: 0}
    assert first["vgpu_container_busy_seconds_total"] == {card: 0}
    assert first["vgpu_container_refused_allocations_total"] == {card: 0}
    assert first["vgpu_card_slices_memory_bytes"][card] == GIB
    assert first["vgpu_card_healthy"] == {gpu.uuid(0): 1, gpu.uuid(1): 1}
    assert first["vgpu_verdicts_total"]["low-level"] == 1

    runtime.exec_detached("a", PROBE, "--until-refused", "256m", "--hold", "60")
    wait_until(
        lambda: scrape(port)["vgpu_container_memory_used_bytes"][card] == GIB, "its use is seen"
    )
    wait_until(
        lambda: scrape(port)["vgpu_container_refused_allocations_total"][card] == 1,
        "its refusal is seen",
    )
    assert scrape(port)["vgpu_card_memory_used_bytes"][card] >= GIB
    wait_until(lambda: top(node)["containers"][0]["used_bytes"] == GIB, "top shows it, too")
    assert top(node)["containers"][0]["refused"] == 1

    runtime.delete("a")
    wait_until(
        lambda: "vgpu_container_running" not in scrape(port), "its series end", timeout_seconds=60
    )
    assert top(node)["containers"] == []


def test_a_refused_create_is_counted(
    node: Node, port: int, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    with pytest.raises(RuntimeFailedError, match="VGPU_MEMORY"):
        runtime.run(make_bundle("a", slice_env("0")), "a")
    with pytest.raises(RuntimeFailedError, match="no card has 9.0Gi"):
        runtime.run(make_bundle("b", slice_env("9Gi")), "b")

    samples = scrape(port)

    assert samples["vgpu_create_refusals_total"]["request"] == 1
    assert samples["vgpu_create_refusals_total"]["no_room"] == 1
    assert samples["vgpu_verdicts_total"]["refuse"] == 2
    assert samples["vgpu_verdict_seconds_bucket"]["+Inf"] == 2


def test_a_card_that_fails_costs_its_own_samples_only(
    node: Node, gpu: SimulatedGpu, port: int
) -> None:
    wait_until(
        lambda: len(scrape(port).get("vgpu_card_memory_used_bytes", {})) == 2, "both are read"
    )

    gpu.set_lost(0)

    wait_until(
        lambda: list(scrape(port)["vgpu_card_memory_used_bytes"]) == [gpu.uuid(1)],
        "the lost one has no samples",
    )
    wait_until(lambda: scrape(port)["vgpu_nvml_errors_total"][gpu.uuid(0)] > 0, "it is counted")
    assert scrape(port)["vgpu_nvml_errors_total"][gpu.uuid(1)] == 0
    wait_until(
        lambda: scrape(port)["vgpu_card_healthy"] == {gpu.uuid(0): 0, gpu.uuid(1): 1},
        "it is not healthy",
        timeout_seconds=60,
    )


def test_scrapes_hold_up_no_create(
    node: Node, port: int, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    done = threading.Event()
    scrapes = 0

    def scrape_on() -> None:
        nonlocal scrapes
        while not done.is_set():
            try:
                scrape(port)
            except OSError:
                continue
            scrapes += 1

    clients = [threading.Thread(target=scrape_on, daemon=True) for _ in range(2)]
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for number in range(5):
            runtime.start_detached(make_bundle(f"c{number}", slice_env("256Mi", 5)), f"c{number}")
    finally:
        done.set()
        for client in clients:
            client.join()
        for each in silent:
            each.close()

    assert scrapes > 0
    assert scrape(port)["vgpu_verdicts_total"]["low-level"] == 5


def test_top_says_when_nobody_measures(node: Node) -> None:
    wait_until(lambda: top(node) is not None, "the agent measures")

    node.stop_agent()

    done = node.vgpuctl("top", "--once")
    assert done.returncode == 1
    assert "no node agent measures" in done.stderr


def test_top_shows_nothing_old(node: Node) -> None:
    wait_until(lambda: top(node) is not None, "the agent measures")

    node.stop_agent(signal.SIGKILL)
    path = node.run_dir / "readings.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({**old, "unix_seconds": time.time() - 60}))

    done = node.vgpuctl("top", "--once")
    assert done.returncode == 1
    assert "s ago last" in done.stderr
