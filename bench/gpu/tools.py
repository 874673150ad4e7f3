# SPDX-License-Identifier: Apache-2.0
"""Table: one run each of frameworks and tools in a container with a slice."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

from bench.gpu.costs import PROGRAMS
from bench.gpu.places import TOOLS, Place, tool
from bench.gpu.table import Table, mib

CUPY = """
import cupy
for name, pool in (("default", cupy.cuda.MemoryPool()), ("async", cupy.cuda.MemoryAsyncPool())):
    cupy.cuda.set_allocator(pool.malloc)
    x = cupy.arange(1 << 20, dtype=cupy.float64)
    assert float((x + x).sum()) == float((1 << 20) * ((1 << 20) - 1))
    held, refused = [], "nothing"
    try:
        while len(held) < 4 * LIMIT_MIB // 256:
            held.append(cupy.empty(256 << 20, dtype=cupy.uint8))
    except Exception as error:
        refused = type(error).__name__
    granted = len(held) * 256
    del x; held.clear(); pool.free_all_blocks(); cupy.cuda.Device().synchronize()
    y = cupy.ones(1 << 28, dtype=cupy.uint8)
    assert int(y[-1]) == 1
    del y
    print(f"{name} pool: {granted} MiB, then {refused}")
    assert refused == "OutOfMemoryError", refused
"""
JAX = """
import jax, jax.numpy as jnp
x = jnp.ones((2048, 2048)); y = jax.jit(lambda a: a @ a)(x).block_until_ready()
assert float(y[0, 0]) == 2048
try:
    held = [jnp.ones(1 << 26).block_until_ready() for _ in range(LIMIT_MIB // 64)]
    print("nothing refused")
    raise SystemExit(1)
except Exception as error:
    assert "RESOURCE_EXHAUSTED" in str(error), error
    print(f"{type(error).__name__}: {str(error).splitlines()[0][:60]}")
"""
TRITON = """
import torch
torch.cuda.init()
import triton, triton.language as tl
@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)
x = torch.rand(1 << 24, device="cuda"); y = torch.rand_like(x); z = torch.empty_like(x)
add[(triton.cdiv(x.numel(), 1024),)](x, y, z, x.numel(), BLOCK=1024)
assert torch.equal(z, x + y)
try:
    torch.empty(LIMIT_MIB << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("right sum;", type(error).__name__, "at the limit")
"""
DEBUGGER = ["--batch", "-ex", "run", "--args"]


def table_tools(place: Place, limit_bytes: int, scratch: Path) -> Table:
    """Run everything once."""
    table = Table(
        "tools",
        f"Frameworks and tools, one run each, limit {mib(limit_bytes)} MiB",
        ("what", "exit", "seconds", "said last"),
    )
    limit_mib = mib(limit_bytes)
    fill = [str(PROGRAMS / "fill"), str(2 * limit_mib)]
    commands: dict[str, list[str]] = {"fill, by itself": fill}
    for name, text in (("CuPy pools", CUPY), ("JAX", JAX), ("Triton", TRITON)):
        program = scratch / f"{name.split()[0].lower()}_run.py"
        program.write_text(textwrap.dedent(text).replace("LIMIT_MIB", str(limit_mib)))
        commands[name] = [sys.executable, str(program)]
    for name, options in zip(TOOLS, ([], DEBUGGER), strict=True):
        found = tool(name)
        if found is not None:
            commands[name] = [found, *options, *fill]
        else:
            table.notes.append(f"{name}: not on this machine")
    for name, command in commands.items():
        begun = time.monotonic()
        status, output = _run(place, command)
        seconds = time.monotonic() - begun
        table.raw[name] = output[-2000:]
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        right = status == 0
        if command[-2:] == fill:
            # Granted something, refused with 2, freed; whatever a tool prints around it.
            (said,) = [line for line in lines if line.endswith(" 2 0")][-1:] or [""]
            right = right and said != ""
        else:
            said = "; ".join(line[:90] for line in lines[-2:])
        table.rows.append([name, status, round(seconds, 1), said or " ".join(lines[-3:])[-200:]])
        table.check(f"{name} under the limit", "works", said or "fails", holds=right)
    return table


def _run(place: Place, command: list[str]) -> tuple[int, str]:
    process = place.start(command, stderr=subprocess.STDOUT)
    try:
        output, _ = process.communicate("", timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        return 124, output + "\nno end within 90 s"
    return process.returncode, output
