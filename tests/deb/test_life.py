# SPDX-License-Identifier: Apache-2.0
"""From a fresh Debian to one on which nothing of ours is left, and nobody noticed in between.

The root has no systemd that runs: tests/deb/systemctl starts what the installed units say when the
maintainer scripts ask for it. The GPU is simulated; dpkg, runc, Python and its modules are the
release's own.
"""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deb.node import AGENT, CACHE, LIBRARY, RUNTIME, DebNode, Load, Watch
from tests.deb.packages import CONTROL, Packages, this_and_next
from tests.deb.roots import SUITES, NoRootError, Root, dependencies, tarball
from tests.testbed.node import wait_until
from tests.testbed.oci import RuntimeFailedError

pytestmark = [pytest.mark.deb, pytest.mark.timeout(1200)]

DAEMON_JSON = '{\n   "debug":true,   "runtimes": {},\n\t"x-unknown": [1,2]}\n'
CONTAINERD_TOML = 'version = 2\n# mine\n[plugins."io.containerd.grpc.v1.cri"]\n  x = "y"  # kept\n'


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Packages, Packages]:
    return this_and_next(tmp_path_factory.mktemp("debs"))


@contextmanager
def fresh_node(suite: str, folder: Path, template: Path) -> Iterator[DebNode]:
    """Yield a node on a fresh root."""
    try:
        archive = tarball(suite, dependencies(CONTROL.read_text()))
    except NoRootError as error:
        pytest.fail(f"NOT RUN: {error}")
    shared = folder / "shared"
    shared.mkdir()
    tag = f"vgpu-deb-{secrets.token_hex(4)}"
    try:
        with Root(folder / "root", archive, shared) as root:
            yield DebNode(root, template, tag)
    finally:
        _remove_cgroups(tag)
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder / "root")], check=True)


def _remove_cgroups(tag: str) -> None:
    """Remove what containers that were killed with the root left in the host's cgroups."""
    words = ["find", "/sys/fs/cgroup", "-depth", "-type", "d", "-name", f"{tag}*"]
    subprocess.run([*words, "-exec", "rmdir", "{}", "+"], check=False, capture_output=True)


def bring_up(node: DebNode, packages: Packages) -> None:
    """Install, configure and start everything."""
    node.install(packages)
    node.write_configuration()
    node.systemctl("enable", "--now", CACHE)
    node.systemctl("restart", AGENT)
    wait_until(lambda: node.cards() == 1, f"no card: {node.log(AGENT)}", timeout_seconds=60)


def unharmed(load: Load, watch: Watch) -> None:
    """Assert that neither the running container nor a new one noticed anything."""
    load.wait_for_more()
    _, failures, excess = load.counts()
    assert (failures, excess) == (0, 0)
    assert watch.failures == []
    assert watch.started > 0
    assert watch.missing == []
    assert watch.looks > 100


def libraries(node: DebNode) -> dict[str, str]:
    """Return the version of the library of each living container with a slice."""
    containers = node.status()["containers"]
    return {each["container_id"]: each["library_version"] for each in containers}


