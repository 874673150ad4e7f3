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
    """Argument role → position."""


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
    for base, stream in versions.keys() - groups.keys():  # cuProfilerStart: its header is not shipped
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

BANNER = "/* SPDX-License-Identifier: Apache-2.0\n * Made by gen.py from api.tsv and prototypes.tsv. {what}\n */\n"


def fake_driver(symbols: dict[str, Symbol]) -> str:
    """Return the names that the simulated driver exports."""
    lines = [
        BANNER.format(
            what="Include it with one of these defined:\n"
            " *\n"
            " *   VGPU_CUDA_SYMBOL(symbol, version)         a symbol of libcuda.so.1, and the CUDA\n"
            " *                                             version that brought it\n"
            " *   VGPU_CUDA_ROW(base, version, flag, symbol) what cuGetProcAddress answers: the row of\n"
            " *                                             the base name with the highest version not\n"
            " *                                             above the one asked for; flag 2 (per-thread\n"
            " *                                             default stream) falls back to flag 0\n"
            " *   VGPU_NVML_SYMBOL(symbol)                  a symbol of libnvidia-ml.so.1"
        )
    ]
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


def outputs() -> dict[Path, str]:
    """Return the text of every generated file."""
    symbols = read_prototypes()
    return {HERE / "fake_driver.gen.h": fake_driver(symbols)}


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
            print(f"gen.py: {path.relative_to(HERE.parent)} is not what gen.py makes", file=sys.stderr)
            status = 1
        else:
            path.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
