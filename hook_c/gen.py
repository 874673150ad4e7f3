#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the hooks of libvgpu.so, and the name lists of the simulated driver, out of `api.tsv`.

`api.tsv` is the one table of the interposer, a line per base name: its class and the arguments
that matter. `prototypes.tsv` is what was read from NVIDIA's headers, a line per exported symbol:
types reduced to what the calling convention needs. Nothing here needs a header but `--header`.

    gen.py                      write the generated files
    gen.py --check              fail if a committed file differs from what would be written
    gen.py --header FILE ...    read cuda*.h and nvml.h of one CUDA release into prototypes.tsv;
                                fail with the list of new base names that api.tsv does not classify
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
API = HERE / "api.tsv"
PROTOTYPES = HERE / "prototypes.tsv"

SCALARS = {
    "char": "char",
    "signed char": "char",
    "unsigned char": "unsigned char",
    "short": "short",
    "unsigned short": "unsigned short",
    "int": "int",
    "signed int": "int",
    "unsigned int": "unsigned int",
    "unsigned": "unsigned int",
    "long": "long",
    "unsigned long": "unsigned long",
    "long long": "int64_t",
    "unsigned long long": "uint64_t",
    "float": "float",
    "double": "double",
    "size_t": "size_t",
    "uint32_t": "unsigned int",
    "uint64_t": "uint64_t",
    "void": "void",
}


@dataclass(frozen=True)
class Symbol:
    """One exported symbol of libcuda.so.1 or libnvidia-ml.so.1."""

    name: str
    base: str
    """What one asks cuGetProcAddress for; NVML's own base name for NVML."""
    version: int
    """The CUDA version from which cuGetProcAddress hands it out (12040 = 12.4); 0 for NVML."""
    stream: str
    """`ptsz` or `ptds` for the per-thread default stream's variant, else `-`."""
    result: str
    arguments: tuple[str, ...] | None
    """None where the types belong to another API (OpenGL, EGL, VDPAU)."""

    @property
    def is_nvml(self) -> bool:
        """Whether libnvidia-ml.so.1 exports it."""
        return self.name.startswith("nvml")

    def row(self) -> str:
        """Return the line of prototypes.tsv."""
        arguments = "?" if self.arguments is None else ", ".join(self.arguments) or "void"
        return "\t".join(
            (self.name, self.base, str(self.version), self.stream, self.result, arguments)
        )


@dataclass(frozen=True)
class Api:
    """One line of api.tsv."""

    base: str
    kind: str
    roles: dict[str, int]
    """Argument role → position; -1 is the last."""


def base_of(name: str) -> tuple[str, int, str]:
    """Split `cuMemcpyHtoD_v2_ptds` into (`cuMemcpyHtoD`, 2, `ptds`)."""
    match = re.fullmatch(r"(\w+?)(?:_v(\d+))?(?:_(ptsz|ptds))?", name)
    assert match is not None
    return match[1], int(match[2] or 1), match[3] or "-"


# Reading the two tables.


def lines_of(path: Path) -> Iterator[list[str]]:
    """Yield the fields of every line that is neither empty nor a comment."""
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def read_prototypes() -> dict[str, Symbol]:
    """Return every known symbol by name."""
    symbols = {}
    for name, base, version, stream, result, arguments in lines_of(PROTOTYPES):
        types = None if arguments == "?" else tuple(arguments.split(", "))
        symbols[name] = Symbol(
            name, base, int(version), stream, result, () if types == ("void",) else types
        )
    return symbols


def read_api() -> dict[str, Api]:
    """Return the classification by base name."""
    api = {}
    for base, kind, *rest in lines_of(API):
        roles = dict(role.split("=") for role in " ".join(rest).split())
        if base in api:
            raise SystemExit(f"api.tsv: {base} stands twice")
        api[base] = Api(base, kind, {role: int(position) for role, position in roles.items()})
    return api


# Reading headers.


