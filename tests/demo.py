# SPDX-License-Identifier: Apache-2.0
"""`make demo`: two containers share one card, each held to its slice; a table of expected and seen.

Uses the card of the host's NVIDIA driver where there is one, else a simulated one of 8 GiB. Starts
scheduler cache and agent in a scratch directory, containers with runc and, where it is installed,
with a private dockerd. Leaves nothing running and nothing mounted.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.gpu import Card, SimulatedGpu
from tests.testbed import BUILD
from tests.testbed.docker import Docker, DockerFailedError, find_dockerd
from tests.testbed.node import GIB, Node, probe, wait_until
from tests.testbed.oci import Bundle, RuntimeFailedError
from tests.testbed.rootfs import PROBE, build_rootfs

FIRST_GIB, SECOND_GIB = 2, 5
STEP = "64m"
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    container: str
    what: str
    expected: str
    seen: str

    @property
    def holds(self) -> bool:
        """Return whether the container saw what it was promised."""
        return self.expected == self.seen


def gib(size_bytes: int) -> str:
    """Return a size as the table shows it."""
    return f"{size_bytes / GIB:.2f} GiB"


def rows_of(container: str, memory_gib: int, seen: dict[str, Any], *, exact: bool) -> list[Row]:
    """Compare what vgpu-probe printed with the slice that was promised.

    With `exact` the refusal comes at the last step below the limit; a real card's context costs
    some hundred MiB of the slice first, so there only the ceiling is compared.
    """
    device = seen["devices"][0]
    refused = seen["words"][0]
    limit_bytes = memory_gib * GIB
    expected = gib(limit_bytes)
    granted = "all of it" if refused["bytes"] <= limit_bytes else f"MORE: {gib(refused['bytes'])}"
    if exact and refused["bytes"] != limit_bytes:
        granted = gib(refused["bytes"])
    return [
        Row(container, "devices", "1", str(len(seen["devices"]))),
        Row(container, "cuMemGetInfo total", expected, gib(device["mem_get_info"]["total"])),
        Row(container, "cuDeviceTotalMem", expected, gib(device["total_memory"]["bytes"])),
        Row(container, "NVML memory total", expected, gib(device["nvml"]["total"])),
        Row(container, "cuMemAlloc grants", "all of it", granted),
        Row(container, "then refuses with", f"error {OUT_OF_MEMORY}", f"error {refused['code']}"),
    ]


def refusal(container: str, start: Callable[[], object]) -> Row:
    """Start a container that cannot fit, and show the sentence that the engine got."""
    try:
        start()
    except (RuntimeFailedError, DockerFailedError) as error:
        sentence = next((line for line in error.stderr.splitlines() if "vgpu:" in line), "")
        print(f"   {sentence.strip()}")
        said = "refused" if "free" in sentence else f"refused without a reason: {error.stderr}"
        return Row(container, "does not fit", "refused", said)
    return Row(container, "does not fit", "refused", "STARTED")


def with_runc(node: Node, scratch: Path, template: Path, third_gib: int) -> list[Row]:
    """Run the scenario with the launcher in front of runc, as containerd's shim would."""
    runtime = node.runtime("runc")
    card = () if node.gpu is None else node.gpu_mounts()

    def bundle(name: str, memory: int, cores: int) -> Bundle:
        env = {"VGPU_MEMORY": f"{memory}Gi", "VGPU_CORES": str(cores)}
        return Bundle.create(scratch / name, template, ["sleep", "600"], env, mounts=list(card))

    rows = []
    for name, memory, cores in (("runc-a", FIRST_GIB, 25), ("runc-b", SECOND_GIB, 60)):
        runtime.start_detached(bundle(name, memory, cores), name)
        seen = probe(runtime.exec(name, PROBE, "--until-refused", STEP))
        rows += rows_of(name, memory, seen, exact=node.gpu is not None)
    third = bundle("runc-c", third_gib, 10)
    rows.append(refusal("runc-c", lambda: runtime.start_detached(third, "runc-c")))
    runtime.delete("runc-b")
    shutil.rmtree(scratch / "runc-b")
    runtime.start_detached(third, "runc-c")
    seen = probe(runtime.exec("runc-c", PROBE))
    total = seen["devices"][0]["mem_get_info"]["total"]
    rows.append(Row("runc-c", "after runc-b is gone", gib(third_gib * GIB), gib(total)))
    for name in ("runc-a", "runc-c"):
        runtime.delete(name)
        shutil.rmtree(scratch / name)
    return rows


