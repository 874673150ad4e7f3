# SPDX-License-Identifier: Apache-2.0
"""Whole lives of containers in an engine: `docker run --rm`, and a pod over CRI."""

import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.table import PLAIN, CommandFailedError, Sample, Table, measure
from runtime_shim.identity import Identity
from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.clusters import ClusterNode
from tests.testbed.docker import SEARCH, Docker, find_dockerd
from tests.testbed.engines.base import IMAGE, Setup
from tests.testbed.engines.cri import Cri
from tests.testbed.node import GIB, Node
from tests.testbed.pod_cache import PodCache
from tests.testbed.rootfs import build_rootfs

SLICE = {"VGPU_MEMORY": "64Mi", "VGPU_CORES": "1"}
PEER = "peer"
_NO_GPU, _WITH_SLICE = "no GPU", "with a slice"


def table_docker(directory: Path, rounds: int, peer: Path | None) -> Table:
    """Measure `docker run --rm` of a program that ends at once."""
    table = Table("A whole life: `docker run --rm`, no network")
    if find_dockerd() is None:
        raise CommandFailedError("dockerd is not installed")
    client = shutil.which("docker", path=SEARCH)
    if client is None:
        raise CommandFailedError("docker's client is not installed")
    gpu = _gpu(directory)
    rootfs = build_rootfs(directory / "rootfs")
    with Node(directory / "node", gpu) as node, _peer(directory, peer, Path(node.low_level)):
        runtimes = {PLAIN: Path(node.low_level), "vgpu": node.launcher}
        if peer is not None:
            runtimes[PEER] = peer
        with Docker(directory / "docker", runtimes) as docker:
            docker.import_image(rootfs, IMAGE)
            for _ in range(rounds):
                for label, variant, env in _variants(runtimes, SLICE):
                    words = [client, "-H", docker.host, "run", "--rm", "--network=none"]
                    words += [f"--env={key}={value}" for key, value in env.items()]
                    words += [f"--runtime={variant}", IMAGE, "/bin/true"]
                    table.add(label, variant, measure(words))
    return table


def table_cri(directory: Path, rounds: int, peer: Path | None) -> Table:
    """Measure a pod of one container: sandbox, container, its end, and all of it removed."""
    table = Table("A whole life: a pod of one container over containerd's CRI, no network")
    gpu = _gpu(directory)
    rootfs = build_rootfs(directory / "rootfs")
    cache = PodCache(directory / "cache.sock", "testbed")
    node = ClusterNode(directory / "node", gpu, [f'address = "unix:{cache.socket}"'])
    low_level = Path(node.low_level)
    setup = Setup(directory / "cri", node.launcher, low_level, rootfs, node.gpu_mounts())
    handlers = {PLAIN: low_level, "vgpu": node.launcher}
    if peer is not None:
        handlers[PEER] = peer
    with _peer(directory, peer, low_level):
        cri = Cri(setup, handlers=handlers)
        cache.start()
        try:
            cri.open()
            node.start_agent()
            for _ in range(rounds):
                for label, variant, env in _variants(handlers, {"VGPU_CONTAINER_UUID": ""}):
                    table.add(label, variant, _pod_life(cri, cache, gpu, variant, env))
        finally:
            cri.shut()
            node.__exit__(None, None, None)
            cache.stop()
    return table


def _pod_life(
    cri: Cri, cache: PodCache, gpu: SimulatedGpu, handler: str, env: Mapping[str, str]
) -> Sample:
    identity = Identity(
        pod_uid=str(uuid.uuid4()), namespace="bench", pod="life", container_name="main"
    )
    if env:
        container_uuid = str(uuid.uuid4())
        env = {"VGPU_CONTAINER_UUID": container_uuid}
        cache.bind(identity, container_uuid, gpu.uuid(0), 64 << 20)
    began = time.perf_counter()
    pod = cri.run_pod(identity, handler)
    container = cri.start(pod, ["/bin/true"], env=env)
    while cri.status(container).state != 2:
        time.sleep(0.001)
    exit_code = cri.status(container).exit_code
    cri.remove_all()
    if exit_code != 0:
        raise CommandFailedError(f"the pod's container ended with {exit_code}")
    return Sample((time.perf_counter() - began) * 1e3, 0.0, 0)


def _variants(
    runtimes: Mapping[str, Path], ask: Mapping[str, str]
) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield command, runtime and environment; without a slice for all, with one through ours."""
    for variant in runtimes:
        yield _NO_GPU, variant, {}
    yield _WITH_SLICE, PLAIN, {}
    yield _WITH_SLICE, "vgpu", ask


def _gpu(directory: Path) -> SimulatedGpu:
    (directory / "gpu").mkdir(parents=True)
    return SimulatedGpu.create(directory / "gpu", cards=[Card(memory_bytes=80 * GIB)] * 2)


@contextmanager
def _peer(directory: Path, peer: Path | None, low_level: Path) -> Iterator[None]:
    """Let the peer find its cheapest configuration, as a child of any daemon."""
    if peer is None:
        yield
        return
    config = directory / "nvidia-container-runtime" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[nvidia-container-runtime]\nmode = "cdi"\nruntimes = ["{low_level}"]\n')
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CONFIG_HOME"]
        else:
            os.environ["XDG_CONFIG_HOME"] = before
