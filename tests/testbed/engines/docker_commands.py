# SPDX-License-Identifier: Apache-2.0
"""The commands that Podman took over from Docker, word for word."""

from tests.testbed.engines.base import CommandEngine


class DockerCommands(CommandEngine):
    """An engine whose command line is Docker's."""

    def exec(self, name: str, *args: str) -> str:
        return self.command("exec", name, *args)

    def signal(self, name: str, signal: str) -> None:
        self.command("kill", f"--signal={signal}", name)

    def wait(self, name: str) -> int:
        return int(self.command("wait", name))

    def stop(self, name: str) -> None:
        self.command("stop", "--time=0", name)

    def start_again(self, name: str) -> None:
        self.command("start", name)

    def restart(self, name: str) -> None:
        self.command("restart", "--time=0", name)

    def remove(self, name: str) -> None:
        self.command("rm", "--force", name)

    def names(self) -> list[str]:
        return self.command("ps", "--all", "--format={{.Names}}").split()
