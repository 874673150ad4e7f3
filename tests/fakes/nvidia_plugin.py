# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device plugin, as far as the kubelet and a container's runtime see it.

Source: NVIDIA k8s-device-plugin 0.17, docs/, `--device-list-strategy`, `--device-id-strategy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from vgpu.kubelet import deviceplugin_v1beta1_pb2 as api
from vgpu.kubelet import deviceplugin_v1beta1_pb2_grpc as api_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class NvidiaPlugin(api_grpc.DevicePluginServicer):
    """Gives out whole cards, or replicas of them, by name."""

    def __init__(
        self,
        folder: Path,
        devices: Sequence[str],
        *,
        resource: str = "nvidia.com/gpu",
        strategy: str = "envvar",
        nodes: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        """`devices`: UUIDs or indices, with `::N` for replicas; `strategy`: `envvar`,
        `volume-mounts` or `cdi-annotations`. `nodes`: with `--pass-device-specs`, where each card's
        device nodes are, which the container gets below /dev.
        """
        self._folder = folder
        self._devices = devices
        self._resource = resource
        self._strategy = strategy
        self._nodes = nodes or {}
        self._server = grpc.aio.server()

    async def start(self) -> None:
        """Serve, and register with the kubelet of this folder."""
        api_grpc.add_DevicePluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self._folder / 'nvidia-gpu.sock'}")
        await self._server.start()
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        address = f"unix:{self._folder / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            await api_grpc.RegistrationStub(channel).Register(  # type: ignore[no-untyped-call]
                api.RegisterRequest(
                    version="v1beta1", endpoint="nvidia-gpu.sock", resource_name=self._resource
                )
            )

    async def stop(self) -> None:
        """End."""
        await self._server.stop(None)

    async def GetDevicePluginOptions(self, _: api.Empty, __: Context) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def ListAndWatch(
        self, _: api.Empty, __: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=name, health="Healthy") for name in self._devices]
        )
        await asyncio.Event().wait()

    async def Allocate(self, request: api.AllocateRequest, _: Context) -> api.AllocateResponse:
        return api.AllocateResponse(
            container_responses=[
                self._response(list(each.devices_ids)) for each in request.container_requests
            ]
        )

    def _response(self, names: list[str]) -> api.ContainerAllocateResponse:
        cards = list(dict.fromkeys(name.partition("::")[0] for name in names))
        answer = self._list(cards)
        nodes = dict.fromkeys(node for card in cards for node in self._nodes.get(card, ()))
        for node in nodes:
            answer.devices.add(
                container_path=f"/dev/{node.name}", host_path=str(node), permissions="rw"
            )
        return answer

    def _list(self, cards: list[str]) -> api.ContainerAllocateResponse:
        match self._strategy:
            case "envvar":
                return api.ContainerAllocateResponse(
                    envs={"NVIDIA_VISIBLE_DEVICES": ",".join(cards)}
                )
            case "volume-mounts":
                lists = "/var/run/nvidia-container-devices"
                return api.ContainerAllocateResponse(
                    envs={"NVIDIA_VISIBLE_DEVICES": lists},
                    mounts=[
                        api.Mount(
                            container_path=f"{lists}/{card}", host_path="/dev/null", read_only=True
                        )
                        for card in cards
                    ],
                )
            case _:
                return api.ContainerAllocateResponse(
                    annotations={
                        "cdi.k8s.io/nvidia-device-plugin_0": ",".join(
                            f"nvidia.com/gpu={card}" for card in cards
                        )
                    }
                )
