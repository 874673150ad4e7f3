# SPDX-License-Identifier: Apache-2.0
"""A node in a scratch directory: scheduler cache, node agent and a configured launcher."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from vgpu.v1 import scheduler_cache_pb2 as pb
from vgpu.v1 import scheduler_cache_pb2_grpc as pb_grpc

from tests.fakes.gpu import SimulatedGpu
from tests.testbed import BUILD, REPOSITORY
from tests.testbed.installation import record_digests
from tests.testbed.oci import OciRuntime

GIB = 1 << 30
NVIDIA_MAJOR = 195
# Linux gives nvidia-caps a free one; this is one for local use, which no driver of the host has.
CAPABILITIES_MAJOR = 240
# Inside a container: where the simulated driver looks for its cards.
FAKE_GPU_DIR = "/run/fakegpu"


def cgroup_words(low_level: str) -> tuple[list[str], list[str]]:
    """Return (options, prefix) under which a low-level runtime works on this host's cgroups.

    crun refuses a cgroup v1 or hybrid layout, so there it gets a plain cgroup2 in a mount namespace
    of its own, which still follows the host's mounts (the agent's come after it was made).
    """
    if low_level != "crun" or Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return [], []
    script = 'umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec "$@"'
    unshare = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh"]
    return ["--cgroup-manager=disabled"], unshare


def wait_until(
    condition: Callable[[], bool], what: str, *, timeout_seconds: float = 20, step: float = 0.05
) -> None:
    """Return once `condition` holds; raise TimeoutError that names `what` after the time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(step)


