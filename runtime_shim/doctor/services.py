# SPDX-License-Identifier: Apache-2.0
"""Checks the agent and the scheduler cache: whether they answer, not only whether they run."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from vgpu.v1 import scheduler_cache_pb2 as pb

from runtime_shim.config import Config
from runtime_shim.doctor.finding import Finding, fail, ok
from runtime_shim.doctor.runtime_conf import RuntimeConf
from runtime_shim.errors import RuntimeShimError
from runtime_shim.library import UNCONFIGURED_REMEDY, is_unconfigured
from runtime_shim.verdict import HEADER, MAGIC, MAJOR, PACKET_BYTES

_START_AGENT = "systemctl enable --now vgpu-node-agent.socket vgpu-node-agent"
_AGENT_SECONDS = 10.0
_CACHE_SECONDS = 10.0
# No launcher speaks it: the agent answers that it does not either, and decides nothing.
_NO_VERSION = 0


def check_agent(config: Config, conf: RuntimeConf) -> Finding:
    """Ask the agent for a word on the launchers' socket."""
    path = conf.agent_socket
    if path != str(config.paths.socket):
        return fail(
            "agent",
            f"the launcher asks at {path} and the agent listens at {config.paths.socket}",
            f"let agent_socket in {conf.source} and paths.socket in agent.toml agree",
        )
    try:
        header = _ask(path)
    except PermissionError:
        return fail("agent", f"{path} is for root only", "run vgpuctl doctor as root")
    except TimeoutError:
        return fail(
            "agent",
            f"it gives no answer at {path} within {_AGENT_SECONDS:g} s",
            "see journalctl -u vgpu-node-agent, then systemctl restart vgpu-node-agent",
        )
    except OSError as error:
        return fail(
            "agent",
            f"nobody answers at {path}: {error.strerror or error}",
            UNCONFIGURED_REMEDY if is_unconfigured(config.paths.library) else _START_AGENT,
        )
    if len(header) < HEADER.size or HEADER.unpack_from(header)[0] != MAGIC:
        return fail("agent", f"{path} is not the agent's socket", f"correct {conf.source}")
    major, minor = HEADER.unpack_from(header)[1:3]
    if major != MAJOR:
        return fail(
            "agent",
            f"it speaks protocol {major}.{minor}, and what is installed speaks {MAJOR}",
            "systemctl restart vgpu-node-agent",
        )
    return ok("agent", f"answers at {path}, protocol {major}.{minor}")


def check_cache(config: Config) -> Finding:
    """Ask the scheduler cache whether the smallest slice would fit, or what it has of this node."""
    # gRPC takes a tenth of a second to import.
    from runtime_shim.cache_client import explain

    address = config.cache.address
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if path.exists() and not os.access(path, os.W_OK):
            return fail("cache", f"{path} is for root only", "run vgpuctl doctor as root")
    # A busy cache is no absent one, which is known at once.
    patient = replace(config.cache, try_seconds=_CACHE_SECONDS, total_seconds=_CACHE_SECONDS)
    question = pb.ExplainRequest(node_name=config.node_name)
    remedy = "see the pods of vgpu-scheduler-cache, and [cache] in agent.toml"
    if config.mode == "local":
        smallest = pb.AllocationRequest(count=1, memory=[pb.MemoryAmount(bytes=1 << 20)])
        question = pb.ExplainRequest(request=smallest)
        remedy = "systemctl enable --now vgpu-scheduler-cache"
    try:
        lines = explain(patient, question)
    except RuntimeShimError as error:
        return fail("cache", str(error), remedy)
    return ok("cache", f"answers at {address}: {lines[0] if lines else 'nothing to say'}")


def _ask(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_AGENT_SECONDS)
        connection.connect(path)
        connection.send(HEADER.pack(MAGIC, _NO_VERSION, 0, 0, 0))
        return connection.recv(PACKET_BYTES)
