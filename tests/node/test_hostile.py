# SPDX-License-Identifier: Apache-2.0
"""Odd and hostile bundles, upgrades and bad moments, each on a whole node with real runc."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import Card, SimulatedGpu
from tests.node.conftest import MakeBundle, probe_in, slice_env, totals
from tests.runtime_shim.test_drm import add_card
from tests.testbed.installation import record_digests
from tests.testbed.node import GIB, Node, wait_until
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError
from tests.testbed.rootfs import PROBE

MIB = 1 << 20
REFUSED = "Operation not permitted"  # what a device that no rule allows says


def opened(runtime: OciRuntime, container_id: str, major: int, minor: int) -> str:
    """Return what opening a node of these numbers says inside."""
    rootfs = Path(runtime.state(container_id)["bundle"]) / "rootfs"
    name = f"node-{major}-{minor}"
    if not (rootfs / "tmp" / name).exists():
        os.mknod(rootfs / "tmp" / name, 0o666 | 0o020000, os.makedev(major, minor))
    return runtime.exec(
        container_id, "sh", "-c", f"dd if=/tmp/{name} of=/dev/null count=1 2>&1; true"
    )


def test_a_card_s_drm_node_is_taken_out_and_another_s_stays(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    root = node.directory / "driver"
    add_card(root, "card0", "226:0", vendor="0x8086")
    add_card(root, "card1", "226:1", vendor="0x10de")
    bundle = make_bundle("a", slice_env("1Gi"))
    bundle.spec["linux"]["devices"] = [
        {"path": f"/dev/dri/card{minor}", "type": "c", "major": 226, "minor": minor}
        for minor in (0, 1)
    ]
    bundle.spec["linux"]["resources"]["devices"] += [
        {"allow": True, "type": "c", "major": 226, "access": "rwm"},
        {"allow": True, "type": "c", "major": 226, "minor": 0, "access": "rwm"},
    ]
    bundle.write()
    wait_until(lambda: starts(runtime, bundle, "a"), "the driver is looked at again")

    assert runtime.exec("a", "ls", "/dev/dri").split() == ["card0"]
    assert REFUSED in opened(runtime, "a", 226, 1)
    assert REFUSED not in opened(runtime, "a", 226, 0)
    assert "device '/dev/dri/card1' is a GPU's" in node.log("agent")


def starts(runtime: OciRuntime, bundle: Bundle, container_id: str) -> bool:
    """Start a container; the host's driver is looked at once a second, so it may be too early."""
    bundle.write()
    runtime.start_detached(bundle, container_id)
    if "/dev/dri/card1" not in json.dumps(bundle.read()["linux"]["devices"]):
        return True
    runtime.delete(container_id)
    return False


def _huge(spec: dict[str, Any]) -> None:
    spec["annotations"] = {"com.example.blob": "x" * (10 * MIB)}


def _unknown(spec: dict[str, Any]) -> None:
    spec["x-vendor"] = {"deep": [1, {"a": None}]}
    spec["linux"]["x-future"] = True


def _big_numbers(spec: dict[str, Any]) -> None:
    limit = {"type": "RLIMIT_CORE", "hard": 2**64 - 1, "soft": 2**64 - 1}
    spec["process"]["rlimits"] = [limit]
    spec["x-big"] = 2**63 - 1


@pytest.mark.parametrize("spoil", [_huge, _unknown, _big_numbers])
def test_an_odd_spec_starts_with_its_slice_and_keeps_its_oddities(
    runtime: OciRuntime,
    make_bundle: MakeBundle,
    spoil: Any,  # noqa: ANN401
) -> None:
    bundle = make_bundle("a", slice_env("1Gi"))
    spoil(bundle.spec)
    bundle.write()

    runtime.start_detached(bundle, "a")

    assert totals(probe_in(runtime, "a")) == {GIB}
    after = bundle.read()
    for name in ("annotations", "x-vendor", "x-big"):
        assert after.get(name) == bundle.spec.get(name)
    assert after["linux"].get("x-future") == bundle.spec["linux"].get("x-future")
    assert after["process"].get("rlimits") == bundle.spec["process"].get("rlimits")


