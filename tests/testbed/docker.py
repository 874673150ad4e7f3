# SPDX-License-Identifier: Apache-2.0
"""A private dockerd in a scratch directory; the host's own Docker is never touched."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.testbed.finished import Finished
from tests.testbed.node import wait_until

SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def find_dockerd() -> str | None:
    """Return dockerd's path, or None where Docker is not installed."""
    return shutil.which("dockerd", path=SEARCH)


class DockerFailedError(Exception):
    """A docker command ended with an exit code other than 0."""

    def __init__(self, words: Sequence[str], status: int, stderr: str) -> None:
        super().__init__(f"docker {' '.join(words)}: exit {status}: {stderr.strip()}")
        self.status = status
        self.stderr = stderr


class Docker:
    """dockerd with extra runtimes, no bridge and no iptables, and a client for it."""

    def __init__(
        self,
        directory: Path,
        runtimes: Mapping[str, Path],
        *,
        default: str | None = None,
        binaries: Path | None = None,
        own_processes: bool = False,
    ) -> None:
        """`binaries` is a root with usr/sbin/dockerd, usr/bin/docker and their helpers.

        `own_processes`: the host of `--pid=host` is dockerd with its containers, and no process of
        this machine. dockerd is its process 1, with a mount namespace of its own.
        """
        self.directory = directory
        folders = [] if binaries is None else [f"{binaries}/usr/sbin", f"{binaries}/usr/bin"]
        self._search = ":".join([*folders, SEARCH])
        self._runtimes = runtimes
        self._default = default
        self._own_processes = own_processes
        self._daemon: subprocess.Popen[bytes] | None = None
        # The socket's path must fit in 107 bytes, and pytest's directories may not.
        self.host = f"unix://{directory}/d.sock"

    def __enter__(self) -> "Docker":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._daemon is not None and self._daemon.poll() is None:
            self.remove_all()
        self.stop()
        self._unmount_everything()

    def start(self) -> None:
        """Start dockerd and wait for its first answer."""
        dockerd = shutil.which("dockerd", path=self._search)
        assert dockerd is not None, "dockerd is not installed: run `make test-engines`"
        self.directory.mkdir(parents=True, exist_ok=True)
        config: dict[str, object] = {
            "runtimes": {name: {"path": str(path)} for name, path in self._runtimes.items()}
        }
        if self._default is not None:
            config["default-runtime"] = self._default
        (self.directory / "daemon.json").write_text(json.dumps(config))
        alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        with (self.directory / "dockerd.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [
                    *(alone if self._own_processes else ()),
                    dockerd,
                    f"--config-file={self.directory}/daemon.json",
                    "--iptables=false",
                    "--ip6tables=false",
                    "--bridge=none",
                    f"--data-root={self.directory}/data",
                    f"--exec-root={self.directory}/exec",
                    f"--pidfile={self.directory}/pid",
                    f"--host={self.host}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": self._search},
            )
        wait_until(self._answers, "dockerd does not answer", timeout_seconds=60)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End dockerd with a signal."""
        if self._daemon is None:
            return
        if self._own_processes:
            # unshare itself ignores what it is to wait for.
            pid = self._daemon.pid
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                os.kill(int(child), how)
        else:
            self._daemon.send_signal(how)
        try:
            self._daemon.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon = None

    def command(self, *words: str, timeout_seconds: float = 90) -> str:
        """Run a docker command and return its stdout; raise `DockerFailedError` on failure."""
        done = self.finish(*words, timeout_seconds=timeout_seconds)
        if done.status != 0:
            raise DockerFailedError(words, done.status, done.stderr)
        return done.stdout

    def finish(self, *words: str, stdin: str = "", timeout_seconds: float = 90) -> Finished:
        """Run a docker command, whatever its exit code."""
        client = shutil.which("docker", path=self._search)
        assert client is not None, "docker is not installed: run `make setup`"
        done = subprocess.run(
            [client, "-H", self.host, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def import_image(self, rootfs: Path, name: str, *, changes: Sequence[str] = ()) -> None:
        """Make an image of a directory, with Dockerfile lines such as `ENV A=b`."""
        archive = self.directory / "image.tar"
        subprocess.run(["tar", "-C", str(rootfs), "-cf", str(archive), "."], check=True)
        options = [word for change in changes for word in ("--change", change)]
        self.command("import", *options, str(archive), name)
        archive.unlink()

    def remove_all(self) -> None:
        """Remove every container."""
        ids = self.command("ps", "-aq").split()
        if ids:
            self.command("rm", "--force", *ids)

    def _answers(self) -> bool:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            text = (self.directory / "dockerd.log").read_text()
            raise RuntimeError(f"dockerd ended with {self._daemon.returncode}: {text[-2000:]}")
        try:
            self.command("version", timeout_seconds=5)
        except (DockerFailedError, subprocess.TimeoutExpired):
            return False
        return True

    def _unmount_everything(self) -> None:
        prefix = str(self.directory.resolve())
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        for target in sorted((line.split()[4] for line in lines), reverse=True):
            if target.startswith(prefix):
                subprocess.run(["umount", "-l", target], check=False, capture_output=True)
