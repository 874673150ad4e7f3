# SPDX-License-Identifier: Apache-2.0
"""Puts another template into a DaemonSet, and waits until every node runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from scheduler_cache.kube.client import KubeClient
from scheduler_cache.kube.errors import KubeError, MissingError

_POLL_SECONDS = 1.0


class RollOutError(KubeError):
    """Some nodes do not run it in time; they go on trying."""


async def roll_out(
    client: KubeClient, item: dict[str, Any], *, seconds: float, tell: Callable[[str], None]
) -> None:
    """Give the DaemonSet of `item`'s name the template of `item`; return once it runs everywhere.

    A DaemonSet that is not there runs nowhere. `tell` hears of progress. Raises KubeError;
    RollOutError after `seconds`.
    """
    namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
    path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
    change = {key: item["spec"][key] for key in ("template", "updateStrategy")}
    try:
        known = await client.patch(path, {"spec": change})
    except MissingError:
        tell(f"there is no daemonset {namespace}/{name}")
        return
    generation, deadline, said = known["metadata"]["generation"], time.monotonic() + seconds, ""
    while True:
        status = known.get("status", {})
        nodes = status.get("desiredNumberScheduled", 0)
        ready = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
        seen = status.get("observedGeneration", 0) >= generation
        words = f"{ready} of {nodes} nodes" if seen else "the controller has not seen it yet"
        if words != said:
            tell(f"daemonset {namespace}/{name}: {words}")
            said = words
        if seen and ready >= nodes:
            return
        if time.monotonic() > deadline:
            raise RollOutError(
                f"daemonset {namespace}/{name} is not everywhere within {seconds:g} s: {words}; "
                f"the logs of its pods say why: kubectl -n {namespace} get pods -o wide"
            )
        await asyncio.sleep(_POLL_SECONDS)
        try:
            known = await client.get(path)
        except MissingError:
            return
        except KubeError as error:  # an API server that restarts
            tell(str(error))