class Types:
    """Reduces a header's types to what the calling convention needs."""

    def __init__(self, text: str) -> None:
        self._names: dict[str, str] = {}
        for match in re.finditer(r"typedef\s+([^;{}()]+?)([\s*]+)(\w+)(\[[^\]]*\])?\s*;", text):
            self._names.setdefault(match[3], f"{match[1]}{match[2]}".strip())
        for match in re.finditer(r"typedef\s+(enum|struct|union)\s*\w*\s*\{", text):
            name = re.match(r"[^;}]*?(\w+)\s*;", text[end_of_braces(text, match.end()) :])
            if name is not None:
                self._names[name[1]] = "int" if match[1] == "enum" else f"struct {name[1]}"
        for match in re.finditer(r"typedef\s+[\w\s*]+\(\s*(?:__stdcall\s*)?\*\s*(\w+)\s*\)", text):
            self._names[match[1]] = "void *"

    def reduce(self, declaration: str) -> str:
        """Return the reduced type of a parameter such as `const CUdeviceptr *dptr`."""
        declaration = re.sub(r"\s+", " ", declaration).strip()
        pointers = declaration.count("*") + declaration.count("[")
        words = re.sub(r"\[[^\]]*\]", "", declaration).replace("*", " ").split()
        is_const = "const" in words
        words = [word for word in words if word not in ("const", "volatile")]
        base = " ".join(words)
        if base not in SCALARS and len(words) > 1 and words[0] not in ("struct", "enum", "union"):
            base = " ".join(words[:-1])  # the last word is the parameter's name
        elif words[0] in ("struct", "enum", "union"):
            base = " ".join(words[:2])
        scalar, depth = self._resolve(base)
        depth += pointers
        if depth == 0:
            return scalar
        if scalar.startswith("struct ") or depth > 1:
            return "const void *" if is_const and depth == 1 else "void *" + "*" * (depth > 1)
        return f"{'const ' if is_const else ''}{scalar} *"

    def _resolve(self, name: str) -> tuple[str, int]:
        depth = 0
        for _ in range(16):
            if name in SCALARS:
                return SCALARS[name], depth
            if name.startswith("enum "):
                return "int", depth
            if name.startswith(("struct ", "union ")) or name not in self._names:
                return (name if name.startswith("struct ") else f"struct {name}"), depth
            target = self._names[name]
            depth += target.count("*")
            following = target.replace("*", "").replace("const", "").strip()
            if following == name:
                return f"struct {name}", depth
            name = following
        raise SystemExit(f"type {name} has no end")


