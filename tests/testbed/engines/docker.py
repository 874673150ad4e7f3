# SPDX-License-Identifier: Apache-2.0
"""Docker of any version: a private dockerd, and the client of the same release."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.docker import Docker, DockerFailedError
from tests.testbed.engines.base import (
    IMAGE,
    SLEEP,
    Engine,
    EngineFailedError,
    Setup,
    env_options,
)
from tests.testbed.finished import Finished


class DockerEngine(Engine):
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

    def version(self) -> str:
        return self.docker.command("version", "--format", "{{.Server.Version}}").strip()

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
        return self.docker.finish(*words, "-i", "--rm", IMAGE, *args, stdin=stdin)

    def start(
        self,
        name: str,
        args: Sequence[str] = SLEEP,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._command(*self._run_words(name, env), "-d", *options, IMAGE, *args)

    def exec(self, name: str, *args: str) -> str:
        return self._command("exec", name, *args)

    def signal(self, name: str, signal: str) -> None:
        self._command("kill", f"--signal={signal}", name)

    def wait(self, name: str) -> int:
        return int(self._command("wait", name))

    def stop(self, name: str) -> None:
        self._command("stop", "--time=0", name)

    def start_again(self, name: str) -> None:
        self._command("start", name)

    def restart(self, name: str) -> None:
        self._command("restart", "--time=0", name)

    def remove(self, name: str) -> None:
        self._command("rm", "--force", name)

    def names(self) -> list[str]:
        return self._command("ps", "--all", "--format={{.Names}}").split()

    def _run_words(
        self, name: str, env: Mapping[str, str] | None, runtime: str = "vgpu"
    ) -> list[str]:
        volumes = [f"--volume={host}:{inside}" for host, inside in self.setup.mounts]
        variables = env_options("--env", env)
        return ["run", f"--name={name}", f"--runtime={runtime}", "--network=none"] + (
            volumes + variables
        )

    def _command(self, *words: str) -> str:
        try:
            return self.docker.command(*words)
        except DockerFailedError as error:
            raise EngineFailedError(words, error.status, error.stderr) from error
