# SPDX-License-Identifier: Apache-2.0
"""The kubelet of this node: its two sockets, and its own record of who was given which device.

gRPC's errors become ours here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as plugin_api
from vgpu.kubelet import deviceplugin_v1beta1_pb2_grpc as plugin_grpc
from vgpu.kubelet import podresources_v1_pb2 as resources_api
from vgpu.kubelet import podresources_v1_pb2_grpc as resources_grpc

from runtime_shim.errors import RuntimeShimError
from runtime_shim.threads import in_thread

T = TypeVar("T")

API_VERSION: Final = "v1beta1"

# With the names of slots in small units of memory in it, an answer is far above gRPC's 4 MiB.
_MOST_BYTES: Final = 64 * 2**20

_CHANNEL_OPTIONS: Final = (
    # The authority of a unix socket is its path, percent-encoded, which Go's servers refuse.
    ("grpc.default_authority", "localhost"),
    # A connection to a kubelet that has ended is not this one's.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MOST_BYTES),
)


class KubeletError(RuntimeShimError):
    """The kubelet does not answer, or not with what it should."""


@dataclass(frozen=True, kw_only=True)
class ContainerKey:
    """A container as PodResources knows it."""

    namespace: str
    pod: str
    container: str


Devices = Mapping[str, frozenset[str]]
"""Names of devices by resource."""


class Kubelet:
    """Both sockets of the kubelet; each call has its own connection, since kubelets come and go."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the kubelet's own, /var/lib/kubelet."""
        self.plugins = folder / "device-plugins"
        self.registration = self.plugins / "kubelet.sock"
        self._pod_resources = folder / "pod-resources" / "kubelet.sock"
        self._record = self.plugins / "kubelet_internal_checkpoint"

    async def register(self, resource_name: str, endpoint: str, seconds: float) -> None:
        """Announce a plugin that serves on `endpoint` beside the kubelet's. Raises KubeletError."""
        request = plugin_api.RegisterRequest(
            version=API_VERSION,
            endpoint=endpoint,
            resource_name=resource_name,
            options=plugin_api.DevicePluginOptions(),
        )
        await _ask(
            self.registration,
            lambda channel: plugin_grpc.RegistrationStub(channel).Register(  # type: ignore[no-untyped-call]
                request, timeout=seconds
            ),
            f"register {resource_name}",
        )

    async def devices_of_containers(self, seconds: float) -> dict[ContainerKey, list[Devices]]:
        """Return what every container of this node was given by plugins. Raises KubeletError.

        A name has several while a pod ends that was deleted by force, and another one has its name:
        one of each pod, since either may have an init container of that name, which is not listed.
        """
        answer = await _ask(
            self._pod_resources,
            lambda channel: resources_grpc.PodResourcesListerStub(channel).List(  # type: ignore[no-untyped-call]
                resources_api.ListPodResourcesRequest(), timeout=seconds
            ),
            "list the devices of pods",
        )
        found: dict[ContainerKey, list[Devices]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                key = ContainerKey(namespace=pod.namespace, pod=pod.name, container=container.name)
                found.setdefault(key, []).append(_devices(container.devices))
        pods = Counter((pod.namespace, pod.name) for pod in answer.pod_resources)
        for key, several in found.items():
            several += [{}] * (pods[key.namespace, key.pod] - len(several))
        return found

    async def recorded_devices(self, pod_uid: str, container_name: str) -> Devices:
        """Return what a container was given; empty: nothing. Raises KubeletError.

        For ordinary init containers, which PodResources leaves out. The kubelet's record is no API,
        but root's alone like its sockets; it is written before a pod's first container is created.
        """
        return await in_thread(partial(_recorded, self._record, pod_uid, container_name))

    async def devices(self, seconds: float) -> Devices:
        """Return every healthy device of every plugin. Raises KubeletError."""
        answer = await _ask(
            self._pod_resources,
            lambda channel: resources_grpc.PodResourcesListerStub(  # type: ignore[no-untyped-call]
                channel
            ).GetAllocatableResources(resources_api.AllocatableResourcesRequest(), timeout=seconds),
            "list the devices of plugins",
        )
        return _devices(answer.devices)


async def _ask(socket: Path, call: Callable[[grpc.aio.Channel], Awaitable[T]], what: str) -> T:
    if not socket.exists():  # gRPC would wait for one to come
        raise KubeletError(f"cannot {what}: there is no {socket}")
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS) as channel:
            answer = await call(channel)
    except grpc.aio.AioRpcError as error:
        raise KubeletError(
            f"cannot {what} at {socket}: {error.code().name} {error.details()}"
        ) from error
    if answer is None:  # what gRPC makes of an answer that is no message of this kind
        raise KubeletError(f"cannot {what} at {socket}: its answer is not readable")
    return answer


def _recorded(record: Path, pod_uid: str, container_name: str) -> dict[str, frozenset[str]]:
    """Return a container's devices by resource.

    Source: Kubernetes 1.20 to 1.34, pkg/kubelet/cm/devicemanager/checkpoint.
    """
    found: dict[str, set[str]] = {}
    try:
        for entry in json.loads(record.read_bytes())["Data"]["PodDeviceEntries"] or ():
            if (entry["PodUID"], entry["ContainerName"]) != (pod_uid, container_name):
                continue
            for names in entry["DeviceIDs"].values():  # by NUMA node
                found.setdefault(entry["ResourceName"], set()).update(names)
    except OSError as error:
        raise KubeletError(f"cannot read {record}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KubeletError(f"{record} has a form that is not known here") from error
    return {name: frozenset(ids) for name, ids in found.items()}


def _devices(several: object) -> dict[str, frozenset[str]]:
    """Return the names by resource: the kubelet lists one resource once for each NUMA node."""
    found: dict[str, set[str]] = {}
    for each in several:  # type: ignore[attr-defined]
        found.setdefault(each.resource_name, set()).update(each.device_ids)
    return {name: frozenset(ids) for name, ids in found.items()}
