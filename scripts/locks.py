# SPDX-License-Identifier: Apache-2.0
"""Compares the lock files with their inputs, without a network: `python -m scripts.locks`.

A lock must have every requirement of its inputs at a version that they allow, nothing that an input
no longer asks for, a hash for each package, and no address of an index. Whether it has what those
packages require in turn is found by pip, which installs nothing that has no hash.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS: Mapping[str, Sequence[str]] = {
    "requirements-dev.lock": ("requirements.txt", "requirements-kube.txt", "requirements-dev.txt"),
    "requirements-kube.lock": ("requirements.txt", "requirements-kube.txt"),
    "requirements.lock": ("requirements.txt",),
}
"""Each lock with its inputs. The tests run with the first, which has everything of the others."""

_PYTHONS = ("3.11", "3.12", "3.13")
_MACHINES = ("x86_64", "aarch64")
_INPUT = re.compile(r"^ +# +(?:via )?-r (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Locked:
    """One version of one package."""

    requirement: Requirement
    """NAME==VERSION, and in which environments."""
    inputs: frozenset[str]
    """The inputs that ask for it; empty when only other packages do."""
    hashes: int
    text: str
    """The lines of the lock, which pip reads."""

    @property
    def version(self) -> str:
        """The version; empty when the lock allows several."""
        found = re.fullmatch(r"==([^*,]+)", str(self.requirement.specifier))
        return found[1] if found else ""


def read_input(text: str) -> list[Requirement]:
    """Return the requirements of an input."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line]


def read_lock(text: str) -> list[Locked]:
    """Return the packages of a lock. Raises ValueError for anything that is no package."""
    # A package begins in the first column; its hashes and comments are indented.
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    packages = []
    for entry in entries:
        if not entry.strip() or entry.startswith("#"):
            continue
        first = entry.splitlines()[0].removesuffix("\\").strip()
        if first.startswith("-") or "://" in entry:
            raise ValueError(f"{first!r}: a lock holds packages alone, no option and no address")
        packages.append(
            Locked(
                requirement=Requirement(first),
                inputs=frozenset(_INPUT.findall(entry)),
                text=entry,
                hashes=len(
                    re.findall(r"^ +--hash=sha256:[0-9a-f]{64}( \\)?$", entry, re.MULTILINE)
                ),
            )
        )
    return packages


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the lock files in `folder`, a sentence each."""
    tested: dict[tuple[str, str], str] = {}
    for name, inputs in LOCKS.items():
        try:
            locked = read_lock((folder / name).read_text())
        except (OSError, ValueError) as error:
            yield f"{name}: {error}"
            continue
        for each in locked:
            if not each.version:
                yield f"{name}: {each.requirement} names no single version"
            if not each.hashes:
                yield f"{name}: {each.requirement} has no hash"
        wanted = {each: read_input((folder / each).read_text()) for each in inputs}
        yield from (f"{name}: {fault}" for fault in _left_over(locked, wanted))
        for label, environment in _environments():
            versions = _versions(locked, environment)
            for requirement in (each for part in wanted.values() for each in part):
                fault = _unsatisfied(requirement, versions, environment)
                if fault:
                    yield f"{name}: {fault} ({label})"
            for package, version in versions.items():
                other = tested.setdefault((label, package), version)
                if other != version:
                    yield f"{name}: {package} {version}, but the tests use {other} ({label})"


def _environments() -> Iterator[tuple[str, Mapping[str, str]]]:
    for python in _PYTHONS:
        for machine in _MACHINES:
            yield (
                f"Python {python}, {machine}",
                {
                    "python_version": python,
                    "python_full_version": f"{python}.0",
                    "implementation_version": f"{python}.0",
                    "platform_machine": machine,
                    "sys_platform": "linux",
                    "platform_system": "Linux",
                    "os_name": "posix",
                    "implementation_name": "cpython",
                    "platform_python_implementation": "CPython",
                },
            )


def _applies(requirement: Requirement, environment: Mapping[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))


def _versions(locked: Sequence[Locked], environment: Mapping[str, str]) -> dict[str, str]:
    return {
        canonicalize_name(each.requirement.name): each.version
        for each in locked
        if _applies(each.requirement, environment)
    }


def _unsatisfied(
    requirement: Requirement, versions: Mapping[str, str], environment: Mapping[str, str]
) -> str:
    """Return why the lock does not satisfy an input's requirement; empty when it does."""
    if not _applies(requirement, environment):
        return ""
    version = versions.get(canonicalize_name(requirement.name))
    if version is None:
        return f"{requirement} is missing"
    if version and version not in requirement.specifier:
        return f"{requirement} is not satisfied by {version}"
    return ""


def _left_over(
    locked: Sequence[Locked], wanted: Mapping[str, Sequence[Requirement]]
) -> Iterator[str]:
    names = {part: {canonicalize_name(r.name) for r in wanted[part]} for part in wanted}
    for each in locked:
        for part in sorted(each.inputs):
            if canonicalize_name(each.requirement.name) not in names.get(part, set()):
                yield f"{each.requirement} is no longer in {part}"


def main() -> int:
    """Print what is wrong."""
    found = list(faults(Path(__file__).parents[1]))
    for fault in found:
        print(f"locks: {fault}", file=sys.stderr)
    if found:
        print("locks: run `make lock`, read the difference, and commit it", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