def end_of_braces(text: str, start: int) -> int:
    """Return the position after the brace that closes the one before `start`."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[start], 0)
        start += 1
    return start


def preprocess(header: Path) -> str:
    """Return the header's text with every exported prototype, also those of old versions."""
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL"]
    command += ["-DNVML_NO_UNVERSIONED_FUNC_DEFS", f"-I{header.parent}", str(header)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    # cudaGL.h and its like include headers of other APIs; names are all that is needed of them.
    return run.stdout if run.returncode == 0 else header.read_text()


PROTOTYPE = re.compile(
    r"\b(CUresult|nvmlReturn_t|const char\s*\*)\s*(?:CUDAAPI\s+|__stdcall\s+|DECLDIR\s+)?"
    r"((?:cu|nvml)[A-Z]\w*)\s*\(([^(){};]*)\)\s*;"
)
TYPEDEF = re.compile(r"\*\s*PFN_(cu[A-Z]\w*?)_v(\d+)(?:_(ptsz|ptds))?\s*\)")


def read_headers(headers: Iterable[Path]) -> dict[str, Symbol]:
    """Return the symbols that the headers of one CUDA release declare."""
    found: dict[str, tuple[str, tuple[str, ...] | None]] = {}
    versions: dict[tuple[str, str], set[int]] = {}
    for header in headers:
        text = preprocess(header)
        is_foreign = "#define" in text
        types = Types(text)
        for match in PROTOTYPE.finditer(text):
            result = "int" if match[1] in ("CUresult", "nvmlReturn_t") else "const char *"
            arguments = [argument for argument in match[3].split(",") if argument.strip()]
            reduced = tuple(types.reduce(argument) for argument in arguments)
            known = None if is_foreign else () if reduced == ("void",) else reduced
            if "WGL" not in match[2]:
                found.setdefault(match[2], (result, known))
        for match in TYPEDEF.finditer(text):
            base, number, stream = match[1], int(match[2]), match[3] or "-"
            versions.setdefault((base, stream), set()).add(number)
    return dict(pair(found, versions))


def pair(
    found: dict[str, tuple[str, tuple[str, ...] | None]],
    versions: dict[tuple[str, str], set[int]],
) -> Iterator[tuple[str, Symbol]]:
    """Give every symbol the version of its typedef: both in ascending order, one to one."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in found:
        base, number, stream = base_of(name)
        groups.setdefault((base, stream), []).append((number, name))
    for base, stream in (
        versions.keys() - groups.keys()
    ):  # cuProfilerStart: its header is not shipped
        if not any(base == known for known, _ in groups):
            groups[base, stream] = [(1, base)]
            found[base] = ("int", None)
    for (base, stream), members in groups.items():
        known = sorted(versions.get((base, stream), ()))
        if base.startswith("nvml"):
            known = [0] * len(members)
        if len(known) != len(members):
            print(f"gen.py: {base} {stream}: {len(members)} symbols, typedefs {known}")
            known = ([known[0] if known else 2000] * len(members) + known)[-len(members) :]
        for (_, name), version in zip(sorted(members), known, strict=True):
            result, arguments = found[name]
            yield name, Symbol(name, base, version, stream, result, arguments)


GUESSES = (
    (r"Launch", "launch"),
    (r"Alloc|MemCreate|ArrayCreate", "an allocation"),
    (r"Free|Destroy|Release", "a free"),
    (r"Import|IpcOpen|External", "an import"),
    (r"Ctx.*Create|PrimaryCtx", "a context"),
    (r"RunningProcesses|MemoryInfo|MemGetInfo|TotalMem", "a report"),
)


def guess(base: str) -> str:
    """Return what a new name looks like, for the person who will classify it."""
    return next((word for pattern, word in GUESSES if re.search(pattern, base)), "pass")


def take_headers(headers: list[Path]) -> int:
    """Merge the headers into prototypes.tsv; return 1 if api.tsv lacks a base name."""
    symbols = read_prototypes() if PROTOTYPES.exists() else {}
    for name, symbol in read_headers(headers).items():
        old = symbols.get(name)
        if old is not None and old.arguments is not None and old.arguments != symbol.arguments:
            print(f"gen.py: {name}: arguments were {old.arguments}, are {symbol.arguments}")
        if old is None or old.arguments is None:
            symbols[name] = symbol
    text = "# SPDX-License-Identifier: Apache-2.0\n"
    text += "# Made by gen.py --header. Symbol, base name, version, stream, result, arguments.\n"
    text += "".join(f"{symbols[name].row()}\n" for name in sorted(symbols))
    PROTOTYPES.write_text(text)
    api = read_api()
    unknown = sorted({symbol.base for symbol in symbols.values()} - set(api))
    for base in unknown:
        print(f"api.tsv does not classify {base} (looks like {guess(base)})")
    return 1 if unknown else 0


# Writing.

BANNER = """\
/* SPDX-License-Identifier: Apache-2.0
 * Made by gen.py from api.tsv and prototypes.tsv. {what}
 */
"""
FAKE_DRIVER = """Include it with one of these defined:
 *
 *   VGPU_CUDA_SYMBOL(symbol, version)  a symbol of libcuda.so.1, and the CUDA version that
 *                                      brought it
 *   VGPU_CUDA_ROW(base, version, flag, symbol)
 *                                      what cuGetProcAddress answers: the row of the base name
 *                                      with the highest version not above the one asked for;
 *                                      flag 2 (per-thread default stream) falls back to flag 0
 *   VGPU_NVML_SYMBOL(symbol)           a symbol of libnvidia-ml.so.1"""


def fake_driver(symbols: dict[str, Symbol]) -> str:
    """Return the names that the simulated driver exports."""
    lines = [BANNER.format(what=FAKE_DRIVER)]
    ordered = [symbols[name] for name in sorted(symbols)]
    cuda = [symbol for symbol in ordered if not symbol.is_nvml]
    lines.append("#ifdef VGPU_CUDA_SYMBOL")
    lines += [f"VGPU_CUDA_SYMBOL({symbol.name}, {symbol.version})" for symbol in cuda]
    lines.append("#endif\n\n#ifdef VGPU_CUDA_ROW")
    for symbol in sorted(cuda, key=lambda s: (s.base, s.stream, s.version)):
        flag = 0 if symbol.stream == "-" else 2
        lines.append(f"VGPU_CUDA_ROW({symbol.base}, {symbol.version}, {flag}, {symbol.name})")
    lines.append("#endif\n\n#ifdef VGPU_NVML_SYMBOL")
    lines += [f"VGPU_NVML_SYMBOL({symbol.name})" for symbol in ordered if symbol.is_nvml]
    lines.append("#endif")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Kind:
    """How the functions of one class are hooked: what their stub does before and after the call.

    `{role}` stands for the argument with that role in api.tsv, `{number}` for the N of a name that
    ends in _vN, `{thread}` for whether it is the variant of per-thread default streams.
    """

    begin: str = ""
    end: str = "status"
    known: str = ""
    """When this is true, the library is loaded, and nothing is to do but for the compute limit."""
    passes: str = ""
    """Then true where there is a limit, and this launch is counted and may go at once."""
    instead: str = ""
    """What is called in the driver's place, and calls the driver itself."""


HOOKED = {
    "init": Kind("init_begin(&call)", "init_end(&call, status)"),
    "lookup": Kind(end="lookup_end(status, {out})"),
    "alloc": Kind(
        "alloc_begin(&call, {out}, {bytes})",
        "alloc_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "alloc.managed": Kind(
        "managed_begin(&call, {out}, {bytes}, {flags})",
        "alloc_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "alloc.pitch": Kind(
        "pitch_begin(&call, {out}, {pitch}, {width}, {height}, {element})",
        "pitch_end(&call, status, HOOK_VALUE(status, {out}), HOOK_VALUE(status, {pitch}), "
        "{height})",
    ),
    "alloc.async": Kind(
        "pool_alloc_begin(&call, {out}, {bytes}, {stream}, {thread})",
        "pool_alloc_end(&call, status, {out}, {bytes}, {stream}, {thread})",
    ),
    "alloc.pool": Kind(
        "pool_alloc_from_begin(&call, {out}, {bytes}, {pool}, {stream}, {thread})",
        "pool_alloc_end(&call, status, {out}, {bytes}, {stream}, {thread})",
    ),
    "pool.at": Kind("pool_at_begin({location}, {type})"),
    "pool.create": Kind(
        "pool_create_begin(&call, {out}, {properties})",
        "pool_create_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "pool.destroy": Kind("pool_destroy_begin(&call, {pool})", "pool_destroy_end(&call, status)"),
    "pool.select": Kind("pool_select_begin(&call)", "pool_select_end(&call, status)"),
    "pool.set": Kind(instead="pool_set_attribute({pool}, {attribute}, {value})"),
    "pool.get": Kind(end="pool_get_end(status, {pool}, {attribute}, {value})"),
    "pool.change": Kind("pools_begin(&call)", "pools_given_end(&call, status)"),
    "graph.alloc": Kind(
        "graph_node_begin(&call, GRAPH_PLACE({out}, {graph}, {dependencies}, {count}), "
        "{parameters})"
    ),
    "graph.node": Kind(
        "graph_any_node_begin(&call, GRAPH_PLACE({out}, {graph}, {dependencies}, {count}), "
        "{parameters})",
        "graph_any_node_end(status, HOOK_VALUE(status, {out}), {parameters})",
    ),
    "graph.instantiate": Kind(
        "graph_instantiate_begin(&call, {out}, {graph})",
        "graph_instantiate_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "graph.instantiate_with": Kind(
        "graph_with_begin(&call, {out}, {graph}, {parameters}, {thread})",
        "graph_with_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "graph.update": Kind(
        "graph_update_begin(&call, {instance}, {graph})", "graph_update_end(&call, status)"
    ),
    "graph.kernel": Kind(
        "graph_kernel_begin(&call, {instance}, {parameters})", "graph_kernel_end(&call, status)"
    ),
    "graph.node_set": Kind(
        "graph_node_set_begin(&call, {instance}, {parameters})", "graph_kernel_end(&call, status)"
    ),
    "graph.enable": Kind(
        "graph_enable_begin(&call, {instance}, {node})",
        "graph_enable_end(&call, status, {enabled})",
    ),
    "graph.destroy": Kind(end="graph_destroy_end(status, {instance})"),
    "graph.upload": Kind(
        "graph_upload_begin(&call, {instance}, {stream}, {thread})",
        "graph_launch_end(&call, status)",
    ),
    "graph.launch": Kind(
        "graph_launch_begin(&call, {instance}, {stream}, {thread})",
        "graph_launch_end(&call, status)",
    ),
    "launch": Kind(
        "launch_begin(&call, {function}, LAUNCH_SHAPE({gx}, {gy}, {gz}, {bx}, {by}, {bz}), "
        "{stream}, {thread})",
        "launch_end(&call, status)",
        "launch_is_known({function})",
        "gate_passes(launch_key({function}, LAUNCH_SHAPE({gx}, {gy}, {gz}, {bx}, {by}, {bz})), "
        "launch_stream({stream}, {thread}))",
    ),
    "launch.default": Kind(
        "launch_begin(&call, {function}, NULL, NULL, {thread})",
        "launch_end(&call, status)",
        "launch_is_known({function})",
        "gate_passes(launch_key({function}, NULL), launch_stream(NULL, {thread}))",
    ),
    "launch.stream": Kind(
        "launch_begin(&call, {function}, NULL, {stream}, {thread})",
        "launch_end(&call, status)",
        "launch_is_known({function})",
        "gate_passes(launch_key({function}, NULL), launch_stream({stream}, {thread}))",
    ),
    "launch.config": Kind(
        "launch_config_begin(&call, {config}, {function}, {thread})",
        "launch_end(&call, status)",
        "launch_is_known({function})",
        "launch_config_passes({config}, {function}, {thread})",
    ),
    "launch.many": Kind("launch_many_begin(&call, {list}, {count})"),
    "module.unload": Kind(end="local_unload_end(status)"),
    "context.limit": Kind(
        "context_limit_begin(&call, {limit}, {bytes})",
        "context_limit_end(&call, status, {limit}, {bytes})",
    ),
    "sync": Kind("event_sync_begin(&call)", "sync_end(&call, status)"),
    "sync.copy": Kind("copy_begin(&call)", "sync_end(&call, status)"),
    "sync.query": Kind("query_begin(&call)", "query_end(&call, status)"),
    "sync.host": Kind("hidden_wait_begin()", "hidden_wait_end(status)"),
    "sync.context": Kind("sync_begin(&call)", "context_sync_end(&call, status)"),
    "sync.stream": Kind("sync_begin(&call)", "stream_sync_end(&call, status, {stream}, {thread})"),
    "stream.destroy": Kind("stream_destroy_begin({stream})"),
    "capture.begin": Kind(
        "capture_begin_begin({stream}, {thread})", "capture_begin_end(status, {stream}, {thread})"
    ),
    "capture.end": Kind(end="capture_end_end(status, {stream}, {thread})"),
    "alloc.array": Kind(
        "array_begin(&call, {out}, {descriptor}, {number})",
        "array_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "alloc.array3d": Kind(
        "array3d_begin(&call, {out}, {descriptor}, {number})",
        "array_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "alloc.mipmap": Kind(
        "mipmap_begin(&call, {out}, {descriptor}, {levels})",
        "array_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "free.array": Kind(
        "array_free_begin(&call, (uint64_t)(uintptr_t){array})",
        "array_free_end(&call, status, (uint64_t)(uintptr_t){array})",
    ),
    "object.create": Kind(
        "object_create_begin(&call, {out}, {bytes}, {properties}, {flags})",
        "object_create_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "object.release": Kind(
        "object_release_begin(&call, {handle})", "object_release_end(&call, status)"
    ),
    "object.retain": Kind(
        end="object_retain_end(status, HOOK_VALUE(status, {out}), (uint64_t)(uintptr_t){address})"
    ),
    "object.map": Kind(
        "object_map_begin(&call, {address}, {bytes}, {handle})", "object_map_end(&call, status)"
    ),
    "object.unmap": Kind(
        "object_unmap_begin(&call, {address}, {bytes})",
        "object_unmap_end(&call, status, {address}, {bytes})",
    ),
    "object.map_array": Kind(
        "object_map_array_begin(&call, {list}, {count})",
        "object_map_array_end(&call, status, {list}, {count}, {stream}, {thread})",
    ),
    "free.async": Kind(
        "free_async_begin(&call, {pointer}, {stream}, {thread})",
        "free_async_end(&call, status, {stream}, {thread})",
    ),
    "free": Kind("free_begin(&call, {pointer})", "free_end(&call, status)"),
    "context.create": Kind(
        "context_create_begin(&call, {out}, {device})",
        "context_create_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "context.destroy": Kind(end="context_destroy_end(status, (uint64_t)(uintptr_t){context})"),
    "context.attach": Kind(end="context_attach_end(status, HOOK_VALUE(status, {out}))"),
    "context.detach": Kind(end="context_detach_end(status, (uint64_t)(uintptr_t){context})"),
    "context.retain": Kind(
        "primary_retain_begin(&call, {out}, {device})",
        "primary_retain_end(&call, status, HOOK_VALUE(status, {out}))",
    ),
    "context.release": Kind(end="primary_release_end(status, {device})"),
    "report.memory": Kind(end="memory_info_end(status, {free}, {total}, sizeof(*{free}))"),
    "report.total": Kind(end="total_memory_end(status, {total}, sizeof(*{total}), {device})"),
    "nvml.processes": Kind(
        "nvml_processes_begin(&call, {device}, {count})",
        "nvml_processes_end(&call, status, {device}, {count}, {list}, {number})",
    ),
    "nvml.no_processes": Kind(end="nvml_no_processes_end(status, {count})"),
    "nvml.details": Kind(
        "nvml_details_begin(&call, {device}, {details})",
        "nvml_details_end(&call, status, {device}, {details})",
    ),
    "nvml.samples": Kind(end="nvml_samples_end(status, {device}, {samples}, {count})"),
    "nvml.all_samples": Kind(end="nvml_all_samples_end(status, {device}, {samples})"),
    "nvml.rates": Kind(end="nvml_utilisation_end(status, {device}, {rates})"),
    "nvml.history": Kind(end="nvml_history_end(status, {device}, {type}, {count}, {samples})"),
    "nvml.set": Kind("nvml_set_begin()"),
    "nvml.attributes": Kind(end="nvml_attributes_end(status, {device}, {attributes}, {number})"),
    "nvml.memory": Kind(end="nvml_memory_end(status, {device}, {memory}, {number})"),
}
CALLED = "call"
"""Not hooked, but called by the hooks."""
NOTES = frozenset(
    "pass host import implicit transfer sync.later capture pool.other graph.other "
    "report.other checkpoint private nvml.host nvml.utilisation nvml.processes.other "
    "nvml.memory.other".split()
)
"""Left to the driver; what each means stands at the top of api.tsv."""


def argument_names(symbol: Symbol, api: Api) -> list[str]:
    """Return a name for every argument: its role, or `aN`."""
    assert symbol.arguments is not None
    count = len(symbol.arguments)
    by_position = {position % count: role for role, position in api.roles.items()}
    return [by_position.get(number, f"a{number}") for number in range(count)]


def declaration(name: str, types: Iterable[str], names: Iterable[str]) -> str:
    """Return `name(type a, type *b)`."""
    typed = (
        f"{kind}{'' if kind.endswith('*') else ' '}{argument}"
        for kind, argument in zip(types, names, strict=True)
    )
    return f"{name}({', '.join(typed) or 'void'})"


def hooks_header(symbols: list[Symbol]) -> str:
    """Return hooks.gen.h: every real entry point that libvgpu calls, by its symbol."""
    lines = [BANNER.format(what="The real entry points.")]
    lines.append("#ifndef VGPU_HOOKS_GEN_H\n#define VGPU_HOOKS_GEN_H\n")
    lines.append("#include <stddef.h>\n#include <stdint.h>\n\nstruct driver {")
    for symbol in symbols:
        assert symbol.arguments is not None
        lines.append(
            f"\t{symbol.result} (*{symbol.name})({', '.join(symbol.arguments) or 'void'});"
        )
    lines.append("};\n\n#endif")
    return "\n".join(lines) + "\n"


def stub(symbol: Symbol, api: Api) -> str:
    """Return the function that programs get instead of the driver's own."""
    assert symbol.arguments is not None
    kind = HOOKED[api.kind]
    names = argument_names(symbol, api)
    words = {role: role for role in api.roles}
    words["number"] = str(base_of(symbol.name)[1])
    words["thread"] = "false" if symbol.stream == "-" else "true"
    call = kind.instead.format(**words) or f"driver.{symbol.name}({', '.join(names)})"
    library, missing = ("DRIVER_CUDA", "CUDA_ERROR_NOT_FOUND")
    if symbol.is_nvml:
        library, missing = ("DRIVER_NVML", "NVML_ERROR_FUNCTION_NOT_FOUND")
    header = declaration(symbol.name, symbol.arguments, names)
    body = [f"\tHOOK_ENTER({symbol.name}, {library}, {missing});"]
    if kind.begin:
        if "&call" in kind.begin:
            body.append("\tstruct hook_call call;")
        body.append(f"\tint status = {kind.begin.format(**words)};\n")
        body.append(f"\tif (status != 0)\n\t\treturn status;\n\tstatus = {call};")
    else:
        body.append(f"\tint status = {call};\n")
    body.append(f"\treturn {kind.end.format(**words)};")
    prototype = f"EXPORT {symbol.result} {header}"
    text = ""
    if kind.known:
        # Functions of their own. The usual way is a jump: it saves no register, and touches no
        # argument on the stack.
        driver, asked, limited = (
            f"{way}{symbol.name}" for way in ("driver.", "asked_", "limited_")
        )
        passes, known = kind.passes.format(**words), kind.known.format(**words)
        jump = f"\n\treturn way({', '.join(names)});"
        text = inner(symbol, asked, names, body)
        body = [f"\tWAY({asked}) = {passes} ? {driver} : {asked};", jump]
        text += inner(symbol, limited, names, body)
        body = [f"\tWAY({asked}) = {asked};\n", f"\tif ({known})"]
        body += [f"\t\tway = launch_is_free() ? {driver} : {limited};", jump[1:]]
    return f"{text}{prototype};\n{prototype}\n{{\n" + "\n".join(body) + "\n}\n"


def inner(symbol: Symbol, name: str, names: list[str], body: list[str]) -> str:
    """Return a function of a stub's own that takes the same arguments."""
    assert symbol.arguments is not None
    header = declaration(name, symbol.arguments, names)
    return f"static NOINLINE {symbol.result} {header}\n{{\n" + "\n".join(body) + "\n}\n\n"


def hooks_source(symbols: list[Symbol], api: dict[str, Api]) -> str:
    """Return hooks.gen.c: a stub a symbol, and the table of them all."""
    lines = [BANNER.format(what="The hooks, and the table of names.")]
    lines.append('#include "hook_launch.h"\n#include "hook_local.h"\n')
    lines.append('#define EXPORT __attribute__((visibility("default")))')
    lines.append("#define NOINLINE __attribute__((noinline))")
    lines.append("#define WAY(function) __typeof__(&(function)) way\n")
    lines += [stub(symbol, api[symbol.base]) for symbol in symbols if is_hooked(symbol, api)]
    lines.append(
        "#define ROW(symbol, hook, library) {#symbol, (void **)&driver.symbol, hook, library}"
    )
    lines.append("const struct driver_name driver_names[] = {")
    for symbol in symbols:
        hook = f"(void *){symbol.name}" if is_hooked(symbol, api) else "NULL"
        library = "DRIVER_NVML" if symbol.is_nvml else "DRIVER_CUDA"
        lines.append(f"\tROW({symbol.name}, {hook}, {library}),")
    lines.append("};")
    lines.append(
        "const size_t driver_names_count = sizeof(driver_names) / sizeof(driver_names[0]);"
    )
    return "\n".join(lines) + "\n"


def is_hooked(symbol: Symbol, api: dict[str, Api]) -> bool:
    """Whether libvgpu stands between the program and this symbol."""
    return api[symbol.base].kind in HOOKED


def check_roles(symbol: Symbol, api: Api) -> None:
    """Refuse a line of api.tsv whose roles do not fit its class or its prototype."""
    kind = HOOKED[api.kind]
    code = kind.begin + kind.end + kind.instead + kind.known + kind.passes
    needed = set(re.findall(r"{(\w+)}", code)) - {"number", "thread"}
    if needed != set(api.roles):
        raise SystemExit(f"api.tsv: {api.base}: class {api.kind} has the roles {sorted(needed)}")
    if symbol.arguments is None or max(api.roles.values(), default=-1) >= len(symbol.arguments):
        raise SystemExit(f"api.tsv: {symbol.name} has not so many arguments")


def outputs() -> dict[Path, str]:
    """Return the text of every generated file."""
    symbols = read_prototypes()
    api = read_api()
    for line in api.values():
        if line.kind not in HOOKED and line.kind != CALLED and line.kind not in NOTES:
            # A misspelt class would leave its functions without a hook.
            raise SystemExit(f"api.tsv: {line.base}: there is no class {line.kind}")
    ours = []
    for name in sorted(symbols):
        symbol = symbols[name]
        if symbol.base not in api:
            continue
        if is_hooked(symbol, api):
            check_roles(symbol, api[symbol.base])
        if is_hooked(symbol, api) or api[symbol.base].kind == CALLED:
            ours.append(symbol)
    return {
        HERE / "fake_driver.gen.h": fake_driver(symbols),
        HERE / "src/hooks.gen.h": hooks_header(ours),
        HERE / "src/hooks.gen.c": hooks_source(ours, api),
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--header", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    status = take_headers(options.header) if options.header else 0
    for path, text in outputs().items():
        if path.exists() and path.read_text() == text:
            continue
        if options.check:
            print(
                f"gen.py: {path.relative_to(HERE.parent)} is not what gen.py makes", file=sys.stderr
            )
            status = 1
        else:
            path.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
