# SPDX-License-Identifier: Apache-2.0
"""Whole cards of NVIDIA's plugin under our handler, by the word of the real kubelet.

NVIDIA's plugin and runtime are fakes; who vouches is the kubelet's own PodResources.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.namespace import Namespace
from tests.e2e.plugins import WHOLE_CARDS, minor_of, nvidia_plugin
from tests.e2e.pods import PROBE, STAY, Json, container, pod
from tests.fakes import nvidia_runtime
from tests.testbed import BUILD
from tests.testbed.kubernetes.cluster import CARD_BYTES, CARDS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIBRARIES = [BUILD / "fake" / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
LOOK = f'echo "${VISIBLE}"; ls /dev; {STAY}'


def whole(name: str, count: int, script: str = f"{PROBE}; {STAY}", **more: Any) -> Json:  # noqa: ANN401
    """Return a pod under our handler with whole cards of NVIDIA's plugin."""
    asked = {WHOLE_CARDS: str(count)} if count else {}
    variables = [{"name": key, "value": value} for key, value in more.pop("env", {}).items()]
    return pod(
        name,
        container(asked=asked, script=script, env=variables, **more),
        runtimeClassName="vgpu",
    )


def with_driver(item: Json) -> Json:
    """Have the driver's libraries mounted by the pod itself, as where no runtime brings them."""
    place = f"/usr/lib/{os.uname().machine}-linux-gnu"
    item["spec"]["volumes"] = [
        {"name": f"driver-{number}", "hostPath": {"path": str(file), "type": "File"}}
        for number, file in enumerate(LIBRARIES)
    ]
    item["spec"]["containers"][0]["volumeMounts"] = [
        {"name": f"driver-{number}", "mountPath": f"{place}/{file.name}", "readOnly": True}
        for number, file in enumerate(LIBRARIES)
    ]
    return item


@pytest.fixture
async def cards(namespace: Namespace) -> AsyncIterator[list[str]]:
    """Yield the two cards that NVIDIA's plugin gives out, with their device nodes."""
    cluster = namespace.cluster
    uuids = [cluster.gpu.uuid(index) for index in (5, 6)]
    async with nvidia_plugin(cluster, uuids, nodes=True):
        yield uuids
        await namespace.clear()


@pytest.fixture
async def named_cards(namespace: Namespace) -> AsyncIterator[list[str]]:
    """Yield the two cards that NVIDIA's plugin names in a variable, and does no more."""
    cluster = namespace.cluster
    uuids = [cluster.gpu.uuid(index) for index in (5, 6)]
    async with nvidia_plugin(cluster, uuids):
        yield uuids
        await namespace.clear()


@pytest.fixture
def gpu_runtime(namespace: Namespace, tmp_path: Path) -> Iterator[Path]:
    """Have NVIDIA's runtime on the node; yield where it writes what it was given, by container."""
    cluster = namespace.cluster
    uuids = [cluster.gpu.uuid(index) for index in range(CARDS)]
    program = nvidia_runtime.install(
        tmp_path / "toolkit",
        low_level=cluster.node.low_level,
        minors={uuid: minor_of(cluster, uuid) for uuid in uuids},
        libraries=LIBRARIES,
    )
    conf = Path(f"{cluster.node.launcher}.conf")
    before = conf.read_text()
    replace_file(conf, f"{before}gpu_runtime={program}\n")
    yield program.parent / "seen"
    replace_file(conf, before)


