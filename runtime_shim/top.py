# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top`: the agent's last readings as a table that renews itself, or once.

With `--processes`, also what the processes on the cards do to the host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime_shim.config import Config
from runtime_shim.errors import RuntimeShimError
from runtime_shim.readings import ContainerReading, Readings, read_readings
from runtime_shim.table import human_bytes, table_lines

if TYPE_CHECKING:
    from runtime_shim.host_processes import HostProcess

# The agent writes once a second; what is older was left by one that hangs or was killed.
_STALE_SECONDS = 10.0
_HEADER = ("CONTAINER", "CARD", "LIMIT", "USED", "CORES", "BUSY", "BUSY-TIME", "REFUSED")
_PROCESS_HEADER = ("PID", "NAME", "CONTAINER", "CARD", "USED", "CPU", "HOST-MEMORY")
# Processor time is a difference: with one look alone, it is measured for this long.
_ONCE_SECONDS = 0.5


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


def top_json(readings: Readings, host: Mapping[int, HostProcess] | None = None) -> str:
    """Return everything as JSON; `host`: what is known of the processes, by PID."""
    table = asdict(readings)
    for container in table["containers"]:
        for process in container["processes"]:
            if host is not None and process["pid"] in host:
                process.update(asdict(host[process["pid"]]))
    return json.dumps(table, indent=2)


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


def process_lines(readings: Readings, host: Mapping[int, HostProcess]) -> list[str]:
    """Return the table of the processes on the cards, in the order of their containers."""
    rows = [
        (
            str(process.pid),
            found.name if found is not None else "-",
            _name(each),
            each.card_uuid,
            human_bytes(process.used_bytes),
            "-" if found is None or found.cpu_percent is None else f"{found.cpu_percent:.0f}%",
            human_bytes(found.host_memory_bytes if found is not None else None),
        )
        for each in sorted(readings.containers, key=_order)
        for process in each.processes
        for found in (host.get(process.pid),)
    ]
    return table_lines(_PROCESS_HEADER, rows) if rows else ["no process is on a card"]


def show_top(
    config: Config, *, once: bool, as_json: bool, seconds: float, processes: bool = False
) -> None:
    """Print the readings once, or again and again until interrupted.

    Raises RuntimeShimError, also when `processes` cannot be had.
    """
    folder = config.paths.run_dir
    look_at_host = _host_processes() if processes else None
    if once and look_at_host is not None:
        look_at_host(current_readings(folder))
        time.sleep(_ONCE_SECONDS)
    for readings in _looks(folder, once=once, seconds=seconds):
        host = look_at_host(readings) if look_at_host is not None else None
        if as_json:
            click.echo(top_json(readings, host))
            continue
        if not once:
            click.clear()
        lines = top_lines(readings)
        if host is not None:
            lines += ["", *process_lines(readings, host)]
        click.echo("\n".join(lines))


def _host_processes() -> Callable[[Readings], Mapping[int, HostProcess]]:
    # Imports psutil, which everything else does without.
    try:
        from runtime_shim.host_processes import HostProcesses
    except ModuleNotFoundError as error:
        raise RuntimeShimError(
            "--processes needs the Python package psutil, which is not installed; "
            "apt install python3-psutil"
        ) from error

    host = HostProcesses()

    def look(readings: Readings) -> Mapping[int, HostProcess]:
        pids = {process.pid for each in readings.containers for process in each.processes}
        return host.look(pids, readings.unix_seconds)

    return look


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
