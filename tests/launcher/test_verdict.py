# SPDX-License-Identifier: Apache-2.0
"""What the launcher does with the agent's answers, and without them."""

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launcher, refusal
from tests.launcher.fake_agent import (
    GPU,
    HEADER,
    LOW_LEVEL,
    MAGIC,
    Answer,
    FakeAgent,
    refuse,
    reply,
)

MANAGED = ["VGPU_MEMORY=1Gi"]
CARD = ["NVIDIA_VISIBLE_DEVICES=GPU-5f32c1a0-0000-0000-0000-000000000000"]
IMAGE = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"]
NODE = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
ALLOW_ALL = {"resources": {"devices": [{"allow": True, "access": "rwm"}]}}

Mark = Callable[[Launcher], None]

# docs/contract.md §5: without a verdict these may not start …
BOUND: dict[str, Mark] = {
    "memory": lambda it: it.write_spec(MANAGED),
    "cores": lambda it: it.write_spec(["VGPU_CORES=10"]),
    "count": lambda it: it.write_spec(["VGPU_COUNT=1"]),
    "uuid": lambda it: it.write_spec(["VGPU_CONTAINER_UUID=0f1e"]),
    "card": lambda it: it.write_spec(CARD),
    "node": lambda it: it.write_spec(linux=NODE),
    "hook": lambda it: it.write_spec(
        IMAGE, hooks={"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}
    ),
    "device list": lambda it: it.write_spec(
        mounts=[{"destination": "/var/run/nvidia-container-devices/all"}]
    ),
    "cdi": lambda it: it.write_spec(annotations={"cdi.k8s.io/gpu": "nvidia.com/gpu=0"}),
    "escaped": lambda it: _write(it, r'{"process":{"env":["\u0056GPU_MEMORY=1Gi"]}}'),
    "indented": lambda it: _write(it, '{\n\t"major": 195\n}'),
}
# … and these may: the low-level runtime gives them no device, or the host is theirs anyway.
FREE: dict[str, Mark] = {
    "image": lambda it: it.write_spec(IMAGE),
    "privileged": lambda it: it.write_spec(linux=ALLOW_ALL),
    "misspelt": lambda it: it.write_spec(["VGPU_MEMROY=8Gi"]),
    "model alone": lambda it: it.write_spec(["VGPU_MODEL=H100"]),
    "service": lambda it: it.write_spec(["VGPU_SCHEDULER_CACHE_SERVICE_HOST=10.0.0.1"]),
}


def _write(launcher: Launcher, text: str) -> None:
    (launcher.bundle / "config.json").write_text(text)


bound = pytest.mark.parametrize("mark", BOUND.values(), ids=BOUND)
free = pytest.mark.parametrize("mark", FREE.values(), ids=FREE)


def test_the_request_says_what_the_command_line_says(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    words = ["--root", "/run/r", "restore", "-b", str(launcher.bundle), "--pid-file", "/p", "c1"]

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.run(*words)

    (request,) = agent.requests
    assert (request.magic, request.major) == (MAGIC, 1)
    assert request.fields == {
        "command": "restore",
        "id": "c1",
        "root": "/run/r",
        "bundle": str(launcher.bundle),
        "pid_file": "/p",
    }
    assert os.path.samestat(request.bundle, launcher.bundle.stat())


@pytest.mark.parametrize("option", ["--root", "--root="])
def test_relative_paths_are_sent_as_the_runtime_makes_them_absolute(
    launcher: Launcher, scratch: Path, option: str
) -> None:
    launcher.write_spec(MANAGED)
    root = ["--root", "./r"] if option == "--root" else ["--root=./r"]
    words = [*root, "create", "-b", "bundle", "--pid-file", "p", "c1"]

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.run(*words, cwd=scratch, env={"XDG_RUNTIME_DIR": "/run/user/0"})

    (request,) = agent.requests
    assert request.fields["root"] == f"{scratch}/./r"
    assert request.fields["pid_file"] == f"{scratch}/p"
    assert request.fields["bundle"] == str(launcher.bundle)
    assert "runtime_dir" not in request.fields
    assert launcher.low_level.argv[1:] == words


@pytest.mark.parametrize(
    ("value", "sent"), [("/run/user/0", "/run/user/0"), ("xdg", "{}/xdg"), ("", None), (None, None)]
)
def test_without_a_root_the_request_names_the_runtime_directory(
    launcher: Launcher, scratch: Path, value: str | None, sent: str | None
) -> None:
    launcher.write_spec(MANAGED)
    env = {} if value is None else {"XDG_RUNTIME_DIR": value}

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        launcher.run("create", "-b", str(launcher.bundle), "c1", cwd=scratch, env=env)

    (request,) = agent.requests
    assert "root" not in request.fields
    assert request.fields.get("runtime_dir") == (sent and sent.format(scratch))


def test_a_relative_root_of_a_removed_directory_is_refused(
    launcher: Launcher, scratch: Path
) -> None:
    launcher.write_spec(MANAGED)
    gone = scratch / "gone"
    gone.mkdir()
    words = f"{launcher.path} --root r create -b {launcher.bundle} c1"
    command = f'cd "$1" && rmdir "$1" && exec {words}'

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        done = subprocess.run(
            ["/bin/sh", "-c", command, "sh", str(gone)], capture_output=True, timeout=30
        )

    assert "working directory of its runtime cannot be told; give --root" in refusal(done)
    assert agent.requests == []
    assert not launcher.low_level.ran


@pytest.mark.parametrize("mark", [*BOUND.values(), *FREE.values()], ids=[*BOUND, *FREE])
def test_every_mark_is_asked_about(launcher: Launcher, mark: Mark) -> None:
    mark(launcher)

    with FakeAgent(launcher.socket, LOW_LEVEL) as agent:
        done = launcher.create()

    assert done.returncode == 0
    assert len(agent.requests) == 1
    assert launcher.low_level.ran


def test_gpu_runs_the_gpu_runtime(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, GPU):
        done = launcher.create()

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert launcher.gpu.argv == [
        str(launcher.gpu.path), "create", "--bundle", str(launcher.bundle), "c1"
    ]  # fmt: skip
    assert not launcher.low_level.ran


def test_gpu_without_a_gpu_runtime_is_refused(launcher: Launcher) -> None:
    launcher.configure(gpu_runtime=None)
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, GPU):
        text = refusal(launcher.create())

    assert "the GPU runtime, but none is configured; set gpu_runtime" in text
    assert not launcher.low_level.ran


# -- refusals ------------------------------------------------------------------------------


def test_a_refusal_reaches_stderr_and_the_json_log(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    message = "vgpu: container 'web' (shop/web-1): no card has 9 GiB free; ask for less"
    log = launcher.bundle / "log.json"
    log.write_text('{"level":"info","msg":"earlier"}\n')

    with FakeAgent(launcher.socket, refuse(message)):
        done = launcher.create("--log", str(log), "--log-format", "json")

    assert refusal(done) == message
    earlier, last = [json.loads(line) for line in log.read_text().splitlines()]
    assert earlier["msg"] == "earlier"
    assert last["level"] == "error"
    assert last["msg"] == message
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", last["time"])
    assert not launcher.low_level.ran


def test_a_refusal_reaches_the_text_log(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    log = launcher.bundle / "runc.log"

    with FakeAgent(launcher.socket, refuse('vgpu: container "x": no; "yes"')):
        launcher.create(f"--log={log}")

    want = r'time="[0-9TZ:-]{20}" level=error msg="vgpu: container \\"x\\": no; \\"yes\\""\n'
    assert re.fullmatch(want, log.read_text())


def test_text_of_tenants_cannot_break_the_log(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    log = launcher.bundle / "log.json"
    message = b'vgpu: container \'a"b\\c\' (x): \n{"level":"info"}\x1b[2J\xff\xc3\xa9; \x7f.'

    with FakeAgent(launcher.socket, refuse(message)):
        text = refusal(launcher.create("--log", str(log), "--log-format=json"))

    assert text == 'vgpu: container \'a"b\\c\' (x):  {"level":"info"} [2J?é;  .'
    assert json.loads(log.read_bytes())["msg"] == text


def test_a_message_as_long_as_a_packet_arrives_whole(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    log = launcher.bundle / "log.json"
    message = "vgpu: container 'x' (x): a; " + '"' * 60000

    with FakeAgent(launcher.socket, refuse(message)):
        done = launcher.create("--log", str(log), "--log-format", "json")

    assert refusal(done) == message
    assert json.loads(log.read_text())["msg"] == message


@pytest.mark.parametrize("log", ["/nowhere/log.json", "journald:c1", "fifo"])
def test_a_log_that_cannot_be_written_changes_nothing(
    launcher: Launcher, scratch: Path, log: str
) -> None:
    launcher.write_spec(MANAGED)
    if log == "fifo":
        os.mkfifo(scratch / log)  # nobody reads it
    message = "vgpu: container 'x' (x): no; yes"

    with FakeAgent(launcher.socket, refuse(message)):
        done = launcher.run("--log", log, "create", "-b", "bundle", "c1", cwd=scratch)

    assert refusal(done) == message
    assert not (scratch / "journald:c1").exists()


# -- no verdict ----------------------------------------------------------------------------


@bound
def test_bound_without_an_agent_is_refused(launcher: Launcher, mark: Mark) -> None:
    mark(launcher)

    text = refusal(launcher.create())

    assert text.startswith("vgpu: container 'c1' (c1): ")
    assert f"the vgpu agent at {launcher.socket} did not answer for 0.150 s" in text
    assert "; start it: systemctl start vgpu-node-agent" in text
    assert not launcher.low_level.ran


@free
def test_free_without_an_agent_starts_at_once(launcher: Launcher, mark: Mark) -> None:
    launcher.configure(absent_seconds=20)
    mark(launcher)
    start = time.monotonic()

    done = launcher.create()

    assert (done.returncode, done.stderr) == (0, b"")
    assert launcher.low_level.ran
    assert time.monotonic() - start < 10


def test_a_long_id_is_cut_to_twelve(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)
    name = "6e869137d9a8" + "0" * 52

    text = refusal(launcher.run("run", "--bundle", str(launcher.bundle), name))

    assert text.startswith(f"vgpu: container '{name}' (6e869137d9a8): ")


@pytest.mark.parametrize("mark", [BOUND["memory"], FREE["image"]], ids=["bound", "free"])
def test_the_socket_file_of_a_killed_agent_is_an_absent_agent(
    launcher: Launcher, mark: Mark
) -> None:
    mark(launcher)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(launcher.socket))

    done = launcher.create()

    if mark is FREE["image"]:
        assert launcher.low_level.ran
    else:
        assert "did not answer for 0.150 s" in refusal(done)


def test_an_agent_that_comes_back_in_time_is_asked(launcher: Launcher) -> None:
    launcher.configure(absent_seconds=20, verdict_seconds=20)
    launcher.write_spec(MANAGED)
    agent = FakeAgent(launcher.socket, LOW_LEVEL)
    late = threading.Timer(0.3, agent.__enter__)

    late.start()
    done = launcher.create()
    late.join()
    agent.__exit__(None, None, None)

    assert done.returncode == 0
    assert launcher.low_level.ran


def test_an_agent_that_dies_before_it_answers_is_asked_again(launcher: Launcher) -> None:
    launcher.configure(absent_seconds=20, verdict_seconds=20)
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, None, None, LOW_LEVEL) as agent:
        done = launcher.create()

    assert done.returncode == 0
    assert len(agent.requests) == 3
    assert launcher.low_level.ran


@bound
def test_bound_and_no_answer_ever_is_refused(launcher: Launcher, mark: Mark) -> None:
    launcher.configure(absent_seconds=1.5, verdict_seconds=20)  # a loaded machine asks twice too
    mark(launcher)

    with FakeAgent(launcher.socket, None) as agent:
        text = refusal(launcher.create())

    assert "did not answer for 1.500 s" in text
    assert len(agent.requests) > 1
    assert not launcher.low_level.ran


def silence(ended: threading.Event) -> None:
    """Let the launcher wait."""
    ended.wait(20)


def test_bound_and_a_silent_agent_is_refused_at_the_deadline(launcher: Launcher) -> None:
    launcher.configure(verdict_seconds=0.4)
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, silence):
        text = refusal(launcher.create())

    assert "gave no verdict within 0.400 s; look into its log: journalctl" in text
    assert not launcher.low_level.ran


@free
def test_free_and_a_silent_agent_starts_at_the_deadline(launcher: Launcher, mark: Mark) -> None:
    launcher.configure(verdict_seconds=0.4)
    mark(launcher)

    with FakeAgent(launcher.socket, silence):
        done = launcher.create()

    assert (done.returncode, done.stderr) == (0, b"")
    assert launcher.low_level.ran


UNREADABLE: dict[str, Answer] = {
    "empty header": HEADER.pack(MAGIC, 1, 0, 0, 0),
    "short": b"\x01",
    "other magic": reply("verdict=low-level", magic=1),
    "no verdict": reply("message=x"),
    "unknown verdict": reply("verdict=yes"),
    "refusal without a message": reply("verdict=refuse"),
    "no terminator": HEADER.pack(MAGIC, 1, 0, 17, 0) + b"verdict=low-level",
    "wrong length": HEADER.pack(MAGIC, 1, 0, 99, 0) + b"verdict=low-level\0",
    "larger than a packet": reply("verdict=low-level", "x=" + "y" * 70000),
    "text": b'{"verdict":"low-level"}',
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_bound_and_an_unreadable_reply_is_refused(launcher: Launcher, answer: bytes) -> None:
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, answer):
        text = refusal(launcher.create())

    assert "sent a reply that cannot be read; install one release of vgpu" in text
    assert not launcher.low_level.ran


@free
def test_free_and_an_unreadable_reply_starts(launcher: Launcher, mark: Mark) -> None:
    mark(launcher)

    with FakeAgent(launcher.socket, b"garbage"):
        done = launcher.create()

    assert done.returncode == 0
    assert launcher.low_level.ran


def test_another_major_version_is_refused_with_both_numbers(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, reply("verdict=low-level", major=2, minor=3)):
        text = refusal(launcher.create())

    assert "speaks protocol 2.3, this launcher 1.0" in text
    assert not launcher.low_level.ran


def test_a_newer_minor_version_is_understood(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, reply("novelty=1", "verdict=low-level", minor=7)):
        done = launcher.create()

    assert done.returncode == 0
    assert launcher.low_level.ran


def test_a_socket_for_root_only_is_refused_to_others(
    launcher: Launcher, scratch: Path, needs_root: None
) -> None:
    launcher.write_spec(MANAGED)
    scratch.chmod(0o755)

    with FakeAgent(launcher.socket, LOW_LEVEL):
        launcher.socket.chmod(0o600)
        text = refusal(
            launcher.run("create", "-b", str(launcher.bundle), "c1", user=65534, group=65534)
        )

    assert f"the vgpu agent at {launcher.socket} is for root only; use an engine" in text


def test_a_socket_path_that_is_too_long_is_refused(launcher: Launcher) -> None:
    launcher.configure(agent_socket="/" + "s" * 200)
    launcher.write_spec(MANAGED)

    text = refusal(launcher.create())

    assert f"cannot be reached; correct agent_socket in {launcher.conf}" in text


def test_a_request_longer_than_a_packet_is_refused(launcher: Launcher) -> None:
    launcher.write_spec(MANAGED)

    with FakeAgent(launcher.socket, LOW_LEVEL):
        text = refusal(launcher.run("create", "-b", str(launcher.bundle), "c" * 70000))

    assert "cannot be asked: the command line is too long; use shorter paths" in text
    assert not launcher.low_level.ran