def replace_file(path: Path, text: str) -> None:
    """Change a file that launchers read at any moment."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def container_id(item: Json) -> str:
    return str(item["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")


def as_the_engine_made_it(namespace: Namespace, item: Json) -> Any:  # noqa: ANN401 - JSON
    """Return the spec of a pod's container from containerd's own records."""
    words = [*namespace.cluster.containerd.ctr("k8s.io"), "containers", "info", container_id(item)]
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)["Spec"]


def config_of(namespace: Namespace, item: Json) -> Any:  # noqa: ANN401 - JSON
    """Return the config.json that a running container was made from."""
    tasks = namespace.cluster.containerd.directory / "state/io.containerd.runtime.v2.task/k8s.io"
    return json.loads((tasks / container_id(item) / "config.json").read_bytes())


async def sees_whole(namespace: Namespace, name: str, container: str = "main") -> list[str]:
    """Return the cards that a container sees, each of them whole."""
    seen = await namespace.probe(name, container)
    assert {each["nvml"]["total"] for each in seen["devices"]} == {CARD_BYTES}, seen
    assert seen["words"][0]["bytes"] == CARD_BYTES, seen
    return [str(each["uuid"]) for each in seen["devices"]]


async def test_a_whole_card_is_left_to_its_plugin(namespace: Namespace, cards: list[str]) -> None:
    await namespace.create(with_driver(whole("one", 1)), with_driver(whole("other", 1)))

    items = await namespace.running("one", "other")

    seen = [await sees_whole(namespace, name) for name in ("one", "other")]
    assert sorted(seen) == [[card] for card in sorted(cards)]
    for item in items:
        assert config_of(namespace, item) == as_the_engine_made_it(namespace, item)
    assert "the kubelet vouches for its cards" in namespace.cluster.node.log("agent")


async def test_an_init_container_has_its_whole_card_by_the_kubelets_record(
    namespace: Namespace, cards: list[str]
) -> None:
    item = with_driver(whole("prepared", 1))
    (main,) = item["spec"]["containers"]
    item["spec"]["initContainers"] = [
        {**main, "name": "prepare", "command": ["/bin/sh", "-c", PROBE]}
    ]
    await namespace.create(item)

    await namespace.running("prepared")

    seen = [await sees_whole(namespace, "prepared", name) for name in ("prepare", "main")]
    # The kubelet gives the container that follows what the init container had.
    assert seen[0] == seen[1]
    assert set(seen[0]) < set(cards)


async def test_the_gpu_runtime_gets_what_the_plugin_made(
    namespace: Namespace, named_cards: list[str], gpu_runtime: Path
) -> None:
    await namespace.create(whole("both", 2))

    [item] = await namespace.running("both")

    assert sorted(await sees_whole(namespace, "both")) == sorted(named_cards)
    given = json.loads((gpu_runtime / f"{container_id(item)}.json").read_bytes())
    assert given == as_the_engine_made_it(namespace, item)


async def test_who_names_a_card_that_it_was_not_given_sees_none(
    namespace: Namespace, cards: list[str]
) -> None:
    foreign = namespace.cluster.gpu.uuid(0)
    named = {
        "another": whole("another", 1, LOOK, env={VISIBLE: foreign}),
        "every": whole("every", 1, LOOK, env={VISIBLE: "all"}),
        "nothing-given": whole("nothing-given", 0, LOOK, env={VISIBLE: cards[0]}),
    }
    await namespace.create(*named.values())

    await namespace.running(*named)

    for name in named:
        visible, *nodes = (await namespace.log(name)).split()
        assert visible == "void", name
        assert "null" in nodes, name
        assert not [node for node in nodes if "nvidia" in node], (name, nodes)


async def test_pods_that_the_node_allows_get_what_they_name(
    namespace: Namespace, gpu_runtime: Path
) -> None:
    """As NVIDIA's own plugin and dcgm-exporter, which ask for no resource and need every card."""
    exporter = whole("nvidia-dcgm-exporter-x7k2p", 0, env={VISIBLE: "all"})
    tenant = whole("dcgm-exporter-x7k2p", 0, LOOK, env={VISIBLE: "all"})
    await namespace.create(exporter, tenant)

    allowed, _ = await namespace.running("nvidia-dcgm-exporter-x7k2p", "dcgm-exporter-x7k2p")

    assert len(await sees_whole(namespace, "nvidia-dcgm-exporter-x7k2p")) == CARDS
    assert (gpu_runtime / f"{container_id(allowed)}.json").exists()
    assert (await namespace.log("dcgm-exporter-x7k2p")).split()[0] == "void"
    log = await asyncio.to_thread(namespace.cluster.node.log, "agent")
    assert "allowed by 'e2e-*/nvidia-*'" in log
