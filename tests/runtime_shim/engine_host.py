# SPDX-License-Identifier: Apache-2.0
"""A folder in the place of /etc, /var and /usr/bin, and `vgpuctl configure` for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from runtime_shim.cli import main


@dataclass
class Host:
    """A folder with engines' files, and vgpuctl for it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Host:
        """Return a host on which nothing is installed but a launcher."""
        host = cls(folder)
        host.write("bin/vgpu-container-runtime", "#!/bin/sh\n", 0o755)
        return host

    @property
    def launcher(self) -> Path:
        return self.folder / "bin/vgpu-container-runtime"

    @property
    def record(self) -> Path:
        return self.folder / "var/configure.json"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        path.chmod(mode)
        return path

    def configure(self, *words: str | Path) -> Result:
        arguments = ["configure", "--record", self.record, "--runtime", self.launcher, *words]
        # Whatever the agent's own file says, an engine can be configured and undone.
        return CliRunner().invoke(
            main, ["--config", str(self.folder / "no-agent.toml"), *map(str, arguments)]
        )

    def done(self, *words: str | Path) -> str:
        result = self.configure(*words)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *words: str | Path) -> str:
        result = self.configure(*words)
        assert result.exit_code == 1, result.output
        return result.output
