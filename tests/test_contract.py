# SPDX-License-Identifier: Apache-2.0
"""docs/contract.md says what the code does, where a test can tell."""

import re
import subprocess

import pytest
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.abi import constants
from runtime_shim.config import Config
from runtime_shim.request import REQUEST_VARIABLES
from runtime_shim.spec import environment
from runtime_shim.strip import strip_gpu
from scheduler_cache.config import Config as CacheConfig
from tests.testbed import REPOSITORY

CONTRACT = (REPOSITORY / "docs/contract.md").read_text()
README = (REPOSITORY / "README.md").read_text()


def section(number: int) -> str:
    """Return one numbered section of the contract."""
    return re.split(r"^## ", CONTRACT, flags=re.MULTILINE)[number]


@pytest.mark.parametrize("name", sorted(REQUEST_VARIABLES))
def test_every_request_variable_is_written_down(name: str) -> None:
    assert f"`{name}`" in section(1)
    assert f"`{name}`" in README


def test_everything_that_is_to_be_removed_is_removed() -> None:
    line = next(line for line in section(1).splitlines() if line.startswith("- Removed:"))
    written = line.replace("every other `NVIDIA_VISIBLE_DEVICES`, ", "")
    names = []
    for word in re.findall(r"`([A-Z_*{},]+)`", written):
        stem, _, choices = word.partition("{")
        names += [stem + choice for choice in choices.rstrip("}").split(",")]
    env = [f"{name.replace('*', 'X')}=1" for name in names]
    spec = {"process": {"env": ["PATH=/bin", *env]}, "linux": {}}

    stripped, _ = strip_gpu(spec, library="/dev/vgpu/libvgpu.so", majors=(), own_folders=())

    assert len(names) >= 12
    assert list(environment(stripped)) == ["PATH"]


def test_every_mark_of_the_launcher_is_written_down() -> None:
    source = (REPOSITORY / "runtime_shim/launcher/marks.c").read_text()
    marks = re.findall(r'\{"((?:[^"\\]|\\.)+)",\s*MARK_', source)

    assert len(marks) >= 10
    for mark in marks:
        assert mark.replace('\\"', '"') in section(1)


@pytest.mark.parametrize(
    "rpc", sorted(pb.DESCRIPTOR.services_by_name["SchedulerCache"].methods_by_name)
)
def test_every_rpc_is_written_down(rpc: str) -> None:
    assert f"`{rpc}" in section(4)


def test_the_default_paths_are_those_of_the_contract() -> None:
    agent, cache = Config(node_name="n"), CacheConfig()

    assert f"`{agent.paths.socket}`" in section(3)
    assert str(agent.paths.state_dir) in section(3)
    assert str(agent.paths.library) == "/usr/lib/vgpu/current/libvgpu.so"
    assert f"`{cache.state_dir}/state.db`" in section(3)
    assert agent.cache.address == cache.listen[0] == "unix:/run/vgpu/cache.sock"


def test_the_deadlines_are_those_of_the_contract() -> None:
    agent = Config(node_name="n")

    assert f"tries of {agent.cache.try_seconds:g} s" in section(5)
    assert f"until {agent.cache.total_seconds:g} s" in section(5)


def test_the_sizes_of_the_abi_are_those_of_the_contract() -> None:
    assert f"ndev ≤ {constants.VGPU_MAX_DEVICES}" in section(8)
    assert f"slot[{constants.VGPU_MAX_SLOTS}]" in section(8)


def test_every_make_word_exists() -> None:
    words = section(7).splitlines()[1].strip("`. ").split("`")[0].split()

    assert {"setup", "check", "test", "demo", "install", "clean"} <= set(words)
    for word in words:
        done = subprocess.run(["make", "-n", word], cwd=REPOSITORY, capture_output=True, text=True)
        assert "No rule to make target" not in done.stderr
