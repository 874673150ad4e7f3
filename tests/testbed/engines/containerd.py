# SPDX-License-Identifier: Apache-2.0
"""A private containerd of any version, and containers by `ctr run --runc-binary`."""

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.testbed.engines.base import (
    IMAGE,
    SLEEP,
    CommandEngine,
    Daemon,
    EngineFailedError,
    Setup,
    env_options,
)
from tests.testbed.finished import Finished
from tests.testbed.node import wait_until

# ctr loses what a program wrote last that ends before ctr has opened the pipes.
_LINGER = '"$@"; status=$?; sleep 2; exit $status'


class Containerd:
    """The daemon and its client; `binaries` is where a foreign version was unpacked."""

    def __init__(
        self,
        directory: Path,
        binaries: Path | None,
        handlers: Mapping[str, Path],
        *,
        snapshotter: str = "native",
        sandbox_image: str = IMAGE,
        base_specs: Mapping[str, Path] | None = None,
        cni: Path | None = None,
    ) -> None:
        """`base_specs`: by handler, the config.json that its containers' own are made from.

        `cni`: the folder of the network's configuration; without it pods are in the host's network.
        """
        self.directory = directory
        self._snapshotter = snapshotter
        self._sandbox_image = sandbox_image
        self._base_specs = base_specs or {}
        self._cni = cni
        self.address = directory / "c.sock"
        self._handlers = handlers
        search = os.environ["PATH"] + ":/usr/sbin:/sbin"
        if binaries is not None:
            search = f"{binaries}/usr/bin:{search}"
        self.environment = {**os.environ, "PATH": search}
        self._daemon: Daemon | None = None

    def start(self) -> None:
        """Start the daemon and wait for its first answer."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "config.toml"
        config.write_text(self._config())
        program = shutil.which("containerd", path=self.environment["PATH"])
        assert program is not None, "containerd is not installed: run `make setup`"
        self._daemon = Daemon(
            [program, "--config", str(config)],
            self.directory / "containerd.log",
            self.environment,
        )
        self._daemon.wait_until_it_answers([*self.ctr(), "version"], self.environment)

    def stop(self) -> None:
        """End the daemon."""
        if self._daemon is not None:
            self._daemon.stop()

    def runs(self) -> bool:
        """Return whether the daemon was started and has not ended."""
        return self._daemon is not None and self._daemon.runs()

    def kill(self) -> None:
        """End the daemon with SIGKILL; its containers run on."""
        if self._daemon is not None:
            self._daemon.kill()

    def ctr(self, namespace: str = "default") -> list[str]:
        """Return the words with which a client's command begins."""
        program = shutil.which("ctr", path=self.environment["PATH"])
        assert program is not None
        return [program, f"--address={self.address}", f"--namespace={namespace}"]

    def import_image(self, archive: Path, namespace: str) -> None:
        """Load an image's archive and unpack it."""
        words = [*self.ctr(namespace), "images", "import"]
        known = subprocess.run([*words, "--help"], capture_output=True, text=True, timeout=60)
        # From 2.1 on the daemon itself would import, for which a snapshotter must be configured.
        local = ["--local"] if "--local" in known.stdout else []
        done = subprocess.run(
            [*words, *local, f"--snapshotter={self._snapshotter}", str(archive)],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
        )
        if done.returncode != 0:
            raise EngineFailedError(words, done.returncode, done.stderr)

    def _config(self) -> str:
        """Return a configuration with a CRI handler for each runtime.

        Version 2 is read by containerd 1.6 to 2.x.
        """
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        lines = [
            "version = 2",
            f'root = "{self.directory}/root"',
            f'state = "{self.directory}/state"',
            f'[grpc]\naddress = "{self.address}"',
            # Else every scratch daemon of this host would share one folder.
            f'[plugins."io.containerd.internal.v1.opt"]\npath = "{self.directory}/opt"',
            f"[{cri}]",
            f'sandbox_image = "{self._sandbox_image}"',
            "restrict_oom_score_adj = true",
            "disable_apparmor = true",
            'stream_server_address = "127.0.0.1"\nstream_server_port = "0"',
        ]
        if self._cni is not None:
            lines += [f"[{cri}.cni]", 'bin_dir = "/usr/lib/cni"', f'conf_dir = "{self._cni}"']
        lines += [
            f"[{cri}.containerd]",
            f'snapshotter = "{self._snapshotter}"',
            'default_runtime_name = "plain"',
        ]
        for name, binary in self._handlers.items():
            lines += [
                f"[{cri}.containerd.runtimes.{name}]",
                'runtime_type = "io.containerd.runc.v2"',
                *(
                    [f'base_runtime_spec = "{self._base_specs[name]}"']
                    if name in self._base_specs
                    else []
                ),
                f"[{cri}.containerd.runtimes.{name}.options]",
                f'BinaryName = "{binary}"',
            ]
        return "\n".join(lines) + "\n"


