# SPDX-License-Identifier: Apache-2.0
"""Where a measured program runs: bare, with the library, or with a peer's.

Two ways to have the library in the mode that a container has, with a limits file:

* a real container, made by a node with cache, agent and runc. The agent publishes what it measures.
* a mount namespace on the host with /dev/vgpu in it, for what is timed: all else is as in a bare
  process. The files are made by the agent's own code; no agent runs.
"""

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpu.v1 import scheduler_cache_pb2 as pb

from bench.gpu.judge import Account
from runtime_shim.region import Regions
from tests.device.main_job import folder_of, overlay_of_host
from tests.fakes.gpu import SimulatedGpu
from tests.testbed import REPOSITORY
from tests.testbed.node import FAKE_GPU_DIR, Node
from tests.testbed.oci import Bundle, default_spec

MIB = 1 << 20
# Measured on an H100 with driver 580 (docs/decisions.md); a container gets it from its agent.
CONTEXT_BYTES = 518 * MIB
TOOLS = ("compute-sanitizer", "cuda-gdb")
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "LANG", "FAKE_GPU_DIR")

ENTER = """
set -e
folder=$1; shift
mount -t tmpfs vgpu /dev/vgpu
for name in libvgpu.so limits usage; do
    touch /dev/vgpu/$name
    mount --bind "$folder/$name" /dev/vgpu/$name
done
LD_PRELOAD=/dev/vgpu/libvgpu.so exec "$@"
"""


