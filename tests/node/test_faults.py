# SPDX-License-Identifier: Apache-2.0
"""Agent, cache, host and containers fail at any time: same answers, no leak, no double booking."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import OciRuntime, RuntimeFailedError


def allocation_id(node: Node, container: str) -> str:
    """Return the allocation that a container holds."""
    claims = {claim.allocation.claim.container_id: claim for claim in node.claims()}
    return str(claims[container].allocation.allocation_id)


def test_a_restart_gets_the_same_slice(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    runtime.start_detached(bundle, "a")
    first = allocation_id(node, "a")
    runtime.delete("a")
    wait_until(lambda: node.claim_states() == {"a": "stopped"}, "the claim is stopped")
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert allocation_id(node, "a") == first
    assert totals(probe_in(runtime, "a")) == {2 * GIB}
    wait_until(lambda: node.claim_states() == {"a": "running"}, "the claim runs again")


def test_a_stopped_claim_is_taken_by_a_request_that_fits_nowhere_else(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("old", slice_env("6Gi")), "old")
    runtime.delete("old")
    wait_until(lambda: node.claim_states() == {"old": "stopped"}, "the claim is stopped")
    bundle = make_bundle("new", slice_env("4Gi"))
    with pytest.raises(RuntimeFailedError):  # never within 10 s of the stop
        runtime.start_detached(bundle, "new")
    time.sleep(10.5)

    runtime.start_detached(bundle, "new")

    assert set(node.claim_states()) == {"new"}


@pytest.mark.parametrize("victim", ["agent", "cache", "both"])
def test_kill_9_changes_nothing(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, victim: str
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")
    runtime.start_detached(make_bundle("b", slice_env("5Gi")), "b")
    before = {container: allocation_id(node, container) for container in ("a", "b")}

    if victim in ("agent", "both"):
        node.stop_agent(signal.SIGKILL)
    if victim in ("cache", "both"):
        node.stop_cache(signal.SIGKILL)
    assert totals(probe_in(runtime, "a")) == {2 * GIB}
    if victim in ("cache", "both"):
        node.start_cache()
    if victim in ("agent", "both"):
        node.start_agent()

    wait_until(
        lambda: node.claim_states() == {"a": "running", "b": "running"}, "both claims are known"
    )
    assert {container: allocation_id(node, container) for container in ("a", "b")} == before
    node.wait_for_cards()
    with pytest.raises(RuntimeFailedError, match="free"):
        runtime.start_detached(make_bundle("c", slice_env("4Gi")), "c")


def test_our_own_pods_start_under_a_default_handler_while_the_agent_is_away(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    """The kubelet makes variables of the names of Services: VGPU_…, too."""
    env = {
        "VGPU_SCHEDULER_CACHE_LEADER_SERVICE_HOST": "10.0.0.1",
        "VGPU_SCHEDULER_CACHE_LEADER_PORT_9402_TCP": "tcp://10.0.0.1:9402",
        "VGPU_CONFIG": "/etc/vgpu/agent.toml",
        "VGPU_NODE_NAME": "node1",
        "VGPU_CACHE_ADDRESS": "10.0.0.1:9402",
    }
    agent = make_bundle("agent", env)
    node.stop_agent(signal.SIGKILL)

    runtime.start_detached(agent, "agent")

    assert agent.read() == agent.spec
    assert runtime.state("agent")["status"] == "running"
    with pytest.raises(RuntimeFailedError, match="did not answer"):
        runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")


@pytest.mark.parametrize("lost", ["agent", "cache", "both"])
def test_a_lost_state_books_nothing_twice(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, lost: str
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("6Gi")), "a")
    before = allocation_id(node, "a")
    directory = node.container_directory("a")
    heartbeat = (directory / "limits").read_bytes()

    node.stop_agent(signal.SIGKILL)
    node.stop_cache(signal.SIGKILL)
    for part in ("agent", "cache"):
        if lost in (part, "both"):
            shutil.rmtree(node.state_dir / part)
    node.start_cache()
    node.start_agent()
    node.wait_for_cards()

    wait_until(lambda: node.claim_states() == {"a": "running"}, "the claim is known")
    assert allocation_id(node, "a") == before
    with pytest.raises(RuntimeFailedError, match="free"):
        runtime.start_detached(make_bundle("b", slice_env("4Gi")), "b")
    assert totals(probe_in(runtime, "a")) == {6 * GIB}
    wait_until(
        lambda: (directory / "limits").read_bytes() != heartbeat, "the agent shows a sign of life"
    )
    runtime.delete("a")
    wait_until(lambda: node.claim_states() == {"a": "stopped"}, "its end is seen")


def test_a_cache_that_hangs_is_named(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    removed = make_bundle("removed", slice_env("1Gi"))
    runtime.start_detached(removed, "removed")
    runtime.delete("removed")
    node.signal_cache(signal.SIGSTOP)
    try:
        shutil.rmtree(removed.directory)
        time.sleep(1.2)
        began = time.monotonic()
        with pytest.raises(
            RuntimeFailedError, match="scheduler cache at .* gave no answer"
        ) as caught:
            runtime.start_detached(make_bundle("new", slice_env("1Gi")), "new")
        assert time.monotonic() - began < 9.8
        assert "start vgpu-scheduler-cache" in caught.value.stderr
    finally:
        node.signal_cache(signal.SIGCONT)


def test_a_reboot_keeps_stopped_containers_their_cards(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    runtime.start_detached(bundle, "a")
    first = allocation_id(node, "a")
    runtime.delete("a")
    shutil.rmtree(runtime.root)
    node.reboot()

    node.start_cache()
    node.start_agent()
    node.wait_for_cards()
    wait_until(lambda: node.claim_states() == {"a": "stopped"}, "the claim survived the reboot")
    bundle.write()
    runtime.start_detached(bundle, "a")

    assert allocation_id(node, "a") == first
    assert totals(probe_in(runtime, "a")) == {2 * GIB}


def test_a_create_that_fails_after_the_verdict_leaks_nothing(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("6Gi"), args=["/does/not/exist"])
    with pytest.raises(RuntimeFailedError, match="/does/not/exist"):
        runtime.start_detached(bundle, "a")
    shutil.rmtree(bundle.directory)

    runtime.start_detached(make_bundle("b", slice_env("6Gi")), "b")

    assert set(node.claim_states()) == {"b"}


def test_a_failed_create_holds_its_slice_no_longer_than_any_stopped_one(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("6Gi"), args=["/does/not/exist"])
    with pytest.raises(RuntimeFailedError, match="/does/not/exist"):
        runtime.start_detached(bundle, "a")

    wait_until(
        lambda: node.claim_states() == {"a": "stopped"}, "the claim is stopped", timeout_seconds=30
    )


def test_a_relative_root_books_nothing_twice(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(node.directory)
    relative = OciRuntime(node.launcher, Path("relative"))
    relative.start_detached(make_bundle("a", slice_env("6Gi")), "a")
    try:
        wait_until(
            lambda: '"init_seen": true' in node_answers(node),
            "the agent finds the container",
            timeout_seconds=30,
        )
        (claim,) = node.claims()
        assert claim.allocation.claim.runtime_root == str(node.directory / "relative")
        with pytest.raises(RuntimeFailedError, match="free"):
            runtime.start_detached(make_bundle("b", slice_env("4Gi")), "b")
    finally:
        relative.delete("a")

    wait_until(
        lambda: node.claim_states() == {"a": "stopped"}, "its end is seen", timeout_seconds=30
    )


def node_answers(node: Node) -> str:
    """Return the texts of all stored answers."""
    return "".join(path.read_text() for path in (node.state_dir / "agent/answers").glob("*.json"))


def test_everything_of_a_released_container_is_gone(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("2Gi"))
    runtime.start_detached(bundle, "a")
    directory = node.container_directory("a")
    runtime.delete("a")
    shutil.rmtree(bundle.directory)

    wait_until(lambda: not directory.exists(), "limits and usage are removed")

    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    assert not list((node.state_dir / "agent/answers").glob("*.json"))
    assert node.claim_states() == {}


def test_without_the_cache_a_known_container_restarts_and_a_new_one_is_refused(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("known", slice_env("2Gi"))
    runtime.start_detached(bundle, "known")
    runtime.delete("known")
    wait_until(lambda: node.claim_states() == {"known": "stopped"}, "the claim is stopped")
    node.stop_cache()
    bundle.write()

    runtime.start_detached(bundle, "known")
    with pytest.raises(RuntimeFailedError) as caught:
        runtime.start_detached(make_bundle("new", slice_env("1Gi")), "new")

    assert totals(probe_in(runtime, "known")) == {2 * GIB}
    assert "container 'new'" in caught.value.stderr
    assert "scheduler cache" in caught.value.stderr
    node.start_cache()
    wait_until(lambda: node.claim_states() == {"known": "running"}, "the restart is confirmed")


def test_without_the_cache_another_request_is_not_answered_from_the_store(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("known", slice_env("2Gi"))
    runtime.start_detached(bundle, "known")
    runtime.delete("known")
    node.stop_cache()
    bundle.spec["process"]["env"].append("VGPU_MEMORY=3Gi")
    bundle.write()

    with pytest.raises(RuntimeFailedError, match="scheduler cache"):
        runtime.start_detached(bundle, "known")


def test_without_the_agent_a_slice_is_refused_and_other_commands_work(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")
    node.stop_agent(signal.SIGKILL)
    conf = Path(f"{node.launcher}.conf")
    conf.write_text(conf.read_text() + "= broken line\n\x00\n")

    with pytest.raises(RuntimeFailedError, match="agent"):
        runtime.start_detached(make_bundle("b", slice_env("2Gi")), "b")
    runtime.start_detached(make_bundle("plain", {}), "plain")

    assert runtime.state("a")["status"] == "running"
    runtime.command("kill", "a", "KILL")
    wait_until(lambda: runtime.state("a")["status"] == "stopped", "kill works")
    runtime.command("delete", "a")
    runtime.command("delete", "--force", "plain")


def test_a_second_agent_ends_with_a_sentence(node: Node) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "runtime_shim.agent",
            "run",
            "--config",
            str(node.directory / "agent.toml"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == 1
    assert "another" in done.stderr
    assert "Traceback" not in done.stderr


def test_many_creates_at_once_never_overbook(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundles = {f"c{i}": make_bundle(f"c{i}", slice_env("2Gi", 10)) for i in range(6)}
    creates = {
        name: subprocess.Popen(
            [
                str(runtime.binary),
                "--root",
                str(runtime.root),
                "create",
                "--bundle",
                str(bundle.directory),
                name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, bundle in bundles.items()
    }

    started = [name for name, process in creates.items() if process.wait(timeout=60) == 0]

    assert len(started) == 4
    assert set(node.claim_states()) == set(started)


def test_the_agent_stays_small(node: Node, runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    runtime.start_detached(make_bundle("a", slice_env("2Gi")), "a")

    assert node.agent_rss_bytes() <= 64 << 20
