#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the launcher adds to runtime commands, side by side with what it is compared to.

In each round every variant runs every command once, so that the machine's drift falls on all of
them alike. `added` is the difference of medians to the variant without a wrapper.

    bench/runtime.py                        all tables that can run here
    bench/runtime.py --table alone          wrappers before a runtime that does nothing
    bench/runtime.py --peer /usr/bin/nvidia-container-runtime --json result.json
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.life_cycle import table_cri, table_docker
from bench.table import PLAIN, CommandFailedError, Sample, Table, measure, print_table
from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed import BUILD
from tests.testbed.node import Node, cgroup_words
from tests.testbed.oci import default_spec
from tests.testbed.rootfs import build_rootfs, copy_rootfs

LAUNCHER = BUILD / "vgpu-container-runtime"
NO_OP = BUILD / "tests" / "launcher" / "recorder"
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
TMPFS = "/dev/shm"
TABLES = ("alone", "runc", "crun", "agent", "docker", "cri")
EDITED = "plain, bundle edited before"


# -- wrappers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrapper:
    """How a variant runs a runtime command."""

    name: str
    binary: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str | Path) -> Sample:
        """Run one command and measure it."""
        return measure([self.binary, *words], self.env)


def launcher_before(runtime: Path, directory: Path, *, agent: Path | None = None) -> Wrapper:
    """Return a launcher whose low-level runtime is `runtime`."""
    copy = directory / "vgpu-container-runtime"
    directory.mkdir(parents=True)
    shutil.copy2(LAUNCHER, copy)
    lines = [f"low_level_runtime={runtime}"]
    if agent is not None:
        lines.append(f"agent_socket={agent}")
    Path(f"{copy}.conf").write_text("\n".join(lines) + "\n")
    return Wrapper("vgpu", copy)


def peer_before(runtime: Path, directory: Path, peer: Path) -> Wrapper:
    """Return nvidia-container-runtime, in its cheapest mode, before the same runtime."""
    config = directory / "nvidia-container-runtime" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[nvidia-container-runtime]\nmode = "cdi"\nruntimes = ["{runtime}"]\n')
    return Wrapper("peer", peer, {"XDG_CONFIG_HOME": str(directory)})


def wrappers(runtime: Path, directory: Path, peer: Path | None) -> list[Wrapper]:
    """Return the variants of one runtime."""
    found = [Wrapper(PLAIN, runtime), launcher_before(runtime, directory / "vgpu")]
    if peer is not None:
        found.append(peer_before(runtime, directory / "peer", peer))
    return found


# -- bundles ---------------------------------------------------------------------------------


