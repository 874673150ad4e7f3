# SPDX-License-Identifier: Apache-2.0
"""A launcher on paths of its own, and what it runs."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import BUILD

LAUNCHERS = {
    "release": BUILD / "vgpu-container-runtime",
    "sanitized": BUILD / "san" / "vgpu-container-runtime-asan",
}
# Engines map these to meanings of their own (another exit code, "not found").
FORBIDDEN = (
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "no such process",
    "container not running",
)
SENTENCE = re.compile(r"vgpu: container '[^']*' \([^)]*\): [^;]+; .+")


class Recorder:
    """A runtime that keeps what it was given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._record = Path(f"{path}.record")
        shutil.copy2(BUILD / "tests" / "launcher" / "recorder", path)
        self._record.mkdir()

    @property
    def ran(self) -> bool:
        return (self._record / "cmdline").exists()

    @property
    def argv(self) -> list[str]:
        return [os.fsdecode(word) for word in self._items("cmdline")]

    @property
    def environ(self) -> list[bytes]:
        return self._items("environ")

    @property
    def descriptors(self) -> dict[int, str]:
        lines = (self._record / "fds").read_text().splitlines()
        return {int(number): target for number, target in (line.split(" ", 1) for line in lines)}

    def _items(self, name: str) -> list[bytes]:
        return (self._record / name).read_bytes().split(b"\0")[:-1]


class Launcher:
    """A copy of the launcher whose configuration names two recorders and a socket."""

    def __init__(self, directory: Path, binary: Path) -> None:
        assert binary.exists(), f"{binary} is missing: run `make test`"
        self.path = directory / "vgpu-container-runtime"
        self.conf = Path(f"{self.path}.conf")
        self.socket = directory / "agent.sock"
        self.bundle = directory / "bundle"
        shutil.copy2(binary, self.path)
        self.low_level = Recorder(directory / "low-level")
        self.gpu = Recorder(directory / "gpu")
        self.bundle.mkdir()
        self.configure()

    def configure(self, **values: object) -> None:
        """Write the configuration, with short deadlines; a value of None leaves a key out."""
        keys: dict[str, object] = {
            "low_level_runtime": self.low_level.path,
            "gpu_runtime": self.gpu.path,
            "agent_socket": self.socket,
            "verdict_seconds": 2,
            "absent_seconds": 0.15,
            **values,
        }
        lines = [f"{key}={value}\n" for key, value in keys.items() if value is not None]
        self.conf.write_text("".join(lines))

    def write_spec(self, env: Sequence[str] = (), **rest: object) -> None:
        """Write a config.json as Go's writers do."""
        spec: dict[str, Any] = {"ociVersion": "1.0.2-dev", "process": {"env": list(env)}, **rest}
        (self.bundle / "config.json").write_text(json.dumps(spec, separators=(",", ":")))

    def run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command as an engine does."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [str(self.path), *words], capture_output=True, timeout=30, env=env, **options
        )

    def create(self, *globals_: str) -> subprocess.CompletedProcess[bytes]:
        """Create container `c1` from the bundle."""
        return self.run(*globals_, "create", "--bundle", str(self.bundle), "c1")


def refusal(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the one line with which a command was refused, having checked its form."""
    assert done.returncode == 1
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert not [words for words in FORBIDDEN if words in text.lower()]
    assert SENTENCE.fullmatch(text.rstrip("\n"))
    return text.rstrip("\n")


@pytest.fixture(params=sorted(LAUNCHERS))
def launcher(request: pytest.FixtureRequest, scratch: Path) -> Launcher:
    """Return a configured launcher with an empty bundle."""
    return Launcher(scratch, LAUNCHERS[request.param])
