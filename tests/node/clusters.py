# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster: the agent as a process, real runc, and bundles as a CRI makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime_shim.identity import Identity
from tests.fakes.gpu import SimulatedGpu
from tests.runtime_shim.pods import containerd_marks, kubelet_mounts
from tests.runtime_shim.specs import bind
from tests.testbed.node import Node
from tests.testbed.oci import Bundle, OciRuntime


class ClusterNode(Node):
    """A node whose agent asks a cluster's scheduler cache."""

    def __init__(
        self,
        directory: Path,
        gpu: SimulatedGpu,
        cache_lines: Sequence[str],
        agent_lines: Sequence[str] = (),
        kubelet_dir: Path | None = None,
    ) -> None:
        """`cache_lines`: the table `[cache]` of agent.toml; `agent_lines`: the rest of the table
        `[device_plugin]`, and more. `kubelet_dir`: a kubelet's own; None: there is none.
        """
        self.kubelet_dir = kubelet_dir or directory / "kubelet"
        kubelet = ["[device_plugin]", f'kubelet_dir = "{self.kubelet_dir}"']
        super().__init__(directory, gpu, agent_lines=[*kubelet, *agent_lines])
        path = directory / "agent.toml"
        text = path.read_text().replace('mode = "local"', 'mode = "kubernetes"')
        own = f'address = "unix:{self.cache_socket}"'
        assert own in text
        path.write_text(text.replace(own, "\n".join(cache_lines)))

    def kubelet_files(self, identity: Identity) -> Path:
        """Make what the kubelet binds into a container; return the folder of all pods."""
        root = self.directory / "kubelet" / "pods"
        for mount in kubelet_mounts(identity.pod_uid, identity.container_name, str(root)):
            file = Path(mount["source"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return root


@dataclass
class Pods:
    """Makes bundles of pods' containers."""

    node: ClusterNode
    folder: Path
    template: Path

    def bundle(
        self,
        name: str,
        identity: Identity,
        env: Mapping[str, str],
        args: Sequence[str] = ("sleep", "600"),
        annotations: Mapping[str, str] | None = None,
    ) -> Bundle:
        """Return a bundle as containerd's CRI makes it of what the kubelet asked for."""
        bundle = Bundle.create(
            self.folder / name, self.template, args, env, mounts=self.node.gpu_mounts()
        )
        bundle.spec["annotations"] = dict(annotations or containerd_marks(identity))
        root = self.node.kubelet_files(identity)
        bundle.spec["mounts"] += [
            bind(each["source"], each["destination"], "rw")
            for each in kubelet_mounts(identity.pod_uid, identity.container_name, str(root))
        ]
        bundle.write()
        return bundle


def remove_all(runtime: OciRuntime) -> None:
    """Delete every container that a test left behind."""
    if runtime.root.is_dir():
        for container in runtime.root.iterdir():
            runtime.delete(container.name)
