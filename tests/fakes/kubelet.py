# SPDX-License-Identifier: Apache-2.0
"""A kubelet behind its two real gRPC services, as far as device plugins and vouching meet it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as plugin_api
from vgpu.kubelet import deviceplugin_v1beta1_pb2_grpc as plugin_grpc
from vgpu.kubelet import podresources_v1_pb2 as resources_api
from vgpu.kubelet import podresources_v1_pb2_grpc as resources_grpc

Context = grpc.aio.ServicerContext[Any, Any]

# The kubelet's client keeps gRPC's default. Source: grpc-go, defaultClientMaxReceiveMessageSize.
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4 * 2**20),
)


@dataclass
class Endpoint:
    """One registered plugin."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    devices: dict[str, str] = field(default_factory=dict)
    """Health by name."""
    listings: int = 0
    watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.wait({self.watching})
        await self.channel.close(None)


class FakeKubelet(plugin_grpc.RegistrationServicer, resources_grpc.PodResourcesListerServicer):
    """Serves from `start` to `stop` or `kill`; may be started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins = folder / "device-plugins"
        self.registration = self.plugins / "kubelet.sock"
        self.pod_resources = folder / "pod-resources" / "kubelet.sock"
        self.record = self.plugins / "kubelet_internal_checkpoint"
        self.entries: list[dict[str, Any]] = []
        """What it holds of containers."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[str] = []
        self.refuses: set[str] = set()
        """Resources whose registration fails."""
        self.pods: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {}
        """Containers of (namespace, pod) with their devices by resource."""
        self.ending: list[resources_api.PodResources] = []
        """Deleted by force and not gone yet; others may have their names."""
        self.lists = 0
        self.silent = False
        """List answers nobody."""
        self.answer: Callable[[resources_api.ListPodResourcesResponse], bytes] = lambda response: (
            response.SerializeToString()
        )
        """What List sends: a test may garble it."""
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Start as a kubelet does: every socket in the folder of plugins is removed first."""
        for socket in self.plugins.glob("*.sock"):
            socket.unlink()
        server = grpc.aio.server()
        plugin_grpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "List": grpc.unary_unary_rpc_method_handler(
                self.List,
                request_deserializer=resources_api.ListPodResourcesRequest.FromString,
                response_serializer=lambda response: self.answer(response),
            ),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                self.GetAllocatableResources,
                request_deserializer=resources_api.AllocatableResourcesRequest.FromString,
                response_serializer=resources_api.AllocatableResourcesResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        server.add_insecure_port(f"unix:{self.registration}")
        server.add_insecure_port(f"unix:{self.pod_resources}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """End in order."""
        for endpoint in self.endpoints.values():
            await endpoint.close()
        self.endpoints.clear()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def restart(self) -> None:
        """End and start again."""
        await self.stop()
        await self.start()

    async def drop(self, resource: str) -> None:
        """Forget a plugin without a word, as a kubelet does whose connection broke."""
        await self.endpoints.pop(resource).close()

    def healthy(self, resource: str) -> int:
        """Return how many devices of a resource pods may be given."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return 0
        return sum(health == "Healthy" for health in endpoint.devices.values())

    async def admit(
        self,
        namespace: str,
        pod: str,
        containers: Mapping[str, Mapping[str, int]],
        *,
        uid: str = "",
        inits: Collection[str] = (),
    ) -> dict[str, list[plugin_api.ContainerAllocateResponse]]:
        """Admit a pod: give each container so many devices of each resource.

        `inits`: the ordinary init containers among them, which are noted and not listed. Returns
        what plugins add to each container. Raises AssertionError where too few are free.
        """
        given: dict[str, list[plugin_api.ContainerAllocateResponse]] = defaultdict(list)
        devices: dict[str, dict[str, list[str]]] = {name: {} for name in containers}
        for container, wanted in containers.items():
            for resource, count in wanted.items():
                free = self._free(resource, devices)
                assert len(free) >= count, f"{len(free)} of {resource} are free, not {count}"
                devices[container][resource] = free[:count]
                given[container] += await self.allocate(resource, free[:count])
        self.pods[namespace, pod] = {
            name: each for name, each in devices.items() if name not in inits
        }
        self.entries += [
            {
                "PodUID": uid,
                "ContainerName": name,
                "ResourceName": resource,
                "DeviceIDs": {"-1": ids},
                "AllocResp": "",
            }
            for name, each in devices.items()
            for resource, ids in each.items()
        ]
        self.write_record()
        return given

    def write_record(self) -> None:
        """Write down what containers have, as the kubelet does for its own next start."""
        data = {"Data": {"PodDeviceEntries": self.entries}, "Checksum": 1}
        self.record.write_text(json.dumps(data))

    async def allocate(
        self, resource: str, *several: list[str]
    ) -> list[plugin_api.ContainerAllocateResponse]:
        """Call Allocate of a plugin; each of `several` is one container's devices."""
        stub = plugin_grpc.DevicePluginStub(self.endpoints[resource].channel)  # type: ignore[no-untyped-call]
        answer = await stub.Allocate(
            plugin_api.AllocateRequest(
                container_requests=[
                    plugin_api.ContainerAllocateRequest(devices_ids=ids) for ids in several
                ]
            )
        )
        return list(answer.container_responses)

    def _free(self, resource: str, more: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
        taken = {
            name
            for containers in (*self.pods.values(), more)
            for by_resource in containers.values()
            for name in by_resource.get(resource, ())
        }
        devices = self.endpoints[resource].devices
        return [
            name for name, health in devices.items() if health == "Healthy" and name not in taken
        ]

    # v1beta1.Registration

    async def Register(self, request: plugin_api.RegisterRequest, context: Context) -> Any:  # noqa: ANN401 - generated
        self.registrations.append(request.resource_name)
        if request.version != "v1beta1" or request.resource_name in self.refuses:
            await context.abort(grpc.StatusCode.UNKNOWN, "not this one")
        socket = self.plugins / request.endpoint
        channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        endpoint = Endpoint(request.resource_name, socket, channel)
        former = self.endpoints.pop(request.resource_name, None)
        if former is not None:
            await former.close()
        self.endpoints[request.resource_name] = endpoint
        endpoint.watching = asyncio.create_task(self._watch(endpoint))
        return plugin_api.Empty()

    async def _watch(self, endpoint: Endpoint) -> None:
        stub = plugin_grpc.DevicePluginStub(endpoint.channel)  # type: ignore[no-untyped-call]
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for listing in stub.ListAndWatch(plugin_api.Empty()):
                endpoint.devices = {device.ID: device.health for device in listing.devices}
                endpoint.listings += 1
        endpoint.devices = dict.fromkeys(endpoint.devices, "Unhealthy")

    # v1.PodResourcesLister

    async def List(
        self, _: resources_api.ListPodResourcesRequest, __: Context
    ) -> resources_api.ListPodResourcesResponse:
        self.lists += 1
        if self.silent:
            await asyncio.Event().wait()
        return resources_api.ListPodResourcesResponse(
            pod_resources=self.ending
            + [
                resources_api.PodResources(
                    namespace=namespace,
                    name=pod,
                    containers=[
                        resources_api.ContainerResources(
                            name=name,
                            # One entry each, as for devices on several NUMA nodes.
                            devices=[
                                resources_api.ContainerDevices(
                                    resource_name=resource, device_ids=[device]
                                )
                                for resource, ids in devices.items()
                                for device in ids
                            ],
                        )
                        for name, devices in containers.items()
                    ],
                )
                for (namespace, pod), containers in self.pods.items()
            ]
        )

    async def GetAllocatableResources(
        self, _: resources_api.AllocatableResourcesRequest, __: Context
    ) -> resources_api.AllocatableResourcesResponse:
        return resources_api.AllocatableResourcesResponse(
            devices=[
                resources_api.ContainerDevices(
                    resource_name=endpoint.resource,
                    device_ids=[
                        name for name, health in endpoint.devices.items() if health == "Healthy"
                    ],
                )
                for endpoint in self.endpoints.values()
            ]
        )


@contextlib.asynccontextmanager
async def running_kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    """Yield a kubelet that runs."""
    kubelet = FakeKubelet(folder)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
