# SPDX-License-Identifier: Apache-2.0
"""The Python code on a release's own Python and packages, among them the oldest that we promise.

The other tiers run it on the newest versions (requirements*.lock). Here gRPC, protobuf,
cryptography, click, cffi, prometheus-client and psutil come from apt; only pytest and what it
needs come from the lock.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.locks import read_input, read_lock
from tests.deb.packages import CONTROL
from tests.deb.roots import SUITES, NoRootError, Root, dependencies, tarball
from tests.deb.test_build import copy_of_sources
from tests.testbed import BUILD, REPOSITORY

pytestmark = [pytest.mark.deb, pytest.mark.timeout(1200)]

# pytest, its plugins, and what these require; NVIDIA's binding, which our package brings along.
TOOLS = {
    *("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "sortedcontainers"),
    *("iniconfig", "pluggy", "packaging", "pygments", "typing-extensions", "nvidia-ml-py"),
}
# The wire, certificates, commands, metrics and the C interface: all that uses a package of Debian.
TESTS = (
    *("runtime_shim/device_plugin", "runtime_shim/test_agent_in_cluster.py"),
    *("runtime_shim/test_answers.py", "runtime_shim/test_arbiter.py"),
    *("runtime_shim/test_cache_client.py", "runtime_shim/test_cache_client_tls.py"),
    *("runtime_shim/test_cli.py", "runtime_shim/test_identity.py"),
    *("runtime_shim/test_messages.py", "runtime_shim/test_metrics.py"),
    *("runtime_shim/test_node_watch.py", "runtime_shim/test_readings.py"),
    *("runtime_shim/test_region.py", "runtime_shim/test_report_echo.py"),
    *("runtime_shim/test_testbed_certificates.py", "runtime_shim/test_tls.py"),
    *("runtime_shim/test_top.py", "runtime_shim/test_vouching.py"),
    *("scheduler_cache/test_cache.py", "scheduler_cache/test_cli.py"),
    *("scheduler_cache/test_health.py", "scheduler_cache/test_identity.py"),
    *("scheduler_cache/test_listen.py", "scheduler_cache/test_service.py"),
    *("scheduler_cache/test_sqlite_store.py", "scheduler_cache/test_trust.py"),
    "scheduler_cache/test_watchers.py",
)

_LEFT_OUT = (
    # It asks for the packages of the Kubernetes mode, which the container image has.
    "scheduler_cache/test_cli.py::test_the_kubernetes_mode_says_what_is_missing",
    # Its half second of patience is too short while this machine also makes roots.
    "runtime_shim/device_plugin/test_plugins.py"
    "::test_a_kubelet_that_dropped_the_plugin_is_told_again",
)


@pytest.fixture(params=SUITES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """Yield a root with what the packages depend on, and neither of them."""
    try:
        archive = tarball(request.param, dependencies(CONTROL.read_text()))
    except NoRootError as error:
        pytest.fail(f"NOT RUN: {error}")
    shared = tmp_path / "shared"
    shared.mkdir()
    try:
        with Root(tmp_path / "root", archive, shared) as root:
            yield root
    finally:
        words = ["rm", "-rf", "--one-file-system", str(tmp_path / "root")]
        subprocess.run(words, check=True)


def install_tools(root: Root) -> Path:
    """Install the tools for the root's Python; return the folder."""
    lock = (REPOSITORY / "requirements-dev.lock").read_text()
    chosen = [each for each in read_lock(lock) if each.requirement.name in TOOLS]
    assert {each.requirement.name for each in chosen} == TOOLS
    listed = root.shared / "tools.txt"
    listed.write_text("".join(each.text for each in chosen))
    version = root.run("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout
    target = root.shared / "tools"
    words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    words += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary=:all:"]
    words += ["--implementation=cp", f"--python-version={version.strip()}"]
    machine = root.run("uname", "-m").stdout.strip()
    for glibc in ("manylinux2014", "manylinux_2_17", "manylinux_2_28"):
        words += [f"--platform={glibc}_{machine}"]
    subprocess.run([*words, f"--target={target}", f"--requirement={listed}"], check=True)
    return target


def test_the_code_runs_on_debians_packages(root: Root) -> None:
    sources = copy_of_sources(root.shared / "sources")
    (sources / ".venv").unlink()
    (sources / "build").mkdir()
    for each in (*BUILD.glob("*.so"), BUILD / "vgpu-container-runtime", BUILD / "vgpu-probe"):
        shutil.copy2(each, sources / "build")
    shutil.copytree(BUILD / "fake", sources / "build/fake")
    path = f"{install_tools(root)}:{sources}:{sources}/proto"

    done = root.run(
        *("sh", "-c", f'cd {sources} && exec python3 -m pytest -v -p no:cacheprovider "$@"', "sh"),
        # A test that waits for ever ends the run: its name is in the last line that -v prints,
        # and the stack of each thread follows.
        "--timeout-method=thread",
        *(f"tests/{each}" for each in TESTS),
        *(f"--deselect=tests/{each}" for each in _LEFT_OUT),
        # Debian 13's protobuf 3.21 warns of its own C code, at import, with Python 3.13.
        "-Wdefault::DeprecationWarning",
        env=[f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1"],
        check=False,
        timeout_seconds=1000,
    )

    assert done.returncode == 0, done.stdout[-20_000:]
    assert " passed" in done.stdout


def test_debian_has_no_version_below_a_floor(root: Root) -> None:
    wanted = [
        each
        for each in read_input((REPOSITORY / "requirements.txt").read_text())
        if each.name != "nvidia-ml-py"  # our package brings it along
    ]
    names = ",".join(each.name for each in wanted)
    code = (
        "import importlib.metadata, sys\n"
        "for name in sys.argv[1].split(','): print(importlib.metadata.version(name))"
    )

    versions = root.run("python3", "-c", code, names).stdout.split()

    assert len(versions) == len(wanted) > 5
    below = [
        f"{each} is {version}"
        for each, version in zip(wanted, versions, strict=True)
        if version not in each.specifier
    ]
    assert below == []
