# SPDX-License-Identifier: Apache-2.0
"""The main job on a real card: two runc containers, PyTorch in both, each held to its slice.

Run by `make device` as root on a machine with an NVIDIA driver. The containers' root is an overlay
of the host's, so that its Python with PyTorch is there; devices and driver libraries come from the
agent alone. Prints a table and writes JSON to `--output`; exits 1 if any line differs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from tests.demo import Row, gib, table
from tests.testbed import BUILD
from tests.testbed.node import GIB, Node
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError, default_spec

MIB = 1 << 20
SLICES = {"one": 10, "two": 24}
OWN_FOLDERS = ("dev", "proc", "run", "sys", "tmp", "var")  # of each container

TORCH_PROGRAM = textwrap.dedent(
    """
    import json, sys, torch
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    seen = {
        "torch": torch.__version__,
        "mem_get_info_total": total,
        "mem_get_info_free": free,
        "properties_total_memory": torch.cuda.get_device_properties(0).total_memory,
        "device_count": torch.cuda.device_count(),
    }
    held = []
    try:
        while True:
            held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        seen["refused_by"] = type(error).__name__
        seen["message"] = str(error).splitlines()[0]
    seen["granted_bytes"] = sum(t.numel() for t in held)
    seen["free_when_full"] = torch.cuda.mem_get_info()[0]
    if "--wait" in sys.argv:
        print(json.dumps(seen), flush=True)
        sys.stdin.readline()
    held.clear()
    torch.cuda.empty_cache()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    y = x @ x
    torch.cuda.synchronize()
    seen["works_after_freeing"] = bool(torch.isfinite(y.float()).all())
    seen["free_after_freeing"] = torch.cuda.mem_get_info()[0]
    print(json.dumps(seen), flush=True)
    """
)


@contextmanager
def overlay_of_host(directory: Path) -> Iterator[Path]:
    """Yield a root file system that is the host's, with writable layers that are thrown away.

    The host's own root would be refused: it leads to /etc/vgpu, to /var/lib/vgpu and to the files
    of the node.
    """
    # An overlay's upper layer may not lie on an overlay, which a machine's root may be.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(directory)], check=True)
    root = directory / "layers" / "root"
    root.mkdir(parents=True)
    mounted = [directory]
    try:
        for folder in sorted(Path("/").iterdir()):
            if folder.is_symlink():
                (root / folder.name).symlink_to(folder.readlink())
            elif folder.name == "etc":
                shutil.copytree(folder, root / "etc", symlinks=True)
            elif folder.is_dir():
                (root / folder.name).mkdir()
                if folder.name not in OWN_FOLDERS:
                    mounted.append(_overlay(folder, directory / "layers", root / folder.name))
        (root / "tmp").chmod(0o1777)
        yield root
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "-l", str(place)], check=False)


def _overlay(lower: Path, layers: Path, place: Path) -> Path:
    upper, work = layers / f"{lower.name}-upper", layers / f"{lower.name}-work"
    for layer in (upper, work):
        layer.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(place)], check=True)
    return place


def folder_of(program: str) -> list[Path]:
    """Return the mount point that a program lives on, when it is not the root file system."""
    target = Path(program).resolve()
    for parent in [Path(program).parent, *target.parents]:
        if os.path.ismount(parent) and parent != Path("/"):
            return [parent]
    return []


def make_bundle(directory: Path, root: Path, memory_gib: int, python: str) -> Bundle:
    """Return a bundle on the overlay that asks for `memory_gib` of a card and sleeps."""
    directory.mkdir(parents=True)
    keep = ("PATH", "HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "LANG")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env |= {"VGPU_MEMORY": f"{memory_gib}Gi", "VGPU_CORES": "25"}
    bundle = Bundle(directory, default_spec(["sleep", "3600"], env))
    bundle.spec["root"]["path"] = str(root)
    for folder in folder_of(python):
        bundle.spec["mounts"].append(
            {
                "destination": str(folder),
                "type": "bind",
                "source": str(folder),
                "options": ["rbind", "ro"],
            }
        )
    bundle.write()
    return bundle


def card_processes_bytes() -> dict[int, int]:
    """Return host PID → bytes on card 0, the driver's own truth."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {process.pid: int(process.usedGpuMemory or 0) for process in processes}


