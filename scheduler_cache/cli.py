# SPDX-License-Identifier: Apache-2.0
"""`vgpu-scheduler-cache`: the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from scheduler_cache import __version__, server
from scheduler_cache.config import CARD_POLICIES, DEFAULT_PATH, LOG_FORMATS, Config
from scheduler_cache.errors import SchedulerCacheError
from scheduler_cache.listen import checked_address
from scheduler_cache.log import configure_logging

Command = TypeVar("Command", bound=Callable[..., None])


def _settings(command: Command) -> Command:
    """Add the options that decide what would run."""
    for option in (
        click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Default: text."),
        click.option(
            "--card-policy",
            type=click.Choice(CARD_POLICIES),
            help="For requests that name none. Default: binpack.",
        ),
        click.option(
            "--listen",
            multiple=True,
            metavar="ADDRESS",
            help="unix:PATH, or HOST:PORT on loopback; may be repeated. "
            "Default: unix:/run/vgpu/cache.sock.",
        ),
        click.option(
            "--state",
            "state_dir",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Where the state is kept. Default: /var/lib/vgpu/cache.",
        ),
        click.option(
            "--tls-listen",
            "kubernetes_listen",
            multiple=True,
            metavar="HOST:PORT",
            help="For nodes, with TLS and certificates. Default: [::]:9400.",
        ),
        click.option(
            "--kubeconfig",
            "kubernetes_kubeconfig",
            metavar="FILE",
            help="Serve the cluster that this file leads to.",
        ),
        click.option(
            "--in-cluster",
            "kubernetes_in_cluster",
            is_flag=True,
            default=None,
            help="Serve the cluster in which this runs as a pod.",
        ),
        click.option(
            "--embedded",
            is_flag=True,
            default=None,
            help="Serve this host alone, without Kubernetes, with the state in SQLite.",
        ),
        click.option(
            "--config",
            "config_path",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="VGPU_SCHEDULER_CACHE_CONFIG",
            show_envvar=True,
            help=f"TOML configuration file. Default: {DEFAULT_PATH}, if it is there.",
        ),
    ):
        command = option(command)
    return command


def _config(config_path: Path | None, flags: dict[str, object]) -> Config:
    """Return the configuration with the given flags on top; listening addresses are checked."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        config = Config.load(config_path, given)
        for address in config.listen:
            checked_address(address)
    except SchedulerCacheError as error:
        raise click.ClickException(str(error)) from error
    return config


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Knows which container owns which slice of which card."""


@main.command()
@_settings
def serve(config_path: Path | None, **flags: object) -> None:
    """Serve until SIGTERM."""
    config = _config(config_path, flags)
    configure_logging(config.log_format)
    try:
        asyncio.run(server.serve(config) if config.embedded else _serve_cluster(config))
    except SchedulerCacheError as error:
        raise click.ClickException(str(error)) from error


def _serve_cluster(config: Config) -> Coroutine[None, None, None]:
    """Return the Kubernetes mode. It imports what the embedded mode does without."""
    if not (config.kubernetes.in_cluster or config.kubernetes.kubeconfig):
        raise click.UsageError("give --embedded, --in-cluster or --kubeconfig FILE")
    try:
        from scheduler_cache import cluster_server
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return cluster_server.serve(config)


def _missing(error: ModuleNotFoundError) -> click.ClickException:
    return click.ClickException(
        f"the Kubernetes mode needs the package {error.name}; it ships as a container image "
        "with everything in requirements-kube.txt"
    )


@main.command()
@_settings
def check_config(config_path: Path | None, **flags: object) -> None:
    """Check the configuration and print what would run."""
    click.echo(_config(config_path, flags))


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--kubeconfig", metavar="FILE", help="Default: the cluster in which this runs.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=240.0,
    show_default=True,
    help="How long to wait for all nodes.",
)
def roll_out(file: Path, kubeconfig: str | None, seconds: float) -> None:
    """Give a DaemonSet the template in FILE (JSON), and wait until every node runs it.

    With it the chart takes back what it did to nodes, before it is uninstalled.
    """
    try:
        item = json.loads(file.read_text())
        asyncio.run(_roll_out(item, kubeconfig, seconds))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    except SchedulerCacheError as error:
        raise click.ClickException(str(error)) from error


async def _roll_out(item: dict[str, Any], kubeconfig: str | None, seconds: float) -> None:
    try:
        from scheduler_cache.kube.client import KubeClient
        from scheduler_cache.kube.connection import InClusterConnection, KubeconfigConnection
        from scheduler_cache.kube.roll_out import roll_out
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    connection = KubeconfigConnection(Path(kubeconfig)) if kubeconfig else InClusterConnection()
    async with KubeClient(connection) as client:
        await roll_out(client, item, seconds=seconds, tell=click.echo)


if __name__ == "__main__":
    main(prog_name="vgpu-scheduler-cache")
