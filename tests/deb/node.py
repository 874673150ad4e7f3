# SPDX-License-Identifier: Apache-2.0
"""A root with the packages, a simulated card, and what watches them while dpkg works."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deb.packages import Packages
from tests.deb.roots import Root
from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed import BUILD, REPOSITORY
from tests.testbed.node import FAKE_GPU_DIR, GIB, NVIDIA_MAJOR, wait_until
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError

RUNTIME = "/usr/bin/vgpu-container-runtime"
LIBRARY = "/usr/lib/vgpu/current/libvgpu.so"
AGENT = "vgpu-node-agent.service"
CACHE = "vgpu-scheduler-cache.service"
# dpkg's own records, logs, and what Python made of the modules that it read.
_NOT_OURS = ("var/lib/dpkg", "var/log", "var/cache", "__pycache__", "etc/.pwd.lock", "tmp/")
# A busy machine starts an agent in more than the 5 s that a launcher has patience by default.
_RUNTIME_CONF = "absent_seconds=60\nverdict_seconds=120\n"
_LOAD_LIMIT_BYTES = 2 * GIB


class DebNode:
    """A host on which the packages come and go."""

    def __init__(self, root: Root, template: Path, tag: str) -> None:
        self.root = root
        self.shared = root.shared
        self.runtime = OciRuntime(Path(RUNTIME), self.shared / "runc", prefix=[*root.entering])
        self._template = template
        self._tag = tag
        self.gpu = SimulatedGpu.create(
            self.shared / "gpu", cards=[Card(memory_bytes=8 * GIB)], context_bytes=0
        )
        self._prepare()

    def _prepare(self) -> None:
        """Make the host that the packages find: a driver, an engine's file, a systemctl."""
        nodes = self.shared / "driver/dev"
        nodes.mkdir(parents=True)
        for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
            os.mknod(nodes / name, stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, minor))
            (nodes / name).chmod(0o666)
        libraries = self.shared / "libraries"
        libraries.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (libraries / name).write_bytes((BUILD / "fake" / name).read_bytes())
            (libraries / name).chmod(0o755)
        double = self.root.path("/usr/local/sbin/systemctl")
        double.write_bytes((REPOSITORY / "tests/deb/systemctl").read_bytes())
        double.chmod(0o755)
        compiled = self._template / "usr/bin/allocator"
        words = ["gcc", "-std=gnu11", "-O1", "-o", str(compiled), "-ldl"]
        subprocess.run([*words, str(REPOSITORY / "tests/deb/allocator.c")], check=True)

    # -- packages and services -----------------------------------------------------------------

    def dpkg(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run dpkg; the simulated driver's variables reach the services that it starts."""
        return self.root.run("dpkg", *words, env=self._environment(), check=check)

    def install(self, packages: Packages) -> str:
        """Install both packages, as a first installation, an upgrade or a downgrade."""
        files = []
        for package in (packages.runtime, packages.cache):
            place = self.shared / package.name
            place.write_bytes(package.read_bytes())
            files.append(str(place))
        return self.dpkg("--install", *files).stdout

    def systemctl(self, *words: str) -> None:
        """Do what a person does with services."""
        self.root.run("systemctl", *words, env=self._environment())

    def write_configuration(self) -> None:
        """Edit the configuration, as an operator does: the simulated driver has no usual place."""
        self.root.path("/etc/vgpu/agent.toml").write_text(
            'mode = "local"\n'
            f'[paths]\nlibrary = "{LIBRARY}"\n'
            f'[driver]\nnvml_library = "{self.shared}/libraries/libnvidia-ml.so.1"\n'
            f'root = "{self.shared}/driver"\nlibrary_dirs = ["{self.shared}/libraries"]\n'
            "cdi_dirs = []\n[policy]\nslots_per_card = 1024\n"
        )
        self.root.path("/etc/vgpu/runtime.conf").write_text(_RUNTIME_CONF)

    def log(self, unit: str) -> str:
        """Return what a service has said."""
        path = self.root.path(f"/var/log/{unit}.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def status(self) -> Any:  # noqa: ANN401  JSON of vgpuctl
        """Return what `vgpuctl status` says."""
        return json.loads(self.root.run("vgpuctl", "status", "--json").stdout)

    def cards(self) -> int:
        """Return how many cards the cache has room on."""
        done = self.root.run("vgpuctl", "explain", "VGPU_MEMORY=1Mi", check=False)
        return done.stdout.count("GPU-") if done.returncode == 0 else 0

    def files(self) -> dict[str, str]:
        """Return every file that a package may have left, with what it is."""
        found = {}
        for folder, folders, names in os.walk(self.root.directory):
            for name in folders + names:
                path = Path(folder, name)
                inside = str(path.relative_to(self.root.directory))
                if any(each in f"{inside}/" for each in _NOT_OURS):
                    continue
                if inside.startswith(str(self.shared).lstrip("/")):
                    continue
                found[inside] = _what(path)
        return found

    # -- containers ----------------------------------------------------------------------------

    def bundle(self, name: str, *words: str, memory: str = "1Gi") -> Bundle:
        """Make the bundle of a container that asks for a slice."""
        return Bundle.create(
            self.shared / "bundles" / name,
            self._template,
            words,
            {"VGPU_MEMORY": memory, "VGPU_CORES": "10"},
            mounts=[(Path(self.gpu.directory), FAKE_GPU_DIR), (self.shared / "out", "/out")],
        )

    def container_id(self, name: str) -> str:
        """Return an id that no other run uses: the cgroups are the host's own."""
        return f"{self._tag}-{name}"

    def start_load(self, name: str) -> "Load":
        """Start a container that allocates every 10 ms."""
        (self.shared / "out").mkdir(exist_ok=True)
        file = f"/out/{name}"
        words = ["/usr/bin/allocator", file, str(_LOAD_LIMIT_BYTES)]
        bundle = self.bundle(name, *words, memory=str(_LOAD_LIMIT_BYTES))
        self.runtime.start_detached(bundle, self.container_id(name))
        load = Load(self, name, self.shared / "out" / name)
        load.wait_for_more()
        return load

    @contextmanager
    def watched(self) -> Iterator["Watch"]:
        """Poll the installed paths and start containers, one after the other, meanwhile."""
        watch = Watch(self)
        with watch.running():
            yield watch

    def _environment(self) -> list[str]:
        return [f"FAKE_GPU_DIR={self.gpu.directory}", "FAKE_GPU_CHECK_NODES=0"]


class Load:
    """A container that allocates."""

    def __init__(self, node: DebNode, name: str, file: Path) -> None:
        self.node = node
        self.id = node.container_id(name)
        self._file = file

    def counts(self) -> tuple[int, int, int]:
        """Return allocations, failures, and how often more than the limit was granted."""
        allocations, failures, excess = map(int, self._file.read_text().split())
        return allocations, failures, excess

    def wait_for_more(self, more: int = 20) -> None:
        """Return when it has allocated some more times: it lives, and so does its library."""
        goal = more + (self.counts()[0] if self._has_counts() else 0)
        wait_until(
            lambda: self._has_counts() and self.counts()[0] >= goal,
            f"{self.id} does not allocate any more",
            timeout_seconds=60,
        )

    def _has_counts(self) -> bool:
        return self._file.exists() and len(self._file.read_text().split()) == 3


class Watch:
    """What was seen while dpkg worked."""

    def __init__(self, node: DebNode) -> None:
        self._node = node
        self.started = 0
        self.failures: list[str] = []
        self.looks = 0
        self.missing: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch for as long as the block runs."""
        paths = [str(self._node.root.path(path)) for path in (RUNTIME, LIBRARY)]
        stop = threading.Event()
        creator = threading.Thread(target=self._start_containers, args=(stop,))
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("lookout.py")), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as lookout:
            assert lookout.stdout is not None
            lookout.stdout.readline()
            creator.start()
            try:
                yield
            finally:
                stop.set()
                creator.join()
                said = json.loads(lookout.communicate()[0])
        self.looks, self.missing = said["looks"], said["missing"]

    def _start_containers(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"watch{id(self)}-{number}"
            bundle = self._node.bundle(name, "true", memory="2Mi")
            try:
                self._node.runtime.run(bundle, self._node.container_id(name), timeout_seconds=150)
                self.started += 1
            except (RuntimeFailedError, subprocess.TimeoutExpired) as error:
                self.failures.append(str(error))
            shutil.rmtree(bundle.directory)  # its engine forgets it, and so does the agent


def _what(path: Path) -> str:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "a folder, a device or a socket"
