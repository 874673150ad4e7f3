# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top`: the agent's last readings as a table that renews itself, or once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from runtime_shim.config import Config
from runtime_shim.errors import RuntimeShimError
from runtime_shim.readings import ContainerReading, Readings, read_readings
from runtime_shim.table import human_bytes, table_lines

# The agent writes once a second; what is older was left by one that hangs or was killed.
_STALE_SECONDS = 10.0
_HEADER = ("CONTAINER", "CARD", "LIMIT", "USED", "CORES", "BUSY", "BUSY-TIME", "REFUSED")


def current_readings(folder: Path) -> Readings:
    """Return what the agent measured last. Raises RuntimeShimError when nobody measures."""
    remedy = "start vgpu-node-agent, or see its log"
    try:
        readings = read_readings(folder)
    except FileNotFoundError:
        raise RuntimeShimError(f"no node agent measures in {folder}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise RuntimeShimError(f"cannot read what the node agent measured: {error}") from error
    age_seconds = time.time() - readings.unix_seconds
    # Clocks jump: what is from the future was read before the jump.
    if abs(age_seconds) > _STALE_SECONDS:
        raise RuntimeShimError(f"the node agent measured {age_seconds:.0f} s ago last; {remedy}")
    return readings


def top_json(readings: Readings) -> str:
    """Return everything as JSON."""
    return json.dumps(asdict(readings), indent=2)


def top_lines(readings: Readings) -> list[str]:
    """Return the table, the busiest container first, and a line for each card below it."""
    containers = sorted(readings.containers, key=_order)
    lines = table_lines(_HEADER, [_row(each) for each in containers])
    if not containers:
        lines = ["no container holds a slice"]
    lines += [""] + [
        f"{card.card_uuid}  {card.model}  {card.slices} slices,"
        f" {human_bytes(card.slices_memory_bytes)} of {human_bytes(card.memory_bytes)} promised,"
        f" {human_bytes(card.used_bytes)} in use, {_percent(card.utilization_percent)} busy"
        + (f"  UNHEALTHY: {card.health_reason}" if card.health_reason else "")
        for card in readings.cards
    ]
    return lines


def show_top(config: Config, *, once: bool, as_json: bool, seconds: float) -> None:
    """Print the readings once, or again and again until interrupted. Raises RuntimeShimError."""
    folder = config.paths.run_dir
    if as_json:
        for readings in _looks(folder, once=once, seconds=seconds):
            click.echo(top_json(readings))
        return
    for readings in _looks(folder, once=once, seconds=seconds):
        if not once:
            click.clear()
        click.echo("\n".join(top_lines(readings)))


def _looks(folder: Path, *, once: bool, seconds: float) -> Iterator[Readings]:
    yield current_readings(folder)
    while not once:
        time.sleep(seconds)
        yield current_readings(folder)


def _order(each: ContainerReading) -> tuple[float, int, str, str]:
    return (-each.busy_percent, -each.used_bytes, each.container_id, each.card_uuid)


def _row(each: ContainerReading) -> Sequence[str]:
    return (
        _name(each),
        each.card_uuid,
        human_bytes(each.limit_bytes),
        human_bytes(each.used_bytes),
        f"{each.cores_percent}%",
        f"{each.busy_percent:.0f}%",
        f"{each.busy_seconds:.1f}s",
        str(each.refused),
    )


def _name(each: ContainerReading) -> str:
    if each.pod:
        return f"{each.namespace}/{each.pod}/{each.container}"
    return each.container_id[:12] or each.allocation_id


def _percent(number: int | None) -> str:
    return "-" if number is None else f"{number}%"
