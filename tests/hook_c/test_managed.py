# SPDX-License-Identifier: Apache-2.0
"""In a container nothing that is missing or broken means "no limit"."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.gpu.simulated_gpu import LIBRARY_DIRECTORY, SimulatedGpu
from tests.hook_c.conftest import GIB, MIB, Probe, Start
from tests.hook_c.container import LIBRARY, Container
from tests.hook_c.program import Process

SYSTEM_NOT_READY = 802


def no_limits(container: Container) -> None:
    """Remove the file."""
    (container.folder / "limits").unlink()


def empty_limits(container: Container) -> None:
    """Truncate the file."""
    os.truncate(container.folder / "limits", 0)


def foreign_limits(container: Container) -> None:
    """Let the file be something else."""
    container.limits.header.magic = 0x464C457F


def next_major(container: Container) -> None:
    """Let the file be of another major version."""
    container.limits.header.major = 2


def no_memory(container: Container) -> None:
    """Promise 0 bytes."""
    container.limits.dev[0].memory_bytes = 0


def no_card(container: Container) -> None:
    """Promise no card."""
    container.limits.ndev = 0


def other_cards(container: Container) -> None:
    """Promise cards that are not here."""
    for index in range(2):
        container.limits.dev[index].uuid = [index] * 16


def no_usage(container: Container) -> None:
    """Remove the usage file."""
    (container.folder / "usage").unlink()


def short_usage(container: Container) -> None:
    """Truncate the usage file, as a tenant may."""
    os.truncate(container.folder / "usage", 4096)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_limits, "/dev/vgpu/limits: No such file"),
        (empty_limits, "the limits file has 0 bytes"),
        (foreign_limits, "the limits file is none"),
        (next_major, "the limits file has version 2.0, this library knows 1.x"),
        (no_memory, "the limits file promises no memory"),
        (no_card, "the limits file names 0 cards"),
        (other_cards, "no card that is visible here is named in the limits file"),
        (no_usage, "/dev/vgpu/usage: No such file"),
        (short_usage, "the usage file has 4096 bytes"),
    ],
)
def test_what_is_broken_refuses_cuinit_with_one_line(
    container: Container, probe: Probe, damage: Callable[[Container], None], words: str
) -> None:
    damage(container)
    assert words in refusal(container, probe)


def refusal(container: Container, probe: Probe) -> str:
    """The one line of a process that gets no GPU."""
    found = probe("--allocate", "1m", wrapper=container.wrapper)

    assert found["init"]["code"] == SYSTEM_NOT_READY
    assert found["devices"] == []
    (line,) = found["stderr"].splitlines()
    assert line.startswith("vgpu: cuInit is refused: ")
    return str(line)


def test_a_process_beyond_the_last_slot_is_refused(container: Container, probe: Probe) -> None:
    with container.all_slots_taken():
        line = refusal(container, probe)
    assert "1024 processes of this container use the GPU already" in line


def test_nothing_on_stderr_when_all_is_well(container: Container, probe: Probe) -> None:
    found = probe("--until-refused", wrapper=container.wrapper, VGPU_LOG="debug")

    assert found["init"]["code"] == 0
    assert found["stderr"] == ""


def test_the_environment_changes_no_limit(container: Container, probe: Probe) -> None:
    found = probe(
        "--until-refused",
        wrapper=container.wrapper,
        CUDA_DEVICE_MEMORY_LIMIT="7g",
        CUDA_DEVICE_MEMORY_LIMIT_0="7g",
        CUDA_DEVICE_MEMORY_SHARED_CACHE="/tmp/elsewhere",
        CUDA_DISABLE_CONTROL="1",
    )

    assert found["devices"][0]["mem_get_info"]["total"] == GIB
    assert found["words"][0]["bytes"] == GIB


def test_a_copy_preloaded_by_hand_is_managed_all_the_same(
    container: Container, probe: Probe
) -> None:
    found = probe(
        wrapper=[*container.wrapper, "env", f"LD_PRELOAD={LIBRARY}"],
        CUDA_DEVICE_MEMORY_LIMIT="7g",
    )

    assert found["devices"][0]["mem_get_info"]["total"] == GIB


def test_all_reports_agree(container: Container, probe: Probe) -> None:
    container.write(context_bytes=100 * MIB)

    found = probe("--allocate", "200m", wrapper=container.wrapper)

    card = found["devices_after"][0]
    free = GIB - 300 * MIB
    assert card["total_memory"] == {"code": 0, "bytes": GIB}
    assert (card["mem_get_info"]["free"], card["mem_get_info"]["total"]) == (free, GIB)
    v2 = card["nvml"].pop("v2")
    assert card["nvml"] == {"code": 0, "total": GIB, "free": free, "used": 300 * MIB}
    assert v2 == {"code": 0, "total": GIB, "free": free, "used": 300 * MIB, "reserved": 0}


def test_a_tiny_limit_reports_nothing_free(container: Container, probe: Probe) -> None:
    container.write(memory_bytes=1)

    found = probe("--allocate", "1", wrapper=container.wrapper)

    card = found["devices_after"][0]
    assert card["mem_get_info"]["total"] == 1
    assert found["words"][0]["code"] == 2


def test_total_is_never_more_than_the_card_has(container: Container, probe: Probe) -> None:
    container.write(memory_bytes=100 * GIB)

    card = probe(wrapper=container.wrapper)["devices"][0]

    assert card["mem_get_info"]["total"] == 8 * GIB
    assert card["total_memory"]["bytes"] == 8 * GIB
    assert card["nvml"]["total"] == card["nvml"]["free"] == 8 * GIB


def test_a_card_that_was_not_promised_has_no_memory(
    gpu: SimulatedGpu, tmp_path: Path, probe: Probe, needs_root: None
) -> None:
    container = Container(tmp_path / "half", {gpu.uuid(1): GIB})

    found = probe(
        "--allocate", "1", "--ordinal", "1", "--allocate", "1g", wrapper=container.wrapper
    )

    other, own = found["devices"]
    assert other["total_memory"]["bytes"] == 0
    assert other["nvml"]["total"] == other["nvml"]["free"] == other["nvml"]["used"] == 0
    assert found["words"][0]["code"] != 0
    assert own["mem_get_info"]["total"] == GIB
    assert found["words"][1]["code"] == 0


def test_visible_devices_do_not_move_a_limit(container: Container, probe: Probe) -> None:
    found = probe("--until-refused", wrapper=container.wrapper, CUDA_VISIBLE_DEVICES="1")

    (card,) = found["devices"]
    assert card["mem_get_info"]["total"] == 2 * GIB
    assert card["nvml"]["total"] == 2 * GIB
    assert found["words"][0]["bytes"] == 2 * GIB


def test_a_refused_allocation_is_counted_for_the_agent(container: Container, start: Start) -> None:
    tenant = start(container)

    assert tenant.do("allocate", 5 * GIB)[0] == 2
    assert container.usage.slot[0].dev[0].refused == 1


def test_errno_is_kept(container: Container, start: Start) -> None:
    tenant = start(container)

    assert tenant.do("errno_kept", "cuMemAlloc_v2", 2 * MIB)
    assert tenant.do("errno_kept", "cuMemAlloc_v2", 5 * GIB)


def test_no_thread_is_started(container: Container, start: Start, gpu: SimulatedGpu) -> None:
    tenant, bare = start(container), Process(gpu)
    assert bare.do("start") == 0

    assert tenant.do("thread_count") == bare.do("thread_count")
    bare.close()


def test_a_process_in_another_pid_namespace_shares_the_limit(
    container: Container, gpu: SimulatedGpu, start: Start
) -> None:
    inside = Process(gpu, wrapper=[*container.wrapper, "unshare", "--pid", "--fork"])
    outside = start(container)
    assert inside.do("start") == 0
    assert inside.do("allocate", 700 * MIB)[0] == 0

    assert outside.do("memory") == [GIB - 700 * MIB, GIB]
    assert outside.do("allocate", 700 * MIB)[0] == 2
    inside.close()
    assert outside.do("allocate", GIB)[0] == 0


def test_another_user_shares_the_limit(scratch: Path, needs_root: None) -> None:
    scratch.chmod(0o755)
    gpu = SimulatedGpu.create(scratch / "gpu")
    container = Container(scratch / "container", {gpu.uuid(): GIB})
    for library in LIBRARY_DIRECTORY.iterdir():
        shutil.copy(library, scratch)
    shutil.copy(LIBRARY.with_name("vgpu-probe"), scratch)
    command = [str(scratch / "vgpu-probe"), "--allocate", "700m"]
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups"]
    environment = {**os.environ, **gpu.environment(scratch)}

    nobody = subprocess.Popen(
        [*container.wrapper, *as_nobody, *command, "--hold", "30"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert nobody.stdout is not None
    held = json.loads(nobody.stdout.readline())
    root = subprocess.run(
        [*container.wrapper, *command], capture_output=True, check=True, env=environment
    )

    assert held["words"][0]["code"] == 0
    assert json.loads(root.stdout)["words"][0]["code"] == 2
    nobody.kill()
    nobody.communicate()
    gpu.close()


@pytest.mark.parametrize("count", [32])
def test_processes_that_start_together_all_get_slots(
    container: Container, gpu: SimulatedGpu, count: int
) -> None:
    processes = [Process(gpu, wrapper=container.wrapper) for _ in range(count)]
    for process in processes:
        process.send("start")
    assert [process.answer() for process in processes] == [0] * count

    owners = {slot.pid for slot in container.usage.slot[0 : container.usage.slots_high]}
    assert len(owners) == container.usage.slots_high == count
    for process in processes:
        process.kill()
