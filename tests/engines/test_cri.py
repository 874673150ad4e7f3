# SPDX-License-Identifier: Apache-2.0
"""Pods over containerd's CRI, as the kubelet makes them, the agent in Kubernetes mode.

The kubelet and the scheduler are the test: pods are bound by telling the cache of the test.
"""

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime_shim.identity import Identity
from tests.engines.conftest import NOT_STARTED, eventually, not_run
from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.clusters import ClusterNode
from tests.node.conftest import totals
from tests.testbed.engines.base import EngineFailedError, Setup
from tests.testbed.engines.cri import Cri, Pod
from tests.testbed.engines.matrix import CRI_CANDIDATES, Candidate
from tests.testbed.node import GIB, probe
from tests.testbed.packages import UnobtainableError
from tests.testbed.pod_cache import PodCache
from tests.testbed.rootfs import PROBE


@dataclass(frozen=True)
class Kubelet:
    """containerd's CRI before our runtime and a node in Kubernetes mode."""

    cri: Cri
    node: ClusterNode
    cache: PodCache
    cards: list[str]

    def bound(self, name: str, card: int, memory_bytes: int) -> tuple[Pod, dict[str, str]]:
        """Return a pod that was given a slice, and the environment of its container."""
        pod, env = self.unbound(name)
        self.bind(pod, env, card, memory_bytes)
        return pod, env

    def unbound(self, name: str, handler: str = "vgpu") -> tuple[Pod, dict[str, str]]:
        """Return a pod that was given nothing, and the environment that admission wrote."""
        identity = Identity(
            pod_uid=str(uuid.uuid4()), namespace="team", pod=name, container_name="main"
        )
        env = {"VGPU_CONTAINER_UUID": str(uuid.uuid4())}
        return self.cri.run_pod(identity, handler), env

    def bind(self, pod: Pod, env: dict[str, str], card: int, memory_bytes: int) -> None:
        """Give a pod its slice."""
        container_uuid = env["VGPU_CONTAINER_UUID"]
        self.cache.bind(pod.identity, container_uuid, self.cards[card], memory_bytes)

    def probe(self, container: str, *words: str) -> Any:  # noqa: ANN401  JSON
        """Return what vgpu-probe prints in an exec session."""
        return probe(self.cri.exec(container, PROBE, *words))


@pytest.fixture(scope="session", params=CRI_CANDIDATES, ids=lambda candidate: candidate.name)
def session_kubelet(request: pytest.FixtureRequest, template: Path) -> Iterator[Kubelet]:
    """Yield it, running; NOT RUN with the reason where containerd cannot be had or started."""
    candidate: Candidate = request.param
    try:
        binaries = candidate.obtain()
        low_level = candidate.runtime(binaries)
    except UnobtainableError as error:
        not_run(candidate.name, error)
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        cards = [Card(memory_bytes=8 * GIB)] * 2
        gpu = SimulatedGpu.create(scratch / "gpu", cards=cards, context_bytes=0, check_nodes=True)
        cache = PodCache(scratch / "cache.sock", "testbed")
        node = ClusterNode(scratch / "node", gpu, [f'address = "unix:{cache.socket}"'])
        mounts = node.gpu_mounts()
        setup = Setup(scratch / "cri", node.launcher, low_level, template, mounts)
        cri = Cri(setup, binaries)
        cache.start()
        try:
            try:
                cri.open()
                kubelet = Kubelet(cri, node, cache, [gpu.uuid(0), gpu.uuid(1)])
                pod, _ = kubelet.unbound("plain", "plain")
                assert cri.run(pod, ["/bin/true"])[0] == 0
            except NOT_STARTED as error:
                not_run(candidate.name, error)
            node.start_agent()
            yield kubelet
        finally:
            cri.shut()
            node.__exit__(None, None, None)
            cache.stop()


@pytest.fixture
def kubelet(request: pytest.FixtureRequest, session_kubelet: Kubelet) -> Iterator[Kubelet]:
    """Yield the engine without pods, and leave it so."""
    version = session_kubelet.cri.version()
    name = request.node.callspec.params["session_kubelet"].name
    request.node.user_properties.append(("engine", f"{name} {version}"))
    yield session_kubelet
    session_kubelet.cri.remove_all()


def test_pods_are_held_to_their_slices_also_in_probes(kubelet: Kubelet) -> None:
    one, one_env = kubelet.bound("one", 0, 6 * GIB)
    two, two_env = kubelet.bound("two", 1, 5 * GIB)

    first, second = kubelet.cri.start(one, env=one_env), kubelet.cri.start(two, env=two_env)
    a, b = (kubelet.probe(each, "--until-refused", "64m") for each in (first, second))

    assert (totals(a), a["words"][0]["bytes"]) == ({6 * GIB}, 6 * GIB)
    assert (totals(b), b["words"][0]["bytes"]) == ({5 * GIB}, 5 * GIB)
    assert [a["devices"][0]["uuid"], b["devices"][0]["uuid"]] == kubelet.cards


