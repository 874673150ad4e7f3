# SPDX-License-Identifier: Apache-2.0
"""A node with a private dockerd in front of it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed.docker import Docker
from tests.testbed.node import GIB, Node

IMAGE = "vgpu-test:1"
RunDetached = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/engines/" in str(item.path):
            item.add_marker(pytest.mark.engine)


@pytest.fixture
def node(scratch: Path) -> Iterator[Node]:
    """Yield a running node with one simulated card of 8 GiB."""
    gpu = SimulatedGpu.create(
        scratch / "gpu", cards=[Card(memory_bytes=8 * GIB)], context_bytes=0, check_nodes=True
    )
    with Node(scratch / "node", gpu) as running:
        yield running


@pytest.fixture
def docker(scratch: Path, node: Node, template: Path, dockerd: str) -> Iterator[Docker]:
    """Yield a dockerd that knows our runtime as `vgpu`, with an image that asks for all GPUs."""
    with Docker(scratch / "docker", {"vgpu": node.launcher}) as engine:
        engine.import_image(template, IMAGE, changes=["ENV NVIDIA_VISIBLE_DEVICES=all"])
        yield engine


@pytest.fixture
def options(node: Node) -> list[str]:
    """Return the options of every `docker run` here."""
    volumes = [f"--volume={host}:{inside}" for host, inside in node.gpu_mounts()]
    return ["--runtime=vgpu", "--network=none", *volumes]


@pytest.fixture
def run(docker: Docker, options: list[str]) -> RunDetached:
    """Return a function that starts a sleeping container with a slice."""

    def start(name: str, memory: str, cores: int = 25, extra: Sequence[str] = ()) -> str:
        request = ["-e", f"VGPU_MEMORY={memory}", "-e", f"VGPU_CORES={cores}"]
        command = ["run", "-d", "--name", name, *options, *request, *extra, IMAGE, "sleep", "600"]
        return docker.command(*command)

    return start