def write_bundle(
    directory: Path, env: Mapping[str, str], *, rootfs: Path | None = None, spec_bytes: int = 11_000
) -> Path:
    """Write a bundle whose config.json has the size of Docker's, which is mostly seccomp."""
    directory.mkdir(parents=True)
    spec = default_spec(["/bin/sleep", "1000"], env)
    missing = spec_bytes - len(json.dumps(spec))
    # Short words between quotes, as a seccomp profile has them: what a search stumbles over. Under
    # a name that every runtime passes over.
    spec["org.example.filler"] = ["io_uring"] * (max(0, missing) // 11)
    (directory / "config.json").write_text(json.dumps(spec, separators=(",", ":")))
    if rootfs is not None:
        (directory / "rootfs").mkdir()
        copy_rootfs(rootfs, directory / "rootfs")
    return directory


def create(bundle: Path, container_id: str) -> list[str | Path]:
    """Return the words with which containerd's shim creates a container."""
    return [
        "--log", bundle / "log.json", "--log-format", "json",
        "create", "--bundle", bundle, "--pid-file", bundle / "init.pid", container_id,
    ]  # fmt: skip


# -- tables ----------------------------------------------------------------------------------


def table_alone(directory: Path, rounds: int, peer: Path | None) -> Table:
    """Measure wrappers before a runtime that exits at once."""
    table = Table("The wrapper alone: the low-level runtime is a static program that exits")
    small = write_bundle(directory / "small", {})
    huge = write_bundle(directory / "huge", {}, spec_bytes=10 << 20)
    plain, *others = wrappers(NO_OP, directory, peer)
    for _ in range(rounds):
        table.add("nothing", PLAIN, plain.run("state", "c1"))
        for wrapper in others:
            table.add("state", wrapper.name, wrapper.run("state", "c1"))
            table.add("create, no GPU", wrapper.name, wrapper.run(*create(small, "c1")))
    for _ in range(max(3, rounds // 20)):
        for wrapper in others:
            table.add("create, 10 MiB spec", wrapper.name, wrapper.run(*create(huge, "c1")))
    kib = resident_kib(directory)
    table.notes.append(f"Resident memory of the launcher while it waits for the agent: {kib} KiB")
    return table


def resident_kib(directory: Path) -> int:
    """Return the launcher's resident memory at its fullest: when it waits for a verdict.

    The RSS column is the kernel's own peak, which recent kernels round down to 0 for so small a
    process.
    """
    bundle = write_bundle(directory / "waiting", {"VGPU_MEMORY": "64Mi"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(directory / "silent.sock"))
        silent.listen()
        launcher = launcher_before(
            NO_OP, directory / "resident", agent=directory / "silent.sock"
        ).binary
        with subprocess.Popen([launcher, *create(bundle, "c1")], stdin=subprocess.DEVNULL) as it:
            connection, _ = silent.accept()
            connection.recv(1)
            status = Path(f"/proc/{it.pid}/smaps_rollup").read_text()
            it.kill()
            connection.close()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Rss:")))


def table_real(
    runtime: Path, options: Sequence[str], directory: Path, rounds: int, peer: Path | None
) -> Table:
    """Measure the life of real containers."""
    table = Table(f"Real containers with {runtime.name}, created without a GPU")
    rootfs = build_rootfs(directory / "rootfs", loader="none")
    variants = wrappers(runtime, directory, peer)
    # crun 1.8 and runc 1.0 have no `features`.
    has_features = subprocess.run([runtime, "features"], capture_output=True).returncode == 0
    for number in range(rounds):
        for wrapper in variants:
            name = f"bench-{wrapper.name}-{number}"
            bundle = write_bundle(directory / name, {}, rootfs=rootfs)
            common: list[str | Path] = ["--root", directory / f"root-{wrapper.name}", *options]

            def step(label: str, *words: str | Path) -> None:
                sample = wrapper.run(*common, *words)  # noqa: B023  called in this iteration
                table.add(label, wrapper.name, sample)  # noqa: B023  called in this iteration

            try:
                if has_features:
                    step("features", "features")
                step("create", *create(bundle, name))
                step("start", "start", name)
                step("state", "state", name)
                pid = int((bundle / "init.pid").read_text())
                step("kill", "kill", name, "KILL")
                wait_for_end(pid)
                step("delete", "delete", name)
            finally:
                with contextlib.suppress(CommandFailedError):
                    measure([runtime, *common, "delete", "--force", name])
            shutil.rmtree(bundle)
    return table


def wait_for_end(pid: int) -> None:
    """Wait until a container's init is gone or a zombie: `delete` refuses a running one."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)


@contextlib.contextmanager
def live_node(directory: Path) -> Iterator[Node]:
    """Yield a node with cache, agent and enough simulated cards for all claims at once."""
    (directory / "gpu").mkdir(parents=True)
    gpu = SimulatedGpu.create(directory / "gpu", cards=[Card(memory_bytes=80 << 30)] * 16)
    # `directory` is on a tmpfs as /run is on a host; the state is on a disk as /var/lib is.
    with tempfile.TemporaryDirectory(prefix="vgpu-") as disk:
        (directory / "node").mkdir()
        (directory / "node" / "state").symlink_to(disk)
        with Node(directory / "node", gpu) as node:
            yield node


def table_agent(directory: Path, rounds: int) -> Table:
    """Measure creates that the agent decides: before a no-op, and with the real runtime."""
    table = Table("Creates with a slice, decided by a running agent (embedded cache, SQLite)")
    request = {"VGPU_MEMORY": "64Mi", "VGPU_CORES": "1"}
    rootfs = build_rootfs(directory / "rootfs")
    with live_node(directory) as node:
        before_nothing = launcher_before(NO_OP, directory / "vgpu", agent=node.agent_socket)
        options: list[str | Path] = ["--root", node.runtime().root]
        for number in range(rounds):
            bundle = write_bundle(directory / f"noop-{number}", request, rootfs=rootfs)
            words = create(bundle, f"noop-{number}")
            table.add("nothing", PLAIN, measure([NO_OP, *words]))
            table.add("create with a slice", "vgpu", before_nothing.run(*words))
            # The same container again, as a restart: the agent knows the answer.
            table.add("create, known answer", "vgpu", before_nothing.run(*words))
            shutil.rmtree(bundle)
            for variant, binary, env in (
                (PLAIN, Path(node.low_level), {}),
                ("vgpu", node.launcher, request),
            ):
                name = f"real-{variant}-{number}"
                bundle = write_bundle(directory / name, env, rootfs=rootfs)
                sample = measure([binary, *options, *create(bundle, name)])
                table.add("create, real runtime", variant, sample)
                measure([binary, *options, "delete", "--force", name])
                if variant != PLAIN:
                    # What the runtime itself takes for the mounts that a slice brings with it.
                    again = f"edited-{number}"
                    sample = measure([node.low_level, *options, *create(bundle, again)])
                    table.add("create, real runtime", EDITED, sample)
                    measure([node.low_level, *options, "delete", "--force", again])
                shutil.rmtree(bundle)
        table.notes.append(f"100 parallel creates: {parallel(before_nothing, directory):.0f} ms")
        table.notes.append(f"agent's resident memory: {node.agent_rss_bytes() / 2**20:.1f} MiB")
    return table


def parallel(wrapper: Wrapper, directory: Path, count: int = 100) -> float:
    """Return the time, in ms, of `count` creates at once."""
    commands = []
    for number in range(count):
        name = f"parallel-{number}"
        rootfs = directory / "rootfs"
        bundle = write_bundle(directory / name, {"VGPU_MEMORY": "64Mi"}, rootfs=rootfs)
        commands.append([wrapper.binary, *create(bundle, name)])
    start = time.perf_counter()
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands]
    failed = sum(process.wait() != 0 for process in running)
    elapsed_ms = (time.perf_counter() - start) * 1000
    if failed:
        raise CommandFailedError(f"{failed} of {count} parallel creates failed")
    return elapsed_ms


# -- output ----------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Return what a reader needs to compare two results."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "kernel": platform.release(),
        "cpu": models[0] if models else platform.machine(),
        "cores": str(os.cpu_count()),
    }


def run_below(
    prefix: Sequence[str], options: Sequence[str], name: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Run one table below `prefix` (a mount namespace in which the runtime works)."""
    words = [sys.executable, __file__, "--table", name, "--json", "-"]
    words += ["--rounds", str(args.rounds), f"--below={' '.join(options)}"]
    if args.peer is not None:
        words += ["--peer", str(args.peer)]
    done = subprocess.run([*prefix, *words], stdout=subprocess.PIPE, check=True)
    (table,) = json.loads(done.stdout)["tables"]
    result: dict[str, Any] = table
    return result


def run_table(name: str, directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return one table: its name, title, rows and notes."""
    if name == "alone":
        table = table_alone(directory, args.rounds, args.peer)
    elif name == "agent":
        table = table_agent(directory, args.rounds // 5)
    elif name == "docker":
        table = table_docker(directory, max(3, args.rounds // 10), args.peer)
    elif name == "cri":
        table = table_cri(directory, max(3, args.rounds // 10), args.peer)
    else:
        options, prefix = cgroup_words(name)
        if args.below is not None:
            options = args.below.split()
        elif prefix:
            return run_below(prefix, options, name, args)
        found = shutil.which(name, path=SEARCH)
        if found is None:
            raise CommandFailedError(f"{name} is not installed")
        table = table_real(Path(found), options, directory, args.rounds // 5, args.peer)
    return {"name": name, "title": table.title, "rows": table.rows(), "notes": table.notes}


def main() -> int:
    """Run the tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", action="append", choices=TABLES, help="default: all of them")
    parser.add_argument("--rounds", type=int, default=300, help="a fifth for real containers")
    parser.add_argument("--peer", type=Path, help="nvidia-container-runtime, to compare with")
    parser.add_argument("--json", metavar="FILE", help="write the result there ('-': stdout)")
    parser.add_argument("--below", help=argparse.SUPPRESS)  # run_below: the runtime's options
    args = parser.parse_args()

    tables, missing = [], []
    for name in args.table or TABLES:
        tmpfs = TMPFS if name == "agent" else None
        with tempfile.TemporaryDirectory(prefix="vgpu-", dir=tmpfs) as directory:
            try:
                tables.append(run_table(name, Path(directory), args))
            except (CommandFailedError, subprocess.CalledProcessError) as error:
                missing.append(f"{name}: {error}")
    result = json.dumps({"machine": machine(), "rounds": args.rounds, "tables": tables}, indent=1)
    if args.json == "-":
        print(result)
    else:
        print(", ".join(f"{key}: {value}" for key, value in machine().items()))
        for table in tables:
            print_table(table["title"], table["rows"], table["notes"])
        if args.json is not None:
            Path(args.json).write_text(result + "\n")
    for line in missing:
        print(f"bench: no table {line}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
