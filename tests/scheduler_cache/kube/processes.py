# SPDX-License-Identifier: Apache-2.0
"""A replica as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.scheduler_cache.kube.replicas import NAMESPACE, Site


class ReplicaProcess:
    """`vgpu-scheduler-cache serve --kubeconfig …`."""

    def __init__(self, site: Site, name: str) -> None:
        config = site.config(name)
        path = site.folder / name / "cache.toml"
        path.write_text(str(config))
        self.address = config.listen[0]
        self.log = site.folder / name / "log"
        command = [sys.executable, "-m", "scheduler_cache.cli", "serve", "--config", str(path)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "POD_NAME": name}
            )

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.send(signal.SIGTERM)
        return self._process.wait(30)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)


@contextmanager
def replica_process(site: Site, name: str) -> Iterator[ReplicaProcess]:
    """Yield a replica that was started, and kill what is left of it."""
    server = site.server
    item = {"metadata": {"name": name, "namespace": NAMESPACE, "uid": name}, "spec": {}}
    item["metadata"]["resourceVersion"] = str(server._next())
    server.objects.setdefault("/api/v1/pods", {})[NAMESPACE, name] = item
    process = ReplicaProcess(site, name)
    try:
        yield process
    finally:
        process.end()
