# SPDX-License-Identifier: Apache-2.0
"""No engine at all: runc or crun commanded as containerd's shim and BuildKit command them."""

import os
import shutil
import signal as signals
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.engines.base import (
    SLEEP,
    Engine,
    EngineFailedError,
    Setup,
)
from tests.testbed.finished import Finished
from tests.testbed.node import cgroup_words
from tests.testbed.oci import Bundle, OciRuntime, RuntimeFailedError


class Runtime(Engine):
    """Bundles and a runtime of any version."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._options, self._prefix = cgroup_words(setup.low_level.name)
        self._bundles: dict[str, Bundle] = {}
        self._runtime = self._runtime_of(setup.launcher, "root")
        self._plain = self._runtime_of(setup.low_level, "plain")

    def open(self) -> None:
        """Do nothing: there is no daemon and no image."""

    def version(self) -> str:
        done = subprocess.run([self.setup.low_level, "--version"], capture_output=True, text=True)
        return done.stdout.splitlines()[0].split()[-1]

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        bundle = self._make(name, args, env)
        runtime = self._plain if plain else self._runtime
        done = subprocess.run(
            runtime.words("run", "--bundle", str(bundle.directory), name),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.remove(name)
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(
        self, name: str, args: Sequence[str] = SLEEP, *, env: Mapping[str, str] | None = None
    ) -> None:
        self._create(self._make(name, args, env), name)

    def exec(self, name: str, *args: str) -> str:
        try:
            return self._runtime.exec(name, *args)
        except RuntimeFailedError as error:
            raise EngineFailedError(args, error.status, error.stderr) from error

    def signal(self, name: str, signal: str) -> None:
        self._runtime.command("kill", name, signal)

    def run_and_signal(
        self, name: str, args: Sequence[str], ready: str, signal: str, *, env: Mapping[str, str]
    ) -> int:
        """Do so in the foreground, where runc and crun pass on the signals that they get."""
        bundle = self._make(name, args, env)
        process = subprocess.Popen(
            self._runtime.words("run", "--bundle", str(bundle.directory), name),
            stdin=subprocess.DEVNULL,
        )
        self.wait_for_file(name, ready)
        os.kill(process.pid, getattr(signals, f"SIG{signal}"))
        status = process.wait(timeout=60)
        self.remove(name)
        return status

    def stop(self, name: str) -> None:
        self._runtime.delete(name)

    def start_again(self, name: str) -> None:
        bundle = self._bundles[name]
        bundle.write()
        self._create(bundle, name)

    def remove(self, name: str) -> None:
        for runtime in (self._runtime, self._plain):
            if (runtime.root / name).is_dir():
                runtime.delete(name)
        bundle = self._bundles.pop(name, None)
        if bundle is not None:
            shutil.rmtree(bundle.directory)

    def names(self) -> list[str]:
        return list(self._bundles)

    def _make(self, name: str, args: Sequence[str], env: Mapping[str, str] | None) -> Bundle:
        directory = self.setup.directory / "bundles" / name
        bundle = Bundle.create(
            directory, self.setup.rootfs, args, env or {}, mounts=self.setup.mounts
        )
        self._bundles[name] = bundle
        return bundle

    def _create(self, bundle: Bundle, name: str) -> None:
        try:
            self._runtime.start_detached(bundle, name)
        except RuntimeFailedError as error:
            raise EngineFailedError(error.argv, error.status, error.stderr) from error

    def _runtime_of(self, binary: Path, root: str) -> OciRuntime:
        directory = self.setup.directory / root
        return OciRuntime(binary, directory, options=self._options, prefix=self._prefix)
