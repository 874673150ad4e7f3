# SPDX-License-Identifier: Apache-2.0
"""What every engine can do for a user, and the operations' one meaning."""

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.finished import Finished
from tests.testbed.node import wait_until

IMAGE = "docker.io/library/vgpu-test:1"
SLEEP = ("sleep", "600")
COMMAND_SECONDS = 120


class EngineFailedError(Exception):
    """An engine's command ended with an exit code other than 0; `text` is what its user reads."""

    def __init__(self, words: Sequence[str], status: int, text: str) -> None:
        super().__init__(f"{' '.join(words)}: exit {status}: {text.strip()}")
        self.status = status
        self.text = text


@dataclass(frozen=True)
class Setup:
    """What an engine starts its containers with."""

    directory: Path
    launcher: Path
    low_level: Path
    """The runtime below the launcher; also what a container without us is started with."""
    rootfs: Path
    mounts: Sequence[tuple[Path, str]]
    """Bound into every container: (path of the host, path inside)."""


class Engine(ABC):
    """Containers by name. Every operation raises `EngineFailedError` with the engine's own text."""

    keeps_stopped = True
    """A stopped container is still one, which can be started again."""
    has_stdin = True
    """What `run` is given reaches the program, and its end too."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        setup.directory.mkdir(parents=True, exist_ok=True)

    def shut(self) -> None:
        """Close the engine, as far as it was opened, and leave nothing mounted."""
        try:
            self.close()
        finally:
            unmount_below(self.setup.directory)

    @abstractmethod
    def open(self) -> None:
        """Start the daemon, if there is one, and load the image."""

    def close(self) -> None:
        """Remove every container and end the daemon."""
        self.remove_all()

    @abstractmethod
    def version(self) -> str:
        """Return the engine's version as it says it itself."""

    @abstractmethod
    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        """Run a container to its end and remove it; with `plain` by the runtime below ours.

        Returns also when the container could not be started: the status is the engine's.
        """

    @abstractmethod
    def start(
        self, name: str, args: Sequence[str] = SLEEP, *, env: Mapping[str, str] | None = None
    ) -> None:
        """Start a container and leave it running."""

    @abstractmethod
    def exec(self, name: str, *args: str) -> str:
        """Run a program in a running container and return its stdout."""

    @abstractmethod
    def signal(self, name: str, signal: str) -> None:
        """Send a container's init a signal, `USR1`."""

    def wait(self, name: str) -> int:
        """Return the exit code of a container's init once it has ended."""
        raise NotImplementedError(f"{type(self).__name__} tells it only to who runs in front of it")

    @abstractmethod
    def stop(self, name: str) -> None:
        """Stop a running container, as far as the engine keeps one that is stopped."""

    @abstractmethod
    def start_again(self, name: str) -> None:
        """Start a container that was stopped."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a container, running or not."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the containers that the engine knows."""

    def run_and_signal(
        self, name: str, args: Sequence[str], ready: str, signal: str, *, env: Mapping[str, str]
    ) -> int:
        """Start a program, signal it once the file `ready` is there, and return its exit code."""
        self.start(name, args, env=env)
        self.wait_for_file(name, ready)
        self.signal(name, signal)
        return self.wait(name)

    def wait_for_file(self, name: str, path: str) -> None:
        """Return once a running container has a file."""

        def is_there() -> bool:
            try:
                self.exec(name, "/bin/ls", path)
            except EngineFailedError:
                return False
            return True

        wait_until(is_there, f"{name} makes {path}", timeout_seconds=90)

    def restart(self, name: str) -> None:
        """Stop a container and start it again."""
        self.stop(name)
        self.start_again(name)

    def remove_all(self) -> None:
        """Remove every container."""
        for name in self.names():
            self.remove(name)


class CommandEngine(Engine):
    """An engine with a command line: `prefix` and the environment of every command."""

    def prefix(self) -> list[str]:
        """Return the words with which every command begins."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str] | None:
        """Return the commands' environment; None is this process's own."""
        return None

    def finish(self, *words: str, stdin: str = "", seconds: float = COMMAND_SECONDS) -> Finished:
        """Run a command, whatever its exit code."""
        done = subprocess.run(
            [*self.prefix(), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment(),
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def command(self, *words: str, seconds: float = COMMAND_SECONDS) -> str:
        """Run a command and return its stdout."""
        done = self.finish(*words, seconds=seconds)
        if done.status != 0:
            raise EngineFailedError([*self.prefix(), *words], done.status, done.stderr)
        return done.stdout


class Daemon:
    """A process of an engine, with its log."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=env,
            )

    def wait_until_it_answers(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Return once `command` succeeds."""

        def answers() -> bool:
            if self._process.poll() is not None:
                text = self.log.read_text(errors="replace")
                raise RuntimeError(f"{command[0]} ended: {text[-2000:]}")
            try:
                done = subprocess.run(command, capture_output=True, timeout=10, env=env)
            except subprocess.TimeoutExpired:
                return False
            return done.returncode == 0

        wait_until(answers, f"{' '.join(command)} does not answer", timeout_seconds=90, step=0.2)

    def runs(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it, by force if it has not ended after a while."""
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def env_options(option: str, env: Mapping[str, str] | None) -> list[str]:
    """Return `option NAME=VALUE` for each variable."""
    return [word for name, value in (env or {}).items() for word in (option, f"{name}={value}")]


def unmount_below(directory: Path) -> None:
    """Unmount what is mounted below a directory, the deepest first."""
    prefix = f"{directory.resolve()}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = [line.split()[4] for line in lines]
    for target in sorted((m for m in mounted if m.startswith(prefix)), reverse=True):
        subprocess.run(["umount", "-l", target], check=False, capture_output=True)
