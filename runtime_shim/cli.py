# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl`: what a person asks a node. Reads the agent's files; `configure` alone changes any.

Exit code 0: done; 1: a finding or a failure; 2: wrong usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim import __version__
from runtime_shim.abi import constants
from runtime_shim.answers import Answer, read_answers
from runtime_shim.cluster_cli import nodes, resolve
from runtime_shim.config import DEFAULT_PATH, Config, load_config
from runtime_shim.configure.command import configure
from runtime_shim.doctor.command import doctor
from runtime_shim.errors import ConfigError, RefusedError, RuntimeShimError
from runtime_shim.inventory import CardFacts, PyNvml
from runtime_shim.node_install import node_install
from runtime_shim.region import read_overhead, read_usage
from runtime_shim.request import parse_request
from runtime_shim.status import status
from runtime_shim.table import human_bytes, table_lines
from runtime_shim.top import show_top

_ANSWERS = "answers"
_CONTAINERS = "containers"
_JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
@click.version_option(__version__)
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_PATH,
    envvar="VGPU_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The node agent's configuration.",
)
@click.pass_context
def main(context: click.Context, config_path: Path) -> None:
    """Look at the slices of this node."""
    # Without the file the agent runs on its defaults, and so does this.
    try:
        missing = config_path == DEFAULT_PATH and not config_path.exists()
        context.obj = Config() if missing else load_config(config_path)
    except ConfigError as error:
        # An engine must be undone, and a node examined, whatever the agent's file says.
        if context.invoked_subcommand not in ("configure", "doctor", "status"):
            raise click.ClickException(str(error)) from error
        context.obj = error


main.add_command(configure)
main.add_command(nodes)
main.add_command(resolve)
main.add_command(doctor)
main.add_command(status)
main.add_command(node_install)


@main.command()
@_JSON_OPTION
@click.pass_obj
def ps(config: Config, as_json: bool) -> None:
    """List the containers that hold a slice."""
    try:
        answers = _answers(config)
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error
    answers.sort(key=lambda answer: (answer.container_id, answer.allocation_id))
    rows = [row for answer in answers for row in _rows(config, answer)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("no container holds a slice")
        return
    _print_table(
        ("CONTAINER", "CARD", "MEMORY", "USED", "CORES", "STATE"),
        [
            (
                str(row["container_id"])[:12],
                str(row["card_uuid"]),
                human_bytes(row["memory_bytes"]),
                human_bytes(row["used_bytes"]),
                f"{row['cores_percent']}%",
                str(row["state"]),
            )
            for row in rows
        ],
    )


@main.command()
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option(
    "--interval",
    "seconds",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="Also the processes on the cards: name, processor time, memory of the host.",
)
@_JSON_OPTION
@click.pass_obj
def top(config: Config, once: bool, seconds: float, processes: bool, as_json: bool) -> None:
    """Show what containers use of their slices, renewed until interrupted."""
    try:
        show_top(config, once=once, as_json=as_json, seconds=seconds, processes=processes)
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@_JSON_OPTION
@click.pass_obj
def cards(config: Config, as_json: bool) -> None:
    """List the cards of this node and what containers hold of them."""
    try:
        found = PyNvml(config.driver.nvml_library).cards()
        answers = _answers(config)
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error
    rows = [_card_row(card, answers) for card in found]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("NVML lists no card")
        return
    _print_table(
        ("CARD", "MODEL", "MEMORY", "FREE", "SLICES"),
        [
            (
                str(row["uuid"]),
                str(row["model"]),
                human_bytes(row["memory_bytes"]),
                human_bytes(row["free_bytes"]),
                str(row["slices"]),
            )
            for row in rows
        ],
    )


@main.command()
@click.argument("subject", metavar="SUBJECT|VGPU_NAME=VALUE...", nargs=-1, required=True)
@_JSON_OPTION
@click.pass_obj
def explain(config: Config, subject: Sequence[str], as_json: bool) -> None:
    """Say what a card or node holds, who owns an allocation, why a pod or request finds no room.

    \b
    vgpuctl explain GPU-5f2a…              a card, or an allocation's UUID
    vgpuctl explain node/NAME
    vgpuctl explain pod/NAMESPACE/NAME
    vgpuctl explain VGPU_MEMORY=8Gi VGPU_CORES=50
    """  # noqa: D301 - click wants the character itself
    # Imports gRPC, which the other commands do without: a tenth of a second.
    from runtime_shim.cache_client import explain as ask_cache

    try:
        lines = ask_cache(config.cache, _explain_request(subject))
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps({"lines": lines}, indent=2) if as_json else "\n".join(lines))