def torch_rows(name: str, limit_bytes: int, seen: dict[str, Any], nvml_bytes: int) -> list[Row]:
    """Compare what PyTorch saw with the slice, and the driver's truth with the ceiling."""
    ceiling = limit_bytes + max(64 * MIB, limit_bytes // 100) + 8 * MIB
    total = gib(limit_bytes)
    within = f"<= {gib(ceiling)}"
    truth = within if nvml_bytes <= ceiling else f"{gib(nvml_bytes)}: ABOVE"
    return [
        Row(name, "torch.cuda.device_count", "1", str(seen["device_count"])),
        Row(name, "torch.cuda.mem_get_info total", total, gib(seen["mem_get_info_total"])),
        Row(name, "get_device_properties", total, gib(seen["properties_total_memory"])),
        Row(name, "at the limit", "OutOfMemoryError", str(seen.get("refused_by"))),
        Row(name, "goes on after freeing", "True", str(seen["works_after_freeing"])),
        Row(name, "NVML's sum while full", within, truth),
    ]


def smi_row(runtime: OciRuntime, name: str, limit_bytes: int) -> Row:
    """Compare nvidia-smi's total with the slice."""
    query = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    seen = runtime.exec(name, "nvidia-smi", *query).split()
    return Row(name, "nvidia-smi memory.total", f"{limit_bytes // MIB} MiB", f"{seen[0]} MiB")


def run(scratch: Path, python: str) -> tuple[list[Row], dict[str, Any]]:
    """Run both containers side by side; return the table and everything that was seen."""
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    with overlay_of_host(scratch) as root, Node(scratch / "node", None) as node:
        runtime = node.runtime()
        for name, memory_gib in SLICES.items():
            runtime.start_detached(make_bundle(scratch / name, root, memory_gib, python), name)
            rows.append(smi_row(runtime, name, memory_gib * GIB))
        raw["nvidia-smi"] = runtime.exec("one", "nvidia-smi")
        running = {}
        before = set(card_processes_bytes())
        for name in SLICES:
            argv = [str(runtime.binary), "--root", str(runtime.root), "exec", name, python]
            running[name] = subprocess.Popen(
                [*argv, "-c", TORCH_PROGRAM, "--wait"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        full = {name: json.loads(first_line(process)) for name, process in running.items()}
        used = {pid: size for pid, size in card_processes_bytes().items() if pid not in before}
        by_size = sorted(used.values())
        raw["nvml_bytes_while_full"] = by_size
        for (name, memory_gib), nvml_bytes in zip(SLICES.items(), by_size, strict=True):
            output, _ = running[name].communicate("\n", timeout=300)
            seen = {**full[name], **json.loads(output)}
            raw[name] = seen
            rows += torch_rows(name, memory_gib * GIB, seen, nvml_bytes)
        rows.append(refused_row(node, scratch, root, python))
        for name in SLICES:
            runtime.delete(name)
    return rows, raw


def first_line(process: "subprocess.Popen[str]") -> str:
    """Return the first line that a program prints; its end without one is an error."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the PyTorch program ended with {process.wait()} before its first line")
    return line


def refused_row(node: Node, scratch: Path, root: Path, python: str) -> Row:
    """Ask for more than the two slices leave free."""
    try:
        bundle = make_bundle(scratch / "three", root, 60, python)
        node.runtime().start_detached(bundle, "three")
    except RuntimeFailedError as error:
        print(f"   {error.stderr.strip().splitlines()[-1]}")
        return Row("three", "60 GiB more", "refused", "refused")
    return Row("three", "60 GiB more", "refused", "STARTED")


def main() -> int:
    """Run the job; return 1 if any line differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write everything seen as JSON")
    parser.add_argument("--torch-python", default=shutil.which("python3"), metavar="PATH")
    arguments = parser.parse_args()
    assert (BUILD / "libvgpu.so").exists(), "run `make hook` first"
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    print(pynvml.nvmlDeviceGetName(handle), "driver", pynvml.nvmlSystemGetDriverVersion())
    with tempfile.TemporaryDirectory(prefix="vgpu-", ignore_cleanup_errors=True) as name:
        rows, raw = run(Path(name), arguments.torch_python)
    print(f"\n{table(rows)}\n")
    if arguments.output:
        arguments.output.write_text(json.dumps(raw, indent=1) + "\n")
    differing = [row for row in rows if not row.holds]
    print(f"{len(rows) - len(differing)} passed, {len(differing)} failed")
    return 1 if differing or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
