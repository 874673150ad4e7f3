# SPDX-License-Identifier: Apache-2.0
"""Docker: what a user types, and what the container sees."""

import json
import signal
from typing import Any

import pytest

from tests.engines.conftest import IMAGE, RunDetached
from tests.node.conftest import totals
from tests.testbed.docker import Docker, DockerFailedError
from tests.testbed.node import GIB, Node, probe, wait_until
from tests.testbed.rootfs import PROBE


def probe_in(docker: Docker, name: str, *words: str) -> dict[str, Any]:
    """Return what vgpu-probe prints in a `docker exec`, which passes none of our environment."""
    return probe(docker.command("exec", name, PROBE, *words))


def short_states(node: Node) -> list[str]:
    """Return the states of all claims, sorted."""
    return sorted(node.claim_states().values())


def test_two_containers_are_held_and_a_third_is_refused(
    docker: Docker, node: Node, run: RunDetached
) -> None:
    run("slice-a", "2Gi")
    run("slice-b", "5Gi")

    a, b = (probe_in(docker, name, "--until-refused", "64m") for name in ("slice-a", "slice-b"))
    with pytest.raises(DockerFailedError) as caught:
        run("slice-c", "4Gi")

    assert (totals(a), a["words"][0]["bytes"], a["words"][0]["code"]) == ({2 * GIB}, 2 * GIB, 2)
    assert (totals(b), b["words"][0]["bytes"], b["words"][0]["code"]) == ({5 * GIB}, 5 * GIB, 2)
    assert caught.value.status == 125
    assert "vgpu: container" in caught.value.stderr
    assert "1.0Gi" in caught.value.stderr

    docker.command("rm", "-f", "slice-b", "slice-c")
    run("slice-c", "4Gi")

    assert totals(probe_in(docker, "slice-c")) == {4 * GIB}


def test_run_rm_prints_the_program_and_frees(
    docker: Docker, node: Node, options: list[str]
) -> None:
    output = docker.command("run", "--rm", *options, "-e", "VGPU_MEMORY=1Gi", IMAGE, PROBE)

    assert totals(json.loads(output)) == {GIB}
    wait_until(lambda: node.claim_states() == {}, "the claim is freed")


def test_restart_stop_and_start_keep_the_cards(
    docker: Docker, node: Node, run: RunDetached
) -> None:
    run("slice-a", "2Gi")
    first = node.claims()[0].allocation.allocation_id

    docker.command("restart", "--time=1", "slice-a")
    assert totals(probe_in(docker, "slice-a")) == {2 * GIB}
    docker.command("stop", "--time=1", "slice-a")
    wait_until(lambda: short_states(node) == ["stopped"], "docker stop is seen")
    docker.command("start", "slice-a")

    assert totals(probe_in(docker, "slice-a")) == {2 * GIB}
    assert [claim.allocation.allocation_id for claim in node.claims()] == [first]
    wait_until(lambda: short_states(node) == ["running"], "docker start is seen")


def test_rm_of_a_stopped_container_frees_although_no_runtime_is_called(
    docker: Docker, node: Node, run: RunDetached
) -> None:
    run("slice-a", "6Gi")
    docker.command("stop", "--time=1", "slice-a")
    docker.command("rm", "slice-a")

    run("slice-b", "6Gi")

    assert totals(probe_in(docker, "slice-b")) == {6 * GIB}
    assert short_states(node) == ["running"]


def test_an_image_that_asks_for_all_gpus_gets_none(docker: Docker, options: list[str]) -> None:
    output = docker.command("run", "--rm", *options, IMAGE, "env")

    assert "NVIDIA_VISIBLE_DEVICES=void" in output.splitlines()


def test_a_device_option_does_not_widen_the_slice(
    docker: Docker, node: Node, run: RunDetached
) -> None:
    device = node.directory / "driver/dev/nvidia0"

    run(
        "slice-a", "2Gi", extra=[f"--device={device}:/dev/nvidia7", f"--device={device}:/dev/other"]
    )

    listing = docker.command("exec", "slice-a", "ls", "/dev").split()
    assert "nvidia0" in listing
    assert not {"nvidia7", "other"} & set(listing)


def test_a_failed_create_leaves_nothing(docker: Docker, node: Node, options: list[str]) -> None:
    request = ["-e", "VGPU_MEMORY=6Gi"]
    with pytest.raises(DockerFailedError) as caught:
        docker.command("run", "--rm", *options, *request, IMAGE, "/does/not/exist")

    assert caught.value.status == 127, "the runtime's own error keeps its meaning"
    wait_until(lambda: node.claim_states() == {}, "the claim is freed")


def test_containers_outlive_agent_and_cache(docker: Docker, node: Node, run: RunDetached) -> None:
    run("slice-a", "2Gi")
    node.stop_agent(signal.SIGKILL)
    node.stop_cache(signal.SIGKILL)

    assert totals(probe_in(docker, "slice-a")) == {2 * GIB}
    docker.command("stop", "--time=1", "slice-a")
    node.start_cache()
    node.start_agent()

    wait_until(lambda: short_states(node) == ["stopped"], "the stop is noticed afterwards")
    docker.command("start", "slice-a")
    assert totals(probe_in(docker, "slice-a")) == {2 * GIB}


@pytest.mark.parametrize("name", ["VGPU_MEMORY=0", "VGPU_MEMORY=16Gi", "VGPU_MEM=1Gi"])
def test_bad_values_reach_the_user_as_one_sentence(
    docker: Docker, options: list[str], name: str
) -> None:
    with pytest.raises(DockerFailedError) as caught:
        docker.command("run", "--rm", *options, "-e", name, IMAGE, "true")

    assert caught.value.status == 125
    assert "vgpu: container" in caught.value.stderr


def test_plain_containers_run_through_it_untouched(docker: Docker, options: list[str]) -> None:
    output = docker.command("run", "--rm", *options, "-e", "NVIDIA_VISIBLE_DEVICES=", IMAGE, "id")

    assert output.startswith("uid=0")
