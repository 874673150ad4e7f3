# SPDX-License-Identifier: Apache-2.0
"""`/metrics`: what is measured and counted, in Prometheus' text format.

A scrape renders the last readings in a thread of its own and asks nobody: neither NVML nor the
event loop on which creates are answered. Series follow allocations and cards; no tenant can make
one. docs/metrics.md lists them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runtime_shim import __version__
from runtime_shim.counters import LATENCY_SECONDS, Counters
from runtime_shim.errors import ConfigError
from runtime_shim.readings import Readings

logger = logging.getLogger(__name__)

# A scraper sends some hundred bytes at once; whoever does not, makes room for others.
_REQUEST_SECONDS = 5.0
_CONNECTIONS = 8

_CONTAINER_LABELS = ("allocation", "container_id", "namespace", "pod", "container", "card")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the numbers are; each is called or read at every scrape, from any thread."""

    readings: Callable[[], Readings]
    counters: Counters
    nvml_errors: Callable[[], dict[str, int]]
    cache_connected: Callable[[], bool]
    mode: str
    certificate_expires: Callable[[], float] = lambda: float("inf")
    """When what proves this node ends, Unix time; infinite without a certificate."""
    resources: Callable[[], Mapping[str, bool]] = dict
    """Kubernetes: whether the kubelet listens to each resource of this node."""


class AgentCollector(Collector):
    """Turns the last readings into metrics."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the agent."""
        readings = self._sources.readings()
        yield from _containers(readings)
        yield from _cards(readings)
        yield from _counts(self._sources.counters)
        yield from self._agent(readings)

    def _agent(self, readings: Readings) -> Iterator[Metric]:
        errors = CounterMetricFamily(
            "vgpu_nvml_errors",
            "NVML did not answer for a card; an empty card: it did not list the cards.",
            labels=["card"],
        )
        for card_uuid, count in sorted(self._sources.nvml_errors().items()):
            errors.add_metric([card_uuid], count)
        yield errors
        yield GaugeMetricFamily(
            "vgpu_cache_connected",
            "1: the scheduler cache tells this node of changes.",
            value=int(self._sources.cache_connected()),
        )
        yield GaugeMetricFamily(
            "vgpu_readings_time_seconds",
            "When the numbers of containers and cards were read, Unix time.",
            value=readings.unix_seconds,
        )
        expires = self._sources.certificate_expires()
        if expires < float("inf"):
            yield GaugeMetricFamily(
                "vgpu_certificate_expiry_time_seconds",
                "When the certificate that proves this node ends, Unix time.",
                value=expires,
            )
        if resources := self._sources.resources():
            registered = GaugeMetricFamily(
                "vgpu_resource_registered",
                "1: the kubelet listens to this resource of the node.",
                labels=["resource"],
            )
            for name, heard in sorted(resources.items()):
                registered.add_metric([name], int(heard))
            yield registered
        about = GaugeMetricFamily("vgpu_agent_info", "The agent.", labels=["version", "mode"])
        about.add_metric([__version__, self._sources.mode], 1)
        yield about


def _containers(readings: Readings) -> Iterator[Metric]:
    limit = _container_gauge("memory_limit_bytes", "Memory promised of the card.")
    used = _container_gauge("memory_used_bytes", "Memory that counts against the limit.")
    nvml = _container_gauge("memory_nvml_bytes", "Memory that NVML sees of its processes.")
    cores = _container_gauge("cores_percent", "Share of the card's time that is promised.")
    running = _container_gauge("running", "1: it has started.")
    busy = CounterMetricFamily(
        "vgpu_container_busy_seconds",
        "Time for which its kernels kept the card busy.",
        labels=_CONTAINER_LABELS,
    )
    refused = CounterMetricFamily(
        "vgpu_container_refused_allocations",
        "Allocations of memory that its limit refused.",
        labels=_CONTAINER_LABELS,
    )
    for each in readings.containers:
        labels = (
            each.allocation_id,
            each.container_id,
            each.namespace,
            each.pod,
            each.container,
            each.card_uuid,
        )
        limit.add_metric(labels, each.limit_bytes)
        used.add_metric(labels, each.used_bytes)
        if each.nvml_bytes is not None:
            nvml.add_metric(labels, each.nvml_bytes)
        cores.add_metric(labels, each.cores_percent)
        running.add_metric(labels, int(each.running))
        busy.add_metric(labels, each.busy_seconds)
        refused.add_metric(labels, each.refused)
    yield from (limit, used, nvml, cores, running, busy, refused)