@pytest.mark.parametrize("suite", SUITES)
def test_a_node_lives_through_everything_that_dpkg_does(
    suite: str, packages: tuple[Packages, Packages], template: Path, tmp_path: Path
) -> None:
    this, later = packages
    with fresh_node(suite, tmp_path, template) as node:
        root = node.root
        for path, text in (
            ("/etc/docker/daemon.json", DAEMON_JSON),
            ("/etc/containerd/config.toml", CONTAINERD_TOML),
        ):
            root.path(path).parent.mkdir()
            root.path(path).write_text(text)
        before = node.files()

        # First installation: runs, and has touched no engine.
        bring_up(node, this)
        assert root.path("/etc/docker/daemon.json").read_text() == DAEMON_JSON
        assert root.run("vgpuctl", "--version").stdout.split()[-1] == this.version
        assert root.run("systemctl", "is-enabled", AGENT).stdout == "enabled\n"
        units = [AGENT, AGENT.replace(".service", ".socket"), CACHE]
        assert root.run("systemd-analyze", "verify", "--man=no", *units).stdout == ""

        # A person configures the engines.
        root.run("vgpuctl", "configure", "docker")
        root.run("vgpuctl", "configure", "containerd")
        assert RUNTIME in root.path("/etc/docker/daemon.json").read_text()
        assert RUNTIME in root.path("/etc/containerd/config.toml").read_text()

        # A container lives, so the runtime stays.
        load = node.start_load("load")
        refused = node.dpkg("--remove", "vgpu-runtime", check=False)
        assert refused.returncode != 0
        assert "1 container runs on vgpu-container-runtime" in refused.stdout
        assert "VGPU_FORCE_REMOVE=1" in refused.stdout
        assert RUNTIME in root.path("/etc/docker/daemon.json").read_text()
        load.wait_for_more()
        assert libraries(node) == {load.id: this.version}

        # Up, under load.
        with node.watched() as watch:
            node.install(later)
        unharmed(load, watch)
        status = node.status()
        assert status["installed"] == status["library"] == later.version
        assert (status["agent"], status["scheduler_cache"]) == (later.version, later.version)
        newer = node.start_load("newer")
        assert libraries(node) == {load.id: this.version, newer.id: later.version}
        assert remove_unused(node) == []

        # And down again.
        with node.watched() as watch:
            node.install(this)
        unharmed(load, watch)
        unharmed(newer, watch)
        status = node.status()
        assert status["installed"] == status["agent"] == status["scheduler_cache"] == this.version
        assert libraries(node) == {load.id: this.version, newer.id: later.version}
        assert "cdi_dirs = []" in root.path("/etc/vgpu/agent.toml").read_text()
        node.runtime.delete(newer.id)
        assert remove_unused(node) == [later.version]
        assert "unhooked" not in node.log(AGENT)

        # Everything ends, and goes.
        node.runtime.delete(load.id)
        subprocess.run(["rm", "-rf", str(node.shared / "bundles")], check=True)
        wait_until(
            lambda: "no container" in root.run("vgpuctl", "ps").stdout,
            "claims are not freed",
            timeout_seconds=60,
        )
        node.dpkg("--remove", "vgpu-runtime", "vgpu-scheduler-cache")
        assert root.path("/etc/docker/daemon.json").read_text() == DAEMON_JSON
        assert root.path("/etc/containerd/config.toml").read_text() == CONTAINERD_TOML
        assert "cdi_dirs = []" in root.path("/etc/vgpu/agent.toml").read_text()
        assert not root.path(RUNTIME).exists()
        assert not root.path("/usr/lib/vgpu").exists()
        assert "vgpu" not in root.run("sh", "-c", "cat /proc/[0-9]*/comm").stdout
        assert root.run("ls", "/run").stdout.count("vgpu") == 0
        node.dpkg("--purge", "vgpu-runtime", "vgpu-scheduler-cache")
        assert difference(before, node.files()) == {}


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_only_recommended_keeps_no_container_from_its_slice(
    suite: str, packages: tuple[Packages, Packages], template: Path, tmp_path: Path
) -> None:
    with fresh_node(suite, tmp_path, template) as node:
        node.root.run("dpkg", "--purge", "python3-psutil", "python3-prometheus-client")
        bring_up(node, packages[0])
        config = node.root.path("/etc/vgpu/agent.toml")
        config.write_text(config.read_text() + '[metrics]\nlisten = "127.0.0.1:0"\n')

        node.systemctl("restart", AGENT)

        node.start_load("load")
        assert "apt install python3-prometheus-client" in node.log(AGENT)
        assert "running" in node.root.run("vgpuctl", "ps").stdout
        processes = node.root.run("vgpuctl", "top", "--once", "--processes", check=False)
        assert processes.returncode == 1
        assert processes.stdout.endswith("; apt install python3-psutil\n")


def test_a_package_that_is_only_unpacked_is_named_by_the_refusal(
    packages: tuple[Packages, Packages], template: Path, tmp_path: Path
) -> None:
    with fresh_node(SUITES[0], tmp_path, template) as node:
        before = node.files()
        package = node.shared / "runtime.deb"
        package.write_bytes(packages[0].runtime.read_bytes())
        (node.shared / "out").mkdir()
        node.dpkg("--unpack", str(package))

        with pytest.raises(RuntimeFailedError, match="did not answer.*; .*dpkg --configure -a"):
            node.runtime.run(node.bundle("early", "true"), node.container_id("early"))
        doctor = node.root.run("vgpuctl", "doctor", "--no-container", check=False).stdout
        unpacked = [line for line in doctor.splitlines() if "dpkg --configure -a" in line]
        assert [line.split()[1] for line in unpacked] == ["digests:", "library:", "agent:"]

        node.dpkg("--purge", "vgpu-runtime")
        assert difference(before, node.files()) == {}
        bring_up(node, packages[0])
        node.runtime.run(node.bundle("late", "true"), node.container_id("late"))


def test_an_interrupted_upgrade_keeps_no_container_from_its_slice(
    packages: tuple[Packages, Packages], template: Path, tmp_path: Path
) -> None:
    this, later = packages
    with fresh_node(SUITES[0], tmp_path, template) as node:
        (node.shared / "out").mkdir()
        bring_up(node, this)
        package = node.shared / "later.deb"
        package.write_bytes(later.runtime.read_bytes())
        node.dpkg("--unpack", str(package))

        node.runtime.run(node.bundle("same", "true"), node.container_id("same"))
        node.systemctl("restart", AGENT)
        node.runtime.run(node.bundle("restarted", "true"), node.container_id("restarted"))
        assert node.status()["library"] == this.version
        node.dpkg("--configure", "-a")
        node.runtime.run(node.bundle("done", "true"), node.container_id("done"))

        assert node.status()["library"] == later.version


def test_a_forced_removal_ends_no_container(
    packages: tuple[Packages, Packages], template: Path, tmp_path: Path
) -> None:
    with fresh_node(SUITES[0], tmp_path, template) as node:
        bring_up(node, packages[0])
        load = node.start_load("load")

        node.root.run("dpkg", "--remove", "vgpu-runtime", env=["VGPU_FORCE_REMOVE=1"])

        assert not node.root.path(LIBRARY).exists()
        load.wait_for_more()
        assert load.counts()[1:] == (0, 0)


def remove_unused(node: DebNode) -> list[str]:
    """Let the installed agent's code look for libraries that nobody has, and return their names."""
    code = (
        "import sys; sys.path.insert(0, '/usr/share/vgpu-runtime'); from pathlib import Path; "
        "from runtime_shim.dependants import remove_unused_versions; "
        f"print(*remove_unused_versions(Path('{LIBRARY}')))"
    )
    return node.root.run("python3", "-c", code).stdout.split()


def difference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[object, object]]:
    """Return what is not as it was."""
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }
