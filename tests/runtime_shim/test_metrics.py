# SPDX-License-Identifier: Apache-2.0
"""`/metrics` over real HTTP, read by Prometheus' own parser."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime_shim.counters import EVENTS, REFUSALS, VERDICTS, Counters
from runtime_shim.errors import ConfigError
from runtime_shim.metrics import MetricsServer, Sources
from runtime_shim.readings import Readings
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD
from tests.runtime_shim.test_readings import card, container

Samples = dict[tuple[str, str], float]


@dataclass
class Node:
    """What an agent would have measured and counted."""

    readings: Readings = field(default_factory=Readings)
    counters: Counters = field(default_factory=Counters)
    nvml_errors: dict[str, int] = field(default_factory=lambda: {"": 0})
    resources: dict[str, bool] = field(default_factory=dict)
    port: int = 0

    def scrape(self, label: str) -> Samples:
        """Return every sample by its name and the value of `label`."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
        samples: Samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, sample.labels.get(label, ""))
                assert key not in samples or label not in sample.labels
                samples[key] = sample.value
        return samples


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    server = MetricsServer(
        "127.0.0.1",
        0,
        Sources(
            readings=lambda: node.readings,
            counters=node.counters,
            nvml_errors=lambda: node.nvml_errors,
            cache_connected=lambda: True,
            mode="local",
            resources=lambda: node.resources,
        ),
    )
    node.port = server.port
    yield node
    server.close()


def test_a_container_has_its_series(node: Node) -> None:
    node.readings = Readings(
        containers=(
            container(),
            container(card_uuid=OTHER_CARD, nvml_bytes=None, running=False),
        )
    )

    samples = node.scrape("card")

    assert samples["vgpu_container_memory_limit_bytes", CARD] == 2 * GIB
    assert samples["vgpu_container_memory_used_bytes", CARD] == GIB
    assert samples["vgpu_container_memory_nvml_bytes", CARD] == GIB
    assert samples["vgpu_container_cores_percent", CARD] == 25
    assert samples["vgpu_container_busy_seconds_total", CARD] == 1.5
    assert samples["vgpu_container_refused_allocations_total", CARD] == 3
    assert samples["vgpu_container_running", CARD] == 1
    assert samples["vgpu_container_running", OTHER_CARD] == 0
    assert ("vgpu_container_memory_nvml_bytes", OTHER_CARD) not in samples


def test_a_card_that_does_not_answer_costs_its_own_samples(node: Node) -> None:
    node.readings = Readings(
        cards=(
            card(),
            card(
                card_uuid=OTHER_CARD,
                used_bytes=None,
                utilization_percent=None,
                health_reason="the driver lost it",
            ),
        )
    )
    node.nvml_errors = {"": 0, CARD: 0, OTHER_CARD: 4}

    samples = node.scrape("card")

    assert samples["vgpu_card_memory_used_bytes", CARD] == GIB
    assert samples["vgpu_card_utilization_percent", CARD] == 50
    assert ("vgpu_card_memory_used_bytes", OTHER_CARD) not in samples
    assert samples["vgpu_card_healthy", CARD] == 1
    assert samples["vgpu_card_healthy", OTHER_CARD] == 0
    assert samples["vgpu_card_slices_memory_bytes", OTHER_CARD] == 2 * GIB
    assert samples["vgpu_card_slices_cores_percent", OTHER_CARD] == 25
    assert samples["vgpu_nvml_errors_total", OTHER_CARD] == 4
    assert samples["vgpu_nvml_errors_total", CARD] == 0


def test_counts_are_there_before_anything_happened(node: Node) -> None:
    assert all(node.scrape("verdict")["vgpu_verdicts_total", each] == 0 for each in VERDICTS)
    assert all(node.scrape("reason")["vgpu_create_refusals_total", each] == 0 for each in REFUSALS)
    assert all(node.scrape("event")["vgpu_enforcement_events_total", each] == 0 for each in EVENTS)
    assert node.scrape("")["vgpu_cache_connected", ""] == 1


def test_a_resource_shows_whether_the_kubelet_listens(node: Node) -> None:
    assert not any("resource" in name for name, _ in node.scrape("resource"))

    node.resources = {"vgpu.dev/count": True, "nvidia.com/gpu": False}

    samples = node.scrape("resource")
    assert samples["vgpu_resource_registered", "vgpu.dev/count"] == 1
    assert samples["vgpu_resource_registered", "nvidia.com/gpu"] == 0


def test_the_latency_is_a_histogram(node: Node) -> None:
    for seconds in (0.0004, 0.0005, 0.3, 100.0):
        node.counters.verdict("gpu", seconds)

    samples = node.scrape("le")

    assert samples["vgpu_verdict_seconds_bucket", "0.0005"] == 2
    assert samples["vgpu_verdict_seconds_bucket", "0.5"] == 3
    assert samples["vgpu_verdict_seconds_bucket", "8.0"] == 3
    assert samples["vgpu_verdict_seconds_bucket", "+Inf"] == 4
    assert samples["vgpu_verdict_seconds_count", ""] == 4
    assert samples["vgpu_verdict_seconds_sum", ""] == pytest.approx(100.3009)


def test_a_name_cannot_break_the_text(node: Node) -> None:
    name = 'a"b\\c\nvgpu_evil 1'
    node.readings = Readings(containers=(container(pod=name),))

    samples = node.scrape("pod")

    assert samples["vgpu_container_running", name] == 1
    assert not [key for key in samples if key[0] == "vgpu_evil"]


def test_clients_that_say_nothing_keep_nobody_out_for_long(node: Node) -> None:
    silent = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(20)]
    try:
        done = threading.Event()

        def until_served() -> None:
            while not done.is_set():
                try:
                    node.scrape("")
                    done.set()
                except OSError:
                    done.wait(0.2)

        threading.Thread(target=until_served, daemon=True).start()
        assert done.wait(60), "no scrape got through"
    finally:
        done.set()
        for each in silent:
            each.close()


def test_an_address_that_is_taken_is_a_sentence(node: Node) -> None:
    sources = Sources(
        readings=Readings,
        counters=node.counters,
        nvml_errors=dict,
        cache_connected=lambda: False,
        mode="local",
    )

    with pytest.raises(ConfigError, match=f"cannot be served on 127.0.0.1 port {node.port}"):
        MetricsServer("127.0.0.1", node.port, sources)