class Ctr(CommandEngine):
    """containerd by `ctr`, which keeps a stopped container's record and nothing on the host."""

    keeps_stopped = False
    has_stdin = False  # its `run` never tells the program that the input has ended

    def __init__(self, setup: Setup, binaries: Path | None = None) -> None:
        super().__init__(setup)
        self.containerd = Containerd(setup.directory, binaries, {"plain": setup.low_level})
        self._exec_ids = itertools.count()

    def open(self) -> None:
        self.containerd.start()
        archive = docker_archive(self.setup.rootfs, self.setup.directory / "image.tar")
        self.containerd.import_image(archive, "default")

    def close(self) -> None:
        self.remove_all()
        self.containerd.stop()

    def prefix(self) -> list[str]:
        return self.containerd.ctr()

    def environment(self) -> Mapping[str, str]:
        return self.containerd.environment

    def version(self) -> str:
        lines = self.command("version").splitlines()
        return [line.split()[-1] for line in lines if "Version:" in line][-1]

    def run(
        self,
        name: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        plain: bool = False,
    ) -> Finished:
        words = [*self._run_words(name, env, plain), "--rm", IMAGE, name]
        if args[0] == "/bin/sh":
            args = ["/bin/sh", "-c", _LINGER, "sh", *args]
        done = self.finish(*words, *args, stdin=stdin)
        if name in self.names():  # --rm leaves what could not be started
            self.remove(name)
        return done

    def start(
        self,
        name: str,
        args: Sequence[str] = SLEEP,
        *,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.command(*self._run_words(name, env), "--detach", *options, IMAGE, name, *args)

    def exec(self, name: str, *args: str) -> str:
        """Run a program whose output goes to a file: ctr loses that of one that ends at once."""
        number = next(self._exec_ids)
        output = f"/tmp/.exec-{number}"
        script = f'"$@" >{output}'
        words = ["tasks", "exec", f"--exec-id=e{number}", name, "/bin/sh", "-c", script, "sh"]
        self.command(*words, *args)
        return Path(f"/proc/{self._pid(name)}/root{output}").read_text()

    def signal(self, name: str, signal: str) -> None:
        self.command("tasks", "kill", f"--signal=SIG{signal}", name)

    def run_and_signal(
        self, name: str, args: Sequence[str], ready: str, signal: str, *, env: Mapping[str, str]
    ) -> int:
        """Do so in the foreground: no other command of every version tells the exit code."""
        process = subprocess.Popen(
            [*self.prefix(), *self._run_words(name, env), "--rm", IMAGE, name, *args],
            stdin=subprocess.DEVNULL,
            env=self.environment(),
        )
        self.wait_for_file(name, ready)
        self.signal(name, signal)
        return process.wait(timeout=60)

    def stop(self, name: str) -> None:
        if self._status(name) == "RUNNING":
            self.signal(name, "KILL")
            wait_until(lambda: self._status(name) != "RUNNING", f"{name} ends", timeout_seconds=90)
            self.finish("tasks", "delete", name)
        elif self._status(name) != "":
            self.finish("tasks", "delete", "--force", name)

    def start_again(self, name: str) -> None:
        self.command("tasks", "start", "--detach", name)

    def remove(self, name: str) -> None:
        self.stop(name)
        self.command("containers", "delete", name)

    def names(self) -> list[str]:
        return self.command("containers", "list", "--quiet").split()

    def _status(self, name: str) -> str:
        return self._task(name)[-1]

    def _pid(self, name: str) -> str:
        return self._task(name)[1]

    def _task(self, name: str) -> list[str]:
        """Return name, PID and status; of what has no task, empty words."""
        lines = [line.split() for line in self.command("tasks", "list").splitlines()]
        return next((words for words in lines if words and words[0] == name), [name, "", ""])

    def _run_words(
        self, name: str, env: Mapping[str, str] | None, plain: bool = False
    ) -> list[str]:
        binary = self.setup.low_level if plain else self.setup.launcher
        mounts = [
            f"--mount=type=bind,src={host},dst={inside},options=rbind:rw"
            for host, inside in self.setup.mounts
        ]
        # Else containers of every containerd on this host would share state and cgroup by name.
        apart = [
            f"--runc-root={self.setup.directory}/runc",
            f"--cgroup=/{self.setup.directory.parent.name}/{name}",
        ]
        options = [f"--runc-binary={binary}", *apart, "--snapshotter=native", *mounts]
        return ["run", *options, *env_options("--env", env)]


def docker_archive(
    rootfs: Path, archive: Path, name: str = IMAGE, command: Sequence[str] = SLEEP
) -> Path:
    """Write an image as `docker save` does, with one layer and nothing of a registry."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(rootfs, arcname=".")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": list(command),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {"config.json": config, "manifest.json": manifest}
    with tarfile.open(archive, "w") as tar:
        for part, content in parts.items():
            file = archive.with_suffix(".part")
            file.write_text(json.dumps(content))
            tar.add(file, arcname=part)
            file.unlink()
        tar.add(layer, arcname="layer.tar")
    layer.unlink()
    return archive