def with_docker(node: Node, docker: Docker, template: Path, third_gib: int) -> list[Row]:
    """Run the scenario with `docker run --runtime=vgpu`."""
    docker.import_image(template, "vgpu-demo:1", changes=["ENV NVIDIA_VISIBLE_DEVICES=all"])
    volumes = [f"--volume={host}:{inside}" for host, inside in node.gpu_mounts()]

    def run(name: str, memory: int, cores: int) -> str:
        request = ["-e", f"VGPU_MEMORY={memory}Gi", "-e", f"VGPU_CORES={cores}"]
        options = ["--runtime=vgpu", "--network=none", *request, *volumes]
        return docker.command("run", "-d", "--name", name, *options, "vgpu-demo:1", "sleep", "600")

    rows = []
    for name, memory, cores in (("docker-a", FIRST_GIB, 25), ("docker-b", SECOND_GIB, 60)):
        run(name, memory, cores)
        seen = probe(docker.command("exec", name, PROBE, "--until-refused", STEP))
        rows += rows_of(name, memory, seen, exact=node.gpu is not None)
    rows.append(refusal("docker-c", lambda: run("docker-c", third_gib, 10)))
    docker.command("rm", "-f", "docker-b", "docker-c")
    run("docker-c", third_gib, 10)
    seen = probe(docker.command("exec", "docker-c", PROBE))
    total = seen["devices"][0]["mem_get_info"]["total"]
    rows.append(Row("docker-c", "after docker rm docker-b", gib(third_gib * GIB), gib(total)))
    docker.command("restart", "--time=1", "docker-a")
    seen = probe(docker.command("exec", "docker-a", PROBE))
    total = seen["devices"][0]["mem_get_info"]["total"]
    rows.append(Row("docker-a", "after docker restart", gib(FIRST_GIB * GIB), gib(total)))
    unmanaged = docker.command(
        "run", "--rm", "--runtime=vgpu", "--network=none", "vgpu-demo:1", "env"
    )
    devices = [line for line in unmanaged.splitlines() if line.startswith("NVIDIA_VISIBLE")]
    rows.append(
        Row("docker-d", "asks for nothing", "NVIDIA_VISIBLE_DEVICES=void", ", ".join(devices))
    )
    return rows


def table(rows: list[Row]) -> str:
    """Return the rows as aligned text."""
    head = ("container", "what", "expected", "seen", "")
    lines = [head] + [
        (row.container, row.what, row.expected, row.seen, "ok" if row.holds else "DIFFERS")
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def real_card_bytes() -> int | None:
    """Return the memory of the host's first card, or None without an NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return int(memory.total)


def main() -> int:
    """Run the demo; return 1 if any row differs."""
    card_bytes = real_card_bytes()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-demo-")))
        gpu = None
        if card_bytes is None:
            gpu = SimulatedGpu.create(
                scratch / "gpu",
                cards=[Card(memory_bytes=8 * GIB)],
                context_bytes=0,
                check_nodes=True,
            )
            card_bytes = 8 * GIB
            print("No NVIDIA driver here: one simulated card of 8 GiB (tests/fakes/gpu).")
        else:
            print(f"Using the real card of this host ({gib(card_bytes)}).")
        # More than the first two leave free: fits only when the second is gone.
        third_gib = card_bytes // GIB - FIRST_GIB - SECOND_GIB + 3
        template = build_rootfs(scratch / "rootfs")
        print("Starting vgpu-scheduler-cache (embedded) and vgpu-node-agent ...")
        node = stack.enter_context(Node(scratch / "node", gpu))
        print("Containers through vgpu-container-runtime and runc:")
        rows = with_runc(node, scratch, template, third_gib)
        wait_until(lambda: not node.claim_states(), "the claims of removed containers are freed")
        if find_dockerd() is None:
            print("Docker: not installed, left out (make test-engines installs it).")
        else:
            print("Containers through a private dockerd, docker run --runtime=vgpu:")
            docker = stack.enter_context(Docker(scratch / "docker", {"vgpu": node.launcher}))
            rows += with_docker(node, docker, template, third_gib)
        print(f"\n{table(rows)}\n")
    differing = [row for row in rows if not row.holds]
    print(f"{len(rows) - len(differing)} of {len(rows)} as promised.")
    return 1 if differing or not rows else 0


if __name__ == "__main__":
    assert BUILD.is_dir(), "run `make demo`, which builds first"
    sys.exit(main())
