# SPDX-License-Identifier: Apache-2.0
"""The promise, in every engine: what its user types, and what the container sees."""

import pytest

from tests.engines.conftest import Bed, eventually
from tests.node.conftest import slice_env, totals
from tests.testbed.engines.base import EngineFailedError
from tests.testbed.node import GIB

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
# What a tenant or an image writes to get more than its slice.
SPOOFS = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT": "64g",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "64g",
    "CUDA_DISABLE_CONTROL": "true",
    "LD_PRELOAD": "/usr/lib/mine.so",
}


def test_containers_are_held_and_one_too_many_waits_for_room(bed: Bed) -> None:
    bed.engine.start("one", env=slice_env("6Gi"))
    bed.engine.start("two", env=slice_env("5Gi"))

    a, b = (bed.probe(name, "--until-refused", "64m") for name in ("one", "two"))
    with pytest.raises(EngineFailedError) as caught:
        bed.engine.start("three", env=slice_env("4Gi"))

    assert (totals(a), a["words"][0]["bytes"]) == ({6 * GIB}, 6 * GIB)
    assert (totals(b), b["words"][0]["bytes"]) == ({5 * GIB}, 5 * GIB)
    assert {seen["words"][0]["code"] for seen in (a, b)} == {OUT_OF_MEMORY}
    assert [len(seen["devices"]) for seen in (a, b)] == [1, 1]
    assert a["devices"][0]["uuid"] != b["devices"][0]["uuid"]
    assert "vgpu: container" in caught.value.text
    assert "3.0Gi" in caught.value.text, "it says what is free"

    bed.engine.remove("two")
    if "three" in bed.engine.names():
        bed.engine.remove("three")
    bed.engine.start("three", env=slice_env("4Gi"))

    assert totals(bed.probe("three")) == {4 * GIB}
    assert set(bed.node.claim_states().values()) == {"running"}


@pytest.mark.parametrize("variable", ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"])
def test_an_unmanaged_container_gets_no_gpu(bed: Bed, variable: str) -> None:
    done = bed.engine.run("none", ["/bin/sh", "-c", "env; ls /dev"], env={variable: "all"})

    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "NVIDIA" in line] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert not [line for line in lines if line.startswith(("nvidia", "vgpu"))]
    assert bed.node.claim_states() == {}


def test_a_container_without_gpu_is_what_it_is_without_us(bed: Bed) -> None:
    script = (
        "busybox awk '{print $2, $3}' /proc/mounts | busybox sort; ls /dev;"
        " env | busybox grep -v -e HOSTNAME -e _= | busybox sort; ls /proc/self/fd | busybox wc -l"
    )

    ours = bed.engine.run("same", ["/bin/sh", "-c", script])
    plain = bed.engine.run("same", ["/bin/sh", "-c", script], plain=True)

    assert ours == plain
    assert plain.stdout.count("\n") > 10


def test_what_a_tenant_writes_does_not_widen(bed: Bed) -> None:
    bed.engine.start("one", env={**SPOOFS, **slice_env("2Gi")})

    seen = bed.probe("one", "--until-refused", "64m")
    write = "for file in /dev/vgpu/* /etc/ld.so.preload; do (: >>$file) && echo $file; done; true"
    written = bed.engine.exec("one", "/bin/sh", "-c", f"({write}) 2>/dev/null")
    environ = bed.engine.exec("one", "/bin/cat", "/proc/1/environ")
    again = bed.probe("one", "--until-refused", "64m")

    assert (totals(seen), seen["words"][0]["bytes"]) == ({2 * GIB}, 2 * GIB)
    assert (totals(again), again["words"][0]["bytes"]) == ({2 * GIB}, 2 * GIB)
    assert len(seen["devices"]) == 1
    assert written.split() == ["/dev/vgpu/usage"]
    assert "CUDA_D" not in environ


def test_an_exec_session_without_environment_has_the_limit(bed: Bed) -> None:
    bed.engine.start("one", env=slice_env("2Gi"))

    seen = bed.engine.exec("one", "/bin/env", "-i", "/usr/bin/vgpu-probe")

    assert f'"total": {2 * GIB}' in seen


def test_a_restart_gives_the_same_card(bed: Bed) -> None:
    bed.engine.start("one", env=slice_env("2Gi"))
    before = bed.probe("one")["devices"][0]["uuid"]

    bed.engine.restart("one")
    after = bed.probe("one")

    assert after["devices"][0]["uuid"] == before
    assert totals(after) == {2 * GIB}


def test_a_stopped_container_keeps_its_card(bed: Bed) -> None:
    """For `ctr` a task's end is the container's: there the card is free for the next."""
    bed.engine.start("one", env=slice_env("6Gi"))
    card = bed.probe("one")["devices"][0]["uuid"]

    bed.engine.stop("one")
    kept = ["stopped"] if bed.engine.keeps_stopped else []
    eventually(lambda: list(bed.node.claim_states().values()) == kept, "the stop is seen")
    bed.engine.start("two", env=slice_env("3Gi"))
    other = bed.probe("two")["devices"][0]["uuid"]
    bed.engine.start_again("one")

    assert totals(bed.probe("one")) == {6 * GIB}
    assert (bed.probe("one")["devices"][0]["uuid"] == card) is bed.engine.keeps_stopped
    assert (other != card) is bed.engine.keeps_stopped


def test_removal_frees(bed: Bed) -> None:
    for _ in range(2):
        bed.engine.start("one", env=slice_env("8Gi"))
        bed.engine.start("two", env=slice_env("8Gi"))
        bed.engine.stop("two")
        bed.engine.remove("one")
        bed.engine.remove("two")

    eventually(lambda: bed.node.claim_states() == {}, "both claims are freed")


@pytest.mark.parametrize("env", [{}, {"VGPU_MEMORY": "1Gi"}], ids=["plain", "slice"])
def test_exit_code_and_output_are_the_programs(bed: Bed, env: dict[str, str]) -> None:
    script = "echo out; echo err >&2; exit 7"
    stdin = ""
    if bed.engine.has_stdin:
        script, stdin = f"cat; {script}", "in\n"

    done = bed.engine.run("one", ["/bin/sh", "-c", script], env=env, stdin=stdin)

    assert (done.status, done.stdout) == (7, f"{stdin}out\n")
    assert done.stderr.splitlines()[:1] == ["err"]


def test_a_signal_reaches_the_program(bed: Bed) -> None:
    script = "trap 'exit 5' USR1; : >/tmp/ready; while :; do sleep 0.1; done"
    args = ["/bin/sh", "-c", script]

    status = bed.engine.run_and_signal("one", args, "/tmp/ready", "USR1", env=slice_env("1Gi"))

    assert status == 5


@pytest.mark.parametrize("value", ["0", "16Gi", "1GB?"])
def test_a_bad_request_is_one_sentence_in_the_engines_own_error(bed: Bed, value: str) -> None:
    with pytest.raises(EngineFailedError) as caught:
        bed.engine.start("one", env={"VGPU_MEMORY": value})

    assert caught.value.text.count("vgpu: container") == 1
    assert bed.node.claim_states() == {}


def test_a_missing_program_is_the_runtimes_own_error_and_frees(bed: Bed) -> None:
    ours = bed.engine.run("one", ["/does/not/exist"], env=slice_env("6Gi"))
    plain = bed.engine.run("one", ["/does/not/exist"], plain=True)

    assert ours.status == plain.status != 0
    assert "/does/not/exist" in ours.stderr
    assert "vgpu: container" not in ours.stderr
    eventually(lambda: bed.node.claim_states() == {}, "the claim is freed")