class Node:
    """Cache and agent as the user starts them, on paths of their own.

    With `gpu` the node has simulated cards; with None it uses the host's real driver.
    """

    def __init__(
        self,
        directory: Path,
        gpu: SimulatedGpu | None,
        *,
        low_level: str = "runc",
        agent_lines: Sequence[str] = (),
        library: Path = BUILD / "libvgpu.so",
        verdict_seconds: float = 10,
    ) -> None:
        self.directory = directory
        self.gpu = gpu
        self.run_dir = directory / "run"
        self.state_dir = directory / "state"
        self.library = directory / "lib" / "libvgpu.so"
        self.launcher = directory / "bin" / "vgpu-container-runtime"
        self.agent_socket = self.run_dir / "agent.sock"
        self.cache_socket = self.run_dir / "cache.sock"
        self._agent_lines = agent_lines
        self._agent: subprocess.Popen[bytes] | None = None
        self._cache: subprocess.Popen[bytes] | None = None
        for folder in (self.run_dir, self.state_dir, self.library.parent, self.launcher.parent):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, self.library)
        shutil.copy2(BUILD / "vgpu-probe", self.library.parent / "vgpu-probe")
        record_digests(self.library.parent)
        shutil.copy2(BUILD / "vgpu-container-runtime", self.launcher)
        found = shutil.which(low_level, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        assert found is not None, f"{low_level} is not installed: run `make setup`"
        self.low_level = found
        Path(f"{self.launcher}.conf").write_text(
            f"low_level_runtime={self.low_level}\n"
            f"agent_socket={self.agent_socket}\n"
            f"verdict_seconds={verdict_seconds:g}\n"
        )
        if cgroup_words(Path(low_level).name)[1]:
            # A mount namespace follows the agent's later mounts only below a shared one.
            subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
            subprocess.run(["mount", "--make-shared", str(directory)], check=True)
        self._make_driver_tree()
        self._write_agent_toml()

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> "Node":
        self.start_cache()
        self.start_agent()
        self.wait_for_cards()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop_agent()
        self.stop_cache()
        self._unmount_everything()

    def start_cache(self) -> None:
        """Start the scheduler cache in embedded mode and wait for its socket."""
        self._cache = self._spawn(
            "cache",
            "scheduler_cache.cli",
            "serve",
            "--embedded",
            "--state",
            str(self.state_dir / "cache"),
            "--listen",
            f"unix:{self.cache_socket}",
        )
        self._wait_for_socket(self.cache_socket, socket.SOCK_STREAM, self._cache, "cache")

    def start_agent(self) -> None:
        """Start the node agent and wait for its socket."""
        self._agent = self._spawn(
            "agent", "runtime_shim.agent", "run", "--config", str(self.directory / "agent.toml")
        )
        self._wait_for_socket(self.agent_socket, socket.SOCK_SEQPACKET, self._agent, "agent")

    def signal_cache(self, number: signal.Signals) -> None:
        """Send the cache a signal that does not end it."""
        assert self._cache is not None
        self._cache.send_signal(number)

    def stop_cache(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the cache with a signal; nothing happens when it does not run."""
        self._stop(self._cache, how)
        self._cache = None

    def stop_agent(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the agent with a signal; nothing happens when it does not run."""
        self._stop(self._agent, how)
        self._agent = None

    @contextmanager
    def agent_paused(self) -> Iterator[None]:
        """Keep the agent from looking at anything meanwhile, as a very busy host does."""
        assert self._agent is not None
        self._agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._agent.send_signal(signal.SIGCONT)

    def agent_runs(self) -> bool:
        """Return whether the agent's process is alive."""
        return self._agent is not None and self._agent.poll() is None

    def agent_rss_bytes(self) -> int:
        """Return the agent's resident memory."""
        assert self._agent is not None
        status = Path(f"/proc/{self._agent.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def reboot(self) -> None:
        """Lose what a reboot loses (processes, /run, mounts) and keep what it keeps (the state).

        The kernel's boot id cannot change here; the agent is told another one.
        """
        self.stop_agent(signal.SIGKILL)
        self.stop_cache(signal.SIGKILL)
        self._unmount_everything()
        shutil.rmtree(self.run_dir)
        self.run_dir.mkdir()

    # -- looking at it ---------------------------------------------------------------------

    def runtime(self, name: str = "runtime") -> OciRuntime:
        """Return our runtime with a `--root` of its own."""
        options, prefix = cgroup_words(Path(self.low_level).name)
        return OciRuntime(self.launcher, self.directory / name, options=options, prefix=prefix)

    def gpu_mounts(self) -> list[tuple[Path, str]]:
        """Return the bind mount that lets a container's simulated driver find its cards."""
        return [] if self.gpu is None else [(Path(self.gpu.directory), FAKE_GPU_DIR)]

    def claims(self) -> list[Any]:
        """Return what the cache holds, as its messages."""
        with grpc.insecure_channel(f"unix:{self.cache_socket}") as channel:
            stub: Any = pb_grpc.SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.ListAllocations(
                pb.ListAllocationsRequest(), timeout=30, wait_for_ready=True
            )
        return list(answer.claims)

    def claim_states(self) -> dict[str, str]:
        """Return container id → running, stopped."""
        return {
            claim.allocation.claim.container_id: pb.ClaimState.Name(claim.state)
            .removeprefix("CLAIM_STATE_")
            .lower()
            for claim in self.claims()
        }

    def log(self, process: str) -> str:
        """Return everything that `agent` or `cache` has logged."""
        return (self.directory / f"{process}.log").read_text(errors="replace")

    def vgpuctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run vgpuctl against this node."""
        return subprocess.run(
            [sys.executable, "-m", "runtime_shim.cli", *words],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "VGPU_CONFIG": str(self.directory / "agent.toml")},
        )

    def container_directory(self, container_id: str) -> Path:
        """Return the directory of a container's limits and usage files."""
        claim = next(
            claim for claim in self.claims() if claim.allocation.claim.container_id == container_id
        )
        return self.run_dir / "containers" / str(claim.allocation.allocation_id)

    def wait_for_cards(self) -> None:
        """Wait until the agent's inventory has reached the cache."""
        wait_until(self._has_cards, f"{self.directory}: no card in the cache")

    # -- inside ----------------------------------------------------------------------------

    def _has_cards(self) -> bool:
        request = pb.AllocationRequest(count=1, memory=[pb.MemoryAmount(bytes=1)])
        with grpc.insecure_channel(f"unix:{self.cache_socket}") as channel:
            stub: Any = pb_grpc.SchedulerCacheStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = stub.Explain(pb.ExplainRequest(request=request), timeout=30)
            except grpc.RpcError:
                return False
        return any("GPU-" in line or "MIG-" in line for line in answer.lines)

    def _make_driver_tree(self) -> None:
        if self.gpu is None:
            return
        tree = self.directory / "driver"
        (tree / "dev" / "nvidia-caps").mkdir(parents=True, exist_ok=True)
        _make_node(tree / "dev" / "nvidiactl", NVIDIA_MAJOR, 255)
        for index, card in enumerate(self.gpu.description.cards):
            _make_node(tree / "dev" / f"nvidia{card.minor}", NVIDIA_MAJOR, card.minor or 0)
            for number, instance in enumerate(card.instances):
                entry = self.gpu.state.card[self.gpu.instance(number, index)]
                capabilities = tree / f"proc/driver/nvidia/capabilities/gpu{card.minor}/mig"
                folder = capabilities / f"gi{instance.gpu_instance}"
                part = folder / f"ci{instance.compute_instance}"
                part.mkdir(parents=True, exist_ok=True)
                _make_capability(tree, folder, entry.gpu_instance_node)
                _make_capability(tree, part, entry.compute_instance_node)

    def _write_agent_toml(self) -> None:
        lines = [
            'mode = "local"',
            'node_name = "testbed"',
            "[paths]",
            f'socket = "{self.agent_socket}"',
            f'run_dir = "{self.run_dir}"',
            f'state_dir = "{self.state_dir / "agent"}"',
            f'library = "{self.library}"',
            "[cache]",
            f'address = "unix:{self.cache_socket}"',
        ]
        if self.gpu is not None:
            lines += [
                "[driver]",
                f'nvml_library = "{BUILD / "fake/libnvidia-ml.so.1"}"',
                f'root = "{self.directory / "driver"}"',
                f'library_dirs = ["{BUILD / "fake"}"]',
                "cdi_dirs = []",
            ]
        lines += self._agent_lines
        (self.directory / "agent.toml").write_text("\n".join(lines) + "\n")

    def _spawn(self, name: str, module: str, *words: str) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if self.gpu is not None:
            environment["FAKE_GPU_DIR"] = str(self.gpu.directory)
            # Containers see only cards whose node they can open; this host has no such nodes.
            environment["FAKE_GPU_CHECK_NODES"] = "0"
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for_socket(
        self, path: Path, kind: int, process: subprocess.Popen[bytes], name: str
    ) -> None:
        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}: {self.log(name)}")
            with socket.socket(socket.AF_UNIX, kind) as probe:
                return probe.connect_ex(str(path)) == 0

        wait_until(answers, f"{name} does not listen on {path}")

    @staticmethod
    def _stop(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _unmount_everything(self) -> None:
        """Unmount what is mounted below the scratch directory, the deepest first."""
        prefix = str(self.directory.resolve())
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        mounted = [line.split()[4] for line in lines]
        for target in sorted((m for m in mounted if m.startswith(prefix)), reverse=True):
            subprocess.run(["umount", "-l", target], check=False, capture_output=True)


@contextmanager
def card_nodes_in_dev(node: Node) -> Iterator[None]:
    """Put the simulated cards' nodes where a driver has them.

    With a user namespace runtimes cannot make nodes and bind those of the host's /dev.
    """
    with ExitStack() as stack:
        for source in (node.directory / "driver/dev").iterdir():
            target = Path("/dev") / source.name
            if not target.exists():
                os.mknod(target, stat.S_IFCHR, source.stat().st_rdev)
                stack.callback(target.unlink)
                target.chmod(0o666)
        yield


def probe(output: str) -> dict[str, Any]:
    """Return what vgpu-probe printed."""
    parsed: dict[str, Any] = json.loads(output)
    return parsed


def _make_node(path: Path, major: int, minor: int) -> None:
    if not path.exists():
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(0o666)  # as the driver makes them


def _make_capability(tree: Path, folder: Path, minor: int) -> None:
    """Make the node that opens a MIG instance, and the file that says which one it is."""
    _make_node(tree / "dev" / "nvidia-caps" / f"nvidia-cap{minor}", CAPABILITIES_MAJOR, minor)
    (folder / "access").write_text(
        f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    )