def test_a_pod_without_a_slice_is_refused_in_its_status_until_it_has_one(kubelet: Kubelet) -> None:
    pod, env = kubelet.unbound("one")

    with pytest.raises(EngineFailedError) as caught:
        kubelet.cri.start(pod, env=env)
    kubelet.bind(pod, env, 1, 4 * GIB)
    container = kubelet.cri.start(pod, env=env)

    assert "vgpu: container 'main' (team/one): " in caught.value.text
    assert "no slice" in caught.value.text
    assert totals(kubelet.probe(container)) == {4 * GIB}


def test_a_restarted_container_has_the_same_card(kubelet: Kubelet) -> None:
    pod, env = kubelet.bound("one", 1, 2 * GIB)
    first = kubelet.cri.start(pod, env=env)

    kubelet.cri.stop(first)
    second = kubelet.cri.start(pod, env=env)

    seen = kubelet.probe(second)
    assert (totals(seen), seen["devices"][0]["uuid"]) == ({2 * GIB}, kubelet.cards[1])


def test_a_copied_uuid_is_refused(kubelet: Kubelet) -> None:
    _, victim = kubelet.bound("one", 0, 2 * GIB)
    spy, _ = kubelet.bound("spy", 1, 1 * GIB)

    with pytest.raises(EngineFailedError, match=r"vgpu: container 'main' \(team/spy\): "):
        kubelet.cri.start(spy, env=victim)


def test_an_unmanaged_pod_gets_no_gpu(kubelet: Kubelet) -> None:
    pod, _ = kubelet.unbound("one")

    status, output = kubelet.cri.run(
        pod, ["/bin/sh", "-c", "env; ls /dev"], env={"NVIDIA_VISIBLE_DEVICES": "all"}
    )

    lines = output.splitlines()
    assert status == 0
    assert [line for line in lines if "NVIDIA" in line] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert not [line for line in lines if line.startswith(("nvidia", "vgpu"))]


def test_what_a_tenant_writes_does_not_widen(kubelet: Kubelet) -> None:
    pod, env = kubelet.bound("one", 0, 2 * GIB)
    spoofs = {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_MEMORY_LIMIT": "64g"}

    container = kubelet.cri.start(pod, env={**env, **spoofs, "VGPU_MEMORY": "64Gi"})

    seen = kubelet.probe(container, "--until-refused", "64m")
    assert (totals(seen), seen["words"][0]["bytes"]) == ({2 * GIB}, 2 * GIB)
    assert len(seen["devices"]) == 1


def test_exit_code_and_log_are_the_programs(kubelet: Kubelet) -> None:
    pod, env = kubelet.bound("one", 0, 1 * GIB)

    status, output = kubelet.cri.run(pod, ["/bin/sh", "-c", "echo out; exit 7"], env=env)

    assert (status, output) == (7, "out")


def test_a_pod_without_gpu_is_what_it_is_without_us(kubelet: Kubelet) -> None:
    script = (
        "busybox awk '{print $2, $3}' /proc/mounts | busybox sort; ls /dev;"
        " env | busybox grep -v -e HOSTNAME -e _= | busybox sort"
    )
    ours, _ = kubelet.unbound("same")
    plain, _ = kubelet.unbound("same", "plain")

    seen = [kubelet.cri.run(pod, ["/bin/sh", "-c", script]) for pod in (ours, plain)]

    assert seen[0] == seen[1]
    assert seen[0][0] == 0


def test_an_update_leaves_the_card_open(kubelet: Kubelet) -> None:
    pod, env = kubelet.bound("one", 0, 2 * GIB)
    container = kubelet.cri.start(pod, env=env)

    kubelet.cri.update(container, cpu_shares=512)

    assert totals(kubelet.probe(container)) == {2 * GIB}


def test_a_pod_s_end_is_reported(kubelet: Kubelet) -> None:
    pod, env = kubelet.bound("one", 0, 2 * GIB)
    container = kubelet.cri.start(pod, env=env)
    answer = kubelet.node.run_dir / "containers" / env["VGPU_CONTAINER_UUID"]
    assert answer.is_dir()

    kubelet.cri.stop(container)
    kubelet.cri.remove_all()

    reported = kubelet.cache.running
    eventually(lambda: env["VGPU_CONTAINER_UUID"] not in reported(), "its end is reported")