def _container_gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vgpu_container_{name}", text, labels=_CONTAINER_LABELS)


def _cards(readings: Readings) -> Iterator[Metric]:
    healthy = _card_gauge("healthy", "1: slices of it are given out.")
    memory = _card_gauge("memory_bytes", "Memory that can be promised.")
    used = _card_gauge("memory_used_bytes", "Memory in use by whomever, as NVML says.")
    utilization = _card_gauge("utilization_percent", "How busy it is, as NVML says.")
    slices = _card_gauge("slices", "Slices that are held.")
    promised = _card_gauge("slices_memory_bytes", "Memory of all slices that are held.")
    cores = _card_gauge("slices_cores_percent", "Reserved time of all slices that are held.")
    for each in readings.cards:
        labels = (each.card_uuid, each.model)
        healthy.add_metric(labels, int(not each.health_reason))
        memory.add_metric(labels, each.memory_bytes)
        if each.used_bytes is not None:
            used.add_metric(labels, each.used_bytes)
        if each.utilization_percent is not None:
            utilization.add_metric(labels, each.utilization_percent)
        slices.add_metric(labels, each.slices)
        promised.add_metric(labels, each.slices_memory_bytes)
        cores.add_metric(labels, each.slices_cores_percent)
    yield from (healthy, memory, used, utilization, slices, promised, cores)


def _card_gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"vgpu_card_{name}", text, labels=("card", "model"))


def _counts(counters: Counters) -> Iterator[Metric]:
    yield _by_label(
        "vgpu_verdicts", "Answers to creates of the engine.", "verdict", counters.verdicts
    )
    yield _by_label(
        "vgpu_create_refusals", "Containers that were not started.", "reason", counters.refusals
    )
    yield _by_label("vgpu_enforcement_events", "What no slice covered.", "event", counters.events)
    yield CounterMetricFamily(
        "vgpu_stored_answers_used",
        "Containers that started from a stored answer while the cache was away.",
        value=counters.stored_answers,
    )
    yield CounterMetricFamily(
        "vgpu_resolved_by_identity",
        "Containers that were known by their pod, without a UUID.",
        value=counters.resolved_by_identity,
    )
    bounds = [*(str(bound) for bound in LATENCY_SECONDS), "+Inf"]
    yield HistogramMetricFamily(
        "vgpu_verdict_seconds",
        "From a launcher's question to the answer.",
        buckets=list(zip(bounds, accumulate(counters.latency_counts), strict=True)),
        sum_value=counters.latency_sum_seconds,
    )


def _by_label(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Leave scrapes out of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Any, handler: Any) -> None:  # noqa: ANN401 - as the base has it
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, without the base's look-up of the host's name, which may take for ever."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve in a thread, or close when as many are served as may be."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve one scrape, for a bounded time."""
        # The handler's own limit is for one read; a client may send a byte each second.
        timer = threading.Timer(_REQUEST_SECONDS * 2, _end, [request])
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Let a client that went away do so."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _end(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class MetricsServer:
    """Serves `/metrics` over HTTP until closed."""

    def __init__(self, host: str, port: int, sources: Sources) -> None:
        """Listen at once. Raises ConfigError when the address is not to be had."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(AgentCollector(sources))
        server_class = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), server_class, _Handler)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served on {host} port {port}: {error.strerror or error}"
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; scrapes under way are left to end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
