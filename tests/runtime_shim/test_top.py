# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top`: what it prints, and what it says when nobody measures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime_shim.cli import main
from runtime_shim.readings import (
    ContainerReading,
    ProcessReading,
    Readings,
    encode_readings,
    write_readings,
)
from tests.runtime_shim.allocations import CARD, GIB, OTHER_CARD
from tests.runtime_shim.test_readings import card, container


def top(folder: Path, *words: str) -> Result:
    config = folder / "agent.toml"
    config.write_text(f'[paths]\nrun_dir = "{folder}"\n')
    return CliRunner().invoke(main, ["--config", str(config), "top", *words])


def on_card(*pids: int) -> ContainerReading:
    return container(processes=tuple(ProcessReading(pid=pid, used_bytes=GIB) for pid in pids))


def test_the_busiest_container_comes_first(tmp_path: Path) -> None:
    write_readings(
        tmp_path,
        Readings(
            unix_seconds=time.time(),
            containers=(
                container(container_id="b" * 64, busy_percent=5.0),
                container(
                    namespace="ns",
                    pod="p",
                    container="main",
                    busy_percent=75.0,
                    card_uuid=OTHER_CARD,
                ),
            ),
            cards=(card(), card(card_uuid=OTHER_CARD, health_reason="the driver lost it")),
        ),
    )

    done = top(tmp_path, "--once")

    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["CONTAINER", "CARD", "LIMIT", "USED", "CORES", "BUSY", "BUSY-TIME", "REFUSED"],
        ["ns/p/main", OTHER_CARD, "2GiB", "1GiB", "25%", "75%", "1.5s", "3"],
        ["b" * 12, CARD, "2GiB", "1GiB", "25%", "5%", "1.5s", "3"],
    ]
    assert lines[4].endswith("1 slices, 2GiB of 8GiB promised, 1GiB in use, 50% busy")
    assert lines[5].endswith("UNHEALTHY: the driver lost it")


def test_json_has_every_field(tmp_path: Path) -> None:
    now = time.time()
    write_readings(
        tmp_path, Readings(unix_seconds=now, containers=(on_card(4711),), cards=(card(),))
    )

    done = top(tmp_path, "--once", "--json")

    assert json.loads(done.output) == {
        "unix_seconds": now,
        "containers": [
            {
                "allocation_id": "a-1",
                "container_id": "c1",
                "namespace": "",
                "pod": "",
                "container": "",
                "card_uuid": CARD,
                "limit_bytes": 2 * GIB,
                "used_bytes": GIB,
                "nvml_bytes": GIB,
                "cores_percent": 25,
                "busy_seconds": 1.5,
                "busy_percent": 50.0,
                "refused": 3,
                "running": True,
                "processes": [{"pid": 4711, "used_bytes": GIB}],
            }
        ],
        "cards": [
            {
                "card_uuid": CARD,
                "model": "m",
                "health_reason": "",
                "memory_bytes": 8 * GIB,
                "used_bytes": GIB,
                "utilization_percent": 50,
                "slices": 1,
                "slices_memory_bytes": 2 * GIB,
                "slices_cores_percent": 25,
            }
        ],
    }


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that keeps a processor busy, holds 64 MiB, and has an escape in its name."""
    code = (
        "held = bytearray(64 << 20)\n"
        "open('/proc/self/comm', 'w').write('a\\x1b[2Jb')\n"
        "print(flush=True)\n"
        "while True: pass"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_processes_have_what_they_take_of_the_host(
    tmp_path: Path, busy: subprocess.Popen[bytes]
) -> None:
    now = time.time()
    readings = Readings(unix_seconds=now, containers=(on_card(busy.pid),), cards=(card(),))
    write_readings(tmp_path, readings)

    table = top(tmp_path, "--once", "--processes").output.splitlines()
    shown = json.loads(top(tmp_path, "--once", "--processes", "--json").output)

    start = next(i for i, line in enumerate(table) if line.startswith("PID"))
    pid, name, container_id, uuid, used, cpu, memory = table[start + 1].split()
    assert (pid, name, container_id, uuid) == (str(busy.pid), "a?[2Jb", "c1", CARD)
    assert (used, memory.endswith("MiB")) == ("1GiB", True)
    assert cpu.endswith("%")
    (process,) = shown["containers"][0]["processes"]
    assert process["host_memory_bytes"] > 64 << 20
    assert process["cpu_percent"] > 0


def test_another_process_with_the_pid_is_not_shown(
    tmp_path: Path, busy: subprocess.Popen[bytes]
) -> None:
    before = time.time() - 5  # the readings are older than the process
    readings = Readings(unix_seconds=before, containers=(on_card(busy.pid),), cards=(card(),))
    write_readings(tmp_path, readings)

    table = top(tmp_path, "--once", "--processes").output.splitlines()

    assert table[-1].split() == [str(busy.pid), "-", "c1", CARD, "1GiB", "-", "-"]


def test_processes_without_psutil_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_readings(tmp_path, Readings(unix_seconds=time.time(), cards=(card(),)))
    monkeypatch.delitem(sys.modules, "runtime_shim.host_processes", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)

    done = top(tmp_path, "--once", "--processes")

    assert done.exit_code == 1
    assert done.output == (
        "Error: --processes needs the Python package psutil, which is not installed; "
        "apt install python3-psutil\n"
    )
    assert top(tmp_path, "--once").exit_code == 0


def test_readings_of_an_older_agent_have_no_processes(tmp_path: Path) -> None:
    readings = Readings(unix_seconds=time.time(), containers=(container(),), cards=(card(),))
    table = json.loads(encode_readings(readings))
    del table["containers"][0]["processes"]
    (tmp_path / "readings.json").write_text(json.dumps(table))

    done = top(tmp_path, "--once", "--processes")

    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "no process is on a card")


def test_a_node_without_containers_says_so(tmp_path: Path) -> None:
    write_readings(tmp_path, Readings(unix_seconds=time.time(), cards=(card(used_bytes=None),)))

    done = top(tmp_path, "--once")

    assert done.exit_code == 0
    assert done.output.startswith("no container holds a slice\n")
    assert "- in use" in done.output


@pytest.mark.parametrize(
    ("readings", "sentence"),
    [
        (None, "no node agent measures in"),
        (Readings(unix_seconds=time.time() - 3600), "s ago last; start vgpu-node-agent"),
    ],
)
def test_nobody_who_measures_is_a_failure(
    tmp_path: Path, readings: Readings | None, sentence: str
) -> None:
    if readings is not None:
        write_readings(tmp_path, readings)

    done = top(tmp_path, "--once")

    assert done.exit_code == 1
    assert sentence in done.output


def test_garbage_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "readings.json").write_text("{")

    done = top(tmp_path, "--once", "--json")

    assert done.exit_code == 1
    assert "cannot read what the node agent measured" in done.output
