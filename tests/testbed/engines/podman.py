# SPDX-License-Identifier: Apache-2.0
"""Podman of any version with storage of its own; there is no daemon."""

import os
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.engines.base import IMAGE, SLEEP, Setup, env_options
from tests.testbed.engines.docker_commands import DockerCommands
from tests.testbed.finished import Finished


class Podman(DockerCommands):
    """`podman --runtime vgpu run`, as containers.conf names the runtime."""

    def __init__(self, setup: Setup, binaries: Path | None = None) -> None:
        super().__init__(setup)
        self._binaries = binaries
        self._runtime = "vgpu"

    def open(self) -> None:
        home = self.setup.directory
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        # Podman's own defaults are above what a root without CAP_SYS_RESOURCE may set.
        values = {name: min(1024, resource.getrlimit(kind)[0]) for name, kind in limits.items()}
        ulimits = ", ".join(f'"{name}={value}:{value}"' for name, value in values.items())
        lines = [
            "[containers]",
            f"default_ulimits = [{ulimits}]",
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "none"',
            "[engine.runtimes]",
            f'vgpu = ["{self.setup.launcher}"]',
            f'plain = ["{self.setup.low_level}"]',
        ]
        if self._binaries is not None:
            conmon = self._binaries / "usr/bin/conmon"
            helpers = self._binaries / "usr/lib/podman"
            lines[4:4] = [f'conmon_path = ["{conmon}"]', f'helper_binaries_dir = ["{helpers}"]']
        (home / "containers.conf").write_text("\n".join(lines) + "\n")
        (home / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        archive = home / "image.tar"
        subprocess.run(["tar", "-C", str(self.setup.rootfs), "-cf", str(archive), "."], check=True)
        self.command("import", "--quiet", str(archive), IMAGE)
        archive.unlink()

    def prefix(self) -> list[str]:
        home = self.setup.directory
        search = self.environment()["PATH"]
        program = shutil.which("podman", path=search)
        assert program is not None, "podman is not installed: run `make setup`"
        return [
            program,
            f"--root={home}/root",
            f"--runroot={home}/run",
            f"--tmpdir={home}/tmp",
            "--storage-driver=vfs",
            f"--runtime={self._runtime}",
        ]

    def environment(self) -> Mapping[str, str]:
        search = os.environ["PATH"] + ":/usr/sbin:/sbin"
        if self._binaries is not None:
            search = f"{self._binaries}/usr/bin:{search}"
        return {
            **os.environ,
            "PATH": search,
            "CONTAINERS_CONF": str(self.setup.directory / "containers.conf"),
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",  # version 5 says so on every command
        }

    def version(self) -> str:
        return self.command("version", "--format={{.Client.Version}}").strip()

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        self._runtime = "plain" if plain else "vgpu"
        try:
            words = self._run_words(name, env)
            return self.finish(*words, "--interactive", "--rm", IMAGE, *args, stdin=stdin)
        finally:
            self._runtime = "vgpu"

    def start(
        self,
        name: str,
        args: Sequence[str] = SLEEP,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.command(*self._run_words(name, env), "--detach", *options, IMAGE, *args)

    def remove(self, name: str) -> None:
        self.command("rm", "--force", "--time=0", name)

    def _run_words(self, name: str, env: Mapping[str, str] | None) -> list[str]:
        volumes = [f"--volume={host}:{inside}" for host, inside in self.setup.mounts]
        return ["run", f"--name={name}", "--network=none", *volumes, *env_options("--env", env)]