def test_a_variable_without_a_value_is_for_the_runtime_to_judge(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", slice_env("1Gi"))
    bundle.spec["process"]["env"].append("NOTHING")
    bundle.write()

    with pytest.raises(RuntimeFailedError, match='invalid environment variable: ."NOTHING'):
        runtime.start_detached(bundle, "a")

    assert "NOTHING" in bundle.read()["process"]["env"]


def test_bytes_that_are_no_utf8_reach_the_program(
    runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("a", {**slice_env("1Gi"), "ODD": "x@@x"})
    path = bundle.directory / "config.json"
    path.write_bytes(path.read_bytes().replace(b"x@@x", b"x\xff\xfex"))

    runtime.start_detached(bundle, "a")

    assert b"x\xff\xfex" in path.read_bytes()
    assert totals(probe_in(runtime, "a")) == {GIB}


def test_rules_and_limits_survive_an_update(runtime: OciRuntime, make_bundle: MakeBundle) -> None:
    """`docker update`, the kubelet's and a systemd daemon-reload's way to write rules anew."""
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
    assert REFUSED in opened(runtime, "a", 195, 1)

    runtime.command("update", "--pids-limit", "100", "a")

    assert REFUSED in opened(runtime, "a", 195, 1)
    assert REFUSED not in opened(runtime, "a", 195, 0)
    assert totals(probe_in(runtime, "a")) == {GIB}


def test_a_probe_with_an_environment_of_its_own_keeps_the_limit(
    runtime: OciRuntime, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    """What an engine does for exec: a process.json that has nothing of ours."""
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
    process = tmp_path / "process.json"
    process.write_text(
        json.dumps(
            {
                "args": [PROBE],
                "cwd": "/",
                "user": {"uid": 1000, "gid": 1000},
                "env": ["PATH=/usr/bin:/bin", "LD_PRELOAD=", "CUDA_DEVICE_MEMORY_LIMIT=80g"],
            }
        )
    )

    seen = json.loads(runtime.command("exec", "--process", str(process), "a").stdout)

    assert totals(seen) == {GIB}


def test_an_old_and_a_new_library_serve_side_by_side(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    def install(version: str, tail: bytes) -> Path:
        folder = node.library.parent / version
        folder.mkdir()
        shutil.copy2(node.library.resolve(), folder / "libvgpu.so")
        with (folder / "libvgpu.so").open("ab") as file:
            file.write(tail)
        record_digests(folder)
        return folder / "libvgpu.so"

    old, new = install("1.0", b""), install("1.1", b"\0" * 64)

    def switch(target: Path) -> None:
        link = node.library.with_name("link")
        link.symlink_to(target)
        os.replace(link, node.library)

    switch(old)
    first = make_bundle("a", slice_env("1Gi"))
    runtime.start_detached(first, "a")
    switch(new)
    second = make_bundle("b", slice_env("2Gi"))
    runtime.start_detached(second, "b")

    sources = [Path(source_of(each)) for each in (first, second)]
    assert [each.read_bytes() for each in sources] == [old.read_bytes(), new.read_bytes()]
    assert [each.parent.name for each in sources] == ["1.0", "1.1"]
    assert totals(probe_in(runtime, "a")) == {GIB}
    assert totals(probe_in(runtime, "b")) == {2 * GIB}
    node.stop_agent()
    node.start_agent()
    assert totals(probe_in(runtime, "a")) == {GIB}
    assert "unhooked" not in node.log("agent")


def source_of(bundle: Bundle) -> str:
    (source,) = (
        mount["source"]
        for mount in bundle.read()["mounts"]
        if mount["destination"] == "/dev/vgpu/libvgpu.so"
    )
    return str(source)


def test_a_full_disk_is_a_sentence_and_passes(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    answers = node.state_dir / "agent" / "answers"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=16", "full", str(answers)], check=True
    )
    try:
        with (answers / "filler").open("wb") as file:
            file.write(b"x" * (16 * 1024))
        with pytest.raises(RuntimeFailedError, match="No space left on device; free space there"):
            runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")
        assert node.agent_runs()

        (answers / "filler").unlink()
        runtime.start_detached(make_bundle("b", slice_env("1Gi")), "b")
    finally:
        subprocess.run(["umount", "-l", str(answers)], check=True)

    assert totals(probe_in(runtime, "b")) == {GIB}


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, as /run is after an emergency remount; mounts below it stay."""
    subprocess.run(["mount", "--rbind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "--make-rprivate", str(folder)], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_run_refuses_creates_and_nothing_else(
    node: Node, runtime: OciRuntime, make_bundle: MakeBundle
) -> None:
    runtime.start_detached(make_bundle("a", slice_env("1Gi")), "a")

    with read_only(node.run_dir):
        with pytest.raises(RuntimeFailedError) as refusal:
            runtime.start_detached(make_bundle("b", slice_env("1Gi")), "b")
        assert f"{node.run_dir}/containers/" in refusal.value.stderr
        assert "Read-only file system; make it writable" in refusal.value.stderr
        assert node.agent_runs()

        assert runtime.state("a")["status"] == "running"
        assert totals(probe_in(runtime, "a")) == {GIB}
        runtime.command("kill", "a", "KILL")
        wait_until(lambda: runtime.state("a")["status"] == "stopped", "a ends")
        runtime.delete("a")

    runtime.start_detached(make_bundle("c", slice_env("1Gi")), "c")

    assert totals(probe_in(runtime, "c")) == {GIB}
    assert node.agent_runs()


CREATES = 100


@pytest.fixture
def crowded(scratch: Path) -> Iterator[Node]:
    """Yield a node with one card that takes a hundred slices, and not one more."""
    gpu = SimulatedGpu.create(
        scratch / "crowd",
        cards=[Card(memory_bytes=CREATES * 64 * MIB)],
        context_bytes=0,
        check_nodes=True,
    )
    lines = ["[policy]", "slots_per_card = 1024"]
    with Node(scratch / "crowded", gpu, agent_lines=lines, verdict_seconds=60) as running:
        yield running


def test_an_agent_that_dies_among_a_hundred_creates_loses_and_doubles_nothing(
    crowded: Node, scratch: Path, template: Path
) -> None:
    runtime = crowded.runtime()
    half = threading.Semaphore(0)
    bundles = [
        Bundle.create(
            scratch / "crowd-bundles" / f"c{number}",
            template,
            ["sleep", "600"],
            slice_env("64Mi", None),
            mounts=crowded.gpu_mounts(),
        )
        for number in range(CREATES)
    ]

    def start(number: int) -> str:
        try:
            runtime.start_detached(bundles[number], f"c{number}")
        except RuntimeFailedError as error:
            return error.stderr
        finally:
            half.release()
        return "started"

    with ThreadPoolExecutor(CREATES) as pool:
        outcomes = pool.map(start, range(CREATES))
        for _ in range(CREATES // 10):
            assert half.acquire(timeout=120)
        crowded.stop_agent(signal.SIGKILL)
        crowded.start_agent()
        results = list(outcomes)

    try:
        counts = Counter(results)
        started = counts.pop("started", 0)
        assert all(text.startswith("vgpu: container 'c") for text in counts), counts
        assert started >= CREATES // 10
        wait_until(
            lambda: sum(state == "running" for state in crowded.claim_states().values()) == started,
            f"{started} run",
            timeout_seconds=90,
        )
        running = {name for name, state in crowded.claim_states().items() if state == "running"}
        assert running == {
            f"c{number}" for number, result in enumerate(results) if result == "started"
        }
        some = sorted(running)[:: max(1, len(running) // 5)]
        for name in some:
            assert totals(probe_in(runtime, name)) == {64 * MIB}
    finally:
        for container in list(runtime.root.iterdir()):
            runtime.delete(container.name)
