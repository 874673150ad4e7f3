# SPDX-License-Identifier: Apache-2.0
"""Every example asks for what its comment says, in the dialect whose name it bears."""

from __future__ import annotations

import shlex

import pytest

from runtime_shim.request import parse_request
from scheduler_cache.dialects.keyring import Key, Keyring
from scheduler_cache.dialects.registry import every_dialect
from scheduler_cache.model import CardPolicy, ComputeMode, MemoryAmount, Request
from scheduler_cache.pod import UUID_VARIABLE, pod_of
from tests.deploy.examples import EXAMPLES, example_pods
from tests.scheduler_cache.admission.reviews import admitted

DIALECTS = every_dialect(Keyring(Key("k", b"secret of the tests of examples")))
GIB = 1 << 30
MIB = 1 << 20


def size(number: int, unit: int = GIB) -> tuple[MemoryAmount, ...]:
    return (MemoryAmount(bytes=number * unit),)


def part(percent: int) -> tuple[MemoryAmount, ...]:
    return (MemoryAmount(percent=percent),)


# File → pod → dialect and request of each container that gets a slice.
WANTED: dict[str, dict[str, tuple[str, dict[str, Request]]]] = {
    "native.yaml": {
        "notebook": ("native", {"notebook": Request(memory=size(8), cores_percent=(25,))}),
    },
    "serving.yaml": {
        "serving-0": (
            "native",
            {
                "server": Request(
                    memory=part(50),
                    cores_percent=(30,),
                    compute_mode=ComputeMode.BURST,
                    models=("A100", "H100"),
                    card_policy=CardPolicy.BINPACK,
                )
            },
        ),
    },
    "unequal.yaml": {
        "speculative-decoding": (
            "native",
            {"server": Request(count=2, memory=size(40) + size(8), cores_percent=(70, 20))},
        )
    },
    "init-and-sidecar.yaml": {
        "warmed-up": (
            "native",
            {
                "compile": Request(memory=size(12)),
                "embeddings": Request(memory=size(2), cores_percent=(10,)),
                "main": Request(memory=size(10), cores_percent=(40,)),
            },
        )
    },
    "volcano.yaml": {
        "training-0": (
            "volcano",
            {"worker": Request(count=2, memory=size(3000, MIB), cores_percent=(50,), shared=True)},
        )
    },
    "hami.yaml": {
        "two-containers": (
            "hami",
            {
                "train": Request(
                    memory=size(3000, MIB),
                    cores_percent=(30,),
                    models=("!1080", "!2080"),
                    shared=True,
                ),
                "infer": Request(
                    memory=part(50), cores_percent=(20,), models=("!1080", "!2080"), shared=True
                ),
            },
        )
    },
    "koordinator.yaml": {
        "shared-gpus": (
            "koordinator",
            {"main": Request(count=2, memory=part(50), cores_percent=(50,), shared=True)},
        )
    },
    "kai.yaml": {
        "interactive": (
            "kai",
            {"main": Request(memory=(MemoryAmount(fraction=0.5),), shared=True)},
        ),
        "by-size": ("kai", {"worker": Request(count=2, memory=size(4), shared=True)}),
    },
    "gpu-manager.yaml": {
        "vcuda": (
            "gpu_manager",
            {
                "main": Request(
                    memory=size(2560, MIB),
                    cores_percent=(30,),
                    compute_mode=ComputeMode.BURST,
                    cores_max_percent=60,
                )
            },
        )
    },
    "alnair.yaml": {
        "cifar": ("alnair", {"main": Request(memory=size(3), cores_percent=(40,))}),
    },
}


def test_every_example_is_looked_at() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(WANTED)


def test_there_is_one_of_every_dialect() -> None:
    spoken = {dialect for pods in WANTED.values() for dialect, _ in pods.values()}

    assert spoken == {each.name for each in DIALECTS}


@pytest.mark.parametrize("name", sorted(WANTED))
def test_it_asks_for_what_its_comment_says(name: str) -> None:
    found = {}
    for source in example_pods(EXAMPLES / name):
        request = DIALECTS.parse_request(pod_of(source))
        assert request is not None
        found[source["metadata"]["name"]] = (request.dialect, dict(request.containers))

    assert found == WANTED[name]


@pytest.mark.parametrize("name", sorted(WANTED))
def test_the_webhooks_let_it_in_and_name_who_asks(name: str) -> None:
    for source in example_pods(EXAMPLES / name):
        _, requests = WANTED[name][source["metadata"]["name"]]

        spec = admitted(source)["spec"]

        assert spec["runtimeClassName"] == "vgpu"
        named = {
            each["name"]
            for each in [*spec.get("initContainers", []), *spec["containers"]]
            if any(variable["name"] == UUID_VARIABLE for variable in each.get("env", []))
        }
        assert named == set(requests)


@pytest.mark.parametrize("name", sorted(WANTED))
def test_its_images_name_their_registry(name: str) -> None:
    # containerd guesses none.
    for source in example_pods(EXAMPLES / name):
        spec = source["spec"]
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            assert each["image"].startswith("docker.io/")


def docker_requests() -> list[dict[str, str]]:
    """Return the variables of each `docker run` of the shell example."""
    text = (EXAMPLES / "docker.sh").read_text().replace("\\\n", "")
    found = []
    for line in text.splitlines():
        if line.startswith("docker run"):
            words = shlex.split(line)
            pairs = [words[index + 1] for index, word in enumerate(words) if word == "-e"]
            found.append(dict(pair.split("=", 1) for pair in pairs))
    return found


def test_docker_commands_ask_for_what_their_comments_say() -> None:
    requests = [parse_request(variables) for variables in docker_requests()]

    assert [(each.count, list(each.cores_percent), list(each.models)) for each in requests] == [
        (1, [50], []),
        (2, [70, 20], []),
        (1, [], ["!T4"]),
        (1, [], []),
    ]
    assert [[(m.bytes, m.percent) for m in each.memory] for each in requests] == [
        [(8 * GIB, 0)],
        [(40 * GIB, 0), (8 * GIB, 0)],
        [(0, 50)],
        [(0, 100)],
    ]
