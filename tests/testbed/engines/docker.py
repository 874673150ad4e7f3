# SPDX-License-Identifier: Apache-2.0
"""Docker of any version: a private dockerd, and the client of the same release."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.docker import Docker
from tests.testbed.engines.base import COMMAND_SECONDS, IMAGE, SLEEP, Setup, env_options
from tests.testbed.engines.docker_commands import DockerCommands
from tests.testbed.finished import Finished


class DockerEngine(DockerCommands):
    """`docker run --runtime=vgpu`; `binaries` is where dockerd and its helpers were unpacked."""

    def __init__(self, setup: Setup, binaries: Path | None = None) -> None:
        super().__init__(setup)
        runtimes = {"vgpu": setup.launcher, "plain": setup.low_level}
        self.docker = Docker(setup.directory, runtimes, binaries=binaries)

    def open(self) -> None:
        self.docker.start()
        self.docker.import_image(self.setup.rootfs, IMAGE)

    def close(self) -> None:
        self.docker.remove_all()
        self.docker.stop()

    def prefix(self) -> list[str]:
        return ["docker"]

    def finish(self, *words: str, stdin: str = "", seconds: float = COMMAND_SECONDS) -> Finished:
        return self.docker.finish(*words, stdin=stdin, timeout_seconds=seconds)

    def version(self) -> str:
        return self.command("version", "--format", "{{.Server.Version}}").strip()

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        words = self._run_words(name, env, runtime="plain" if plain else "vgpu")
        return self.finish(*words, "-i", "--rm", IMAGE, *args, stdin=stdin)

    def start(
        self,
        name: str,
        args: Sequence[str] = SLEEP,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.command(*self._run_words(name, env), "-d", *options, IMAGE, *args)

    def _run_words(
        self, name: str, env: Mapping[str, str] | None, runtime: str = "vgpu"
    ) -> list[str]:
        volumes = [f"--volume={host}:{inside}" for host, inside in self.setup.mounts]
        variables = env_options("--env", env)
        return ["run", f"--name={name}", f"--runtime={runtime}", "--network=none"] + (
            volumes + variables
        )