def _explain_request(subject: Sequence[str]) -> pb.ExplainRequest:
    if all("=" in word for word in subject):
        variables = dict(word.split("=", 1) for word in subject)
        foreign = sorted(name for name in variables if not name.startswith("VGPU_"))
        if foreign:
            raise click.UsageError(f"{foreign[0]} is not a variable of a request")
        try:
            return pb.ExplainRequest(request=parse_request(variables))
        except RefusedError as error:
            raise click.UsageError(str(error)) from error
    if len(subject) != 1:
        raise click.UsageError("give one card, one allocation, or VGPU_NAME=VALUE words alone")
    word = subject[0]
    kind, slash, name = word.partition("/")
    if slash and kind == "node":
        return pb.ExplainRequest(node_name=name)
    if slash and kind == "pod":
        namespace, slash, name = name.rpartition("/")
        return pb.ExplainRequest(pod=pb.PodIdentity(namespace=namespace or "default", name=name))
    if word.startswith(("GPU-", "MIG-")):
        return pb.ExplainRequest(card_uuid=word)
    return pb.ExplainRequest(allocation_id=word)


def _rows(config: Config, answer: Answer) -> Iterable[Mapping[str, object]]:
    used = _used(config, answer)
    for index, part in enumerate(answer.allocation.slices):
        yield {
            "container_id": answer.container_id,
            "allocation_id": answer.allocation_id,
            "card_uuid": part.card_uuid,
            "memory_bytes": part.memory_bytes,
            "used_bytes": used[index] if used else None,
            "cores_percent": part.cores_percent,
            "compute_mode": pb.ComputeMode.Name(part.compute_mode)
            .removeprefix("COMPUTE_MODE_")
            .lower(),
            "state": pb.ClaimState.Name(answer.state).removeprefix("CLAIM_STATE_").lower(),
        }


def _used(config: Config, answer: Answer) -> list[int] | None:
    """Return what a container holds of each card: its account, and what NVML sees beyond it."""
    folder = config.paths.run_dir / _CONTAINERS / answer.allocation_id
    try:
        # All slots: what the file says about them is the tenant's word.
        usage = read_usage(folder / "usage" / "usage", answer.allocation, constants.VGPU_MAX_SLOTS)
        overhead = read_overhead(folder / "limits", len(usage.devices))
    except OSError:  # stopped, a whole card, or read by somebody else than root
        return None
    running = answer.state == pb.CLAIM_STATE_RUNNING
    return [
        device.used_bytes + (beyond if running else 0)
        for device, beyond in zip(usage.devices, overhead, strict=True)
    ]


def _answers(config: Config) -> list[Answer]:
    folder = config.paths.state_dir / _ANSWERS
    try:
        return read_answers(folder)
    except FileNotFoundError:  # no agent has run here yet
        return []
    except OSError as error:
        raise RuntimeShimError(f"cannot read {folder}: {error.strerror}") from error


def _card_row(card: CardFacts, answers: Sequence[Answer]) -> Mapping[str, object]:
    held = [
        part.memory_bytes
        for answer in answers
        for part in answer.allocation.slices
        if part.card_uuid == card.uuid and answer.state != pb.CLAIM_STATE_RELEASED
    ]
    return {
        "uuid": card.uuid,
        "kind": pb.CardKind.Name(card.kind).removeprefix("CARD_KIND_").lower(),
        "model": card.model,
        "memory_bytes": card.memory_bytes,
        "free_bytes": max(0, card.memory_bytes - sum(held)),
        "slices": len(held),
        "minor": card.minor,
        "parent_uuid": card.parent_uuid,
    }


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo("\n".join(table_lines(header, rows)))


if __name__ == "__main__":
    sys.exit(main(prog_name="vgpuctl"))
