# SPDX-License-Identifier: Apache-2.0
"""What CRI-O runs, without CRI-O: conmon creates, the runtime is called for the rest.

Source: CRI-O, internal/oci/runtime_oci.go, CreateContainer, StartContainer, ExecSyncContainer,
UpdateContainerStatus, StopContainer, DeleteContainer. conmon is the real one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.engines.base import SLEEP, Engine, EngineFailedError, Setup
from tests.testbed.finished import Finished
from tests.testbed.node import wait_until
from tests.testbed.oci import PATH, Bundle

SYNC_SECONDS = 60


class Conmon(Engine):
    """`conmon -r LAUNCHER --runtime-arg --root=ROOT`, then `LAUNCHER --root ROOT start`."""

    has_stdin = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._bundles: dict[str, Bundle] = {}
        self._root = setup.directory / "root"

    def open(self) -> None:
        for folder in ("exits", "persist", "sockets", "logs"):
            (self.setup.directory / folder).mkdir(parents=True, exist_ok=True)

    def version(self) -> str:
        done = subprocess.run(["conmon", "--version"], capture_output=True, text=True)
        return "conmon " + done.stdout.split()[2].rstrip(",")

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        assert stdin == "", "CRI-O attaches by a socket"
        binary = self.setup.low_level if plain else self.setup.launcher
        try:
            self._create(name, args, env, binary)
            self._command("start", name)
            status = self.wait(name)
        except EngineFailedError as error:
            return Finished(error.status, "", error.text)
        finally:
            log = self._log(name)
            self.remove(name)
        return Finished(status, log["stdout"], log["stderr"])

    def start(
        self, name: str, args: Sequence[str] = SLEEP, *, env: Mapping[str, str] | None = None
    ) -> None:
        self._create(name, args, env, self.setup.launcher)
        self._command("start", name)

    def exec(self, name: str, *args: str) -> str:
        process = {
            "args": list(args),
            "cwd": "/",
            "env": [PATH],
            "user": {"uid": 0, "gid": 0},
        }
        file = self.setup.directory / f"exec-process-{name}"
        file.write_text(json.dumps(process))
        return self._command("exec", "--process", str(file), name)

    def signal(self, name: str, signal: str) -> None:
        self._command("kill", name, signal)

    def wait(self, name: str) -> int:
        file = self.setup.directory / "exits" / name
        wait_until(file.exists, f"conmon writes the exit code of {name}", timeout_seconds=90)
        return int(file.read_text())

    def stop(self, name: str) -> None:
        self._command("kill", name, "KILL")
        self.wait(name)
        self._command("delete", "--force", name)

    def start_again(self, name: str) -> None:
        self._bundles[name].write()
        self._by_conmon(name, self.setup.launcher)
        self._command("start", name)

    def remove(self, name: str) -> None:
        if (self._root / name).is_dir():
            self._command("delete", "--force", name)
        bundle = self._bundles.pop(name, None)
        if bundle is not None:
            shutil.rmtree(bundle.directory)

    def names(self) -> list[str]:
        return list(self._bundles)

    def status(self, name: str) -> str:
        """Return the state that CRI-O reads at each refresh."""
        return str(json.loads(self._command("state", name))["status"])

    def _create(
        self, name: str, args: Sequence[str], env: Mapping[str, str] | None, binary: Path
    ) -> None:
        directory = self.setup.directory / "bundles" / name
        self._bundles[name] = Bundle.create(
            directory, self.setup.rootfs, args, env or {}, mounts=self.setup.mounts
        )
        self._by_conmon(name, binary)

    def _by_conmon(self, name: str, binary: Path) -> None:
        home = self.setup.directory
        (home / "exits" / name).unlink(missing_ok=True)
        (home / "logs" / name).unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        argv = [
            "conmon",
            *("-b", str(self._bundles[name].directory)),
            *("-c", name),
            *("--exit-dir", str(home / "exits")),
            *("-l", str(home / "logs" / name)),
            *("--log-level", "info"),
            *("-n", f"k8s_{name}"),
            *("-P", str(home / f"conmon-{name}.pid")),
            *("-p", str(home / f"{name}.pid")),
            *("--persist-dir", str(home / "persist")),
            *("-r", str(binary)),
            *("--runtime-arg", f"--root={self._root}"),
            *("--socket-dir-path", str(home / "sockets")),
            *("-u", name),
        ]
        environment = {"PATH": os.environ["PATH"], "_OCI_SYNCPIPE": str(write_end)}
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[write_end],
                env=environment,
                timeout=SYNC_SECONDS,
            )
        finally:
            os.close(write_end)
        with os.fdopen(read_end) as pipe:
            told = pipe.readline()
        if done.returncode != 0 or not told:
            raise EngineFailedError(argv, done.returncode, done.stderr.decode())
        answer = json.loads(told)
        if answer.get("pid", answer.get("data", -1)) <= 0:
            raise EngineFailedError(argv, 1, answer.get("message", ""))

    def _command(self, *words: str) -> str:
        argv = [str(self.setup.launcher), "--root", str(self._root), *words]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            # CRI-O passes on nothing but PATH.
            env={"PATH": os.environ["PATH"]},
        )
        if done.returncode != 0:
            raise EngineFailedError(argv, done.returncode, done.stderr)
        return done.stdout

    def _log(self, name: str) -> dict[str, str]:
        """Return what the container wrote; lines are "TIME STREAM F TEXT"."""
        written = {"stdout": "", "stderr": ""}
        file = self.setup.directory / "logs" / name
        if file.exists():
            for line in file.read_text().splitlines():
                _, stream, _, text = line.split(" ", 3)
                written[stream] += text + "\n"
        return written
