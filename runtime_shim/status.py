# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl status`: which versions are installed, which run, and who would notice a change."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from runtime_shim import __version__
from runtime_shim.answers import Answer, read_answers
from runtime_shim.config import Config
from runtime_shim.dependants import Dependant, dependants
from runtime_shim.errors import ConfigError, RuntimeShimError

LAUNCHER_NAME = "vgpu-container-runtime"
_CACHE_LOCK = Path("/var/lib/vgpu/cache/lock")
_NAMED = 5  # containers that one sentence lists


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--removable",
    is_flag=True,
    help="Only tell whether the runtime can be removed: exit status 1 and a sentence when a "
    "living container needs it.",
)
@click.pass_obj
def status(config: Config | ConfigError, as_json: bool, removable: bool) -> None:
    """Show versions, what runs on which, and what a restart would change."""
    if isinstance(config, ConfigError):  # a package must be removable all the same
        click.echo(f"Warning: {config}; the default paths are looked at", err=True)
        config = Config()
    try:
        containers = dependants(LAUNCHER_NAME, _answers(config))
    except (OSError, RuntimeShimError) as error:
        raise click.ClickException(f"cannot tell which containers live: {error}") from error
    if removable:
        if containers:
            raise click.ClickException(in_use(containers))
        return
    facts = {
        "installed": __version__,
        "library": library_version(config.paths.library),
        "agent": running_version(config.paths.state_dir / "lock", "vgpu-node-agent"),
        "scheduler_cache": running_version(_CACHE_LOCK, "vgpu-scheduler-cache"),
        "containers": [asdict(each) for each in containers],
    }
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines(facts, containers)))


def in_use(containers: Sequence[Dependant]) -> str:
    """Return the sentence that refuses a removal."""
    names = [each.container_id[:12] for each in containers]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    what = "1 container runs" if len(names) == 1 else f"{len(names)} containers run"
    return (
        f"{what} on {LAUNCHER_NAME} ({', '.join(names[:_NAMED])}{more}); stop and remove them "
        "first: without it their engine cannot end them"
    )


def lines(facts: Mapping[str, object], containers: Sequence[Dependant]) -> list[str]:
    """Return what a person reads."""
    installed = str(facts["installed"])
    library = str(facts["library"])
    shown = [f"installed             {installed}", f"library               {library or 'missing'}"]
    for name, label in (("agent", "vgpu-node-agent"), ("scheduler_cache", "vgpu-scheduler-cache")):
        version = facts[name]
        if version is None:
            shown.append(f"{label:<22}not running")
        elif version == installed:
            shown.append(f"{label:<22}{version}")
        else:
            shown.append(
                f"{label:<22}{version or 'unknown'}; `systemctl restart {label}` makes it "
                f"{installed}, no container notices"
            )
    if not containers:
        return [*shown, "no living container was started through vgpu-container-runtime"]
    for each in containers:
        name = each.container_id[:12]
        if not each.library_version:
            shown.append(f"container {name}  no library")
        elif each.library_version == library:
            shown.append(f"container {name}  library {library}")
        else:
            shown.append(
                f"container {name}  library {each.library_version}; a restart of the container "
                f"makes it {library}"
            )
    return shown


def library_version(library: Path) -> str:
    """Return the name of the folder in which the library lies; empty when there is none."""
    real = Path(os.path.realpath(library))
    return real.parent.name if real.is_file() else ""


def running_version(lock: Path, program: str) -> str | None:
    """Return the version of the process that holds `lock`: None when none does, or empty when the
    process is of a version that does not say.
    """
    try:
        pid, _, version = lock.read_text().strip().partition("\n")
        words = Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    if not any(os.path.basename(os.fsdecode(word)) == program for word in words):
        return None
    return version


def _answers(config: Config) -> Collection[Answer]:
    folder = config.paths.state_dir / "answers"
    try:
        return read_answers(folder)
    except FileNotFoundError:
        return []
