# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl node-install`: what the DaemonSet's pod does to its node before the agent starts.

Puts launcher and library below a prefix, lets the engine know the runtime, and restarts the engine
when it has to read its configuration again; `--undo` takes all of it back. It runs in the host's
mount namespace (host_namespace.py) and may be interrupted at any point: the next run does the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from runtime_shim.answers import Answer, read_answers
from runtime_shim.config import Config
from runtime_shim.configure.command import configure, record_option
from runtime_shim.configure.editor import EditError
from runtime_shim.configure.engines import APPLY, ENGINES
from runtime_shim.configure.record import Record
from runtime_shim.configure.text_file import read_text, remove_file, write_text
from runtime_shim.dependants import dependants, mounted_libraries
from runtime_shim.errors import RuntimeShimError
from runtime_shim.host_namespace import IMAGE_ROOT
from runtime_shim.node_files import NodeFilesError, launcher_in, place_files, remove_files
from runtime_shim.status import in_use, running_version

# An engine with thousands of containers takes a while to read them all.
_RESTART_SECONDS = 120.0
_NO_ENGINE = "none"
_AGENT = "vgpu-node-agent"
_RESTARTS: Mapping[str, str] = {name: APPLY[name] for name in ("containerd", "crio")}


@click.command("node-install")
@click.option(
    "--source",
    type=click.Path(file_okay=False, path_type=Path),
    default=IMAGE_ROOT / "usr",
    show_default=True,
    help="Prefix from which launcher and library are copied.",
)
@click.option(
    "--prefix",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/opt/vgpu"),
    show_default=True,
    help="Where they go on this host; writable, and not mounted noexec.",
)
@click.option(
    "--engine",
    type=click.Choice([*_RESTARTS, _NO_ENGINE]),
    default="containerd",
    show_default=True,
    help="The engine to configure; none: somebody else has given it the handler.",
)
@click.option(
    "--engine-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The engine's configuration file, where it is not in the usual place.",
)
@click.option(
    "--restart-command",
    default="",
    help="What lets the engine read it.  [default: systemctl restart ENGINE]",
)
@click.option(
    "--launcher-conf",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Put beside the launcher, which reads it before /etc/vgpu/runtime.conf.",
)
@record_option
@click.option("--undo", is_flag=True, help="Take everything back, the agent's state included.")
@click.option("--force", is_flag=True, help="With --undo: also while containers need it.")
@click.pass_obj
def node_install(
    config: Config,
    source: Path,
    prefix: Path,
    engine: str,
    engine_file: Path | None,
    restart_command: str,
    launcher_conf: Path | None,
    record_path: Path,
    undo: bool,
    force: bool,
) -> None:
    """Prepare this node for slices, or take that back.

    Doing it twice changes nothing and restarts nothing. --undo is refused while a living container
    was started through the runtime, since its engine needs the runtime to end it.
    """
    if force and not undo:
        raise click.UsageError("--force belongs to --undo")
    node = _Node(
        config=config,
        prefix=prefix,
        engine=None if engine == _NO_ENGINE else engine,
        restart=shlex.split(restart_command or _RESTARTS.get(engine, "")),
        record_path=record_path,
    )
    try:
        with node.alone():
            _check_no_other_installation(config.paths.state_dir / "lock")
            if undo:
                node.undo(force)
            else:
                node.install(source, engine_file, launcher_conf)
    except (RuntimeShimError, OSError) as error:
        raise click.ClickException(f"node-install: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Node:
    """What is to be changed, and how it is made to take effect."""

    config: Config
    prefix: Path
    engine: str | None
    restart: Sequence[str]
    record_path: Path

    def install(self, source: Path, engine_file: Path | None, launcher_conf: Path | None) -> None:
        self.config.paths.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        changed = place_files(source, self.prefix, launcher_conf)
        click.echo(f"{self.prefix}: {'installed' if changed else 'has this version already'}")
        if self.engine is None:
            return
        path = ENGINES[self.engine](engine_file).path
        with self._restarting(self.engine) as due:
            before = read_text(path)
            self._configure(self.engine, file=engine_file, runtime=launcher_in(self.prefix))
            due.wanted |= read_text(path) != before

    def undo(self, force: bool) -> None:
        containers = dependants(str(launcher_in(self.prefix)), self._answers())
        if containers and not force:
            raise NodeFilesError(in_use(containers))
        if self.engine is not None:
            with self._restarting(self.engine) as due:
                changes = Record(self.record_path).changes()
                if any(change.engine == self.engine for change in changes):
                    self._configure(self.engine, undo=True)
                    due.wanted = True
        kept = remove_files(self.prefix, set(mounted_libraries().values()))
        _remove_run_dir(self.config.paths.run_dir)
        shutil.rmtree(self.config.paths.state_dir, ignore_errors=True)
        with contextlib.suppress(OSError):  # the scheduler cache of this host has its own in it
            self.record_path.parent.rmdir()
        rest = f", but {', '.join(kept)}, which containers have mounted" if kept else ""
        click.echo(f"{self.prefix}: removed{rest}")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other run change this node meanwhile: of a pod that is just ending, say."""
        run_dir = self.config.paths.run_dir
        for folder in (run_dir, self.record_path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(run_dir / "node-install.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _restarting(self, engine: str) -> Iterator[_Due]:
        """Restart the engine afterwards if its file changed, now or in a run that was cut off.

        The mark is on the disk before anything changes: after a crash nothing else would tell that
        the engine has not read its file yet.
        """
        mark = self.record_path.with_name(f"restart-due-{engine}")
        due = _Due(wanted=mark.exists())
        write_text(mark, f"{shlex.join(self.restart)}\n")
        yield due
        if due.wanted:
            click.echo(f"{engine}: {shlex.join(self.restart)}")
            _run(self.restart)
        remove_file(mark, [])

    def _configure(
        self,
        engine: str,
        *,
        undo: bool = False,
        file: Path | None = None,
        runtime: Path | None = None,
    ) -> None:
        click.get_current_context().invoke(
            configure,
            engine=engine,
            make_default=False,
            dry_run=False,
            undo=undo,
            as_list=False,
            file=file,
            runtime=runtime,
            record_path=self.record_path,
        )

    def _answers(self) -> list[Answer]:
        try:
            return read_answers(self.config.paths.state_dir / "answers")
        except FileNotFoundError:
            return []


@dataclass
class _Due:
    """Whether the engine has to be restarted."""

    wanted: bool


def _check_no_other_installation(lock: Path) -> None:
    """Raise NodeFilesError while the Debian package's agent runs, whose files are the same."""
    if running_version(lock, _AGENT) is None:
        return
    pid = lock.read_text().partition("\n")[0]
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if not any(word.startswith(os.fsencode(f"{IMAGE_ROOT}/")) for word in words):
        raise NodeFilesError(
            f"a {_AGENT} of another installation runs on this node (process {pid}); leave the node "
            "to it (the chart's node.agent=host), or remove the package vgpu-runtime"
        )


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RESTART_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EditError(f"`{shlex.join(command)}` cannot be run: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        raise EditError(
            f"`{shlex.join(command)}` ended with {done.returncode}: {last}; the engine has not "
            "read its configuration, and the next run tries again"
        )


def _remove_run_dir(run_dir: Path) -> None:
    """Remove what the agent left: small file systems of containers that are gone, and its files."""
    for usage in run_dir.glob("containers/*/usage"):
        if usage.is_mount():
            subprocess.run(["umount", "--lazy", str(usage)], check=False)
    shutil.rmtree(run_dir, ignore_errors=True)
