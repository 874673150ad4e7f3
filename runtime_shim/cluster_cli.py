# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl nodes` and `vgpuctl resolve`: what a person asks the scheduler cache of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import click
from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import Config
from runtime_shim.errors import RuntimeShimError
from runtime_shim.table import human_bytes, table_lines

# The number of slices that the scheduler cache gives for a card whose owner sets no limit.
_UNLIMITED = (1 << 32) - 1

_JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("node_name", metavar="[NODE]", default="")
@_JSON_OPTION
@click.pass_obj
def nodes(config: Config, node_name: str, as_json: bool) -> None:
    """List the cards of the cluster's nodes and what is held of them."""
    # Imports gRPC, which the node's own commands do without: a tenth of a second.
    from runtime_shim.cache_client import ask

    request = pb.ListNodesRequest(node_name=node_name)
    try:
        response = ask(
            config.cache, lambda stub: stub.ListNodes(request, timeout=config.cache.try_seconds)
        )
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error
    rows = [row for node in response.nodes for row in _card_rows(node)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("no node has a card that the scheduler cache knows")
        return
    click.echo(
        "\n".join(
            table_lines(
                ("NODE", "READY", "CARD", "MODEL", "MEMORY", "HELD", "CORES", "SLICES", "OPEN"),
                [
                    (
                        str(row["node"]),
                        "yes" if row["ready"] else "no",
                        str(row["card_uuid"]),
                        str(row["model"]),
                        human_bytes(row["memory_bytes"]),
                        human_bytes(row["held_memory_bytes"]),
                        f"{row['held_percent']}%",
                        str(row["held_slots"])
                        if row["slots"] == _UNLIMITED
                        else f"{row['held_slots']}/{row['slots']}",
                        str(row["refusal"]) or "yes",
                    )
                    for row in rows
                ],
            )
        )
    )


@click.command()
@click.argument("subject", metavar="UUID|NAMESPACE/POD")
@click.option(
    "--node", "node_name", default="", help="Ask as this node would, and wait as it does."
)
@_JSON_OPTION
@click.pass_obj
def resolve(config: Config, subject: str, node_name: str, as_json: bool) -> None:
    """Show which slices a container, or every container of a pod, was given."""
    try:
        found = list(_found(config, subject, node_name))
    except RuntimeShimError as error:
        raise click.ClickException(str(error)) from error
    if not found:
        raise click.ClickException(
            f"{subject} has no slice that the scheduler cache knows; `vgpuctl explain "
            f"{'pod/' + subject if '/' in subject else subject}` says why"
        )
    rows = [row for each in found for row in _slice_rows(each)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(
        "\n".join(
            table_lines(
                ("POD", "CONTAINER", "NODE", "CARD", "MEMORY", "CORES", "ALLOCATION"),
                [
                    (
                        str(row["pod"]),
                        str(row["container"]),
                        str(row["node"]),
                        str(row["card_uuid"]),
                        human_bytes(row["memory_bytes"]),
                        f"{row['cores_percent']}%",
                        str(row["allocation_id"]),
                    )
                    for row in rows
                ],
            )
        )
    )


def _found(config: Config, subject: str, node_name: str) -> Iterable[pb.Allocation]:
    from runtime_shim.cache_client import ask

    cache = config.cache
    if node_name and "/" not in subject:
        request = pb.ResolveRequest(container_uuid=subject, node_name=node_name)
        yield ask(cache, lambda stub: stub.Resolve(request, timeout=cache.total_seconds)).allocation
        return
    listing = pb.ListAllocationsRequest(node_name=node_name)
    response = ask(cache, lambda stub: stub.ListAllocations(listing, timeout=cache.total_seconds))
    for claim in response.claims:
        allocation = claim.allocation
        pod = f"{allocation.pod.namespace}/{allocation.pod.name}"
        if subject.lower() == allocation.allocation_id or subject == pod:
            yield allocation


def _card_rows(node: pb.NodeState) -> Iterable[Mapping[str, object]]:
    for state in node.cards:
        yield {
            "node": node.name,
            "ready": node.ready,
            "card_uuid": state.card.uuid,
            "model": state.card.model,
            "memory_bytes": state.card.memory_bytes,
            "held_memory_bytes": state.held_memory_bytes,
            "held_percent": state.held_percent,
            "held_slots": state.held_slots,
            "slots": state.card.slots,
            "owner_dialect": state.owner_dialect,
            "refusal": state.refusal or ("" if state.card.healthy else state.card.health_reason),
        }


def _slice_rows(allocation: pb.Allocation) -> Iterable[Mapping[str, object]]:
    pod = allocation.pod
    for part in allocation.slices:
        yield {
            "pod": f"{pod.namespace}/{pod.name}" if pod.name else "",
            "container": pod.container_name or allocation.claim.container_id,
            "node": allocation.node_name,
            "card_uuid": part.card_uuid,
            "memory_bytes": part.memory_bytes,
            "cores_percent": part.cores_percent,
            "allocation_id": allocation.allocation_id,
            "epoch": allocation.epoch,
        }