@dataclass(frozen=True)
class Place:
    """How a program is started in one variant."""

    name: str
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None
    env_words: bool = False
    """Whether the environment travels as words of the prefix, as for `runc exec`."""

    def start(
        self,
        argv: Sequence[str | Path],
        extra: Mapping[str, str] | None = None,
        *,
        stderr: int | None = None,
    ) -> "subprocess.Popen[str]":
        """Start a program with pipes for stdin and stdout."""
        prefix = list(self.prefix)
        own = {**self.env, **(extra or {})}
        if self.env_words:
            *prefix, last = prefix
            for name, value in own.items():
                prefix += ["--env", f"{name}={value}"]
            prefix.append(last)
            env = dict(os.environ)
        else:
            env = {**os.environ, **own}
        return subprocess.Popen(
            [*prefix, *map(str, argv)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=env,
        )

    def run(self, argv: Sequence[str | Path], timeout: float = 120) -> str:
        """Run a program to its end and return its stdout; its exit code must be 0."""
        process = self.start(argv)
        try:
            output, _ = process.communicate("", timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if process.returncode != 0:
            words = " ".join(map(str, argv))
            raise RuntimeError(f"{self.name}: {words}: exit {process.returncode}: {output[-500:]}")
        return output


BARE = Place("bare")


def tool(name: str) -> str | None:
    """Return the path of one of CUDA's tools, which are not always in the search path."""
    found = shutil.which(name)
    if found is None:
        others = [*glob.glob(f"/usr/local/cuda*/bin/{name}"), *glob.glob(f"/opt/*/bin/{name}")]
        found = others[0] if others else None
    return found


@contextlib.contextmanager
def on_host(library: Path, card_uuid: str, memory_bytes: int) -> Iterator[Place]:
    """Yield a place whose processes have a slice of the card, on the host."""
    made = not Path("/dev/vgpu").exists()
    if made:
        Path("/dev/vgpu").mkdir()
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name:
        regions = Regions(Path(name) / "regions")
        regions.prepare()
        part = pb.Slice(
            card_uuid=card_uuid,
            memory_bytes=memory_bytes,
            cores_percent=100,
            cores_max_percent=100,
            compute_mode=pb.COMPUTE_MODE_HARD,
        )
        allocation = pb.Allocation(allocation_id=str(uuid.uuid4()), slices=[part])
        region = regions.create(allocation, b"", [CONTEXT_BYTES])
        folder = Path(name) / "dev"
        folder.mkdir()
        shutil.copy2(library, folder / "libvgpu.so")
        (folder / "limits").symlink_to(region.limits_path)
        (folder / "usage").symlink_to(region.usage_path)
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]
        account = Account(region.usage_path, region.limits_path)
        try:
            yield Place("vgpu", (*enter, str(folder)), account=account)
        finally:
            regions.close()
            regions.remove(allocation.allocation_id)
            if made:
                Path("/dev/vgpu").rmdir()


@contextlib.contextmanager
def of_peer(library: Path, memory_bytes: int, cores_percent: int | None = None) -> Iterator[Place]:
    """Yield a place with another preloaded limiter that takes its limits from the environment."""
    # The loader goes on without a library that it cannot preload: that would be measured as bare.
    tried = subprocess.run(
        ["/bin/true"], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False
    )
    if "cannot be preloaded" in tried.stderr or not library.is_absolute():
        raise RuntimeError(f"--peer {library}: {tried.stderr.strip() or 'not a full path'}")
    with tempfile.TemporaryDirectory(prefix="vgpu-peer-") as name:
        env = {
            "LD_PRELOAD": str(library),
            "CUDA_REDIRECT": str(library),
            "CUDA_DEVICE_MEMORY_LIMIT": str(memory_bytes),
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{name}/cache",
        }
        if cores_percent is not None:
            env["CUDA_DEVICE_SM_LIMIT"] = str(cores_percent)
        yield Place("peer", env=env)


class Host:
    """A node, real or simulated, on whose one card containers are started."""

    def __init__(self, directory: Path, root: Path, node: Node, card_uuid: str) -> None:
        self._directory = directory
        self._card_uuid = card_uuid
        self._root = root
        self._node = node

    @contextlib.contextmanager
    def container(self, name: str, memory_mib: int) -> Iterator[Place]:
        """Yield a container that has a slice and sees the host's file system."""
        runtime = self._node.runtime()
        runtime.start_detached(self._bundle(name, memory_mib), name)
        files = self._node.container_directory(name)
        account = Account(files / "usage" / "usage", files / "limits")
        prefix = (str(runtime.binary), "--root", str(runtime.root), "exec", name)
        try:
            yield Place("vgpu", prefix, account=account, env_words=True)
        finally:
            runtime.delete(name)

    def _bundle(self, name: str, memory_mib: int) -> Bundle:
        directory = self._directory / name
        directory.mkdir()
        env = {key: os.environ[key] for key in _KEPT if key in os.environ}
        env |= {"VGPU_MEMORY": f"{memory_mib}Mi", "VGPU_UUIDS": self._card_uuid}
        env["PYTHONPATH"] = ":".join(filter(None, [str(REPOSITORY), env.get("PYTHONPATH")]))
        programs = [sys.executable, *filter(None, map(tool, TOOLS))]
        folders = {folder for program in programs for folder in folder_of(program)}
        mounts = [(folder, str(folder), "ro") for folder in sorted(folders)]
        mounts.append((REPOSITORY, str(REPOSITORY), "ro"))
        if self._node.gpu is not None:
            env["FAKE_GPU_DIR"] = FAKE_GPU_DIR
            env.pop("LD_LIBRARY_PATH", None)
            mounts += [(source, target, "rw") for source, target in self._node.gpu_mounts()]
        bundle = Bundle(directory, default_spec(["sleep", "36000"], env))
        bundle.spec["root"]["path"] = str(self._root)
        for source, target, mode in mounts:
            mount: dict[str, Any] = {"destination": target, "type": "bind", "source": str(source)}
            bundle.spec["mounts"].append({**mount, "options": ["rbind", mode]})
        bundle.write()
        return bundle


@contextlib.contextmanager
def host(library: Path, gpu: SimulatedGpu | None, card_uuid: str) -> Iterator[Host]:
    """Yield a node whose containers have the host's file system as their root, and that card."""
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with (
            overlay_of_host(directory) as root,
            Node(directory / "node", gpu, library=library) as node,
        ):
            yield Host(directory, root, node, card_uuid)
