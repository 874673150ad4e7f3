# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl doctor`: all checks in the order in which one depends on another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from runtime_shim.config import Config
from runtime_shim.configure.launcher import find_launcher
from runtime_shim.doctor.container import check_container
from runtime_shim.doctor.driver import check_driver, check_nvml
from runtime_shim.doctor.engines import check_engines
from runtime_shim.doctor.finding import FAIL, OK, WARN, Finding, fail, ok
from runtime_shim.doctor.kubelet import check_kubelet
from runtime_shim.doctor.library import (
    check_copies,
    check_digests,
    check_driver_names,
    check_library,
)
from runtime_shim.doctor.runtime_conf import read_runtime_conf
from runtime_shim.doctor.runtimes import check_gpu_runtime, check_launcher, check_low_level
from runtime_shim.doctor.services import check_agent, check_cache
from runtime_shim.errors import ConfigError

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of findings.")
@click.option(
    "--container/--no-container",
    "with_container",
    default=True,
    show_default=True,
    help="Also start two tiny containers through the launcher; in local mode one with a slice "
    "of 1 MiB.",
)
@click.option(
    "--runtime",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Path of vgpu-container-runtime.  [default: beside vgpuctl]",
)
@click.pass_obj
def doctor(
    config: Config | ConfigError, as_json: bool, with_container: bool, runtime: Path | None
) -> None:
    """Look whether this node can give slices, and say what to do where it cannot.

    One line a part: `ok`; `warn`, it works and somebody should know; `fail`, containers will not
    get slices. Nothing is changed. The exit status is 1 when a part fails, else 0.
    """
    findings = []
    for finding in examine(config, runtime, with_container):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in findings], indent=2))
    if any(each.level == FAIL for each in findings):
        sys.exit(1)


def examine(
    config: Config | ConfigError, runtime: Path | None, with_container: bool
) -> Iterator[Finding]:
    """Yield what each check finds."""
    if isinstance(config, ConfigError):
        yield fail("configuration", str(config), "correct it; until then the defaults are examined")
        config = Config()
    else:
        yield ok("configuration", f"mode {config.mode!r}, node {config.node_name}")
    launcher = find_launcher(runtime)
    conf = read_runtime_conf(launcher or Path("/usr/bin/vgpu-container-runtime"))
    yield check_driver(config.driver)
    yield check_nvml(config.driver)
    yield check_low_level(conf)
    yield check_gpu_runtime(conf, config.gpu_runtime.enabled)
    yield check_launcher(launcher, conf)
    yield check_digests(config.paths.library, launcher)
    yield check_library(config.paths.library)
    yield check_copies(config.paths.library, config.paths.state_dir)
    yield check_driver_names(config.driver)
    yield check_agent(config, conf)
    yield check_cache(config)
    if config.mode == "kubernetes":
        yield check_kubelet(config)
    yield from check_engines()
    if with_container:
        yield check_container(launcher, config.mode)


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level:<5}", fg=_COLOURS[finding.level])
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    click.echo(f"{level} {finding.check}: {finding.message}{remedy}")
